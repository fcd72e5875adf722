"""State store: the current tuple of every key of every published space, on this machine's disk.

    position S ≤ checkpoint K        rows      key (cdc/schema/keys.py) → tuple as received
                                     counts    space → number of its rows
                                     records   the daemon's position and schema at S
                                     seen      keys in the running snapshot so far
                                     redo      changes of a large write that are committed but not yet all in `rows`

The store is one LMDB environment: a copy-on-write B+ tree in one file, read through a memory map, with one writer. A commit
leaves the previous tree intact until the new root is written, so a killed process leaves the old contents or the new ones.
Measurements against RocksDB (rocksdict 0.3.29, 64 MB of cache, lz4), on 2 cores that had other work, with keys of 12 bytes, in
µs per row, random access, batches of 20,000:

                                        LMDB 3.0: get   put   disk, anonymous RSS   RocksDB: get   put   disk, anonymous RSS
    1,000,000 rows of 60 bytes                   1.5   5.5     125 MB   55 MB                 8.3   2.6      65 MB  128 MB
    1,000,000 rows of 300 bytes                  1.9   8.9     439 MB   73 MB                11.4   2.6     234 MB  161 MB
    10,000,000 of 300, memory for 0.75 GB        111   14     3.6 GB    78 MB                 101   3.1    1.7 GB   138 MB

LMDB's puts are measured with this module, counts included; LMDB alone takes 4.4 and 7.2. As long as the store fits in memory,
LMDB's gets are faster by the difference shown; beyond that, the disk decides for both. Loading in key order takes 2.5 to 6 µs per
row, and 2 in RocksDB. A store of 10,000,000 rows opens in 5 ms, in RocksDB in 76 ms. Unlike RocksDB, LMDB has no log from which
a store could be recovered after a sudden stop of the machine.

Commits aren't synced to the disk. Written pages survive the process in the kernel's page cache, but a machine that stops may
have written a root and not the pages below it, and LMDB couldn't detect that. So the file `condition` says whether the store can
be trusted. `clean`: everything was synced when the file had this size. `unsynced`: there were commits since, during this boot of
the machine. The file is durable before the first unsynced page is written. A store that has been unsynced since another boot is
lost: its contents are never served. `sync` makes an open store clean. Damage during the same boot isn't detected: a disk that
fails to write back pages which are then read again, or a store that is copied while it is open.

A write of more changes than SLICE_CHANGES would hold as many pages in memory. Such a write first goes to `redo` in slices. The
commit that completes `redo` is the commit of the write; after it, the slices are applied to `rows` one by one. Applying a slice
twice has the same result, so a start continues where the last process ended.

The file is written with write(2), never through the map, so that a full disk raises an error instead of SIGBUS. The map is larger
than any file will be, and uses only address space. The file doesn't shrink; free pages are reused.

This module doesn't interpret tuples and records.

Sources: LMDB's lmdb.h and mdb.c (0.9.x), proc(5) for boot_id.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import lmdb
import msgspec

from cdc.errors import CdcError, StateError, StateLostError
from cdc.images.pending import CLEAR, Change, ChangeList, Changes
from cdc.schema.keys import space_prefix
from cdc.store.files import (
    DATA_FILE,
    OpenFile,
    boot_id,
    is_clean,
    lock,
    open_environment,
    remove_files,
    translate_lmdb_errors,
    write_condition,
)

SLICE_CHANGES: Final = 16_384
"""Maximum number of changes in one LMDB transaction. Each may hold a page of memory or, rarely, a few."""
SLICE_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of these changes, in bytes, unless a single tuple is larger."""

FORMAT: Final = b"tarantool-cdc state 3"
_FORMER_FORMATS: Final = frozenset({b"tarantool-cdc state 1", b"tarantool-cdc state 2"})
"""Formats of earlier versions. In format 1, text keys consisting only of zero bytes lack one zero byte that they have now
(cdc.schema.keys). In both formats, rows of a HASH index whose keys are equal but written differently shared one key, so that some
rows may be missing."""
_PREFIX_BYTES: Final = 4
_COUNT: Final = struct.Struct(">q")

