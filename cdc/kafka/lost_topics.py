"""Recovery of records that consumers need, after somebody deleted them, or they expired.

Consumers can't read rows without the forms in `<prefix>.schema`, and can't use a snapshot's rows before `<prefix>.snapshot` says
that the snapshot is complete. By itself, the daemon would write to these topics only when a form changes, or a snapshot is taken,
which may never happen. Therefore it reads them at its start, and writes what is missing: the current forms, and the end of the
last snapshot. From then on it looks regularly whether the schema topic exists, and whether records have vanished from the
beginning of one of the topics. If so, a new producer begins, which reads the topics again. The same looks find topics of spaces
that were deleted, which nothing but a snapshot can bring back (cdc.kafka.losses).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import structlog

from cdc.config import KafkaSection
from cdc.errors import ConnectionLostError, PublishAborted
from cdc.events import topics
from cdc.kafka import control_records, topic_settings
from cdc.kafka.clients import KafkaClients
from cdc.kafka.errors import ProducerLostError
from cdc.kafka.hanging import Place, first_offsets
from cdc.kafka.losses import Losses
from cdc.kafka.names import names_of, whose
from cdc.kafka.topic_admin import TopicAdmin, list_topics
from cdc.positions.position import Position
from cdc.stream.batches.batch import Batch, Message
from cdc.stream.commits.checkpoint import Checkpoint
from cdc.stream.commits.former_topics import form_records, missing_end, spaces_by_topic

CHECK_SECONDS: Final = 60.0
"""Interval between two checks of a running daemon."""


class LostTopics:
    """Checks for lost records. Used by one thread at a time: by the publisher's thread, once it runs."""

    def __init__(self, config: KafkaSection, clients: KafkaClients, topic_admin: TopicAdmin, losses: Losses) -> None:
        self._config = config
        self._clients = clients
        self._topic_admin = topic_admin
        self.losses = losses
        """The topics of spaces that were deleted."""
        names = names_of(config)
        self._schema_topic, self._snapshot_topic = names.control(topics.SCHEMA), names.control(topics.SNAPSHOT)
        self._next_check = 0.0
        # The topics' first offsets when they were last looked at.
        self._begins: dict[Place, int] = {}

    def begin(self, stored: Checkpoint) -> Batch | None:
        """Remember the topics that have had records as of this checkpoint, so that recreating one of them is logged.

        If needed records are missing, returns the batch that has to be committed first, else None. Raises ConnectionLostError,
        and the errors of `TopicAdmin.ensure`.
        """
        position, origin = stored.position or Position(), whose(self._config)
        names = names_of(self._config)
        forms = form_records(stored, names, origin.shard or "", _now_us)
        admin = self._clients.admin()
        existing = list_topics(admin, self._config.bootstrap_servers)
        topic_settings.keep_records(admin, self._config, existing)
        self.losses.begin(stored)
        missing = self._missing_forms(forms, existing) if forms else []
        end = missing_end(stored, names, self._newest(self._snapshot_topic, existing), _now_us)
        if end is not None:
            structlog.get_logger().warning(
                f"the topic {self._snapshot_topic} lacked the end of the last snapshot, without which consumers that begin later "
                "can't use the snapshot's rows: it has been written again. If state.images is \"none\", consumers that have rows "
                "from before the snapshot keep those that it would have removed, until another snapshot is taken"
            )
            missing.append(end)
        self._topic_admin.ensure({topic for topic, _, _ in missing})
        self._topic_admin.remember(spaces_by_topic(stored, names), [self._schema_topic] if forms else [])
        self._next_check = time.monotonic() + CHECK_SECONDS
        self._begins = self._first_offsets(existing)
        return Batch(list(missing), 0, 0, 0, position, True, {}, [], 0.0) if missing else None

    def _missing_forms(self, forms: list[Message], existing: Mapping[str, int]) -> list[Message]:
        found = self._newest(self._schema_topic, existing)
        missing = [record for record in forms if record[1] not in found]
        if missing and not found:
            structlog.get_logger().warning(
                f"the topic {self._schema_topic}, which consumers need to read rows, was deleted: it has been created again, "
                "with the current forms of all published spaces",
                spaces=len(missing),
            )
        elif missing:
            structlog.get_logger().warning(
                f"the topic {self._schema_topic} lacked current forms of spaces, which consumers need to read rows: these forms "
                "have been written again",
                spaces=len(missing),
            )
        return missing

    def check(self) -> None:
        """Raise ProducerLostError if the schema topic was deleted, or a control topic has lost records at its beginning.

        The next publisher then writes what is missing when it starts. Checks at most every CHECK_SECONDS.
        """
        now = time.monotonic()
        if now < self._next_check or not self._topic_admin.was_there(self._schema_topic):
            return
        self._next_check = now + CHECK_SECONDS
        try:
            existing = list_topics(self._clients.admin(), self._config.bootstrap_servers)
            begins = self._first_offsets(existing)
        except ConnectionLostError as error:
            structlog.get_logger().debug("topics can't be looked at", reason=error.message)
            return
        try:
            self.losses.look(existing)
        except PublishAborted as error:  # the next look finds them again, and nothing was aborted
            structlog.get_logger().debug("that topics were deleted can't be recorded", reason=error.message)
        if self._schema_topic not in existing:
            raise ProducerLostError(f"the topic {self._schema_topic} was deleted")
        for place, begin in begins.items():
            if begin > self._begins.get(place, 0):  # a topic that is new since then began at 0
                raise ProducerLostError(f"the first records of the topic {place[0]} were deleted, or have expired")

    def _newest(self, topic: str, existing: Mapping[str, int]) -> dict[bytes, bytes]:
        """Return the newest record of each key of a topic; none if the topic doesn't exist."""
        return control_records.newest(self._clients.consumer("read_committed"), topic) if topic in existing else {}

    def _first_offsets(self, existing: Mapping[str, int]) -> dict[Place, int]:
        control = [topic for topic in (self._schema_topic, self._snapshot_topic) if topic in existing]
        there = [(topic, number) for topic in control for number in range(existing[topic])]
        return first_offsets(self._clients.admin(), there) if there else {}


def _now_us() -> int:
    return time.time_ns() // 1000
