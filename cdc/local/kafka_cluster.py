"""A cluster of several brokers, each of which can be killed, frozen and started again."""

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
    # How long a broker may be silent until others lead its partitions. With the default of 9 s, tests would wait too often.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "1000",
    # The default: by these records other controllers see that the leading one is alive.
    "metadata.max.idle.interval.ms": "500",
    # How long a broker waits for another, as a coordinator does for one that fell silent at the moment of a commit.
    "request.timeout.ms": "5000",
    # A transaction that exceeds its producer's timeout is aborted at once, not within ten seconds.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
"""Properties as in production: every partition is on three brokers, two of which must have a message."""


class KafkaNode(Kafka):
    """One of the brokers; each is also one of the controllers."""

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
        """The leading controller, as far as this node has recorded it; None if there is none."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            state = json.loads((self._directory / "data/__cluster_metadata-0/quorum-state").read_text())
            leader = int(state["leaderId"])
            return leader if leader > 0 else None
        return None


class KafkaCluster:
    """Brokers 1, 2, …, with the interface of one server that acts on all of them at once."""

    def __init__(
        self,
        directory: Path,
        properties: Mapping[str, str] | None = None,
        *,
        size: int = 3,
        heap: str = "320m",
        name: str = "Kafka's cluster",
    ) -> None:
        """Prepare the brokers in `directory`, without starting them. `properties` are added to CLUSTER_PROPERTIES."""
        self.name = name
        # The client for questions, and the addresses for which it was made.
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
        """Addresses of all brokers."""
        return ",".join(node.bootstrap_servers for node in self.nodes.values())

    def start(self) -> None:
        """Start the brokers that aren't running, at the same time: none is ready before most of them are running."""
        self._all(lambda node: None if node.is_running else node.start())

    def stop(self) -> None:
        """Do as `kill`: a broker stops cleanly only with a controller's help, and most controllers would be gone."""
        self.kill()

    def kill(self) -> None:
        """End all brokers as a crash would."""
        self._all(Kafka.kill)

    def restart(self) -> None:
        """Stop and start all brokers."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze all brokers."""
        self._all(Kafka.pause)

    def resume(self) -> None:
        """Let all brokers continue."""
        self._all(Kafka.resume)

    def close(self) -> None:
        """Stop all brokers for good."""
        self.kill()

    @property
    def is_running(self) -> bool:
        """Whether all brokers are running."""
        return all(node.is_running for node in self.nodes.values())

    @property
    def pid(self) -> int:
        """Process id of the first broker."""
        return self.nodes[1].pid

    def log_tail(self, lines: int = 30) -> str:
        """Return the last log lines of all brokers."""
        return "\n".join(f"{node.name}:\n{node.log_tail(lines)}" for node in self.nodes.values())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Roles of the brokers.

    def leader(self, topic: str, partition: int = 0) -> KafkaNode:
        """Return the present leader of a partition, as the running brokers report it. Raises KafkaException or KeyError."""
        return self.nodes[self._partitions(topic)[partition].leader]

    def in_sync(self, topic: str, partition: int = 0) -> set[int]:
        """Return the numbers of the brokers that have all of a partition. Raises as `leader`."""
        return set(self._partitions(topic)[partition].isrs)

    def transaction_coordinator(self, transactional_id: str) -> KafkaNode:
        """Return the coordinator of this id's transactions. Raises as `leader`."""
        partitions = self._partitions("__transaction_state")
        return self.nodes[partitions[_java_hash(transactional_id) % len(partitions)].leader]

    def controller(self) -> KafkaNode:
        """Return the leading controller. Raises LookupError if none is known."""
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
    """Return String.hashCode() without its sign, which maps a transactional id to its partition."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return abs(value - (1 << 32) if value >> 31 else value)
