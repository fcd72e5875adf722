"""Signals: what their records say, where the topic is read from, and that none of them can do harm."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from cdc.positions.requests import SignalPlace
from cdc.stream.snapshots.orders import (
    SIGNAL_BYTES_MAX,
    Condition,
    Execute,
    Log,
    Order,
    Pause,
    Received,
    Refused,
    Resume,
    Stop,
    begin_at,
    read_signal,
    received,
)

EXECUTE = {
    "id": "a1",
    "type": "execute-snapshot",
    "data": {
        "data-collections": ["shop.orders", "shop.u.*"],
        "type": "incremental",
        "additional-conditions": [{"data-collection": "shop.orders", "filter": "row.id > 7"}],
    },
}


def read(value: Any, key: bytes | None = b"shop") -> Order:
    data = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    return read_signal("shop", key, data, "topic:5")


@pytest.mark.parametrize(
    ("value", "order"),
    [
        (EXECUTE, Execute("a1", ("shop.orders", "shop.u.*"), (Condition("shop.orders", "row.id > 7"),))),
        (
            {"type": "execute-snapshot", "data": {"data-collections": ["a"], "additional-condition": "row.x"}},
            Execute("topic:5", ("a",), (Condition(None, "row.x"),)),
        ),
        (
            {"id": "b", "type": "execute-snapshot", "data": {"data-collections": ["a"], "type": "INCREMENTAL"}},
            Execute("b", ("a",)),
        ),
        ({"id": "c", "type": "stop-snapshot"}, Stop("c")),
        ({"id": "c", "type": "stop-snapshot", "data": {"type": "incremental", "data-collections": ["x"]}}, Stop("c", ("x",))),
        ({"id": "d", "type": "pause-snapshot", "data": None}, Pause("d")),
        ({"id": "e", "type": "resume-snapshot", "data": {}}, Resume("e")),
        ({"id": "f", "type": "log", "data": {"message": "at {}"}}, Log("f", "at {}")),
    ],
)
def test_signals(value: Any, order: Order) -> None:
    assert read(value) == order


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (None, "no value"),
        (b"", "isn't JSON"),
        (b"{", "isn't JSON"),
        (b"\xff\xfe", "isn't JSON"),
        (b"[" * 20_000, "isn't JSON"),
        (b"7", "must be an object"),
        (b"NaN", "must be an object"),
        (b'{"type": 1e999}', "the type of a signal is"),
        ({}, "the type of a signal is"),
        ({"type": "drop-everything", "id": "x"}, "'drop-everything'; there are execute-snapshot, stop-snapshot"),
        ({"type": ["log"]}, "the type of a signal is"),
        ({"type": "log", "id": 7}, '"id" of a signal must be a text'),
        ({"type": "log", "id": "x" * 201}, '"id" of a signal must be a text'),
        ({"type": "log", "id": "x", "data": []}, "must be an object"),
        ({"type": "log", "id": "x"}, '"message"'),
        ({"type": "execute-snapshot"}, '"data-collections" of execute-snapshot are missing'),
        ({"type": "execute-snapshot", "data": {"data-collections": "a"}}, "must be a list"),
        ({"type": "execute-snapshot", "data": {"data-collections": [7]}}, "'7' in the place of a text"),
        ({"type": "execute-snapshot", "data": {"data-collections": ["a"] * 1001}}, "at most 1000 elements"),
        ({"type": "execute-snapshot", "data": {"data-collections": ["a"], "type": "blocking"}}, 'the only one is "incremental"'),
        ({"type": "execute-snapshot", "data": {"data-collections": ["a"], "additional-conditions": [7]}}, "must be an object"),
        (
            {"type": "execute-snapshot", "data": {"data-collections": ["a"], "additional-conditions": [{"filter": "x" * 4001}]}},
            '"data-collection"',
        ),
        pytest.param(b'{"type": ' + b"1" * 5_000 + b"}", "isn't JSON", id="a number of 5000 digits"),
        (b'{"type": "pause-snapshot", "id": "\\ud800"}', '"id" of a signal must be a text'),
        (b'{"type": "log", "data": {"message": "\\udcff"}}', "'\\udcff' in the place of a text"),
        ({"type": "execute-snapshot", "data": {"data-collections": ["a\ud800"]}}, "'a\\ud800' in the place of a text"),
        (
            {"type": "execute-snapshot", "data": {"data-collections": ["a"], "additional-condition": "row.x == '\ud800'"}},
            '"additional-condition"',
        ),
        (b'"' + b"x" * SIGNAL_BYTES_MAX + b'"', f"1 to {SIGNAL_BYTES_MAX} bytes"),
    ],
)
def test_what_is_no_signal(value: Any, sentence: str) -> None:
    order = read(value)
    assert isinstance(order, Refused)
    assert sentence in order.sentence
    assert len(order.sentence) < 400, "nobody can fill the log with what they send"
    (order.id + order.sentence).encode()


@pytest.mark.parametrize("key", [None, b"", b"shop2", b"\xff", b"x" * 1000])
def test_a_key_of_somebody_else(key: bytes | None) -> None:
    order = read(EXECUTE, key)
    assert isinstance(order, Refused)
    assert "obeys those with the key 'shop'" in order.sentence


def test_any_bytes(seed: int) -> None:
    """Whatever the record is, there is an order."""
    rng = random.Random(seed)
    good = json.dumps(EXECUTE).encode()
    for _ in range(3_000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 5)):
            place = rng.randrange(len(data))
            data[place : place + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
        assert isinstance(read(bytes(data)), Order)


PLACE = SignalPlace("one", 40, 1_000)


@pytest.mark.parametrize(
    ("known", "topic_id", "ends", "begin", "warning"),
    [
        (None, "one", (3, 50), SignalPlace("one", 50, 9_999), ""),
        (PLACE, "one", (3, 50), PLACE, ""),
        (PLACE, "one", (40, 40), PLACE, ""),
        (PLACE, "one", (45, 50), SignalPlace("one", 45, 1_000), "5 records"),
        (PLACE, "one", (0, 39), SignalPlace("one", 0, 1_000, 1_000), "newest records"),
        (PLACE, "two", (0, 50), SignalPlace("two", 0, 1_000, 1_000), "made anew"),
        (SignalPlace("one", 40, 90_000), "two", (0, 50), SignalPlace("two", 0, 9_999, 9_999), "made anew"),
        (SignalPlace("one", 4, 7, 6), "one", (3, 50), SignalPlace("one", 4, 7, 6), ""),
    ],
)
def test_where_the_topic_is_read_from(
    known: SignalPlace | None, topic_id: str, ends: tuple[int, int], begin: SignalPlace, warning: str
) -> None:
    """First start; nothing happened; all deleted; cut by retention; newest records lost; made anew, also
    after a signal from the future; once more after that.
    """
    found, told = begin_at(known, topic_id, ends, 9_999)
    assert found == begin
    assert warning in told
    assert bool(warning) == bool(told)


def test_copies_of_signals_that_were_taken_are_passed_over() -> None:
    begin, _ = begin_at(PLACE, "two", (0, 3), 9_999)
    record = b"shop", json.dumps(EXECUTE).encode()
    old = received("shop", begin, 0, 1_000, record)
    assert old == Received(None, SignalPlace("two", 1, 1_000, 1_000))
    assert old.place is not None
    new = received("shop", old.place, 1, 1_001, record)
    assert isinstance(new.order, Execute)
    assert new.place == SignalPlace("two", 2, 1_001, 1_000)


@pytest.mark.parametrize("ts_ms", [-1, 0])
def test_a_signal_without_a_timestamp_is_obeyed(ts_ms: int) -> None:
    found = received("shop", PLACE, 40, ts_ms, (b"shop", json.dumps(EXECUTE).encode()))
    assert isinstance(found.order, Execute)
    assert found.place == SignalPlace("one", 41, 1_000)
