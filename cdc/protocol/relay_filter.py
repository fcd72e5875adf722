"""Filter for rows read from files: keeps the rows that a relay, or FETCH_SNAPSHOT, would send. Neither sends local rows.

    in the file   {1: 20} tsn 0 │ {1: 21} tsn 1 │ {0: 3} local │ {1: 22} NOP, commit         up to 2.11
                  {1: 20} tsn 0 │ {1: 21} tsn 1 │ {0: 3} local, commit                       from 3.0 on
    sent          {1: 20} tsn 0 │ {1: 21} tsn 1 │ {1: 22} NOP, commit
                  {1: 20} tsn 0 │ {1: 21} tsn 1, commit

Rows of local spaces have group 1, and usually no replica id. If an old version gave a local row a replica id, the row is
replaced by a NOP, so that the vclock advances. If the dropped row ends a transaction, this module ends the transaction with a
NOP that has the lsn of the last kept row. It can't set the flag on that row instead, because the row may already have been
passed on.

Sources: src/box/relay.cc (relay_send_row, relay_process_row, relay_send_initial_join_row), wal.c (wal_assign_lsn), txn.c,
memtx_engine.cc (checkpoint_write_raft, checkpoint_write_synchro), and the files of a live 2.6.
"""

from __future__ import annotations

from typing import Final

from cdc.errors import ProtocolError, excerpt
from cdc.protocol.codec import Body, Frames, Header, encode_frame
from cdc.protocol.compiled_frames import CompiledFrames
from cdc.protocol.constants import Flag, Key, Type

_GROUP_ID: Final = Key.GROUP_ID
_LOCAL: Final = 1
_STATE_TYPES: Final = (Type.RAFT, Type.RAFT_PROMOTE)


class Relay:
    """Filter that drops those rows of one log that a relay doesn't send."""

    def __init__(self, excluded: frozenset[int] = frozenset()) -> None:
        """`excluded` are origins whose rows are dropped too."""
        self._excluded = tuple(excluded)
        # Header of the last kept row, if its transaction continues after it.
        self._open: Header | None = None

    def rows(self, frames: Frames) -> Frames:
        """Return those of the log's next rows that a replica would receive. Raises ProtocolError for a malformed local row."""
        if not len(frames):
            return frames
        if not self._excluded and isinstance(frames, CompiledFrames) and not frames.rows.has_group:
            self._track_open_transaction(frames.part(len(frames) - 1, len(frames)).headers[0])
            return frames
        headers = frames.headers
        if not self._excluded and not [header for header in headers if _GROUP_ID in header]:
            self._track_open_transaction(headers[-1])
            return frames
        kept = _Kept()
        for index, header in enumerate(headers):
            if header.get(Key.REPLICA_ID) in self._excluded:
                continue
            if header.get(_GROUP_ID) != _LOCAL:
                kept.add(header, frames.bodies[index], frames.raw(index))
                self._track_open_transaction(header)
                continue
            replacement = self._replacement(header)
            if replacement is not None:
                kept.add(replacement, {}, _encoded(replacement))
                self._track_open_transaction(replacement)
        return kept.frames()

    def _replacement(self, local: Header) -> Header | None:
        """Return the header of the NOP that replaces a local row, or None if the row is dropped without replacement."""
        if local.get(Key.REPLICA_ID):
            return {key: value for key, value in local.items() if key != _GROUP_ID} | {Key.REQUEST_TYPE: Type.NOP}
        if self._open is not None and _commits(local):
            return {**self._open, Key.REQUEST_TYPE: Type.NOP, Key.FLAGS: local[Key.FLAGS]}
        return None

    def _track_open_transaction(self, header: Header) -> None:
        self._open = header if Key.TSN in header and not _commits(header) else None


def snapshot_rows(frames: Frames) -> Frames:
    """Return the rows of a snapshot that a replica would receive: all but local spaces, and elections' and promotions' state."""
    headers = frames.headers
    if not [header for header in headers if _GROUP_ID in header or header.get(Key.REQUEST_TYPE) in _STATE_TYPES]:
        return frames
    kept = _Kept()
    for index, header in enumerate(headers):
        if header.get(_GROUP_ID) != _LOCAL and header.get(Key.REQUEST_TYPE) not in _STATE_TYPES:
            kept.add(header, frames.bodies[index], frames.raw(index))
    return kept.frames()


def _commits(header: Header) -> bool:
    flags = header.get(Key.FLAGS, 0)
    return isinstance(flags, int) and bool(flags & Flag.COMMIT)


def _encoded(header: Header) -> bytes:
    try:
        return encode_frame(header)
    except (TypeError, ValueError, OverflowError) as error:
        raise ProtocolError("a local row has a header that can't be followed", detail=excerpt(header)) from error


class _Kept:
    """Columns of the kept rows."""

    def __init__(self) -> None:
        self._headers: list[Header] = []
        self._bodies: list[Body] = []
        self._raws: list[bytes] = []
        self._ends: list[int] = []
        self._end = 0

    def add(self, header: Header, body: Body, raw: bytes) -> None:
        self._end += len(raw)
        self._headers.append(header)
        self._bodies.append(body)
        self._raws.append(raw)
        self._ends.append(self._end)

    def frames(self) -> Frames:
        return Frames(self._headers, self._bodies, b"".join(self._raws), self._ends)
