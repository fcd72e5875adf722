"""A cluster of several brokers, of which each can be killed, frozen and started again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its annotations don't re-export the second
    AdminClient,
    PartitionMetadata,
)

from cdc.local.kafka import Kafka, new_cluster_id
from cdc.local.ports import free_port

CLUSTER_PROPERTIES: Mapping[str, str] = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    # How long one may be silent until others lead its partitions: 9 s as brokers come, which tests would wait for too often.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "1000",
    # As brokers come: other controllers see by it that the one that leads lives.
    "metadata.max.idle.interval.ms": "500",
    # How long a broker waits for another, as a coordinator does for one that fell silent in the instant of a commit.
    "request.timeout.ms": "5000",
    # A transaction that is older than its producer allows is aborted at once, not within ten seconds.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
"""As in production: every partition on three brokers, two of which must have a message."""


class KafkaNode(Kafka):
    """One of the brokers, which is also one of the controllers."""

    def __init__(
        self, directory: Path, node_id: int, cluster_id: str, voters: str, port: int, properties: Mapping[str, str], heap: str
    ) -> None:
        super().__init__(directory, properties, port=port, heap=heap, name=f"Kafka {node_id}")
        self.node_id = node_id
        self._of_cluster = cluster_id
        self._voters = voters

    def _node_properties(self) -> dict[str, str]:
        controllers = dict(voter.split("@") for voter in self._voters.split(","))
        return super()._node_properties() | {
            "node.id": str(self.node_id),
            "controller.quorum.voters": self._voters,
            "listeners": f"PLAINTEXT://{self.bootstrap_servers},CONTROLLER://{controllers[str(self.node_id)]}",
        }

    def _cluster_id_to_be(self) -> str:
        return self._of_cluster

    def _is_served_by(self, brokers: Collection[int]) -> bool:
        return self.node_id in brokers

    @property
    def leading_controller(self) -> int | None:
        """Who leads the controllers, as far as this one has noted; None if nobody does."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            state = json.loads((self._directory / "data/__cluster_metadata-0/quorum-state").read_text())
            leader = int(state["leaderId"])
            return leader if leader > 0 else None
        return None


class KafkaCluster:
    """Brokers 1, 2, …; with the interface of one server, which acts on all of them at once."""

    def __init__(
        self,
        directory: Path,
        properties: Mapping[str, str] | None = None,
        *,
        size: int = 3,
        heap: str = "320m",
        name: str = "Kafka's cluster",
    ) -> None:
        """Brokers in `directory`, not started yet; `properties` are added to CLUSTER_PROPERTIES."""
        self.name = name
        # For questions, and the brokers that it was made for.
        self._admin: AdminClient | None = None
        self._asked = ""
        settings = {**CLUSTER_PROPERTIES, **(properties or {})}
        voters = ",".join(f"{number}@127.0.0.1:{free_port()}" for number in range(1, size + 1))
        cluster_id = new_cluster_id()
        self.nodes = {
            number: KafkaNode(directory / str(number), number, cluster_id, voters, free_port(), settings, heap)
            for number in range(1, size + 1)
        }

    @property
    def bootstrap_servers(self) -> str:
        """All of them."""
        return ",".join(node.bootstrap_servers for node in self.nodes.values())

    def start(self) -> None:
        """Start those that don't run, at the same time: none serves before most of them are there."""
        self._all(lambda node: None if node.is_running else node.start())

    def stop(self) -> None:
        """As `kill`: a broker ends in order only with a controller's help, and most controllers would be gone."""
        self.kill()

    def kill(self) -> None:
        """End all as a crash would."""
        self._all(Kafka.kill)

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze all."""
        self._all(Kafka.pause)

    def resume(self) -> None:
        """Let all go on."""
        self._all(Kafka.resume)

    def close(self) -> None:
        """End them for good."""
        self.kill()

    @property
    def is_running(self) -> bool:
        """Whether all of them run."""
        return all(node.is_running for node in self.nodes.values())

    @property
    def pid(self) -> int:
        """Of the first."""
        return self.nodes[1].pid

    def log_tail(self, lines: int = 30) -> str:
        """Of all."""
        return "\n".join(f"{node.name}:\n{node.log_tail(lines)}" for node in self.nodes.values())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Who does what.

    def leader(self, topic: str, partition: int = 0) -> KafkaNode:
        """Who leads a partition now, as the brokers that run tell it. Raises KafkaException or KeyError."""
        return self.nodes[self._partitions(topic)[partition].leader]

    def in_sync(self, topic: str, partition: int = 0) -> set[int]:
        """The numbers of the brokers that have all of a partition. Raises as `leader`."""
        return set(self._partitions(topic)[partition].isrs)

    def transaction_coordinator(self, transactional_id: str) -> KafkaNode:
        """Who coordinates the transactions of this id. Raises as `leader`."""
        partitions = self._partitions("__transaction_state")
        return self.nodes[partitions[_java_hash(transactional_id) % len(partitions)].leader]

    def controller(self) -> KafkaNode:
        """Who leads the controllers. Raises LookupError if nobody is known to."""
        told = [node.leading_controller for node in self.nodes.values() if node.is_running]
        leaders = [leader for leader in told if leader is not None]
        if not leaders:
            raise LookupError("no controller leads")
        return self.nodes[max(leaders, key=leaders.count)]

    def _partitions(self, topic: str) -> dict[int, PartitionMetadata]:
        running = ",".join(node.bootstrap_servers for node in self.nodes.values() if node.is_running)
        if self._asked != running:
            self._asked = running
            self._admin = AdminClient({"bootstrap.servers": running, "log_level": 0})
        assert self._admin is not None
        return self._admin.list_topics(timeout=10).topics[topic].partitions

    def _all(self, act: Callable[[KafkaNode], Any]) -> None:
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(act, self.nodes.values()))


def _java_hash(text: str) -> int:
    """String.hashCode() without its sign, by which a transactional id finds its partition."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return abs(value - (1 << 32) if value >> 31 else value)
