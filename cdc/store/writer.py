"""Writer of the images' changes to the state store, once their events are committed in Kafka.

    submit(batch) ──▶ submitted ──mark_committed(position)──▶ committed ──flush──▶ store, with the position S and its schema
                                   committed in Kafka    every flush_interval_ms, or when many changes wait

So S never passes the checkpoint, and a start finds the tuples and the schema as of S. Changes that were submitted and never
committed are discarded with the connection; the next one submits them again.

When a space gets another primary key, its rows are stored under another number from that change on (cdc.images). The number is
written with the change. Rows under numbers that no space uses, neither before nor after the change, are removed gradually.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cdc.errors import StateLostError, UnkeyableError
from cdc.images.overlay import NUMBER_MIN, Images
from cdc.images.pending import CLEAR, Changes, no_changes
from cdc.positions.position import Position
from cdc.protocol.codec import tuple_values
from cdc.schema.forms import SpaceForm
from cdc.schema.keys import KEY_BYTES_MAX, KeyCodec, space_prefix
from cdc.store.files import daemon_named
from cdc.store.journal import Journal
from cdc.store.store import SLICE_CHANGES, StateStore
from cdc.stream.batches.batch import Batch
from cdc.stream.commits.checkpoint import NUMBERS_KEY, Checkpoint, Writer, fold, numbers_record, position_record, space_record
from cdc.stream.moves.held import HELD_NUMBER

FLUSH_CHANGES_MAX: Final = SLICE_CHANGES
"""Number of committed changes from which on they are written. The store writes more changes in one call twice (`redo`), so larger
amounts are written in portions, unless a single batch has more."""
_NOBODY: Final = Writer("", has_store=True)
"""Placeholder for the writer of positions in the store, which is never read."""
UNWRITTEN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Memory of unwritten changes, in bytes, above which no more transactions are accepted. A single one may be larger."""
CHANGE_BYTES: Final = 256
"""Memory of a change besides its key and tuple, in bytes: it stays in a lookup table until the store has it."""


@dataclass(slots=True)
class _Portion:
    """Committed changes that the store writes in one call, and the position after them."""

    position: Position
    changes: Changes = field(default_factory=no_changes)
    byte_count: int = 0
    records: dict[bytes, bytes | None] = field(default_factory=dict)


