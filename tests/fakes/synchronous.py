"""A master with a limbo: synchronous spaces, and the rows that say what becomes of their transactions.

What a server has in memory is ahead of what it has promised: a waiting transaction's changes are there, and go away again with a
ROLLBACK. The fake does the same, by putting the state from before the transaction back. So that this can't touch what others
wrote, each origin has spaces of its own, and rows of its own in the one space that all share:

    space 900                shared and synchronous; rows 100..199 are origin 1's, 200..299 origin 2's
    spaces 1000..1999        origin 1's, 2000..2999 origin 2's, …

One origin at a time owns the limbo. Up to 2.6 it is whoever writes when it is empty, and a successor ends its predecessor's
transactions with CONFIRM and ROLLBACK of its own; later PROMOTE and DEMOTE hand it on. `written` is the log with what its
writer knows of it, whatever the flags on the rows say.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cdc.protocol.constants import Key, Type
from tests.fakes.master import INDEX, SEQUENCE, SPACE, TRUNCATE, LogRow, Master, Row, _Space

SHARED: Final = 900
ALL_OF_THEM: Final = -1
"""As an lsn, which the wire shows as an unsigned number: before all others."""
_PROMOTE_SINCE: Final = (2, 10, 0)

_State = dict[int, dict[bytes, Row]]
"""Rows by space and key."""


@dataclass(frozen=True, slots=True)
class Written:
    """One transaction, or one row about the limbo, at `log[end - len(rows):end]`.

    `kind` is that of a row about the limbo, None for a transaction; then `owner` and `limit` are what it names. `passes`: the
    transaction changes nothing and waits for nobody.
    """

    end: int
    rows: tuple[LogRow, ...]
    is_sync: bool = False
    passes: bool = False
    kind: int | None = None
    owner: int = 0
    limit: int = 0

    @property
    def origin(self) -> int:
        """Whose it is."""
        return self.rows[0].origin

    @property
    def first_lsn(self) -> int:
        """Of its first row."""
        return self.rows[0].lsn

    @property
    def lsn(self) -> int:
        """Of its last row, by which the limbo knows it."""
        return self.rows[-1].lsn


class SynchronousMaster(Master):
    """A Master whose transactions may have to wait. Each change outside of `begin` and `commit` is one transaction."""

    def __init__(self, version: str = "2.11") -> None:
        self.written: list[Written] = []
        self.owner = 0
        self._waiting: list[tuple[Written, _State]] = []
        self._is_sync = False
        self.is_late = False
        """From 2.8 on: the next transaction got its flags before the CONFIRM that it comes behind, and waits for nothing."""
        super().__init__(version)
        self.written.clear()
        self.create_space("shared", ["id", "name", "n"], space_id=SHARED, flags={"is_sync": True})
        self._stable = self._state()

    @property
    def has_promote(self) -> bool:
        """Whether the limbo is handed on explicitly."""
        return self.version >= _PROMOTE_SINCE

    @property
    def waiting(self) -> list[Written]:
        """The limbo, from its head."""
        return [entry for entry, _ in self._waiting]

    def may_write_synchronously(self, origin: int) -> bool:
        """Whether a synchronous transaction of this origin would be taken now."""
        return self.owner == origin or (not self.has_promote and not self._waiting)

    def is_sync(self, space: int) -> bool:
        """Whether this space is synchronous now."""
        return bool(self._space_row(space)[5].get("is_sync"))

    def spaces_of(self, origin: int) -> list[int]:
        """The spaces of this origin's that can have rows."""
        return [number for number in self._space_ids() if number // 1000 == origin and self._has_primary(number)]

    def has_space(self, space: int) -> bool:
        """Whether there is one of this number, with or without a key."""
        return space in self._space_ids()

    def names(self) -> set[str]:
        """Of all spaces."""
        return {self.name_of(number) for number in self._space_ids()}

    def alter_sync(self, space: int, *, is_sync: bool) -> None:
        """The space becomes synchronous, or no longer is."""
        self.update(SPACE, [space], ["=", 6, {"is_sync": is_sync}])

    def name_of(self, space: int) -> str:
        """A space's name."""
        return str(self._space_row(space)[2])

    # Transactions.

    def begin(self) -> None:
        """A transaction begins."""
        super().begin()
        self._is_sync = False

    def commit(self, *, is_sync: bool = False, waits: bool = False) -> None:
        """It is in the log; what it touches says whether it waits."""
        rows = tuple(self._open or ())
        is_sync = is_sync or self._is_sync
        passes = self.has_promote and all(row.kind == Type.NOP for row in rows)
        joins = not passes and (is_sync or (bool(self._waiting) and self.owner == self.origin))
        is_late, self.is_late = self.is_late and not joins and not passes and self.origin == self.owner, False
        super().commit(is_sync=is_sync, waits=waits or joins or is_late)
        entry = Written(len(self.log), rows, is_sync and not passes, passes)
        self.written.append(entry)
        if joins:
            if not self._waiting and not self.has_promote:
                self.owner = self.origin
            assert self.owner == self.origin, "the limbo is another's"
            self._waiting.append((entry, self._stable))
        self._stable = self._state()

    def commit_unseen(self) -> None:
        """It ends by a row that has the flags, and isn't relayed."""
        rows = tuple(self._open or ())
        self.commit()
        for row in rows:
            row.tsn, row.flags = rows[0].lsn, None

    def _write(self, kind: int, body: dict[int, Any]) -> None:
        space = body.get(Key.SPACE_ID, 0)
        is_alone = self._open is None
        if is_alone:
            self.begin()
        if space >= SHARED and self._space_row(space)[5].get("is_sync"):
            self._is_sync = True
        super()._write(kind, body)
        if is_alone:
            self.commit()

    def alter_key(self, space: int | str, parts: Sequence[Any]) -> None:
        """Another primary key over the same rows."""
        super().alter_key(space, parts)
        self._rest()

    def key_places(self, space: int) -> list[int]:
        """Which fields its primary key has."""
        return self._places(space)

    def drop_index(self, space: int | str, index_id: int) -> None:
        """With the primary one the rows go too."""
        super().drop_index(space, index_id)
        self._rest()

    def drop(self, space: int | str) -> None:
        """The space goes."""
        super().drop(space)
        self._rest()

    def _rest(self) -> None:
        # Some of what a dropped space had goes only after its row is written.
        if self._open is None:
            self._stable = self._state()

    # What becomes of them.

    def confirm(self, limit: int, by: int) -> None:
        """CONFIRM, written by the owner or, up to 2.6, by its successor."""
        self._control(Type.RAFT_CONFIRM, limit, by)
        self._release(limit)

    def roll_back(self, limit: int, by: int) -> None:
        """ROLLBACK. With ALL_OF_THEM, as 2.6.0 writes it when an asynchronous one times out first, it names none of them."""
        self._control(Type.RAFT_ROLLBACK, limit, by)
        self._take_back(limit)

    def promote(self, limit: int, by: int) -> None:
        """PROMOTE: the limbo is `by`'s from here on."""
        self._hand_on(Type.RAFT_PROMOTE, limit, by, owner=by)

    def demote(self, limit: int, by: int) -> None:
        """DEMOTE: it is nobody's."""
        self._hand_on(Type.RAFT_DEMOTE, limit, by, owner=0)

    def _hand_on(self, kind: int, limit: int, by: int, *, owner: int) -> None:
        self.term += 1
        self._control(kind, limit, by)
        self._release(limit)
        self._take_back(limit + 1)
        assert not self._waiting
        self.owner = owner

    def _control(self, kind: int, limit: int, by: int) -> None:
        # Such a row is no transaction of the kind that commit() ends: it never waits.
        more = {"term": self.term} if kind in (Type.RAFT_PROMOTE, Type.RAFT_DEMOTE) else {}
        origin, self.origin, self._open = self.origin, by, []
        self.synchro(kind, self.owner, limit % 2**64, **more)
        (row,) = self._open
        self.origin, self._open = origin, None
        self.log.append(row)
        self.written.append(Written(len(self.log), (row,), kind=kind, owner=self.owner, limit=limit))

    def _release(self, limit: int) -> None:
        while self._waiting and not (self._waiting[0][0].is_sync and self._waiting[0][0].lsn > limit):
            self._waiting.pop(0)

    def _take_back(self, limit: int) -> None:
        for place, (entry, before) in enumerate(self._waiting):
            if entry.is_sync and entry.lsn >= limit:
                del self._waiting[place:]
                self._restore(before, entry.origin)
                self._stable = self._state()
                return

    def reorder(self, rng: random.Random, begin: int) -> None:
        """From row `begin` on, have the log of another member: the origins' transactions meet in another order there.

        Each origin's own order is the same in every log, and nothing goes past a row about the limbo.
        """
        written, log = self.written, self.log
        self.written, self.log = [entry for entry in written if entry.end <= begin], log[:begin]
        between: dict[int, list[Written]] = {}
        for entry in written[len(self.written) :]:
            if entry.kind is not None:
                self._append_mixed(rng, between)
                between = {}
                self._append(entry)
            else:
                between.setdefault(entry.origin, []).append(entry)
        self._append_mixed(rng, between)

    def _append_mixed(self, rng: random.Random, between: dict[int, list[Written]]) -> None:
        while between:
            origin = rng.choice(sorted(between))
            self._append(between[origin].pop(0))
            if not between[origin]:
                del between[origin]

    def _append(self, entry: Written) -> None:
        self.log += entry.rows
        self.written.append(replace(entry, end=len(self.log)))

    # Its memory.

    def _has_primary(self, space: int) -> bool:
        return any(row[:2] == [space, 0] for row in self._spaces[INDEX].rows.values())

    def _state(self) -> _State:
        # Rows are replaced and never changed, so the maps are all that has to be copied.
        return {number: dict(space.rows) for number, space in self._spaces.items()}

    def _restore(self, before: _State, origin: int) -> None:
        for number in [number for number in self._spaces if number // 1000 == origin and number not in before]:
            del self._spaces[number]
        for number, rows in before.items():
            if number // 1000 == origin:
                self._spaces[number] = _Space(dict(rows))
            elif number in (SPACE, INDEX, SEQUENCE, TRUNCATE, SHARED):
                width = 100 if number == SHARED else 1000
                kept = {key: row for key, row in self._spaces[number].rows.items() if row[0] // width != origin}
                self._spaces[number].rows = kept | {key: row for key, row in rows.items() if row[0] // width == origin}
