"""Comparison of a snapshot with the store: which of the store's rows the snapshot lacks.

    snapshot   1   2       4   5 …     rows, in the order of their keys where the server has a TREE index
    store      1   2   3   4           the same order
               └ done ┘ ▲   └ done     runs of keys without a row that the snapshot lacks; `seen` has the other keys
                        └ lacking

Two ways lead to the same result. A row that the Python path handles is marked in the store. The compiled path goes through both
orders at once, and needs no mark for each row: it extends a run. A row out of order goes to the Python path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, Protocol

from cdc.schema.keys import space_prefix

ROWS_AHEAD: Final = 1024
"""Number of the store's rows that are read at a time."""
RUNS_MAX: Final = 100_000
"""Number of a space's runs from which on its rows are marked, because the runs are kept in memory."""

_PREFIX_BYTES: Final = 4


class Compared(Protocol):
    """Interface of a store whose rows are compared."""

    def scan(self, space_id: int, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and tuples of a space in the order of the keys, beginning after the key `after`."""

    def begin_mark(self) -> None:
        """Begin a snapshot: none of its keys has been seen."""

    def add_marks(self, keys: Iterable[bytes]) -> None:
        """Add keys that the snapshot contains."""

    def unmarked(self, space_id: int, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and tuples of a space without a mark, in the order of the keys, beginning after the key `after`."""

    def end_mark(self) -> None:
        """End the snapshot."""


class SpaceProgress:
    """How far the comparison of one space has come."""

    def __init__(self, store: Compared, number: int) -> None:
        """The keys of the space begin with `number`."""
        self._store = store
        self._number = number
        self.last = space_prefix(number)
        """Greatest key that has been handled."""
        self.stored: list[tuple[bytes, bytes]] = []
        """Some of the store's rows, in order."""
        self.index = 0
        """Index in `stored` of the first row whose key may be greater than `last`."""
        self.is_over = False
        """Whether the store has no rows after `stored`."""
        # Runs: the key before each, and its last key.
        self._done: list[tuple[bytes, bytes]] = []

    @property
    def has_room(self) -> bool:
        """Whether runs may be added."""
        return len(self._done) < RUNS_MAX

    @property
    def next_key(self) -> bytes | None:
        """Key of the store's next row; None if there is none. Reads the store if needed."""
        while self.index >= len(self.stored):
            if self.is_over:
                return None
            after = self.stored[-1][0] if self.stored else b""
            self.stored, self.index = list(islice(self._store.scan(self._number, after), ROWS_AHEAD)), 0
            self.is_over = len(self.stored) < ROWS_AHEAD
        return self.stored[self.index][0]

    def see(self, key: bytes) -> None:
        """Note a key that has been marked."""
        if key <= self.last:
            return
        lacks = False
        while (found := self.next_key) is not None and found < key:
            lacks = lacks or found > self.last
            self.index += 1
        if lacks:
            self.last = key
        else:
            self.extend(key)

    def extend(self, last: bytes) -> None:
        """Note that all of the store's rows, and of the snapshot's, after the last key and up to this one have been handled."""
        if self._done and self._done[-1][1] == self.last:
            self._done[-1] = (self._done[-1][0], last)
        elif last > self.last:
            self._done.append((self.last, last))
        self.last = last

    def skip_lacking(self, last: bytes) -> None:
        """Note that the snapshot lacks the store's next rows, up to this key."""
        self.last = last

    def forget(self) -> None:
        """Note that all of the store's rows are gone."""
        self.stored, self.index, self.is_over = [], 0, True
        self._done.clear()

    def missing(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and tuples that the snapshot lacks."""
        after = b""
        for before, last in self._done:
            for row in self._store.unmarked(self._number, after):
                if row[0] > before:
                    break
                yield row
            after = last
        yield from self._store.unmarked(self._number, after)


class Comparison:
    """Comparison of one snapshot with the store."""

    def __init__(self, store: Compared) -> None:
        """Begin. None of the store's rows has been seen."""
        self._store = store
        self._spaces: dict[int, SpaceProgress] = {}
        self._current: SpaceProgress | None = None
        store.begin_mark()

    @property
    def current(self) -> SpaceProgress | None:
        """Progress of the space that the last row was of; None if its rows have to be marked."""
        return self._current if self._current is not None and self._current.has_room else None

    def see(self, keys: list[bytes]) -> None:
        """Note keys that the snapshot contains, in their order there."""
        self._store.add_marks(keys)
        for key in keys:
            self._current = self._progress(int.from_bytes(key[:_PREFIX_BYTES], "big"))
            if self._current.has_room:
                self._current.see(key)

    def forget(self, number: int) -> None:
        """Note that the rows under this number are gone, before the snapshot's rows of the space."""
        self._progress(number).forget()

    def missing(self, number: int) -> Iterator[tuple[bytes, bytes]]:
        """Return keys and tuples of a space that the snapshot lacks."""
        return self._progress(number).missing()

    def end(self) -> None:
        """End the comparison."""
        self._store.end_mark()

    def _progress(self, number: int) -> SpaceProgress:
        found = self._spaces.get(number)
        if found is None:
            found = self._spaces[number] = SpaceProgress(self._store, number)
        return found
