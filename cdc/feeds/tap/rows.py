"""Rows that clients are filled from, whichever store has them: short-lived views of an LMDB file, each as of one commit.

LMDB shows a reader the store as of one commit, with the position in it. While a reader has a view open, LMDB doesn't reuse pages
of that commit and the file grows. Therefore all clients share one view, a slow client doesn't keep it open, and after
`view_ms_max` the next view is opened. A client that is filled over several views gets the changes between two views before the
rows of the second (cdc.feeds.tap.stream).

    RowStore ◀── DaemonStore (cdc.feeds.tap.views)   the daemon's store on this machine, read while the daemon writes it
             ◀── TopicStore (cdc.feeds.tap.topic_store)   this process's own store, filled from the topics
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
"""Bit that the opaques of rows have."""
_PIECE_ROWS: Final = 64
_PIECE_BYTES: Final = 256 * 1024
"""Maximum size of a group of rows read from the store at a time, estimated from the previous groups, in bytes.

Between two groups the store checks whether the view has expired.
"""
_READ_SECONDS: Final = 0.05
"""Maximum time of one read, in seconds: a client that gets few of the rows must not keep the others from reading theirs."""
_OPAQUE_COUNT: Final = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of one view, as frames."""

    seq: int
    """Seq of the last change that the view has."""
    version: int
    """Number that grows whenever keys were removed that no event names: the schema's version, or a number of the store's own."""
    frames: list[bytes]
    keys: list[bytes]
    """The clients' keys of the rows."""
    cursor: Cursor | None
    """Position after these rows; None if there are no more rows."""


class BusyError(StateError):
    """The store can't be read for the moment."""


class ViewedSpace(Protocol):
    """A space in a view."""

    @property
    def number(self) -> int:
        """Number with which the keys of the space's rows begin in the store."""

    @property
    def name(self) -> str:
        """The space's name."""


@dataclass(frozen=True, slots=True)
class View:
    """The store as of one commit."""

    transaction: Any
    rows: Any
    """LMDB's database of the rows."""
    seq: int
    version: int
    spaces: Sequence[Any]
    """The spaces (each a ViewedSpace) in the order of their numbers."""
    doubtful: frozenset[bytes] = frozenset()
    """Keys whose rows must not be shown."""
    opened_at: float = field(default_factory=time.monotonic)


class RowStore(ABC):
    """Rows that clients are filled from. Any thread may call its methods; they run one at a time."""

    def __init__(self, vbucket_count: int, view_seconds_max: float) -> None:
        self._mask = vbucket_count - 1
        self._view_seconds_max = view_seconds_max
        self._lock = threading.Lock()
        self._view: View | None = None
        self._names: list[str] | None = None

    def seq(self) -> int:
        """Return the seq of the last change in the store now.

        Raises BusyError, or StateError if the store can't be read at all.
        """
        return self.refresh_position()[0]

    def refresh_position(self) -> tuple[int, int]:
        """Return the store's seq and version. Rows that are read from now on are no older. Raises the same errors as `seq`."""
        with self._lock, self._errors():
            self._release()
            view = self._current()
            return view.seq, view.version

    def read(self, cursor: Cursor, selection: Selection, *, is_packed: bool, count_max: int, bytes_max: int) -> Rows:
        """Return the rows after a cursor, up to about `count_max` rows or `bytes_max` bytes. Raises the same errors as `seq`."""
        with self._lock, self._errors():
            view = self._current()
            frames: list[bytes] = []
            keys: list[bytes] = []
            size = 0
            until = min(view.opened_at + self._view_seconds_max, time.monotonic() + _READ_SECONDS)
            for space, piece in _rows_behind(view, cursor, selection):
                last = piece[-1][0]
                rows = [row for row in piece if row[0] not in view.doubtful] if view.doubtful else piece
                names, made = self._encode_rows(rows, space, view, selection, len(frames), is_packed=is_packed)
                frames += made
                keys += names
                size += sum(map(len, made))
                # Stop also when the view expires: many rows may be rows that the client doesn't get.
                if len(frames) >= count_max or size >= bytes_max or time.monotonic() > until:
                    return Rows(view.seq, view.version, frames, keys, Cursor(space.number, last))
            return Rows(view.seq, view.version, frames, keys, None)

    def names(self) -> list[str] | None:
        """Return the names of the spaces in the last view, or None if there has been no view yet."""
        return self._names

    def close_old_view(self) -> None:
        """Release the view if it has expired and no read has replaced it."""
        with self._lock:
            if self._view is not None and time.monotonic() - self._view.opened_at > self._view_seconds_max:
                self._release()

    def close(self) -> None:
        """Close the store."""
        with self._lock:
            self._release()
            self._close()

    # What the stores implement.

    @abstractmethod
    def _open_view(self) -> View:
        """Open a view of the store as it is now. Raises BusyError or StateError."""

    @abstractmethod
    def _encode_rows(
        self,
        rows: Sequence[tuple[bytes, bytes]],
        space: Any,
        view: View,
        selection: Selection,
        frame_count: int,
        *,
        is_packed: bool,
    ) -> tuple[list[bytes], list[bytes]]:
        """Return keys and frames of those rows that the client gets; `frame_count` frames have been made before."""

    @abstractmethod
    def _errors(self) -> AbstractContextManager[None]:
        """Return a context that translates LMDB's errors into this project's."""

    @abstractmethod
    def _close(self) -> None:
        """Close the files; no view is open."""

    # What the stores share.

    def _current(self) -> View:
        view = self._view
        if view is not None and time.monotonic() - view.opened_at <= self._view_seconds_max:
            return view
        self._release()
        try:
            view = self._view = self._open_view()
        except BusyError as error:
            # Whoever waits for the store may keep the error for a while. With its frames it would keep the transaction, too, and
            # with that one of LMDB's few places for readers.
            raise error.with_traceback(None)  # noqa: B904 - the same error
        self._names = [space.name for space in view.spaces]
        return view

    def _release(self) -> None:
        if self._view is not None:
            self._view.transaction.abort()
            self._view = None

    def _frames(
        self, names: list[bytes], values: list[bytes], numbers: Sequence[tuple[int, int]], selection: Selection
    ) -> tuple[list[bytes], list[bytes]]:
        """Return keys and frames of those rows that the client gets. `numbers` has each row's opaque number and CAS."""
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
    """Yield spaces, each with some of its rows at a time."""
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
