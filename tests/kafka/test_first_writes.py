"""First messages go alone: what is sent in which round, for any mixture of messages."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc import native
from cdc.kafka.first_writes import FORGET_SECONDS, FirstWrites, Placed
from cdc.kafka.murmur2 import partition_of
from cdc.stream.batches.batch import Addressed, Broadcast, Message, Part
from tests.kafka.test_by_batch import compiled_parts

COUNTS = {"a": 1, "b": 3, "c": 8}
TOPICS = st.sampled_from(sorted(COUNTS))
MESSAGES = st.one_of(
    st.tuples(TOPICS, st.integers(0, 12).map(lambda number: b"%d" % number), st.none()),
    st.builds(Broadcast, TOPICS, st.just(b"t")),
    st.builds(Addressed, TOPICS, st.just(b"k"), st.none(), st.sampled_from([None, *(b"%d" % number for number in range(13))])),
)


class Log:
    """What has been sent, by partition, and how often somebody waited."""

    def __init__(self) -> None:
        self.first_writes = FirstWrites()
        self.written: dict[tuple[str, int], list[tuple[bytes | None, int]]] = defaultdict(list)
        self.number = 0

    def send(self, *parts: Part, now_seconds: float = 0.0) -> tuple[int, int]:
        """As `Sender.send`; returns how many messages went in which round."""
        topics = {
            part[0] if isinstance(part, tuple) else part.topic
            for part in parts
            if isinstance(part, Broadcast | tuple | Addressed)
        }
        first_writes = self.first_writes
        unacknowledged = first_writes.unacknowledged_topics(topics, now_seconds)
        first_writes.learn({topic: COUNTS[topic] for topic in first_writes.unknown(unacknowledged)})
        if not first_writes.has_first_message(parts, unacknowledged):
            unacknowledged = set()
        begun = set(self.written)
        rounds = first_writes.split(parts, unacknowledged, COUNTS)
        for messages in rounds:
            sent: set[tuple[str, int]] = set()
            for place in map(self._place, messages):
                assert place in begun or place not in sent, "a second message is under way to a partition that has begun nothing"
                sent.add(place)
            begun |= sent
        first_writes.acknowledged()
        return len(rounds[0]), len(rounds[1])

    def _place(self, message: Placed) -> tuple[str, int]:
        number = partition_of(message.key or b"", COUNTS[message.topic]) if message.partition is None else message.partition
        self.number += 1
        self.written[message.topic, number].append((message.key, self.number))
        return message.topic, number


def test_the_first_message_of_a_partition_goes_alone() -> None:
    log = Log()
    assert log.send(*[("a", b"%d" % number, b"") for number in range(5)]) == (1, 4)
    assert log.send(*[("a", b"%d" % number, b"") for number in range(5)]) == (5, 0)
    assert not log.first_writes.unacknowledged_topics({"a"}, 1.0)


def test_first_messages_of_several_partitions_go_together() -> None:
    log = Log()
    assert log.send(Broadcast("b", b"t"), ("b", b"1", b""), Broadcast("c", b"t"), ("a", b"1", b"")) == (3 + 8 + 1, 1)


def test_a_topic_lacks_something_until_each_of_its_partitions_has_begun() -> None:
    log = Log()
    keys = {partition_of(b"%d" % number, 3): b"%d" % number for number in range(50)}
    for number in range(3):
        assert log.first_writes.unacknowledged_topics({"b", "a"}, 0.0) == {"a", "b"}
        assert log.send(("b", keys[number], b""), ("b", keys[number], b"")) == (1, 1)
        assert log.send(("b", keys[number], b""), ("b", keys[number], b"")) == (2, 0)
    assert log.first_writes.unacknowledged_topics({"b", "a"}, 0.0) == {"a"}


def test_a_message_without_a_key_is_placed_as_long_as_something_is_lacking() -> None:
    first_writes = FirstWrites()
    first_writes.learn(COUNTS)
    messages: list[Part] = [("b", None, b"x"), ("b", None, b"y")]
    assert first_writes.has_first_message(messages, {"b"})
    now, later = first_writes.split(messages, {"b"}, {})
    assert [message.partition for message in now] == [0]
    assert [message.value for message in later] == [b"y"]


def test_all_is_forgotten_after_a_while_and_when_something_was_lost() -> None:
    log = Log()
    log.send(("a", b"1", b""))
    assert not log.first_writes.unacknowledged_topics({"a"}, FORGET_SECONDS - 1)
    assert log.first_writes.unacknowledged_topics({"a"}, FORGET_SECONDS) == {"a"}
    # How many partitions there are is asked again.
    assert log.first_writes.unknown({"a"}) == ["a"]
    log.send(("a", b"1", b""), now_seconds=FORGET_SECONDS)
    log.first_writes.invalidate()
    assert log.first_writes.unacknowledged_topics({"a"}, FORGET_SECONDS) == {"a"}


@given(st.lists(st.lists(MESSAGES, max_size=20), max_size=4))
def test_nothing_is_lost_doubled_or_reordered(batches: list[list[Message | Broadcast | Addressed]]) -> None:
    log = Log()
    expected: dict[tuple[str, int], list[bytes | None]] = defaultdict(list)
    for messages in batches:
        for message in messages:
            if isinstance(message, Broadcast):
                for number in range(COUNTS[message.topic]):
                    expected[message.topic, number].append(None)
            elif isinstance(message, Addressed):
                number = partition_of(message.place or message.key, COUNTS[message.topic])
                expected[message.topic, number].append(message.key)
            else:
                key = message[1]
                assert key is not None
                expected[message[0], partition_of(key, COUNTS[message[0]])].append(key)
        log.send(*messages)
    assert {place: [key for key, _ in keys] for place, keys in log.written.items()} == expected


@pytest.mark.skipif(native.ROW_PATH == "python", reason=native.REASON)
def test_what_the_compiled_path_has_made_tells_its_partitions() -> None:
    compiled, *_ = [part for part in compiled_parts(900) if not isinstance(part, tuple | Broadcast | Addressed)]
    for counts in ({"shop.users": 7}, {"shop.pets": 1, "shop.users": 64}, {}, {"shop.users": 0}):
        places = compiled.places(counts)
        assert len(places) == len(set(places))
        expected = {(topic, partition_of(key or b"", counts[topic])) for topic, key, _ in compiled if counts.get(topic)}
        assert set(places) == expected
    first_writes = FirstWrites()
    unacknowledged = first_writes.unacknowledged_topics({"shop.users"}, 0.0)
    first_writes.learn({"shop.users": 1000})
    assert first_writes.has_first_message([compiled], unacknowledged)
    now, later = first_writes.split([compiled], unacknowledged, {})
    assert len(now) + len(later) == len(compiled)
    first_writes.acknowledged()
    assert not first_writes.has_first_message([compiled], first_writes.unacknowledged_topics({"shop.users"}, 0.0))
