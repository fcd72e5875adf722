"""Record of the partitions that have acknowledged a message of this producer, and of what may be sent to the others.

A producer numbers its batches per partition, and Kafka refuses a batch that skips a number, but only if Kafka knows the previous
number. The first batch that Kafka accepts may have any number. librdkafka has several batches in flight, and takes the success
of a later batch as proof that an earlier, refused one was stored:

    producer                           leader of the partition
      batch 0  ────────────────────▶   refused: the broker doesn't know yet that it leads (NOT_LEADER_OR_FOLLOWER)
      batch 1  ────────────────────▶   accepted: Kafka knows no number of this producer yet, so any number is valid
      1 was accepted, so librdkafka counts 0 as stored: its messages are lost, the transaction commits, nothing reports it

A leader answers like this for some milliseconds after a topic was created, or after an election (confluent-kafka-go, issue 921).
Therefore the first message for each partition is sent alone, and later messages wait until it is acknowledged. From then on
Kafka knows a number and refuses batches that skip one, and librdkafka sends the refused batches again in order.

    round 1: all messages for partitions with an acknowledged message, one message for each other partition; wait for all of them
    round 2: the remaining messages, whose partitions now all have an acknowledged message

The order within each partition is kept. Kafka forgets a producer's numbers in a partition that got no message from it for a day
(producer.id.expiration.ms); this module forgets them earlier. At that point it also notices partitions added to a topic.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from cdc.kafka.murmur2 import partition_of
from cdc.stream.batches.batch import Addressed, Broadcast, Headers, Part

FORGET_SECONDS: Final = 3600.0
"""Time after which all acknowledgements are forgotten."""


class Placed(NamedTuple):
    """A message, with its partition unless the producer chooses that."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None
    headers: Headers | None = None


class FirstWrites:
    """Acknowledged partitions of one producer. The caller supplies partition counts and acknowledgements; this class makes no
    requests."""

    def __init__(self) -> None:
        # The partitions that have acknowledged a message, by topic; `_whole` has the topics whose partitions all have.
        self._begun: dict[str, set[int]] = defaultdict(set)
        self._whole: set[str] = set()
        # The other partitions that were sent their first message since the last `acknowledged`.
        self._sent: dict[str, set[int]] = defaultdict(set)
        self._counts: dict[str, int] = {}
        self._forget_at = -math.inf

    def unacknowledged_topics(self, topics: Collection[str], now_seconds: float) -> set[str]:
        """Return those of these topics that may have partitions without an acknowledged message."""
        if now_seconds >= self._forget_at:
            self.invalidate()
            self._forget_at = now_seconds + FORGET_SECONDS
        return set(topics) - self._whole

    def unknown(self, topics: Iterable[str]) -> list[str]:
        """Return those of these topics whose partition counts are unknown."""
        return [topic for topic in topics if topic not in self._counts]

    def learn(self, counts: Mapping[str, int]) -> None:
        """Store the partition counts of topics."""
        self._counts.update(counts)

    def placed(self, part: Addressed) -> Placed:
        """Return a message with its partition. The topic's count is known: all its partitions, or some, have a message."""
        return placed(part, self._counts)

    def has_first_message(self, parts: Iterable[Part], unacknowledged: Collection[str]) -> bool:
        """Return whether any message is the first for its partition, in `unacknowledged` topics, whose counts must be known."""
        counts = {topic: self._counts[topic] for topic in unacknowledged}
        return any(number not in self._begun[topic] for part in parts for topic, number in _places(part, counts))

    def split(
        self, parts: Iterable[Part], unacknowledged: Collection[str], counts: Mapping[str, int]
    ) -> tuple[list[Placed], list[Placed]]:
        """Return the messages to send now, and those to send once the former are `acknowledged`.

        `counts` has the partition counts of all topics that get a broadcast; `unacknowledged` is as for `has_first_message`.
        """
        now: list[Placed] = []
        later: list[Placed] = []
        for message in _each(parts, counts, self._counts):
            topic, key, partition = message.topic, message.key, message.partition
            if topic in unacknowledged:
                number = _number(key, self._counts[topic]) if partition is None else partition
                if number in self._sent[topic]:
                    later.append(message)
                    continue
                if number not in self._begun[topic]:
                    self._sent[topic].add(number)
                now.append(message if key is not None else message._replace(partition=number))
            else:
                now.append(message)
        return now, later

    def acknowledged(self) -> None:
        """Record that all messages to be sent first have arrived."""
        for topic, numbers in self._sent.items():
            begun = self._begun[topic]
            begun |= numbers
            if len(begun) >= self._counts[topic]:
                self._whole.add(topic)
                del self._begun[topic]
        self._sent.clear()

    def invalidate(self) -> None:
        """Forget all acknowledgements and partition counts."""
        for known in (self._begun, self._whole, self._sent, self._counts):
            known.clear()


def _each(parts: Iterable[Part], counts: Mapping[str, int], known: Mapping[str, int]) -> Iterator[Placed]:
    """Yield the messages one by one, and a broadcast once for each partition. `known` has the counts of all other topics."""
    for part in parts:
        if isinstance(part, Broadcast):
            for number in range(counts[part.topic]):
                yield Placed(part.topic, None, part.value, number, part.headers)
        elif isinstance(part, Addressed):
            yield placed(part, known)
        else:
            for topic, key, value in (part,) if isinstance(part, tuple) else part:
                yield Placed(topic, key, value, None)


def _places(part: Part, counts: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield the partitions that a part has messages for, among the topics in `counts`."""
    if isinstance(part, Broadcast):
        for number in range(counts.get(part.topic, 0)):
            yield part.topic, number
    elif isinstance(part, tuple):
        if part[0] in counts:
            yield part[0], _number(part[1], counts[part[0]])
    elif isinstance(part, Addressed):
        if part.topic in counts:
            yield part.topic, partition_of(part.key if part.place is None else part.place, counts[part.topic])
    else:
        yield from part.places(counts)


def placed(part: Addressed, counts: Mapping[str, int]) -> Placed:
    """Return a message with its partition, if its key doesn't decide that."""
    number = None if part.place is None else partition_of(part.place, counts[part.topic])
    return Placed(part.topic, part.key, part.value, number, part.headers)


def _number(key: bytes | None, count: int) -> int:
    """Return the partition of a key. A message without a key may go to any partition, and goes to the first."""
    return 0 if key is None else partition_of(key, count)
