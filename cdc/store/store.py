"""The current tuple of every key of every published space, on this machine's disk.

    position S ≤ checkpoint K        rows      key (cdc/keys.py) → tuple as it came
                                     counts    space → number of its rows
                                     records   the daemon's position and schema at S
                                     seen      keys that the running snapshot has shown
                                     redo      changes of a large write that are committed but not yet all in `rows`

One LMDB environment: a copy-on-write B+ tree in one file, read through a memory map, one writer. Each commit leaves the
former tree as it was until the new root is written, so a process that is killed leaves the old contents or the new ones.
Measured against RocksDB (rocksdict 0.3.29, 64 MB of cache, lz4), on 2 cores that had other work, with keys of 12 bytes, in
µs per row, random access, batches of 20,000:

                                        LMDB 3.0: get   put   disk, anonymous RSS   RocksDB: get   put   disk, anonymous RSS
    1,000,000 rows of 60 bytes                   1.5   5.5     125 MB   55 MB                 8.3   2.6      65 MB  128 MB
    1,000,000 rows of 300 bytes                  1.9   8.9     439 MB   73 MB                11.4   2.6     234 MB  161 MB
    10,000,000 of 300, memory for 0.75 GB        111   14     3.6 GB    78 MB                 101   3.1    1.7 GB   138 MB

The puts of LMDB are those of this module, counts and all; 4.4 and 7.2 are LMDB's own. As much more as RocksDB takes for a get,
LMDB is ahead as long as the store fits in memory; beyond it the disk decides for both. Loading by key takes 2.5 to 6 µs per
row and 2 in RocksDB; a store of 10,000,000 rows opens in 5 ms, in RocksDB in 76. What LMDB lacks is RocksDB's log, from which
a store could be recovered that the machine's stop interrupted.

Nothing is synced to the disk at a commit. Pages that this process has written survive it in the kernel's page cache,
but a machine that stops may have written a root and not the pages under it, and LMDB couldn't tell. So the file
`condition` says what may be trusted: `clean`, everything had been synced when the file had this size; or `unsynced`, there
have been commits since, under this boot of the machine. It is durable before the first unsynced page is written. A store
that is unsynced since another boot is lost: what it holds is never served. `sync` makes a store clean that stays open.
Not found out is what changes the file under the same boot: a disk that fails to write back pages and then has to be read
again, or a store that is copied while it is open.

A write of more changes than SLICE_CHANGES would hold as many pages in memory. It goes to `redo` in slices first; the commit
that completes `redo` is that of the write, and slice by slice is then brought into `rows`. A slice may be applied twice, with
the same result, so a start just goes on where the last process ended.

The file is written with write(2), never through the map, so that a full disk is an error and no SIGBUS. The map is larger
than any file will be and costs only addresses. The file doesn't shrink; room that becomes free is used again.

What it refuses to know: what a tuple or a record means.

Sources: LMDB's lmdb.h and mdb.c (0.9.x), proc(5) for boot_id.
"""

from __future__ import annotations

import contextlib
import os
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
    boot_id,
    is_clean,
    lock,
    open_environment,
    remove_files,
    translate_lmdb_errors,
    write_condition,
)

SLICE_CHANGES: Final = 16_384
"""Changes in one LMDB transaction; each may hold a page of memory or, seldom, a few."""
SLICE_BYTES: Final = 4 * 1024 * 1024
"""And their bytes, unless one tuple alone has more."""

FORMAT: Final = b"tarantool-cdc state 3"
_FORMER_FORMATS: Final = frozenset({b"tarantool-cdc state 1", b"tarantool-cdc state 2"})
"""In 1, keys that are a text of nothing but zeroes were written without the one more that they have now (cdc.schema.keys). In
both, rows of a HASH index whose keys are equal but written differently had one key, so that some may be missing."""
_PREFIX_BYTES: Final = 4
_COUNT: Final = struct.Struct(">q")

if TYPE_CHECKING:
    Transaction = lmdb.Transaction[bytes]  # generic for the type checker only

_tuple_of: Final = itemgetter(1)

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_changes: Final = msgspec.msgpack.Decoder(list[tuple[bytes, bytes | None]]).decode


