"""The watermark: a seq S up to which all events are present, and which doesn't split a source transaction.

A job reads the topics partition by partition, and some partitions are read faster than others. A source transaction has rows in
several partitions, so at any moment only half of a transaction may have been read. Two facts show which events are complete:

* `source.seq` has no gaps over all topics. After a seq that is known to be complete, all events up to the first missing one are
  present.
* Suppose that an event has been seen, and that all partitions have then been read up to the ends that they had after that. Then
  every event before it is present, even if there are gaps, because the daemon writes its Kafka transactions one after another.
  This holds whenever the job has nothing left to read. It is also how the watermark begins if Kafka no longer has the stream's
  first events, or if the job reads only some spaces.

A transaction ends where the next one begins (`total_order` 1). If nothing is left to read, the last event is an end, too, because
the daemon writes a source transaction in one Kafka transaction. A snapshot is one unit: S stays before its first row until its
COMPLETED has been read.

This module only decides; merger.py reads the data for it from the table of events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name

_BUCKET_BITS: Final = 32768
"""Size of a bucket in Spark's bitmap functions: bucket n (from 1) has the numbers from (n - 1) * 32768 + 1 on."""

_EMPTY_MAX: Final = 8
"""Number of buckets without events in a row that the bitmaps have. One event with a far seq would else take all memory."""

Bits = tuple[int, int, int]
"""Bitmaps over the seqs of a bucket: events that are present, that begin a transaction, and that belong to a snapshot."""

Ends = Mapping[tuple[str, int], int]
"""Offsets by topic and partition."""


@dataclass(frozen=True)
class Seqs:
    """Bitmaps over the events after a seq (bit 0: the next seq).

    They mark the events that are present, that begin a transaction, and that belong to a snapshot. Of a long distance without
    events the bitmaps have only the beginning, however far away the next event is. `left_out` lists the places behind such
    beginnings, in order, each with the number of seqs that have no bit.
    """

    after: int
    present: int
    begins: int
    from_snapshot: int
    left_out: tuple[tuple[int, int], ...] = ()

    @property
    def last(self) -> int:
        """The highest seq that is present, `after` if none is."""
        return self.seq(self.present.bit_length())

    def seq(self, count: int) -> int:
        """Return the seq of the last of the first `count` bits; `after` for none."""
        return self.after + count + sum(seqs for place, seqs in self.left_out if place < count)

    def events(self, after: int, up_to: int) -> int:
        """Return the number of events that are present after a seq and up to another one."""
        return (_first_bits(self.present, max(self.count(up_to), 0)) >> max(self.count(after), 0)).bit_count()

    def count(self, seq: int) -> int:
        """Return the number of bits up to a seq. Behind the bits up to a seq that has none, an event is missing."""
        count = seq - self.after
        for place, seqs in self.left_out:
            if count < place:
                break
            count = max(count - seqs, place - 1)
        return count


class EventsAfterMark:
    """Bitmaps of the events seen so far after the watermark, by space. New events are added, so no event is read twice."""

    def __init__(self) -> None:
        """Begin without events."""
        self._found: dict[tuple[str, int], Bits] = {}

    def add(self, space: str, bucket: int, *bits: bytes) -> None:
        """Add the bitmaps of some events."""
        new = (int.from_bytes(piece, "little") for piece in bits)
        present, begins, from_snapshot = self._found.get((space, bucket), (0, 0, 0))
        self._found[space, bucket] = (present | next(new), begins | next(new), from_snapshot | next(new))

    def seqs(self, mark: int) -> Seqs:
        """Return all events seen after the watermark `mark`."""
        buckets: dict[int, Bits] = {}
        for (_, bucket), found in self._found.items():
            known = buckets.get(bucket, (0, 0, 0))
            buckets[bucket] = (known[0] | found[0], known[1] | found[1], known[2] | found[2])
        return seqs(max(mark, seq_before(buckets)), buckets)

    def count_and_drop(self, mark: int, up_to: int) -> dict[str, int]:
        """Return each space's number of events after the watermark `mark` and up to the new one, `up_to`.

        Buckets that end at or before the new watermark are dropped.
        """
        counts: dict[str, int] = {}
        for (space, bucket), found in list(self._found.items()):
            before = (bucket - 1) * _BUCKET_BITS
            passed = _first_bits(found[0], max(up_to - before, 0)) >> max(mark - before, 0)
            if passed:
                counts[space] = counts.get(space, 0) + passed.bit_count()
            if before + _BUCKET_BITS <= up_to:
                del self._found[space, bucket]
        return counts


def bitmaps(events: DataFrame, *more: Column, by: Sequence[str] = ("space", "space_id", "schema_version")) -> DataFrame:
    """Return the bitmaps of a frame of events, per space, bucket of `seq`, and form, or as `by` says.

    The aggregates `more` come last. The bitmaps mark the events that are present, that begin a
    transaction, and that belong to a snapshot.
    """
    place = "bitmap_bit_position(seq)"
    bucket = F.expr("bitmap_bucket_number(seq)").alias("bucket")
    return events.groupBy(by[0], bucket, *by[1:]).agg(
        F.expr(f"bitmap_construct_agg({place})").alias("present"),
        F.expr(f"bitmap_construct_agg(if(total_order is null or total_order = 1, {place}, null))").alias("begins"),
        F.expr(f"bitmap_construct_agg(if(snapshot = 'true', {place}, null))").alias("from_snapshot"),
        *more,
    )


