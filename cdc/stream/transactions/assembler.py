"""Groups the stream's rows into complete transactions.

How the stream marks a transaction (src/box/xrow.c):

  - A row without a TSN is a transaction of its own.
  - The rows of a longer transaction carry TSN = lsn - (lsn of its first row), which is 0 on the first row. The last row
    carries the COMMIT flag.
  - Masters up to 2.11 filter single rows, so the first row that arrives may have a TSN above 0. In either case, lsn - TSN
    identifies the transaction.
  - A relay never interleaves two transactions.
  - Before 2.8.4 the last row may be missing: if a transaction ends by emptying a temporary or local space, that row has the
    COMMIT flag and isn't relayed. So the next row of another transaction ends the open one, and on these versions a heartbeat
    does, too: their relays send it only when everything that is written has been sent. (Later ones also send it while they
    read a log, between any two rows.) The missing row's lsn isn't one of the transaction's origin, so no lsn is missing.

    lsn   41        42 43 44            45 46           47
          ·         tsn 0,1,2, commit   tsn 0,1         ·
          └ {1:41}  └────────── {1:42}  └───── {1:45}   └ {1:47}

A transaction that is open when its connection ends has not ended: it is discarded, and the master sends it again.

The assembler returns only complete transactions. It keeps the rows of the unfinished one as the received frames. If these
exceed `memory_bytes_max`, it writes their bytes to a spool on disk and drops their decoded form.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, Final, NamedTuple

from cdc.errors import ProtocolError, excerpt
from cdc.protocol.codec import Body, Frames, Header
from cdc.protocol.constants import Flag, Key
from cdc.stream.transactions.transaction import Row, Spool, Transaction

_TYPE: Final = Key.REQUEST_TYPE
_REPLICA_ID: Final = Key.REPLICA_ID
_LSN: Final = Key.LSN
_TIMESTAMP: Final = Key.TIMESTAMP
_INTEGERS: Final = {int}
_NUMBERS: Final = {int, float}
_ORIGIN_MAX: Final = 31
_TIMESTAMP_MAX: Final = 1e11
"""Upper limit of a row's timestamp, in seconds since the epoch: after the year 5000, and in microseconds still within 64 bits."""
_TSN: Final = Key.TSN
_FLAGS: Final = Key.FLAGS

HEARTBEATS_END_BEFORE: Final = (2, 8, 4)
"""The first version whose relays may send heartbeats within a transaction."""

_Last = tuple[int, float, int]
"""Lsn, timestamp and flags of a transaction's last row."""


class _Open:
    """The transaction whose last row has not arrived yet."""

    __slots__ = ("byte_count", "last", "parts", "replica_id", "row_count", "spool", "tsn")

    def __init__(self, replica_id: int, tsn: int) -> None:
        self.replica_id = replica_id
        self.tsn = tsn
        # Invariant: either `parts` or `spool` holds the rows, never both.
        self.parts: list[Frames] = []
        self.byte_count = 0
        self.row_count = 0
        self.spool: Spool | None = None
        # Of the rows in `parts` or `spool`.
        self.last: _Last = (0, 0.0, 0)


class Assembler:
    """Builder of complete transactions from the rows of one connection."""

    def __init__(self, *, memory_bytes_max: int, new_spool: Callable[[], Spool]) -> None:
        self._memory_bytes_max = memory_bytes_max
        self._new_spool = new_spool
        self._open: _Open | None = None

    @property
    def open_byte_count(self) -> int:
        """Size of the unfinished transaction, in memory or spooled, in bytes."""
        return self._open.byte_count if self._open is not None else 0

    def close(self) -> None:
        """Discard the unfinished transaction: its connection has ended, and the master will send it again."""
        if self._open is not None and self._open.spool is not None:
            self._open.spool.close()
        self._open = None

    def feed(self, frames: Frames) -> list[Transaction]:
        """Add rows in the order of the log; return the transactions that are complete now.

        Raises ProtocolError for a row with an invalid header, or one of another transaction whose lsns aren't behind the open
        one's.
        """
        transactions: list[Transaction] = []
        if not len(frames):
            return transactions
        add = transactions.append
        columns = _columns(frames)
        headers, kinds, origins, lsns, timestamps, bodies, raws = columns
        open_ = self._open
        start = 0  # index of the open transaction's first row within `frames`
        index = -1
        for header, kind, replica_id, lsn, timestamp in zip(headers, kinds, origins, lsns, timestamps, strict=True):
            index += 1
            if _TSN not in header:
                if open_ is not None:
                    add(_ended(open_, frames, columns, start, index, next_tsn=lsn))
                    open_ = None
                flags = _checked_int(header[_FLAGS], "flags", header) if _FLAGS in header else 0
                add(Transaction(replica_id, lsn, lsn, timestamp, flags, [(kind, lsn, bodies[index], raws[index])], None, 1))
                continue
            tsn = lsn - _checked_int(header[_TSN], "tsn", header)
            flags = _checked_int(header.get(_FLAGS, 0), "flags", header)
            if open_ is not None and (open_.tsn != tsn or open_.replica_id != replica_id):
                add(_ended(open_, frames, columns, start, index, next_tsn=tsn))
                open_ = None
            if open_ is None:
                open_ = _Open(replica_id, tsn)
                start = index
            if flags & Flag.COMMIT:
                add(_whole(open_, frames, columns, start, index + 1))
                open_ = None
        if open_ is not None:
            open_.last = columns.last(len(frames))
            self._keep(open_, frames.part(start, len(frames)))
        self._open = open_
        return transactions

    def end(self) -> list[Transaction]:
        """End the open transaction, if there is one, as no row of it follows; return it."""
        open_, self._open = self._open, None
        return [_whole(open_, _NO_FRAMES, _NO_COLUMNS, 0, 0)] if open_ is not None else []

    def _keep(self, open_: _Open, part: Frames) -> None:
        open_.byte_count += len(part.data)
        open_.row_count += len(part)
        if open_.spool is None and open_.byte_count > self._memory_bytes_max:
            open_.spool = self._new_spool()
            for earlier in open_.parts:
                open_.spool.append(earlier.data)
            open_.parts.clear()
        if open_.spool is not None:
            open_.spool.append(part.data)
        else:
            open_.parts.append(part)


