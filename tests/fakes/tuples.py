"""A store of tuples in memory, with the promises of cdc.store.store.StateStore, and a writer that brings changes into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from cdc.images.pending import CLEAR, Change, ChangeList, Changes, no_changes
from cdc.schema.keys import space_prefix
from cdc.store.journal import Journal, Records
from cdc.store.writer import StateWriter


def changes_of(found: Iterable[Change]) -> Changes:
    """Changes as a batch has them."""
    changes = no_changes()
    changes.extend(ChangeList(found))
    return changes


class MemoryTuples:
    """Rows, records and the keys that a snapshot has shown."""

    is_former = False

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.records: dict[bytes, bytes] = {}
        self._seen: set[bytes] | None = None

    @property
    def get(self) -> Callable[[bytes], bytes | None]:
        """A key's tuple."""
        return self.rows.get

    @property
    def row_count(self) -> int:
        """Rows of all spaces."""
        return len(self.rows)

    def space_ids(self) -> list[int]:
        """Spaces that have rows."""
        return sorted({int.from_bytes(key[:4], "big") for key in self.rows})

    def scan(self, space_id: int, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Rows of a space in key order, as they are at the time of the call."""
        prefix = space_prefix(space_id)
        return iter(sorted(row for row in self.rows.items() if row[0].startswith(prefix) and row[0] > after))

    def remove_some(self, space_id: int) -> bool:
        """Remove rows of a space, some at a time."""
        for key, _ in list(self.scan(space_id))[:2]:
            del self.rows[key]
        return not any(True for _ in self.scan(space_id))

    def begin_mark(self) -> None:
        """A snapshot begins."""
        self._seen = set()

    def add_marks(self, keys: Iterable[bytes]) -> None:
        """The snapshot has shown these keys."""
        assert self._seen is not None
        self._seen.update(keys)

    def unmarked(self, space_id: int, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Rows that the snapshot has not shown."""
        seen = self._seen
        assert seen is not None
        return iter([row for row in self.scan(space_id, after) if row[0] not in seen])

    def end_mark(self) -> None:
        """The snapshot is over."""
        self._seen = None

    def write(self, changes: Iterable[Change], records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Apply changes and records."""
        for key, value in changes:
            if value is None:
                self.rows.pop(key, None)
            elif value == CLEAR:
                self.rows = {other: row for other, row in self.rows.items() if not other.startswith(key)}
            else:
                self.rows[key] = value
        for name, record in records:
            self.records.pop(name, None)
            if record is not None:
                self.records[name] = record

    def close(self) -> None:
        """Nothing to let go of."""

    def destroy(self) -> None:
        """Everything is gone."""
        self.__init__()  # type: ignore[misc]


class NoJournal(Journal):
    """Of a store that no process could find again."""

    def append(self, after: int, seq: int, records: Records, changes: Changes) -> None:
        """Nothing is kept."""


class MemoryWriter(StateWriter):
    """A StateWriter over such a store. Nothing is written until a flush is forced."""

    def __init__(self, tuples: MemoryTuples, name: str) -> None:
        self._tuples = tuples
        with self._in_memory():
            super().__init__(Path("nowhere"), name, 1e9)
        self._journal = NoJournal(Path("nowhere"))

    def restart(self) -> None:
        """Begin with an empty store."""
        with self._in_memory():
            super().restart()

    def _in_memory(self) -> Any:
        return mock.patch("cdc.store.writer.StateStore", return_value=self._tuples)
