"""The TAP server: one event loop for all clients, one thread that reads the topics, one view of the store at a time.

A client costs its socket, its unacknowledged messages, and a position in the ring. The server drops a client that stalls or
falls behind the ring; a dropped client may come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import socket
import ssl
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from cdc.config import Config
from cdc.errors import CdcError, ConfigurationError, ProtocolError
from cdc.feeds.tap.connection import Greeter
from cdc.feeds.tap.feed import Feed
from cdc.feeds.tap.listener import READ_BYTES, Listener
from cdc.feeds.tap.session import ClientPosition, ControlPosition, Cursor, Session
from cdc.feeds.tap.session_store import SessionStore
from cdc.feeds.tap.sink import Sink
from cdc.feeds.tap.stream import NEW, ClientStream
from cdc.feeds.tap.window import AckWindow
from cdc.feeds.tap.wire import RESPONSE, Packets, TapRequest

_HANDSHAKE_SECONDS: Final = 30.0
"""Maximum time until a connection must have asked for a feed, in seconds."""
_SAVE_SECONDS: Final = 1.0
_WATCH_SECONDS: Final = 0.5
_WRITE_BYTES: Final = 256 * 1024
"""Maximum size of one client's data that waits in this process, in bytes; a single message may be larger."""
_BYTES_ACKED: Final = slice(120, 128)
"""Position of `tcpi_bytes_acked` in Linux's tcp_info."""
_ENDED_MAX: Final = 100
"""Number of ended connections after which the garbage collector runs: ended connections leave cycles."""


@dataclass(slots=True)
class Client:
    """A connection that has its feed."""

    session: Session
    stream: ClientStream
    address: str
    task: asyncio.Task[None]
    transport: asyncio.WriteTransport
    since: float = field(default_factory=time.time)


