"""Kafka clients with the daemon's settings: producers, consumers, an admin client.

All clients are created here, so that a test can substitute others.

The size of a producer's queue limits its memory. librdkafka refuses a message that is larger than the whole queue, and reports
only that the queue is full. Therefore the queue has room for the largest allowed message.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from cdc.config import TRANSACTION_TIMEOUT_MAX_MS, KafkaSection
from cdc.errors import ConfigurationError
from cdc.kafka.broker_limits import BrokerLimits
from cdc.kafka.by_batch import BatchProducer
from cdc.kafka.errors import UNKNOWN_USER
from cdc.stream.commits import ownership
from cdc.stream.commits.publisher_statistics import BATCH_BYTES_MAX

LOG_LEVEL: Final = 2
"""Log level of librdkafka: critical lines only. Below it, librdkafka logs each attempt to connect, twenty times a second while
Kafka is unavailable."""
QUEUE_BYTES: Final = 64 * 1024 * 1024
"""Size of a producer's queue, in bytes, unless a message may be larger."""

ANSWER_TIMEOUT_MS: Final = 4_000
"""Time limit for an answer, in milliseconds, unless messages are so large that sending one may take longer."""
SLOWEST_BYTES_PER_MS: Final = 8 * 1024
"""Lowest network rate that is assumed: at the default message size it allows ANSWER_TIMEOUT_MS for sending one message."""
TRANSACTION_TIMEOUT_DEFAULT_MS: Final = 900_000
"""Kafka's default for transaction.max.timeout.ms, used if the brokers don't report theirs."""
FOLLOWING_END_WAIT_MS: Final = 100
"""Time, in milliseconds, between two questions of a consumer that goes on behind the last message for hours. Each costs a broker
as much as a small message does: at 10 ms, one that waits took an eighth of a processor of a local broker. It is less than the
time after which a listener calls the silence of a partition a silence."""

_LIBRARY: Final = logging.getLogger("librdkafka")
"""Logger for the clients' own lines. The running command decides where they are written (cdc.log)."""
_SILENT: Final = logging.getLogger("tarantool-cdc.silent")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False

_SECRET_KEY: Final = re.compile(r"password|secret|pem|oauthbearer|token|jwt")
_STATE: Final = re.compile(r" \(after \d+ms in state \w+.*\)$")
"""End of librdkafka's error texts; it may contain "1 identical error(s) suppressed"."""
_LONG_VALUE: Final = 8
"""Length from which on a configured value doesn't occur in an error text by chance."""

_Client = TypeVar("_Client")

Complain = Callable[[KafkaError], None]
"""Callback for errors of broker connections, which librdkafka keeps retrying."""


class Admin(AdminClient):
    """Admin client that records refused logins and server errors. librdkafka's own exceptions report only that no broker
    is available."""

    def __init__(self, settings: dict[str, Any], *, logger: logging.Logger) -> None:
        self.refusals: list[KafkaError] = []
        self.troubles: dict[str, str] = {}
        """Latest error of each server."""
        refusals, troubles = self.refusals, self.troubles  # a callback that holds the client itself would keep it alive

        def complain(error: KafkaError) -> None:
            if error.code() in UNKNOWN_USER:
                refusals.append(error)
            elif error.code() != KafkaError._ALL_BROKERS_DOWN:
                server, _, what = error.str().partition("/bootstrap: ")
                if what:
                    troubles[server] = _trouble(server, what, error.code())

        settings["error_cb"] = complain
        super().__init__(settings, logger=logger)


def _trouble(server: str, what: str, code: int) -> str:
    """Return librdkafka's error text about a server, without the details that matter only to librdkafka's authors."""
    if code == KafkaError._BAD_MSG:
        return f"the server at {server} doesn't speak Kafka's protocol"
    return _STATE.sub("", what).replace("ipv4#", "").replace("ipv6#", "")


