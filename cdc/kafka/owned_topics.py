"""Reader of what schema topics say about the topics of prefixes. See cdc.stream.commits.owned_topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cdc.events import topics
from cdc.events.topics import TopicNames
from cdc.kafka import control_records
from cdc.kafka.clients import Admin, KafkaClients
from cdc.kafka.hanging import Place, first_offsets, open_partitions
from cdc.stream.commits.owned_topics import NOTHING, Owned, owned

_Bounds = tuple[dict[Place, int], dict[Place, int]]


class OwnedTopics:
    """Answers from schema topics, each read again only if the topic has changed. For any thread."""

    def __init__(self, clients: KafkaClients) -> None:
        self._clients: Final = clients
        self._known: dict[str, tuple[_Bounds, Owned]] = {}

    def of(self, prefix: str, admin: Admin, existing: Mapping[str, int]) -> Owned:
        """Return what a prefix owns, given the existing topics' partition counts. Raises ConnectionLostError."""
        topic = TopicNames(prefix).control(topics.SCHEMA)
        if topic not in existing:
            return NOTHING
        open_, closed = open_partitions(admin, {topic: existing[topic]})
        ends = open_ | closed
        bounds = first_offsets(admin, ends), ends
        known = self._known.get(prefix)
        if known is None or known[0] != bounds:
            consumer = self._clients.consumer("read_committed")
            known = self._known[prefix] = bounds, owned(prefix, control_records.values(consumer, topic))
        return known[1]