class TapServer:
    """Server of one daemon's changes; `run` does everything."""

    def __init__(self, config: Config, sink: tuple[str, int] | None = None) -> None:
        """`sink` is the address of a memcached to keep filled, if any."""
        tap = config.tap
        if config.state.images != "full" and tap.store_path is None:
            raise ConfigurationError(
                f'state.images = "{config.state.images}": there is no store of rows to fill clients from',
                'Let the daemon keep one (state.images = "full") on the machine where this server runs, or set tap.store_path.',
            )
        self._config = tap
        self._log = structlog.get_logger()
        self.feed = Feed(config, self._fail, self._forget)
        self._sink_address = sink
        self.sink: Sink | None = None
        self._sink_session: Session | None = None
        self._users = {name: secret.get_secret_value() for name, secret in tap.users.items()}
        self._sessions: dict[str, Session] = {}
        self._session_store: SessionStore | None = None
        self._tls: ssl.SSLContext | None = None
        self._saving = asyncio.Lock()
        self.clients: dict[str, Client] = {}
        """Clients that have a feed, by name."""
        self.connection_count = 0
        self.refused_count = 0
        self.dropped_count = 0
        self._ended_count = 0
        self._anonymous = itertools.count(1)
        self._stopping = asyncio.Event()
        self._failure: CdcError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        """Port that the server listens on, which the system chose if the configured port is 0."""
        self.is_listening = threading.Event()

    @property
    def session_count(self) -> int:
        """Number of clients that may resume."""
        return sum(not session.is_ended for session in list(self._sessions.values()))

    # Start and end.

    def stop(self) -> None:
        """Ask the server to stop. Must be called on the loop's thread."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until `stop` is called. Raises the error that an operator must see."""
        sessions = self._session_store = await asyncio.to_thread(SessionStore, self._config.path)
        try:
            self._sessions = {session.name: session for session in await asyncio.to_thread(sessions.load)}
            self._begin_from(sessions.control or ControlPosition())
            known_version = max((session.begun_version for session in self._sessions.values()), default=0)
            if not await self.feed.start(self._stopping, known_version):
                return
            listener = await self._listen()
            if self._sink_address is not None:
                await self._start_sink(*self._sink_address)
            housekeeping = asyncio.create_task(self._keep_house())
            try:
                await self._stopping.wait()
            finally:
                if listener is not None:
                    await listener.close()
                housekeeping.cancel()
                for task in list(self._tasks):
                    task.cancel()
                await asyncio.gather(housekeeping, *self._tasks, return_exceptions=True)
                await self._save()
            if self._failure is not None:
                raise self._failure
        finally:
            await self.feed.stop()
            sessions.close()

    def _begin_from(self, control: ControlPosition) -> None:
        served = self.feed.served
        if self._sessions and control.served != served:
            self._log.warning("other keys, values or spaces are served than before: all clients are filled again")
            self._forget()
        self.feed.removals.control = control._replace(served=served)

    async def _start_sink(self, host: str, port: int) -> None:
        session = self._sink_session = await self._session(TapRequest(f"memcached {host}:{port}"))
        session.lost = frozenset()  # vbuckets may have been taken over while the server ran without this memcached
        self.sink = Sink(self.feed, self, session, host, port, self._config.stall_timeout_ms / 1000)
        task = asyncio.create_task(self.sink.run())
        self._tasks.add(task)

    async def _listen(self) -> Listener | None:
        address = self._config.address
        if address is None:
            self.is_listening.set()
            return None
        if self._config.tls_certificate is not None:
            try:
                self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
                self._tls.load_cert_chain(self._config.tls_certificate, self._config.tls_key)
            except (OSError, ssl.SSLError) as error:
                raise ConfigurationError(
                    f"tap.tls_certificate or tap.tls_key can't be used: {error}", "Name files in PEM's form."
                ) from error
        try:
            # TLS begins in `_connected`: asyncio itself would neither count nor log connections before their handshake.
            listener = await Listener.opened(*address, self._connected)
        except OSError as error:
            raise ConfigurationError(
                f"tap.listen = {self._config.listen} can't be used: {error.strerror}", "Choose another port."
            ) from error
        self.port = listener.addresses[0][1]
        self._log.info("clients can connect", address=address[0], port=self.port)
        self.is_listening.set()
        return listener

    async def _keep_house(self) -> None:
        """Each second, save sessions, end expired ones, release old views, and send a NOOP to idle clients."""
        timeout_seconds = self._config.session_timeout_ms / 1000
        while True:
            await asyncio.sleep(_SAVE_SECONDS)
            now = time.time()
            room_bytes = self._room_bytes
            for client in self.clients.values():
                client.session.seen_at = now
                client.transport.set_write_buffer_limits(high=room_bytes)
                if time.monotonic() - client.stream.sent_at > self._config.noop_interval_ms / 1000:
                    client.stream.noop()
            for session in list(self._sessions.values()):
                if not session.is_ended and self._is_away(session) and now - session.seen_at > timeout_seconds:
                    session.is_ended = True
                    self._log.info(
                        "a session has expired: its client didn't come back in time", name=session.name, seq=session.position.seq
                    )
            if self._ended_count > _ENDED_MAX:
                self._ended_count = 0
                gc.collect()
            await asyncio.to_thread(self.feed.close_old_view)
            try:
                await self._save()
            except CdcError as error:
                self._fail(error)

    async def keep(self, session: Session) -> None:
        """Return once the session is on disk in its current state. One write serves all waiting callers."""
        if session.request.name and not session.request.is_dump:  # no client comes back for the others
            await self._save(session)

    async def _save(self, session: Session | None = None) -> None:
        """Write changed sessions. With a `session`, write only if that session has changed."""
        store = self._session_store
        assert store is not None
        async with self._saving:
            if session is None or not store.has(session):
                await asyncio.to_thread(store.save, list(self._sessions.values()), self.feed.removals.control)

    def _fail(self, failure: CdcError) -> None:
        self._failure = self._failure or failure
        self._stopping.set()

    def _forget(self) -> None:
        """Mark all sessions, also of disconnected clients, so that these clients are filled again."""
        for session in self._sessions.values():
            session.is_reset = True

    def take_over(self, session: Session, vbuckets: frozenset[int]) -> None:
        """Reserve these vbuckets for the session's client, and for the memcached that this server itself keeps filled."""
        if not vbuckets:
            return
        session.owned |= vbuckets
        for other in self._sessions.values():
            if other is not session and other is not self._sink_session:
                other.lost = other.lost | vbuckets if other.lost else vbuckets
                other.owned -= vbuckets
        self._log.info("vbuckets were taken over", name=session.name, count=len(vbuckets))

    # Connections.

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        address = str(writer.get_extra_info("peername"))
        self._count_connections(+1)
        why, is_stuck = "", False
        try:
            if self.connection_count > self._config.clients_max:
                self.refused_count += 1
                why = f"there are {self._config.clients_max} connections already (tap.clients_max)"
                return
            if self._tls is not None:
                is_stuck = True  # until the handshake is complete, the client can't read anything
                await writer.start_tls(self._tls, ssl_handshake_timeout=_HANDSHAKE_SECONDS)
                is_stuck = False
            writer.transport.set_write_buffer_limits(high=self._room_bytes)
            packets = Packets()
            request, why = await self._greet(reader, writer, packets)
            if request is not None:
                why = await self._serve(request, reader, writer, packets, address)
        except ProtocolError as error:
            why = str(error)
        except (ConnectionError, TimeoutError, ssl.SSLError, OSError) as error:
            why = f"the connection was lost: {error}" if str(error) else ""
        except CdcError as error:
            self.dropped_count += 1
            why, is_stuck = str(error), True
        except asyncio.CancelledError:
            why, is_stuck = "another connection uses the client's name now" if not self._stopping.is_set() else "", True
        except Exception:  # noqa: BLE001 - a fault here must be logged, and must not end the other clients' feeds
            self._log.exception("a fault of this program ended a connection", client=address)
        finally:
            if why:
                self._log.warning("a connection was closed", client=address, why=why)
            try:
                if not is_stuck:  # a stuck client wouldn't read the rest
                    await self._close_gracefully(writer)
            finally:
                writer.transport.abort()
                self._count_connections(-1)
                self._ended_count += 1
                self._tasks.discard(task)

    def _count_connections(self, change: int) -> None:
        self.connection_count += change
        self.feed.client_count = self.connection_count

    @property
    def _room_bytes(self) -> int:
        return min(_WRITE_BYTES, self.feed.share_bytes)

    async def _close_gracefully(self, writer: asyncio.StreamWriter) -> None:
        """Close a connection whose client may still read the remaining data; the connection counts until then."""
        writer.close()
        # A cancellation by `run` has nothing left to end.
        with contextlib.suppress(TimeoutError, OSError, ssl.SSLError, asyncio.CancelledError):
            async with asyncio.timeout(self._config.stall_timeout_ms / 1000):
                await writer.wait_closed()

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, packets: Packets
    ) -> tuple[TapRequest | None, str]:
        """Answer packets until the client asks for a feed. Return None and the reason if it never does."""
        greeter = Greeter(self._users)
        try:
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                while data := await reader.read(READ_BYTES):
                    found = packets.feed(data)
                    for number, packet in enumerate(found, 1):
                        answer = greeter.answer(packet)
                        writer.write(answer.data)
                        await writer.drain()
                        if answer.request is not None:
                            packets.put_back(found[number:])
                            return answer.request, ""
                        if answer.is_end:
                            return None, answer.problem
        except TimeoutError:
            return None, f"the client has asked for no feed within {_HANDSHAKE_SECONDS:g} s"
        return None, ""

    async def _serve(
        self, request: TapRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, packets: Packets, address: str
    ) -> str:
        if request.vbuckets is not None:
            request = replace(request, vbuckets=request.vbuckets & self.feed.all_vbuckets)  # others have no keys, and cost memory
        session = await self._awaited_session(request, reader)
        # Several connections may want the name at the same time.
        while (former := self.clients.get(session.name)) is not None:
            former.task.cancel()
            await asyncio.gather(former.task, return_exceptions=True)
            if self.clients.get(session.name) is former:  # its own cleanup was cut short
                del self.clients[session.name]
            session = await self._awaited_session(request, reader)
        task = asyncio.current_task()
        assert task is not None
        tap = self._config
        window = AckWindow(tap.unacked_bytes_max) if request.has_acks else None
        stall_seconds = tap.stall_timeout_ms / 1000
        stream = ClientStream(
            session, self.feed, self, writer.writelines, writer.drain, window, stall_seconds, lambda: taken_bytes(writer)
        )
        client = self.clients[session.name] = Client(session, stream, address, task, writer.transport)
        self._log.info("a client has connected", name=session.name, client=address, seq=session.position.seq)
        listening = asyncio.create_task(_listen_to(reader, packets, stream))
        sending = asyncio.create_task(stream.run())
        try:
            done, _ = await asyncio.wait({listening, sending}, return_when=asyncio.FIRST_COMPLETED)
            if sending in done:
                sending.result()
                self._end(session)
                await writer.drain()
                return ""
            return listening.result()
        finally:
            for one in (listening, sending):
                one.cancel()
            await asyncio.gather(listening, sending, return_exceptions=True)
            session.seen_at = time.time()
            if self.clients.get(session.name) is client:
                del self.clients[session.name]
            if not request.name:
                self._end(session)

    def _end(self, session: Session) -> None:
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]

    async def _awaited_session(self, request: TapRequest, reader: asyncio.StreamReader) -> Session:
        """Return the same as `_session`. Raises ConnectionError if the client disconnects first: that may wait for Kafka."""
        asking = asyncio.ensure_future(self._session(request))
        try:
            while not asking.done():
                await asyncio.wait({asking}, timeout=_WATCH_SECONDS)  # only who reads is told of the end
                if not asking.done() and (reader.at_eof() or reader.exception() is not None):
                    raise ConnectionError
            return asking.result()
        finally:
            asking.cancel()

    async def _session(self, request: TapRequest) -> Session:
        """Return the session to resume, or a new one."""
        now = time.time()
        former = self._sessions.get(request.name) if request.name else None
        if former is not None and former is self._sink_session:
            raise ProtocolError(f"{request.name!r} is the name of the server's own session")
        if former is not None and former.can_resume(request):
            former.request = request
            return former
        if former is not None and request.is_dump and not former.request.is_dump:
            # The client follows under this name, and resumes there after the dump.
            return Session(request, ClientPosition(NEW, Cursor()), now, now)
        if not request.name:
            name = next(name for number in self._anonymous if (name := f"anonymous-{number}") not in self._sessions)
            request = replace(request, name=name)
        position, is_replaying = ClientPosition(NEW, Cursor()), False
        is_new_only = not request.is_dump and request.backfill_since > now
        if is_new_only:
            await self.feed.wait_until_at_end()
            position = ClientPosition(self.feed.last, None)
        elif not request.is_dump and request.backfill_since:
            seq = await self.feed.since(request.backfill_since)
            if seq is not None:
                position, is_replaying = ClientPosition(seq, None), True
        if self._sessions.get(request.name) is not former:  # another connection with this name was quicker
            return await self._session(request)
        session = Session(
            request,
            position,
            now,
            now,
            begun_seq=max(0, position.seq),
            begun_version=self.feed.removals.renamed_version,
            begun_offset=self.feed.swept_offset,
            # The client may still have keys that it was sent under this name. A client that gives a date says what it has.
            is_reset=former is not None
            and not request.is_dump
            and (position.seq == NEW or (is_new_only and not former.request.is_dump)),
            is_replaying=is_replaying,
        )
        self._sessions[session.name] = session
        self._make_room()
        return session

    def _make_room(self) -> None:
        """Limit the sessions of disconnected clients: a client with a new name each time leaves one more session each time."""
        if len(self._sessions) <= 2 * self._config.clients_max:
            return
        away = [session for session in self._sessions.values() if self._is_away(session)]
        away.sort(key=lambda session: session.seen_at)
        gone = away[: len(away) // 8 + 1]
        for session in gone:
            self._end(session)
        self._log.warning(
            "too many sessions of disconnected clients (tap.clients_max): the oldest ones are discarded",
            count=len(gone),
        )

    def _is_away(self, session: Session) -> bool:
        return session.name not in self.clients and session is not self._sink_session


def taken_bytes(writer: asyncio.StreamWriter) -> int:
    """Return the bytes that the client's machine has acknowledged over this connection; 0 where the system doesn't provide it."""
    if not hasattr(socket, "TCP_INFO"):
        return 0
    connection = writer.get_extra_info("socket")
    if connection is None:
        return 0  # a lost connection with TLS has no socket
    info: bytes = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.stop)
    return int.from_bytes(info[_BYTES_ACKED], sys.byteorder)


async def _listen_to(reader: asyncio.StreamReader, packets: Packets, stream: ClientStream) -> str:
    """Process a client's ACKs until it disconnects. Return the reason to close the connection, or "". Raises ProtocolError."""
    data = b""
    while True:
        for packet in packets.feed(data):
            if packet.magic != RESPONSE:
                return f"the client sends commands (0x{packet.opcode:02x}) after its TAP_CONNECT"
            if packet.status:
                return f"the client refuses a message, with status 0x{packet.status:02x}"
            stream.answered(packet.opaque)
        data = await reader.read(READ_BYTES)
        if not data:
            return ""
