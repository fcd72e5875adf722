"""What must come of a log with synchronous transactions, computed from what its writer knows.

A transaction waits if it is synchronous, or if it isn't and one of the same origin waits. A row about the limbo then says:

    CONFIRM N     from the head: each that is asynchronous, or whose lsn is at most N, is published
    ROLLBACK N    the first synchronous one from lsn N on, and all behind it, never are
    PROMOTE N     both: CONFIRM N, then ROLLBACK N + 1

It looks at neither flags nor schema, and folds rows as a server's text book would, without the program's code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cdc.protocol.constants import Key, Type
from tests.fakes import wire
from tests.fakes.master import INDEX, TRUNCATE, LogRow, Row
from tests.fakes.synchronous import SHARED, Written


@dataclass(frozen=True, slots=True)
class Expected:
    """One event: `after` is the row that it leaves, None for one that leaves none."""

    lsn: int
    space_id: int
    op: str
    after: Row | None


@dataclass(slots=True)
class Fates:
    """The state of things after the first `row_count` rows of a log."""

    published: list[Written] = field(default_factory=list)
    """In the order in which each was certain."""
    waiting: list[Written] = field(default_factory=list)
    vanished: list[Written] = field(default_factory=list)

    @classmethod
    def of(cls, written: Sequence[Written], row_count: int, since: Mapping[int, int] | None = None) -> Fates:
        """Fold the log up to there. What the position `since` covers was decided when that was committed."""
        fates = cls()
        gone = {(entry.origin, entry.lsn) for entry in cls.of(written, written[-1].end).vanished} if since else set()
        for entry in written:
            if entry.end > row_count:
                break
            if since is None or entry.lsn > since.get(entry.origin, 0):
                fates._take(entry)
            elif entry.kind is None:
                (fates.vanished if (entry.origin, entry.lsn) in gone else fates.published).append(entry)
        return fates

    def first_waiting(self) -> dict[int, int]:
        """By origin: the lsn where its first waiting transaction begins."""
        found: dict[int, int] = {}
        for entry in self.waiting:
            found.setdefault(entry.origin, entry.first_lsn)
        return found

    def _take(self, entry: Written) -> None:
        if entry.kind is None:
            waits = entry.is_sync or (not entry.passes and any(other.origin == entry.origin for other in self.waiting))
            (self.waiting if waits else self.published).append(entry)
            return
        queue = [other for other in self.waiting if other.origin == entry.owner]
        others = [other for other in self.waiting if other.origin != entry.owner]
        if entry.kind != Type.RAFT_ROLLBACK:
            while queue and (not queue[0].is_sync or queue[0].lsn <= entry.limit):
                self.published.append(queue.pop(0))
        if entry.kind != Type.RAFT_CONFIRM:
            limit = entry.limit + (entry.kind != Type.RAFT_ROLLBACK)
            doomed = [place for place, other in enumerate(queue) if other.is_sync and other.lsn >= limit]
            if doomed:
                self.vanished += queue[doomed[0] :]
                del queue[doomed[0] :]
        self.waiting = others + queue


class Contents:
    """What a consumer must hold: the rows of the spaces, and the events that lead there."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[bytes, Row]] = {}
        # Which fields the primary key of each space has.
        self._places: dict[int, list[int]] = {}

    def events(self, published: Iterable[Written]) -> dict[int, list[Expected]]:
        """Take transactions; returns their events by origin, in order."""
        found: dict[int, list[Expected]] = {}
        for entry in published:
            found.setdefault(entry.origin, []).extend(event for row in entry.rows for event in self._events(row))
        return found

    def _events(self, row: LogRow) -> list[Expected]:
        space_id = row.body.get(Key.SPACE_ID)
        if row.kind == Type.NOP or space_id is None:
            return []
        if space_id == INDEX and row.kind == Type.INSERT and row.body[Key.TUPLE][1] == 0:
            self.rows[row.body[Key.TUPLE][0]] = {}
            self._places[row.body[Key.TUPLE][0]] = [field for field, _ in row.body[Key.TUPLE][5]]
        elif space_id == INDEX and row.kind == Type.UPDATE and row.body[Key.KEY][1] == 0:
            return self._altered(row)
        elif space_id == INDEX and row.kind == Type.DELETE and row.body[Key.KEY][1] == 0:
            del self.rows[row.body[Key.KEY][0]]
            return [Expected(row.lsn, row.body[Key.KEY][0], "t", None)]
        elif space_id == TRUNCATE and row.kind == Type.UPSERT:
            self.rows[row.body[Key.TUPLE][0]].clear()
            return [Expected(row.lsn, row.body[Key.TUPLE][0], "t", None)]
        if space_id not in self.rows:
            return []
        key, after = self._changed(self.rows[space_id], row.kind, row.body, self._places[space_id])
        before = self.rows[space_id].pop(key, None)
        if after is not None:
            self.rows[space_id][key] = after
            return [Expected(row.lsn, space_id, "c" if before is None else "u", after)]
        return [] if before is None else [Expected(row.lsn, space_id, "d", None)]

    def _altered(self, row: LogRow) -> list[Expected]:
        """Another primary key: consumers drop all rows, if there are any, and get them again under it."""
        space_id, ((_, _, parts),) = row.body[Key.KEY][0], row.body[Key.TUPLE]
        places = self._places[space_id] = [field for field, _ in parts]
        rows = list(self.rows[space_id].values())
        self.rows[space_id] = {wire.pack([one[place] for place in places]): one for one in rows}
        return [Expected(row.lsn, space_id, "t", None)] if rows else []

    @staticmethod
    def _changed(rows: dict[bytes, Row], kind: int, body: dict[int, Any], places: list[int]) -> tuple[bytes, Row | None]:
        """A row's key, and what it leaves there."""
        key = wire.pack(body.get(Key.KEY) or [body[Key.TUPLE][place] for place in places])
        match kind:
            case Type.INSERT | Type.REPLACE:
                return key, body[Key.TUPLE]
            case Type.DELETE:
                return key, None
            case Type.UPSERT if key not in rows:
                return key, body[Key.TUPLE]
        assert key in rows, "an UPDATE of nothing is never logged"
        after = list(rows[key])
        for code, number, operand in body[Key.OPS if kind == Type.UPSERT else Key.TUPLE]:
            after[number - 1] = operand if code == "=" else after[number - 1] + operand
        return key, after


def data_rows(published: Iterable[Written]) -> dict[int, list[tuple[int, int]]]:
    """By origin: lsn and space of every row that has an event where no images are kept."""
    found: dict[int, list[tuple[int, int]]] = {}
    for entry in published:
        for row in entry.rows:
            space_id = row.body.get(Key.SPACE_ID)
            if row.kind != Type.NOP and space_id is not None and space_id >= SHARED:
                found.setdefault(entry.origin, []).append((row.lsn, space_id))
            elif space_id == INDEX and row.kind == Type.DELETE and row.body[Key.KEY][1] == 0:
                found.setdefault(entry.origin, []).append((row.lsn, row.body[Key.KEY][0]))
            elif space_id == TRUNCATE and row.kind == Type.UPSERT:
                found.setdefault(entry.origin, []).append((row.lsn, row.body[Key.TUPLE][0]))
    return found
