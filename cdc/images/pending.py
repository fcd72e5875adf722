"""The changes that the store doesn't have yet: the last change of each key, and all changes in order, batch after batch.

    put, delete, clear ──▶ pending ──▶ take: the changes of one batch ──▶ written: the store has them

There are two implementations: this one, and a compiled one that does the same (cdc/native/src/pending.rs).

This module knows neither the store, nor how keys are made.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol, TypeVar, runtime_checkable

from cdc import native

CLEAR: Final = b""
"""Placeholder for a tuple; no tuple is empty."""

Change = tuple[bytes, bytes | None]
"""A key and its tuple, None if the key is gone. `(space_prefix(…), CLEAR)` says that all rows of the space are gone. Only the
tuple distinguishes the two."""

T = TypeVar("T")

_PREFIX_BYTES: Final = 4
_COUNT: Final = struct.Struct("<I")
"""Number of packed changes."""
_LENGTHS: Final = struct.Struct("<II")
"""Lengths of a packed change's key and tuple."""
_GONE: Final = 0xFFFF_FFFF
"""In place of a tuple's length: the key is gone."""


@runtime_checkable
class Changes(Protocol):
    """Changes in order, on their way to the store."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Change]: ...

    def extend(self, more: Changes, /) -> None:
        """Add these at the end."""

    @property
    def byte_count(self) -> int:
        """Total size of the keys and tuples, in bytes."""

    def slices(self, changes_max: int, bytes_max: int) -> list[list[Change]]:
        """Return the changes to write, in slices of at most so many changes or bytes, unless a single tuple is larger.

        A CLEAR is a slice of its own. Between two CLEARs, only the last change of each key counts, and the changes are sorted,
        because neighbours share pages.
        """

    def pack(self) -> bytes:
        """Return the changes as bytes, for `unpacked`."""


@runtime_checkable
class PackedWriter(Protocol):
    """Changes that can write themselves into a file."""

    def __len__(self) -> int: ...

    @property
    def byte_count(self) -> int:
        """Total size of the keys and tuples, in bytes."""

    def write_packed(self, descriptor: int, offset: int) -> None:
        """Write what `pack` would return, from the file's `offset` on. Raises OSError."""


def packed_size(changes: Changes | PackedWriter) -> int:
    """Return the size of what `pack` returns, in bytes."""
    return _COUNT.size + len(changes) * _LENGTHS.size + changes.byte_count


class Pending(Protocol):
    """Interface of both implementations."""

    doubtful: frozenset[bytes]
    """Keys whose tuple isn't known; kept here because a compiled row path looks at them."""

    def get(self, key: bytes, unchanged: T) -> bytes | T | None:
        """Return the tuple of the key's last change, None if the key is gone, `unchanged` if it has no change."""

    def is_cleared(self, key: bytes) -> bool:
        """Return whether the store's rows of the key's space are outdated."""

    def changed(self, prefix: bytes, after: bytes) -> list[Change]:
        """Return the last change of each key with this prefix, in the order of the keys, beginning after the key `after`."""

    def put(self, key: bytes, tuple_: bytes | None) -> None:
        """Set the key's tuple from here on; delete the key if it is None."""

    def clear(self, prefix: bytes) -> None:
        """Delete all keys with this prefix from here on."""

    @property
    def change_count(self) -> int:
        """Number of changes since `take`; a mark to return to."""

    def forget_after(self, mark: int) -> None:
        """Discard the changes after the mark. The pending changes are wrong from here on: nothing may be read."""

    def take(self) -> Changes:
        """Return the changes since the last call, in order."""

    def take_before(self, mark: int) -> Changes:
        """Return those of them that existed at the mark."""

    def written(self, changes: Changes) -> None:
        """Record that the store has these changes now."""


