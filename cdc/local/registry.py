"""A registry of schemas as a process of this machine: Apicurio, which has the API of Confluent's Schema Registry."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from cdc.local import jars
from cdc.local.ports import free_port
from cdc.local.process import ChildProcess
from cdc.local.server import LocalServer
from cdc.local.supervised import Supervised

_PROBE_TIMEOUT_SECONDS = 2


class Registry(LocalServer):
    """A registry. With `keeps_data` a restart keeps its subjects and ids, otherwise it is empty then."""

    def __init__(self, directory: Path, *, port: int | None = None, keeps_data: bool = False, name: str = "Apicurio") -> None:
        """Prepare the server, without starting it. Its log, and its data, are in `directory`."""
        super().__init__(name, may_move=port is None)
        self._directory = directory.absolute()
        self._port = free_port() if port is None else port
        self._keeps_data = keeps_data

    @property
    def url(self) -> str:
        """The address of Confluent's API; the port may change at the first start, and never after."""
        return f"http://127.0.0.1:{self._port}/apis/ccompat/v7"

    @property
    def own_url(self) -> str:
        """The address of the registry's own API, which its converters for Kafka Connect use."""
        return f"http://127.0.0.1:{self._port}/apis/registry/v2"

    def start(self) -> None:
        """Do as `LocalServer.start`, and let the registry check compatibility as Confluent's does by default."""
        super().start()
        body = json.dumps({"compatibility": "BACKWARD"}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/config", body, headers, method="PUT")  # noqa: S310 - http
        with urllib.request.urlopen(request, timeout=30):  # noqa: S310
            pass

    def _spawn(self) -> Supervised:
        self._directory.mkdir(parents=True, exist_ok=True)
        (runner,) = jars.jar_folder(jars.REGISTRY).glob("*-runner.jar")
        environment = {"QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_HTTP_PORT": str(self._port)}
        if self._keeps_data:
            environment |= {
                "QUARKUS_DATASOURCE_JDBC_URL": f"jdbc:h2:file:{self._directory / 'registry'}",
                "QUARKUS_DATASOURCE_JDBC_INITIAL_SIZE": "2",
                "QUARKUS_DATASOURCE_JDBC_MIN_SIZE": "2",
            }
        return ChildProcess(
            self.name,
            [
                *(jars.java_command(), "-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *("-jar", str(runner)),
            ],
            log_file=self._directory / "registry.log",
            working_directory=self._directory,
            environment=environment,
        )

    def _missing(self) -> str | None:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=_PROBE_TIMEOUT_SECONDS):  # noqa: S310
                return None
        except OSError as error:
            return str(error)

    def _found_port_taken(self, log_text: str) -> bool:
        return "seems to be in use" in log_text or "Address already in use" in log_text

    def _choose_ports(self) -> None:
        self._port = free_port()
