"""The parts of the standard library by which the product meets time, threads and the network, simulated.

Each class has the names of the module that it stands for, as far as the product uses them; tests/simulation/test_library.py puts
the same questions to both. `Installed` puts them into the product's modules, and takes them out again.
"""

from __future__ import annotations

import errno
import importlib
import os
import random
import select
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final, Protocol

from tests.simulation.scheduler import Process, Scheduler, Task, Waiters

EPOCH_SECONDS: Final = 1_732_000_000.0
_DESCRIPTORS_FROM: Final = 1_000_000
"""Above any descriptor of the system, so that a mistake shows."""


class Readable(Protocol):
    """What can be polled."""

    def is_readable(self) -> bool:
        """Whether there is something to read."""

    @property
    def waiters(self) -> Waiters:
        """Who polls it."""


class Descriptors:
    """Numbers of what can be polled."""

    def __init__(self) -> None:
        self._next = _DESCRIPTORS_FROM
        self.open: dict[int, Readable] = {}

    def add(self, thing: Readable) -> int:
        """Give it a number."""
        self._next += 1
        self.open[self._next] = thing
        return self._next


class Lock:
    """threading.Lock, which also knows whose it is, as a Condition's lock does."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiters = Waiters(scheduler)
        self._holder: object = None
        self._depth = 0

    def acquire(self) -> bool:
        """Wait for it."""
        scheduler = self._scheduler
        scheduler.touch()
        me = scheduler.current or scheduler
        if self._holder is not me:
            self._waiters.wait_for(lambda: self._holder is None, None)
            self._holder = me
        self._depth += 1
        return True

    def release(self) -> None:
        """Let the next have it."""
        self._depth -= 1
        if not self._depth:
            self._holder = None
            self._waiters.wake()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def set_aside(self) -> int:
        """Release it wholly, for a wait."""
        depth, self._depth = self._depth, 1
        self.release()
        return depth

    def take_back(self, depth: int) -> None:
        """Have it again as before."""
        self.acquire()
        self._depth = depth


class Condition(Lock):
    """threading.Condition."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._notified = Waiters(scheduler)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification."""
        depth = self.set_aside()
        is_woken = self._notified.wait(timeout)
        self.take_back(depth)
        return is_woken

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until it holds."""
        deadline = None if timeout is None else self._scheduler.now + timeout
        while not (found := predicate()):
            left = None if deadline is None else deadline - self._scheduler.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify_all(self) -> None:
        """Wake who waits."""
        self._notified.wake()

    notify = notify_all


class Event:
    """threading.Event."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiters = Waiters(scheduler)
        self._is_set = False

    def is_set(self) -> bool:
        """Whether it is."""
        self._scheduler.check_alive()
        return self._is_set

    def set(self) -> None:
        """Wake who waits."""
        self._is_set = True
        self._waiters.wake()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for it."""
        self._scheduler.touch()
        return self._waiters.wait_for(lambda: self._is_set, timeout)


class Thread:
    """threading.Thread."""

    def __init__(self, scheduler: Scheduler, target: Callable[[], None], name: str, daemon: bool = False) -> None:  # noqa: ARG002 - as the library has it
        self._scheduler = scheduler
        self._target = target
        self._name = name
        self._task: Task | None = None

    def start(self) -> None:
        """Begin."""
        assert self._scheduler.current is not None
        self._task = self._scheduler.spawn(self._scheduler.current.process, self._name, self._target)

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._task is not None and not self._task.is_done

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        scheduler, task = self._scheduler, self._task
        assert task is not None
        deadline = None if timeout is None else scheduler.now + timeout
        while not task.is_done:
            left = None if deadline is None else deadline - scheduler.now
            if left is not None and left <= 0:
                return
            assert scheduler.current is not None
            task.joined.append(scheduler.current)
            scheduler.block(left)


class Poll:
    """select.poll."""

    def __init__(self, scheduler: Scheduler, descriptors: Descriptors) -> None:
        self._scheduler = scheduler
        self._descriptors = descriptors
        self._watched: dict[int, int] = {}

    def register(self, what: Any, events: int) -> None:
        """Watch it."""
        number = what if isinstance(what, int) else what.fileno()
        if number < 0 or number not in self._descriptors.open:
            raise ValueError(f"{number} can't be polled")
        self._watched[number] = events

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        """Wait for one of them."""
        scheduler, open_ = self._scheduler, self._descriptors.open
        scheduler.touch()
        deadline = None if timeout_ms is None else scheduler.now + timeout_ms / 1000
        while True:
            ready = [(number, events) for number, events in self._watched.items() if self._is_ready(number, events)]
            left = None if deadline is None else deadline - scheduler.now
            if ready or (left is not None and left <= 0):
                return ready
            task = scheduler.current
            assert task is not None
            lists = [open_[number].waiters for number in self._watched if number in open_]
            for waiters in lists:
                waiters._tasks.append(task)
            scheduler.block(left)
            for waiters in lists:
                if task in waiters._tasks:
                    waiters._tasks.remove(task)

    def _is_ready(self, number: int, events: int) -> bool:
        thing = self._descriptors.open.get(number)
        return thing is None or bool(events & select.POLLOUT) or thing.is_readable()


class WakePipe:
    """cdc.kafka.wake_pipe.WakePipe."""

    def __init__(self, scheduler: Scheduler, descriptors: Descriptors) -> None:
        self.waiters = Waiters(scheduler)
        self._is_woken = False
        self._number = descriptors.add(self)

    def is_readable(self) -> bool:
        """Whether somebody woke it."""
        return self._is_woken

    def fileno(self) -> int:
        """Return its number."""
        return self._number

    def wake(self) -> None:
        """Wake who polls."""
        self._is_woken = True
        self.waiters.wake()

    def clear(self) -> None:
        """Forget it."""
        self._is_woken = False


class System:
    """os: files are real ones, and `fsync` does what the world says."""

    def __init__(self) -> None:
        self.fsync: Callable[[int], None] = lambda _: None

    @staticmethod
    def getpid() -> int:
        """Return the same number for each process."""
        return 4711

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class Network(Protocol):
    """Who answers behind an address."""

    def connect(self, address: tuple[str, int], timeout: float) -> Any:
        """Return a socket. Raises OSError."""


class Library:
    """All of it, for one world."""

    def __init__(self, scheduler: Scheduler, network: Network) -> None:
        self.scheduler = scheduler
        self.descriptors = Descriptors()
        self.skew_seconds = 0.0
        """By how much the wall clock is off."""
        self._random = random.Random(scheduler.random.getrandbits(32))
        self.time = SimpleNamespace(
            monotonic=self._monotonic, time=self._time, time_ns=lambda: int(self._time() * 1e9), sleep=self._sleep
        )
        self.threading = SimpleNamespace(
            Lock=lambda: Lock(scheduler),
            Condition=lambda: Condition(scheduler),
            Event=lambda: Event(scheduler),
            Thread=lambda target, name="", daemon=False: Thread(scheduler, target, name, daemon),
        )
        self.select = SimpleNamespace(
            poll=lambda: Poll(scheduler, self.descriptors), POLLIN=select.POLLIN, POLLOUT=select.POLLOUT
        )
        self.socket = SimpleNamespace(
            create_connection=network.connect,
            gethostname=lambda: "machine",
            **{name: getattr(socket, name) for name in ("IPPROTO_TCP", "TCP_NODELAY", "SOL_SOCKET", "SO_RCVLOWAT", "SHUT_RDWR")},
        )
        self.random = SimpleNamespace(uniform=self._random.uniform)
        self.uuid = SimpleNamespace(uuid4=lambda: uuid.UUID(int=self._random.getrandbits(128), version=4), UUID=uuid.UUID)
        self.gc = SimpleNamespace(collect=lambda: 0, freeze=lambda: None, set_threshold=lambda *_: None)
        self.os = System()

    def wake_pipe(self) -> WakePipe:
        """Stand for the class WakePipe."""
        return WakePipe(self.scheduler, self.descriptors)

    def wait(self, futures: Iterable[Future[Any]], timeout: float) -> None:
        """concurrent.futures.wait, whose result isn't used."""
        deadline, futures = self.scheduler.now + timeout, list(futures)
        while self.scheduler.now < deadline and not all(one.done() for one in futures):
            self.scheduler.block(min(0.002, deadline - self.scheduler.now))

    def _monotonic(self) -> float:
        self.scheduler.touch()
        return 1000.0 + self.scheduler.now

    def _time(self) -> float:
        return EPOCH_SECONDS + self.scheduler.now + self.skew_seconds

    def _sleep(self, seconds: float) -> None:
        self.scheduler.block(seconds)