class StateWriter:
    """Owner of one daemon's state store. For the daemon's thread."""

    def __init__(self, path: Path, name: str, flush_interval_seconds: float, holder: str | None = None) -> None:
        """Open the store. `holder` describes this process in others' errors; the default is the daemon of this `name`.

        Raises StateError, or StateLostError if the store has to be rebuilt.
        """
        self._path = path
        self._name = name
        self._flush_interval = flush_interval_seconds
        self._holder = daemon_named(name) if holder is None else holder
        self.store = StateStore(path, self._holder)
        self._journal = Journal(path)
        self._images: Images | None = None
        self._submitted: deque[tuple[Position, Changes, int, dict[bytes, bytes | None]]] = deque()
        # The submitted parts of an incomplete transaction.
        self._open = no_changes()
        self._open_records: dict[bytes, bytes | None] = {}
        self._open_bytes = 0
        self.unwritten_bytes = 0
        """Memory of the changes that aren't in the store yet, in bytes."""
        self._committed: deque[_Portion] = deque()
        self._committed_since = 0.0
        if self.store.is_former:
            self._bring_over()
        self._position = self.checkpoint().position
        # The numbers that prefix keys as of the last submitted batch, and the numbers that no space uses any more.
        self._submitted_numbers: Mapping[int, int] = {}
        self._submitted_seq = _seq_of(self._position)
        self._unused: list[int] = []
        self._next_removal = 0.0

    def checkpoint(self) -> Checkpoint:
        """Return the position and schema of the store. Raises ConfigurationError for records of a newer version."""
        found = Checkpoint()
        for key, value in self.store.records.items():
            fold(self._name, key, value, found)
        return found

    def names(self) -> set[str]:
        """Return the names of the daemons whose records the store has."""
        return {json.loads(key)["name"] for key in self.store.records if key != NUMBERS_KEY}

    @property
    def position(self) -> Position | None:
        """Position of the store; None while it is empty."""
        return self._position

    @property
    def size_bytes(self) -> int:
        """Size of the store's file in bytes; 0 if it is inaccessible, which other operations will report."""
        try:
            return self.store.size_bytes
        except OSError:
            return 0

    def begin(self, kept: Iterable[SpaceForm], version: tuple[int, ...]) -> Images:
        """Begin a connection with the store as it is. Committed changes are written first, other submitted ones are discarded."""
        self.flush(is_forced=True)
        self._journal.clear()
        self._submitted.clear()
        self._open = no_changes()
        self._open_records.clear()
        self._open_bytes = self.unwritten_bytes = 0
        self._submitted_numbers = self._numbers()
        self._submitted_seq = _seq_of(self._position)
        self._images = Images(self.store, kept, version, self._submitted_numbers)
        self._unused = self._unused_numbers()
        return self._images

    def restart(self) -> None:
        """Replace the store by an empty one."""
        self._images = None
        self._journal.clear()
        self._submitted.clear()
        self._open = no_changes()
        self._open_records.clear()
        self._open_bytes = self.unwritten_bytes = 0
        self._committed.clear()
        self.store.destroy()
        self.store = StateStore(self._path, self._holder)
        self._position = None
        self._submitted_seq = _seq_of(None)

    def keep_only(self, space_ids: Iterable[int]) -> None:
        """Remove the rows of all spaces other than these. Raises StateError."""
        numbers = self._numbers()
        wanted = {HELD_NUMBER, *self._unused, *(numbers.get(space_id, space_id) for space_id in space_ids)}
        unwanted = [(space_prefix(number), CLEAR) for number in self.store.space_ids() if number not in wanted]
        if unwanted:
            self.store.write(unwanted, ())

    def remove_unused(self) -> None:
        """Remove all rows left over from former primary keys at once. Ends the use of `begin`'s result. Raises StateError."""
        self._images = None
        for number in self._unused_numbers():
            while not self.store.remove_some(number):
                pass
        self._unused = []

    def submit(self, batch: Batch) -> None:
        """Add the changes of a batch that is being published to Kafka."""
        size = len(batch.changes) * CHANGE_BYTES + batch.changes.byte_count
        self.unwritten_bytes += size
        self._open_bytes += size
        self._open.extend(batch.changes)
        for space_id, space in batch.stored.items():
            key, value = space_record(self._name, space_id, space)
            self._open_records[key] = value
        if not batch.is_boundary:
            return
        records, self._open_records = self._open_records, {}
        if batch.numbers is not None and batch.numbers != self._submitted_numbers:
            self._submitted_numbers = batch.numbers
            key, value = numbers_record(self._submitted_numbers)
            records[key] = value
        if not self._journal.is_empty or not (_is_complete(batch.position) and _is_complete(self._position)):
            # The end of a snapshot, too, and rows that a JOIN sends after it, until the store has them.
            about = self._with_position(records, batch.position)
            self._journal.append(self._submitted_seq, batch.position.seq, about, self._open)
        self._submitted_seq = batch.position.seq
        self._submitted.append((batch.position, self._open, self._open_bytes, records))
        self._open, self._open_bytes = no_changes(), 0

    def mark_committed(self, position: Position) -> None:
        """Mark all batches up to the one with this position as committed in Kafka."""
        if not self._committed:
            self._committed_since = time.monotonic()
        while self._submitted:
            reached, changes, size, records = self._submitted.popleft()
            if not self._committed or len(self._committed[-1].changes) + len(changes) > SLICE_CHANGES:
                self._committed.append(_Portion(reached))
            portion = self._committed[-1]
            portion.position = reached
            portion.changes.extend(changes)
            portion.byte_count += size
            portion.records.update(records)
            if reached is position:
                return

    def flush(self, *, is_forced: bool = False, is_at_once: bool = False) -> Position | None:
        """Write committed changes if they are due. Return the store's new position, or None. Raises StateError.

        `is_at_once`: they are due as soon as all submitted batches are committed, but not earlier: later rows would change the
        same pages, which would be written twice.
        """
        if self._unused:
            self._remove_some()
        if not self._committed:
            return None
        is_due = time.monotonic() - self._committed_since >= self._flush_interval or (is_at_once and not self._submitted)
        if not is_due and not is_forced and sum(len(portion.changes) for portion in self._committed) < FLUSH_CHANGES_MAX:
            return None
        while self._committed:
            self._write(self._committed[0])
            self._committed.popleft()
        if self._position is not None and not self._journal.is_empty:
            self._journal.forget(self._position.seq)
        return self._position

    def catch_up(self, checkpoint: Position | None) -> bool:
        """Bring the store up to the checkpoint if an interrupted snapshot's journal leads there. Return whether it has changed.

        The journal is another process's: call this before `begin`. Raises StateError.
        """
        if checkpoint is None or checkpoint.snapshot is None:
            return False
        changed = False
        for entry in self._journal.read():
            found = Checkpoint()
            for key, value in entry.records:
                fold(self._name, key, value, found)
            position = found.position
            if position is None or position.snapshot is None or entry.seq > checkpoint.seq:
                break
            at = _seq_of(self._position)
            if position.snapshot.base_id != checkpoint.snapshot.base_id or entry.after > at:
                break
            if entry.seq >= at:
                self.store.write(entry.changes, entry.records)
                self._position, changed = position, True
        return changed

    def adopt(self, at: Checkpoint) -> None:
        """Record that the store's rows are those of this position, whose spaces have these forms. Raises StateError.

        For a store that was filled without a position that counts: call this between `flush` and `begin`.
        """
        assert at.position is not None
        assert not self._committed, "the rows are written before their position"
        records = dict(space_record(self._name, space_id, space) for space_id, space in at.spaces.items())
        self.store.write((), self._with_position(records, at.position))
        self._position = at.position

    def _with_position(self, records: Mapping[bytes, bytes | None], position: Position) -> list[tuple[bytes, bytes | None]]:
        """Return the records to write with a batch, its position among them."""
        return [*records.items(), position_record(self._name, position, _NOBODY, time.time_ns() // 1_000_000)]

    def _write(self, portion: _Portion) -> None:
        self.store.write(portion.changes, self._with_position(portion.records, portion.position))
        if self._images is not None:
            self._images.written(portion.changes)
        self.unwritten_bytes -= portion.byte_count
        self._position = portion.position
        if NUMBERS_KEY in portion.records:
            self._unused = self._unused_numbers()

    def close(self) -> None:
        """Write the committed changes and close the store. Raises StateError."""
        try:
            self.flush(is_forced=True)
        finally:
            self._journal.close()
            self.store.close()

    def _bring_over(self) -> None:
        """Move rows written by an earlier version to their current keys. Raises StateLostError if rows may be missing."""
        try:
            forms = self.checkpoint().published_forms()
            for form in forms:
                if any(part.is_as_written for part in form.key_parts):
                    raise StateLostError(
                        f"the state store {self._path} was written by a version that took rows for one whose keys the HASH index "
                        f"of space {form.name!r} tells apart by how they are written (1 and 1.00)",
                        "It has to be rebuilt from a snapshot.",
                    )
            self.store.bring_over(list(self._moves(forms)))
        except BaseException:
            self.store.close()
            raise

    def _moves(self, forms: Iterable[SpaceForm]) -> Iterator[tuple[bytes, bytes]]:
        """Yield the old and the current key of each row whose key differs from an earlier version's."""
        for form in forms:
            with contextlib.suppress(UnkeyableError):  # the store has no rows of such spaces
                codec = KeyCodec(form)
                if codec.is_text:
                    yield from _moves_of(codec, form.space_id, self.store)

    def _numbers(self) -> dict[int, int]:
        """Return, as of the store's position, the numbers that prefix spaces' keys, where they differ from the space's id."""
        return numbers_in(self.store.records)

    def _unused_numbers(self) -> list[int]:
        """Return the numbers of rows that no space uses now, nor will use once all pending changes are written."""
        numbers = self._numbers()
        committed = (portion.records for portion in self._committed)
        pending = (*committed, self._open_records, *(records for _, _, _, records in self._submitted))
        # A number that was replaced by a pending change is still in use at the store's next position.
        taken = {*numbers.values(), *(number for records in pending for number in numbers_in(records).values())}

        def is_unused(number: int) -> bool:
            is_left = number >= NUMBER_MIN or number in numbers
            return is_left and number not in taken and not (self._images is not None and self._images.is_in_use(number))

        return [number for number in self.store.space_ids() if is_unused(number)]

    def _remove_some(self) -> None:
        now = time.monotonic()
        if now >= self._next_removal:
            self._next_removal = now + self._flush_interval
            if self.store.remove_some(self._unused[-1]):
                self._unused.pop()


def _is_complete(position: Position | None) -> bool:
    """Return whether there is a position outside of a snapshot."""
    return position is not None and position.snapshot is not None and position.snapshot.is_complete


def _seq_of(position: Position | None) -> int:
    """Return the last seq at a position of the store, -1 while it is empty."""
    return -1 if position is None else position.seq


def numbers_in(records: Mapping[bytes, bytes] | Mapping[bytes, bytes | None]) -> dict[int, int]:
    """Return, by space id, the number that prefixes the space's keys in the store, where it isn't the space's id."""
    record = json.loads(records.get(NUMBERS_KEY) or b"{}")
    return {int(space_id): number for space_id, number in record.items()}


def _moves_of(codec: KeyCodec, space_id: int, store: StateStore) -> Iterator[tuple[bytes, bytes]]:
    prefix = space_prefix(space_id)
    for key, tuple_ in store.scan(space_id):
        if key >= prefix + b"\x01":
            return  # a key of zero bytes only begins with a zero byte
        if len(key) == KEY_BYTES_MAX or not key[len(prefix) :].strip(b"\0"):
            now = codec.of_tuple(tuple_values(tuple_))
            if now != key:
                yield key, now
