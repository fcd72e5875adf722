"""The current tuple of every key, as of the row that is being handled: what images are made of.

The store holds the tuples as of a position that is durable in Kafka. Between that and the row at hand lie the changes of
batches that are on their way; they are kept here, over the store, until the store has them:

    rows ──▶ put, delete, clear ──▶ pending ──┬──▶ take: the changes of one batch, to be written once it is durable
                                              │
    current(key) ◀── pending, else the store ◀┴─── written: the store has them now

A space that is given another primary key gets another number for its keys to begin with, which no space and no key has had.
Its rows are written under it at once and count for nothing until the change that gave the key is written too: the store then
has the rows under the old keys or under the new ones, whenever the process ends, and memory holds neither.

Tuples are kept as the bytes in which the master sent them. A space whose keys can't be told equal as the server does it (a
collation) is not kept: its rows come out as without images, and `spaces_without_images` says why.

What it refuses to know: disks, and what a tuple says.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from cdc.errors import KeysChangedError, SchemaError, UnkeyableError
from cdc.images.pending import Change, Changes, Pending, new_pending
from cdc.protocol.codec import tuple_values
from cdc.schema.forms import KeyPart, SpaceForm
from cdc.schema.keys import KeyCodec, space_prefix

_PREFIX_BYTES: Final = 4

_UNCHANGED: Final = b""
"""Stands where a tuple would: the key has no change."""

NUMBER_MIN: Final = 1 << 31
"""Numbers from here on are those of spaces that have been given another primary key; no space has such an id."""

REKEY_ROWS: Final = 8_192
REKEY_BYTES: Final = 1024 * 1024
"""So many rows, or bytes of them, are brought under their new keys at a time."""


class Tuples(Protocol):
    """What is needed of a store."""

    @property
    def get(self) -> Callable[[bytes], bytes | None]:
        """A key's tuple."""

    @property
    def row_count(self) -> int:
        """Rows of all spaces."""

    def space_ids(self) -> list[int]:
        """The numbers that keys begin with."""

    def write(self, changes: Iterable[Change], records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Rows under a number that no space has yet."""

    def scan(self, space_id: int, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys and tuples of a space in the order of the keys, from behind the key `after`."""

    def begin_mark(self) -> None:
        """A snapshot begins: no key of it has been seen."""

    def add_marks(self, keys: Iterable[bytes]) -> None:
        """Keys that the snapshot has."""

    def unmarked(self, space_id: int) -> Iterator[tuple[bytes, bytes]]:
        """Keys and tuples of a space that the snapshot hasn't."""

    def end_mark(self) -> None:
        """The snapshot is over."""


DOUBTFUL_MAX: Final = 1000
"""They are part of the position, which is written with every commit; with more there is something else amiss."""


class Images:
    """The store's tuples with the pending changes over them.

    `kept` are the forms of the spaces that the store has rows of, as of its position.
    """

    def __init__(
        self,
        store: Tuples,
        kept: Iterable[SpaceForm] = (),
        version: tuple[int, ...] = (3, 9),
        numbers: Mapping[int, int] | None = None,
    ) -> None:
        """`version` is the master's: servers don't all compute alike. `numbers` are those that the store's position has."""
        self.version = version
        self.numbers: Mapping[int, int] = dict(numbers or {})
        """By space: what its keys begin with, where that isn't its id. Replaced whole, as `doubtful` is."""
        self._last_number = max([NUMBER_MIN - 1, *self.numbers.values(), *store.space_ids()])
        # Of the space that is just brought under other keys.
        self._filled_number = 0
        self._store = store
        # By space: what its keys were made of, and how consumers know them. Keys of two kinds can't stand side by side.
        self._keys: dict[int, tuple[tuple[str, KeyPart], ...]] = {}
        # Spaces whose keys can't be kept, so that nobody knows which rows they have.
        self._unknown: set[int] = set()
        self._pending = new_pending()
        # A snapshot into an empty store can miss nothing, so nothing has to be remembered of it.
        self._is_comparing = False
        self.spaces_without_images: dict[str, str] = {}
        """Names of spaces that aren't kept, with the reason."""
        self._doubtful: frozenset[bytes] = frozenset()
        for form in kept:
            with contextlib.suppress(UnkeyableError):  # said when its rows come
                self.codec(form)
            self._keys[form.space_id] = form.primary_key

    @property
    def doubtful(self) -> frozenset[bytes]:
        """Keys of which a row was passed over that couldn't be carried out: they have the tuple from before it, and what they
        should have is not known until a row tells it whole. Replaced whole, so it can be kept to go back to.
        """
        return self._doubtful

    @doubtful.setter
    def doubtful(self, keys: frozenset[bytes]) -> None:
        """These are doubtful from here on."""
        self._doubtful = self._pending.doubtful = keys

    def number(self, space_id: int) -> int:
        """What a space's keys begin with."""
        return self.numbers.get(space_id, space_id)

    def is_in_use(self, number: int) -> bool:
        """Whether keys of a space begin with this number, or are about to."""
        return number == self._filled_number or number in self.numbers.values()

    @property
    def doubts(self) -> frozenset[bytes]:
        """The doubtful keys as a position has them: each begins with the id of its space."""
        if not self.numbers:
            return self.doubtful
        ids = {space_prefix(number): space_prefix(space_id) for space_id, number in self.numbers.items()}
        return frozenset(ids.get(key[:_PREFIX_BYTES], key[:_PREFIX_BYTES]) + key[_PREFIX_BYTES:] for key in self.doubtful)

    def recall(self, doubts: Iterable[bytes]) -> None:
        """What was doubtful at a position is so here."""
        numbers = {space_prefix(space_id): space_prefix(number) for space_id, number in self.numbers.items()}
        self.doubtful |= {numbers.get(key[:_PREFIX_BYTES], key[:_PREFIX_BYTES]) + key[_PREFIX_BYTES:] for key in doubts}

    def codec(self, form: SpaceForm) -> KeyCodec:
        """What makes a space's keys from here on. Raises UnkeyableError; the space is then one of which nothing is known."""
        return self._codec(form, self.number(form.space_id))

    def _codec(self, form: SpaceForm, number: int) -> KeyCodec:
        try:
            codec = KeyCodec(form, number)
        except UnkeyableError:
            self._keys[form.space_id] = form.primary_key
            self._unknown.add(form.space_id)
            raise
        self._unknown.discard(form.space_id)
        return codec

    def keep(self, form: SpaceForm) -> None:
        """From here on a space's keys are made by this form. Asked `has_other_keys` before, the caller has cleared it."""
        assert not self.has_other_keys(form)
        self._keys[form.space_id] = form.primary_key

    def has_other_keys(self, form: SpaceForm) -> bool:
        """Whether a space has rows that aren't kept, or aren't known outside, under the keys that this form makes."""
        space_id, key = form.space_id, form.primary_key
        if self._keys.get(space_id, key) == key:
            return False
        return space_id in self._unknown or next(self.scan(space_id), None) is not None

    def is_kept(self, space_id: int) -> bool:
        """Whether this space's rows were or are kept."""
        return space_id in self._keys

    def is_unknown(self, space_id: int) -> bool:
        """Whether nobody knows which rows this space has, because its keys can't be kept."""
        return space_id in self._unknown

    def rekey(self, form: SpaceForm) -> Iterator[None]:
        """Bring a space's rows under the keys of this form. Yields now and then; until the end nothing else may touch the space.

        Raises UnkeyableError if there are no such keys: the space is one of which nothing is known from here on, and `scan` gives
        the rows that it had, under their old keys, until they are cleared. Raises KeysChangedError if a row has no such key.
        """
        space_id, key = form.space_id, form.primary_key
        if [part for _, part in self._keys[space_id]] == list(form.key_parts):
            self._keys[space_id] = key  # other names are no other keys here
            return
        number = self._last_number + 1
        codec = self._codec(form, number)
        self._last_number = self._filled_number = number
        after: bytes | None = b""
        while after is not None:
            rows, after = self._next_rows(codec, form, after)
            self._store.write(rows, ())
            yield
        self.numbers = {**self.numbers, space_id: number}
        self._keys[space_id] = key

    def _next_rows(self, codec: KeyCodec, form: SpaceForm, after: bytes) -> tuple[list[Change], bytes | None]:
        """Rows from behind the key `after` on under their new keys, and the last one's old key; None with the last rows."""
        rows: list[Change] = []
        byte_count = 0
        for old_key, tuple_ in self.scan(form.space_id, after):
            try:
                key = codec.of_tuple(tuple_values(tuple_))
            except SchemaError as error:
                raise KeysChangedError(f"a row can't have the space's new primary key: {error.message}") from error
            rows.append((key, tuple_))
            if old_key in self.doubtful:
                self.doubtful = (self.doubtful - {old_key}) | {key}
            byte_count += len(tuple_)
            if len(rows) >= REKEY_ROWS or byte_count >= REKEY_BYTES:
                return rows, old_key
        return rows, None

    @property
    def reading(self) -> tuple[Pending, Callable[[bytes], bytes | None]]:
        """For a compiled row path: what is pending, and how to read what is stored, until something is written."""
        return self._pending, self._store.get

    def current(self, key: bytes) -> bytes | None:
        """A key's tuple, None if there is none."""
        found = self._pending.get(key, _UNCHANGED)
        if found is _UNCHANGED:
            return None if self._pending.is_cleared(key) else self._store.get(key)
        return found

    def pending(self, key: bytes) -> bytes | None:
        """The tuple that a change has left which isn't in the store yet; None if there is none, whatever the store has."""
        return self._pending.get(key, None)

    def put(self, key: bytes, tuple_: bytes) -> None:
        """The key has this tuple from here on."""
        self._pending.put(key, tuple_)
        if self._doubtful:
            self.doubtful -= {key}

    def delete(self, key: bytes) -> None:
        """The key has no tuple from here on."""
        self._pending.put(key, None)
        if self._doubtful:
            self.doubtful -= {key}

    def put_unencodable(self, key: bytes, tuple_: bytes | None) -> None:
        """As `put` or `delete`, for a row whose event can't be made; `undo_last` makes it undone, once."""
        self._pending.put_undoable(key, tuple_)
        if self._doubtful:
            self.doubtful -= {key}

    def doubt(self, key: bytes) -> bool:
        """What the key has is not known from here on; False if there are too many such keys to keep in mind."""
        if len(self.doubtful) >= DOUBTFUL_MAX:
            return key in self.doubtful
        self.doubtful |= {key}
        return True

    def keep_last(self) -> None:
        """What the last row did is not taken back any more: it was set aside."""
        self._pending.keep_last()

    def undo_last(self) -> None:
        """The last row's event couldn't be made, and it will be looked at again."""
        self._pending.undo_last()

    def clear(self, space_id: int) -> None:
        """The space has no rows from here on."""
        prefix = space_prefix(self.number(space_id))
        if self._doubtful:
            self.doubtful = frozenset(key for key in self._doubtful if not key.startswith(prefix))
        self._pending.clear(prefix)

    def scan(self, space_id: int, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys and tuples of a space as of now, in the order of the keys, from behind the key `after`."""
        number = self.number(space_id)
        prefix = space_prefix(number)
        changed = dict(self._pending.changed(prefix, after))
        stored = () if self._pending.is_cleared(prefix) else self._store.scan(number, after)
        untouched = (row for row in stored if row[0] not in changed)
        present = ((key, tuple_) for key, tuple_ in changed.items() if tuple_ is not None)
        return heapq.merge(untouched, present)

    # One batch's changes on their way to the store.

    @property
    def change_count(self) -> int:
        """How many changes there have been since `take`; a mark to go back to."""
        return self._pending.change_count

    def forget_after(self, mark: int) -> None:
        """The changes after the mark won't be published. What is pending is wrong from here on: nothing may be read."""
        self._pending.forget_after(mark)

    def take(self) -> Changes:
        """The changes since the last call, in order."""
        return self._pending.take()

    def take_before(self, mark: int) -> Changes:
        """Those of them that there were at the mark."""
        return self._pending.take_before(mark)

    def written(self, changes: Changes) -> None:
        """The store has these changes now."""
        self._pending.written(changes)

    # A snapshot's rows against what is there.

    def begin_snapshot(self) -> None:
        """A snapshot's rows are about to come."""
        self._is_comparing = self._store.row_count > 0
        if self._is_comparing:
            self._store.begin_mark()

    @property
    def is_comparing(self) -> bool:
        """Whether the snapshot's keys have to be seen, because there were rows before it."""
        return self._is_comparing

    def see(self, keys: Iterable[bytes]) -> None:
        """Keys that the snapshot has."""
        self._store.add_marks(keys)

    def missing(self, space_id: int) -> Iterator[tuple[bytes, bytes]]:
        """Keys and tuples that the snapshot hasn't."""
        number = self.number(space_id)
        if not self._is_comparing or self._pending.is_cleared(space_prefix(number)):
            return iter(())
        return self._store.unmarked(number)

    def end_snapshot(self) -> None:
        """All rows of the snapshot have come."""
        if self._is_comparing:
            self._store.end_mark()
            self._is_comparing = False
