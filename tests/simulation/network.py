"""Connections between the daemon and the members: bytes arrive late, in pieces, in order; any two may be cut apart.

daemon ── Socket ──▶ late ──▶ Link ──▶ MasterConnection (tests.fakes.master) ──▶ pieces, late ──▶ Socket ── daemon

A member may learn late that a connection is over: until then it has two connections of one replica, and refuses the second one's
SUBSCRIBE. What the daemon had sent over the first one may arrive behind what it sends over the second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from cdc.protocol.constants import Key
from tests.fakes.master import Ack, MasterConnection
from tests.simulation.library import Descriptors, broken, process_of, refused
from tests.simulation.scheduler import Process, Scheduler, Waiters

LATENCY_SECONDS = 0.001
HEARTBEAT_SECONDS = 1.0
DISCONNECT_SECONDS = 4.0
"""replication_disconnect_timeout: when a member notices that nothing comes over a connection any more."""


@dataclass
class Member:
    """A server behind an address."""

    master: Any
    port: int
    is_up: bool = True
    is_frozen: bool = False
    """It accepts connections, and answers nothing."""
    is_foreign: bool = False
    """It belongs to another replica set. Nothing of it may be read but its ballot and that it does."""
    links: list[Link] = field(default_factory=list)
    before_contents: Callable[[], None] = lambda: None

    def wrote(self) -> None:
        """Its log has grown."""
        for link in self.links:
            link.log_grew()

    def stop(self) -> None:
        """Its process ends."""
        self.is_up = False
        for link in list(self.links):
            link.cut(is_noticed=True)

    def streaming(self, besides: Relay) -> dict[UUID, Link]:
        """Who follows it, as far as it knows, over which connection."""
        followed = [link for link in self.links if link.relay is not besides and link.relay.is_streaming]
        return {UUID((link.relay.subscribed or {})[Key.INSTANCE_UUID]): link for link in followed if not link.relay.is_closed}


class Relay(MasterConnection):
    """The server's side. A server that is asked for its contents waits until its limbo is empty."""

    def __init__(self, member: Member) -> None:
        self._server = member
        super().__init__(member.master)

    def _subscribe(self, body: dict[int, Any]) -> None:
        assert not self._server.is_foreign, "the log of another replica set is read"
        others = self._server.streaming(self)
        other = others.get(UUID(body[Key.INSTANCE_UUID]))
        # What was sent over a connection that is over by now may arrive behind what was sent over the next one.
        is_late = not self._link.is_open_at(self)
        assert is_late or other is None or not other.is_open_at(self), "a process has two connections to one member"
        self._master.streaming = set(others)
        super()._subscribe(body)

    @property
    def _link(self) -> Link:
        return next(link for link in self._server.links if link.relay is self)

    @property
    def process(self) -> Process:
        """Whose connection it is."""
        return self._link.socket.process

    def _register(self, body: dict[int, Any]) -> None:
        assert not self._server.is_foreign, "an id of another replica set is requested"
        super()._register(body)

    def _contents(self, body: dict[int, Any]) -> None:
        assert not self._server.is_foreign, "the rows of another replica set are read"
        self._server.before_contents()
        super()._contents(body)