if TYPE_CHECKING:
    Transaction = lmdb.Transaction[bytes]  # generic for the type checker only

_tuple_of: Final = itemgetter(1)

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_changes: Final = msgspec.msgpack.Decoder(list[tuple[bytes, bytes | None]]).decode


class StateStore:
    """One daemon's state store. For one thread."""

    def __init__(self, path: Path, holder: str = "a process that reads it") -> None:
        """Open or create the store. `holder` describes this process in the errors of others that find the store in use.

        Raises StateError if the store can't be opened: another daemon uses it, another version wrote it, the disk is full or
        unreadable. Raises StateLostError if its contents can't be trusted; see `set_aside`.
        """
        self._path = path
        self._is_seeing = False
        self._failure: CdcError | None = None
        self._environment: lmdb.Environment | None = None
        with translate_lmdb_errors(path):
            self._lock = lock(path, holder)
            try:
                self._open()
            except BaseException:
                self._release()
                raise

    def _open(self) -> None:
        data = self._path / DATA_FILE
        is_new = not data.exists()
        if is_new:
            self._is_clean = False
            write_condition(self._path, f"unsynced {boot_id()}")
        else:
            self._is_clean = is_clean(self._path)
        self._environment = environment = open_environment(self._path, is_clean=self._is_clean)
        is_empty = environment.stat()["entries"] == 0
        if is_empty:
            self._touch()
        try:
            self._about, self._rows, self._counts_db, self._records_db, self._seen, self._redo = _databases(
                environment, create=is_empty
            )
        except (lmdb.NotFoundError, lmdb.ReadonlyError) as error:
            raise StateError(f"{data} isn't a state store", "Give state.path a directory of its own.") from error
        with environment.begin(db=self._about, buffers=False) as txn:
            written = txn.get(b"format")
            self.is_former = written in _FORMER_FORMATS
            """Whether an earlier version wrote the store. Then `bring_over` must be called before anything else."""
            if written != FORMAT and not self.is_former:
                raise StateError(
                    f"the state store {self._path} was written by another version, in the format {written!r}",
                    f"Run the version that wrote it, or remove {self._path} and start once with --rebuild-state.",
                )
            self.records: dict[bytes, bytes] = dict(txn.cursor(self._records_db))
            self._counts: dict[bytes, int] = {key: _COUNT.unpack(value)[0] for key, value in txn.cursor(self._counts_db)}
            is_committed = txn.get(b"redo") is not None
            redo_left = txn.stat(self._redo)["entries"]
        self.file = OpenFile(data)
        """The file; a process that has it open goes on though somebody removes it."""
        self._reader: Transaction = environment.begin(db=self._rows, buffers=False)
        self.get: Callable[[bytes], bytes | None] = self._reader.get
        """Function that returns the tuple of a key as of the last write, or None. Each write replaces this attribute."""
        if is_committed:
            self._finish_redo()
        elif redo_left:
            with self._writing() as txn:
                txn.drop(self._redo, delete=False)

    # Reading.

    def scan(self, space_id: int, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Return a space's rows in key order, beginning after the key `after`, as of the time of the call.

        Until the iterator is exhausted or dropped, pages freed by writes aren't reused, and the file may grow.
        """
        return _rows_of(self._begin(self._rows), self._rows, space_prefix(space_id), after)

    def unmarked(self, space_id: int, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Return a space's rows whose keys weren't passed to `add_marks` since `begin_mark`; otherwise as `scan`."""
        assert self._is_seeing, "unmarked() without begin_mark()"
        txn = self._begin(self._rows)
        prefix = space_prefix(space_id)
        shown = _rows_of(txn, self._seen, prefix, after)
        return _without(_rows_of(txn, self._rows, prefix, after), shown)

    def space_ids(self) -> list[int]:
        """Return the ids of spaces that have rows."""
        return sorted(int.from_bytes(prefix, "big") for prefix, count in self._counts.items() if count)

    def count(self, space_id: int) -> int:
        """Return a space's number of rows. Counts are stored in the same commits as the rows."""
        return self._counts.get(space_prefix(space_id), 0)

    @property
    def row_count(self) -> int:
        """Number of rows of all spaces."""
        return sum(self._counts.values())

    @property
    def size_bytes(self) -> int:
        """Size of the file in bytes, free pages included."""
        return (self._path / DATA_FILE).stat().st_size

    # Writing.

    def write(self, changes: Iterable[Change], records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Apply changes and records as one commit. A record with the value None is removed.

        Raises StateError if the write fails, usually because of a full disk. The old contents are kept then. If the failure
        came after the commit of a large write, the store has to be opened again, and then has the new contents.
        """
        slices = (changes if isinstance(changes, Changes) else ChangeList(changes)).slices(SLICE_CHANGES, SLICE_BYTES)
        clears = [slice_[0][0] for slice_ in slices if slice_[0][1] == CLEAR]
        kept = list(records)
        with self._translated_errors():
            self._touch()
            # Another process may have been killed while it read the store. Its pages wouldn't be reused without this check.
            self._open_environment.reader_check()
            if len(slices) <= 1 and not any(self._counts.get(prefix, 0) > SLICE_CHANGES for prefix in clears):
                with self._writing() as txn:
                    counts = self._apply(txn, slices[0] if slices else (), kept)
                self._counts = counts
                self._remember(kept)
                return
            self._prepare_redo(slices, kept)
            try:
                self._finish_redo()
            except BaseException:
                # The write is committed but only partly applied. The current contents are inconsistent and must not be served.
                self._release()
                raise

    def bring_over(self, moves: Iterable[tuple[bytes, bytes]]) -> None:
        """Move rows written by an earlier version to their current keys, as one commit. `moves` has pairs of old and new key.

        Raises StateError as `write` does; the store is unchanged then.
        """
        with self._translated_errors():
            self._touch()
            with self._writing() as txn:
                rows = [(new, txn.pop(former)) for former, new in moves]
                for new, tuple_ in rows:
                    assert tuple_ is not None
                    txn.put(new, tuple_)
                txn.put(b"format", FORMAT, db=self._about)
            self.is_former = False

    def remove_some(self, space_id: int) -> bool:
        """Remove a slice of the rows of an unused space. Return whether no rows are left.

        Raises StateError as `write` does.
        """
        with translate_lmdb_errors(self._path):
            self._touch()
            counts = dict(self._counts)
            with self._writing() as txn:
                is_done = self._delete_rows(txn, counts, space_prefix(space_id), SLICE_CHANGES)
                self._store(txn, counts, ())
            self._counts = counts
            return is_done

    def begin_mark(self) -> None:
        """Begin to collect the keys of a snapshot. Raises StateError as `write` does."""
        self.end_mark()
        self._is_seeing = True

    def add_marks(self, keys: Iterable[bytes]) -> None:
        """Add keys that the snapshot contains. Raises StateError as `write` does."""
        assert self._is_seeing, "add_marks() without begin_mark()"
        ordered = sorted(keys)
        with self._translated_errors():
            self._touch()
            for start in range(0, len(ordered), SLICE_CHANGES):
                with self._writing() as txn:
                    for key in ordered[start : start + SLICE_CHANGES]:
                        txn.put(key, b"", db=self._seen)

    def end_mark(self) -> None:
        """Forget the snapshot's keys, when it is complete or abandoned. Raises StateError as `write` does."""
        self._is_seeing = False
        with self._translated_errors():
            if self._begin(self._seen).stat(self._seen)["entries"]:
                self._touch()
                with self._writing() as txn:
                    txn.drop(self._seen, delete=False)

    # The end.

    def sync(self) -> None:
        """Sync everything to the disk, so that the store survives a stop of the machine. For quiet moments.

        Raises StateError if that fails; the store is lost at the next start then.
        """
        if self._is_clean:
            return
        with self._translated_errors():
            self.file.check()
            try:
                self._open_environment.sync(True)
            except lmdb.Error:
                # The kernel reports an unwritable page only once, and from then on treats it as written.
                write_condition(self._path, "failed")
                raise
            write_condition(self._path, f"clean {self.size_bytes}")
        self._is_clean = True

    def close(self) -> None:
        """Sync everything and close the store. A second call does nothing. Raises StateError as `sync` does."""
        if self._environment is None:
            return
        try:
            self.sync()
        finally:
            self._release()

    def destroy(self) -> None:
        """Close the store and remove its files."""
        self._release()
        with self._translated_errors():
            remove_files(self._path)

    # Internals.

    @property
    def _open_environment(self) -> lmdb.Environment:
        if self._environment is None:
            raise self._closed()
        return self._environment

    def _begin(self, database: Any) -> Transaction:
        with self._translated_errors():
            return self._open_environment.begin(db=database, buffers=False)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Transaction]:
        """Run one LMDB transaction; `get` sees its result after the commit. Errors other than LMDB's own close the store."""
        environment = self._open_environment
        try:
            with environment.begin(write=True, db=self._rows, buffers=False) as txn:
                yield txn
        except lmdb.Error:
            raise
        except BaseException:
            # The error may have come right after the commit. Then the counts in memory differ from those on the disk.
            self._release()
            raise
        try:
            # A read transaction sees the contents at its begin, so it is replaced by a new one.
            self._reader.abort()
            self._reader = environment.begin(db=self._rows, buffers=False)
            self.get = self._reader.get
        except BaseException:
            self._release()
            raise

    def _apply(
        self, txn: Transaction, changes: Sequence[Change], records: Iterable[tuple[bytes, bytes | None]]
    ) -> dict[bytes, int]:
        """Put changes and records into a transaction. Return the row counts that are valid after its commit."""
        counts = dict(self._counts)
        with txn.cursor(self._rows) as cursor:
            for prefix, group in _by_prefix(changes):
                if group[0][1] == CLEAR:
                    self._delete_rows(txn, counts, prefix, -1)
                    continue
                # One call puts all rows. The growth of the number of entries shows how many of them were new.
                entries = txn.stat(self._rows)["entries"]
                has_deletions = None in map(_tuple_of, group)
                puts: Any = [change for change in group if change[1] is not None] if has_deletions else group
                cursor.putmulti(puts, dupdata=False)
                if has_deletions:
                    for key, value in group:
                        if value is None:
                            txn.delete(key)
                counts[prefix] = counts.get(prefix, 0) + txn.stat(self._rows)["entries"] - entries
        self._store(txn, counts, records)
        return counts

    def _delete_rows(self, txn: Transaction, counts: dict[bytes, int], prefix: bytes, limit: int) -> bool:
        """Delete at most `limit` rows of a space, or all if it is negative. Return whether no rows are left."""
        with txn.cursor(self._rows) as cursor:
            is_there = cursor.set_range(prefix)
            while is_there and cursor.key().startswith(prefix):
                if limit == 0:
                    return False
                limit -= 1
                is_there = cursor.delete() and bool(cursor.key())
                counts[prefix] -= 1
        return True

    def _store(self, txn: Transaction, counts: dict[bytes, int], records: Iterable[tuple[bytes, bytes | None]]) -> None:
        for prefix, count in counts.items():
            if count != self._counts.get(prefix):
                txn.put(prefix, _COUNT.pack(count), db=self._counts_db)
        for key, value in records:
            if value is None:
                txn.delete(key, db=self._records_db)
            else:
                txn.put(key, value, db=self._records_db)

    def _remember(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        for key, value in records:
            if value is None:
                self.records.pop(key, None)
            else:
                self.records[key] = value

    def _prepare_redo(self, slices: list[list[Change]], records: list[tuple[bytes, bytes | None]]) -> None:
        """Write the changes and records to `redo`. The last of these transactions is the write's commit."""
        try:
            for number, changes in enumerate(slices):
                with self._writing() as txn:
                    txn.put(_COUNT.pack(number), _encode(changes), db=self._redo)
            with self._writing() as txn:
                txn.put(b"redo", _encode(records), db=self._about)
        except BaseException:
            # This undoes the commit, too, if the error followed it: after an error, the caller must find the old contents.
            with contextlib.suppress(lmdb.Error, StateError), self._writing() as txn:
                txn.delete(b"redo", db=self._about)
                txn.drop(self._redo, delete=False)
            raise

    def _finish_redo(self) -> None:
        """Apply the slices that are left in `redo`, and the records."""
        self._touch()
        while True:
            with self._open_environment.begin(db=self._redo, buffers=False) as txn, txn.cursor() as cursor:
                if not cursor.first():
                    break
                number, changes = cursor.key(), _decode_changes(cursor.value())
            if changes[0][1] == CLEAR:
                self._clear_in_slices(changes[0][0])
            with self._writing() as txn:
                counts = self._apply(txn, changes, ())
                txn.delete(number, db=self._redo)
            self._counts = counts
        with self._writing() as txn:
            records = _decode_changes(txn.pop(b"redo", db=self._about) or _encode([]))
            self._store(txn, self._counts, records)
        self._remember(records)

    def _clear_in_slices(self, prefix: bytes) -> None:
        is_done = False
        while not is_done:
            with self._writing() as txn:
                counts = dict(self._counts)
                is_done = self._delete_rows(txn, counts, prefix, SLICE_CHANGES)
                self._store(txn, counts, ())
            self._counts = counts

    def _touch(self) -> None:
        """Mark the store as unsynced. To be called before each write, as unsynced contents are valid only during this boot."""
        if self._is_clean:
            write_condition(self._path, f"unsynced {boot_id()}")
            self._is_clean = False

    def _release(self) -> None:
        if self._environment is not None:
            self.get = self._closed_get
            self._environment.close()
            self._environment = None
        self._lock.close()

    def _closed_get(self, _: bytes) -> bytes | None:
        raise self._closed()

    def _closed(self) -> CdcError:
        """Return the error for the use of a closed store: the failure that closed it, if there was one."""
        failure = self._failure
        if failure is None:
            return StateError(f"the state store {self._path} is closed", "Start the daemon again.")
        return type(failure)(failure.message, failure.hint)

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate errors as `translate_lmdb_errors` does, and remember the first one."""
        try:
            with translate_lmdb_errors(self._path):
                yield
        except (StateError, StateLostError) as error:
            self._failure = self._failure or error
            raise


def _prefix_of(change: Change) -> bytes:
    return change[0][:_PREFIX_BYTES]


def _by_prefix(changes: Sequence[Change]) -> Iterator[tuple[bytes, Sequence[Change]]]:
    """Group a slice's changes by key prefix. They are sorted, so equal prefixes of the first and the last mean one group."""
    if changes and (prefix := _prefix_of(changes[0])) == _prefix_of(changes[-1]):
        yield prefix, changes
        return
    for prefix, group in groupby(changes, _prefix_of):
        yield prefix, list(group)


def _databases(environment: lmdb.Environment, *, create: bool) -> tuple[Any, ...]:
    """Return LMDB's databases. New ones come with the format in one commit, as no start could use a half of that."""
    with environment.begin(write=True) if create else contextlib.nullcontext() as txn:
        about, *others = (
            environment.open_db(name, txn=txn, create=create)
            for name in (b"about", b"rows", b"counts", b"records", b"seen", b"redo")
        )
        if txn is not None:
            txn.put(b"format", FORMAT, db=about)
    return about, *others


def _rows_of(txn: Transaction, database: Any, prefix: bytes, after: bytes) -> Iterator[tuple[bytes, bytes]]:
    cursor = txn.cursor(database)
    is_there = cursor.set_range(max(after, prefix))
    if is_there and cursor.key() == after:
        is_there = cursor.next()
    if not is_there:
        return
    for row in cursor.iternext():
        if not row[0].startswith(prefix):
            return
        yield row


def _without(rows: Iterator[tuple[bytes, bytes]], shown: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows whose keys aren't in `shown`. Both iterators are in key order."""
    nothing: tuple[bytes | None, bytes] = (None, b"")
    shown_key, _ = next(shown, nothing)
    for row in rows:
        while shown_key is not None and shown_key < row[0]:
            shown_key, _ = next(shown, nothing)
        if shown_key != row[0]:
            yield row
