"""The topics of spaces that were deleted: noticed, kept in the checkpoint topic, and shown until something makes up for them.

before a topic is made again  ─▶ note ─▶ a record outside of all transactions, at once: no crash can lose it
once a minute (LostTopics)    ─▶ look ─▶ the same, if it is missing twice: a broker that has just begun lists few; or if it has
                                         another id: somebody else has made it again
a commit with `Covered`       ─▶ records ─▶ tombstones in the same commit
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException

from cdc.config import KafkaSection
from cdc.errors import PublishAborted
from cdc.events.topics import CHECKPOINT
from cdc.kafka.clients import KafkaClients
from cdc.kafka.names import names_of
from cdc.kafka.topic_ids import KnownIds, topic_ids
from cdc.positions.position import Position
from cdc.stream.batches.batch import Forms
from cdc.stream.batches.covered import Covered
from cdc.stream.commits.checkpoint import Checkpoint, loss_record
from cdc.stream.commits.former_topics import spaces_by_topic
from cdc.stream.commits.losses import LostTopic, after_all
from cdc.stream.commits.publisher_statistics import PublisherStatistics

_WRITE_SECONDS: Final = 5.0
"""Time for a record to arrive; without it, the topic isn't made yet."""


class Losses:
    """The lost topics of one publisher. Used by one thread at a time, as LostTopics."""

    def __init__(
        self, config: KafkaSection, clients: KafkaClients, statistics: PublisherStatistics, ids: KnownIds | None = None
    ) -> None:
        self.ids = ids or KnownIds()
        """The ids of the topics. They outlive the publisher."""
        self._config = config
        self._clients = clients
        self._names = names_of(config)
        self._statistics = statistics
        self._found: dict[str, LostTopic] = {}
        # What the checkpoint topic says of position and spaces.
        self._committed = Checkpoint()
        # What was known of the topics that were noted last.
        self._before: dict[str, LostTopic | None] = {}
        # Published topics that the last look missed, and the ids of those that it saw.
        self._missed: set[str] = set()
        self._seen_ids: dict[str, str] = {}

    def begin(self, stored: Checkpoint) -> None:
        """Take over what the checkpoint topic has, and note which topics somebody else has made again. Raises PublishAborted."""
        self._committed = Checkpoint(stored.position, dict(stored.spaces))
        self._found = {topic: self._of_shards(loss) for topic, loss in stored.losses.items()}
        self.ids.begin(stored.writer)
        self._show()
        self._note_others(self._made_again(spaces_by_topic(self._committed, self._names)))

    @property
    def _seq(self) -> int:
        position = self._committed.position
        return position.seq if position is not None else 0

    def note(self, lost: Mapping[str, Sequence[str]]) -> None:
        """Record that these topics, given with the names of their spaces as far as known, were deleted.

        Raises PublishAborted while Kafka doesn't take the records.
        """
        known = spaces_by_topic(self._committed, self._names)
        now_ms = time.time_ns() // 1_000_000
        found = {
            topic: self._of_shards(LostTopic(topic, tuple(known.get(topic, spaces)), self._seq, now_ms))
            for topic, spaces in lost.items()
        }
        self._before = {topic: self._found.get(topic) for topic in found}
        if found:
            self._write(found)

    def _of_shards(self, loss: LostTopic) -> LostTopic:
        return replace(loss, shards=self._config.shards_of(loss.topic))

    def withdraw(self, topics: Collection[str]) -> None:
        """Record that these of the topics that were noted last had only not been listed. Raises PublishAborted."""
        if topics:
            self._write({topic: self._before[topic] for topic in topics})

    def look(self, existing: Collection[str]) -> None:
        """Note the topics of published spaces that are missing, and were missing at the last look, or that somebody else has made
        again. Raises PublishAborted."""
        published = spaces_by_topic(self._committed, self._names)
        missing = {topic for topic in published if topic not in existing and topic not in self._found}
        gone = {topic: published[topic] for topic in sorted(missing & self._missed)}
        self._missed = missing
        again = self._made_again({topic: spaces for topic, spaces in published.items() if topic in existing})
        self._note_others(gone | again)

    def made(self, topics: Iterable[str]) -> None:
        """Note that the daemon has made these topics."""
        self.ids.forget(topics)

    def _made_again(self, published: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
        """Return those of these topics that have another id than before, and aren't noted."""
        self._seen_ids = topic_ids(self._clients.admin(), published)
        return {topic: published[topic] for topic in sorted(self.ids.changed(self._seen_ids)) if topic not in self._found}

    def _note_others(self, lost: Mapping[str, Sequence[str]]) -> None:
        self.note(lost)
        for topic in lost:
            structlog.get_logger().warning(self._found[topic].sentence, remedy=self._found[topic].remedy)
        self.ids.learn(self._seen_ids)

    def records(self, covered: Iterable[Covered]) -> list[tuple[bytes, bytes | None]]:
        """Return the records of a commit with these."""
        return [loss_record(topic, loss) for topic, loss in after_all(self._found, covered).items()]

    def committed(self, position: Position, stored: Forms, covered: Iterable[Covered]) -> None:
        """Take note of a commit that has come through."""
        self._committed.position = position
        for space_id, space in stored.items():
            if space is None:
                self._committed.spaces.pop(space_id, None)
            else:
                self._committed.spaces[space_id] = space
        self._change(after_all(self._found, covered))

    def _write(self, changed: Mapping[str, LostTopic | None]) -> None:
        failures: list[str] = []
        producer = self._clients.best_effort_producer()
        try:
            for topic, loss in changed.items():
                key, value = loss_record(topic, loss)
                producer.produce(
                    self._names.control(CHECKPOINT),
                    value,
                    key,
                    on_delivery=lambda error, _: failures.append(error.str()) if error is not None else None,
                )
            left = producer.flush(_WRITE_SECONDS)
        except (BufferError, KafkaException) as error:
            raise PublishAborted(f"that a topic was deleted can't be recorded: {error}") from error
        finally:
            producer.purge()
        if failures or left:
            reason = failures[0] if failures else KafkaError(KafkaError._TIMED_OUT).str()
            raise PublishAborted(f"that a topic was deleted can't be recorded: {reason}")
        self._change(changed)

    def _change(self, changed: Mapping[str, LostTopic | None]) -> None:
        for topic, loss in changed.items():
            self._found.pop(topic, None)
            if loss is not None:
                self._found[topic] = loss
            else:
                structlog.get_logger().info(
                    "a topic no longer counts as lost: its rows come again, or it was acknowledged", topic=topic
                )
        if changed:
            self._show()

    def _show(self) -> None:
        self._statistics.losses = tuple(self._found.values())
