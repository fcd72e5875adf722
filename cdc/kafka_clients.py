"""Kafka's clients with the settings that this daemon wants: producers, consumers, an admin client.

Whoever needs a client asks here for one, so that a test can hand out others.

A producer's queue is what bounds its memory. librdkafka takes no message that is larger than the whole queue, and says only
that it is full, so the queue has room for the largest message that is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient

from cdc.broker_limits import BrokerLimits
from cdc.config import TRANSACTION_TIMEOUT_MAX_MS, KafkaSection

LOG_LEVEL: Final = 2
"""librdkafka's own lines: what is critical. It tells of each attempt to connect, twenty times a second while Kafka is away."""
QUEUE_BYTES: Final = 64 * 1024 * 1024
"""Of the producer's queue, unless a message may be larger."""

SOCKET_TIMEOUT_MS: Final = 60_000
TRANSACTION_TIMEOUT_DEFAULT_MS: Final = 900_000
"""Kafka's default for transaction.max.timeout.ms, for brokers that don't tell it."""

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

    def consumer(self, isolation: str) -> Consumer:
        """A reader that is told its partitions, and where they end. `isolation` is read_committed or read_uncommitted."""
        config = self._config
        return Consumer(
            {
                "log_level": LOG_LEVEL,  # what goes wrong is raised
                "fetch.wait.max.ms": 10,  # a partition's end is known when a broker says that there is nothing more
                **config.properties,
                "bootstrap.servers": config.bootstrap_servers,
                "message.max.bytes": config.message_bytes_max,
                # librdkafka only wants a name.
                "group.id": f"tarantool-cdc-{self._name}",
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "enable.partition.eof": True,
            }
        )

    def passing(self) -> Producer:
        """A producer for what is of use only now: it tries for a short time, outside of all transactions."""
        settings = self._settings(lambda _: None)
        settings.pop("transaction.timeout.ms", None)
        return Producer({**settings, "enable.idempotence": False, "acks": "1", "message.timeout.ms": 3_000, "linger.ms": 0})

    def transaction_timeout_ms(self, limits: BrokerLimits) -> int:
        """How long a transaction may be open: what is configured, else as long as the brokers allow.

        A source transaction can't be committed in parts, and how large one gets is for nobody here to say.
        """
        configured = self._config.properties.get("transaction.timeout.ms")
        if configured is not None:
            return int(configured)
        return min(limits.transaction_timeout_ms or TRANSACTION_TIMEOUT_DEFAULT_MS, TRANSACTION_TIMEOUT_MAX_MS)

    def transactional(self, complain: Complain, timeout_ms: int) -> Producer:
        """A producer that has the daemon's name for its transactions. Only a commit says what became of its messages."""
        return Producer(
            {
                # Else librdkafka would wait for an answer as long as for a transaction.
                "socket.timeout.ms": min(SOCKET_TIMEOUT_MS, timeout_ms),
                **self._settings(complain),
                "transaction.timeout.ms": timeout_ms,
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
            "queue.buffering.max.kbytes": queue_kbytes(config.message_bytes_max),
            "queue.buffering.max.messages": 1_000_000,
            **config.properties,
            "bootstrap.servers": config.bootstrap_servers,
            "message.max.bytes": config.message_bytes_max,
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",  # as Java's producers place keys
        }


def queue_kbytes(message_bytes_max: int) -> int:
    """The size of a producer's queue in KiB: it has room for the largest message."""
    return max(QUEUE_BYTES, message_bytes_max + 1023) // 1024
