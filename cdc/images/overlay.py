"""The current tuple of every key, as of the row that is being handled. Images are made from these tuples.

The store has the tuples as of a position that is durable in Kafka. The changes of later batches, which are still on their way,
are kept here, over the store, until the store has them:

    rows ──▶ put, delete, clear ──▶ pending ──┬──▶ take: the changes of one batch, to be written once it is durable
                                              │
    current(key) ◀── pending, else the store ◀┴─── written: the store has them now

If a space gets another primary key, its keys get another number as their prefix, which no space and no key has had. The rows are
written under the new keys at once, and count for nothing until the change of the primary key is written, too. So whenever the
process ends, the store has the rows under the old keys or under the new ones, and memory holds neither.

Tuples are kept as the bytes that the master sent. A space whose keys can't be compared as the server compares them (because of a
collation) isn't kept: its events have no images, and `spaces_without_images` gives the reason.

This module doesn't know disks, and doesn't interpret tuples.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from cdc.errors import KeysChangedError, SchemaError, UnkeyableError
from cdc.images.comparison import Compared, Comparison
from cdc.images.pending import Change, Changes, Pending, new_pending
from cdc.protocol.codec import tuple_values
from cdc.schema.forms import KeyPart, SpaceForm
from cdc.schema.keys import KeyCodec, space_prefix

_PREFIX_BYTES: Final = 4

_UNCHANGED: Final = b""
"""Placeholder for a tuple: the key has no change."""

NUMBER_MIN: Final = 1 << 31
"""First of the numbers for spaces that have got another primary key; no space has such an id."""

REKEY_ROWS: Final = 8_192
REKEY_BYTES: Final = 1024 * 1024
"""Number of rows, and of their bytes, that are moved to their new keys at a time."""


class Tuples(Compared, Protocol):
    """Interface of a store."""

    @property
    def get(self) -> Callable[[bytes], bytes | None]:
        """Function that returns a key's tuple, or None."""

    @property
    def row_count(self) -> int:
        """Number of rows of all spaces."""

    def space_ids(self) -> list[int]:
        """Return the numbers that prefix the keys."""

    def write(self, changes: Iterable[Change], records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write rows under a number that no space has yet."""


DOUBTFUL_MAX: Final = 1000
"""Maximum number of doubtful keys.

They are part of the position, which each commit writes; more of them indicate another problem.
"""


class Images:
    """The store's tuples with the pending changes over them.

    `kept` are the forms of the spaces whose rows the store has, as of its position.
    """

    def __init__(
        self,
        store: Tuples,
        kept: Iterable[SpaceForm] = (),
        version: tuple[int, ...] = (3, 9),
        numbers: Mapping[int, int] | None = None,
    ) -> None:
        """`version` is the master's: servers don't all compute alike. `numbers` are those at the store's position."""
        self.version = version
        self.numbers: Mapping[int, int] = dict(numbers or {})
        """By space: the number that prefixes its keys, if that isn't its id. Replaced as a whole, like `doubtful`."""
        self._last_number = max([NUMBER_MIN - 1, *self.numbers.values(), *store.space_ids()])
        # Number of the space that is being moved to other keys.
        self._filled_number = 0
        self._store = store
        # By space: the parts of its keys, and their names for consumers. Keys of two kinds can't coexist.
        self._keys: dict[int, tuple[tuple[str, KeyPart], ...]] = {}
        # Spaces whose keys can't be stored, so that their rows are unknown.
        self._unknown: set[int] = set()
        self._pending = new_pending()
        self.comparison: Comparison | None = None
        """Comparison of the snapshot that is being taken with the store's rows. A snapshot into an empty store has none."""
        self.spaces_without_images: dict[str, str] = {}
        """Names of spaces that aren't kept, with the reason."""
        self._doubtful: frozenset[bytes] = frozenset()
        for form in kept:
            with contextlib.suppress(UnkeyableError):  # reported when the space's rows arrive
                self.codec(form)
            self._keys[form.space_id] = form.primary_key

    @property
    def doubtful(self) -> frozenset[bytes]:
        """Keys of which a row couldn't be applied and was skipped.

        They have the tuple from before that row. Their correct tuple is unknown until a row contains it completely. The set is
        replaced as a whole, so a caller can keep it to return to it.
        """
        return self._doubtful

    @doubtful.setter
    def doubtful(self, keys: frozenset[bytes]) -> None:
        """Replace the doubtful keys."""
        self._doubtful = self._pending.doubtful = keys

    def number(self, space_id: int) -> int:
        """Return the number that prefixes a space's keys."""
        return self.numbers.get(space_id, space_id)

    def is_in_use(self, number: int) -> bool:
        """Return whether keys of a space have this number as their prefix, or are about to."""
        return number == self._filled_number or number in self.numbers.values()

    @property
    def doubts(self) -> frozenset[bytes]:
        """The doubtful keys as a position records them: each begins with the id of its space."""
        if not self.numbers:
            return self.doubtful
        ids = {space_prefix(number): space_prefix(space_id) for space_id, number in self.numbers.items()}
        return frozenset(ids.get(key[:_PREFIX_BYTES], key[:_PREFIX_BYTES]) + key[_PREFIX_BYTES:] for key in self.doubtful)

    def restore_doubtful(self, doubts: Iterable[bytes]) -> None:
        """Add the keys that were doubtful at a position."""
        numbers = {space_prefix(space_id): space_prefix(number) for space_id, number in self.numbers.items()}
        self.doubtful |= {numbers.get(key[:_PREFIX_BYTES], key[:_PREFIX_BYTES]) + key[_PREFIX_BYTES:] for key in doubts}

    def codec(self, form: SpaceForm) -> KeyCodec:
        """Return the maker of a space's keys from here on. Raises UnkeyableError; the space's rows are unknown then."""
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

    def use_form(self, form: SpaceForm) -> None:
        """Make a space's keys by this form from here on. If `has_other_keys` is true, the caller has cleared the space before."""
        assert not self.has_other_keys(form)
        self._keys[form.space_id] = form.primary_key

    def has_other_keys(self, form: SpaceForm) -> bool:
        """Return whether a space has rows whose keys, in the store or for consumers, aren't those that this form makes."""
        space_id, key = form.space_id, form.primary_key
        if self._keys.get(space_id, key) == key:
            return False
        return space_id in self._unknown or next(self.scan(space_id), None) is not None

    def is_kept(self, space_id: int) -> bool:
        """Return whether this space's rows were or are kept."""
        return space_id in self._keys

    def is_unknown(self, space_id: int) -> bool:
        """Return whether this space's rows are unknown, because its keys can't be stored."""
        return space_id in self._unknown

    def rekey(self, form: SpaceForm) -> Iterator[None]:
        """Move a space's rows to the keys of this form. Yields now and then; until the end, nothing else may touch the space.

        Raises UnkeyableError if there are no such keys. The space's rows are unknown from then on, and `scan` yields its former
        rows under their old keys until they are cleared. Raises KeysChangedError if a row has no such key.
        """
        space_id, key = form.space_id, form.primary_key
        if [part for _, part in self._keys[space_id]] == list(form.key_parts):
            self._keys[space_id] = key  # other names don't change the stored keys
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
        """Return rows after the key `after` under their new keys, and the last one's old key; None with the last rows."""
        rows: list[Change] = []
        byte_count = 0
        for old_key, tuple_ in self.scan(form.space_id, after):
            try:
                key = codec.of_tuple(tuple_values(tuple_))
            except SchemaError as error:
                raise KeysChangedError(
                    f"a row can't have the space's new primary key: {error.message}", detail=error.detail
                ) from error
            rows.append((key, tuple_))
            if old_key in self.doubtful:
                self.doubtful = (self.doubtful - {old_key}) | {key}
            byte_count += len(tuple_)
            if len(rows) >= REKEY_ROWS or byte_count >= REKEY_BYTES:
                return rows, old_key
        return rows, None

    @property
    def reading(self) -> tuple[Pending, Callable[[bytes], bytes | None]]:
        """Pending changes, and the function that reads the store, for a compiled row path. Valid until something is written."""
        return self._pending, self._store.get

    def current(self, key: bytes) -> bytes | None:
        """Return a key's tuple, or None."""
        found = self._pending.get(key, _UNCHANGED)
        if found is _UNCHANGED:
            return None if self._pending.is_cleared(key) else self._store.get(key)
        return found

    def pending(self, key: bytes) -> bytes | None:
        """Return the tuple from a change that isn't in the store yet; None if there is none, whatever the store has."""
        return self._pending.get(key, None)

    def put(self, key: bytes, tuple_: bytes) -> None:
        """Set the key's tuple from here on."""
        self._pending.put(key, tuple_)
        if self._doubtful:
            self.doubtful -= {key}

    def delete(self, key: bytes) -> None:
        """Delete the key's tuple from here on."""
        self._pending.put(key, None)
        if self._doubtful:
            self.doubtful -= {key}

    def mark_doubtful(self, key: bytes) -> bool:
        """Mark the key's tuple as unknown from here on; return False if there are too many such keys to remember."""
        if len(self.doubtful) >= DOUBTFUL_MAX:
            return key in self.doubtful
        self.doubtful |= {key}
        return True

    def clear(self, space_id: int) -> None:
        """Delete all rows of the space from here on."""
        prefix = space_prefix(self.number(space_id))
        if self._doubtful:
            self.doubtful = frozenset(key for key in self._doubtful if not key.startswith(prefix))
        self._pending.clear(prefix)
        if self.comparison is not None:
            self.comparison.forget(self.number(space_id))

    def scan(self, space_id: int, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Return keys and tuples of a space at present, in the order of the keys, beginning after the key `after`."""
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
        """Number of changes since `take`; a mark to return to."""
        return self._pending.change_count

    def forget_after(self, mark: int) -> None:
        """Discard the changes after the mark. The pending changes are wrong from here on: nothing may be read."""
        self._pending.forget_after(mark)

    def take(self) -> Changes:
        """Return the changes since the last call, in order."""
        return self._pending.take()

    def take_before(self, mark: int) -> Changes:
        """Return those of them that existed at the mark."""
        return self._pending.take_before(mark)

    def written(self, changes: Changes) -> None:
        """Record that the store has these changes now."""
        self._pending.written(changes)

    # Comparison of a snapshot's rows with the present ones.

    def begin_snapshot(self) -> None:
        """Prepare for a snapshot's rows."""
        self.comparison = Comparison(self._store) if self._store.row_count > 0 else None

    @property
    def is_comparing(self) -> bool:
        """Whether a snapshot is being compared with the rows that there were before it."""
        return self.comparison is not None

    def missing(self, space_id: int) -> Iterator[tuple[bytes, bytes]]:
        """Return keys and tuples of a space that the snapshot lacks."""
        number = self.number(space_id)
        if self.comparison is None or self._pending.is_cleared(space_prefix(number)):
            return iter(())
        return self.comparison.missing(number)

    def end_snapshot(self) -> None:
        """End the comparison after the snapshot's last row."""
        if self.comparison is not None:
            self.comparison.end()
            self.comparison = None
