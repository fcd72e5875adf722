"""Apache Kafka as a process of this machine: one node that is broker and controller."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from cdc.local import class_archives, jars
from cdc.local.errors import LocalServerError
from cdc.local.ports import free_port
from cdc.local.process import ChildProcess
from cdc.local.server import LocalServer
from cdc.local.supervised import Supervised

_LOG_CONFIGURATION = Path(__file__).with_name("kafka-log4j2.xml")
_FORMAT_TIMEOUT_SECONDS = 180  # three at a time, on a machine under load
_PROBE_TIMEOUT_SECONDS = 1
_QUICK_COMPILATION = "-XX:TieredStopAtLevel=1"

SINGLE_NODE_PROPERTIES: Mapping[str, str] = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # The default is fifty each, for which a first consumer or transaction has to wait.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    # The successor of a killed broker is admitted only when this has passed since the last heartbeat.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # By default, a record twice a second shows other controllers that this one is alive: a third of an idle broker's cost.
    "metadata.max.idle.interval.ms": "0",
}
"""Properties that a cluster of one node needs, and that make it start quickly."""


class Kafka(LocalServer):
    """A cluster of one node without authentication; topics are created at their first use.

    `stop` and `kill` keep its data; the next `start` serves it at the same address.
    """

    def __init__(
        self,
        directory: Path,
        properties: Mapping[str, str] | None = None,
        *,
        port: int | None = None,
        heap: str = "1g",
        is_lasting: bool = False,
        name: str = "Kafka",
    ) -> None:
        """Prepare the server, without starting it. `properties` override the ones set here; `heap` is Java's -Xmx.

        If it `is_lasting`, Java compiles as well as it can, for measurements. That costs more than half of a start's CPU time,
        which a broker that runs for some minutes never recovers.
        """
        super().__init__(name, may_move=port is None)
        self._directory = directory.absolute()
        self._properties = dict(properties or {})
        self._heap = heap
        self._compilation = [] if is_lasting else [_QUICK_COMPILATION]
        self._port = free_port() if port is None else port
        self._controller_port = free_port()
        self._cluster_id = ""
        self._admin: AdminClient | None = None

    @property
    def bootstrap_servers(self) -> str:
        """`host:port`; the port may change at the first start, and never after."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Do as `LocalServer.start`."""
        try:
            super().start()
        finally:
            self._admin = None  # the client keeps connections and threads

    def _spawn(self) -> Supervised:
        self._directory.mkdir(parents=True, exist_ok=True)
        data = self._directory / "data"
        configuration = self._directory / "server.properties"
        settings = {**self._node_properties(), "log.dirs": str(data), **SINGLE_NODE_PROPERTIES, **self._properties}
        configuration.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        java = [jars.java_command(), "-XX:+UseSerialGC", *class_archives.start_options(jars.KAFKA)]
        java.append(f"-Dlog4j2.configurationFile={_LOG_CONFIGURATION}")
        tools = ["-cp", jars.class_path(jars.KAFKA)]
        self._cluster_id = _stored_cluster_id(data)
        if not self._cluster_id:
            self._cluster_id = self._cluster_id_to_be()
            formatting = ["kafka.tools.StorageTool", "format", "-t", self._cluster_id, "-c", str(configuration)]
            self._run_to_end([*java, _QUICK_COMPILATION, *tools, *formatting])
        return ChildProcess(
            self.name,
            [*java, *self._compilation, f"-Xmx{self._heap}", *tools, "kafka.Kafka", str(configuration)],
            log_file=self._log_file,
            working_directory=self._directory,
        )

    def _cluster_id_to_be(self) -> str:
        """Return the id with which to format the storage."""
        return new_cluster_id()

    @property
    def _log_file(self) -> Path:
        return self._directory / "kafka.log"

    def _node_properties(self) -> dict[str, str]:
        broker, controller = self.bootstrap_servers, f"127.0.0.1:{self._controller_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{broker}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }

    def _run_to_end(self, command: list[str]) -> None:
        run = ChildProcess(f"{self.name}'s formatting of its storage", command, log_file=self._log_file)
        status = run.exit_status(wait_seconds=_FORMAT_TIMEOUT_SECONDS)
        run.kill()
        if status != 0:
            outcome = "didn't end" if status is None else f"ended with status {status}"
            raise LocalServerError(f"{run.name} {outcome}.\n{run.log_tail()}")

    def _missing(self) -> str | None:
        if self._admin is None:
            # The probe's own answer reports failures; librdkafka's lines on standard error would only repeat them.
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        try:
            metadata = self._admin.list_topics(timeout=_PROBE_TIMEOUT_SECONDS)
        except KafkaException as error:
            return str(error)
        if self._cluster_id not in ("", metadata.cluster_id):
            return "another cluster answers on its port"
        return None if self._is_served_by(metadata.brokers) else "the broker isn't registered yet"

    def _is_served_by(self, brokers: Collection[int]) -> bool:
        """Return whether clients are admitted. `brokers` are the ids of the brokers that the cluster reports."""
        return bool(brokers)

    def _found_port_taken(self, log_text: str) -> bool:
        return "Address already in use" in log_text

    def _choose_ports(self) -> None:
        self._port, self._controller_port = free_port(), free_port()
        self._admin = None


def _stored_cluster_id(data: Path) -> str:
    """Return the id with which the storage was formatted; empty if it wasn't."""
    properties = data / "meta.properties"
    if not properties.exists():
        return ""
    entries = dict(line.split("=", 1) for line in properties.read_text().splitlines() if "=" in line)
    return entries["cluster.id"]


def new_cluster_id() -> str:
    """Return an id that no other cluster has."""
    # 16 bytes in URL-safe base64. The first character is fixed because a dash there would read as an option.
    return "T" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