class StateStore:
    """One daemon's store. One thread uses it."""

    def __init__(self, path: Path, holder: str = "a process that reads it") -> None:
        """Opens or creates it. `holder` is what others are told who find it in use.

        Raises StateError if it can't be opened: another daemon has it, another version wrote it, the disk is full or
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
            self._about, self._rows, self._counts_db, self._records_db, self._seen, self._redo = (
                environment.open_db(name, create=is_empty)
                for name in (b"about", b"rows", b"counts", b"records", b"seen", b"redo")
            )
        except (lmdb.NotFoundError, lmdb.ReadonlyError) as error:
            raise StateError(f"{data} isn't a state store", "Give state.path a directory of its own.") from error
        if is_empty:
            with environment.begin(write=True, db=self._about) as txn:
                txn.put(b"format", FORMAT)
        with environment.begin(db=self._about, buffers=False) as txn:
            written = txn.get(b"format")
            self.is_former = written in _FORMER_FORMATS
            """Whether an earlier version wrote it; `bring_over` must be called before anything else then."""
            if written != FORMAT and not self.is_former:
                raise StateError(
                    f"the state store {self._path} was written by another version, in the format {written!r}",
                    f"Run the version that wrote it, or remove {self._path} and start once with --rebuild-state.",
                )
            self.records: dict[bytes, bytes] = dict(txn.cursor(self._records_db))
            self._counts: dict[bytes, int] = {key: _COUNT.unpack(value)[0] for key, value in txn.cursor(self._counts_db)}
            is_committed = txn.get(b"redo") is not None
            redo_left = txn.stat(self._redo)["entries"]
        self._reader: Transaction = environment.begin(db=self._rows, buffers=False)
        self.get: Callable[[bytes], bytes | None] = self._reader.get
        """The tuple of a key as the last write left it, None if there is none. Another attribute after each write."""
        if is_committed:
            self._finish_redo()
        elif redo_left:
            with self._writing() as txn:
                txn.drop(self._redo, delete=False)

    # Reading.

    def scan(self, space_id: int, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Rows of a space in key order, from the one behind the key `after`, as they are at the time of the call.

        Until the iterator is exhausted or dropped, pages that writes make free aren't used again and the file may grow.
        """
        return _rows_of(self._begin(self._rows), self._rows, space_prefix(space_id), after)

    def unmarked(self, space_id: int) -> Iterator[tuple[bytes, bytes]]:
        """Rows of a space whose keys have not been added since `begin_mark`, in key order; otherwise as `scan`."""
        assert self._is_seeing, "unmarked() without begin_mark()"
        txn = self._begin(self._rows)
        prefix = space_prefix(space_id)
        shown = _rows_of(txn, self._seen, prefix, b"")
        return _without(_rows_of(txn, self._rows, prefix, b""), shown)

    def space_ids(self) -> list[int]:
        """Spaces that have rows."""
        return sorted(int.from_bytes(prefix, "big") for prefix, count in self._counts.items() if count)

    def count(self, space_id: int) -> int:
        """Rows of a space; kept beside them in the same commits."""
        return self._counts.get(space_prefix(space_id), 0)

    @property
    def row_count(self) -> int:
        """Rows of all spaces."""
        return sum(self._counts.values())

    @property
    def size_bytes(self) -> int:
        """Of the file, free pages included."""
        return (self._path / DATA_FILE).stat().st_size

    # Writing.

    def write(self, changes: Iterable[Change], records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Apply changes and records (None removes one) as one commit.

        Raises StateError if it can't be written, a full disk above all. The contents are then the old ones; if the failure
        came after a large write had been committed, the store has to be opened again, and then has the new ones.
        """
        slices = (changes if isinstance(changes, Changes) else ChangeList(changes)).slices(SLICE_CHANGES, SLICE_BYTES)
        clears = [slice_[0][0] for slice_ in slices if slice_[0][1] == CLEAR]
        kept = list(records)
        with self._told():
            self._touch()
            # Another process may read the store; one that was killed meanwhile would keep its pages from being used again.
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
                # The write is committed and in part applied: what is there now is of no moment and must not be served.
                self._release()
                raise

    def bring_over(self, moves: Iterable[tuple[bytes, bytes]]) -> None:
        """Put rows that an earlier version wrote under the keys that they have now (from, to), as one commit.

        Raises StateError as `write` does; it is then as it was.
        """
        with self._told():
            self._touch()
            with self._writing() as txn:
                rows = [(new, txn.pop(former)) for former, new in moves]
                for new, tuple_ in rows:
                    assert tuple_ is not None
                    txn.put(new, tuple_)
                txn.put(b"format", FORMAT, db=self._about)
            self.is_former = False

    def remove_some(self, space_id: int) -> bool:
        """Remove rows of a space that nobody asks for any more, a slice of them; returns whether none are left.

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
        """A snapshot begins, and has shown no key. Raises StateError as `write` does."""
        self.end_mark()
        self._is_seeing = True

    def add_marks(self, keys: Iterable[bytes]) -> None:
        """The snapshot has shown these keys. Raises StateError as `write` does."""
        assert self._is_seeing, "add_marks() without begin_mark()"
        ordered = sorted(keys)
        with self._told():
            self._touch()
            for start in range(0, len(ordered), SLICE_CHANGES):
                with self._writing() as txn:
                    for key in ordered[start : start + SLICE_CHANGES]:
                        txn.put(key, b"", db=self._seen)

    def end_mark(self) -> None:
        """The snapshot is over, or given up: forget its keys. Raises StateError as `write` does."""
        self._is_seeing = False
        with self._told():
            if self._begin(self._seen).stat(self._seen)["entries"]:
                self._touch()
                with self._writing() as txn:
                    txn.drop(self._seen, delete=False)

    # The end.

    def sync(self) -> None:
        """Sync everything to the disk, so that the store outlives the machine's next stop; for quiet moments.

        Raises StateError if it can't be written; the store is then lost at the next start.
        """
        if self._is_clean:
            return
        with self._told():
            try:
                self._open_environment.sync(True)
            except lmdb.Error:
                # The kernel reports a page that it couldn't write once, and then takes it for written.
                write_condition(self._path, "failed")
                raise
            write_condition(self._path, f"clean {self.size_bytes}")
        self._is_clean = True

    def close(self) -> None:
        """Sync everything and let go; a second call does nothing. Raises StateError as `sync` does."""
        if self._environment is None:
            return
        try:
            self.sync()
        finally:
            self._release()

    def destroy(self) -> None:
        """Close it and remove its files."""
        self._release()
        with self._told():
            remove_files(self._path)

    # Inside.

    @property
    def _open_environment(self) -> lmdb.Environment:
        if self._environment is None:
            raise self._closed()
        return self._environment

    def _begin(self, database: Any) -> Transaction:
        with self._told():
            return self._open_environment.begin(db=database, buffers=False)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Transaction]:
        """One LMDB transaction, which `get` sees when it is over. After any error but LMDB's own the store is closed."""
        environment = self._open_environment
        try:
            with environment.begin(write=True, db=self._rows, buffers=False) as txn:
                yield txn
        except lmdb.Error:
            raise
        except BaseException:
            # It may have come just behind the commit, and then what is kept in memory isn't what is on the disk.
            self._release()
            raise
        try:
            # A reader is a moment: it is let go for the next one.
            self._reader.abort()
            self._reader = environment.begin(db=self._rows, buffers=False)
            self.get = self._reader.get
        except BaseException:
            self._release()
            raise

    def _apply(
        self, txn: Transaction, changes: Sequence[Change], records: Iterable[tuple[bytes, bytes | None]]
    ) -> dict[bytes, int]:
        """Put changes and records into a transaction; returns the counts that are true once it is committed."""
        counts = dict(self._counts)
        with txn.cursor(self._rows) as cursor:
            for prefix, group in _by_prefix(changes):
                if group[0][1] == CLEAR:
                    self._delete_rows(txn, counts, prefix, -1)
                    continue
                # What was new and what was there shows in how many entries there are: one call puts them all.
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
        """Delete rows of a space, at most `limit`; returns whether none are left."""
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
        """Write down what is to be done. The last of these transactions is the write's commit."""
        try:
            for number, changes in enumerate(slices):
                with self._writing() as txn:
                    txn.put(_COUNT.pack(number), _encode(changes), db=self._redo)
            with self._writing() as txn:
                txn.put(b"redo", _encode(records), db=self._about)
        except BaseException:
            # The commit too, if it was that: who is told of an error must find the old contents.
            with contextlib.suppress(lmdb.Error, StateError), self._writing() as txn:
                txn.delete(b"redo", db=self._about)
                txn.drop(self._redo, delete=False)
            raise

    def _finish_redo(self) -> None:
        """Do what is written down, as far as it isn't done."""
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
        """Before anything is written: from here on the contents are safe only as long as this boot lasts."""
        if self._is_clean:
            write_condition(self._path, f"unsynced {boot_id()}")
            self._is_clean = False

    def _release(self) -> None:
        if self._environment is not None:
            self.get = self._closed_get
            self._environment.close()
            self._environment = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _closed_get(self, _: bytes) -> bytes | None:
        raise self._closed()

    def _closed(self) -> CdcError:
        """What is told of a store that is closed: the failure that closed it, if one did."""
        failure = self._failure
        if failure is None:
            return StateError(f"the state store {self._path} is closed", "Start the daemon again.")
        return type(failure)(failure.message, failure.hint)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """As `translate_lmdb_errors`; the first failure is remembered."""
        try:
            with translate_lmdb_errors(self._path):
                yield
        except (StateError, StateLostError) as error:
            self._failure = self._failure or error
            raise


def _prefix_of(change: Change) -> bytes:
    return change[0][:_PREFIX_BYTES]


def _by_prefix(changes: Sequence[Change]) -> Iterator[tuple[bytes, Sequence[Change]]]:
    """A slice's changes by what their keys begin with. They are sorted, so the first and the last tell whether that is one."""
    if changes and (prefix := _prefix_of(changes[0])) == _prefix_of(changes[-1]):
        yield prefix, changes
        return
    for prefix, group in groupby(changes, _prefix_of):
        yield prefix, list(group)


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
    """Rows whose keys aren't among the shown ones; both are in key order."""
    nothing: tuple[bytes | None, bytes] = (None, b"")
    shown_key, _ = next(shown, nothing)
    for row in rows:
        while shown_key is not None and shown_key < row[0]:
            shown_key, _ = next(shown, nothing)
        if shown_key != row[0]:
            yield row
