"""One connection to a Tarantool server, from the replica's side, as a state machine without a socket.

The caller passes received bytes to `receive_data`, handles the events that it returns, and sends the bytes that `data_to_send`
returns. The session enforces the order of requests and packets, according to the table in cdc.protocol.states: the requests
allowed in each state, the packets that may arrive, and their meaning.

Out of scope: the reasons for the requests, the meaning of the rows, and the current time.

A registered replica receives Raft's state between rows. The session doesn't pass it on; it uses only the term, in the ACKs.

Sources: iproto.cc (dispatch), applier.cc (order of requests, the snapshot's three stages), relay.cc (heartbeats).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from cdc.errors import CdcError, ConnectionLostError, ProtocolError, UnsupportedRowError, excerpt
from cdc.positions.vclock import VClock
from cdc.protocol import requests
from cdc.protocol.ballot import Ballot, parse_ballot
from cdc.protocol.codec import FRAME_BYTES_MAX, Body, Frames, Header
from cdc.protocol.compiled_frames import CompiledFrames, frame_decoder
from cdc.protocol.constants import NEWEST_PROVEN_VERSION, ROW_TYPES, TYPE_NAMES, Key, Type
from cdc.protocol.failure import parse_error
from cdc.protocol.greeting import GREETING_BYTES, Greeting, parse_greeting
from cdc.protocol.states import LOG_STATES, TRANSITIONS, Input, State


@dataclass(frozen=True, slots=True)
class Greeted:
    """The server has sent its greeting; requests are allowed."""

    greeting: Greeting


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The server accepted the user and password."""


@dataclass(frozen=True, slots=True)
class Identified:
    """The server's protocol version and features (2.10 and later)."""

    protocol_version: int
    features: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Voted:
    """The server's ballot."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class SnapshotStarted:
    """A snapshot follows. It contains all changes up to `vclock`, from which to subscribe afterwards."""

    vclock: VClock


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """Rows of a snapshot: INSERTs without origin, lsn or time."""

    frames: Frames


@dataclass(frozen=True, slots=True)
class SnapshotFinished:
    """The snapshot is complete. Its STOP vclock may be ahead of the rows' contents, so it must not be stored as a position."""

    stop_vclock: VClock


@dataclass(frozen=True, slots=True)
class Joined:
    """JOIN is complete: the replica has its id. `vclock` is the master's position, which may be ahead of the received rows."""

    vclock: VClock


@dataclass(frozen=True, slots=True)
class Registered:
    """REGISTER is complete: the replica has its id. `vclock` is the master's position."""

    vclock: VClock


@dataclass(frozen=True, slots=True)
class Selected:
    """The tuples that a SELECT found or a DELETE deleted."""

    tuples: list[list[Any]]


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The stream begins. `vclock` is the master's position, `replica_id` the master's own id."""

    replica_id: int
    vclock: VClock
    replicaset_uuid: UUID | None


@dataclass(frozen=True, slots=True)
class StreamRows:
    """Rows in the log's order: from the stream, from JOIN's last stage, or from the answer to REGISTER."""

    frames: Frames


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The master is alive. `timestamp` is its clock (0 if the heartbeat has none)."""

    timestamp: float


Event = (
    Greeted
    | Authenticated
    | Identified
    | Voted
    | SnapshotStarted
    | SnapshotRows
    | SnapshotFinished
    | Joined
    | Registered
    | Selected
    | Subscribed
    | StreamRows
    | Heartbeat
)


