"""A REST catalog of Iceberg tables as a process of this machine: Iceberg's own one for tests, over a file of SQLite."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from cdc.local import jars
from cdc.local.ports import free_port
from cdc.local.process import ChildProcess
from cdc.local.server import LocalServer
from cdc.local.supervised import Supervised

_PROBE_TIMEOUT_SECONDS = 2


class RestCatalog(LocalServer):
    """A REST catalog. A restart keeps its tables."""

    def __init__(self, directory: Path, name: str) -> None:
        """Prepare the server, without starting it. Its log, its tables and the list of them are in `directory`."""
        super().__init__(name, may_move=True)
        self._directory = directory.absolute()
        self._port = free_port()

    @property
    def url(self) -> str:
        """The catalog's address; the port may change at the first start, and never after."""
        return f"http://127.0.0.1:{self._port}"

    def _spawn(self) -> Supervised:
        self._directory.mkdir(parents=True, exist_ok=True)
        return ChildProcess(
            self.name,
            [
                *(jars.java_command(), "-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *("-cp", jars.class_path(jars.REST_CATALOG), "org.apache.iceberg.rest.RESTCatalogServer"),
            ],
            log_file=self._directory / "catalog.log",
            working_directory=self._directory,
            # Two underscores stand for a hyphen, one for a dot.
            environment={
                "CATALOG_REST_PORT": str(self._port),
                "CATALOG_URI": f"jdbc:sqlite:{self._directory / 'catalog.db'}",
                "CATALOG_WAREHOUSE": f"file:{self._directory / 'warehouse'}",
                "CATALOG_IO__IMPL": "org.apache.iceberg.hadoop.HadoopFileIO",
            },
        )

    def _missing(self) -> str | None:
        try:
            with urllib.request.urlopen(f"{self.url}/v1/config", timeout=_PROBE_TIMEOUT_SECONDS):  # noqa: S310 - http
                return None
        except OSError as error:
            return str(error)

    def _found_port_taken(self, log_text: str) -> bool:
        return "Failed to bind" in log_text or "Address already in use" in log_text

    def _choose_ports(self) -> None:
        self._port = free_port()
