"""The changes that the store hasn't got yet: by key, what each has now; and in order, one batch's after the other.

    put, delete, clear ──▶ pending ──▶ take: the changes of one batch ──▶ written: the store has them

There are two of it: this one, and a compiled one that does the same (cdc/native/src/overlay.rs).

What it refuses to know: the store, and how keys are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol, TypeVar, runtime_checkable

from cdc import native

CLEAR: Final = b""
"""Stands where a tuple would; no tuple is empty."""

Change = tuple[bytes, bytes | None]
"""A key and its tuple, None if the key is gone. `(space_prefix(…), CLEAR)`: all rows of the space are gone. Only the tuple
tells the two apart."""

T = TypeVar("T")

_PREFIX_BYTES: Final = 4


@runtime_checkable
class Changes(Protocol):
    """Changes in order, on their way to the store."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Change]: ...

    def extend(self, more: Changes, /) -> None:
        """Add these at the end."""

    @property
    def byte_count(self) -> int:
        """Of the keys and tuples."""

    def slices(self, changes_max: int, bytes_max: int) -> list[list[Change]]:
        """What is to be written, in slices of so many changes or bytes, unless one tuple alone has more.

        A CLEAR is a slice of its own. Between two of them only the last change of a key counts, and they are sorted: neighbours
        share pages.
        """


class Pending(Protocol):
    """What is needed of either."""

    doubtful: frozenset[bytes]
    """Keys whose tuple isn't known; told here because a compiled row path looks at them."""

    def get(self, key: bytes, unchanged: T) -> bytes | T | None:
        """The tuple that the key's last change has left, None if the key is gone, `unchanged` if it has no change."""

    def is_cleared(self, key: bytes) -> bool:
        """Whether what the store says about the key's space is past."""

    def changed(self, prefix: bytes, after: bytes) -> list[Change]:
        """Of keys with this prefix, from behind the key `after`: the last change of each, in the order of the keys."""

    def put(self, key: bytes, tuple_: bytes | None) -> None:
        """The key has this tuple from here on, none if it is None."""

    def put_undoable(self, key: bytes, tuple_: bytes | None) -> None:
        """As `put`, to be undone, once, by `undo_last`."""

    def keep_last(self) -> None:
        """There is nothing to undo any more."""

    def undo_last(self) -> None:
        """Undo what `put_undoable` did, if nothing has come since."""

    def clear(self, prefix: bytes) -> None:
        """Keys with this prefix are gone from here on."""

    @property
    def change_count(self) -> int:
        """How many changes there have been since `take`; a mark to go back to."""

    def forget_after(self, mark: int) -> None:
        """The changes after the mark won't be published. What is pending is wrong from here on: nothing may be read."""

    def take(self) -> Changes:
        """The changes since the last call, in order."""

    def take_before(self, mark: int) -> Changes:
        """Those of them that there were at the mark."""

    def written(self, changes: Changes) -> None:
        """The store has these changes now."""


class ChangeList(list[Change]):
    """Changes as a list."""

    @property
    def byte_count(self) -> int:
        """Of the keys and tuples."""
        return sum([len(key) + len(tuple_) if tuple_ else len(key) for key, tuple_ in self])

    def slices(self, changes_max: int, bytes_max: int) -> list[list[Change]]:
        """As `Changes` has it."""
        slices: list[list[Change]] = []
        pending: dict[bytes, bytes | None] = {}
        for key, value in self:
            if value == CLEAR:
                slices += _cut(pending, changes_max, bytes_max)
                pending = {}
                slices.append([(key, CLEAR)])
            else:
                pending[key] = value
        return slices + _cut(pending, changes_max, bytes_max)


def _cut(pending: dict[bytes, bytes | None], changes_max: int, bytes_max: int) -> list[list[Change]]:
    slices: list[list[Change]] = []
    ordered: list[Change] = sorted(pending.items())
    start = size = 0
    for index, (_, value) in enumerate(ordered):
        size += len(value or b"")
        if index - start == changes_max or (size > bytes_max and index > start):
            slices.append(ordered[start:index])
            start, size = index, len(value or b"")
    if ordered:
        slices.append(ordered[start:])
    return slices


