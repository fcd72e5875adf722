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

Here is what decides; `WatermarkReader` reads what it needs from the table of events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name

_BUCKET_BITS: Final = 32768
"""Of Spark's bitmap functions: bucket n (from 1) has the numbers from (n - 1) * 32768 + 1 on."""

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


def bitmaps(events: DataFrame) -> DataFrame:
    """Of a frame of events: per bucket of their seq, which are there, begin a transaction, are a snapshot's."""
    place = "bitmap_bit_position(seq)"
    return events.groupBy(F.expr("bitmap_bucket_number(seq)").alias("bucket")).agg(
        F.expr(f"bitmap_construct_agg({place})").alias("present"),
        F.expr(f"bitmap_construct_agg(if(total_order is null or total_order = 1, {place}, null))").alias("begins"),
        F.expr(f"bitmap_construct_agg(if(snapshot = 'true', {place}, null))").alias("from_snapshot"),
    )


def seqs(after: int, buckets: Iterable[tuple[int, bytes, bytes, bytes]]) -> Seqs:
    """What rows of `bitmaps` tell of the events behind `after`."""
    pieces = [bytearray(), bytearray(), bytearray()]
    first = after // _BUCKET_BITS
    for bucket, *found in sorted(buckets):
        place = (bucket - 1 - first) * (_BUCKET_BITS // 8)
        for piece, bits in zip(pieces, found, strict=True):
            piece.extend(bytes(place - len(piece)))
            piece.extend(bits)
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
    open_rows = (found.from_snapshot >> max(closed, 0)) & ((1 << max(end - max(closed, 0), 0)) - 1)
    if open_rows:
        end = max(closed, 0) + (open_rows & -open_rows).bit_length() - 1
        # Before the snapshot's first row there must be an end, too.
        end = end if (found.begins >> end) & 1 else _last_bit(found.begins, end)
    return found.after + max(end, 0)


def covers(read: Ends, ends: Ends) -> bool:
    """Whether partitions have been read up to these ends."""
    return all(end == 0 or read.get(partition, 0) >= end for partition, end in ends.items())


def _last_bit(bits: int, below: int) -> int:
    """The highest bit that is set among the first ones; 0 if none is."""
    return max((bits & ((1 << below) - 1)).bit_length() - 1, 0)
