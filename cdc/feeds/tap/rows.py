"""The rows that clients are filled from, whichever store has them: views of an LMDB file, each of one moment and short.

LMDB shows a reader the store as it was at one commit, with the position in it. As long as somebody reads, pages of that moment
aren't used again and the file grows, so all clients share one view, nobody's slowness keeps it open, and after `view_ms_max` the
next one is taken. A client that is filled over several views is brought from one to the next by the changes between them
(cdc.feeds.tap.stream).

    RowStore ◀── DaemonStore (cdc.feeds.tap.views)   what the daemon keeps on this machine, read beside it
             ◀── TopicStore (cdc.feeds.tap.topic_store)   what this process keeps itself, from the topics
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Protocol

from cdc.errors import StateError
from cdc.feeds.tap.keys import vbucket_of
from cdc.feeds.tap.merging import Selection
from cdc.feeds.tap.session import Cursor
from cdc.feeds.tap.wire import KEY_BYTES_MAX, changed_key, mutation
from cdc.schema.keys import space_prefix

FILL_OPAQUE: Final = 0x8000_0000
"""Opaques of rows have this bit."""
_PIECE_ROWS: Final = 64
_PIECE_BYTES: Final = 256 * 1024
"""Rows are taken from the store so many at a time, as far as the size of those before tells; between two pieces it is looked
whether the view has become old."""
_OPAQUE_COUNT: Final = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of one view, as frames."""

    seq: int
    """The last change that is in them."""
    version: int
    """Grows whenever keys went that nobody can name: the schema's version, or a number of the store's own."""
    frames: list[bytes]
    keys: list[bytes]
    """What clients call them."""
    cursor: Cursor | None
    """The last of them; None if there are no more."""


class BusyError(StateError):
    """The store can't be read for the moment."""


class ViewedSpace(Protocol):
    """A space as a view has it."""

    @property
    def number(self) -> int:
        """What its rows' keys begin with in the store."""

    @property
    def name(self) -> str:
        """What it is called."""


@dataclass(frozen=True, slots=True)
class View:
    """The store at one commit."""

    transaction: Any
    rows: Any
    """LMDB's database of the rows."""
    seq: int
    version: int
    spaces: Sequence[Any]
    """Each a ViewedSpace, by their numbers."""
    doubtful: frozenset[bytes] = frozenset()
    """Keys whose rows may not be shown."""
    opened_at: float = field(default_factory=time.monotonic)


class RowStore(ABC):
    """Rows that clients are filled from. Its methods may be called by any thread, one at a time."""

    def __init__(self, vbucket_count: int, view_seconds_max: float) -> None:
        self._mask = vbucket_count - 1
        self._view_seconds_max = view_seconds_max
        self._lock = threading.Lock()
        self._view: View | None = None
        self._names: list[str] = []

    def seq(self) -> int:
        """The last change that is in the store now. Raises BusyError, or StateError if it can't be read at all."""
        return self.place()[0]

    def place(self) -> tuple[int, int]:
        """The same, and the version of what is there; rows that are read from now on are no older. Raises as `seq`."""
        with self._lock, self._errors():
            self._release()
            view = self._current()
            return view.seq, view.version

    def read(self, cursor: Cursor, selection: Selection, *, is_packed: bool, count_max: int, bytes_max: int) -> Rows:
        """The rows behind a cursor, until there are so many. Raises as `seq`."""
        with self._lock, self._errors():
            view = self._current()
            frames: list[bytes] = []
            keys: list[bytes] = []
            size = 0
            until = view.opened_at + self._view_seconds_max
            for space, piece in _rows_behind(view, cursor, selection):
                last = piece[-1][0]
                rows = [row for row in piece if row[0] not in view.doubtful] if view.doubtful else piece
                names, made = self._made(rows, space, view, selection, len(frames), is_packed=is_packed)
                frames += made
                keys += names
                size += sum(map(len, made))
                # Of what the client doesn't get, there may be much.
                if len(frames) >= count_max or size >= bytes_max or time.monotonic() > until:
                    return Rows(view.seq, view.version, frames, keys, Cursor(space.number, last))
            return Rows(view.seq, view.version, frames, keys, None)

    def names(self) -> list[str]:
        """The spaces that it had when it was looked at last."""
        return self._names

    def close_old_view(self) -> None:
        """Let go of a view that is old, if nobody has asked for the next one."""
        with self._lock:
            if self._view is not None and time.monotonic() - self._view.opened_at > self._view_seconds_max:
                self._release()

    def close(self) -> None:
        """Let go of the store."""
        with self._lock:
            self._release()
            self._close()

    # What differs.

    @abstractmethod
    def _open_view(self) -> View:
        """The store as it is now. Raises BusyError or StateError."""

    @abstractmethod
    def _made(
        self, rows: Sequence[tuple[bytes, bytes]], space: Any, view: View, selection: Selection, place: int, *, is_packed: bool
    ) -> tuple[list[bytes], list[bytes]]:
        """Keys and frames of the rows that the client gets; so many have been made before."""

    @abstractmethod
    def _errors(self) -> AbstractContextManager[None]:
        """Turns LMDB's errors into this project's."""

    @abstractmethod
    def _close(self) -> None:
        """Let go of the files; there is no view any more."""

    # What they share.

    def _current(self) -> View:
        view = self._view
        if view is not None and time.monotonic() - view.opened_at <= self._view_seconds_max:
            return view
        self._release()
        view = self._view = self._open_view()
        self._names = [space.name for space in view.spaces]
        return view

    def _release(self) -> None:
        if self._view is not None:
            self._view.transaction.abort()
            self._view = None

    def _frames(
        self, names: list[bytes], values: list[bytes], numbers: Sequence[tuple[int, int]], selection: Selection
    ) -> tuple[list[bytes], list[bytes]]:
        """Keys and frames of those rows that the client gets. `numbers` are what makes the opaque, and the CAS, of each."""
        mask, wanted, lost, is_keys_only = self._mask, selection.vbuckets, selection.lost, selection.is_keys_only
        keys, frames = [], []
        for name, value, (number, seq) in zip(names, values, numbers, strict=True):
            vbucket = vbucket_of(name, mask)
            if (wanted is not None and vbucket not in wanted) or vbucket in lost or len(name) > KEY_BYTES_MAX:
                continue
            opaque = FILL_OPAQUE | number & _OPAQUE_COUNT
            keys.append(name)
            frames.append(
                changed_key(name, vbucket, opaque, seq) if is_keys_only else mutation(name, value, vbucket, opaque, seq)
            )
        return keys, frames


def _rows_behind(view: View, cursor: Cursor, selection: Selection) -> Iterator[tuple[Any, list[tuple[bytes, bytes]]]]:
    """Spaces, with some of their rows at a time."""
    for space in view.spaces:
        if space.number < cursor.space or (selection.spaces is not None and space.name not in selection.spaces):
            continue
        prefix = space_prefix(space.number)
        after = cursor.key if space.number == cursor.space else b""
        with view.transaction.cursor(view.rows) as found:
            is_there = found.set_range(max(after, prefix))
            if is_there and found.key() == after:
                is_there = found.next()
            if not is_there:
                continue
            rows, count = found.iternext(), 1
            while piece := list(islice(rows, count)):
                size = sum([len(row) for _, row in piece])
                count = min(_PIECE_ROWS, 1 + _PIECE_BYTES * len(piece) // (size + 1))
                is_end = not piece[-1][0].startswith(prefix)
                if is_end:
                    piece = [row for row in piece if row[0].startswith(prefix)]
                if piece:
                    yield space, piece
                if is_end:
                    break
