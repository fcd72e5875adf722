"""The read_committed view of a daemon's topics: what consumers can read, and which transactions keep them from the rest."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Final

from confluent_kafka import KafkaError

from cdc.config import KafkaSection
from cdc.events import topics
from cdc.kafka import checkpoint_topic, hanging
from cdc.kafka.clients import Admin, KafkaClients
from cdc.kafka.errors import reading_error
from cdc.kafka.hanging import Place
from cdc.kafka.names import names_of, whose
from cdc.kafka.topic_admin import list_topics, lost_checkpoint, refusal_by_name
from cdc.positions.numbers import Numbers
from cdc.positions.position import Position
from cdc.stream.commits.checkpoint import Checkpoint

MARKERS_SECONDS: Final = 3.0
"""Time that Kafka may take to write the markers of a transaction that it reports as ended."""
GONE_SECONDS: Final = 5.0
"""Time after which a topic that no broker shows counts as deleted. A broker that has just started, or a topic that was just
created, may take a moment."""
CLOCKS_MS: Final = 60_000
"""By how much the time of an event may be before that of the checkpoint that was written earlier: a clock was set back."""
_POLL_SECONDS: Final = 0.1
_CLAIM_ATTEMPTS: Final = 3
"""How often MARKERS_SECONDS are waited for another daemon's claim: it notices a missing marker after that time, and writes it."""


class ReadersView:
    """Uncached view of one daemon's topics. All methods raise ConnectionLostError while Kafka doesn't answer."""

    def __init__(self, config: KafkaSection, name: str, clients: KafkaClients) -> None:
        self._config = config
        self._name = name
        self._clients = clients
        self._topics = names_of(config)
        self._whose = whose(config)

    def checkpoint(self) -> Checkpoint:
        """Read the committed checkpoint. Raises ConfigurationError if it is unreadable, PublishError if the topic was deleted."""
        topic = self._topics.control(topics.CHECKPOINT)
        # librdkafka would search for a deleted topic for half a minute, and then report only that the topic is unknown.
        self._check_is_there(topic)
        consumer, servers = self._clients.consumer("read_committed"), self._config.bootstrap_servers
        return checkpoint_topic.read(consumer, topic, self._name, servers)

    def still_open(self) -> dict[Place, int]:
        """Return this daemon's partitions with a transaction that stays open for MARKERS_SECONDS, with last stable offsets."""
        admin = self._clients.admin()
        return self.own(hanging.still_open(admin, self._prefixed_topics(admin), MARKERS_SECONDS))

    def await_claim_of_others(self, expected_writers: Collection[str | None]) -> None:
        """Wait, for a limited time, while the checkpoint's partition has an open transaction of others than these.

        A daemon that has just taken the name over may be waiting for the marker of its claim, or may be writing it anew. Whoever
        claims the name meanwhile would fence it, find nothing but its own record, and abort the claim.
        """
        for _ in range(_CLAIM_ATTEMPTS):
            if (self._topics.control(topics.CHECKPOINT), 0) not in self.still_open():
                return
            consumer = self._clients.consumer("read_uncommitted")
            topic, servers = self._topics.control(topics.CHECKPOINT), self._config.bootstrap_servers
            if checkpoint_topic.read(consumer, topic, self._name, servers).writer in expected_writers:
                return

    def what_hangs(self, known: Position | None) -> tuple[dict[Place, int], bool]:
        """Return this daemon's partitions with hanging messages, and whether their transaction was committed.

        `known` is the newest position that the caller knows to be committed. To be called right after the producer's start,
        when it has no transaction of its own.
        """
        clients, admin = self._clients, self._clients.admin()
        open_, closed = hanging.open_partitions(admin, self._prefixed_topics(admin))
        open_ = self.own(open_)
        checkpoint = self.checkpoint()
        seq = checkpoint.position.seq if checkpoint.position else 0
        newest_open = hanging.newest_hanging_seq(clients.consumer("read_uncommitted"), self._whose, open_)
        if (self._topics.control(topics.CHECKPOINT), 0) not in open_:
            return open_, newest_open <= seq
        if known is not None and known.seq > seq and newest_open <= known.seq:
            return open_, True
        return open_, self._newest_seq(closed, checkpoint) > seq or self._shows_transaction_after(closed, checkpoint)

    def _shows_transaction_after(self, ends: Mapping[Place, int], checkpoint: Checkpoint) -> bool:
        """Return whether consumers can read that a transaction after the checkpoint was published, though its events hang."""
        shard, topic = self._config.shard, self._topics.control(topics.TRANSACTION)
        places = {place: end for place, end in ends.items() if place[0] == topic}
        if not places or checkpoint.position is None or (shard is not None and shard.shares_topics):
            return False  # of several shards, the records of one would stand for another's
        consumer = self._clients.consumer("read_committed")
        return hanging.shows_transaction_after(consumer, places, checkpoint.position.vclock)

    def _newest_seq(self, ends: Mapping[Place, int], checkpoint: Checkpoint) -> int:
        """Return the highest `seq` of this daemon's that consumers can read in partitions with these ends.

        Of other shards' topics it has only what was written since the checkpoint: what is older doesn't matter.
        """
        consumer, shard = self._clients.consumer("read_committed"), self._config.shard
        if shard is None or not shard.shares_topics:
            return hanging.newest_seq(consumer, self._whose, ends)
        since_ms = max(0, checkpoint.published.get(self._name, 0) - CLOCKS_MS)
        return hanging.newest_seq_since(self._clients.admin(), consumer, self._whose, ends, since_ms)

    def newest_numbers(self) -> Numbers:
        """Return the highest numbers of the last events that read_committed consumers can read; zeros if there are none."""
        admin = self._clients.admin()
        _, ends = hanging.open_partitions(admin, self._prefixed_topics(admin))
        return hanging.newest_numbers(self._clients.consumer("read_committed"), self._whose, ends)

    def _check_is_there(self, topic: str) -> None:
        """Raise PublishError if the topic is missing (the daemon had created it), ForbiddenError if the user may not see it."""
        admin, deadline = self._clients.admin(), time.monotonic() + GONE_SECONDS
        while topic not in self._prefixed_topics(admin):
            if time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                continue
            refusal = refusal_by_name(admin, topic)
            if refusal is None:
                return
            if refusal.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise reading_error(refusal, f"{topic} can't be read")
            raise lost_checkpoint(topic)

    def own(self, open_: Mapping[Place, int]) -> dict[Place, int]:
        """Return those of these partitions with open transactions that are this daemon's (see cdc.kafka.hanging)."""
        # Only this daemon writes there. The signal topic isn't among them: signals are other producers' records.
        control = {self._topics.control(name) for name in topics.CONTROL | self._config.optional_topics - {topics.SIGNAL}}
        others = {place: start for place, start in open_.items() if place[0] not in control}
        consumer = self._clients.consumer
        written = hanging.written_by(consumer("read_uncommitted"), self._whose, others) if others else set()
        return {place: start for place, start in open_.items() if place[0] in control or place in written}

    def _prefixed_topics(self, admin: Admin) -> dict[str, int]:
        prefix = self._config.topic_prefix + "."
        counts = list_topics(admin, self._config.bootstrap_servers)
        return {topic: count for topic, count in counts.items() if topic.startswith(prefix)}
