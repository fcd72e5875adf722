"""The interface of servers for the demo and the tests, whether a server is a process or a container."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, Self


class Server(Protocol):
    """A server that keeps its port and its data from one start to the next."""

    name: str

    def start(self) -> None:
        """Start it and return when it is ready.

        Raises `LocalServerError`, with its log's last lines, if it doesn't become ready.
        """

    def stop(self) -> None:
        """Stop it cleanly. Stopping a server that isn't running is allowed."""

    def kill(self) -> None:
        """End it as a crash would. Killing a server that isn't running is allowed."""

    def restart(self) -> None:
        """Stop and start."""

    def pause(self) -> None:
        """Freeze it: its sockets stay open and nothing answers."""

    def resume(self) -> None:
        """Let it continue after `pause`."""

    def close(self) -> None:
        """Stop it for good."""

    @property
    def is_running(self) -> bool:
        """Whether it has been started and hasn't ended; a paused server runs."""

    @property
    def pid(self) -> int:
        """The process id of the running server."""

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines that its latest run has printed."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class TarantoolServer(Server, Protocol):
    """A Tarantool instance that tests may fill with Lua."""

    @property
    def work_dir(self) -> Path:
        """Directory of its .snap and .xlog files."""

    @property
    def port(self) -> int: ...

    @property
    def uri(self) -> str:
        """`user:password@host:port` of the user for replication."""

    @property
    def uuid(self) -> str:
        """UUID of the instance."""

    @property
    def replicaset_uuid(self) -> str: ...

    def vclock(self) -> dict[int, int]:
        """Return the last LSN of each replica id."""

    def eval(self, expression: str, *arguments: Any) -> list[Any]:
        """Run Lua as `admin`; see `client.Client.eval`."""

    def eval_raw(self, expression: str, *arguments: Any) -> bytes:
        """Run Lua as `admin`; see `client.Client.eval_raw`."""


class KafkaServer(Server, Protocol):
    """A Kafka cluster of one node."""

    @property
    def bootstrap_servers(self) -> str:
        """`host:port`."""
