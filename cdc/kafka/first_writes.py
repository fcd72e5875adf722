"""Which partitions have acknowledged something of this producer, and what may be sent to the others until they have.

Each batch of a producer has a number in its partition, and Kafka refuses one that skips a number: but only where it knows the
last one. The first batch that it takes may have any. librdkafka has several batches under way, and takes the success of a later
one for that of an earlier one that was refused:

    producer                           leader of the partition
      batch 0  ────────────────────▶   refused: it doesn't know yet that it leads (NOT_LEADER_OR_FOLLOWER)
      batch 1  ────────────────────▶   taken: there is nothing of this producer yet, so any number will do
      1 was taken, so 0 must have been: its messages are gone, the transaction is committed, and nobody says anything

A leader answers so for some milliseconds after a topic was made, or after an election (confluent-kafka-go, issue 921). So the
first message for each partition goes alone, and what follows it waits until it is acknowledged. From then on Kafka knows a
number, refuses what skips one, and librdkafka sends all of it again in order.

    round 1: whatever goes to partitions that have begun, and one message for each of the others; wait until all has arrived
    round 2: the rest, which goes to partitions that have begun

In each partition the order stays. Kafka forgets a producer's numbers in a partition that had nothing from it for a day
(producer.id.expiration.ms); here they are forgotten earlier. Partitions that are added to a topic later are noticed then, too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from cdc.kafka.murmur2 import partition_of
from cdc.stream.batch import Broadcast, Part

FORGET_SECONDS: Final = 3600.0


class Placed(NamedTuple):
    """A message, and its partition where that isn't the producer's to choose."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None


class FirstWrites:
    """Of one producer. It asks Kafka nothing: how many partitions there are, and what has arrived, it is told."""

    def __init__(self) -> None:
        # The partitions that have acknowledged something, by topic; `_whole` are the topics of which all have.
        self._begun: dict[str, set[int]] = defaultdict(set)
        self._whole: set[str] = set()
        # What the others have been sent, a message each, since the last `acknowledged`.
        self._sent: dict[str, set[int]] = defaultdict(set)
        self._counts: dict[str, int] = {}
        self._forget_at = -math.inf

    def lacking(self, topics: Collection[str], now_seconds: float) -> set[str]:
        """Those of these topics that may have partitions which have acknowledged nothing yet."""
        if now_seconds >= self._forget_at:
            self.forget()
            self._forget_at = now_seconds + FORGET_SECONDS
        return set(topics) - self._whole

    def unknown(self, topics: Iterable[str]) -> list[str]:
        """Those of these topics of which it is to be learned how many partitions they have."""
        return [topic for topic in topics if topic not in self._counts]

    def learn(self, counts: Mapping[str, int]) -> None:
        """So many partitions these topics have."""
        self._counts.update(counts)

    def begins(self, parts: Iterable[Part], lacking: Collection[str]) -> bool:
        """Whether a message is the first for its partition, in these topics, whose partitions have been counted."""
        counts = {topic: self._counts[topic] for topic in lacking}
        return any(number not in self._begun[topic] for part in parts for topic, number in _places(part, counts))

    def split(
        self, parts: Iterable[Part], lacking: Collection[str], counts: Mapping[str, int]
    ) -> tuple[list[Placed], list[Placed]]:
        """What may be sent now, and what once that has been `acknowledged`.

        `counts` says how many partitions each topic has that has a broadcast; `lacking` is as for `begins`.
        """
        now: list[Placed] = []
        later: list[Placed] = []
        for message in _each(parts, counts):
            topic, key, _, partition = message
            if topic in lacking:
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
        """What was to be sent first has arrived."""
        for topic, numbers in self._sent.items():
            begun = self._begun[topic]
            begun |= numbers
            if len(begun) >= self._counts[topic]:
                self._whole.add(topic)
                del self._begun[topic]
        self._sent.clear()

    def forget(self) -> None:
        """Nothing is known to have arrived anywhere."""
        for known in (self._begun, self._whole, self._sent, self._counts):
            known.clear()


def _each(parts: Iterable[Part], counts: Mapping[str, int]) -> Iterator[Placed]:
    """The messages one by one, a broadcast once for each partition."""
    for part in parts:
        if isinstance(part, Broadcast):
            for number in range(counts[part.topic]):
                yield Placed(part.topic, None, part.value, number)
        else:
            for topic, key, value in (part,) if isinstance(part, tuple) else part:
                yield Placed(topic, key, value, None)


def _places(part: Part, counts: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """The partitions of these topics that a part has something for."""
    if isinstance(part, Broadcast):
        for number in range(counts.get(part.topic, 0)):
            yield part.topic, number
    elif isinstance(part, tuple):
        if part[0] in counts:
            yield part[0], _number(part[1], counts[part[0]])
    else:
        yield from part.places(counts)


def _number(key: bytes | None, count: int) -> int:
    """Without a key any partition will do: here it is the first."""
    return 0 if key is None else partition_of(key, count)
