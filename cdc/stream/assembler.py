"""Groups the stream's rows into complete transactions.

How the stream marks a transaction (src/box/xrow.c):

  - A row without a TSN is a transaction of its own.
  - The rows of a longer transaction carry TSN = lsn - (lsn of its first row), which is 0 on the first row. The last row
    carries the COMMIT flag.
  - Masters up to 2.11 filter single rows, so the first row that arrives may have a TSN above 0. In either case, lsn - TSN
    identifies the transaction.
  - A relay never interleaves two transactions.

    lsn   41        42 43 44            45
          ·         tsn 0,1,2, commit   ·
          └ {1:41}  └────────── {1:42}  └ {1:45}

The assembler returns only complete transactions. It keeps the rows of the unfinished one as the received frames. If these
exceed `memory_bytes_max`, it writes their bytes to a spool on disk and drops their decoded form.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, Final

from cdc.errors import ProtocolError, excerpt
from cdc.protocol.codec import Frames, Header
from cdc.protocol.constants import Flag, Key
from cdc.stream.transaction import Row, Spool, Transaction

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


class _Open:
    """The transaction whose last row has not arrived yet."""

    __slots__ = ("byte_count", "parts", "replica_id", "row_count", "spool", "tsn")

    def __init__(self, replica_id: int, tsn: int) -> None:
        self.replica_id = replica_id
        self.tsn = tsn
        # Invariant: either `parts` or `spool` holds the rows, never both.
        self.parts: list[Frames] = []
        self.byte_count = 0
        self.row_count = 0
        self.spool: Spool | None = None


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

        Raises ProtocolError for a row with an invalid header, or one that interrupts another transaction.
        """
        transactions: list[Transaction] = []
        if not len(frames):
            return transactions
        add = transactions.append
        headers, bodies = frames.headers, frames.bodies
        kinds, origins, lsns, timestamps = _columns(frames)
        raws = frames.raws()
        open_ = self._open
        start = 0  # index of the open transaction's first row within `frames`
        index = -1
        for header, kind, replica_id, lsn, timestamp in zip(headers, kinds, origins, lsns, timestamps, strict=True):
            index += 1
            if _TSN not in header:
                if open_ is not None:
                    raise _interrupted(open_, header)
                flags = header[_FLAGS] if _FLAGS in header else 0  # noqa: SIM401 - half the cost of get()
                add(Transaction(replica_id, lsn, lsn, timestamp, flags, [(kind, lsn, bodies[index], raws[index])], None, 1))
                continue
            tsn = lsn - _checked_int(header[_TSN], "tsn", header)
            flags = _checked_int(header.get(_FLAGS, 0), "flags", header)
            if open_ is None:
                open_ = _Open(replica_id, tsn)
                start = index
            elif open_.tsn != tsn or open_.replica_id != replica_id:
                raise _interrupted(open_, header)
            if flags & Flag.COMMIT:
                part = slice(start, index + 1)
                rows = list(zip(kinds[part], lsns[part], bodies[part], raws[part], strict=True))
                add(self._finish(open_, frames.part(start, index + 1), rows, lsn, timestamp, flags))
                open_ = None
                start = index + 1
        if open_ is not None:
            self._keep(open_, frames.part(start, len(frames)))
        self._open = open_
        return transactions

    def _finish(self, open_: _Open, last: Frames, rows: list[Row], lsn: int, timestamp: float, flags: int) -> Transaction:
        if open_.spool is not None:
            open_.spool.append(last.data)
            rows = []
        elif open_.parts:
            rows = [row for part in open_.parts for row in rows_of(part)] + rows
        row_count, byte_count = open_.row_count + len(last), open_.byte_count + len(last.data)
        return Transaction(open_.replica_id, open_.tsn, lsn, timestamp, flags, rows, open_.spool, row_count, byte_count)

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


def rows_of(frames: Frames) -> list[Row]:
    """Return the rows of frames that were checked before."""
    columns = zip(frames.headers, frames.bodies, frames.raws(), strict=True)
    return [(header[Key.REQUEST_TYPE], header[Key.LSN], body, frame) for header, body, frame in columns]


def _columns(frames: Frames) -> tuple[list[int], list[int], list[int], list[float]]:
    """Return type, origin, lsn and timestamp of all rows as columns. Their types and ranges are checked for the caller's loop."""
    headers = frames.headers
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
            return kinds, origins, lsns, timestamps
    except KeyError:
        pass  # the slower check below finds the row and reports it
    columns = list(zip(*map(_checked, headers), strict=True))
    return list(columns[0]), list(columns[1]), list(columns[2]), list(columns[3])


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
    raise ProtocolError(f"a row of the stream has a header without a valid {wrong}: {excerpt(header)}")


def _checked_int(value: Any, name: str, header: Header) -> int:
    if type(value) is not int or value < 0:
        raise ProtocolError(f"a row of the stream has a header without a valid {name}: {excerpt(header)}")
    return value


def _interrupted(open_: _Open, header: Header) -> ProtocolError:
    return ProtocolError(f"transaction {open_.replica_id}:{open_.tsn} was interrupted by a row of another one: {excerpt(header)}")
