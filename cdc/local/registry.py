"""A registry of schemas as a process of this machine: Apicurio, which has the API of Confluent's Schema Registry."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from cdc.local import jars
from cdc.local.http_process import HttpProcess
from cdc.local.process import ChildProcess
from cdc.local.supervised import Supervised


class Registry(HttpProcess):
    """A registry. With `keeps_data` a restart keeps its subjects and ids, otherwise it is empty then."""

    def __init__(self, directory: Path, *, port: int | None = None, keeps_data: bool = False, name: str = "Apicurio") -> None:
        """Prepare the server, without starting it. Its log, and its data, are in `directory`."""
        super().__init__(directory, name, port)
        self._keeps_data = keeps_data

    @property
    def url(self) -> str:
        """The address of Confluent's API; the port may change at the first start, and never after."""
        return f"{self._root}/apis/ccompat/v7"

    @property
    def own_url(self) -> str:
        """The address of the registry's own API, which its converters for Kafka Connect use."""
        return f"{self._root}/apis/registry/v2"

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

    @property
    def _probe(self) -> str:
        return f"{self.url}/subjects"

    def _found_port_taken(self, log_text: str) -> bool:
        return "seems to be in use" in log_text or "Address already in use" in log_text
