"""Rows of the daemon's store, read from this process while the daemon writes them.

LMDB shows a reader the store as it was at one commit, with the position S in it. As long as somebody reads, pages of that moment
aren't used again and the file grows, so all clients share one view, nobody's slowness keeps it open, and after `view_ms_max` the
next one is taken. A client that is filled over several views is brought from one to the next by the changes between them
(cdc.feeds.tap.filling).

Nothing is written here but an entry in LMDB's table of readers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import lmdb

from cdc.errors import EncodingError, SchemaError, StateError
from cdc.events.row_encoder import RowEncoder
from cdc.feeds.tap import wire
from cdc.feeds.tap.changes import packed
from cdc.feeds.tap.keys import KeyTemplate, vbucket_of
from cdc.feeds.tap.merging import Selection
from cdc.feeds.tap.session import Cursor
from cdc.protocol.codec import tuple_values
from cdc.schema.forms import SpaceForm
from cdc.schema.keys import space_prefix
from cdc.store.files import DATA_FILE, is_clean, translate_lmdb_errors
from cdc.store.store import FORMAT
from cdc.store.writer import numbers_in
from cdc.stream.checkpoint import Checkpoint, fold

FILL_OPAQUE: Final = 0x8000_0000
"""Opaques of rows have this bit."""
_LOOK_ROWS: Final = 64
"""How often it is looked whether the view has become old."""
_OPAQUE_COUNT: Final = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of one view, as frames."""

    seq: int
    """The last change that is in them."""
    version: int
    """Of the schema."""
    frames: list[bytes]
    keys: list[bytes]
    """What clients call them."""
    cursor: Cursor | None
    """The last of them; None if there are no more."""


class BusyError(StateError):
    """The store can't be read for the moment."""


@dataclass(slots=True)
class _Space:
    number: int
    name: str
    encoder: RowEncoder
    template: KeyTemplate
    prefix: bytes = b""
    number_field: int | None = None
    """Where the primary key is, if it is one whole number and the key at the client has nothing else behind `prefix`."""


class _View:
    """The store at one commit."""

    def __init__(self, transaction: Any, seq: int, version: int, spaces: list[_Space], doubtful: frozenset[bytes]) -> None:
        self.transaction = transaction
        self.seq = seq
        self.version = version
        self.spaces = spaces
        self.doubtful = doubtful
        self.opened_at = time.monotonic()