def time_outs(message_bytes_max: int) -> dict[str, int]:
    """Return the time-outs of every client, in milliseconds. kafka.properties may override them.

    When a broker dies or stops answering, the other brokers take over its partitions and transactions once its session has
    expired (broker.session.timeout.ms, 9 s). With librdkafka's defaults a client would notice much later: it waits a minute for
    an answer, and within a transaction as long as the transaction may take. With these settings it resumes within 5 s of the
    takeover.
    """
    answer = max(ANSWER_TIMEOUT_MS, message_bytes_max // SLOWEST_BYTES_PER_MS)
    return {
        # The client repeats an unanswered request at the silent broker's successor. Numbered messages prevent duplicates.
        "socket.timeout.ms": answer,
        # The machine of a silent broker may still accept connections. The client notices that as soon as other silence.
        "socket.connection.setup.timeout.ms": ANSWER_TIMEOUT_MS,
        "api.version.request.timeout.ms": ANSWER_TIMEOUT_MS,
        # librdkafka asks for the leader after an error, possibly before a successor is elected. So it also asks regularly.
        "topic.metadata.refresh.interval.ms": 3_000,
        # A broker that is back is tried within a second, not ten.
        "reconnect.backoff.max.ms": 1_000,
    }


def answer_seconds(config: KafkaSection) -> float:
    """Return the time in seconds after which a client repeats an unanswered request. The first copy may still be in transit."""
    settings = {**time_outs(config.message_bytes_max), **config.properties}
    return _milliseconds("socket.timeout.ms", settings["socket.timeout.ms"]) / 1000


class KafkaClients:
    """Factory for one daemon's clients of one cluster."""

    def __init__(self, name: str, config: KafkaSection) -> None:
        self._name = name
        self._config = config
        self._transactional_id = ownership.transactional_id(name, config.control_prefix)
        self.batch_bytes_max = BATCH_BYTES_MAX
        """Maximum size of a batch of new producers, in bytes. A single message may be larger."""

    def admin(self) -> Admin:
        """Return a new admin client. An old one would still use outdated partition leaders after a broker's restart."""
        return self._made(Admin, {"log_level": LOG_LEVEL, **self._common()})

    def prober(self, timeout_ms: int) -> Producer:
        """Return a producer that requests the daemon's transactional id with this time-out. Its own log lines are discarded."""
        return self._made(
            Producer,
            {**self._common(), "transactional.id": self._transactional_id, "transaction.timeout.ms": timeout_ms},
            logger=_SILENT,
        )

    def consumer(self, isolation: str, ahead_bytes_max: int | None = None, *, end_wait_ms: int = 10) -> Consumer:
        """Return a consumer whose partitions are assigned by the caller and which reports their ends.

        `isolation` is read_committed or read_uncommitted. The consumer prefetches up to `ahead_bytes_max` bytes; the default is
        librdkafka's 64 MiB. Behind the last message a broker is asked every `end_wait_ms`, and answers sooner if one comes.
        """
        ahead = {}
        if ahead_bytes_max is not None:
            ahead["queued.max.messages.kbytes"] = ahead_bytes_max // 1024
            ahead["fetch.max.bytes"] = max(ahead_bytes_max, self._config.message_bytes_max)
        return self._made(
            Consumer,
            {
                "log_level": LOG_LEVEL,  # errors are raised
                "fetch.wait.max.ms": end_wait_ms,  # the end of a partition is known only from a broker's empty answer
                **ahead,
                **self._common(),
                "message.max.bytes": self._config.message_bytes_max,
                # librdkafka requires a group name; the consumer never joins a group.
                "group.id": f"tarantool-cdc-{self._name}",
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "enable.partition.eof": True,
                # If an offset has expired, the remaining records are read. By default all of them would be skipped.
                "auto.offset.reset": "earliest",
            },
        )

    def tail(self) -> Consumer:
        """Return a consumer of committed records that waits for new ones for long, and reports if the next one is missing."""
        return self._made(
            Consumer,
            {
                "log_level": LOG_LEVEL,  # errors are raised
                "queued.max.messages.kbytes": 1024,
                **self._common(),
                "message.max.bytes": self._config.message_bytes_max,
                "group.id": f"tarantool-cdc-{self._name}",  # as above
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
            },
        )

    def best_effort_producer(self) -> Producer:
        """Return a producer for short-lived messages: it retries only briefly, and uses no transactions."""
        settings = self._settings(lambda _: None)
        settings.pop("transaction.timeout.ms", None)
        return self._made(
            Producer, {**settings, "enable.idempotence": False, "acks": "1", "message.timeout.ms": 3_000, "linger.ms": 0}
        )

    def transaction_timeout_ms(self, limits: BrokerLimits) -> int:
        """Return how long a transaction may stay open, in milliseconds: the configured value, or else the brokers' maximum.

        A source transaction can't be committed in parts, and the daemon can't limit its size.
        """
        configured = self._config.properties.get("transaction.timeout.ms")
        if configured is not None:
            return int(configured)
        return min(limits.transaction_timeout_ms or TRANSACTION_TIMEOUT_DEFAULT_MS, TRANSACTION_TIMEOUT_MAX_MS)

    def transactional(self, complain: Complain, timeout_ms: int) -> Producer:
        """Return a producer with the daemon's transactional id. Only a commit confirms the delivery of its messages."""
        return self._transactional(complain, timeout_ms, self._transactional_id)

    def fencer(self, transactional_id: str, timeout_ms: int) -> Producer:
        """Return a producer that fences another process by claiming its transactional id."""
        return self._transactional(lambda _: None, timeout_ms, transactional_id)

    def _transactional(self, complain: Complain, timeout_ms: int, transactional_id: str) -> Producer:
        settings = self._settings(complain)
        return self._made(
            BatchProducer,
            {
                **settings,
                # librdkafka requires socket.timeout.ms not to exceed transaction.timeout.ms.
                "socket.timeout.ms": min(_milliseconds("socket.timeout.ms", settings["socket.timeout.ms"]), timeout_ms),
                "transaction.timeout.ms": timeout_ms,
                "transactional.id": transactional_id,
                "delivery.report.only.error": True,
            },
        )

    def idempotent(self, complain: Complain, on_failure: Callable[[KafkaError | None, Message], None]) -> Producer:
        """Return a producer without transactions. It calls `on_failure` for each message that can't be delivered."""
        settings = self._settings(complain)
        settings.pop("transaction.timeout.ms", None)
        return self._made(
            Producer,
            {
                # Messages wait as long as Kafka is unavailable. Only a refusal makes one fail.
                "message.timeout.ms": 0,
                **settings,
                "delivery.report.only.error": True,
                "on_delivery": on_failure,
            },
        )

    def _made(self, kind: Callable[..., _Client], settings: dict[str, Any], logger: logging.Logger = _LIBRARY) -> _Client:
        """Return a new client. Raises ConfigurationError if librdkafka rejects kafka.properties."""
        try:
            return kind(settings, logger=logger)
        except KafkaException as error:
            problem = error.args[0].str()
        except (TypeError, ValueError, AttributeError) as error:
            problem = str(error)
        # Raised outside the handlers: the library's errors may contain configured values, and some of those are secrets.
        raise ConfigurationError(
            f"kafka.properties can't be used: {_without_values(problem, self._config.properties)}",
            "librdkafka's CONFIGURATION.md lists all properties and their values.",
        )

    def _common(self) -> dict[str, Any]:
        config = self._config
        return {
            **time_outs(config.message_bytes_max),
            # By default a producer's metadata refresh would recreate a deleted topic with the brokers' own settings.
            "allow.auto.create.topics": False,
            **config.properties,
            "bootstrap.servers": config.bootstrap_servers,
        }

    def _settings(self, complain: Complain) -> dict[str, Any]:
        config = self._config
        return {
            "log_level": LOG_LEVEL,
            "error_cb": complain,
            "client.id": f"tarantool-cdc-{self._name}",
            "compression.type": "lz4",
            "linger.ms": 5,
            "batch.size": self.batch_bytes_max,
            "queue.buffering.max.kbytes": queue_kbytes(config.message_bytes_max),
            "queue.buffering.max.messages": 1_000_000,
            # The leader waits for the other replicas as long as the client waits for the leader.
            "request.timeout.ms": time_outs(config.message_bytes_max)["socket.timeout.ms"],
            **self._common(),
            "message.max.bytes": config.message_bytes_max,
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",  # as Java's producers place keys
        }


def _milliseconds(key: str, value: str | float) -> int:
    try:
        return int(value)
    except ValueError:
        pass
    raise ConfigurationError(f'kafka.properties."{key}" is no number of milliseconds', "Give a whole number.")


def _without_values(text: str, properties: Mapping[str, object]) -> str:
    """Return librdkafka's text without the configured values."""
    for key, value in sorted(properties.items(), key=lambda item: -len(str(item[1]))):
        shown = str(value)
        text = text.replace(f'"{shown}"', "its value")
        if len(shown) >= _LONG_VALUE or _SECRET_KEY.search(key):
            text = text.replace(shown, "…")
    return text


def queue_kbytes(message_bytes_max: int) -> int:
    """Return the size of a producer's queue, in KiB. It has room for the largest message."""
    return max(QUEUE_BYTES, message_bytes_max + 1023) // 1024
