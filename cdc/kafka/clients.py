"""Kafka's clients with the settings that this daemon wants: producers, consumers, an admin client.

Whoever needs a client asks here for one, so that a test can hand out others.

A producer's queue is what bounds its memory. librdkafka takes no message that is larger than the whole queue, and says only
that it is full, so the queue has room for the largest message that is allowed.
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

LOG_LEVEL: Final = 2
"""librdkafka's own lines: what is critical. It tells of each attempt to connect, twenty times a second while Kafka is away."""
QUEUE_BYTES: Final = 64 * 1024 * 1024
"""Of the producer's queue, unless a message may be larger."""

ANSWER_TIMEOUT_MS: Final = 4_000
"""How long an answer may take, unless messages are so large that only sending one may take longer."""
SLOWEST_BYTES_PER_MS: Final = 8 * 1024
"""What a network carries at least: with the default size of messages sending one has ANSWER_TIMEOUT_MS."""
TRANSACTION_TIMEOUT_DEFAULT_MS: Final = 900_000
"""Kafka's default for transaction.max.timeout.ms, for brokers that don't tell it."""

_LIBRARY: Final = logging.getLogger("librdkafka")
"""For the clients' own lines. Who runs a command says what becomes of them (cdc.log)."""
_SILENT: Final = logging.getLogger("tarantool-cdc.silent")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False

_SECRET_KEY: Final = re.compile(r"password|secret|pem|oauthbearer|token|jwt")
_STATE: Final = re.compile(r" \(after \d+ms in state \w+.*\)$")
"""How librdkafka ends a complaint; in it may be "1 identical error(s) suppressed"."""
_LONG_VALUE: Final = 8
"""A value as long as that is no part of a sentence by chance."""

_Client = TypeVar("_Client")

Complain = Callable[[KafkaError], None]
"""Is told of trouble with brokers, which librdkafka goes on trying to end."""


class Admin(AdminClient):
    """An admin client that remembers refused logins and what was wrong with a server; librdkafka says only that there is none."""

    def __init__(self, settings: dict[str, Any], *, logger: logging.Logger) -> None:
        self.refusals: list[KafkaError] = []
        self.troubles: dict[str, str] = {}
        """The newest complaint about each server."""
        refusals, troubles = self.refusals, self.troubles  # not the client itself: it would keep itself alive

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
    """librdkafka's complaint about a server, without what only its authors want to know."""
    if code == KafkaError._BAD_MSG:
        return f"what answers at {server} doesn't speak Kafka's protocol"
    return _STATE.sub("", what).replace("ipv4#", "").replace("ipv6#", "")


