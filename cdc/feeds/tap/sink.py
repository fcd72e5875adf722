"""Client of the feed that writes the changes into a memcached and keeps it filled.

The CAS of each value is the change's `seq`, if memcached lets a client set the CAS (meta commands with E). Older versions don't:
there the item's client flags hold the last 32 bits of the `seq`. Before the sink writes a value it reads the current one, and
the write succeeds only if that one is still current. A newer value stays, whoever wrote it.

The session's position advances only after memcached has answered, so after any failure the unanswered changes are written again.
A mark in memcached shows whether it is the one that was filled. A memcached that was restarted or flushed lacks the mark, and is
filled again.

Source: memcached's protocol.txt, "Meta Commands".
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from typing import Final, NamedTuple

import structlog

from cdc.errors import CdcError, ConnectionLostError
from cdc.feeds.tap.feed import Feed
from cdc.feeds.tap.session import Session
from cdc.feeds.tap.stream import ClientStream, Sessions
from cdc.feeds.tap.wire import Opcode, Packets

KEY_BYTES_MAX: Final = 250
_MARK: Final = b"tarantool-cdc:filled"
_PLAIN_KEY: Final = re.compile(rb"[!-~]+")
_RETRY_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 30.0
_GREETING_LINES_MAX: Final = 4
_WATCH_SECONDS: Final = 0.5
_TRIES: Final = 10
_FLAGS: Final = 0xFFFF_FFFF
_HALF: Final = 0x8000_0000


class Write(NamedTuple):
    """New value of a key; without a value, the key's deletion."""

    key: bytes
    value: bytes | None
    seq: int


class Found(NamedTuple):
    """Memcached's current state of a key."""

    cas: int
    flags: int


def key_token(key: bytes) -> bytes | None:
    """Return a key in the form of a meta command, with its flag; None if memcached has no room for the key."""
    if _PLAIN_KEY.fullmatch(key) and len(key) <= KEY_BYTES_MAX:
        return key
    encoded = base64.b64encode(key)
    return encoded + b" b" if 0 < len(encoded) <= KEY_BYTES_MAX else None


def is_newer(seq: int, found: Found, *, has_cas: bool) -> bool:
    """Whether a change is newer than memcached's item."""
    if has_cas:
        return seq > found.cas
    return 0 < (seq - found.flags) & _FLAGS < _HALF


def command(write: Write, found: Found | None, *, has_cas: bool) -> bytes | None:
    """Return the command that writes a key unless it has changed since `found`, or None if there is nothing to write."""
    token = key_token(write.key)
    assert token is not None
    key, _, option = token.partition(b" ")
    end = (b" " + option if option else b"") + (b" C%d" % found.cas if found is not None else b"")
    if write.value is None:
        return b"md %b%b\r\n" % (key, end) if found is not None else None
    seq = b" E%d" % write.seq if has_cas else b" F%d" % (write.seq & _FLAGS)
    mode = b"" if found is not None else b" ME"
    return b"ms %b %d%b%b%b\r\n%b\r\n" % (key, len(write.value), end, seq, mode, write.value)


def writes_of(frames: list[bytes]) -> list[Write | None]:
    """Return the writes that a feed's messages ask for, only the last per key; None stands for the removal of everything."""
    found: dict[bytes, Write] = {}
    before: list[Write | None] = []
    for packet in Packets(2**32).feed(b"".join(frames)):
        match packet.opcode:
            case Opcode.TAP_MUTATION:
                found[packet.key] = Write(packet.key, packet.value, packet.cas)
            case Opcode.TAP_DELETE:
                found[packet.key] = Write(packet.key, None, packet.cas)
            case Opcode.TAP_FLUSH:
                found.clear()
                before = [None]
    return [*before, *found.values()]


