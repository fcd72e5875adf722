"""Servers as Docker containers, where an engine answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc.local.containers import ContainerRun, docker_engine_answers
from cdc.local.errors import LocalServerError
from cdc.local.options import TarantoolOptions
from cdc.local.servers import ServerKind, local_servers

needs_engine = pytest.mark.skipif(not docker_engine_answers(), reason="no Docker engine answers")


@needs_engine
@pytest.mark.live
@pytest.mark.timeout(900)  # images are pulled
def test_servers_run_as_containers(tmp_path: Path) -> None:
    with local_servers(tmp_path, ServerKind.CONTAINER) as servers:
        master = servers.start_tarantool("master")
        position = master.vclock()
        master.restart()
        assert master.vclock() == position
        replica = servers.start_tarantool("replica", TarantoolOptions(replication=[master.uri], read_only=True))
        assert replica.replicaset_uuid == master.replicaset_uuid
        master.kill()
        master.start()
        kafka = servers.start_kafka()
        address = kafka.bootstrap_servers
        kafka.restart()
        kafka.kill()
        kafka.start()
        assert kafka.bootstrap_servers == address


class EngineContainer:
    """A container as docker's library shows it, with a program that ends on the signals that it is given."""

    def __init__(self, ends_on: set[str]) -> None:
        self.status = "running"
        self.attrs: dict[str, Any] = {"State": {"ExitCode": 0, "Pid": 7}}
        self.signals: list[str] = []
        self._ends_on = ends_on

    def reload(self) -> None: ...

    def logs(self) -> bytes:
        return b"an earlier run\nthis run\n"

    def wait(self, timeout: float) -> None:
        import requests

        if self.status != "exited":
            raise requests.ConnectionError(f"read timed out after {timeout}")

    def kill(self, signal: str) -> None:
        assert self.status == "running", "Docker doesn't deliver signals to a paused container"
        self.signals.append(signal)
        if signal in self._ends_on:
            self.status = "exited"
            self.attrs["State"]["ExitCode"] = 143

    def pause(self) -> None:
        self.status = "paused"

    def unpause(self) -> None:
        self.status = "running"


def test_a_run_ends_on_request_also_when_it_is_paused() -> None:
    container = EngineContainer({"SIGTERM"})
    run = ContainerRun("the container", container, log_start=len(b"an earlier run\n"))
    assert (run.exit_status(), run.exit_status(0.01), run.pid, run.log_text()) == (None, None, 7, "this run\n")
    run.pause()
    assert run.exit_status() is None
    assert run.terminate() == 143
    assert run.terminate() == 143
    run.kill()
    assert container.signals == ["SIGTERM"]


def test_a_run_that_ignores_the_request_is_killed_and_reported() -> None:
    container = EngineContainer({"SIGKILL"})
    with pytest.raises(LocalServerError, match="was killed"):
        ContainerRun("the container", container, log_start=0).terminate(timeout_seconds=0.01)
    assert container.signals == ["SIGTERM", "SIGKILL"]