def time_outs(message_bytes_max: int) -> dict[str, int]:
    """How long every client waits for what, in milliseconds; kafka.properties may say otherwise.

    When a broker dies or falls silent, the others take over its partitions and transactions once its session has ended
    (broker.session.timeout.ms, 9 s). By librdkafka's defaults a client would find out much later: it waits a minute, and
    in a transaction as long as that may take, for answers that won't come. By these it goes on within 5 s of the others.
    """
    answer = max(ANSWER_TIMEOUT_MS, message_bytes_max // SLOWEST_BYTES_PER_MS)
    return {
        # What a silent broker was asked is asked of its successor: messages carry numbers, so that none comes twice.
        "socket.timeout.ms": answer,
        # A silent broker's machine still takes connections. That nobody speaks there is found out as soon as elsewhere.
        "socket.connection.setup.timeout.ms": ANSWER_TIMEOUT_MS,
        "api.version.request.timeout.ms": ANSWER_TIMEOUT_MS,
        # Who leads is asked for after an error, and that may come before there is a successor: so it is asked for regularly, too.
        "topic.metadata.refresh.interval.ms": 3_000,
        # A broker that is back is tried within a second, not ten.
        "reconnect.backoff.max.ms": 1_000,
    }


def answer_seconds(config: KafkaSection) -> float:
    """How long a request is waited for until it is sent again, while the first copy may still be under way."""
    settings = {**time_outs(config.message_bytes_max), **config.properties}
    return _milliseconds("socket.timeout.ms", settings["socket.timeout.ms"]) / 1000


class KafkaClients:
    """Makes clients of one cluster for the daemon of one name."""

    def __init__(self, name: str, config: KafkaSection) -> None:
        self._name = name
        self._config = config

    def admin(self) -> Admin:
        """A client that remembers nothing: who leads a partition, an old one goes on believing after a broker's restart."""
        return self._made(Admin, {"log_level": LOG_LEVEL, **self._common()})

    def prober(self, timeout_ms: int) -> Producer:
        """A producer that asks for the daemon's transactional id with this time-out, and says nothing by itself."""
        return self._made(
            Producer,
            {**self._common(), "transactional.id": self._name, "transaction.timeout.ms": timeout_ms},
            logger=_SILENT,
        )

    def consumer(self, isolation: str, ahead_bytes_max: int | None = None) -> Consumer:
        """A reader that is told its partitions, and where they end. `isolation` is read_committed or read_uncommitted.

        It fetches up to `ahead_bytes_max` before it is asked; by default librdkafka's 64 MiB.
        """
        ahead = {}
        if ahead_bytes_max is not None:
            ahead["queued.max.messages.kbytes"] = ahead_bytes_max // 1024
            ahead["fetch.max.bytes"] = max(ahead_bytes_max, self._config.message_bytes_max)
        return self._made(
            Consumer,
            {
                "log_level": LOG_LEVEL,  # what goes wrong is raised
                "fetch.wait.max.ms": 10,  # a partition's end is known when a broker says that there is nothing more
                **ahead,
                **self._common(),
                "message.max.bytes": self._config.message_bytes_max,
                # librdkafka only wants a name.
                "group.id": f"tarantool-cdc-{self._name}",
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "enable.partition.eof": True,
                # Where an offset has expired, what is left is read; by default all of it would be passed over.
                "auto.offset.reset": "earliest",
            },
        )

    def passing(self) -> Producer:
        """A producer for what is of use only now: it tries for a short time, outside of all transactions."""
        settings = self._settings(lambda _: None)
        settings.pop("transaction.timeout.ms", None)
        return self._made(
            Producer, {**settings, "enable.idempotence": False, "acks": "1", "message.timeout.ms": 3_000, "linger.ms": 0}
        )

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
        settings = self._settings(complain)
        return self._made(
            BatchProducer,
            {
                **settings,
                # librdkafka wants no answer to take longer than a transaction.
                "socket.timeout.ms": min(_milliseconds("socket.timeout.ms", settings["socket.timeout.ms"]), timeout_ms),
                "transaction.timeout.ms": timeout_ms,
                "transactional.id": self._name,
                "delivery.report.only.error": True,
            },
        )

    def idempotent(self, complain: Complain, on_failure: Callable[[KafkaError | None, Message], None]) -> Producer:
        """A producer without transactions. `on_failure` is told of the messages that can't be delivered."""
        settings = self._settings(complain)
        settings.pop("transaction.timeout.ms", None)
        return self._made(
            Producer,
            {
                # Messages wait as long as Kafka is away; what ends them is a refusal.
                "message.timeout.ms": 0,
                **settings,
                "delivery.report.only.error": True,
                "on_delivery": on_failure,
            },
        )

    def _made(self, kind: Callable[..., _Client], settings: dict[str, Any], logger: logging.Logger = _LIBRARY) -> _Client:
        """A client. Raises ConfigurationError if librdkafka doesn't take kafka.properties."""
        try:
            return kind(settings, logger=logger)
        except KafkaException as error:
            problem = error.args[0].str()
        except (TypeError, ValueError, AttributeError) as error:
            problem = str(error)
        # Behind the handlers: the library's errors may hold values, and some of them are secrets.
        raise ConfigurationError(
            f"kafka.properties can't be used: {_without_values(problem, self._config.properties)}",
            "librdkafka's CONFIGURATION.md lists all of them, with their values.",
        )

    def _common(self) -> dict[str, Any]:
        config = self._config
        return {
            **time_outs(config.message_bytes_max),
            # By default a producer's regular questions make a topic again that somebody deletes, with the brokers' own settings.
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
            "batch.size": 1024 * 1024,
            "queue.buffering.max.kbytes": queue_kbytes(config.message_bytes_max),
            "queue.buffering.max.messages": 1_000_000,
            # How long a leader waits for the other replicas: as long as the client for the leader.
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
    """A sentence of librdkafka's without the values that were configured."""
    for key, value in sorted(properties.items(), key=lambda item: -len(str(item[1]))):
        shown = str(value)
        text = text.replace(f'"{shown}"', "its value")
        if len(shown) >= _LONG_VALUE or _SECRET_KEY.search(key):
            text = text.replace(shown, "…")
    return text


def queue_kbytes(message_bytes_max: int) -> int:
    """The size of a producer's queue in KiB: it has room for the largest message."""
    return max(QUEUE_BYTES, message_bytes_max + 1023) // 1024
