"""Compares what has arrived in a bucket with what has been collected where it came from.

Servers may change values on the way: 2.6 makes the integer 2 of the double 2.0. Or clients have written to the bucket past the
router meanwhile. What arrives publishes nothing, so consumers would keep what was there before.

Each row comes by here when it arrives, and again when it is collected at the source, minutes later. Both shards add the rows up:
two sums that differ tell that not all rows are the same, without a look at any of them again.

    source         garbage │ D D D │ gone: the sum is whole ───▶ record
    destination    receiving │ I I I: the sum │ active │ … ◀─── equal, or all rows of the bucket are shown

The sum is of values, not of bytes, as a server may write a value in a shorter way. Nothing is compared without generations, and
nothing if the space was emptied at the source, or if the bucket has gone on before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from cdc.stream.moves.records import RECEIVING, SENDING, SENT, BucketRecord, RowSum

_MODULUS: Final = 1 << 64
_KEPT_MAX: Final = 4
"""Number of moves of a bucket whose sums are kept for another daemon that is behind."""
_COLLECTED_FROM: Final = frozenset({SENDING, SENT, "garbage"})


def row_hash(space: str, row: Sequence[Any]) -> int:
    """Return the number that a row counts for."""
    return int.from_bytes(hashlib.blake2b(repr((space, row)).encode(), digest_size=8).digest(), "big")


def with_arrived(record: BucketRecord, number: int) -> BucketRecord:
    """Return the record with a row that has arrived."""
    return replace(record, arrived=_added(record.arrived, record.generation, number))


def with_collected(record: BucketRecord, number: int) -> BucketRecord:
    """Return the record with a row that has been collected. Those of a move here that has failed don't count."""
    return replace(record, collected=_added(record.collected, record.generation, number))


def with_lost(record: BucketRecord) -> BucketRecord:
    """Return the record after a change of a copy: what is collected isn't what was published."""
    *others, last = record.collected or (RowSum(0),)
    return replace(record, collected=(*others, RowSum(last.generation, -1))) if last.generation == record.generation else record


def with_emptied(record: BucketRecord) -> BucketRecord:
    """Return the record after a space was emptied: not all that has left will be collected, nor all that arrives be counted."""
    if record.status == RECEIVING and record.arrived:
        return replace(record, arrived=record.arrived[:-1])
    if not record.collected:
        return record
    return replace(record, collected=record.collected[:-1]) if record.status in _COLLECTED_FROM else record


def begun(sums: tuple[RowSum, ...], generation: int) -> tuple[RowSum, ...]:
    """Return sums, the last of them, with one for the rows of another move."""
    return (*sums, RowSum(generation))[-_KEPT_MAX:]


def _added(sums: tuple[RowSum, ...], generation: int | None, number: int) -> tuple[RowSum, ...]:
    if not sums or sums[-1].generation != generation or sums[-1].row_count < 0:
        return sums
    last = sums[-1]
    return (*sums[:-1], RowSum(last.generation, last.row_count + 1, (last.total + number) % _MODULUS))
