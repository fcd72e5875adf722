"""Ids that Kafka gives to topics: a topic that was deleted and created again has another one under the same name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaException, TopicCollection

from cdc.kafka.clients import Admin

_ANSWER_SECONDS: Final = 10.0


def topic_ids(admin: Admin, names: Collection[str]) -> dict[str, str]:
    """Return the ids of those of these topics that exist and may be seen. Without an answer from Kafka none is known."""
    found: dict[str, str] = {}
    if not names:
        return found
    for name, answer in admin.describe_topics(TopicCollection(list(names)), request_timeout=_ANSWER_SECONDS).items():
        try:
            found[name] = str(answer.result().topic_id)
        except KafkaException:
            continue  # missing or hidden, which the daemon reports when it writes to the topic
    return found


class KnownIds:
    """The ids that the topics of spaces had when they were looked at last, by this process or the one before it."""

    def __init__(
        self,
        ids: Mapping[str, str] | None = None,
        writers: Collection[str] | None = None,
        keep: Callable[[Mapping[str, str]], None] = lambda _: None,
    ) -> None:
        """`ids` are those of the last run, whose process is one of `writers` (None: this process). `keep` keeps them for the
        next run."""
        self._ids = dict(ids or {})
        self._writers = writers
        self._keep = keep

    def begin(self, writer: str | None) -> None:
        """Forget all if another process has had the name since: this one had made topics again, or told of it."""
        if self._writers is not None and writer not in self._writers:
            self._ids.clear()
        self._writers = None

    def changed(self, found: Mapping[str, str]) -> set[str]:
        """Return the topics that have another id now."""
        return {topic for topic, id_ in found.items() if self._ids.get(topic, id_) != id_}

    def learn(self, found: Mapping[str, str]) -> None:
        """Note the ids of topics."""
        if not found.items() <= self._ids.items():
            self._ids.update(found)
            self._keep(self._ids)

    def learn_new(self, found: Mapping[str, str]) -> None:
        """Note the ids of topics that weren't known; a changed one stays to be told."""
        self.learn({topic: id_ for topic, id_ in found.items() if topic not in self._ids})

    def forget(self, topics: Iterable[str]) -> None:
        """Note that the ids of these topics aren't known: the daemon itself has made them again."""
        known = self._ids.keys() & set(topics)
        for topic in known:
            del self._ids[topic]
        if known:
            self._keep(self._ids)


@dataclass(frozen=True, slots=True)
class SeenTopics:
    """What a publisher passes on to the next one: topics known to have existed, with the names of their spaces where known, and
    their ids."""

    spaces: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ids: KnownIds = field(default_factory=KnownIds)
