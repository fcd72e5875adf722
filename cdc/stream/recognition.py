"""Recognition of the rows at which a stream resumes: has the server still the row that was read last, or another under its lsn?

    checkpoint: {1: 42}, row 1:42 ──▶ subscribe from {1: 41} ──▶ row 1:42 again ─┬─ the same: the stream goes on after it
                                                                                 └─ another: the server has another history

A server that has lost the end of its log (a power failure, a removed file) and has written other rows since has given them the
lost lsns. If it has passed the daemon's position by then, its ballot looks as it should.

Two rows are the same if the server wrote them at the same time, or if their bodies are equal: a server that gets lost rows back
from another member writes them anew, with a new time, as every member does. Only rows of the same server are compared. A NOP
isn't compared, as a server may make one of a row that it gets from another member.

The position's rows are noted once per batch of received frames, for the origin of the batch's last row. While rows wait (for a
quorum, or for the end of their transaction), the position stands before them, at a row of this batch or of an earlier one, so
these are kept. A position behind a snapshot has no row: the row is then learned from the stream's beginning, for the next time.
This costs one row per connection and origin. If it ends a transaction of several rows, it comes alone, so it isn't passed on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Self
from uuid import UUID
from zlib import crc32

from cdc.errors import OtherHistoryError
from cdc.positions.last_row import LastRow
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.protocol.codec import Frames, body_of
from cdc.protocol.compiled_frames import CompiledFrames
from cdc.protocol.constants import Key, Type

Checksum = Callable[[bytes], int | None]
"""Function from a row's body to its checksum, by which checkpoints know it; None if they mustn't (cdc.events.columns)."""

HEARTBEATS_MAX: Final = 2
"""Number of heartbeats after which the expected rows aren't waited for any more: the log doesn't contain them, or not for a
replica. A server sends the first one before it looks into its log."""

RECENT_BYTES_MAX: Final = 1024 * 1024
"""Size of the frames that are kept while their rows wait, in bytes."""

_HINT: Final = (
    'If its contents are what you want, set source.on_divergence = "resnapshot"; otherwise name a member of the replica set that '
    "has the published changes."
)


class RecentFrames:
    """The frames that came last, as far as the position may still come to stand at one of their rows."""

    def __init__(self) -> None:
        self._frames: deque[Frames] = deque()
        self._byte_count = 0

    def at_position(self, frames: Frames, position: Position, vclock: Mapping[int, int], checksum: Checksum) -> list[LastRow]:
        """Take frames that were handled. Return the row at which `vclock` stands now, for the origin of their last row.

        The list is empty if `position` has noted that row, or if the row isn't among the recent ones: more than a MiB waits.
        """
        if not len(frames):
            return []
        origin, _ = _origin_and_lsn(frames, len(frames) - 1)
        reached = vclock.get(origin, 0)
        is_noted = any((row.replica_id, row.lsn) == (origin, reached) for row in position.last_rows)
        self._keep(frames)
        places = ((each, _index_of(each, origin, reached)) for each in reversed(self._frames) if not is_noted)
        found = next(((each, index) for each, index in places if index is not None), None)
        while self._frames and (self._byte_count > RECENT_BYTES_MAX or _is_covered(self._frames[0], vclock)):
            self._byte_count -= len(self._frames.popleft().data)
        return [_row_at(*found, checksum)] if found is not None else []

    def _keep(self, frames: Frames) -> None:
        self._frames.append(frames)
        self._byte_count += len(frames.data)


def _is_covered(frames: Frames, vclock: Mapping[int, int]) -> bool:
    origin, lsn = _origin_and_lsn(frames, len(frames) - 1)
    return lsn <= vclock.get(origin, 0)


def _origin_and_lsn(frames: Frames, index: int) -> tuple[int, int]:
    if isinstance(frames, CompiledFrames):
        return frames.rows.origin(index), frames.rows.lsn(index)
    header = frames.headers[index]
    return header[Key.REPLICA_ID], header[Key.LSN]


def _index_of(frames: Frames, origin: int, lsn: int) -> int | None:
    """Return the index of a row; None if it isn't there. Nearly always an origin's rows follow each other without a gap."""
    last = len(frames) - 1
    of_last = _origin_and_lsn(frames, last)
    guess = last - (of_last[1] - lsn)
    if of_last[0] == origin and 0 <= guess <= last and _origin_and_lsn(frames, guess) == (origin, lsn):
        return guess
    return next((index for index in range(last, -1, -1) if _origin_and_lsn(frames, index) == (origin, lsn)), None)


def last_rows_of(position: Position, server_uuid: UUID) -> tuple[LastRow, ...]:
    """Return the position's last rows if this server sent them: rows are recognized only at the server that sent them."""
    return position.last_rows if position.server_uuid == server_uuid else ()


def noted(position: Position, rows: Iterable[LastRow]) -> Position:
    """Return the position with these last rows of their origins; the same object if it has them."""
    news = {row.replica_id: row for row in rows if row not in position.last_rows}
    if not news:
        return position
    others = (row for row in position.last_rows if row.replica_id not in news)
    return replace(position, last_rows=(*others, *news.values()))


def _row_at(frames: Frames, index: int, checksum: Checksum) -> LastRow:
    row = frames.part(index, index + 1)  # only this one is decoded
    (header,) = row.headers
    kind, timestamp = header[Key.REQUEST_TYPE], header.get(Key.TIMESTAMP, 0.0)
    return LastRow(header[Key.REPLICA_ID], header[Key.LSN], kind, timestamp, checksum(body_of(row.raw(0))))


