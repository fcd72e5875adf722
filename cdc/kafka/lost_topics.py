"""Recovery of the schema topic, `<prefix>.schema`, after somebody deleted it: consumers can't read rows without the topic.

By itself, the daemon would write to the topic only when a form changes, which may never happen. Therefore it checks at its start
whether the topic exists and has records, and from then on regularly whether it exists. If not, it writes the current forms into
a new topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import structlog

from cdc.config import KafkaSection
from cdc.errors import ConnectionLostError
from cdc.events import topics
from cdc.kafka.clients import Admin
from cdc.kafka.errors import ProducerLostError
from cdc.kafka.hanging import open_partitions
from cdc.kafka.topic_admin import TopicAdmin, list_topics
from cdc.positions.position import Position
from cdc.stream.batch import Batch
from cdc.stream.checkpoint import Checkpoint
from cdc.stream.former_topics import form_records, spaces_by_topic

CHECK_SECONDS: Final = 60.0
"""Interval between two checks of a running daemon."""


class LostTopics:
    """Checks for a deleted schema topic. Used by one thread at a time: by the publisher's thread, once it runs."""

    def __init__(self, config: KafkaSection, new_admin: Callable[[], Admin], topic_admin: TopicAdmin) -> None:
        self._config = config
        self._new_admin = new_admin
        self._topic_admin = topic_admin
        self._schema_topic = topics.TopicNames(config.topic_prefix).control(topics.SCHEMA)
        self._next_check = 0.0

    def begin(self, stored: Checkpoint) -> Batch | None:
        """Remember the topics that have had records as of this checkpoint, so that recreating one of them is logged.

        If the schema topic was deleted, returns the batch that has to be committed first, else None. Raises
        ConnectionLostError, and the errors of `TopicAdmin.ensure`.
        """
        spaces, prefix = spaces_by_topic(stored, self._config.topic_prefix), self._config.topic_prefix
        records = form_records(stored, prefix, lambda: time.time_ns() // 1000)
        # An existing but empty topic was deleted and then created again, by the daemon or somebody else.
        is_lost = bool(records) and not (self._is_there() and self._has_records())
        if is_lost:
            self._topic_admin.ensure([self._schema_topic])
            structlog.get_logger().warning(
                f"the topic {self._schema_topic}, which consumers need to read rows, was deleted: it has been created again, "
                "with the current forms of all published spaces",
                spaces=len(records),
            )
        self._topic_admin.remember(spaces, [self._schema_topic] if records else [])
        self._next_check = time.monotonic() + CHECK_SECONDS
        return Batch(list(records), 0, 0, 0, stored.position or Position(), True, {}, [], 0.0) if is_lost else None

    def check(self) -> None:
        """Raise ProducerLostError if the schema topic was deleted, as the next publisher writes all forms when it starts.

        Checks at most every CHECK_SECONDS.
        """
        now = time.monotonic()
        if now < self._next_check or not self._topic_admin.was_there(self._schema_topic):
            return
        self._next_check = now + CHECK_SECONDS
        try:
            if self._is_there():
                return
        except ConnectionLostError as error:
            structlog.get_logger().debug("topics can't be listed", reason=error.message)
            return
        raise ProducerLostError(f"the topic {self._schema_topic} was deleted")

    def _is_there(self) -> bool:
        return self._schema_topic in list_topics(self._new_admin(), self._config.bootstrap_servers)

    def _has_records(self) -> bool:
        place = (self._schema_topic, 0)
        _, ends = open_partitions(self._new_admin(), {self._schema_topic: 1})
        return ends.get(place) != 0
