"""Clients that are slow, silent, many, or lie, all at once, beside a daemon at work: nothing of it reaches the daemon.

The work gives a space another name every second or so, so that the thousand are filled again all the time: the worst of it.
"""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import threading
import time
from pathlib import Path
from typing import Any, Final, Self

import pytest

from cdc.feeds.tap import wire
from cdc.feeds.tap.keys import vbucket_of
from cdc.feeds.tap.wire import ConnectFlag, Opcode, Status
from tests.live.scene import Scene
from tests.live.tap import TapProcess, decoded, expected_contents
from tests.live.waiting import wait_for

_CLIENTS: Final = 1_000
_STALLED: Final = 100
_SILENT: Final = 100
_SECONDS: Final = 20.0
_TAKEN_VBUCKET: Final = 2
_RSS_BYTES_MAX: Final = 800e6
_LOAD: Final = """
local space, count = box.schema.space.create('load'), 20000
space:create_index('pk')
for id = 1, count do space:replace{id, 0, string.rep('x', 200)} end
is_loading = true
require('fiber').create(function()
    local number = 0
    while is_loading do
        box.begin()
        for _ = 1, 20 do number = number + 1 space:replace{number % count + 1, number, string.rep('y', 200 + number % 300)} end
        box.commit()
        require('fiber').sleep(0.01)
    end
end)
"""
"""What is written once Kafka is there again is ten times as much as the server's buffer has room for."""
_FUTURE: Final = (2**64 - 1).to_bytes(8, "big")


def _connect(name: str, flags: int, value: bytes = b"") -> bytes:
    return wire.request(Opcode.TAP_CONNECT, name.encode(), flags.to_bytes(4, "big"), value)


