"""The server's own store of rows, for machines where it can't read the daemon's: an LMDB file, filled from the topics.

    rows    space id, primary key → seq of its last change, the row as in `after`
    gone    the same for deleted keys, while partitions are read in no common order
    about   format, configuration, position, spaces

The position is written in the same commit as its rows, so a killed process resumes where it stopped, and no change is applied
twice with a different result. Unlike the daemon's store, each commit is synced: there are a few per second, and after a stop
of the machine the store is at the last commit or the one before.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import lmdb
import msgspec
import structlog

from cdc.errors import StateError
from cdc.feeds.tap.changes import UNREADABLE, packed
from cdc.feeds.tap.directory import open_locked
from cdc.feeds.tap.folding import Fold, SpaceState, decoded_spaces, encoded_spaces
from cdc.feeds.tap.keys import KeyTemplate
from cdc.feeds.tap.merging import Selection
from cdc.feeds.tap.rows import BusyError, RowStore, View
from cdc.schema.keys import space_prefix
from cdc.store.files import DirectoryLock

_FORMAT: Final = b"tarantool-cdc tap rows 1"
_DATA_FILE: Final = "data.mdb"
_READERS_FILE: Final = "lock.mdb"
_MAP_BYTES: Final = 1 << 40
_MAP_BYTES_MIN: Final = 1 << 30
_FILE_MODE: Final = 0o600
_KEY_BYTES_MAX: Final = 511
"""LMDB's limit for a key, in bytes."""
_SWEPT_ROWS: Final = 20_000
_HEAD: Final = struct.Struct(">QH")
"""Head of a row: the seq of its last change, and the length of its key if the key is stored here and not in LMDB's key."""
_SEQ: Final = struct.Struct(">Q")
_DAMAGED: Final = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.IncompatibleError,
    lmdb.VersionMismatchError,
)


class StorePosition(msgspec.Struct):
    """Position of a store in the topics."""

    epoch: int
    """Number that grows whenever keys are removed that no event names, also over new stores.

    No client was filled from one with a higher epoch.
    """
    seq: int = 0
    """Seq up to which all changes are in the store; later ones aren't, unless it is loading."""
    is_loading: bool = True
    places: dict[str, tuple[int, int]] = {}
    """By topic and partition, the next message's offset, and the seq of the last message before it."""
    cluster: str = ""
    """Id of the Kafka cluster, if known."""
    topic_ids: dict[str, str] = {}
    """Ids of topics by name, if known."""
    looked_seq: int = 0
    """Seq up to which changes came from topics with these ids."""


@dataclass(frozen=True, slots=True)
class _Space:
    number: int
    name: str
    floor: int
    template: KeyTemplate


