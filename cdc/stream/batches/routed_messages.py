"""Messages of changes and of rows, in spaces to whose rows rules apply, or whose messages have headers, and in others.

Where such rules apply, each message is a Python object of its own.

One change may make two events: if it moves a row to another partition, the key is deleted in the former one first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from cdc.events.envelope import Envelope, SpaceEvents
from cdc.stream.batches.batch import Addressed, BatchBuilder, Part

MakeEvent = Callable[[int, bytes], bytes]
"""Function from a seq and the beginning of an event to the whole event."""


class ChangeWriter:
    """Writer of one change's messages into a batch. `lsn` is that of the row, None in a snapshot."""

    def __init__(self, builder: BatchBuilder, space: SpaceEvents, lsn: int | None, make: MakeEvent, *, tombstones: bool) -> None:
        self._builder = builder
        self._space = space
        self._lsn = lsn
        self._make = make
        self._tombstones = tombstones

    def put(self, key: bytes, opening: bytes, content: bytes) -> None:
        """Put a change, as cdc.events.envelope.Change returns it; the space's route has what isn't in there."""
        route = self._space.route
        assert route is not None
        former, route.former = route.former, None
        if former is not None:
            self._event(key, former.start, b"d", former.place)
        self._event(key, opening + content, self._space.openings.op_of(opening), route.place)

    def _event(self, key: bytes, start: bytes, op: bytes, place: bytes | None) -> None:
        builder, space = self._builder, self._space
        builder.seq += 1
        value = self._make(builder.seq, start)
        builder.byte_count += len(value)
        assert space.route is not None
        headers = space.route.headers(op, builder.seq, self._lsn)
        builder.parts.append(_message(space.topic, key, value, place, headers))
        if op == b"d" and self._tombstones:
            builder.parts.append(_message(space.topic, key, None, place, headers))


class RowWriter:
    """Writer of events of rows that are in no log: those of a snapshot, and of a request for rows."""

    def __init__(self, builder: BatchBuilder, envelope: Envelope, *, tombstones: bool) -> None:
        self._builder = builder
        self._envelope = envelope
        self._tombstones = tombstones

    def put(self, space: SpaceEvents, key: bytes, opening: bytes, content: bytes, pieces: tuple[bytes, bytes]) -> None:
        """Put an event. `pieces` are the bytes between its row and its seq, and those after its seq."""
        builder, (before, after) = self._builder, pieces
        if space.route is not None:
            make = partial(self._event, before, after)
            ChangeWriter(builder, space, None, make, tombstones=self._tombstones).put(key, opening, content)
            return
        builder.seq += 1
        value = b"".join((opening, content, before, self._envelope.number(builder.seq), after))
        builder.byte_count += len(value)
        builder.parts.append((space.topic, key, value))

    def put_gone(self, space: SpaceEvents, key: bytes, opening: bytes, content: bytes, pieces: tuple[bytes, bytes]) -> None:
        """Put an event that says that a row is gone, and its tombstone."""
        self.put(space, key, opening, content, pieces)
        if self._tombstones and space.route is None:
            self._builder.parts.append((space.topic, key, None))

    def _event(self, before: bytes, after: bytes, seq: int, start: bytes) -> bytes:
        return b"".join((start, before, self._envelope.number(seq), after))


def _message(topic: str, key: bytes, value: bytes | None, place: bytes | None, headers: list[tuple[str, bytes]] | None) -> Part:
    return (topic, key, value) if place is None and headers is None else Addressed(topic, key, value, place, headers)
