"""Where the same cases of a publisher are played: a fake cluster that does what it is told, and a real one that is hurt."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import Literal, Protocol

from confluent_kafka import KafkaError
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # they are documented
    AdminClient,
    NewPartitions,
    NewTopic,
)

from cdc.config import KafkaSection
from cdc.kafka.clients import ANSWER_TIMEOUT_MS, KafkaClients
from cdc.kafka.publisher import Publisher
from cdc.local.interface import KafkaServer
from cdc.stream.checkpoint import Writer
from tests.fakes.kafka import SILENCE_SECONDS, Cluster, Record, clients
from tests.live.kafka_proxy import KafkaProxy
from tests.live.topics import TopicReader

Mode = Literal["exactly_once", "at_least_once"]


class Ground(Protocol):
    """A cluster, and one name of a daemon with its topics."""

    name: str
    prefix: str
    silence_seconds: float
    """A silence that is longer than requests wait for their answers."""

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

    def _make_strict(self, topic: str, is_refused: Callable[[bytes | None, bytes | None], bool], code: int) -> None:
        name = f"{self.prefix}.{topic}"
        self.cluster.partitions[name] = 1

        def refuse(record: Record) -> KafkaError | None:
            return KafkaError(code) if record[0] == name and is_refused(record[2], record[3]) else None

        self.cluster.refuse = refuse


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

    def __init__(self, kafka: KafkaServer) -> None:
        self._kafka = kafka
        self._bootstrap_servers = kafka.bootstrap_servers
        self.name = self.prefix = f"ground-{uuid.uuid4().hex[:12]}"
        # It is still there when the broker ends, and what it asks for tells its own failures: nothing is said on standard error.
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})

    def clients(self, config: KafkaSection) -> KafkaClients:
        """As `Ground.clients`."""
        return KafkaClients(self.name, config)

    def section(self, mode: Mode, timeout_seconds: float, **settings: object) -> KafkaSection:
        """As `Ground.section`."""
        return KafkaSection.model_validate(
            {
                "bootstrap_servers": self._bootstrap_servers,
                "topic_prefix": self.prefix,
                "delivery": mode,
                "properties": {"transaction.timeout.ms": int(timeout_seconds * 1000)},
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

    def _make(self, topic: str, config: dict[str, str]) -> None:
        name = f"{self.prefix}.{topic}"
        self._admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(60)
