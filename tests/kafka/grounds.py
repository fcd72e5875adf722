"""Where the same cases of a publisher are played: a fake cluster that does what it is told, and a real one that is hurt."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import Literal, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # they are documented
    AdminClient,
    NewPartitions,
    NewTopic,
)

from cdc.config import KafkaSection
from cdc.kafka.clients import ANSWER_TIMEOUT_MS, Complain, KafkaClients
from cdc.kafka.publisher import Publisher
from cdc.kafka.sender import CALL_TIMEOUT_SECONDS
from cdc.local.interface import KafkaServer
from cdc.stream.commits.checkpoint import Writer
from tests.fakes.kafka import SILENCE_SECONDS, Cluster, Record, clients
from tests.live.kafka_proxy import KafkaProxy
from tests.live.topics import TopicReader
from tests.live.waiting import wait_for

Mode = Literal["exactly_once", "at_least_once"]


class Ground(Protocol):
    """A cluster, and one name of a daemon with its topics."""

    name: str
    prefix: str
    silence_seconds: float
    """A silence that is longer than requests wait for their answers."""
    look_seconds: float
    """How soon it may be looked whether a producer finds brokers still: no sooner than one call after the other."""

    def clients(self, config: KafkaSection) -> KafkaClients:
        """For a publisher with this section."""

    def section(self, mode: Mode, timeout_seconds: float, **settings: object) -> KafkaSection:
        """With this bound for transactions."""

    def values(self, topic: str) -> list[bytes]:
        """What readers of committed messages find in `<prefix>.<topic>`, sorted, tombstones apart."""

    def make_compacted(self, topic: str) -> None:
        """Make a topic that refuses messages without a key."""

    def make_narrow(self, topic: str) -> None:
        """Make a topic that takes no message of more than 10,000 bytes."""

    def add_partitions(self, topic: str, count: int) -> None:
        """Until it has so many."""

    def silence(self) -> contextlib.AbstractContextManager[None]:
        """Kafka answers nothing."""

    def losing(self) -> contextlib.AbstractContextManager[Losing]:
        """Publishers that start within this reach Kafka over what may lose its answers."""

    def stranding(self) -> contextlib.AbstractContextManager[Callable[[], None]]:
        """What is given leaves the producers that were made within this without brokers for good; new ones find them."""


class Losing(Protocol):
    """A way to Kafka on which answers get lost."""

    @property
    def left(self) -> int:
        """How many are still to be lost."""

    def lose(self, count: int) -> None:
        """The next commits, so many of them, come through, but the answers don't."""


def publisher(
    ground: Ground, mode: Mode, writer: str = "writer", timeout_seconds: float = 600.0, **settings: object
) -> Publisher:
    """One that isn't started yet."""
    config = ground.section(mode, timeout_seconds, **{"commit_interval_ms": 1, **settings})
    return Publisher(ground.name, config, Writer(writer, has_store=False), ground.clients(config))


class FakeGround:
    """Of words."""

    name = "x"
    prefix = "shop"
    silence_seconds = 50 * SILENCE_SECONDS
    look_seconds = 5 * SILENCE_SECONDS

    def __init__(self) -> None:
        self.cluster = Cluster()

    def clients(self, config: KafkaSection) -> KafkaClients:  # noqa: ARG002 - the fake has no settings
        """As `Ground.clients`."""
        return clients(self.cluster)

    def section(self, mode: Mode, timeout_seconds: float, **settings: object) -> KafkaSection:
        """As `Ground.section`."""
        self.cluster.timeout_seconds = timeout_seconds
        given = {"bootstrap_servers": "x:1", "topic_prefix": self.prefix, "delivery": mode, **settings}
        return KafkaSection.model_validate(given)

    def values(self, topic: str) -> list[bytes]:
        """As `Ground.values`."""
        return sorted(value for value in self.cluster.values(f"{self.prefix}.{topic}") if value is not None)

    def make_compacted(self, topic: str) -> None:
        """As `Ground.make_compacted`."""
        self._make_strict(topic, lambda key, _: key is None, KafkaError.INVALID_RECORD)

    def make_narrow(self, topic: str) -> None:
        """As `Ground.make_narrow`."""
        self._make_strict(topic, lambda _, value: len(value or b"") > 10_000, KafkaError.MSG_SIZE_TOO_LARGE)

    def add_partitions(self, topic: str, count: int) -> None:
        """As `Ground.add_partitions`."""
        self.cluster.partitions[f"{self.prefix}.{topic}"] = count

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """As `Ground.silence`."""
        self.cluster.is_silent = True
        yield
        self.cluster.is_silent = False

    @contextlib.contextmanager
    def losing(self) -> Iterator[Losing]:
        """As `Ground.losing`."""
        yield LosingCluster(self.cluster)

    @contextlib.contextmanager
    def stranding(self) -> Iterator[Callable[[], None]]:
        """As `Ground.stranding`."""
        yield self.cluster.strand

    def _make_strict(self, topic: str, is_refused: Callable[[bytes | None, bytes | None], bool], code: int) -> None:
        name = f"{self.prefix}.{topic}"
        self.cluster.partitions[name] = 1

        def refuse(record: Record) -> KafkaError | None:
            return KafkaError(code) if record[0] == name and is_refused(record[2], record[3]) else None

        self.cluster.refuse = refuse