class Attack:
    """All of them, as long as the context lasts."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._chance = random.Random(seed)
        self._is_over = threading.Event()
        self._sockets: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()
        self.told_count = 0
        """Messages that the thousand took."""
        self.lie_count = 0
        self.dump_count = 0
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._take, self._lie, self._dump)]

    def __enter__(self) -> Self:
        for number in range(_CLIENTS):
            sock = self._open()
            vbucket = (number % 1024).to_bytes(2, "big")
            flags = ConnectFlag.BACKFILL | ConnectFlag.LIST_VBUCKETS | ConnectFlag.SUPPORT_ACK
            sock.sendall(_connect(f"one of many {number}", flags, _FUTURE + b"\0\1" + vbucket))
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ, bytearray())
        for number in range(_STALLED):
            self._open(4096).sendall(_connect(f"stalled {number}", ConnectFlag.SUPPORT_ACK if number % 2 else 0))
        for number in range(_SILENT):
            if number % 2:
                self._open().sendall(_connect("half", 0)[: number % 24 + 1])
            else:
                self._open()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)
        for sock in self._sockets:
            sock.close()

    def _open(self, room_bytes: int | None = None) -> socket.socket:
        """A connection; `room_bytes` is what the kernel takes for it that nobody reads."""
        sock = socket.socket()
        if room_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room_bytes)
        sock.settimeout(60)
        sock.connect(("127.0.0.1", self._port))
        self._sockets.append(sock)
        return sock

    def _take(self) -> None:
        """The thousand take what they get, and acknowledge it."""
        while not self._is_over.is_set():
            for key, _ in self._selector.select(0.2):
                sock, buffer = key.fileobj, key.data
                assert isinstance(sock, socket.socket)
                data = b""
                with contextlib.suppress(OSError):
                    data = sock.recv(65_536)
                if not data:
                    self._selector.unregister(sock)
                    continue
                buffer += data
                while len(buffer) >= 24 and len(buffer) >= (size := 24 + int.from_bytes(buffer[8:12], "big")):
                    if buffer[1] != Opcode.NOOP and buffer[27] & 1:
                        with contextlib.suppress(OSError):
                            sock.sendall(wire.response(buffer[1], Status.OK, int.from_bytes(buffer[12:16], "big")))
                    self.told_count += 1
                    del buffer[:size]

    def _lie(self) -> None:
        lies = [
            b"GET / HTTP/1.1\r\n\r\n" * 10,
            bytes(24),
            b"\x80\x40\xff\xff\xff\0\0\0\xff\xff\xff\xff" + bytes(12),
            _connect("x" * 1024, 0x3F, _FUTURE + b"\x80\0" + bytes(65_536)),
            _connect("x" * 2000, 0),
            _connect("liar", ConnectFlag.LIST_VBUCKETS, b"\xff\xff"),
            _connect("liar", ConnectFlag.SUPPORT_ACK) + wire.response(Opcode.TAP_MUTATION, Status.OUT_OF_MEMORY, 1),
            _connect("liar", ConnectFlag.SUPPORT_ACK) + b"".join(wire.response(0x41, Status.OK, n) for n in range(500)),
            _connect("liar", 0) + wire.request(Opcode.GET, b"key"),
            _connect(
                "one of many 1", ConnectFlag.TAKEOVER | ConnectFlag.LIST_VBUCKETS, b"\0\1" + _TAKEN_VBUCKET.to_bytes(2, "big")
            ),
            wire.request(Opcode.SASL_AUTH, b"PLAIN", value=bytes(70_000)),
            wire.request(Opcode.NOOP) * 1000,
            self._chance.randbytes(5_000),
        ]
        while not self._is_over.wait(0.01):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1) as sock:
                sock.sendall(self._chance.choice(lies))
                sock.settimeout(0.05)
                sock.recv(100)
            self.lie_count += 1

    def _dump(self) -> None:
        """Views of the store are wanted all the time."""
        while not self._is_over.is_set():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=60) as sock:
                sock.sendall(_connect("", ConnectFlag.DUMP))
                while sock.recv(65_536) and not self._is_over.is_set():
                    pass
            self.dump_count += 1


class Measured:
    """What a daemon and a TAP server are like for a while."""

    def __init__(self, scene: Scene, tap: TapProcess, seconds: float) -> None:
        lags: list[float] = []
        started, self.seq = time.monotonic(), 0
        before, tap_before = _cpu_seconds(scene.daemon.run.pid), _cpu_seconds(tap.process.run.pid)
        first = scene.daemon.status() or {}
        while time.monotonic() - started < seconds:
            status = scene.daemon.status()
            assert status is not None, "the daemon's status can be asked for at any time"
            lags.append(status["lag_seconds"])
            self.seq = status["position"]["seq"] - first["position"]["seq"]
            time.sleep(0.2)  # a sample
        self.seconds = time.monotonic() - started
        self.lag_seconds = sorted(lags)
        self.cpu_seconds = _cpu_seconds(scene.daemon.run.pid) - before
        self.tap_load = (_cpu_seconds(tap.process.run.pid) - tap_before) / self.seconds
        self.store_bytes = (Path(scene.daemon.settings["state"]["path"]) / "images" / "data.mdb").stat().st_size
        self.tap_rss_bytes = _rss_bytes(tap.process.run.pid)

    def __str__(self) -> str:
        lags = self.lag_seconds
        microseconds = 1e6 * self.cpu_seconds / max(1, self.seq)
        return (
            f"{self.seq / self.seconds:.0f} events/s at {microseconds:.0f} µs of the daemon's CPU, "
            f"its lag {lags[len(lags) // 2]:.2f} s in the middle and {lags[-1]:.2f} s at most, "
            f"its store {self.store_bytes / 1e6:.0f} MB; the TAP server has {self.tap_rss_bytes / 1e6:.0f} MB "
            f"and {self.tap_load:.0%} of a core"
        )


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _rss_bytes(pid: int) -> int:
    """The memory that is its own: mapped pages of a store are the system's cache of a file."""
    status = dict(row.split(":", 1) for row in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) * 1024


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_nothing_of_an_attack_reaches_the_daemon(scene: Scene, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    scene.workload.create(20_000)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    settings: dict[str, Any] = {"clients_max": 1_400, "stall_timeout_ms": 5_000, "buffer_bytes_max": 4 << 20}
    with TapProcess(scene, **settings) as tap:
        tap.start()
        with tap.connect() as good:
            good.connect("good").start()
            good.wait_filled()
            scene.workload.start(pause=0.01, rows_max=300)
            measured = [Measured(scene, tap, _SECONDS)]
            with Attack(tap.port, seed) as attack:
                measured += [Measured(scene, tap, _SECONDS), Measured(scene, tap, _SECONDS)]
                names = [client["name"] for client in tap.status()["clients"]]
            measured.append(Measured(scene, tap, _SECONDS))
            scene.workload.stop()
        with capsys.disabled():
            for name, what in zip(("calm", "attacked", "still", "after"), measured, strict=True):
                print(f"\n{name}: {what}", end="")
            print(f"\n{attack.told_count} messages taken, {attack.lie_count} lies, {attack.dump_count} dumps")
        scene.catch_up()
        expected = expected_contents(scene)
        # Its own process may have been too busy to acknowledge in time; then it goes on where it was.
        with tap.connect() as again:
            again.connect("good").start(good)
            wait_for("what the master has", lambda: decoded(again.contents) == expected)
    calm, _, second, _ = measured
    many = sum(name.startswith("one of many") for name in names)
    assert many >= _CLIENTS - 1, "one has lost its name to a liar"
    assert attack.lie_count > 100
    assert max(what.tap_rss_bytes for what in measured) < _RSS_BYTES_MAX, "rows of up to 1 MB wait for a thousand clients"
    # Views pin pages for at most their time, whoever wants them.
    assert second.store_bytes < 2 * calm.store_bytes + 50e6
    assert not [trouble for trouble in scene.daemon.troubles() if "reader" in trouble]
    scene.check()


def _others(contents: dict[str, Any]) -> dict[str, Any]:
    """Without those of the vbucket that a liar has taken over."""
    return {key: row for key, row in contents.items() if vbucket_of(key.encode(), 1023) != _TAKEN_VBUCKET}


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("away_seconds", [60, 120])
def test_kafkas_absence_costs_nobody_the_connection(
    frail_scene: Scene, seed: int, away_seconds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """What comes at once when Kafka is there again went through the buffer before the thousand were told of any of it."""
    scene, rss = frail_scene, [0]
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    with TapProcess(scene, clients_max=1_400, stall_timeout_ms=5_000, buffer_bytes_max=4 << 20) as tap:
        tap.start()

        def many() -> int:
            rss.append(_rss_bytes(tap.process.run.pid))
            return sum(client["name"].startswith("one of many") for client in tap.status()["clients"])

        with tap.connect() as good, Attack(tap.port, seed) as attack:
            good.connect("good").start()
            scene.tarantool.eval(_LOAD)
            time.sleep(25)  # the attack as it is
            scene.kafka.stop()
            time.sleep(away_seconds)
            scene.kafka.start()
            time.sleep(30)
            scene.tarantool.eval("is_loading = false")
            wait_for("the thousand to be there", lambda: many() >= _CLIENTS - 1)
        scene.catch_up()
        expected = expected_contents(scene)
        # As above: its own process may have been too busy to acknowledge in time.
        with tap.connect() as again:
            again.connect("good").start(good)
            wait_for("what the master has", lambda: _others(decoded(again.contents)) == _others(expected))
        with capsys.disabled():
            print(f"\n{attack.told_count} messages taken, {max(rss) / 1e6:.0f} MB at the most")
    said = tap.process.run.log_text()
    assert not said.count("more than tap.buffer_bytes_max keeps")
    assert max(rss) < _RSS_BYTES_MAX
