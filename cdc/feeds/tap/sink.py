"""Keeps a memcached filled: what a client of its own would be told, written into it.

The CAS of each value is the change's `seq`, where memcached lets that be chosen (meta commands with E). Older versions don't:
there the item's client flags hold the last 32 bits of it. Before a value is written the one that is there is looked at, and the
write asks for just that one: what is newer stays, whoever wrote it.

The place of the session moves on once memcached has answered, so whatever breaks, what was not answered is written again. A mark
tells whether this memcached is the one that was filled; if it was started anew or flushed, it is filled again.

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
    """What a key is to become; no value: it is gone."""

    key: bytes
    value: bytes | None
    seq: int


class Found(NamedTuple):
    """What memcached has of a key."""

    cas: int
    flags: int


def key_token(key: bytes) -> bytes | None:
    """A key as a meta command names it, with what must follow it; None if memcached has no room for it."""
    if _PLAIN_KEY.fullmatch(key) and len(key) <= KEY_BYTES_MAX:
        return key
    encoded = base64.b64encode(key)
    return encoded + b" b" if 0 < len(encoded) <= KEY_BYTES_MAX else None


def is_newer(seq: int, found: Found, *, has_cas: bool) -> bool:
    """Whether a change is newer than what memcached has."""
    if has_cas:
        return seq > found.cas
    return 0 < (seq - found.flags) & _FLAGS < _HALF


def command(write: Write, found: Found | None, *, has_cas: bool) -> bytes | None:
    """What to say so that a key becomes what it is to be, if nobody is quicker; None if nothing is to be said."""
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
    """What the messages of a feed do, of each key only the last; None: everything is gone."""
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
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.has_cas = False
        """Whether a CAS can be chosen."""

    async def greet(self) -> bytes:
        """Find out what it can do; returns its mark, which is empty if it has none. Raises ConnectionLostError."""
        # Where E isn't known, the empty value is taken for a command, or not.
        self._writer.write(b"ms %b:try 0 E1 T1\r\n\r\nmn\r\nmg %b v\r\nmn\r\n" % (_MARK, _MARK))
        self.has_cas = (await self._until_mn())[:1] == [b"HD"]
        match await self._until_mn():
            case [b"EN"]:
                return b""
            case [head, mark] if head.startswith(b"VA "):
                return mark
            case other:
                raise ConnectionLostError(f"what answers isn't a memcached with meta commands (1.6 or later): {other!r:.100}")

    async def _until_mn(self) -> list[bytes]:
        lines = []
        while (line := await self._line()) != b"MN":
            lines.append(line)
            if len(lines) > _GREETING_LINES_MAX:
                raise ConnectionLostError(f"what answers isn't a memcached with meta commands (1.6 or later): {lines!r:.100}")
        return lines

    async def mark(self, mark: bytes) -> None:
        """It is filled by the session with this mark from now on."""
        await self._ask([b"ms %b %d\r\n%b\r\n" % (_MARK, len(mark), mark)])

    async def flush(self) -> None:
        """Forget everything."""
        await self._ask([b"flush_all\r\n"])

    async def look(self, keys: list[bytes]) -> list[Found | None]:
        """What it has of these keys."""
        tokens = [key_token(key) for key in keys]
        lines = await self._ask([b"mg %b%b c f\r\n" % _parted(token or b"") for token in tokens])
        return [_found(line) for line in lines]

    async def change(self, commands: list[bytes]) -> list[bytes]:
        """The first two letters of the answers."""
        return [line[:2] if not line.startswith(b"SERVER_ERROR") else line for line in await self._ask(commands)]

    async def wait_lost(self) -> None:
        """Raises ConnectionLostError once the connection is no more."""
        while not self._reader.at_eof():
            await asyncio.sleep(_WATCH_SECONDS)  # the library tells only who reads
        raise ConnectionLostError("memcached has closed the connection")

    def close(self) -> None:
        """Let go."""
        self._writer.close()

    async def _ask(self, commands: list[bytes]) -> list[bytes]:
        async def send() -> None:
            self._writer.writelines(commands)
            await self._writer.drain()

        # Read while it is sent: whoever doesn't may wait for one who waits for us.
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
            except ValueError as error:  # it has no end
                raise ConnectionLostError("what answers isn't a memcached with meta commands (1.6 or later)") from error
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
    """Keeps one memcached filled, until it is cancelled."""

    def __init__(self, feed: Feed, sessions: Sessions, session: Session, host: str, port: int, stall_seconds: float) -> None:
        """Nothing is connected to yet."""
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
        """Why nothing is written, for now."""
        self.left_out_count = 0
        """Keys and values that memcached has no room for."""

    async def run(self) -> None:
        """Follow."""
        while True:
            try:
                await self._follow()
            except (CdcError, OSError, TimeoutError, ssl.SSLError) as error:
                text = str(error) or "it doesn't answer"
                if text != self.error:
                    self._log.warning("memcached can't be written, trying again", address=self.shown, why=text)
                self.error = text
            except Exception as error:  # noqa: BLE001 - a fault here must not end in silence
                self._log.exception("a fault of this program keeps memcached from being written", address=self.shown)
                self.error = repr(error)
            await asyncio.sleep(_RETRY_SECONDS)

    @property
    def shown(self) -> str:
        """The address."""
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
            self._log.info("memcached is kept filled", address=self.shown, seq=session.place.seq, has_cas=memcached.has_cas)
            self.stream = ClientStream(
                session, self._feed, self._sessions, self._frames.extend, self._drain, None, self._stall_seconds
            )
            # A memcached that is started anew is noticed also while nothing is written.
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
        raise ConnectionLostError(f"somebody else writes the same keys: {len(left)} could not be written")

    def _has_room(self, write: Write) -> bool:
        if key_token(write.key) is not None:
            return True
        self._leave_out(write.key, "the key is longer than memcached takes")
        return False

    def _leave_out(self, key: bytes, why: str) -> None:
        self.left_out_count += 1
        if self.left_out_count == 1:
            name = key[:100].decode(errors="replace")
            self._log.warning("memcached goes without a key; others are only counted", key=name, why=why)

    async def _written(self, memcached: Memcached, writes: list[Write]) -> list[Write]:
        """Write what is newer than what is there; returns what somebody else was quicker with."""
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
                # The former value must not stay; memcached itself removes it where the new one is too large.
                self._leave_out(write.key, answer.decode(errors="replace"))
                if write.value is not None:
                    again.append(Write(write.key, None, write.seq))
            elif answer in (b"EX", b"NS") or (answer == b"NF" and write.value is not None):
                again.append(write)
        return again
