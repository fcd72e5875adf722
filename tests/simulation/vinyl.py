"""A space in vinyl whose keys are numbers, each written in one of several notations, and a server that finds some by their bytes.

    the row's key 2     a request of 2     finds it
                        of decimal 2       finds it in memory, and on disk it doesn't: nobody but the server knows which

What the server does then is drawn here. A request in the row's own notation, a REPLACE, and an INSERT that the server takes
beside an equal key are certain (docs/events.md). The others must go to the dead letters, and so may all that follows of that key
until a REPLACE. Before that the server may still have the row, have it changed, or not.

The space is written by an instance of its own, with which nothing ever waits.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from cdc.protocol.constants import Key, Type
from tests.fakes import wire
from tests.fakes.fates import Contents, Expected
from tests.fakes.master import LogRow, Row
from tests.simulation.members import Writer

ORIGIN: Final = 4
SPACE_ID: Final = 4001
_VALUES: Final = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """What comes of a request: the events that are right, whether it may be a dead letter, or neither, and the rows then."""

    events: tuple[tuple[str, Row | None], ...]
    rows: dict[int, Row]
    may_be_letter: bool = False
    may_be_nothing: bool = False


class VinylSpace:
    """The space, and who writes to it."""

    def __init__(self, master: Writer, rng: random.Random) -> None:
        self._master = master
        self._rng = rng
        self._rows: dict[int, Row] = {}
        # Values of which no consumer can know the row.
        self._doubtful: set[int] = set()
        self.outcomes: dict[int, Outcome] = {}
        """By lsn."""
        master.origin = ORIGIN
        fields = [{"name": "id", "type": "number"}, {"name": "name", "type": "any"}, {"name": "n", "type": "any"}]
        master.create_space("vinyl", fields, [(0, "number")], space_id=SPACE_ID, engine="vinyl")

    def run(self, count: int) -> None:
        """That many requests."""
        for _ in range(count):
            self._step()

    def finish(self) -> None:
        """Write each doubtful row once more."""
        for value in sorted(self._doubtful):
            self._replace(value)

    def _step(self) -> None:
        rng = self._rng
        value = rng.randrange(_VALUES)
        row = self._rows.get(value)
        match rng.choice(["replace", "insert", "update", "upsert", "delete", "truncate"]):
            case "insert" if value not in self._doubtful:
                self._insert(value)
            case "update" if row is not None or value in self._doubtful:
                self._by_key(Type.UPDATE, value)
            case "upsert":
                self._by_key(Type.UPSERT, value)
            case "delete" if value not in self._doubtful:
                self._by_key(Type.DELETE, value)
            case "truncate" if rng.random() < 0.1:
                self._truncate()
            case _:
                self._replace(value)

    def _notation(self, value: int) -> int | Decimal:
        decimals = Decimal(value), Decimal(f"{value}.0")
        return value if self._rng.random() < 0.5 else self._rng.choice(decimals)

    def _row(self, value: int) -> Row:
        return [self._notation(value), self._rng.choice(["a", "b", "long " * 40]), self._rng.randint(0, 99)]

    def _replace(self, value: int) -> None:
        row, is_there = self._row(value), value in self._rows
        doubt = value in self._doubtful
        self._doubtful.discard(value)
        ops = ("c", "u") if doubt else ("u",) if is_there else ("c",)
        self._rows[value] = row
        self._write(Type.REPLACE, {Key.TUPLE: row}, tuple((op, row) for op in ops))

    def _insert(self, value: int) -> None:
        row, former = self._row(value), self._rows.get(value)
        if former is not None and _bytes(former) == _bytes(row):
            return  # the server refuses it
        self._rows[value] = row
        self._write(Type.INSERT, {Key.TUPLE: row}, (("c", row),))

    def _by_key(self, kind: int, value: int) -> None:
        """An UPDATE, UPSERT or DELETE."""
        rng, row, fresh = self._rng, self._rows.get(value), self._row(value)
        operations = [["=", 2, rng.choice(["x", "y", "ключ"])], ["+", 3, rng.randint(1, 500)]]
        body: dict[int, Any] = {Key.KEY: [fresh[0]]}
        if kind == Type.UPDATE:
            body |= {Key.TUPLE: operations, Key.INDEX_BASE: 1}
        if kind == Type.UPSERT:
            body = {Key.TUPLE: fresh, Key.OPS: operations, Key.INDEX_BASE: 1}
        after = self._found(kind, row, fresh, operations)
        is_own = row is None or _bytes(row) == _bytes(fresh)
        events = _events(row, after)
        if is_own and value not in self._doubtful:
            self._put(value, after)
            self._write(kind, body, events)
            return
        if not is_own and rng.random() < 0.5:
            after = fresh if kind == Type.UPSERT else row  # it isn't found
        is_first = value not in self._doubtful
        self._doubtful.add(value)
        self._put(value, after)
        self._write(kind, body, () if is_first else _events(row, after), may_be_letter=True, may_be_nothing=not is_first)

    @staticmethod
    def _found(kind: int, row: Row | None, fresh: Row, operations: Sequence[Row]) -> Row | None:
        """What a request leaves that finds the row."""
        if kind == Type.DELETE:
            return None
        if row is None:
            return fresh if kind == Type.UPSERT else None
        (_, _, name), (_, _, more) = operations
        return [row[0], name, row[2] + more]

    def _truncate(self) -> None:
        self._rows.clear()
        self._doubtful.clear()
        self._master.origin = ORIGIN
        self._master.truncate(SPACE_ID)

    def _put(self, value: int, row: Row | None) -> None:
        if row is None:
            self._rows.pop(value, None)
        else:
            self._rows[value] = row

    def _write(self, kind: int, body: dict[int, Any], events: tuple[tuple[str, Row | None], ...], **outcome: bool) -> None:
        master = self._master
        master.origin = ORIGIN
        master._spaces[SPACE_ID].rows = {wire.pack([value]): row for value, row in self._rows.items()}
        master._write(kind, {Key.SPACE_ID: SPACE_ID, **body})
        self.outcomes[master.vclock[ORIGIN]] = Outcome(events, dict(self._rows), **outcome)


def _bytes(row: Row) -> bytes:
    return wire.pack(row[0])


def _events(before: Row | None, after: Row | None) -> tuple[tuple[str, Row | None], ...]:
    if after is None:
        return (("d", None),) if before is not None else ()
    return (("c" if before is None else "u", after),)


class VinylContents(Contents):
    """What consumers must hold where one space is this one."""

    def __init__(self, space: VinylSpace) -> None:
        super().__init__()
        self._space = space
        self.optional: set[tuple[int, int, int]] = set()
        """Origin, lsn and space of requests that needn't have an event."""
        self.letters: dict[tuple[int, int], bool] = {}
        """Origin and lsn of those that may be dead letters, and whether they must."""

    def _events(self, row: LogRow) -> list[Expected]:
        outcome = self._space.outcomes.get(row.lsn) if row.origin == ORIGIN else None
        if outcome is None:
            return super()._events(row)
        self.rows[SPACE_ID] = {wire.pack([value]): one for value, one in outcome.rows.items()}
        if outcome.may_be_letter:
            self.letters[row.origin, row.lsn] = not outcome.may_be_nothing
        if outcome.may_be_nothing:
            self.optional.add((row.origin, row.lsn, SPACE_ID))
        return [Expected(row.lsn, SPACE_ID, op, shown(after)) for op, after in outcome.events]


def shown(row: Row | None) -> Row | None:
    """A row as events show it."""
    return [str(value) if isinstance(value, Decimal) else value for value in row] if row is not None else None
