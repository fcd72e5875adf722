"""The newest events for who looks: of watched topics only, bounded in what is kept and in what is looked at."""

from __future__ import annotations

import pytest

from cdc.ops import event_tail
from cdc.ops.event_tail import EVENTS_MAX, LOOKS_PER_SECOND, TOPICS_MAX, VALUE_BYTES_MAX, EventTail
from cdc.positions.position import Position
from cdc.stream.batches.batch import Addressed, Batch, Broadcast, Part


def batch(*parts: Part, topics: tuple[str, ...] = ()) -> Batch:
    return Batch(list(parts), 0, 0, 0, Position(), True, {}, list(topics), 0.0)


def keys(tail: EventTail, topic: str, after: int = 0) -> list[bytes | None]:
    return [event.key for event in tail.take(topic, after).events]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the tail sees."""
    now = [1000.0]
    monkeypatch.setattr("cdc.ops.event_tail.time.monotonic", lambda: now[0])
    return now


def test_nothing_is_kept_for_nobody() -> None:
    tail = EventTail()
    tail.note(batch(("users", b"1", b"{}"), topics=("users",)))
    assert tail.topics() == ["users"]
    assert keys(tail, "users") == []


def test_events_of_a_watched_topic_in_their_order() -> None:
    tail = EventTail()
    tail.take("users")
    tail.note(batch(("users", b"1", b"a"), ("orders", b"9", b"x"), Addressed("users", b"2", None), Broadcast("users", b"t")))
    tail.note(batch(("users", b"3", b"c" * (VALUE_BYTES_MAX + 5))))
    found = tail.take("users")
    assert [(event.number, event.key) for event in found.events] == [(1, b"1"), (2, b"2"), (3, None), (4, b"3")]
    assert (found.events[1].value, found.events[2].value) == (None, b"t")
    assert (len(found.events[3].value or b""), found.events[3].byte_count) == (VALUE_BYTES_MAX, VALUE_BYTES_MAX + 5)
    assert (found.newest, found.skipped) == (4, 0)
    assert keys(tail, "users", after=3) == [b"3"]


def test_large_keys_are_cut_as_values_are() -> None:
    """A key may have a megabyte: fifty of them would be kept for each topic that somebody looks at."""
    tail = EventTail()
    tail.take("users")
    tail.note(batch(("users", b"k" * (1 << 20), b"v" * (1 << 20))))
    (event,) = tail.take("users").events
    assert (event.key, event.value) == (b"k" * VALUE_BYTES_MAX, b"v" * VALUE_BYTES_MAX)


def test_the_newest_are_kept() -> None:
    tail = EventTail()
    tail.take("users")
    tail.note(batch(*(("users", b"%d" % number, b"") for number in range(EVENTS_MAX + 30))))
    assert keys(tail, "users")[-1] == b"%d" % (EVENTS_MAX + 29)
    assert len(keys(tail, "users")) == EVENTS_MAX


def test_a_topic_that_nobody_asks_for_is_forgotten(clock: list[float]) -> None:
    tail = EventTail()
    tail.take("users")
    tail.note(batch(("users", b"1", b"")))
    clock[0] += event_tail.WATCHED_SECONDS + 1
    tail.note(batch(("users", b"2", b"")))
    assert keys(tail, "users") == []


def test_few_topics_at_a_time() -> None:
    tail = EventTail()
    for number in range(TOPICS_MAX + 1):
        tail.take(f"t{number}")
    tail.note(batch(("t0", b"1", b""), ("t1", b"1", b""), (f"t{TOPICS_MAX}", b"1", b"")))
    assert (keys(tail, "t1"), keys(tail, f"t{TOPICS_MAX}")) == ([b"1"], [b"1"])
    assert keys(tail, "t0") == [], "the one that was asked for least recently gave way"


def test_what_goes_by_too_fast_is_counted(clock: list[float]) -> None:
    tail = EventTail()
    tail.take("users")
    many = LOOKS_PER_SECOND + 10
    tail.note(batch(*(("users", b"%d" % number, b"") for number in range(many))))
    assert (keys(tail, "users")[-1], tail.take("users").skipped) == (b"%d" % (many - 1), 10)
    tail.note(batch(("users", b"late", b"")))
    assert tail.take("users").skipped == 11
    clock[0] += 0.5
    tail.note(batch(("users", b"again", b"")))
    assert keys(tail, "users")[-1] == b"again"
