"""Kafka's clients with the settings that this daemon wants: producers, an admin client.

Whoever needs a client asks here for one, so that a test can hand out others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient

from cdc.config import KafkaSection

LOG_LEVEL: Final = 2
"""librdkafka's own lines: what is critical. It tells of each attempt to connect, twenty times a second while Kafka is away."""

Complain = Callable[[KafkaError], None]
"""Is told of trouble with brokers, which librdkafka goes on trying to end."""


class KafkaClients:
    """Makes clients of one cluster for the daemon of one name."""

    def __init__(self, name: str, config: KafkaSection) -> None:
        self._name = name
        self._config = config

    def admin(self) -> AdminClient:
        """A client that remembers nothing: who leads a partition, an old one goes on believing after a broker's restart."""
        config = self._config
        return AdminClient({"log_level": LOG_LEVEL, **config.properties, "bootstrap.servers": config.bootstrap_servers})

    def transactional(self, complain: Complain) -> Producer:
        """A producer that has the daemon's name for its transactions. Only a commit says what became of its messages."""
        return Producer(
            {
                "transaction.timeout.ms": 60_000,
                **self._settings(complain),
                "transactional.id": self._name,
                "delivery.report.only.error": True,
            }
        )

    def idempotent(self, complain: Complain, on_failure: Callable[[KafkaError | None, Message], None]) -> Producer:
        """A producer without transactions. `on_failure` is told of the messages that can't be delivered."""
        settings = self._settings(complain)
        settings.pop("transaction.timeout.ms", None)
        return Producer(
            {
                # Messages wait as long as Kafka is away; what ends them is a refusal.
                "message.timeout.ms": 0,
                **settings,
                "delivery.report.only.error": True,
                "on_delivery": on_failure,
            }
        )

    def _settings(self, complain: Complain) -> dict[str, Any]:
        config = self._config
        return {
            "log_level": LOG_LEVEL,
            "error_cb": complain,
            "client.id": f"tarantool-cdc-{self._name}",
            "compression.type": "lz4",
            "linger.ms": 5,
            "batch.size": 1024 * 1024,
            "queue.buffering.max.kbytes": 64 * 1024,
            "queue.buffering.max.messages": 1_000_000,
            **config.properties,
            "bootstrap.servers": config.bootstrap_servers,
            "message.max.bytes": config.message_bytes_max,
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",  # as Java's producers place keys
        }