class Memcached:
    """One connection to a memcached."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.has_cas = False
        """Whether the CAS can be set."""

    async def greet(self) -> bytes:
        """Detect memcached's abilities. Return its mark, or an empty string if it has none. Raises ConnectionLostError."""
        # A memcached that doesn't know E may or may not take the empty value for a command.
        self._writer.write(b"ms %b:try 0 E1 T1\r\n\r\nmn\r\nmg %b v\r\nmn\r\n" % (_MARK, _MARK))
        self.has_cas = (await self._until_mn())[:1] == [b"HD"]
        match await self._until_mn():
            case [b"EN"]:
                return b""
            case [head, mark] if head.startswith(b"VA "):
                return mark
            case other:
                raise ConnectionLostError(
                    f"the server at this address isn't a memcached with meta commands (1.6 or later): {other!r:.100}"
                )

    async def _until_mn(self) -> list[bytes]:
        lines = []
        while (line := await self._line()) != b"MN":
            lines.append(line)
            if len(lines) > _GREETING_LINES_MAX:
                raise ConnectionLostError(
                    f"the server at this address isn't a memcached with meta commands (1.6 or later): {lines!r:.100}"
                )
        return lines

    async def mark(self, mark: bytes) -> None:
        """Record in memcached that the session with this mark has filled it."""
        await self._ask([b"ms %b %d\r\n%b\r\n" % (_MARK, len(mark), mark)])

    async def flush(self) -> None:
        """Remove all items."""
        await self._ask([b"flush_all\r\n"])

    async def look(self, keys: list[bytes]) -> list[Found | None]:
        """Return memcached's current state of these keys."""
        tokens = [key_token(key) for key in keys]
        lines = await self._ask([b"mg %b%b c f\r\n" % _parted(token or b"") for token in tokens] + [b"mg %b\r\n" % _MARK])
        # A full memcached evicts what nobody reads, and one without its mark is flushed when the server connects again.
        return [_found(line) for line in lines[:-1]]

    async def change(self, commands: list[bytes]) -> list[bytes]:
        """Send the commands, and return the first two letters of each answer, or more of an error."""
        return [line[:2] if not line.startswith(b"SERVER_ERROR") else line for line in await self._ask(commands)]

    async def wait_lost(self) -> None:
        """Wait until the connection is lost; then raise ConnectionLostError."""
        while not self._reader.at_eof():
            await asyncio.sleep(_WATCH_SECONDS)  # the library notifies only readers
        raise ConnectionLostError("memcached has closed the connection")

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    async def _ask(self, commands: list[bytes]) -> list[bytes]:
        async def send() -> None:
            self._writer.writelines(commands)
            await self._writer.drain()

        # Read while sending: otherwise both sides may wait for each other to read.
        sending = asyncio.ensure_future(send())
        try:
            lines = [await self._line() for _ in commands]
            await sending
        finally:
            sending.cancel()
        return lines

    async def _line(self) -> bytes:
        async with asyncio.timeout(_ANSWER_SECONDS):
            try:
                line = await self._reader.readline()
            except ValueError as error:  # the line is too long
                raise ConnectionLostError(
                    "the server at this address isn't a memcached with meta commands (1.6 or later)"
                ) from error
        if not line.endswith(b"\r\n"):
            raise ConnectionLostError("memcached has closed the connection")
        return line[:-2]


def _parted(token: bytes) -> tuple[bytes, bytes]:
    key, _, option = token.partition(b" ")
    return key, b" " + option if option else b""


def _found(line: bytes) -> Found | None:
    if not line.startswith(b"HD"):
        return None
    values = {part[:1]: int(part[1:]) for part in line.split()[1:] if part[1:].isdigit()}
    return Found(values[b"c"], values[b"f"])


