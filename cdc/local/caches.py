"""Redis and memcached as processes of this machine. Both lose all data when they end."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

from cdc.local.errors import LocalServerError
from cdc.local.ports import free_port
from cdc.local.process import ChildProcess
from cdc.local.server import LocalServer
from cdc.local.supervised import Supervised

_PROBE_TIMEOUT_SECONDS = 2
_TAKEN_STATUS_LINES = ("Address already in use", "failed to listen on TCP port")


class Cache(LocalServer):
    """Common part of both: a port, a command, and a question whose answer contains the id of the server's process."""

    program = ""
    question = b""
    process = ""
    """Text before the process's id in the answer."""

    def __init__(self, directory: Path, *, port: int | None = None, name: str = "") -> None:
        """Prepare the server, without starting it. Its log is in `directory`."""
        super().__init__(name or self.program, may_move=port is None)
        self._directory = directory.absolute()
        self._port = free_port() if port is None else port

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1; it may change at the first start, and never after."""
        return self._port

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"127.0.0.1:{self._port}"

    def _arguments(self) -> list[str]:
        raise NotImplementedError

    def _spawn(self) -> Supervised:
        found = shutil.which(self.program)
        if found is None:
            raise LocalServerError(
                f"There is no `{self.program}` on PATH.", f"Install it: apt-get install {self.program}, or `make setup`."
            )
        self._directory.mkdir(parents=True, exist_ok=True)
        return ChildProcess(
            self.name,
            [found, *self._arguments()],
            log_file=self._directory / f"{self.program}.log",
            working_directory=self._directory,
        )

    def _missing(self) -> str | None:
        try:
            with socket.create_connection(("127.0.0.1", self._port), _PROBE_TIMEOUT_SECONDS) as connection:
                connection.sendall(self.question)
                heard = connection.recv(4096).decode(errors="replace")
        except OSError as error:
            return str(error)
        return None if self._is_ours(heard) else f"something else answers on its port: {heard[:200]!r}"

    def _is_ours(self, heard: str) -> bool:
        return f"{self.process}{self.pid}\r\n" in heard

    def _found_port_taken(self, log_text: str) -> bool:
        return any(line in log_text for line in _TAKEN_STATUS_LINES)

    def _choose_ports(self) -> None:
        self._port = free_port()


class Redis(Cache):
    """A Redis that writes nothing to disk."""

    program = "redis-server"
    question, process = b"INFO server\r\n", "process_id:"

    @property
    def url(self) -> str:
        """`redis://host:port/0`."""
        return f"redis://{self.address}/0"

    def _arguments(self) -> list[str]:
        return ["--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]


class Memcached(Cache):
    """A memcached of 64 MB."""

    program = "memcached"
    question, process = b"stats\r\n", "STAT pid "

    def _arguments(self) -> list[str]:
        user = ["-u", "nobody"] if os.getuid() == 0 else []  # otherwise memcached refuses to run as root
        return ["-l", "127.0.0.1", "-p", str(self._port), "-U", "0", "-m", "64", *user]