def _ended(open_: _Open, frames: Frames, columns: _Columns, start: int, stop: int, *, next_tsn: int) -> Transaction:
    """Return the open transaction, which the next row ends: that row, at `stop`, belongs to the transaction `next_tsn`.

    Raises ProtocolError if that transaction can't be the next.
    """
    header = columns.headers[stop]
    last_lsn = columns.lsns[stop - 1] if stop > start else open_.last[0]
    if columns.origins[stop] == open_.replica_id and next_tsn <= last_lsn:
        raise ProtocolError(
            f"transaction {open_.replica_id}:{open_.tsn}, of which row {last_lsn} had arrived, was interrupted by a row that is "
            "neither its own nor after it",
            detail=excerpt(header),
        )
    return _whole(open_, frames, columns, start, stop)


def _whole(open_: _Open, frames: Frames, columns: _Columns, start: int, stop: int) -> Transaction:
    """Return the open transaction, whose last rows are the frames from `start` to `stop`."""
    last = frames.part(start, stop) if stop > start else _NO_FRAMES
    rows: list[Row] = []
    if open_.spool is not None:
        open_.spool.append(last.data)
    else:
        part = slice(start, stop)
        rows = list(zip(columns.kinds[part], columns.lsns[part], columns.bodies[part], columns.raws[part], strict=True))
        if open_.parts:
            rows = [row for earlier in open_.parts for row in rows_of(earlier)] + rows
    lsn, timestamp, flags = columns.last(stop) if stop > start else open_.last
    row_count, byte_count = open_.row_count + len(last), open_.byte_count + len(last.data)
    return Transaction(open_.replica_id, open_.tsn, lsn, timestamp, flags, rows, open_.spool, row_count, byte_count)


def rows_of(frames: Frames) -> list[Row]:
    """Return the rows of frames that were checked before."""
    columns = zip(frames.headers, frames.bodies, frames.raws(), strict=True)
    return [(header[Key.REQUEST_TYPE], header[Key.LSN], body, frame) for header, body, frame in columns]


class _Columns(NamedTuple):
    """Columns of some rows. Those of the headers are checked."""

    headers: list[Header]
    kinds: list[int]
    origins: list[int]
    lsns: list[int]
    timestamps: list[float]
    bodies: list[Body]
    raws: list[bytes]

    def last(self, stop: int) -> _Last:
        """Return lsn, timestamp and flags of the row before `stop`."""
        return self.lsns[stop - 1], self.timestamps[stop - 1], self.headers[stop - 1].get(_FLAGS, 0)


_NO_FRAMES: Final = Frames([], [], b"", [])
_NO_COLUMNS: Final = _Columns([], [], [], [], [], [], [])


def _columns(frames: Frames) -> _Columns:
    """Return the columns of all rows. The types and ranges of their headers' fields are checked for the caller's loop."""
    headers = frames.headers
    rest = frames.bodies, frames.raws()
    try:
        kinds = [header[_TYPE] for header in headers]
        origins = [header[_REPLICA_ID] for header in headers]
        lsns = [header[_LSN] for header in headers]
        timestamps = [header[_TIMESTAMP] for header in headers]
        if (
            set(map(type, origins)) == _INTEGERS == set(map(type, lsns)) == set(map(type, kinds))
            and set(map(type, timestamps)) <= _NUMBERS
            and min(origins) > 0
            and max(origins) <= _ORIGIN_MAX
            and min(lsns) > 0
            and isfinite(sum(timestamps))
            and max(timestamps) < _TIMESTAMP_MAX
            and min(timestamps) >= 0
        ):
            return _Columns(headers, kinds, origins, lsns, timestamps, *rest)
    except KeyError:
        pass  # the slower check below finds the row and reports it
    columns = list(zip(*map(_checked, headers), strict=True))
    return _Columns(headers, list(columns[0]), list(columns[1]), list(columns[2]), list(columns[3]), *rest)


def _checked(header: Header) -> tuple[int, int, int, float]:
    """Return one row's fields. Raises ProtocolError naming the first invalid field."""
    kind, origin, lsn = (header.get(key) for key in (Key.REQUEST_TYPE, Key.REPLICA_ID, Key.LSN))
    timestamp: Any = header.get(Key.TIMESTAMP, 0.0)
    if type(kind) is not int:
        wrong = "request type"
    elif type(origin) is not int or not 0 < origin <= _ORIGIN_MAX:
        wrong = f"replica id (1 to {_ORIGIN_MAX})"
    elif type(lsn) is not int or lsn <= 0:
        wrong = "lsn"
    elif type(timestamp) not in _NUMBERS or not 0 <= timestamp < _TIMESTAMP_MAX:
        wrong = "timestamp"
    else:
        return kind, origin, lsn, timestamp
    raise ProtocolError(f"a row of the stream has a header without a valid {wrong}", detail=excerpt(header))


def _checked_int(value: Any, name: str, header: Header) -> int:
    if type(value) is not int or value < 0:
        raise ProtocolError(f"a row of the stream has a header without a valid {name}", detail=excerpt(header))
    return value
