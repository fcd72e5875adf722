"""What is said to memcached, and what it has in the end, whoever else writes and whatever comes twice."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import socket
from pathlib import Path

import pytest

from cdc.feeds.tap import wire
from cdc.feeds.tap.sink import Found, Write, command, is_newer, key_token, writes_of
from cdc.local.servers import LocalServers
from tests.feeds.tap.broker import Broker
from tests.feeds.tap.served import Served
from tests.live.waiting import wait_for


def test_of_each_key_only_the_last_is_written() -> None:
    frames = [
        wire.mutation(b"a", b"1", 0, 1, 1),
        wire.mutation(b"b", b"2", 0, 2, 2),
        wire.delete(b"a", 0, 3, 3),
        wire.engine_message(wire.EngineMessage.END_BACKFILL, 0, 4),
        wire.noop(5),
    ]
    assert writes_of(frames) == [Write(b"a", None, 3), Write(b"b", b"2", 2)]
    assert writes_of([*frames, wire.flush(6, 6), wire.mutation(b"c", b"3", 0, 7, 7)]) == [None, Write(b"c", b"3", 7)]


@pytest.mark.parametrize(
    ("key", "token"),
    [
        (b"users:1", b"users:1"),
        (b"a b", b"YSBi b"),
        (b"\xff\0", b"/wA= b"),
        (b"x" * 250, b"x" * 250),
        (b"x" * 251, None),
        (b" " * 188, None),
        (b"", None),
    ],
)
def test_keys(key: bytes, token: bytes | None) -> None:
    assert key_token(key) == token


@pytest.mark.parametrize(
    ("write", "found", "has_cas", "text"),
    [
        (Write(b"k", b"v", 7), None, True, b"ms k 1 E7 ME\r\nv\r\n"),
        (Write(b"k", b"v", 7), Found(5, 0), True, b"ms k 1 C5 E7\r\nv\r\n"),
        (Write(b"k", b"v", 2**32 + 7), Found(5, 6), False, b"ms k 1 C5 F7\r\nv\r\n"),
        (Write(b"a b", b"v", 7), Found(5, 6), False, b"ms YSBi 1 b C5 F7\r\nv\r\n"),
        (Write(b"k", None, 7), Found(5, 0), True, b"md k C5\r\n"),
        (Write(b"k", None, 7), None, True, None),
    ],
)
def test_commands(write: Write, found: Found | None, *, has_cas: bool, text: bytes | None) -> None:
    assert command(write, found, has_cas=has_cas) == text


def test_what_is_newer_stays() -> None:
    assert is_newer(7, Found(6, 0), has_cas=True)
    assert not is_newer(7, Found(7, 0), has_cas=True)
    assert is_newer(2**32 + 1, Found(0, 2**32 - 1), has_cas=False), "flags begin again"
    assert not is_newer(2**32 - 1, Found(0, 1), has_cas=False)


def _get(port: int, key: str) -> bytes | None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(f"get {key}\r\n".encode())
        data = b""
        while not data.endswith(b"END\r\n"):
            data += connection.recv(65536)
    lines = data.split(b"\r\n")
    return lines[1] if lines[0].startswith(b"VALUE") else None


def test_it_waits_for_a_memcached_as_long_as_it_takes(tmp_path: Path, servers: LocalServers) -> None:
    """Longer than sessions last, and whoever calls itself like it or takes everything over."""
    memcached = servers.start_memcached()
    memcached.kill()
    port = memcached.port
    rows = {"users:1": b"row"}
    with Served(tmp_path, rows, sink=port, session_timeout_ms=1_000) as served:
        with served.connect() as liar:
            liar.connect(f"memcached 127.0.0.1:{port}").start()
            liar.wait_closed()
            assert not liar.told
        with served.connect() as short:
            short.connect("short", is_takeover=True).start()
            short.wait_filled()
        wait_for("another session's end", lambda: served.server.session_count == 1)
        memcached.start()
        wait_for("the row", lambda: _get(port, "users:1") == b"row")
        served.tell(("1", b"new"))
        wait_for("the change", lambda: _get(port, "users:1") == b"new")


def test_what_answers_may_be_no_memcached(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, Served(tmp_path, sink=listening.getsockname()[1]) as served:
        assert served.server.sink is not None
        for _ in range(2):  # it is tried again
            listening.settimeout(30)
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"x" * 200_000)
                wait_for("the end", lambda: not connection.recv(65_536))  # noqa: B023 - at once
        assert "isn't a memcached" in (served.server.sink.error or "")


def test_a_memcached_is_kept_filled(tmp_path: Path, servers: LocalServers) -> None:
    memcached = servers.start_memcached()
    port = memcached.port
    rows = {f"users:{number}": b"row %d" % number for number in range(300)}
    with Served(tmp_path, rows, sink=port) as served:
        wait_for("all rows", lambda: all(_get(port, key) == value for key, value in rows.items()))
        served.tell(("1", b"new"), ("2", None), ("3", b"x" * 2_000_000))
        now = [b"new", None, None]
        wait_for("the changes", lambda: [_get(port, f"users:{number}") for number in (1, 2, 3)] == now)
        # One that is started anew has nothing, and is filled again though nothing changes.
        memcached.kill()
        memcached.start()
        wait_for("all rows again", lambda: all(_get(port, key) == value for key, value in rows.items()))


def test_a_full_memcached_keeps_its_mark(tmp_path: Path, servers: LocalServers) -> None:
    """Otherwise each start of the server would flush it."""
    memcached = servers.start_memcached()
    with Served(tmp_path, {"users:1": b"row"}, sink=memcached.port):
        wait_for("the row", lambda: _get(memcached.port, "users:1") == b"row")
        with socket.create_connection(("127.0.0.1", memcached.port), timeout=10) as connection:
            connection.sendall(b"mg tarantool-cdc:filled h\r\n")
            assert connection.recv(100) == b"HD h1\r\n", "it has been read since it was written"


def test_a_memcached_is_equal_whoever_is_killed(tmp_path: Path, servers: LocalServers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is killed knows less of the memcached than that has; one of them, or both, may lack what came meanwhile."""
    monkeypatch.setattr("cdc.feeds.tap.server._SAVE_SECONDS", 3600.0)
    memcached, broker = servers.start_memcached(), Broker()
    expected: dict[int, bytes] = {}
    seqs = itertools.count(1)
    broker.form(0, 1, "users")

    def change(key: int, value: str | None) -> None:
        broker.change(next(seqs), key, value)
        expected.pop(key, None)
        if value is not None:
            expected[key] = b'{"id":%d,"value":"%b"}' % (key, value.encode())

    def wait_equal() -> None:
        wait_for(
            "the rows that there are",
            lambda: {key: value for key in range(5) if (value := _get(memcached.port, f"users:{key}"))} == expected,
        )

    change(1, "a")
    change(2, "a")
    with Served(tmp_path / "first", broker=broker, sink=memcached.port):
        wait_equal()
        # What a kill would leave now.
        shutil.copytree(tmp_path / "first", tmp_path / "second")
        change(1, "b")
        change(2, None)
        change(3, "b")
        wait_equal()
    change(3, None)
    change(4, "c")
    with Served(tmp_path / "second", broker=broker, sink=memcached.port):
        wait_equal()
        memcached.kill()
        change(1, "d")
        change(4, None)
        memcached.start()
        wait_equal()
        shutil.copytree(tmp_path / "second", tmp_path / "third")
        change(2, "d")
        wait_equal()
    memcached.kill()
    change(1, None)
    change(3, "e")
    memcached.start()
    with Served(tmp_path / "third", broker=broker, sink=memcached.port):
        wait_equal()