class PendingChanges:
    """The changes in a dict and a list."""

    def __init__(self) -> None:
        self.doubtful: frozenset[bytes] = frozenset()
        # The last change of each key: itself, because an earlier one may have left the key with the same tuple.
        self._pending: dict[bytes, Change] = {}
        # How many clearings of a space are pending.
        self._clearings: dict[bytes, int] = {}
        self._changes = ChangeList()
        self._undo: tuple[Change, Change | None] | None = None

    def get(self, key: bytes, unchanged: T) -> bytes | T | None:
        """The tuple that the key's last change has left, None if the key is gone, `unchanged` if it has no change."""
        change = self._pending.get(key)
        return unchanged if change is None else change[1]

    def is_cleared(self, key: bytes) -> bool:
        """Whether what the store says about the key's space is past."""
        return bool(self._clearings) and key[:_PREFIX_BYTES] in self._clearings

    def changed(self, prefix: bytes, after: bytes) -> list[Change]:
        """Of keys with this prefix, from behind the key `after`: the last change of each, in the order of the keys."""
        return sorted(change for key, change in self._pending.items() if key.startswith(prefix) and key > after)

    def put(self, key: bytes, tuple_: bytes | None) -> None:
        """The key has this tuple from here on, none if it is None."""
        change = (key, tuple_)
        self._pending[key] = change
        self._changes.append(change)

    def put_undoable(self, key: bytes, tuple_: bytes | None) -> None:
        """As `put`, to be undone, once, by `undo_last`."""
        change = (key, tuple_)
        self._undo = change, self._pending.get(key)
        self._pending[key] = change
        self._changes.append(change)

    def keep_last(self) -> None:
        """There is nothing to undo any more."""
        self._undo = None

    def undo_last(self) -> None:
        """Undo what `put_undoable` did, if nothing has come since."""
        if self._undo is None:
            return
        (change, earlier), self._undo = self._undo, None
        if not self._changes or self._changes[-1] is not change:
            return  # that was another row's
        self._changes.pop()
        if earlier is None:
            del self._pending[change[0]]
        else:
            self._pending[change[0]] = earlier

    def clear(self, prefix: bytes) -> None:
        """Keys with this prefix are gone from here on."""
        for key in [key for key in self._pending if key.startswith(prefix)]:
            del self._pending[key]
        self._clearings[prefix] = self._clearings.get(prefix, 0) + 1
        self._changes.append((prefix, CLEAR))

    @property
    def change_count(self) -> int:
        """How many changes there have been since `take`; a mark to go back to."""
        return len(self._changes)

    def forget_after(self, mark: int) -> None:
        """The changes after the mark won't be published. What is pending is wrong from here on: nothing may be read."""
        del self._changes[mark:]

    def take(self) -> ChangeList:
        """The changes since the last call, in order."""
        changes, self._changes = self._changes, ChangeList()
        return changes

    def take_before(self, mark: int) -> ChangeList:
        """Those of them that there were at the mark."""
        changes, self._changes = ChangeList(self._changes[:mark]), ChangeList(self._changes[mark:])
        return changes

    def written(self, changes: Iterable[Change]) -> None:
        """The store has these changes now."""
        pending, clearings = self._pending, self._clearings
        for change in changes:
            key, tuple_ = change
            if tuple_ == CLEAR:
                clearings[key] -= 1
                if not clearings[key]:
                    del clearings[key]
            elif key in pending and pending[key] is change:
                del pending[key]


new_pending: Callable[[], Pending] = native.choose("PendingChanges", PendingChanges)
"""Begins with none."""

no_changes: Callable[[], Changes] = native.choose("Changes", ChangeList)
"""None, to which others can be added."""