def seq_before(buckets: Iterable[int]) -> int:
    """Return the seq before the numbers of the first of these buckets; 0 without buckets.

    If Kafka no longer has a stream's beginning, the stream begins far after the watermark. Bits for all missing events would then
    be too many.
    """
    return max(min(buckets, default=1) - 1, 0) * _BUCKET_BITS


def seqs(after: int, buckets: Mapping[int, Bits]) -> Seqs:
    """Return the events after `after` from buckets, none of which may end before it."""
    pieces = [bytearray(), bytearray(), bytearray()]
    first = after // _BUCKET_BITS
    skipped = after - first * _BUCKET_BITS
    left_out: list[tuple[int, int]] = []
    for bucket, found in sorted(buckets.items()):
        ended = first + len(pieces[0]) // (_BUCKET_BITS // 8)
        if (empty := bucket - 1 - ended) > _EMPTY_MAX:
            # One bucket stands for all of them: it is enough to show that events are missing.
            left_out.append(((ended + 1 - first) * _BUCKET_BITS - skipped, (empty - 1) * _BUCKET_BITS))
            first += empty - 1
        place = (bucket - 1 - first) * (_BUCKET_BITS // 8)
        for piece, bits in zip(pieces, found, strict=True):
            piece.extend(bytes(place - len(piece)))
            piece.extend(bits.to_bytes(_BUCKET_BITS // 8, "little"))
    present, begins, from_snapshot = (int.from_bytes(piece, "little") >> skipped for piece in pieces)
    return Seqs(after, present, begins, from_snapshot, tuple(left_out))


def ends_without_records(found: Seqs, completed: Sequence[int], started: Sequence[int], complete_up_to: int) -> list[int]:
    """Return the seqs at which snapshots ended whose records are lost.

    `completed` and `started` are the seqs of the ends and beginnings that the snapshot topic has, and no event up to
    `complete_up_to` is missing. A record precedes the snapshot's rows, so if it isn't there, it was deleted, or has expired. Then
    the first event of the stream after the rows shows that they were complete: the daemon doesn't follow the stream before that.
    Only rows that were requested again alternate with the stream, and any of them is valid by itself.
    """
    ends: list[int] = []
    closed = max(max((seq for seq in completed if seq <= complete_up_to), default=0), found.after)
    known = _first_bits(found.present, found.count(complete_up_to)) if complete_up_to > found.after else 0
    while rows := _from(known & found.from_snapshot, found.count(closed)):
        first = found.seq((rows & -rows).bit_length())
        following = _from(known & ~found.from_snapshot, found.count(first))
        # Events of the stream may stand between the beginning of a request and its first row.
        before = max((seq for seq in (*completed, *ends) if seq < first), default=0)
        if not following or any(before <= seq < first for seq in started):
            break
        closed = found.seq((following & -following).bit_length()) - 1
        ends.append(closed)
    return ends


def advance(found: Seqs, completed: Sequence[int], complete_up_to: int, *, is_all: bool) -> int:
    """Return the new watermark. `found.after` is the previous one (0 before the first event).

    `completed` are the seqs of completed snapshots. No event up to `complete_up_to` is missing, even if some seqs have no event.
    With `is_all` there are no events after that either.
    """
    run = (~found.present & (found.present + 1)).bit_length() - 1
    if complete_up_to > found.after:
        # The events after it may continue without a gap.
        known = found.count(complete_up_to)
        rest = found.present >> known
        run = max(run, known + (~rest & (rest + 1)).bit_length() - 1)
    # The last event counts as an end only if nothing follows it.
    is_tail = is_all and run >= found.present.bit_length()
    return _end(found, completed, run if is_tail else _last_bit(found.begins, run))


def last_end(found: Seqs, completed: Sequence[int], up_to: int) -> int:
    """Return the last watermark at or before the seq `up_to`; `found.after` if there is none.

    All events up to `up_to` must be present. `completed` is that of `advance`.
    """
    # The event after `up_to` shows whether a transaction ends there.
    end = _last_bit(found.begins, max(found.count(up_to) + 1, 0))
    return _end(found, [seq for seq in completed if seq <= up_to], end)


def _end(found: Seqs, completed: Sequence[int], end: int) -> int:
    """Return the seq of the last of the first `end` bits, or the one before a snapshot that isn't completed there.

    A transaction ends where the next event begins one.
    """
    closed = found.count(max((seq for seq in completed if seq <= found.seq(end)), default=0))
    open_rows = _first_bits(found.from_snapshot >> max(closed, 0), max(end - max(closed, 0), 0))
    if open_rows:
        end = max(closed, 0) + (open_rows & -open_rows).bit_length() - 1
        # The watermark before the snapshot's first row must be the end of a transaction, too.
        end = end if (found.begins >> end) & 1 else _last_bit(found.begins, end)
    return found.seq(max(end, 0))


def covers(read: Ends, ends: Ends) -> bool:
    """Return whether all partitions have been read up to these ends."""
    return all(end == 0 or read.get(partition, 0) >= end for partition, end in ends.items())


def distance(start: Ends, end: Ends) -> int:
    """Return the number of offsets between two positions."""
    return sum(offset - start.get(partition, 0) for partition, offset in end.items())


def _from(bits: int, place: int) -> int:
    """Return the bits from a place on; the lower ones are cleared."""
    return bits >> max(place, 0) << max(place, 0)


def _last_bit(bits: int, below: int) -> int:
    """Return the place of the highest set bit among the first `below` bits; 0 if none is set."""
    return max(_first_bits(bits, below).bit_length() - 1, 0)


def _first_bits(bits: int, count: int) -> int:
    return bits & ((1 << min(count, bits.bit_length())) - 1)
