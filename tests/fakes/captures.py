"""Recorded connections, and how they are played to a real Session.

A capture holds both sides of a connection to a live server. The player asks what the recorded client asked, in its order,
and after each request hands over exactly the packets with which the server answered it (SYNC tells which). What our session
can't ask (PING, ID of a server before 2.10) is left out together with its answer, and nothing else is.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgpack

from cdc.errors import CdcError
from cdc.positions.vclock import VClock
from cdc.protocol.codec import Body, Frames, Header
from cdc.protocol.compiled_frames import frame_decoder
from cdc.protocol.constants import Key, Type
from cdc.protocol.greeting import GREETING_BYTES
from cdc.protocol.session import Event, Session, SnapshotRows, StreamRows

DIRECTORY: Final = Path(__file__).resolve().parent.parent / "captures"
VERSIONS: Final = ("2.6", "2.11", "3.3")
USER: Final = "cdc"
PASSWORD: Final = "s3cret"
WRONG_PASSWORD: Final = "wrong"
REPLICASET: Final = UUID("bbbbbbbb-0000-4000-8000-000000000001")
SERVER: Final = UUID("aaaaaaaa-0000-4000-8000-000000000001")

Feed = Callable[[bytes], Iterator[bytes]]
"""How the bytes of one answer are cut."""


@dataclass(frozen=True, slots=True)
class Packet:
    """One recorded frame."""

    header: Header
    body: Body
    data: bytes

    @property
    def kind(self) -> Any:
        """Its type."""
        return self.header[Key.REQUEST_TYPE]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A recorded request and the bytes of the server's answer up to the next request."""

    request: Packet
    answer: bytes


@dataclass(frozen=True, slots=True)
class Capture:
    """One recorded connection."""

    version: str
    name: str
    greeting: bytes
    requests: list[Packet]
    acks: list[Packet]
    answers: list[Packet]

    def exchanges(self) -> list[Exchange]:
        """The requests in order, each with its answer."""
        syncs = [request.header[Key.SYNC] for request in self.requests]
        # A Raft row carries no SYNC: it belongs to the request before it.
        answers: dict[int, bytes] = dict.fromkeys(syncs, b"")
        sync = syncs[0]
        for packet in self.answers:
            sync = packet.header.get(Key.SYNC, sync)
            answers[sync] += packet.data
        return [Exchange(request, answers[request.header[Key.SYNC]]) for request in self.requests]

    def stream(self, until_marker: str = "") -> bytes:
        """The answer to the last request, up to the row that begins the part `until_marker` of the scenario."""
        answer = self.exchanges()[-1].answer
        if not until_marker:
            return answer
        end = 0
        for packet in packets(answer):
            if packet.body.get(Key.SPACE_ID) == 512 and packet.body[Key.TUPLE][1] == until_marker:
                return answer[:end]
            end += len(packet.data)
        raise AssertionError(f"{self.version} has no part {until_marker}")


def packets(data: bytes) -> list[Packet]:
    """All frames of whole bytes."""
    decoded = frame_decoder().feed(data)
    return [Packet(decoded.headers[i], decoded.bodies[i], decoded.raw(i)) for i in range(len(decoded))]


@functools.cache
def load(version: str, name: str) -> Capture:
    """Read one capture."""
    client, server = (gzip.decompress((DIRECTORY / version / f"{name}.{side}.bin.gz").read_bytes()) for side in ("c2s", "s2c"))
    sent = packets(client)
    return Capture(
        version,
        name,
        server[:GREETING_BYTES],
        [packet for packet in sent if packet.kind != Type.OK],
        [packet for packet in sent if packet.kind == Type.OK],
        packets(server[GREETING_BYTES:]),
    )


def names(version: str) -> list[str]:
    """The captures of a version."""
    return sorted(path.name.removesuffix(".s2c.bin.gz") for path in (DIRECTORY / version).glob("*.s2c.bin.gz"))


@functools.cache
def start_vclock(version: str) -> VClock:
    """Where the stream of `subscribe` begins."""
    meta = json.loads((DIRECTORY / version / "meta.json").read_text())
    return VClock.from_json(meta["start_vclock"])