class Socket:
    """The daemon's end of a connection; socket.socket, as far as it is used."""

    def __init__(self, scheduler: Scheduler, descriptors: Descriptors, process: Process) -> None:
        self._scheduler = scheduler
        self._number = descriptors.add(self)
        self._descriptors = descriptors
        self.waiters = Waiters(scheduler)
        self.arrived = bytearray()
        self.is_ended = self.is_broken = self.is_closed = False
        self.link: Link | None = None
        self.process = process
        self._low_water = 1
        process.at_kill.append(self.close)

    def is_readable(self) -> bool:
        """Whether enough has arrived, or the end."""
        return len(self.arrived) >= self._low_water or self.is_ended or self.is_broken

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Only the low-water mark has an effect."""
        import socket

        if (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT):
            self._low_water = value

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""
        assert not flag

    def fileno(self) -> int:
        """Return its number."""
        return self._number

    def recv(self, count: int) -> bytes:
        """Take what has arrived."""
        self._scheduler.check_alive()
        if self.arrived:
            data = bytes(self.arrived[:count])
            del self.arrived[:count]
            return data
        if self.is_broken:
            raise broken()
        if self.is_ended:
            return b""
        raise BlockingIOError

    def send(self, data: bytes | memoryview) -> int:
        """Send all of it."""
        self._scheduler.touch()
        if self.is_broken or self.link is None:
            raise broken()
        self.link.sent(bytes(data))
        return len(data)

    def close(self) -> None:
        """End the connection."""
        if not self.is_closed:
            self.is_closed = True
            self._descriptors.open.pop(self._number, None)
            if self.link is not None:
                self.link.closed_by_daemon()


class Link:
    """One connection, with the server's side of it."""

    def __init__(self, network: Network, member: Member, socket: Socket) -> None:
        self._network = network
        self._scheduler = network.scheduler
        self.member = member
        self.socket = socket
        self.relay = Relay(member)
        self.is_over = False
        # Whether it is over at the daemon's end, and the member hasn't noticed yet.
        self._lives_on = False
        self._there_at = self._back_at = 0.0
        self._seen_acks = 0
        member.links.append(self)
        self._answer()
        self._beat()

    def sent(self, data: bytes) -> None:
        """The daemon has sent something."""
        self._there_at = max(self._there_at, self._scheduler.now + self._network.delay())
        self._scheduler.after(self._there_at - self._scheduler.now, lambda: self._received(data))

    def _received(self, data: bytes) -> None:
        if self.is_over or self.member.is_frozen or self.relay.is_closed:
            return
        self.relay.receive_data(data)
        for ack in self.relay.acks[self._seen_acks :]:
            self._network.on_ack(self, ack)
        self._seen_acks = len(self.relay.acks)
        if self.relay.is_streaming:
            self.relay.relay()
        self._answer()

    def log_grew(self) -> None:
        """The server relays what is new, some time."""
        if self.relay.is_streaming and not self.is_over:
            self._scheduler.after(self._network.delay(), self._relay)

    def _relay(self) -> None:
        if not self.is_over and not self.member.is_frozen and not self.relay.is_closed:
            self.relay.relay(self._scheduler.random.choice([1, 3, None]))
            self._answer()
            if self.relay._next is not None and self.relay._next < len(self.member.master.log):
                self.log_grew()

    def _beat(self) -> None:
        if self.is_over:
            return
        if self.relay.is_streaming and not self.member.is_frozen and not self.relay.is_closed:
            self.relay.relay()
            self.relay.heartbeat()
            self._answer()
        self._scheduler.after(HEARTBEAT_SECONDS, self._beat)

    def _answer(self) -> None:
        data = self.relay.data_to_send()
        rng = self._scheduler.random
        while data:
            size = rng.randint(1, len(data)) if rng.random() < 0.2 else len(data)
            self._deliver(data[:size], is_end=False)
            data = data[size:]
        if self.relay.is_closed:
            self._deliver(b"", is_end=True)

    def _deliver(self, data: bytes, *, is_end: bool) -> None:
        self._back_at = max(self._back_at, self._scheduler.now + self._network.delay())

        def arrive() -> None:
            if not self.socket.is_broken and not self.socket.is_closed:
                self.socket.arrived += data
                self.socket.is_ended |= is_end
                self.socket.waiters.wake()

        self._scheduler.after(self._back_at - self._scheduler.now, arrive)

    def cut(self, *, is_noticed: bool = False) -> None:
        """The connection breaks, wherever it is; with `is_noticed` the member knows that in any case."""
        self._end_soon(is_noticed=is_noticed)
        self.socket.is_broken = True
        self.socket.waiters.wake()

    def closed_by_daemon(self) -> None:
        """The daemon has ended it."""
        self._end_soon()

    def is_open_at(self, other: Relay) -> bool:
        """Whether the process that has this other connection still holds this one."""
        return self.socket.process is other.process and not self.socket.is_broken and not self.socket.is_closed

    def _end_soon(self, *, is_noticed: bool = False) -> None:
        if is_noticed or not (self._lives_on or self._scheduler.now < self._network.lives_on_until):
            self._end()
        elif not self._lives_on:
            self._lives_on = True
            self._scheduler.after(self._scheduler.random.random() * DISCONNECT_SECONDS, self._end)

    def _end(self) -> None:
        self.is_over = True
        if self in self.member.links:
            self.member.links.remove(self)


class Network:
    """All members by port, and the time that bytes need."""

    def __init__(self, scheduler: Scheduler, on_ack: Callable[[Link, Ack], None]) -> None:
        self.scheduler = scheduler
        self.descriptors: Descriptors | None = None
        self.members: dict[int, Member] = {}
        self.on_ack = on_ack
        self.slowness = 1.0
        self.lives_on_until = 0.0
        """Until then the members notice late that a connection is over."""

    def delay(self) -> float:
        """Return how long the next piece takes."""
        rng = self.scheduler.random
        return rng.random() * LATENCY_SECONDS * self.slowness + (0.05 if rng.random() < 0.01 else 0.0)

    def connect(self, address: tuple[str, int], timeout: float) -> Socket:  # noqa: ARG002 - nothing hangs here
        """Connect."""
        scheduler = self.scheduler
        scheduler.block(self.delay())
        member = self.members[address[1]]
        if not member.is_up:
            raise refused()
        assert self.descriptors is not None
        socket = Socket(scheduler, self.descriptors, process_of(scheduler))
        socket.link = Link(self, member, socket)
        return socket
