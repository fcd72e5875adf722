"""A REST catalog of Iceberg tables as a process of this machine: Iceberg's own one for tests, over a file of SQLite."""

from __future__ import annotations

from cdc.local import jars
from cdc.local.http_process import HttpProcess
from cdc.local.process import ChildProcess
from cdc.local.supervised import Supervised


class RestCatalog(HttpProcess):
    """A REST catalog. A restart keeps its tables."""

    @property
    def url(self) -> str:
        """The catalog's address; the port may change at the first start, and never after."""
        return self._root

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

    @property
    def _probe(self) -> str:
        return f"{self.url}/v1/config"

    def _found_port_taken(self, log_text: str) -> bool:
        return "Failed to bind" in log_text or "Address already in use" in log_text
