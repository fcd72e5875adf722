"""The watermark: a seq S such that all events up to it are there, and none of them is of a transaction that goes on behind it.

Topics are read partition by partition, and these get ahead of each other; a source transaction has rows in several. So what has
been read up to some moment may be half of a transaction. Two things tell what is complete:

* `source.seq` has no gaps over all topics. From a seq that is known to be complete on, all is there up to the first one missing.
* Where all partitions have been read up to the ends that they had after an event was seen, everything before that event is
  there, gaps or not: the daemon writes its Kafka transactions one after another. That is so whenever the job has nothing left to
  read, and it is how a stream begins whose first events Kafka no longer has, or of which only some spaces are read.

A transaction ends where the next one begins (`total_order` 1), or, with nothing left to read, at the last event: the daemon
writes a source transaction in one Kafka transaction. A snapshot is one unit: S stays before its first row until its COMPLETED is
there.

Here is what decides; merger.py reads what it needs from the table of events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name

_BUCKET_BITS: Final = 32768
"""Of Spark's bitmap functions: bucket n (from 1) has the numbers from (n - 1) * 32768 + 1 on."""

Bits = tuple[int, int, int]
"""Of the seqs of a bucket, a bit each: which events are there, begin a transaction, are a snapshot's."""

Ends = Mapping[tuple[str, int], int]
"""Offsets by topic and partition."""


@dataclass(frozen=True)
class Seqs:
    """The events behind a seq, one bit each (bit 0: the next seq): which are there, begin a transaction, are a snapshot's."""

    after: int
    present: int
    begins: int
    from_snapshot: int

    @property
    def last(self) -> int:
        """The highest seq that is there; `after` if none is."""
        return self.after + self.present.bit_length()


class Behind:
    """The events behind the watermark that have been seen so far, by space. What comes is added, so nothing is read twice."""

    def __init__(self) -> None:
        """None so far."""
        self._found: dict[tuple[str, int], Bits] = {}

    def add(self, space: str, bucket: int, *bits: bytes) -> None:
        """What a row of `bitmaps` tells."""
        new = (int.from_bytes(piece, "little") for piece in bits)
        present, begins, from_snapshot = self._found.get((space, bucket), (0, 0, 0))
        self._found[space, bucket] = (present | next(new), begins | next(new), from_snapshot | next(new))

    def seqs(self, mark: int) -> Seqs:
        """All that is behind the watermark."""
        buckets: dict[int, Bits] = {}
        for (_, bucket), found in self._found.items():
            known = buckets.get(bucket, (0, 0, 0))
            buckets[bucket] = (known[0] | found[0], known[1] | found[1], known[2] | found[2])
        return seqs(max(mark, seq_before(buckets)), buckets)

    def pass_by(self, mark: int, up_to: int) -> dict[str, int]:
        """How many events each space has behind the watermark and up to a new one; they are forgotten."""
        counts: dict[str, int] = {}
        for (space, bucket), found in list(self._found.items()):
            before = (bucket - 1) * _BUCKET_BITS
            passed = _first_bits(found[0], max(up_to - before, 0)) >> max(mark - before, 0)
            if passed:
                counts[space] = counts.get(space, 0) + passed.bit_count()
            if before + _BUCKET_BITS <= up_to:
                del self._found[space, bucket]
        return counts


def bitmaps(events: DataFrame) -> DataFrame:
    """Of a frame of events: per space and bucket of their seq, which are there, begin a transaction, are a snapshot's."""
    place = "bitmap_bit_position(seq)"
    return events.groupBy("space", F.expr("bitmap_bucket_number(seq)").alias("bucket")).agg(
        F.expr(f"bitmap_construct_agg({place})").alias("present"),
        F.expr(f"bitmap_construct_agg(if(total_order is null or total_order = 1, {place}, null))").alias("begins"),
        F.expr(f"bitmap_construct_agg(if(snapshot = 'true', {place}, null))").alias("from_snapshot"),
    )


def seq_before(buckets: Iterable[int]) -> int:
    """The seq behind which the numbers of the first of these buckets come; 0 without any.

    A stream whose beginning Kafka no longer has begins far behind the watermark: bits for all that is missing would be too many.
    """
    return max(min(buckets, default=1) - 1, 0) * _BUCKET_BITS


def seqs(after: int, buckets: Mapping[int, Bits]) -> Seqs:
    """What buckets tell of the events behind `after`; none may end before it."""
    pieces = [bytearray(), bytearray(), bytearray()]
    first = after // _BUCKET_BITS
    for bucket, found in sorted(buckets.items()):
        place = (bucket - 1 - first) * (_BUCKET_BITS // 8)
        for piece, bits in zip(pieces, found, strict=True):
            piece.extend(bytes(place - len(piece)))
            piece.extend(bits.to_bytes(_BUCKET_BITS // 8, "little"))
    skipped = after - first * _BUCKET_BITS
    present, begins, from_snapshot = (int.from_bytes(piece, "little") >> skipped for piece in pieces)
    return Seqs(after, present, begins, from_snapshot)


def advance(found: Seqs, completed: Sequence[int], complete_up_to: int, *, is_all: bool) -> int:
    """The new watermark, where `found.after` was one (0 before the first event).

    `completed` are the seqs of ended snapshots. Of events up to `complete_up_to` it is known that none is missing, even if the
    last ones aren't there; with `is_all` there is nothing behind it either.
    """
    run = (~found.present & (found.present + 1)).bit_length() - 1
    if complete_up_to > found.after:
        # What is behind it may go on without a gap.
        known = complete_up_to - found.after
        rest = found.present >> known
        run = max(run, known + (~rest & (rest + 1)).bit_length() - 1)
    # Ends are where the next event begins a transaction; the one at the last event only if there is nothing behind.
    is_tail = is_all and run >= found.last - found.after
    end = run if is_tail else _last_bit(found.begins, run)
    closed = max((seq for seq in completed if seq <= found.after + end), default=0) - found.after
    open_rows = _first_bits(found.from_snapshot >> max(closed, 0), max(end - max(closed, 0), 0))
    if open_rows:
        end = max(closed, 0) + (open_rows & -open_rows).bit_length() - 1
        # Before the snapshot's first row there must be an end, too.
        end = end if (found.begins >> end) & 1 else _last_bit(found.begins, end)
    return found.after + max(end, 0)


def covers(read: Ends, ends: Ends) -> bool:
    """Whether partitions have been read up to these ends."""
    return all(end == 0 or read.get(partition, 0) >= end for partition, end in ends.items())


def distance(start: Ends, end: Ends) -> int:
    """How many offsets lie between."""
    return sum(offset - start.get(partition, 0) for partition, offset in end.items())


def _last_bit(bits: int, below: int) -> int:
    """The highest bit that is set among the first ones; 0 if none is."""
    return max(_first_bits(bits, below).bit_length() - 1, 0)


def _first_bits(bits: int, count: int) -> int:
    return bits & ((1 << min(count, bits.bit_length())) - 1)