def _is_other(ours: LastRow, theirs: LastRow) -> bool:
    if Type.NOP in (ours.kind, theirs.kind) or ours.timestamp == theirs.timestamp:
        return False
    return ours.kind != theirs.kind or ours.has_other_body(theirs)


@dataclass(frozen=True, slots=True)
class _Expected:
    """An lsn to be seen again, and the row that it had; None if that isn't known."""

    lsn: int
    row: LastRow | None


class Recognition:
    """The rows to recognize at the beginning of one stream. `look` is for one thread, `acknowledgeable` for any."""

    def __init__(self, begin: VClock, expected: Mapping[int, _Expected], *, is_repeated: bool) -> None:
        """`is_repeated`: the stream has to begin before the expected rows, which the position covers already."""
        self._expected = dict(expected)
        self._is_repeated = is_repeated
        self.checksum: Checksum = crc32
        """Makes the rows' checksums."""
        self._heartbeats_left = HEARTBEATS_MAX
        lowered = {origin: each.lsn - 1 for origin, each in expected.items()} if is_repeated else {}
        self.subscribe_from = VClock({**begin, **lowered})
        """Where the stream has to begin."""
        self.found: dict[int, LastRow] = {}
        """The rows that were seen again, by origin."""

    @classmethod
    def of_resumed(cls, checkpoint: Position, server_uuid: UUID, gc_vclock: VClock, ignored: frozenset[int]) -> Self:
        """Return what to recognize where a stream resumes at `checkpoint`, at a server that keeps logs from `gc_vclock` on."""
        known = _known(checkpoint, server_uuid)
        kept = {origin: lsn for origin, lsn in checkpoint.vclock.items() if origin not in ignored and lsn > gc_vclock[origin]}
        expected = {origin: _Expected(lsn, known.get(origin)) for origin, lsn in kept.items()}
        return cls(checkpoint.vclock, expected, is_repeated=True)

    @classmethod
    def on_the_way(cls, begin: VClock, checkpoint: Position, server_uuid: UUID) -> Self:
        """Return what to recognize where a stream begins before `checkpoint`, to bring the state store up to it."""
        expected = {origin: _Expected(row.lsn, row) for origin, row in _known(checkpoint, server_uuid).items()}
        return cls(begin, {o: each for o, each in expected.items() if each.lsn > begin[o]}, is_repeated=False)

    @classmethod
    def of_nothing(cls, begin: VClock) -> Self:
        """Return a recognition without expected rows."""
        return cls(begin, {}, is_repeated=False)

    @property
    def is_waiting(self) -> bool:
        """Whether an expected row may be about to arrive."""
        return bool(self._expected) and self._heartbeats_left > 0

    @property
    def is_repeating(self) -> bool:
        """Whether rows that the position covers already are still expected."""
        return self._is_repeated and bool(self._expected)

    def heartbeat(self) -> None:
        """Record a heartbeat."""
        self._heartbeats_left -= 1

    def acknowledgeable(self, vclock: VClock) -> VClock:
        """Return the part of a durable position that the server has sent over this connection."""
        if not self.is_repeating:
            return vclock
        pending = self._expected.copy()
        return VClock({origin: min(lsn, pending[origin].lsn - 1) if origin in pending else lsn for origin, lsn in vclock.items()})

    def look(self, frames: Frames) -> list[Frames]:
        """Look for the expected rows. Return the frames without those that the position covers already.

        Raises OtherHistoryError if the server has another row under an expected lsn.
        """
        if not self._expected:
            return [frames]
        parts, start = [], 0
        for index, header in enumerate(frames.headers):
            origin, lsn = header.get(Key.REPLICA_ID), header.get(Key.LSN)
            if type(origin) is not int or type(lsn) is not int:
                break  # the row is refused where it is handled
            expected = self._expected.get(origin)
            if expected is None or lsn < expected.lsn:
                continue
            del self._expected[origin]
            if lsn > expected.lsn:
                continue  # the log doesn't contain it, or not for a replica
            theirs = _row_at(frames, index, self.checksum)
            if expected.row is not None and _is_other(expected.row, theirs):
                raise _other_history(expected.row, theirs)
            self.found[origin] = theirs
            if self._is_repeated:
                parts.append(frames.part(start, index))
                start = index + 1
        parts.append(frames.part(start, len(frames)))
        return [part for part in parts if len(part)]


def _known(checkpoint: Position, server_uuid: UUID) -> dict[int, LastRow]:
    """Return the rows at the checkpoint, if they were read from this server."""
    rows = last_rows_of(checkpoint, server_uuid)
    return {row.replica_id: row for row in rows if row.lsn == checkpoint.vclock[row.replica_id]}


def _other_history(ours: LastRow, theirs: LastRow) -> OtherHistoryError:
    times = [datetime.fromtimestamp(row.timestamp, UTC).isoformat(timespec="microseconds") for row in (ours, theirs)]
    return OtherHistoryError(
        f"the server has another history: its row {ours.replica_id}:{ours.lsn}, written at {times[1]}, isn't the one that was "
        f"published, written at {times[0]}. It has lost the end of its log, and has given the lost lsns to other rows",
        _HINT,
    )
