"""Seqs that have been received from a daemon: the pure part of job `audit`, without Spark.

Seqs are stored as bits, 32,768 to a bucket. Of a full bucket only its number is stored. So the memory grows with the distance
between the partitions in their reading, 4 KiB per bucket, and not with time.
"""

from __future__ import annotations

import base64
import bisect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

BUCKET_BITS: Final = 15
BUCKET_SIZE: Final = 1 << BUCKET_BITS
_ALL: Final = (1 << BUCKET_SIZE) - 1
_SETTLED_MAX: Final = 10_000
_FAR: Final = 1 << 64

Interval = tuple[int, int]
"""First and last seq, both included."""


@dataclass
class ReceivedSeqs:
    """Received seqs, and settled ones that aren't waited for. Seqs begin with 1."""

    highest: int = 0
    _settled: list[Interval] = field(default_factory=list)
    """Seqs that aren't waited for; only the highest intervals, so that their number is bounded."""
    _open: dict[int, int] = field(default_factory=lambda: {0: 1})
    _full: set[int] = field(default_factory=set)
    _low: int = 0
    """Bucket below which all buckets are full."""

    def add(self, bucket: int, bits: int) -> list[int]:
        """Add received seqs, as bits of a bucket. Return those of them that had been received before."""
        self.highest = max(self.highest, (bucket << BUCKET_BITS) + bits.bit_length() - 1)
        if bucket < self._low or bucket in self._full:
            repeated = bits
        else:
            known = self._open.get(bucket, 0)
            repeated = known & bits
            self._keep(bucket, known | bits)
        return [number for number in numbers_of(bucket, repeated) if not self._is_settled(number)]

    def missing(self, up_to: int) -> list[Interval]:
        """Return the missing seqs up to `up_to`, in order."""
        found: list[Interval] = []
        for bucket in range(self._low, (up_to >> BUCKET_BITS) + 1):
            if bucket in self._full:
                continue
            begin = bucket << BUCKET_BITS
            wanted = (1 << min(BUCKET_SIZE, up_to - begin + 1)) - 1
            for start, end in _runs(~self._open.get(bucket, 0) & wanted):
                if found and found[-1][1] == begin + start - 1:
                    found[-1] = (found[-1][0], begin + end)
                else:
                    found.append((begin + start, begin + end))
        return found

    def settle(self, intervals: Iterable[Interval]) -> None:
        """Stop waiting for these seqs. If one of them is received later, it isn't a repetition."""
        given = list(intervals)
        self._settled = _merged([*self._settled, *given])[-_SETTLED_MAX:]
        for start, end in given:
            for bucket in range(start >> BUCKET_BITS, (end >> BUCKET_BITS) + 1):
                if bucket < self._low or bucket in self._full:
                    continue
                begin = bucket << BUCKET_BITS
                low, high = max(start - begin, 0), min(end - begin, BUCKET_SIZE - 1)
                self._keep(bucket, self._open.get(bucket, 0) | (1 << (high + 1)) - (1 << low))

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        bits = {
            str(bucket): base64.b64encode(found.to_bytes(BUCKET_SIZE // 8, "little")).decode()
            for bucket, found in sorted(self._open.items())
        }
        return {"highest": self.highest, "settled": self._settled, "low": self._low, "full": sorted(self._full), "open": bits}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> ReceivedSeqs:
        """The inverse of `to_json`."""
        bits = {int(bucket): int.from_bytes(base64.b64decode(text), "little") for bucket, text in kept["open"].items()}
        settled = [(start, end) for start, end in kept["settled"]]
        return cls(kept["highest"], settled, bits, set(kept["full"]), kept["low"])

    def _is_settled(self, number: int) -> bool:
        place = bisect.bisect_right(self._settled, (number, _FAR))
        return place > 0 and self._settled[place - 1][1] >= number

    def _keep(self, bucket: int, bits: int) -> None:
        if bits != _ALL:
            self._open[bucket] = bits
            return
        self._open.pop(bucket, None)
        self._full.add(bucket)
        while self._low in self._full:
            self._full.remove(self._low)
            self._low += 1


def numbers_of(bucket: int, bits: int) -> list[int]:
    """Return the seqs that a bucket's bits stand for."""
    begin = bucket << BUCKET_BITS
    return [begin + place for start, end in _runs(bits) for place in range(start, end + 1)]


def without(intervals: Iterable[Interval], found: Iterable[int]) -> list[Interval]:
    """Return ordered intervals without some numbers. There may be millions of numbers, so each is looked at once."""
    left: list[Interval] = []
    numbers = iter(sorted(found))
    number = next(numbers, None)
    for interval in intervals:
        start, end = interval
        while number is not None and number <= end:
            if number >= start:
                if number > start:
                    left.append((start, number - 1))
                start = number + 1
            number = next(numbers, None)
        if start <= end:
            left.append((start, end))
    return left


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _runs(bits: int) -> Iterator[Interval]:
    """Yield the positions of set bits, adjacent ones as one interval."""
    place = 0
    while bits:
        skipped = (bits & -bits).bit_length() - 1
        bits >>= skipped
        place += skipped
        length = (~bits & (bits + 1)).bit_length() - 1
        yield place, place + length - 1
        bits >>= length
        place += length