class ChangeList(list[Change]):
    """Changes as a list."""

    @property
    def byte_count(self) -> int:
        """Total size of the keys and tuples, in bytes."""
        return sum([len(key) + len(tuple_) if tuple_ else len(key) for key, tuple_ in self])

    def slices(self, changes_max: int, bytes_max: int) -> list[list[Change]]:
        """Return the slices as described in `Changes`."""
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

    def pack(self) -> bytes:
        """Return the changes as bytes, for `unpacked`."""
        lengths = [_LENGTHS.pack(len(key), _GONE if tuple_ is None else len(tuple_)) for key, tuple_ in self]
        data = [part for key, tuple_ in self for part in (key, tuple_ or b"")]
        return b"".join([_COUNT.pack(len(self)), *lengths, *data])


def unpacked(data: bytes) -> ChangeList:
    """Return the changes that `pack` has made bytes of: their number, the lengths of each key and tuple, all keys and tuples.

    Raises ValueError for other bytes, as far as the lengths tell.
    """
    if len(data) < _COUNT.size:
        raise ValueError("changes have a number")
    (count,) = _COUNT.unpack_from(data)
    changes, at = ChangeList(), _COUNT.size + count * _LENGTHS.size
    if at > len(data):
        raise ValueError("lengths are missing")
    for key_bytes, tuple_bytes in _LENGTHS.iter_unpack(data[_COUNT.size : at]):
        middle = at + key_bytes
        end = middle if tuple_bytes == _GONE else middle + tuple_bytes
        if key_bytes < _PREFIX_BYTES:
            raise ValueError("a key has no prefix")
        changes.append((data[at:middle], None if tuple_bytes == _GONE else data[middle:end]))
        at = end
    if at != len(data):
        raise ValueError("the lengths don't make the whole")
    return changes


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
    """Pending changes in a dict and a list."""

    def __init__(self) -> None:
        self.doubtful: frozenset[bytes] = frozenset()
        # By key: its last change, as an object, because an earlier one may have left the key with the same tuple.
        self._pending: dict[bytes, Change] = {}
        # By prefix: number of pending CLEARs.
        self._clearings: dict[bytes, int] = {}
        self._changes = ChangeList()

    def get(self, key: bytes, unchanged: T) -> bytes | T | None:
        """Return the tuple of the key's last change, None if the key is gone, `unchanged` if it has no change."""
        change = self._pending.get(key)
        return unchanged if change is None else change[1]

    def is_cleared(self, key: bytes) -> bool:
        """Return whether the store's rows of the key's space are outdated."""
        return bool(self._clearings) and key[:_PREFIX_BYTES] in self._clearings

    def changed(self, prefix: bytes, after: bytes) -> list[Change]:
        """Return the last change of each key with this prefix, in the order of the keys, beginning after the key `after`."""
        return sorted(change for key, change in self._pending.items() if key.startswith(prefix) and key > after)

    def put(self, key: bytes, tuple_: bytes | None) -> None:
        """Set the key's tuple from here on; delete the key if it is None."""
        change = (key, tuple_)
        self._pending[key] = change
        self._changes.append(change)

    def clear(self, prefix: bytes) -> None:
        """Delete all keys with this prefix from here on."""
        for key in [key for key in self._pending if key.startswith(prefix)]:
            del self._pending[key]
        self._clearings[prefix] = self._clearings.get(prefix, 0) + 1
        self._changes.append((prefix, CLEAR))

    @property
    def change_count(self) -> int:
        """Number of changes since `take`; a mark to return to."""
        return len(self._changes)

    def forget_after(self, mark: int) -> None:
        """Discard the changes after the mark. The pending changes are wrong from here on: nothing may be read."""
        del self._changes[mark:]

    def take(self) -> ChangeList:
        """Return the changes since the last call, in order."""
        changes, self._changes = self._changes, ChangeList()
        return changes

    def take_before(self, mark: int) -> ChangeList:
        """Return those of them that existed at the mark."""
        changes, self._changes = ChangeList(self._changes[:mark]), ChangeList(self._changes[mark:])
        return changes

    def written(self, changes: Iterable[Change]) -> None:
        """Record that the store has these changes now."""
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
"""Create an object without changes."""

no_changes: Callable[[], Changes] = native.choose("Changes", ChangeList)
"""Create an empty list, to which changes can be added."""
