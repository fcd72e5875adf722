"""Journal of a snapshot's changes, from which the state store is brought up to the checkpoint after a kill.

    submit ─▶ append ──▶ journal-1, journal-2, …     before Kafka gets the batch
    flush  ─▶ forget(S): files that the store doesn't need any more are removed
    start  ─▶ read: the batches after S, up to the checkpoint K ─▶ the store is at K

The store is written after the Kafka commit, so a killed process leaves it behind the checkpoint. In the stream the master's log
has the rows in between. A snapshot's rows are in no log: without the journal nobody would know which rows consumers have, and the
snapshot would have to be published again from its beginning.

Like the store, the journal isn't synced: it survives the process in the kernel's page cache. If the machine stops, the store
counts as lost, and the journal with it (cdc.store.store). A damaged entry ends the journal: the snapshot begins again. As in the
store, nothing protects the rows themselves from a disk that changes them.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final
from zlib import crc32

import msgspec

from cdc.images.pending import ChangeList, Changes, PackedWriter, packed_size, unpacked
from cdc.store.files import JOURNAL_PREFIX, journal_files, translate_lmdb_errors

FILE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Size from which on a new file is begun, so that the former one can be removed."""

_MODE: Final = 0o600
_HEAD: Final = struct.Struct(">4sQIQI")
"""Beginning of each entry: a mark, a number that entries from before the file was written over don't have, the length of its
records, that of its changes, and a checksum of all that and of the records."""
_MARK: Final = b"snp2"

Records = Sequence[tuple[bytes, bytes | None]]
"""Records of the store, in the form in which they are written with the changes."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(tuple[int, int, list[tuple[bytes, bytes | None]]]).decode


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch: the seqs before and after it, the records that are written with it, and its changes.

    The batch applies to a store that is at `after`, -1 for an empty one. So the entries after a lost one, or of another store,
    aren't mistaken for the rest of this one.
    """

    after: int
    seq: int
    records: Records
    changes: ChangeList


class Journal:
    """The journal of one store. Files are created when they are needed."""

    def __init__(self, directory: Path) -> None:
        """Use this directory, which must exist once something is appended."""
        self._directory = directory
        # Number, size and last seq of the file that is being written.
        found = journal_files(directory)
        self._number = int(found[-1].name.removeprefix(JOURNAL_PREFIX)) if found else 0
        self._size = self._seq = 0
        self._generation = 1
        # Last seqs of the files before it.
        self._closed: dict[int, int] = {}
        self._descriptor: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the store has everything that was appended since `clear`."""
        return not self._size and not self._closed

    def append(self, after: int, seq: int, records: Records, changes: Changes) -> None:
        """Add a batch that is about to be published; see Entry. Raises StateError."""
        with translate_lmdb_errors(self._directory):
            if self._size > FILE_BYTES_MAX:
                self._closed[self._number] = self._seq
                self._close()
            if self._descriptor is None:
                self._number += 1
                flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                self._descriptor = os.open(self._path(self._number), flags, _MODE)
            about, changes_bytes = _encode((after, seq, list(records))), packed_size(changes)
            begin = self._size + _HEAD.size + len(about)
            if isinstance(changes, PackedWriter):
                changes.write_packed(self._descriptor, begin)
            else:
                _write(self._descriptor, changes.pack(), begin)
            # The head comes last: with it, the entry is complete.
            _write(self._descriptor, _head(self._generation, about, changes_bytes) + about, self._size)
            self._size, self._seq = begin + changes_bytes, seq

    def forget(self, seq: int) -> None:
        """Remove what the store has: everything up to `seq`. Raises StateError."""
        with translate_lmdb_errors(self._directory):
            for number in [number for number, last in self._closed.items() if last <= seq]:
                self._path(number).unlink(missing_ok=True)
                del self._closed[number]
            if self._descriptor is not None and self._size and self._seq <= seq:
                # The file is written over: that costs half as much as a file whose pages have to be allocated. The first entry
                # must not be read any more, as its end is written over first.
                _write(self._descriptor, bytes(_HEAD.size), 0)
                self._size, self._generation = 0, self._generation + 1

    def read(self) -> Iterator[Entry]:
        """Yield the batches that an earlier process has appended, in order, up to one that it couldn't complete."""
        with translate_lmdb_errors(self._directory):
            for path in journal_files(self._directory):
                with path.open("rb") as file:
                    yield from _entries(file)

    def clear(self) -> None:
        """Remove everything: the store doesn't depend on it. Raises StateError."""
        with translate_lmdb_errors(self._directory):
            self._close()
            self._closed.clear()
            for path in journal_files(self._directory):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file. What is left is for the next process."""
        self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None
        self._size = 0

    def _path(self, number: int) -> Path:
        return self._directory / f"{JOURNAL_PREFIX}{number}"


def _write(descriptor: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def _head(generation: int, about: bytes, changes_bytes: int) -> bytes:
    head = _HEAD.pack(_MARK, generation, len(about), changes_bytes, 0)
    return _HEAD.pack(_MARK, generation, len(about), changes_bytes, crc32(about, crc32(head)))


def _entries(file: BinaryIO) -> Iterator[Entry]:
    """Yield a file's entries up to its end, to one that isn't complete, or to what is left of those that were written over."""
    first, left = None, os.fstat(file.fileno()).st_size
    while len(head := file.read(_HEAD.size)) == _HEAD.size:
        mark, generation, about_bytes, changes_bytes, _ = _HEAD.unpack(head)
        left -= _HEAD.size + about_bytes + changes_bytes
        if mark != _MARK or generation != (first := first or generation) or left < 0:
            return
        about = file.read(about_bytes)
        if head != _head(generation, about, changes_bytes):
            return
        after, seq, records = _decode(about)
        try:
            changes = unpacked(file.read(changes_bytes))
        except ValueError:
            return
        yield Entry(after, seq, records, changes)
