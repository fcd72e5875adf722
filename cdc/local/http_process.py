"""A server that speaks HTTP as a process of this machine: on a port of its own, and there once one of its pages answers."""

from __future__ import annotations

import urllib.request
from abc import abstractmethod
from pathlib import Path

from cdc.local.ports import free_port
from cdc.local.server import LocalServer

PROBE_TIMEOUT_SECONDS = 2


class HttpProcess(LocalServer):
    """Such a server. Its files are in a directory; its port may change at the first start, and never after."""

    def __init__(self, directory: Path, name: str, port: int | None = None) -> None:
        """Prepare the server, without starting it. A `port` that is given never changes."""
        super().__init__(name, may_move=port is None)
        self._directory = directory.absolute()
        self._port = free_port() if port is None else port

    @property
    def _root(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    @abstractmethod
    def _probe(self) -> str:
        """The address that answers once the server is there."""

    def _missing(self) -> str | None:
        try:
            with urllib.request.urlopen(self._probe, timeout=PROBE_TIMEOUT_SECONDS):  # noqa: S310 - http
                return None
        except OSError as error:
            return str(error)

    def _choose_ports(self) -> None:
        self._port = free_port()