class Session:
    """The protocol's state for one connection."""

    def __init__(self, instance_uuid: UUID, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._instance_uuid = instance_uuid
        self._decoder = frame_decoder(frame_bytes_max)
        self._greeting_bytes = bytearray()
        self._greeting: Greeting | None = None
        self._state = State.GREETING
        self._outgoing = bytearray()
        self._sync = 0
        # The term and vclock_sync for the ACKs: always values that the server sent.
        self._term = 0
        self._vclock_sync: int | None = None

    @property
    def state(self) -> State:
        """The session's state."""
        return self._state

    @property
    def instance_uuid(self) -> UUID:
        """The UUID by which this replica identifies itself."""
        return self._instance_uuid

    @property
    def greeting(self) -> Greeting:
        """The server's greeting. Raises RuntimeError before it has arrived."""
        if self._greeting is None:
            raise RuntimeError("the server has not greeted yet")
        return self._greeting

    @property
    def term(self) -> int:
        """The highest Raft term that the server sent, 0 if none."""
        return self._term

    # Requests.

    def authenticate(self, user: str, password: str) -> None:
        """Request authentication as `user`. The user guest doesn't need it."""
        self._request(Input.AUTHENTICATE)
        self._outgoing += requests.authenticate(self._sync, user, password, self.greeting.salt)

    def identify(self) -> None:
        """Request the server's protocol version and announce ours; only servers from 2.10 on support it."""
        self._request(Input.IDENTIFY)
        self._outgoing += requests.identify(self._sync)

    @property
    def can_identify(self) -> bool:
        """Whether the server supports `identify`."""
        return self.greeting.version >= (2, 10, 0)

    def vote(self) -> None:
        """Request the ballot."""
        self._request(Input.VOTE)
        self._outgoing += requests.vote(self._sync)

    def fetch_snapshot(self, *, keeps_logs: bool = True) -> None:
        """Request a snapshot. With `keeps_logs`, a server from 3.3 on keeps its logs from there on, for a later subscription."""
        self._request(Input.FETCH_SNAPSHOT)
        instance_uuid = self._instance_uuid if keeps_logs else None
        self._outgoing += requests.fetch_snapshot(self._sync, self._announced_version, instance_uuid)

    def join(self, instance_name: str | None = None) -> None:
        """Request an id in the replica set, unless this replica has one, a snapshot, and that the logs from there on be kept."""
        self._request(Input.JOIN)
        name = self._announced_name(instance_name)
        self._outgoing += requests.join(self._sync, self._instance_uuid, self._announced_version, name)

    def register(self, vclock: VClock, instance_name: str | None = None) -> None:
        """Request an id in the replica set, for a replica that has all changes up to `vclock`.

        Old masters (2.6.0 among them) ignore `vclock` and answer with rows from their own position on, so the rows between
        `vclock` and that position are missing. The answer's rows are also part of the stream.
        """
        self._request(Input.REGISTER)
        name = self._announced_name(instance_name)
        self._outgoing += requests.register(self._sync, self._instance_uuid, vclock, self._announced_version, name)

    def select(self, space_id: int, index_id: int, key: list[Any]) -> None:
        """Request the tuples of a system space that have this key."""
        self._request(Input.SELECT)
        self._outgoing += requests.select(self._sync, space_id, index_id, key)

    def delete(self, space_id: int, index_id: int, key: list[Any]) -> None:
        """Request deletion of the tuple of a system space that has this key."""
        self._request(Input.DELETE)
        self._outgoing += requests.delete(self._sync, space_id, index_id, key)

    def subscribe(
        self,
        replicaset_uuid: UUID,
        vclock: VClock,
        id_filter: Iterable[int] = (),
        *,
        is_anonymous: bool = True,
        instance_name: str | None = None,
    ) -> None:
        """Request all changes after `vclock`, as an anonymous replica or as a registered one."""
        self._request(Input.SUBSCRIBE)
        self._outgoing += requests.subscribe(
            self._sync,
            replicaset_uuid=replicaset_uuid,
            instance_uuid=self._instance_uuid,
            vclock=vclock,
            version=self._announced_version,
            anonymous=is_anonymous,
            id_filter=id_filter,
            instance_name=self._announced_name(instance_name),
        )

    def acknowledgement(self, vclock: VClock, timestamp: float | None = None) -> bytes:
        """Return an ACK that reports `vclock` to the master as durable; empty if the connection is closed.

        Any thread may call this method and send its result. Raises RuntimeError unless the session is streaming: a snapshot is
        not acknowledged.
        """
        if self._state is State.CLOSED:
            return b""
        if self._state is not State.STREAMING:
            raise RuntimeError(f"an ACK in state {self._state.name}")
        return requests.acknowledge(
            vclock,
            version=self.greeting.version,
            term=self._term,
            vclock_sync=self._vclock_sync,
            timestamp=timestamp,
        )

    def data_to_send(self) -> bytes:
        """Return the bytes to send now, and clear them."""
        data = bytes(self._outgoing)
        self._outgoing.clear()
        return data

    # Received data.

    def receive_data(self, data: bytes) -> list[Event]:
        """Process received bytes, in pieces of any size; return the events that they contain.

        Raises only ServerError or PositionError for an error packet, and ProtocolError for anything that the protocol doesn't
        allow. Events of the data before the error are lost with the connection: they were not acknowledged, so the server sends
        them again.
        """
        if self._state is State.CLOSED:
            return []
        try:
            return self._receive(data)
        except CdcError:
            self._state = State.CLOSED
            raise

    def receive_end(self) -> ConnectionLostError:
        """Mark the session as closed by the server; return the error, which names the state."""
        state, self._state = self._state, State.CLOSED
        doing = "before its greeting" if state is State.GREETING else f"while {state.name.lower()}"
        return ConnectionLostError(f"the server closed the connection {doing}")

    def _receive(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        if self._state is State.GREETING:
            missing = GREETING_BYTES - len(self._greeting_bytes)
            self._greeting_bytes += data[:missing]
            data = data[missing:]
            if len(self._greeting_bytes) < GREETING_BYTES:
                return events
            self._greeting = parse_greeting(bytes(self._greeting_bytes))
            self._move(Input.GREETING)
            events.append(Greeted(self._greeting))
        frames = self._decoder.feed(data)
        if not len(frames):
            return events
        if isinstance(frames, CompiledFrames) and frames.rows.has_only_rows:
            self._rows(frames, events)
            return events
        types = [header.get(Key.REQUEST_TYPE) for header in frames.headers]
        # Rows between two other packets are passed on as one batch.
        first_row = 0
        for index in _not_rows(types):
            self._rows(frames.part(first_row, index), events)
            self._packet(types[index], frames.headers[index], frames.bodies[index], events)
            first_row = index + 1
        self._rows(frames.part(first_row, len(frames)), events)
        return events

    def _rows(self, frames: Frames, events: list[Event]) -> None:
        if not len(frames):
            return
        self._move(Input.ROW)
        match self._state:
            case State.STREAMING | State.JOIN_FINAL | State.REGISTERING:
                events.append(StreamRows(frames))
            case State.SNAPSHOT | State.JOIN_SNAPSHOT:
                events.append(SnapshotRows(frames))
            case _:
                for header, body in zip(frames.headers, frames.bodies, strict=True):
                    self._meta(header, body)

    def _meta(self, header: Header, body: Body) -> None:
        """Process a row of the META stage, which names the owner of the limbo. Only its term is used."""
        if header[Key.REQUEST_TYPE] == Type.RAFT_PROMOTE:
            self._see_term(body.get(Key.TERM, 0))
        else:
            kind = header[Key.REQUEST_TYPE]
            what = f"the snapshot's META stage has a row of type {kind}"
            raise UnsupportedRowError(what, detail=f"{excerpt(header)} {excerpt(body)}")

    def _see_term(self, term: Any) -> None:
        if type(term) is not int or term < 0:
            raise ProtocolError("the server sent no valid Raft term", detail=excerpt(term, 50))
        self._term = max(self._term, term)

    def _packet(self, kind: Any, header: Header, body: Body, events: list[Event]) -> None:
        if type(kind) is not int:
            raise ProtocolError("a packet has no valid type", detail=excerpt(kind, 50))
        if kind & Type.ERROR:
            raise parse_error(header, body, is_of_log=self._state in LOG_STATES)
        if kind == Type.RAFT:
            self._move(Input.RAFT)
            self._see_term(body.get(_RAFT_TERM, 0))
        elif kind == Type.JOIN_META:
            self._move(Input.META)
        elif kind == Type.JOIN_SNAPSHOT:
            self._move(Input.META_END)
        elif kind == Type.OK:
            self._ok(header, body, events)
        else:
            # A row of this type may be a change, so skipping it could lose data.
            name = TYPE_NAMES.get(kind, "unknown")
            raise UnsupportedRowError(
                f"the server sent a row of type {kind} ({name}), which this version can't follow",
                detail=f"header {excerpt(header)}, body {excerpt(body)}",
            )

    def _ok(self, header: Header, body: Body, events: list[Event]) -> None:
        answered = self._state
        self._move(Input.OK)
        match answered:
            case State.AUTHENTICATING:
                events.append(Authenticated())
            case State.IDENTIFYING:
                events.append(_identified(body))
            case State.VOTING:
                events.append(Voted(parse_ballot(body.get(Key.BALLOT))))
            case State.SELECTING | State.DELETING:
                events.append(_selected(body))
            case State.FETCHING | State.JOINING:
                events.append(SnapshotStarted(VClock.from_wire(body.get(Key.VCLOCK))))
            case State.SNAPSHOT | State.JOIN_SNAPSHOT:
                events.append(SnapshotFinished(VClock.from_wire(body.get(Key.VCLOCK))))
            case State.JOIN_FINAL:
                events.append(Joined(VClock.from_wire(body.get(Key.VCLOCK))))
            case State.REGISTERING:
                events.append(Registered(VClock.from_wire(body.get(Key.VCLOCK))))
            case State.SUBSCRIBING:
                events.append(_subscribed(header, body))
            case _:
                events.append(self._heartbeat(header, body))

    def _heartbeat(self, header: Header, body: Body) -> Heartbeat:
        vclock_sync = body.get(Key.VCLOCK_SYNC)
        if vclock_sync is not None:
            if type(vclock_sync) is not int:
                raise ProtocolError("a heartbeat has no valid vclock_sync", detail=excerpt(vclock_sync, 50))
            self._vclock_sync = vclock_sync
        timestamp = header.get(Key.TIMESTAMP, 0.0)
        if not isinstance(timestamp, float | int):
            raise ProtocolError("a heartbeat has no valid time", detail=excerpt(timestamp, 50))
        return Heartbeat(float(timestamp))

    # State transitions.

    @property
    def _announced_version(self) -> tuple[int, int, int]:
        return min(self.greeting.version, NEWEST_PROVEN_VERSION)

    def _announced_name(self, instance_name: str | None) -> str | None:
        return instance_name if self.greeting.version >= (3, 0, 0) else None

    def _request(self, request: Input) -> None:
        state = TRANSITIONS[self._state].get(request)
        if state is None:
            raise RuntimeError(f"{request.name} in state {self._state.name}")
        self._state = state
        self._sync += 1

    def _move(self, arrived: Input) -> None:
        state = TRANSITIONS[self._state].get(arrived)
        if state is None:
            raise ProtocolError(f"the server sent {arrived.name} in state {self._state.name}")
        self._state = state


_RAFT_TERM: Final = 0


def _not_rows(types: list[Any]) -> list[int]:
    """Return the indexes of packets that aren't rows."""
    try:
        if ROW_TYPES.issuperset(types):
            return []
        return [index for index, kind in enumerate(types) if kind not in ROW_TYPES]
    except TypeError:
        # An unhashable type, which no server sends.
        raise ProtocolError("a packet's type isn't a number") from None


def _identified(body: Body) -> Identified:
    version, features = body.get(Key.VERSION), body.get(Key.FEATURES)
    if type(version) is not int or not isinstance(features, list):
        raise ProtocolError("the server's answer to ID can't be read", detail=excerpt(body, 200))
    return Identified(version, tuple(feature for feature in features if type(feature) is int))


def _selected(body: Body) -> Selected:
    tuples = body.get(Key.DATA)
    if not isinstance(tuples, list) or not all(isinstance(tuple_, list) for tuple_ in tuples):
        raise ProtocolError("the server's answer to a SELECT or DELETE can't be read", detail=excerpt(body, 200))
    return Selected(tuples)


def _subscribed(header: Header, body: Body) -> Subscribed:
    replica_id = header.get(Key.REPLICA_ID, 0)
    if type(replica_id) is not int:
        raise ProtocolError("the server's own id isn't valid", detail=excerpt(replica_id, 50))
    text = body.get(Key.REPLICASET_UUID)
    try:
        uuid = UUID(text) if text is not None else None
    except (ValueError, TypeError, AttributeError) as error:
        raise ProtocolError("the server's name for its replica set isn't a UUID", detail=excerpt(text, 100)) from error
    return Subscribed(replica_id, VClock.from_wire(body.get(Key.VCLOCK)), uuid)