def whole(data: bytes) -> Iterator[bytes]:
    """Everything at once."""
    yield data


def framewise(data: bytes) -> Iterator[bytes]:
    """Frame by frame, so that an error takes no events with it that came before; a greeting is one piece."""
    if data.startswith(b"Tarantool"):
        yield data
    else:
        yield from (packet.data for packet in packets(data))


def singly(data: bytes) -> Iterator[bytes]:
    """Byte by byte."""
    return (data[position : position + 1] for position in range(len(data)))


def pieces(sizes: Iterable[int]) -> Feed:
    """Pieces of these sizes; what is left at their end comes at once."""
    each = iter(sizes)

    def cut(data: bytes) -> Iterator[bytes]:
        position = 0
        while position < len(data):
            size = next(each, len(data))
            yield data[position : position + size]
            position += size

    return cut


@dataclass(slots=True)
class Played:
    """What came of a capture: events up to its end or up to the error, and what our session sent."""

    session: Session
    events: list[Event]
    sent: list[tuple[Packet, bytes]]
    error: CdcError | None = None


def instance_uuid(capture: Capture) -> UUID:
    """The recorded client's own UUID, or one of ours where it told none."""
    told = [packet.body[Key.INSTANCE_UUID] for packet in capture.requests if Key.INSTANCE_UUID in packet.body]
    return UUID(told[0] if told else "cccccccc-0000-4000-8000-000000000009")


def play(capture: Capture, feed: Feed = framewise, *, until_marker: str = "") -> Played:
    """Have a Session go through the recorded connection."""
    session = Session(instance_uuid(capture))
    played = Played(session, [], [])

    def receive(data: bytes) -> None:
        for piece in feed(data):
            played.events += session.receive_data(piece)

    try:
        receive(capture.greeting)
        exchanges = capture.exchanges()
        for exchange in exchanges:
            if not ask(session, exchange.request, capture.name):
                continue
            played.sent.append((exchange.request, session.data_to_send()))
            is_last = exchange is exchanges[-1]
            receive(capture.stream(until_marker) if is_last else exchange.answer)
    except CdcError as error:
        played.error = error
    return played


def ask(session: Session, request: Packet, name: str) -> bool:
    """Make the recorded request with our session; returns False for one that it never makes."""
    match request.kind:
        case Type.AUTH:
            session.authenticate(request.body[Key.USER_NAME], WRONG_PASSWORD if name == "badauth" else PASSWORD)
        case Type.ID if session.can_identify:
            session.identify()
        case Type.VOTE:
            session.vote()
        case Type.FETCH_SNAPSHOT:
            session.fetch_snapshot()
        case Type.JOIN:
            session.join()
        case Type.REGISTER:
            session.register(VClock(request.body[Key.VCLOCK]))
        case Type.SUBSCRIBE:
            body = request.body
            session.subscribe(
                UUID(body[Key.REPLICASET_UUID]),
                VClock(body[Key.VCLOCK]),
                body.get(Key.ID_FILTER, ()),
                is_anonymous=body.get(Key.REPLICA_ANON, False),
            )
        case _:
            return False
    return True


def rows(events: Iterable[Event]) -> Iterator[Frames]:
    """The frames of rows among events, of the snapshot and of the stream."""
    return (event.frames for event in events if isinstance(event, SnapshotRows | StreamRows))


def final_rows(version: str) -> dict[str, list[bytes]]:
    """By the name of each space: the tuples that the master held after the whole of `subscribe`, as it sent them."""
    data = gzip.decompress((DIRECTORY / version / "final.msgpack.gz").read_bytes())
    unpacker = msgpack.Unpacker(raw=True, strict_map_key=False)
    unpacker.feed(data)
    found: dict[str, list[bytes]] = {}
    while unpacker.tell() < len(data):
        name = unpacker.unpack().decode()
        unpacker.skip()  # the header
        assert (unpacker.read_map_header(), unpacker.unpack()) == (1, 0x30)
        rows = []
        for _ in range(unpacker.read_array_header()):
            start = unpacker.tell()
            unpacker.skip()
            rows.append(data[start : unpacker.tell()])
        found[name] = rows
    return found
