"""Accepting connections, also where a process has no descriptor left for one."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc.feeds.tap.listener import Listener
from tests.feeds.tap.served import Served
from tests.live.waiting import wait_for

ROWS = {f"users:{number}": b"row %d" % number for number in range(10)}


class Refusals:
    """Lets the system refuse to accept, for as long as `reason` is an error's number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reason = 0
        self.count = 0
        accept = socket.socket.accept

        def refuse(listening: socket.socket) -> Any:
            if self.reason:
                self.count += 1
                raise OSError(self.reason, os.strerror(self.reason))
            return accept(listening)

        monkeypatch.setattr(socket.socket, "accept", refuse)


@pytest.mark.parametrize("reason", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_without_descriptors_it_waits_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reason: int
) -> None:
    """asyncio's own server logs a traceback, and plans a retry, for each place of its backlog."""
    refusals = Refusals(monkeypatch)
    with capture_logs() as log, Served(tmp_path, ROWS) as served:
        refusals.reason = reason
        clients = [served.connect() for _ in range(3)]
        wait_for("some attempts", lambda: refusals.count >= 3)
        assert refusals.count < 20
        refusals.reason = 0
        for number, client in enumerate(clients):
            client.connect(str(number)).start()
            client.wait_filled()
            client.close()
    said = [line for line in log if line["event"].startswith("no connection can be accepted")]
    assert [line["reason"] for line in said] == [os.strerror(reason)]
    assert ("open files" in said[0]["event"]) is (reason in {errno.EMFILE, errno.ENFILE})
    assert not caplog.records


def test_a_client_that_is_gone_again_is_no_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = Refusals(monkeypatch)
    with capture_logs() as log, Served(tmp_path, ROWS) as served:
        refusals.reason = errno.ECONNABORTED
        with served.connect() as client:
            wait_for("an attempt", lambda: refusals.count)
            refusals.reason = 0
            client.connect("a").start()
            client.wait_filled()
    assert not [line for line in log if line["event"].startswith("no connection can be accepted")]


def test_a_name_of_several_addresses() -> None:
    """All of them are listened on; one of a family that this machine doesn't have is left out."""

    async def found_addresses() -> list[tuple[Any, ...]]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.2", 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("203.0.113.1", 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
        ]

    async def heard() -> list[str]:
        found: list[str] = []
        loop = asyncio.get_running_loop()
        loop.getaddrinfo = lambda *_, **__: found_addresses()  # type: ignore[method-assign]

        async def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            found.append(writer.get_extra_info("sockname")[0])
            writer.close()

        listener = await Listener.opened("shop", 0, connected)
        addresses = listener.addresses
        for address in addresses:
            reader, writer = await asyncio.open_connection(*address)
            assert await reader.read() == b""
            writer.close()
        await listener.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*addresses[0])
        return found

    assert asyncio.run(heard()) == ["127.0.0.2", "127.0.0.1"]


@pytest.mark.parametrize("host", ["203.0.113.1", "no-such-host.invalid"])
def test_an_address_that_cannot_be_used(host: str) -> None:
    async def connected(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        raise AssertionError

    with pytest.raises(OSError, match=r"assign requested address|Name or service|Temporary failure"):
        asyncio.run(_opened(host, connected))


async def _opened(host: str, connected: Any) -> None:
    await Listener.opened(host, 0, connected)
