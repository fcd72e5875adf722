"""Which numbers have come: bits against a plain set."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.audit.numbers import BUCKET_BITS, BUCKET_SIZE, Numbers, numbers_of, without

NUMBERS = st.lists(st.integers(1, 60) | st.integers(BUCKET_SIZE - 5, BUCKET_SIZE + 5), max_size=12)


def add(numbers: Numbers, come: list[int]) -> set[int]:
    """Numbers come together; those that had come before."""
    bits: dict[int, int] = {}
    for number in come:
        bits[number >> BUCKET_BITS] = bits.get(number >> BUCKET_BITS, 0) | 1 << (number % BUCKET_SIZE)
    return {number for bucket, found in bits.items() for number in numbers.add(bucket, found)}


@given(st.lists(NUMBERS, max_size=6), st.tuples(st.integers(1, 70), st.integers(0, 70)), st.integers(1, BUCKET_SIZE + 20))
def test_as_a_set_would_say(batches: list[list[int]], span: tuple[int, int], up_to: int) -> None:
    numbers, come = Numbers(), set[int]()
    settled = set(range(span[0], span[0] + span[1] + 1))
    numbers.settle([(min(settled), max(settled))])
    for batch in batches:
        assert add(numbers, batch) == set(batch) & come - settled
        come |= set(batch)
        numbers = Numbers.from_json(json.loads(json.dumps(numbers.to_json())))
    expected = set(range(1, up_to + 1)) - come - settled
    assert [number for start, end in numbers.missing(up_to) for number in range(start, end + 1)] == sorted(expected)
    assert numbers.highest == max(come, default=0)


def test_what_is_whole_takes_no_room() -> None:
    numbers = Numbers()
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