REPLACED: Final = {
    "cdc.commands.position": ("threading", "time"),
    "cdc.commands.verify": ("time",),
    "cdc.daemon.admission": ("lock", "os"),
    "cdc.daemon.backoff": ("random",),
    "cdc.daemon.beginning": ("threading",),
    "cdc.daemon.bucket_watch": ("time",),
    "cdc.daemon.clock": ("time",),
    "cdc.daemon.follower": ("time",),
    "cdc.daemon.kept_logs": ("time",),
    "cdc.daemon.members": ("time",),
    "cdc.daemon.monitor": ("threading", "time", "uuid", "wait"),
    "cdc.daemon.row_path": ("gc", "threading"),
    "cdc.daemon.runner": ("select", "time"),
    "cdc.daemon.snapshot_loader": ("gc",),
    "cdc.daemon.standby": ("threading", "time"),
    "cdc.daemon.standby_store": ("socket", "time"),
    "cdc.daemon.supervisor": ("gc", "threading", "uuid"),
    "cdc.kafka.broker_limits": ("time",),
    "cdc.kafka.bucket_reader": ("time",),
    "cdc.kafka.checkpoint_tail": ("time",),
    "cdc.kafka.clients": ("Admin", "BatchProducer", "Consumer", "Producer"),
    "cdc.kafka.delivery": ("time",),
    "cdc.kafka.ends": ("time",),
    "cdc.kafka.exchange": ("WakePipe", "threading", "time"),
    "cdc.kafka.hanging": ("time",),
    "cdc.kafka.life_watch": ("threading", "time"),
    "cdc.kafka.losses": ("time",),
    "cdc.kafka.lost_topics": ("time",),
    "cdc.kafka.publisher": ("threading", "time"),
    "cdc.kafka.publisher_loop": ("time",),
    "cdc.kafka.reach": ("time",),
    "cdc.kafka.readability": ("threading", "time"),
    "cdc.kafka.readers_view": ("time",),
    "cdc.kafka.sender": ("time",),
    "cdc.kafka.sign_of_life": ("os", "socket", "threading", "time"),
    "cdc.kafka.signal_reader": ("threading", "time"),
    "cdc.kafka.topic_admin": ("threading", "time"),
    "cdc.ops.event_tail": ("threading", "time"),
    "cdc.ops.history": ("threading", "time"),
    "cdc.ops.progress": ("time",),
    "cdc.ops.request_queue": ("threading", "time"),
    "cdc.ops.stall_watch": ("threading",),
    "cdc.ops.status": ("os", "time"),
    "cdc.ops.troubles": ("time",),
    "cdc.ops.view": ("threading", "time"),
    "cdc.ops.way": ("time",),
    "cdc.sources.acknowledger": ("threading",),
    "cdc.sources.connection": ("select", "socket", "threading", "time"),
    "cdc.sources.contents": ("time",),
    "cdc.sources.handshake": ("time",),
    "cdc.sources.log_end": ("time",),
    "cdc.sources.replica_set": ("time",),
    "cdc.store.files": ("boot_id",),
    "cdc.store.numbers_file": ("os", "time"),
    "cdc.store.store": ("boot_id", "lock", "open_environment", "write_condition"),
    "cdc.store.writer": ("time",),
    "cdc.stream.batches.spaces": ("compiled_row_path",),
}
"""The seams: which names of which modules are the world's. tests/simulation/test_seams.py holds that no module is forgotten."""


@contextmanager
def installed(names: Callable[[str], Any]) -> Iterator[None]:
    """Put the world's names into the product's modules; `names` returns each."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for module_name, replaced in REPLACED.items():
            module = importlib.import_module(module_name)
            for name in replaced:
                before.append((module, name, getattr(module, name)))
                setattr(module, name, names(name))
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def broken() -> ConnectionResetError:
    """The error of a connection that was cut."""
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


def refused() -> ConnectionRefusedError:
    """The error where nobody listens."""
    return ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


def process_of(scheduler: Scheduler) -> Process:
    """The process whose code runs."""
    assert scheduler.current is not None
    return scheduler.current.process
