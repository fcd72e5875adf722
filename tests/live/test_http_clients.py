"""Clients of the daemon's HTTP address that never end what they began, while it publishes."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.scene import Scene
from tests.live.waiting import wait_for

CLIENTS = 2_000
DESCRIPTORS_MORE = 100
"""What its HTTP connections may cost the daemon, and what else it opened meanwhile."""


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """For this process, which is all of the clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < CLIENTS + 500:
        pytest.skip(f"a process here may have {hard} descriptors at most")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, CLIENTS + 500), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_idle_clients_cost_nothing(scene: Scene) -> None:
    """The daemon goes on, with few descriptors more, and answers whoever really asks; a name that isn't its own it refuses."""
    scene.workload.create(100)
    scene.daemon.start()
    scene.catch_up()
    address = scene.daemon.settings["http"]["listen"]
    host, _, port = address.rpartition(":")
    descriptors = Path(f"/proc/{scene.daemon.run.pid}/fd")
    before = len(os.listdir(descriptors))
    with contextlib.ExitStack() as stack:
        for _ in range(CLIENTS):
            client = stack.enter_context(socket.create_connection((host, int(port)), 60))
            with contextlib.suppress(ConnectionError):
                client.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127")
        scene.run_workload(20)
        scene.catch_up()
        assert len(os.listdir(descriptors)) - before < DESCRIPTORS_MORE
        wait_for("/metrics to answer", lambda: _answers(f"http://{address}/metrics"), 30)
    request = urllib.request.Request(f"http://{address}/status", headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError, match="421"):
        urllib.request.urlopen(request, timeout=30)  # noqa: S310 - the scheme is ours
    assert "Traceback" not in scene.daemon.run.log_tail()
    scene.check()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - the scheme is ours
            return b"tarantool_cdc_ready 1.0" in answer.read()
    except OSError:
        return False
