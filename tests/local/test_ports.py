"""Free ports: each is given to one process, once."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from cdc.local.ports import free_port


def test_a_port_is_free_and_given_once() -> None:
    ports = [free_port() for _ in range(200)]
    assert len(set(ports)) == len(ports)
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


def test_a_port_is_given_to_one_process() -> None:
    """Also while nothing listens on it."""
    port = free_port()
    ask = f"from cdc.local import ports; print(ports._can_bind({port}), ports._can_lock(ports._open_locks(), {port}))"
    answer = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["True", "False"]


def test_ports_are_none_that_the_system_gives_to_outgoing_connections() -> None:
    system_range = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(system_range.read_text().split()[0]) if system_range.exists() else 49152
    if first >= 32_000:
        assert free_port() < first