class _Kept(KafkaClients):
    """Clients whose producers are kept in a list, too."""

    def __init__(self, name: str, config: KafkaSection, producers: list[Producer]) -> None:
        super().__init__(name, config)
        self._producers = producers

    def transactional(self, complain: Complain, timeout_ms: int) -> Producer:
        """As everywhere."""
        self._producers.append(super().transactional(complain, timeout_ms))
        return self._producers[-1]

    def idempotent(self, complain: Complain, on_failure: Callable[[KafkaError | None, Message], None]) -> Producer:
        """As everywhere."""
        self._producers.append(super().idempotent(complain, on_failure))
        return self._producers[-1]


def _finds_brokers(producer: Producer) -> bool:
    try:
        producer.list_topics(timeout=0.5)
    except KafkaException as error:
        return bool(error.args[0].code() != KafkaError._TRANSPORT)
    return True


class LosingCluster:
    """A fake cluster, whose commits do it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def left(self) -> int:
        """As `Losing.left`."""
        return self._cluster.lost_answers

    def lose(self, count: int) -> None:
        """As `Losing.lose`."""
        self._cluster.lost_answers += count


class RealGround:
    """A broker that may be frozen, with names of its own."""

    silence_seconds = 1.5 * ANSWER_TIMEOUT_MS / 1000
    look_seconds = CALL_TIMEOUT_SECONDS + 1

    def __init__(self, kafka: KafkaServer) -> None:
        self._kafka = kafka
        self._bootstrap_servers = kafka.bootstrap_servers
        self.name = self.prefix = f"ground-{uuid.uuid4().hex[:12]}"
        self._producers: list[Producer] = []
        self._more_properties: dict[str, object] = {}
        # It is still there when the broker ends, and what it asks for tells its own failures: nothing is said on standard error.
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})

    def clients(self, config: KafkaSection) -> KafkaClients:
        """As `Ground.clients`."""
        return _Kept(self.name, config, self._producers)

    def section(self, mode: Mode, timeout_seconds: float, **settings: object) -> KafkaSection:
        """As `Ground.section`."""
        return KafkaSection.model_validate(
            {
                "bootstrap_servers": self._bootstrap_servers,
                "topic_prefix": self.prefix,
                "delivery": mode,
                "properties": {"transaction.timeout.ms": int(timeout_seconds * 1000), **self._more_properties},
                **settings,
            }
        )

    def values(self, topic: str) -> list[bytes]:
        """As `Ground.values`."""
        name = f"{self.prefix}.{topic}"
        with TopicReader(self._kafka.bootstrap_servers, self.prefix) as reader:
            reader.look_at_rest()
            records = [record for place, found in reader.records.items() if place[0] == name for record in found]
        return sorted(record.value for record in records if record.value is not None)

    def make_compacted(self, topic: str) -> None:
        """As `Ground.make_compacted`."""
        self._make(topic, {"cleanup.policy": "compact"})

    def make_narrow(self, topic: str) -> None:
        """As `Ground.make_narrow`."""
        self._make(topic, {"max.message.bytes": "10000"})

    def add_partitions(self, topic: str, count: int) -> None:
        """As `Ground.add_partitions`."""
        name = f"{self.prefix}.{topic}"
        self._admin.create_partitions([NewPartitions(name, count)])[name].result(60)

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """As `Ground.silence`."""
        self._kafka.pause()
        try:
            yield
        finally:
            self._kafka.resume()

    @contextlib.contextmanager
    def losing(self) -> Iterator[Losing]:
        """As `Ground.losing`."""
        host, _, port = self._kafka.bootstrap_servers.partition(":")
        with KafkaProxy(int(port)) as proxy:
            self._bootstrap_servers = f"{host}:{proxy.port}"
            try:
                yield proxy
            finally:
                self._bootstrap_servers = self._kafka.bootstrap_servers

    @contextlib.contextmanager
    def stranding(self) -> Iterator[Callable[[], None]]:
        """As `Ground.stranding`. What is chance otherwise is made sure of: librdkafka doesn't want to begin again."""
        self._more_properties = {"metadata.recovery.strategy": "none", "topic.metadata.refresh.interval.ms": 200}
        self._producers.clear()
        with self.losing() as proxy:
            assert isinstance(proxy, KafkaProxy)

            def strand() -> None:
                proxy.hides_brokers = True
                wait_for("no producer finds a broker", lambda: not any(map(_finds_brokers, self._producers)))
                proxy.hides_brokers = False

            try:
                yield strand
            finally:
                self._more_properties = {}

    def _make(self, topic: str, config: dict[str, str]) -> None:
        name = f"{self.prefix}.{topic}"
        self._admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(60)
