"""Which numbers have come: bits against a plain set."""

from __future__ import annotations

import json
import time

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.audit.numbers import BUCKET_BITS, BUCKET_SIZE, ReceivedSeqs, numbers_of, without

NUMBERS = st.lists(st.integers(1, 60) | st.integers(BUCKET_SIZE - 5, BUCKET_SIZE + 5), max_size=12)


def add(numbers: ReceivedSeqs, come: list[int]) -> set[int]:
    """Numbers come together; those that had come before."""
    bits: dict[int, int] = {}
    for number in come:
        bits[number >> BUCKET_BITS] = bits.get(number >> BUCKET_BITS, 0) | 1 << (number % BUCKET_SIZE)
    return {number for bucket, found in bits.items() for number in numbers.add(bucket, found)}


@given(st.lists(NUMBERS, max_size=6), st.tuples(st.integers(1, 70), st.integers(0, 70)), st.integers(1, BUCKET_SIZE + 20))
def test_as_a_set_would_say(batches: list[list[int]], span: tuple[int, int], up_to: int) -> None:
    numbers, come = ReceivedSeqs(), set[int]()
    settled = set(range(span[0], span[0] + span[1] + 1))
    numbers.settle([(min(settled), max(settled))])
    for batch in batches:
        assert add(numbers, batch) == set(batch) & come - settled
        come |= set(batch)
        numbers = ReceivedSeqs.from_json(json.loads(json.dumps(numbers.to_json())))
    expected = set(range(1, up_to + 1)) - come - settled
    assert [number for start, end in numbers.missing(up_to) for number in range(start, end + 1)] == sorted(expected)
    assert numbers.highest == max(come, default=0)


def test_what_is_whole_takes_no_room() -> None:
    numbers = ReceivedSeqs()
    everything = (1 << BUCKET_SIZE) - 1
    for bucket in range(1000):
        numbers.add(bucket, everything - (bucket == 0))
    assert numbers.missing(numbers.highest) == []
    assert len(json.dumps(numbers.to_json())) < 200
    # What has come long ago is still known to have.
    assert numbers.add(3, 0b101) == [3 * BUCKET_SIZE, 3 * BUCKET_SIZE + 2]
    numbers.add(1002, 1)
    numbers.settle(numbers.missing(numbers.highest))
    assert len(json.dumps(numbers.to_json())) < 12_000


def test_intervals() -> None:
    assert numbers_of(1, 0b1011) == [BUCKET_SIZE, BUCKET_SIZE + 1, BUCKET_SIZE + 3]
    assert without([(1, 5), (8, 8)], [1, 3, 8, 9]) == [(2, 2), (4, 5)]
    assert without([(1, 5), (8, 8)], [9, 3, 3, 8, 1, 0, 6]) == [(2, 2), (4, 5)]


@given(st.sets(st.integers(1, 40)), st.lists(st.integers(0, 45)))
def test_intervals_without_numbers_are_as_a_set_would_say(missing: set[int], found: list[int]) -> None:
    numbers = ReceivedSeqs()
    numbers.add(0, sum(1 << number for number in set(range(42)) - missing))
    left = without(numbers.missing(41), found)
    assert [number for start, end in left for number in range(start, end + 1)] == sorted(missing - set(found))


def test_many_numbers_that_are_on_their_way_take_no_hours() -> None:
    began = time.monotonic()
    count = 200_000
    # As partitions give them: each has every fourth number.
    on_their_way = [number for partition in range(4) for number in range(1 + partition, count + 1, 4)]
    assert without([(1, count)], on_their_way) == []
    numbers = ReceivedSeqs()
    numbers.settle([(number, number) for number in range(1, count, 4)])
    assert numbers.missing(8) == [(2, 4), (6, 8)]
    assert time.monotonic() - began < 20
