"""Brings the images' changes into the store, once Kafka has what they belong to.

    submit(batch) ──▶ submitted ──mark_committed(position)──▶ committed ──flush──▶ store, with the position S and its schema
                                   Kafka has it          every flush_interval_ms, or when there is much of it

So S never passes the checkpoint, and a start finds the tuples as of S with the schema as of S. What was submitted and never
settled is forgotten with the connection; it comes again.

A space that was given another primary key has its rows under another number from that change on (cdc.images). Which, is written
with the change; rows under numbers that nobody has, before or after, are removed little by little.
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
from cdc.store.store import SLICE_CHANGES, StateStore
from cdc.stream.batch import Batch
from cdc.stream.checkpoint import NUMBERS_KEY, Checkpoint, Writer, fold, numbers_record, position_record, space_record

FLUSH_CHANGES_MAX: Final = SLICE_CHANGES
"""More than that the store would write down twice: they are written in portions, unless one batch alone has more."""
_NOBODY: Final = Writer("", has_store=True)
"""Who writes positions into the store is never asked."""
UNWRITTEN_BYTES_MAX: Final = 64 * 1024 * 1024
"""With more than this on its way to the store, no more transactions are taken; one alone may be larger."""
CHANGE_BYTES: Final = 256
"""What a change costs in memory beside its key and tuple: it is looked up by its key until the store has it."""


@dataclass(slots=True)
class _Portion:
    """Settled changes that the store writes at once, and the position that they lead to."""

    position: Position
    changes: Changes = field(default_factory=no_changes)
    byte_count: int = 0
    records: dict[bytes, bytes | None] = field(default_factory=dict)


class StateWriter:
    """Owns one daemon's store. For the daemon's thread."""

    def __init__(self, path: Path, name: str, flush_interval_seconds: float, holder: str | None = None) -> None:
        """`holder` is what others are told who find the store in use: the daemon, if nothing is said.

        Raises StateError, or StateLostError if the store has to be built anew.
        """
        self._path = path
        self._name = name
        self._flush_interval = flush_interval_seconds
        self._holder = daemon_named(name) if holder is None else holder
        self.store = StateStore(path, self._holder)
        self._images: Images | None = None
        self._submitted: deque[tuple[Position, Changes, int, dict[bytes, bytes | None]]] = deque()
        # The parts of a transaction that isn't whole yet.
        self._open = no_changes()
        self._open_records: dict[bytes, bytes | None] = {}
        self._open_bytes = 0
        self.unwritten_bytes = 0
        """What the changes that aren't in the store yet take in memory."""
        self._settled: deque[_Portion] = deque()
        self._settled_since = 0.0
        if self.store.is_former:
            self._bring_over()
        self._position = self.checkpoint().position
        # What keys began with at the batch that was submitted last, and what nobody has any more.
        self._submitted_numbers: Mapping[int, int] = {}
        self._unused: list[int] = []
        self._next_removal = 0.0

    def checkpoint(self) -> Checkpoint:
        """Position and schema that the store is at. Raises ConfigurationError for records of a newer version."""
        found = Checkpoint()
        for key, value in self.store.records.items():
            fold(self._name, key, value, found)
        return found

    def names(self) -> set[str]:
        """Whose records the store has."""
        return {json.loads(key)["name"] for key in self.store.records if key != NUMBERS_KEY}

    @property
    def position(self) -> Position | None:
        """What the store is at; None while it is empty."""
        return self._position

    @property
    def size_bytes(self) -> int:
        """Of the store's file; 0 if it can't be looked at, which others will notice."""
        try:
            return self.store.size_bytes
        except OSError:
            return 0

    def begin(self, kept: Iterable[SpaceForm], version: tuple[int, ...]) -> Images:
        """A connection begins, with the store as it is: of what was submitted, only what is settled counts."""
        self.flush(is_forced=True)
        self._submitted.clear()
        self._open = no_changes()
        self._open_records.clear()
        self._open_bytes = self.unwritten_bytes = 0
        self._submitted_numbers = self._numbers()
        self._images = Images(self.store, kept, version, self._submitted_numbers)
        self._unused = self._unused_numbers()
        return self._images

    def restart(self) -> None:
        """Begin with an empty store."""
        self._images = None
        self._submitted.clear()
        self._open = no_changes()
        self._open_records.clear()
        self._open_bytes = self.unwritten_bytes = 0
        self._settled.clear()
        self.store.destroy()
        self.store = StateStore(self._path, self._holder)
        self._position = None

    def keep_only(self, space_ids: Iterable[int]) -> None:
        """Rows of other spaces than these aren't wanted any more. Raises StateError."""
        numbers = self._numbers()
        wanted = {*self._unused, *(numbers.get(space_id, space_id) for space_id in space_ids)}
        unwanted = [(space_prefix(number), CLEAR) for number in self.store.space_ids() if number not in wanted]
        if unwanted:
            self.store.write(unwanted, ())

    def remove_unused(self) -> None:
        """Remove all rows at once that are left from other primary keys. What `begin` gave is over. Raises StateError."""
        self._images = None
        for number in self._unused_numbers():
            while not self.store.remove_some(number):
                pass
        self._unused = []

    def submit(self, batch: Batch) -> None:
        """A batch is on its way to Kafka."""
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
        self._submitted.append((batch.position, self._open, self._open_bytes, records))
        self._open, self._open_bytes = no_changes(), 0

    def mark_committed(self, position: Position) -> None:
        """Kafka has everything up to the batch with this position."""
        if not self._settled:
            self._settled_since = time.monotonic()
        while self._submitted:
            reached, changes, size, records = self._submitted.popleft()
            if not self._settled or len(self._settled[-1].changes) + len(changes) > SLICE_CHANGES:
                self._settled.append(_Portion(reached))
            portion = self._settled[-1]
            portion.position = reached
            portion.changes.extend(changes)
            portion.byte_count += size
            portion.records.update(records)
            if reached is position:
                return

    def flush(self, *, is_forced: bool = False, is_at_once: bool = False) -> Position | None:
        """Write what is settled, if it is time; returns the position that the store has come to. Raises StateError.

        `is_at_once`: it is time as soon as all that was submitted is settled. Before that the rows that are still to come
        change pages that would be written twice.
        """
        if self._unused:
            self._remove_some()
        if not self._settled:
            return None
        is_due = time.monotonic() - self._settled_since >= self._flush_interval or (is_at_once and not self._submitted)
        if not is_due and not is_forced and sum(len(portion.changes) for portion in self._settled) < FLUSH_CHANGES_MAX:
            return None
        while self._settled:
            self._write(self._settled[0])
            self._settled.popleft()
        return self._position

    def _write(self, portion: _Portion) -> None:
        key, value = position_record(self._name, portion.position, _NOBODY, time.time_ns() // 1_000_000)
        self.store.write(portion.changes, [*portion.records.items(), (key, value)])
        if self._images is not None:
            self._images.written(portion.changes)
        self.unwritten_bytes -= portion.byte_count
        self._position = portion.position
        if NUMBERS_KEY in portion.records:
            self._unused = self._unused_numbers()

    def close(self) -> None:
        """Write what is settled and let go of the store. Raises StateError."""
        try:
            self.flush(is_forced=True)
        finally:
            self.store.close()

    def _bring_over(self) -> None:
        """Give rows that an earlier version wrote the keys that they have now. Raises StateLostError if some may be missing."""
        try:
            forms = self.checkpoint().published_forms()
            for form in forms:
                if any(part.is_as_written for part in form.key_parts):
                    raise StateLostError(
                        f"the state store {self._path} was written by a version that took rows for one whose keys the HASH index "
                        f"of space {form.name!r} tells apart by how they are written (1 and 1.00)",
                        "It has to be built anew from a snapshot.",
                    )
            self.store.bring_over(list(self._moves(forms)))
        except BaseException:
            self.store.close()
            raise

    def _moves(self, forms: Iterable[SpaceForm]) -> Iterator[tuple[bytes, bytes]]:
        """Of rows that an earlier version wrote: the keys that it gave them, and those that they have now."""
        for form in forms:
            with contextlib.suppress(UnkeyableError):  # of those there are no rows
                codec = KeyCodec(form)
                if codec.is_text:
                    yield from _moves_of(codec, form.space_id, self.store)

    def _numbers(self) -> dict[int, int]:
        """By space, as of the store's position: what its keys begin with, where that isn't its id."""
        return numbers_in(self.store.records)

    def _unused_numbers(self) -> list[int]:
        """Numbers of rows that no space has, nor will have once what is on its way is written."""
        numbers = self._numbers()
        settled = (portion.records for portion in self._settled)
        pending = (*settled, self._open_records, *(records for _, _, _, records in self._submitted))
        # A number that another has replaced since is still the one at the position that the store comes to next.
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


def numbers_in(records: Mapping[bytes, bytes] | Mapping[bytes, bytes | None]) -> dict[int, int]:
    """By space, what its rows' keys begin with in the store, where that isn't its id."""
    record = json.loads(records.get(NUMBERS_KEY) or b"{}")
    return {int(space_id): number for space_id, number in record.items()}


def _moves_of(codec: KeyCodec, space_id: int, store: StateStore) -> Iterator[tuple[bytes, bytes]]:
    prefix = space_prefix(space_id)
    for key, tuple_ in store.scan(space_id):
        if key >= prefix + b"\x01":
            return  # only what begins with a zero can be all zeroes
        if len(key) == KEY_BYTES_MAX or not key[len(prefix) :].strip(b"\0"):
            now = codec.of_tuple(tuple_values(tuple_))
            if now != key:
                yield key, now
