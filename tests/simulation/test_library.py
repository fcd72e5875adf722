"""The simulated threads, locks, events, polls and sockets against the real ones: the same questions, the same answers."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol

import pytest

from cdc.kafka.wake_pipe import WakePipe
from tests.fakes.master import Master
from tests.simulation.library import Library
from tests.simulation.network import Member, Network
from tests.simulation.scheduler import Killed, Process, Scheduler


class Ground(Protocol):
    """Where a case runs: its library, and how."""

    @property
    def library(self) -> Any:
        """`time`, `threading`, `select`, `socket` and `wake_pipe`."""

    def run(self, case: Callable[[], None]) -> None:
        """Run it in a thread of that library."""


class Real:
    """The standard library."""

    library = SimpleNamespace(time=time, threading=threading, select=select, socket=socket, wake_pipe=WakePipe)

    def run(self, case: Callable[[], None]) -> None:
        case()


class Simulated:
    """The world's."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(1)
        network = Network(self.scheduler, lambda *_: None)
        network.members = {3301: Member(Master(), 3301), 3302: Member(Master(), 3302, is_up=False)}
        self.library = Library(self.scheduler, network)
        network.descriptors = self.library.descriptors

    def run(self, case: Callable[[], None]) -> None:
        process = Process("case")
        task = self.scheduler.spawn(process, "main", case)
        assert self.scheduler.run(lambda: task.is_done, 60, check=lambda: None), "it hangs"


@pytest.fixture(params=[Real, Simulated])
def ground(request: pytest.FixtureRequest) -> Ground:
    made: Ground = request.param()
    return made


def test_an_event_wakes_who_waits(ground: Ground) -> None:
    library, woken = ground.library, []

    def case() -> None:
        event = library.threading.Event()
        assert not event.wait(0.01)
        thread = library.threading.Thread(target=lambda: woken.append(event.wait(10)), name="waiter", daemon=True)
        thread.start()
        assert thread.is_alive()
        event.set()
        thread.join()
        assert not thread.is_alive()
        assert event.is_set()
        assert event.wait(0)

    ground.run(case)
    assert woken == [True]


def test_a_condition_lets_the_other_have_the_lock(ground: Ground) -> None:
    library, seen = ground.library, []

    def case() -> None:
        condition = library.threading.Condition()

        def other() -> None:
            with condition:
                seen.append("other")
                condition.notify_all()

        with condition:
            library.threading.Thread(target=other, name="other", daemon=True).start()
            assert condition.wait_for(lambda: bool(seen), 10)
            assert not condition.wait_for(lambda: False, 0.01)

    ground.run(case)
    assert seen == ["other"]


def test_a_lock_keeps_others_out(ground: Ground) -> None:
    library = ground.library
    inside: list[int] = []

    def case() -> None:
        lock = library.threading.Lock()

        def turn() -> None:
            with lock:
                inside.append(1)
                assert len(inside) == 1
                library.time.sleep(0.001)
                inside.pop()

        threads = [library.threading.Thread(target=turn, name=f"turn {number}") for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    ground.run(case)


def test_time_passes_while_one_sleeps(ground: Ground) -> None:
    def case() -> None:
        clock = ground.library.time
        began, wall = clock.monotonic(), clock.time_ns()
        clock.sleep(0.02)
        assert clock.monotonic() >= began + 0.02
        assert clock.time_ns() >= wall + 20_000_000
        assert abs(clock.time() - clock.time_ns() / 1e9) < 1

    ground.run(case)


def test_a_pipe_is_readable_from_the_first_wake_to_the_clear(ground: Ground) -> None:
    library = ground.library

    def case() -> None:
        pipe = library.wake_pipe()
        poller = library.select.poll()
        poller.register(pipe.fileno(), library.select.POLLIN)
        assert poller.poll(1) == []
        library.threading.Thread(target=pipe.wake, name="waker", daemon=True).start()
        assert [number for number, _ in poller.poll(10_000)] == [pipe.fileno()]
        pipe.wake()
        pipe.clear()
        assert poller.poll(0) == []

    ground.run(case)


def connected(ground: Ground) -> tuple[Any, Callable[[], None]]:
    """A connection to something that greets with 128 bytes, and how to cut it."""
    if isinstance(ground, Simulated):
        found = ground.library.socket.create_connection(("127.0.0.1", 3301), timeout=1)
        return found, found.link.cut
    listener = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(listener.getsockname(), timeout=1)
    far, _ = listener.accept()
    listener.close()
    far.sendall(b"x" * 128)

    def cut() -> None:
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        far.close()

    return near, cut


def test_a_socket_is_readable_from_its_low_water_mark_on(ground: Ground) -> None:
    library = ground.library

    def case() -> None:
        near, cut = connected(ground)
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        near.setblocking(False)
        poller = library.select.poll()
        poller.register(near, library.select.POLLIN)
        assert poller.poll(10_000)
        data = near.recv(28)
        assert len(data) == 28
        near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1000)
        assert not poller.poll(10)
        assert len(near.recv(1000)) == 100, "what is there can be read all the same"
        with pytest.raises(BlockingIOError):
            near.recv(1)
        cut()
        assert poller.poll(10_000)
        with pytest.raises(ConnectionResetError):
            near.recv(1)
        near.close()

    ground.run(case)


def test_nobody_listens(ground: Ground) -> None:
    def case() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            free = listener.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            ground.library.socket.create_connection(("127.0.0.1", 3302 if isinstance(ground, Simulated) else free), timeout=1)

    ground.run(case)


def test_what_is_killed_goes_no_further() -> None:
    ground, steps = Simulated(), []
    process = Process("victim")

    def victim() -> None:
        try:
            steps.append("begins")
            ground.library.time.sleep(1)
            steps.append("goes on")
        except Killed:
            steps.append("killed")
            raise

    ground.scheduler.spawn(process, "main", victim)
    assert not ground.scheduler.run(lambda: False, 0.5, check=lambda: None)
    ground.scheduler.kill(process)
    assert not ground.scheduler.run(lambda: False, 5, check=lambda: None)
    assert steps == ["begins", "killed"]