class DaemonStore:
    """One daemon's store. Its methods may be called by any thread, one at a time."""

    def __init__(
        self, path: Path, name: str, template: Callable[[str], KeyTemplate | None], vbucket_count: int, view_seconds_max: float
    ) -> None:
        """`template` gives a space's key template, None if the space isn't wanted."""
        self._path = path
        self._name = name
        self._template = template
        self._mask = vbucket_count - 1
        self._view_seconds_max = view_seconds_max
        self._lock = threading.Lock()
        self._environment: lmdb.Environment | None = None
        self._identity: tuple[int, int] | None = None
        self._databases: tuple[Any, ...] = ()
        self._view: _View | None = None
        self._records: dict[bytes, bytes] = {}
        self._spaces: list[_Space] = []

    def seq(self) -> int:
        """The last change that is in the store now. Raises BusyError, or StateError if it can't be read at all."""
        with self._lock, translate_lmdb_errors(self._path):
            self._release()
            return self._current().seq

    def read(self, cursor: Cursor, selection: Selection, *, is_packed: bool, count_max: int, bytes_max: int) -> Rows:
        """The rows behind a cursor, at most so many. Raises as `seq`."""
        with self._lock, translate_lmdb_errors(self._path):
            view = self._current()
            frames: list[bytes] = []
            keys: list[bytes] = []
            size = 0
            until = view.opened_at + self._view_seconds_max
            for place, (key, tuple_, space) in enumerate(self._rows(view, cursor, selection)):
                if key in view.doubtful:
                    continue
                made = self._made(tuple_, space, view.seq, selection, len(frames), is_packed=is_packed)
                if made is not None:
                    frames.append(made[1])
                    keys.append(made[0])
                    size += len(made[1])
                if len(frames) >= count_max or size >= bytes_max:
                    return Rows(view.seq, view.version, frames, keys, Cursor(space.number, key))
                # Of what the client doesn't get, there may be much.
                if not place % _LOOK_ROWS and time.monotonic() > until:
                    return Rows(view.seq, view.version, frames, keys, Cursor(space.number, key))
            return Rows(view.seq, view.version, frames, keys, None)

    def close_old_view(self) -> None:
        """Let go of a view that is old, if nobody has asked for the next one."""
        with self._lock:
            if self._view is not None and time.monotonic() - self._view.opened_at > self._view_seconds_max:
                self._release()

    def close(self) -> None:
        """Let go of the store."""
        with self._lock:
            self._close()

    def _rows(self, view: _View, cursor: Cursor, selection: Selection) -> Iterator[tuple[bytes, bytes, _Space]]:
        rows = self._databases[1]
        for space in view.spaces:
            if space.number < cursor.space or (selection.spaces is not None and space.name not in selection.spaces):
                continue
            prefix = space_prefix(space.number)
            after = cursor.key if space.number == cursor.space else b""
            with view.transaction.cursor(rows) as found:
                is_there = found.set_range(max(after, prefix))
                if is_there and found.key() == after:
                    is_there = found.next()
                if not is_there:
                    continue
                for key, tuple_ in found.iternext():
                    if not key.startswith(prefix):
                        break
                    yield key, tuple_, space

    def _made(
        self, tuple_: bytes, space: _Space, seq: int, selection: Selection, place: int, *, is_packed: bool
    ) -> tuple[bytes, bytes] | None:
        """A row's key at the client, and its frame; None if the client doesn't get it."""
        values = tuple_values(tuple_)
        encoder, template = space.encoder, space.template
        try:
            row = encoder.rows[len(values)](values)
            if space.number_field is not None:
                key = b"%b%d" % (space.prefix, values[space.number_field])
            elif template.needs_row:
                key = template.of_row(encoder.key_of(values), row)
            else:
                key = template.of_key(encoder.key_of(values))
        except (EncodingError, SchemaError):
            return None  # it has no event either
        vbucket = vbucket_of(key, self._mask)
        if (selection.vbuckets is not None and vbucket not in selection.vbuckets) or vbucket in selection.lost:
            return None
        opaque = FILL_OPAQUE | (seq + place) & _OPAQUE_COUNT
        if selection.is_keys_only:
            return key, wire.changed_key(key, vbucket, opaque, seq)
        return key, wire.mutation(key, packed(row) if is_packed else row, vbucket, opaque, seq)

    # The view.

    def _current(self) -> _View:
        view = self._view
        if view is not None and time.monotonic() - view.opened_at <= self._view_seconds_max:
            return view
        self._release()
        self._open()
        assert self._environment is not None
        about, _, records_db = self._databases
        transaction = self._environment.begin(buffers=False)
        try:
            if transaction.get(b"format", db=about) != FORMAT:
                raise StateError(
                    f"the state store {self._path} was written by another version", "Run the daemon's version of this program."
                )
            if transaction.get(b"redo", db=about) is not None:
                raise BusyError(f"a large write into the state store {self._path} isn't complete")
            self._view = self._view_of(transaction, dict(transaction.cursor(records_db)))
        except BaseException:
            transaction.abort()
            raise
        return self._view

    def _view_of(self, transaction: Any, records: dict[bytes, bytes]) -> _View:
        checkpoint = Checkpoint()
        for key, value in records.items():
            fold(self._name, key, value, checkpoint)
        position = checkpoint.position
        if position is None:
            raise BusyError(
                f"the state store {self._path} has nothing of a daemon {self._name!r} yet",
                "Start the daemon; clients wait for it.",
            )
        if position.rekeyed:
            raise BusyError(f"rows in the state store {self._path} are being given other keys")
        forms = {key: value for key, value in records.items() if b"space_id" in key or b"numbers" in key}
        if forms != self._records:
            self._records = forms
            numbers = numbers_in(records)
            spaces = [self._space(form, numbers) for form in checkpoint.published_forms()]
            self._spaces = sorted((space for space in spaces if space is not None), key=lambda space: space.number)
        return _View(transaction, position.seq, position.schema_version, self._spaces, position.doubtful)

    def _space(self, form: SpaceForm, numbers: dict[int, int]) -> _Space | None:
        template = self._template(form.name)
        if template is None:
            return None
        space = _Space(numbers.get(form.space_id, form.space_id), form.name, RowEncoder(form), template)
        part = form.key_parts[0]
        if template.prefix is not None and len(form.key_parts) == 1 and not part.path and part.type in ("unsigned", "integer"):
            space.prefix, space.number_field = template.prefix, part.field
        return space

    def names(self) -> list[str]:
        """The spaces that the last view had."""
        return [space.name for space in self._spaces]

    def _open(self) -> None:
        data = self._path / DATA_FILE
        try:
            found = data.stat()
        except FileNotFoundError as error:
            raise BusyError(f"there is no state store in {self._path} yet", "Start the daemon; clients wait for it.") from error
        identity = found.st_dev, found.st_ino
        if self._environment is not None and identity == self._identity:
            return
        self._close()
        is_clean(self._path)  # raises StateLostError for what can't be trusted
        environment = lmdb.open(str(self._path), readonly=True, max_dbs=8, max_readers=126, readahead=False, map_size=1 << 40)
        try:
            self._databases = tuple(environment.open_db(name, create=False) for name in (b"about", b"rows", b"records"))
        except lmdb.NotFoundError as error:
            environment.close()
            raise BusyError(f"the state store {self._path} is being made") from error
        self._environment, self._identity = environment, identity
        self._records = {}

    def _release(self) -> None:
        if self._view is not None:
            self._view.transaction.abort()
            self._view = None

    def _close(self) -> None:
        self._release()
        if self._environment is not None:
            self._environment.close()
            self._environment = None