class TopicStore(RowStore):
    """One server's own store. One thread writes it (cdc.feeds.tap.keeper); any thread may read it."""

    def __init__(
        self,
        path: Path,
        name: str,
        spaces: list[str],
        template: Callable[[str], KeyTemplate | None],
        vbucket_count: int,
        view_seconds_max: float,
    ) -> None:
        """`name` and `spaces` determine the contents: with other ones the store is made again.

        `template` returns None for an unwanted space.
        """
        super().__init__(vbucket_count, view_seconds_max)
        self.path = path
        self._kept = msgspec.msgpack.encode([name, spaces])
        self._template = template
        self._held: DirectoryLock | None = None
        self._environment: lmdb.Environment | None = None
        self._databases: tuple[Any, Any, Any] = (None, None, None)
        self._sweeping: tuple[int, int, bytes] = (0, 0, b"")
        """The space being swept, its floor, and the LMDB key to continue from."""
        self.position = StorePosition(0)
        self.row_count = 0
        self.incomplete: list[str] = []
        """Names of the spaces whose rows may be missing or outdated."""

    # Opening.

    def open(self, known_epoch: int = 0) -> None:
        """Open or create the store. Raises ConfigurationError if another process has it, or the directory can't be written.

        `known_epoch` is the highest epoch at which a client may have been filled. If the store is made again, its epoch is
        higher than that, although the file no longer contains the former epoch.
        """
        if self._environment is None:
            self.position = StorePosition(known_epoch)
            self._held, _ = open_locked("tap.store_path", self.path, self._open_or_make)

    def _open_or_make(self) -> None:
        try:
            self._open()
        except _DAMAGED as error:
            self._log_recreation(f"it is damaged: {error}")
            for name in (_DATA_FILE, _READERS_FILE):
                (self.path / name).unlink(missing_ok=True)
            self._open()

    def _open(self) -> None:
        environment = _opened(self.path)
        try:
            environment.reader_check()
            self._databases = about, _, _ = tuple(environment.open_db(name) for name in (b"about", b"rows", b"gone"))  # type: ignore[assignment]  # there are three
            self._environment = environment
            with environment.begin() as txn:
                written, kept, position = (txn.get(name, db=about) for name in (b"format", b"kept", b"position"))
            if written != _FORMAT or kept != self._kept or position is None:
                if written is not None:
                    self._log_recreation("it was written by another version, or for other spaces")
                    self.position.epoch = max(self.position.epoch, _epoch_of(position))
                self.clear()
            else:
                self.position = msgspec.msgpack.decode(position, type=StorePosition)
                self._count(self.spaces())
        except BaseException:
            environment.close()
            self._environment = None
            raise

    def _log_recreation(self, why: str) -> None:
        structlog.get_logger().warning("the server's own store is made again from the topics", path=str(self.path), why=why)

    # Writing, for one thread.

    def spaces(self) -> dict[int, SpaceState]:
        """Return the state of the spaces."""
        with self._translated_errors(), self._opened_environment.begin() as txn:
            return decoded_spaces(txn.get(b"spaces", b"", db=self._databases[0]))

    def clear(self, why: str = "") -> None:
        """Remove all rows, and begin a new epoch. Logs `why`, if given."""
        if why:
            self._log_recreation(why)
        about, rows, gone = self._databases
        position = StorePosition(self.position.epoch + 1)
        with self._translated_errors(), self._opened_environment.begin(write=True) as txn:
            for database in (rows, gone):
                txn.drop(database, delete=False)
            txn.put(b"format", _FORMAT, db=about)
            txn.put(b"kept", self._kept, db=about)
            txn.put(b"spaces", encoded_spaces({}), db=about)
            txn.put(b"position", msgspec.msgpack.encode(position), db=about)
        self.position = position
        self._count({})

    def commit(self, fold: Fold, position: StorePosition, *, is_ordered: bool) -> None:
        """Write the fold's changes as one commit. `is_ordered`: all of them are newer than the store's rows.

        Raises StateError.
        """
        about, rows, gone = self._databases
        with self._translated_errors(), self._opened_environment.begin(write=True) as txn:
            has_gone = txn.stat(gone)["entries"] > 0
            for (space_id, key), (seq, value) in sorted(fold.rows.items()):
                if seq <= fold.spaces[space_id].floor:
                    continue
                place, kept_key = _place(space_id, key)
                if not is_ordered:
                    former = txn.get(place, db=rows)
                    if former is not None and _SEQ.unpack_from(former)[0] >= seq:
                        continue
                    if has_gone and (deleted := txn.get(place, db=gone)) is not None and _SEQ.unpack(deleted)[0] >= seq:
                        continue
                if value is not None:
                    txn.put(place, b"%b%b%b" % (_HEAD.pack(seq, len(kept_key)), kept_key, value), db=rows)
                    continue
                txn.delete(place, db=rows)
                if position.is_loading:  # an older change of the key may still arrive
                    txn.put(place, _SEQ.pack(seq), db=gone)
            if not position.is_loading and has_gone:
                txn.drop(gone, delete=False)
            txn.put(b"spaces", encoded_spaces(fold.spaces), db=about)
            txn.put(b"position", msgspec.msgpack.encode(position), db=about)
        self.position = position
        self._count(fold.spaces)

    def sweep_some(self, spaces: dict[int, SpaceState]) -> None:
        """Look through some rows of a space, and delete those that are removed. `spaces` is the state as of the last commit.

        Raises StateError.
        """
        space_id = next((number for number, space in spaces.items() if space.swept < space.floor), None)
        if space_id is None:
            return
        about, rows, _ = self._databases
        space, prefix = spaces[space_id], space_prefix(space_id)
        if self._sweeping[:2] != (space_id, space.floor):
            self._sweeping = space_id, space.floor, prefix
        with self._translated_errors(), self._opened_environment.begin(write=True) as txn:
            with txn.cursor(rows) as cursor:
                is_there = cursor.set_range(self._sweeping[2])
                for _ in range(_SWEPT_ROWS):
                    if not is_there or not cursor.key().startswith(prefix):
                        space.swept = space.floor
                        break
                    is_gone = _SEQ.unpack_from(cursor.value())[0] <= space.floor
                    is_there = cursor.delete() if is_gone else cursor.next()
                else:
                    self._sweeping = space_id, space.floor, cursor.key() if is_there else b"\xff"
            txn.put(b"spaces", encoded_spaces(spaces), db=about)
        self._count(spaces)

    @property
    def size_bytes(self) -> int:
        """Size of the file, in bytes, including free pages."""
        try:
            return (self.path / _DATA_FILE).stat().st_size
        except OSError:
            return 0

    def _count(self, spaces: dict[int, SpaceState]) -> None:
        with self._opened_environment.begin() as txn:
            self.row_count = txn.stat(self._databases[1])["entries"]
        self.incomplete = sorted(space.name for space in spaces.values() if not space.is_complete and not space.is_dropped)
        self._names = [space.name for space in spaces.values() if not space.is_dropped and self._template(space.name) is not None]

    # Reading.

    def _open_view(self) -> View:
        if self._environment is None:
            raise BusyError(f"the server's own store {self.path} isn't open yet")
        about, rows, _ = self._databases
        transaction = self._environment.begin(buffers=False)
        try:
            position = msgspec.msgpack.decode(transaction.get(b"position", b"", db=about), type=StorePosition)
            if position.is_loading:
                raise BusyError(f"the server's own store {self.path} is being filled from the topics")
            found = []
            for number, space in sorted(decoded_spaces(transaction.get(b"spaces", b"", db=about)).items()):
                template = self._template(space.name) if not space.is_dropped else None
                if template is not None:
                    found.append(_Space(number, space.name, space.floor, template))
            return View(transaction, rows, position.seq, position.epoch, found)
        except BaseException:
            transaction.abort()
            raise

    def _encode_rows(
        self, rows: Sequence[tuple[bytes, bytes]], space: _Space, _: View, selection: Selection, __: int, *, is_packed: bool
    ) -> tuple[list[bytes], list[bytes]]:
        template, floor = space.template, space.floor
        names, values, numbers = [], [], []
        for key, row in rows:
            seq, key_length = _HEAD.unpack_from(row)
            if seq <= floor:
                continue
            start = _HEAD.size + key_length
            primary = row[_HEAD.size : start] if key_length else key[4:]
            value = row[start:]
            try:
                name = template.of_row(primary, value) if template.needs_row else template.of_key(primary)
                shown = packed(value) if is_packed else value
            except UNREADABLE:
                continue  # another program wrote it: clients that follow don't get it either
            if name is None:
                continue
            names.append(name)
            values.append(shown)
            numbers.append((seq, seq))
        return self._frames(names, values, numbers, selection)

    # Helpers.

    @property
    def _opened_environment(self) -> lmdb.Environment:
        if self._environment is None:
            raise StateError(f"the server's own store {self.path} is closed")
        return self._environment

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return self._translated_errors()

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except _DAMAGED as error:
            raise StateError(
                f"the server's own store {self.path} is damaged: {error}", "Remove it; the server makes it again from the topics."
            ) from error
        except (lmdb.Error, OSError) as error:
            raise StateError(
                f"the server's own store {self.path} can't be used: {error}", "Make room on the disk of tap.store_path."
            ) from error

    def _close(self) -> None:
        if self._environment is not None:
            self._environment.close()
            self._environment = None
            assert self._held is not None, "the environment is open"
            self._held.close()


def _epoch_of(position: bytes | None) -> int:
    """Return the epoch of a store that another version may have written, or 0 if it can't be decoded."""
    try:
        return msgspec.msgpack.decode(position or b"", type=StorePosition).epoch
    except msgspec.MsgspecError:
        return 0


def _opened(path: Path) -> lmdb.Environment:
    map_bytes = _MAP_BYTES
    while True:
        try:
            # A stop of the machine may lose the last commit, but never a part of a commit.
            return lmdb.open(
                str(path), map_size=map_bytes, max_dbs=4, metasync=False, readahead=False, meminit=False, mode=_FILE_MODE
            )
        except (lmdb.MemoryError, MemoryError):
            map_bytes //= 2
            if map_bytes < _MAP_BYTES_MIN:
                raise


def _place(space_id: int, key: bytes) -> tuple[bytes, bytes]:
    """Return LMDB's key of a row, and the row's own key if LMDB's key doesn't contain it."""
    prefix = space_prefix(space_id)
    if len(prefix) + len(key) <= _KEY_BYTES_MAX:
        return prefix + key, b""
    return b"%b%b%b" % (prefix, key[:256], hashlib.sha256(key).digest()), key
