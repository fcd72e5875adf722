"""Follower of the checkpoint topic: the checkpoint as committed readers see it, kept up to date.

librdkafka fetches in its own threads, so a look doesn't wait. A daemon that publishes writes its position every few
seconds (PROOF_SECONDS in cdc.kafka.publisher_loop). If nothing comes for long, the client may be one that finds no broker any
more (cdc.kafka.reach), so another one goes on in its place.
"""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from cdc.errors import ConfigurationError
from cdc.kafka.clients import FOLLOWING_END_WAIT_MS, KafkaClients
from cdc.kafka.errors import reading_error
from cdc.stream.commits.checkpoint import Checkpoint, fold

_MESSAGES_MAX: Final = 1000
_QUERY_SECONDS: Final = 1.0
QUIET_SECONDS: Final = 30.0
"""Time without a record after which a new client takes over."""
_PASSING: Final = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT})


class CheckpointTail:
    """The checkpoint of the daemon of this name. For one thread."""

    def __init__(self, clients: KafkaClients, topic: str, name: str) -> None:
        """Begin to read the topic, which exists."""
        self._clients = clients
        self._topic = topic
        self._name = name
        self._unreadable: dict[bytes, ConfigurationError] = {}
        self._next_offset = OFFSET_BEGINNING
        self._first_end: int | None = None
        self._consumer = self._new_consumer()
        self._heard_at = time.monotonic()
        self.checkpoint = Checkpoint()
        """What has been read."""
        self.is_read = False
        """Whether the end has been reached once: that of the moment, or that of the first look, as a busy daemon writes on."""

    def look(self) -> None:
        """Fold what is new into the checkpoint, up to its newest position.

        Raises ForbiddenError, ConnectionLostError, or ConfigurationError if the latest record of a key can't be understood.
        """
        now = time.monotonic()
        if now - self._heard_at > QUIET_SECONDS:
            self.close()
            self._consumer, self._heard_at = self._new_consumer(), now
        try:
            if self._first_end is None:
                _, self._first_end = self._consumer.get_watermark_offsets(TopicPartition(self._topic, 0), _QUERY_SECONDS)
            for message in self._consumer.consume(_MESSAGES_MAX, 0.0):
                error = message.error()
                if error is None:
                    self._heard_at, self._next_offset = now, (message.offset() or 0) + 1
                    self._fold(message.key() or b"", message.value())
                    self.is_read = self.is_read or self._next_offset >= self._first_end
                elif error.code() == KafkaError._PARTITION_EOF:
                    self.is_read = True
                elif error.code() not in _PASSING and not error.retriable():
                    raise reading_error(error, f"{self._topic} can't be read")
        except KafkaException as error:
            raise reading_error(error.args[0], f"{self._topic} can't be read") from error
        if self.is_read and self._unreadable:
            raise next(iter(self._unreadable.values()))

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def _new_consumer(self) -> Consumer:
        consumer = self._clients.consumer("read_committed", end_wait_ms=FOLLOWING_END_WAIT_MS)
        consumer.incremental_assign([TopicPartition(self._topic, 0, self._next_offset)])
        return consumer

    def _fold(self, key: bytes, value: bytes | None) -> None:
        # An unreadable record doesn't count if a later one has its key.
        self._unreadable.pop(key, None)
        try:
            fold(self._name, key, value, self.checkpoint)
        except ConfigurationError as error:
            self._unreadable[key] = error