class Sink:
    """Writer that keeps one memcached filled until it is cancelled."""

    def __init__(self, feed: Feed, sessions: Sessions, session: Session, host: str, port: int, stall_seconds: float) -> None:
        """Create the sink without connecting."""
        self._feed = feed
        self._sessions = sessions
        self._session = session
        self._address = host, port
        self._stall_seconds = stall_seconds
        self._log = structlog.get_logger()
        self._frames: list[bytes] = []
        self._memcached: Memcached | None = None
        self._is_marked = False
        self._mark = b""
        self.stream: ClientStream | None = None
        self.error: str | None = None
        """Current reason why nothing is written; None if there is none."""
        self.left_out_count = 0
        """Number of keys and values that memcached had no room for."""

    async def run(self) -> None:
        """Follow the feed, and reconnect after errors."""
        while True:
            try:
                await self._follow()
            except (CdcError, OSError, TimeoutError, ssl.SSLError) as error:
                text = str(error) or "it doesn't answer"
                if text != self.error:
                    self._log.warning("memcached can't be written, retrying", address=self.shown, why=text)
                self.error = text
            except Exception as error:  # noqa: BLE001 - a fault here must be logged
                self._log.exception("a fault of this program prevents writes to memcached", address=self.shown)
                self.error = repr(error)
            await asyncio.sleep(_RETRY_SECONDS)

    @property
    def shown(self) -> str:
        """The memcached's address, as host:port."""
        return f"{self._address[0]}:{self._address[1]}"

    async def _follow(self) -> None:
        reader, writer = await asyncio.open_connection(*self._address)
        memcached = self._memcached = Memcached(reader, writer)
        try:
            session = self._session
            self._mark = b"%f" % session.created_at
            self._is_marked = await memcached.greet() == self._mark
            if not self._is_marked:
                session.is_reset = True
            self.error = None
            self._frames.clear()
            self._log.info("memcached is kept filled", address=self.shown, seq=session.position.seq, has_cas=memcached.has_cas)
            self.stream = ClientStream(
                session, self._feed, self._sessions, self._frames.extend, self._drain, None, self._stall_seconds
            )
            # Watch the connection too, so that a restart of memcached is noticed even while nothing is written.
            running = [asyncio.ensure_future(self.stream.run()), asyncio.ensure_future(memcached.wait_lost())]
            try:
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)
        finally:
            memcached.close()

    async def _drain(self) -> None:
        frames, self._frames[:] = list(self._frames), []
        memcached = self._memcached
        assert memcached is not None
        writes = writes_of(frames)
        if writes and writes[0] is None:
            await memcached.flush()
            self._is_marked = False
            writes.pop(0)
        if not self._is_marked:
            await memcached.mark(self._mark)
            self._is_marked = True
        left = [write for write in writes if write is not None and self._has_room(write)]
        for _ in range(_TRIES):
            if not left:
                return
            left = await self._written(memcached, left)
        raise ConnectionLostError(f"another client of memcached writes the same keys: {len(left)} could not be written")

    def _has_room(self, write: Write) -> bool:
        if key_token(write.key) is not None:
            return True
        self._leave_out(write.key, "the key is longer than memcached accepts")
        return False

    def _leave_out(self, key: bytes, why: str) -> None:
        self.left_out_count += 1
        if self.left_out_count == 1:
            name = key[:100].decode(errors="replace")
            self._log.warning("memcached has no room for a key: it is left out, others are only counted", key=name, why=why)

    async def _written(self, memcached: Memcached, writes: list[Write]) -> list[Write]:
        """Write the changes that are newer than memcached's items. Return those that somebody else's write prevented."""
        has_cas = memcached.has_cas
        there = await memcached.look([write.key for write in writes])
        asked: list[tuple[Write, bytes]] = []
        for write, found in zip(writes, there, strict=True):
            if found is None or is_newer(write.seq, found, has_cas=has_cas):
                text = command(write, found, has_cas=has_cas)
                if text is not None:
                    asked.append((write, text))
        answers = await memcached.change([text for _, text in asked])
        again = []
        for (write, _), answer in zip(asked, answers, strict=True):
            if answer.startswith(b"SERVER_ERROR"):
                # The former value must not stay; memcached itself removes it if the new one is too large.
                self._leave_out(write.key, answer.decode(errors="replace"))
                if write.value is not None:
                    again.append(Write(write.key, None, write.seq))
            elif answer in (b"EX", b"NS") or (answer == b"NF" and write.value is not None):
                again.append(write)
        return again
