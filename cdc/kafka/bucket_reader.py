"""Reader of what the daemons of all shards have committed of their buckets (cdc.stream.moves.records).

The first reading is up to the end of all topics: a pipeline begins with the own records at its checkpoint. After that, a look now
and then finds what is new. librdkafka fetches in its own threads, so a look doesn't wait.
"""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.config import Config
from cdc.config.shard import Shard
from cdc.errors import ConnectionLostError
from cdc.events import topics
from cdc.events.topics import TopicNames
from cdc.kafka.clients import KafkaClients
from cdc.kafka.ends import Ends
from cdc.kafka.errors import reading_error
from cdc.stream.moves.records import Shards

_ANSWER_SECONDS: Final = 30.0
"""Time limit for Kafka's answers in the first reading."""
_LOOK_SECONDS: Final = 3.0
"""Interval at which topics are looked for that don't exist yet: those of daemons that have never run."""
_PAUSE_SECONDS: Final = 0.01
_MESSAGES_MAX: Final = 1000
_PASSING: Final = frozenset({KafkaError._PARTITION_EOF, KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT})


class BucketReader:
    """The records of a fleet's shards. For the daemon's thread."""

    def __init__(self, shard: Shard, clients: KafkaClients) -> None:
        self._shard = shard
        self._clients = clients
        self._names = {TopicNames(f"{shard.fleet_prefix}.{name}").control(topics.BUCKETS): name for name in shard.siblings}
        self._own_topic = TopicNames(shard.prefix).control(topics.BUCKETS)
        self._ends = Ends(clients)
        self._consumer: Consumer | None = None
        self._assigned: set[str] = set()
        self._next_look = 0.0
        self.shards = self._nothing()
        """What has been read."""

    def close(self) -> None:
        """Close the connections."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()
        self._ends.reset_clients()

    def begin(self) -> Shards:
        """Read everything from the beginning, and return it. Raises ConnectionLostError, ForbiddenError or ConfigurationError."""
        self.close()
        self.shards = self._nothing()
        self._assigned = set()
        consumer = self._consumer = self._clients.consumer("read_committed")
        try:
            self._await_own_commit()
            unread = self._assign_existing(consumer)
            deadline = time.monotonic() + _ANSWER_SECONDS
            while unread:
                message = consumer.poll(1.0)
                if message is None:
                    if time.monotonic() > deadline:
                        raise ConnectionLostError(f"Kafka didn't answer for {_ANSWER_SECONDS:.0f} s while {min(unread)} was read")
                    continue
                deadline = time.monotonic() + _ANSWER_SECONDS
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.topic() or "")
                else:
                    self._fold(message)
        except KafkaException as error:
            raise reading_error(error.args[0], "the topics of buckets can't be read") from error
        return self.shards

    def _nothing(self) -> Shards:
        return Shards(self._shard.name, self._shard.siblings, self._shard.replicaset_names_by_shard)

    def news(self) -> list[int | None]:
        """Return the buckets whose records have changed, None for a shard's begin. Raises as `begin`."""
        consumer = self._consumer
        if consumer is None:
            return []
        try:
            if len(self._assigned) < len(self._names) and time.monotonic() >= self._next_look:
                self._assign_existing(consumer)
            return [bucket for message in consumer.consume(_MESSAGES_MAX, 0.0) for bucket in self._fold(message)]
        except KafkaException as error:
            raise reading_error(error.args[0], "the topics of buckets can't be read") from error

    def _await_own_commit(self) -> None:
        """Wait until readers reach all own records: after a commit, or the end of a former process's transaction, that takes
        milliseconds."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        ends, _ = self._ends.written([self._own_topic])
        while any(offset < ends[place] for place, offset in self._ends.committed(ends).items()):
            if time.monotonic() > deadline:
                raise ConnectionLostError(f"Kafka doesn't show the end of {self._own_topic} yet")
            time.sleep(_PAUSE_SECONDS)

    def _assign_existing(self, consumer: Consumer) -> set[str]:
        """Begin to read the topics that exist and aren't read yet; return them."""
        self._next_look = time.monotonic() + _LOOK_SECONDS
        existing = consumer.list_topics(timeout=_ANSWER_SECONDS).topics
        new = {topic for topic in self._names if topic in existing} - self._assigned
        if new:
            # Not `assign`: that would fetch the others again.
            consumer.incremental_assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in sorted(new)])
            self._assigned |= new
        return new

    def _fold(self, message: Message) -> list[int | None]:
        error = message.error()
        if error is not None:
            if error.code() in _PASSING or error.retriable():
                return []
            raise reading_error(error, f"{message.topic()} can't be read")
        topic = message.topic() or ""
        return [self.shards.fold(self._names[topic], message.key() or b"", message.value())]


def of_configuration(config: Config) -> BucketReader | None:
    """Return a reader if moves of buckets are hidden: in topics that shards share, with images, in transactions."""
    shard = config.kafka.shard
    if shard is None or not config.kafka.has_co_writers or config.state.images != "full":
        return None
    return BucketReader(shard, KafkaClients(config.name, config.kafka))
