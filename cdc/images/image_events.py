"""Turns a row of one space into an event with before and after images, and applies the row to the images.

    INSERT            tuple                                            c
    REPLACE           tuple            before = the current tuple      c if the key has no tuple, else u
    UPDATE            key, operations  after = update(before)          u; no event if the key has no tuple
    UPSERT            tuple, operations                                c if the key has no tuple, else u, by the forgiving rules
    DELETE            key              before = the current tuple      d; no event if the key has no tuple
    DELETE_RANGE      two keys         a DELETE of each row between    d for each (cdc.images.ranges)

If the current row can't be encoded, `before` is null. That row stopped the daemon, or was set aside, when it was received.

A request of a vinyl space that writes an existing key in another notation may have found the row or not (cdc.images.notations):
an UPDATE, UPSERT or DELETE is an error of its key. An INSERT or REPLACE contains the whole row, and it is the newest one of its
key on the server, too.

A key may change several times within one transaction: each row sees the result of the row before it. The image is changed before
the event is written, because a row that can't be encoded as JSON has changed the space all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from cdc.errors import EncodingError, ImageError, ManyRowsError, SchemaError
from cdc.events.envelope import Change, SpaceEvents
from cdc.images.doubts import PASSED_OVER, REBUILD, in_another_notation, unappliable
from cdc.images.notations import KeyNotation, notation_of
from cdc.images.overlay import Images
from cdc.images.ranges import KeyRange
from cdc.protocol import layout
from cdc.protocol.codec import Body, body_values, tuple_values
from cdc.protocol.constants import Key, Type
from cdc.schema.fitting import Fitting
from cdc.schema.keys import KeyCodec
from cdc.tuples.update import update, upsert

_HINT: Final = f"The images differ from the master's rows: {REBUILD}."
_LONG_HINT: Final = (
    "The server has two rows with these keys, the daemon one. On the leader, delete the row that is written in the longer form "
    f'(docs/events.md, "Keys that are written longer than need be", says how); then {REBUILD} and continues after this row. '
    "Or exclude the space (spaces.exclude)."
)

_OTHER_KEY: Final = (
    "the UPDATE would change the row's primary key, which the server refuses: so the server had another row of this key, or none"
)
_NO_KEY: Final = (
    "the UPSERT would leave the row without its primary key. Memtx refuses that, so the server had another row of this key; "
    "vinyl before 2.6.1 accepts it, and only the server knows the result"
)

VINYL_CHECKS_SINCE: Final = (2, 6, 1)
"""First version that ignores an UPSERT of vinyl whose result doesn't fit the format, and keeps UPSERTs of one key apart."""

_LONG_KEYS_SINCE: Final = (2, 10)
"""First version that reads a request's keys if they are written with more than one byte; earlier servers ignore these keys."""

_SPACE_ID: Final = Key.SPACE_ID
_KEY: Final = Key.KEY
_TUPLE: Final = Key.TUPLE
_OPS: Final = Key.OPS
_INDEX_BASE: Final = Key.INDEX_BASE


class ImageChanges:
    """Maker of one space's events from the images."""

    def __init__(self, space: SpaceEvents, images: Images) -> None:
        """Raises UnkeyableError if this space's keys can't be stored. Rows stored under other keys must have been cleared."""
        self.space = space
        self._openings, self._shows_before = space.openings, space.shows_before
        self._images = images
        codec = images.codec(space.form)
        images.use_form(space.form)
        self.store_key = codec.of_tuple
        """Returns the key under which a tuple is stored. Raises SchemaError if the tuple has none."""
        self._key_of_key = codec.of_key
        self._names = space.form.field_names
        self._types = tuple(field.type for field in space.form.fields)
        self._version = images.version
        # Memtx refuses such a request. Vinyl doesn't look at the tuple before it logs an UPSERT, and ignores the UPSERT later.
        leaves_misfits = space.form.is_vinyl and images.version >= VINYL_CHECKS_SINCE
        self._fitting = space.fitting = Fitting(space.form, images.version) if leaves_misfits else None
        self._notation = notation_of(space.form, images.version)
        self.changes: dict[int, Change] = {
            Type.INSERT: self._insert,
            Type.REPLACE: self._put,
            Type.DELETE: self._delete,
            Type.UPDATE: self._update,
            Type.UPSERT: self._upsert,
            Type.DELETE_RANGE: self._delete_range,
            Type.INSERT_ARROW: space.changes[Type.INSERT_ARROW],
        }

    def tuple_of(self, frame: bytes) -> tuple[Sequence[Any], bytes]:
        """Return the tuple of an INSERT or REPLACE, decoded and as received. Raises SchemaError as `_read` does."""
        body, values = self._read(frame)
        return body[_TUPLE], values[_TUPLE]

    def row_after(self, frame: bytes) -> tuple[Sequence[Any], Sequence[Any] | None]:
        """Return a request's key, or tuple, and the row that is there after it; None if there is none. It has been handled."""
        body, _ = self._read(frame)
        is_by_key = _KEY in body
        asked = body[_KEY] if is_by_key else body[_TUPLE]
        after = self._images.current(self._key_of_key(asked) if is_by_key else self.store_key(asked))
        return asked, tuple_values(after) if after is not None else None

    def place_of(self, kind: int, frame: bytes) -> tuple[bytes, bytes | None, Sequence[Any] | None]:
        """Return the key under which a request's row is stored, the tuple that it finds, and the row that it contains.

        An INSERT finds none: the store isn't asked. Raises SchemaError as `_read` does.
        """
        body, _ = self._read(frame)
        if kind in (Type.UPDATE, Type.DELETE):
            key = self._key_of_key(body[_KEY])
            return key, self._images.current(key), None
        key = self.store_key(body[_TUPLE])
        return key, self._images.current(key) if kind != Type.INSERT else None, body[_TUPLE]

    def tuple_after(self, kind: int, frame: bytes, before: bytes | None) -> bytes | None:
        """Return the tuple that a request leaves of the tuple `before`; None for none. The images stay as they are.

        What can't be carried out leaves the tuple as it is: it is refused when it is. Raises SchemaError as `_read` does.
        """
        body, values = self._read(frame)
        if kind == Type.DELETE:
            return None
        if kind in (Type.INSERT, Type.REPLACE) or (kind == Type.UPSERT and before is None):
            return values[_TUPLE]
        if before is None:
            return None
        try:
            apply, operations = (update, values[_TUPLE]) if kind == Type.UPDATE else (upsert, values[_OPS])
            after = apply(before, operations, **self._rules(body))
            is_same = self.store_key(tuple_values(after)) == self.store_key(tuple_values(before))
        except SchemaError:
            return before
        return after if is_same and (self._fitting is None or self._fitting.fits(after)) else before

    def event_of(self, tuple_: bytes, *, is_gone: bool) -> tuple[bytes, bytes, bytes]:
        """Return key, opening and content of the event that says that a row is gone, or is new. Raises EncodingError."""
        values = tuple_values(tuple_)
        event = self._gone(tuple_) if is_gone else (self._openings.create, self.space.rows[len(values)](values))
        return (self.space.key_of(values), *event)

    def put(self, key: bytes, before: bytes | None, after: bytes, tuple_: Sequence[Any]) -> tuple[bytes, bytes] | None:
        """Set a key's tuple to `after` (decoded: `tuple_`), replacing `before`; return opening and content of the event."""
        try:
            content = self.space.rows[len(tuple_)](tuple_)
        except EncodingError:
            self._images.put(key, after)
            raise
        # Encoded before the image changes: if the space's schema has to get more fields first, the request is handled again.
        row = self._row(before) if before is not None and self._shows_before else None
        self._images.put(key, after)
        openings = self._openings
        if before is None:
            return openings.create, content
        return (openings.update, content) if row is None else (openings.update_image, row + openings.after + content)

    def delete(self, key: bytes, before: bytes) -> tuple[bytes, bytes, bytes] | None:
        """Delete a key; return key, opening and content of the event."""
        try:
            shown = self.space.key_of(tuple_values(before))
        except EncodingError:
            self._images.delete(key)
            raise
        gone = self._gone(before)
        self._images.delete(key)
        return (shown, *gone)

    def _gone(self, before: bytes) -> tuple[bytes, bytes]:
        """Return opening and content of the event that deletes a row."""
        row, openings = self._row(before), self._openings
        return (openings.delete, b"") if row is None else (openings.delete_image, row + openings.no_after)

    def _row(self, tuple_: bytes) -> bytes | None:
        """Return the previous row; None if it can't be encoded, which was reported when the row was received."""
        values = tuple_values(tuple_)
        try:
            return self.space.rows[len(values)](values)
        except EncodingError:
            return None

    def _insert(self, _: Body, frame: bytes) -> tuple[bytes, bytes, bytes] | None:
        tuple_, found = self.tuple_of(frame)
        key = self.store_key(tuple_)
        # The server refuses an INSERT of an existing key, so the store isn't asked: it would have to be read for each INSERT.
        before = self._images.pending(key)
        if key in self._images.doubtful:
            before = self._images.current(key)  # consumers have this row
        elif before is not None:
            if not self._is_beside(before, found):
                raise self._twice(before, found)
            before = None  # as if the row were in the store already
        return self._event(tuple_, self.put(key, before, found, tuple_))

    def _put(self, _: Body, frame: bytes) -> tuple[bytes, bytes, bytes] | None:
        tuple_, found = self.tuple_of(frame)
        key = self.store_key(tuple_)
        return self._event(tuple_, self.put(key, self._images.current(key), found, tuple_))

    def _delete(self, _: Body, frame: bytes) -> tuple[bytes, bytes, bytes] | None:
        body, values = self._read(frame)
        key = self._key_of_key(body[_KEY])
        before = self._images.current(key)
        if before is None:
            return None
        if self._notation is not None:
            self._check_parts(self._notation, "a DELETE", key, before, self._notation.parts_of_key(values[_KEY]))
        return self.delete(key, before)

    def _delete_range(self, _: Body, frame: bytes) -> tuple[bytes, bytes, bytes] | None:
        _, values = self._read(frame)
        begin, end = (tuple_values(values[key]) for key in (Key.BEGIN_KEY, Key.END_KEY))
        raise ManyRowsError(KeyRange(self.space.form, self._images, begin, end).deletes())

    def _update(self, _: Body, frame: bytes) -> tuple[bytes, bytes, bytes] | None:
        body, values = self._read(frame)
        operations = values[_TUPLE]
        key = self._key_of_key(body[_KEY])
        before = self._images.current(key)
        if before is None:
            return None
        if key in self._images.doubtful:
            raise self._unappliable(key, before, PASSED_OVER)
        if self._notation is not None:
            self._check_parts(self._notation, "an UPDATE", key, before, self._notation.parts_of_key(values[_KEY]))
        try:
            after = update(before, operations, **self._rules(body))
        except SchemaError as error:
            raise self._unappliable(key, before, error.message, error.detail) from error
        result = tuple_values(after)
        try:
            is_same = self.store_key(result) == key
        except SchemaError as error:
            raise self._unappliable(key, before, f"{_OTHER_KEY} ({error.message})", error.detail) from error
        if not is_same:
            raise self._unappliable(key, before, _OTHER_KEY)
        return self._event(result, self.put(key, before, after, result))

    def _upsert(self, _: Body, frame: bytes) -> tuple[bytes, bytes, bytes] | None:
        body, values = self._read(frame)
        tuple_ = body[_TUPLE]
        key = self.store_key(tuple_)
        before = self._images.current(key)
        if before is None:
            return self._event(tuple_, self.put(key, None, values[_TUPLE], tuple_))
        if key in self._images.doubtful:
            raise self._unappliable(key, before, PASSED_OVER)
        if self._notation is not None:
            asked = self._notation.parts_of_tuple(values[_TUPLE])
            self._check_parts(self._notation, "an UPSERT", key, before, asked)
        try:
            after = upsert(before, values[_OPS], **self._rules(body))
        except SchemaError as error:
            raise self._unappliable(key, before, error.message, error.detail) from error
        result = tuple_values(after)
        try:
            if self.store_key(result) != key:
                self._check_notation(tuple_, result, before, after)
                return None  # if the operations would change the key, the server leaves the tuple as it is
        except SchemaError as error:
            if self._fitting is not None:
                return None
            raise self._unappliable(key, before, f"{_NO_KEY} ({error.message})", error.detail) from error
        if self._fitting is not None and not self._fitting.fits(after):
            return None
        return self._event(result, self.put(key, before, after, result))

    def _unappliable(self, key: bytes, before: bytes, reason: str, quoted: str = "") -> ImageError:
        return unappliable(self.space.form, key, before, reason, quoted)

    # Vinyl's keys in several notations.

    def _check_parts(self, notation: KeyNotation, request: str, key: bytes, before: bytes, asked: Sequence[bytes]) -> None:
        """Raise ImageError if a request's key is equal to the key of the tuple `before` in another notation."""
        stored = notation.parts_of_tuple(before)
        if not notation.is_same(asked, stored):
            raise self._unappliable(key, before, *in_another_notation(self.space.form, request, asked, stored))

    def _is_beside(self, before: bytes, after: bytes) -> bool:
        """Return whether vinyl may have accepted an INSERT beside an equal key in another notation, which it didn't find."""
        notation = self._notation
        if notation is None or not self.space.form.hides_equal_keys:
            return False
        return not notation.is_same(notation.parts_of_tuple(before), notation.parts_of_tuple(after))

    def _twice(self, before: bytes, after: bytes) -> ImageError:
        """Return the error for an INSERT of an existing key."""
        one, other = (self._key_as_written(tuple_) for tuple_ in (before, after))
        if one == other:
            return ImageError("an INSERT of a key that already exists", _HINT, detail=f"the tuple was {before.hex(' '):.2000}")
        return ImageError(
            f"an INSERT of a key of space {self.space.form.name!r} that already exists in another encoding",
            _LONG_HINT,
            detail=f"{one} exists, {other} arrived; the tuple was {before.hex(' '):.2000}",
        )

    def _key_as_written(self, tuple_: bytes) -> str:
        """Return the bytes of a tuple's fields that its primary key consists of, as text."""
        fields = [tuple_[begin:end] for begin, end in layout.elements(tuple_, 0)]
        return ", ".join(f"{fields[part.field].hex(' '):.200}" for part in self.space.form.key_parts)

    def _check_notation(self, tuple_: Sequence[Any], result: Sequence[Any], before: bytes, after: bytes) -> None:
        """Raise ImageError for an UPSERT that changes only the encoding of its key.

        The server compares the keys as a TREE does and finds no difference, but moves the row in a HASH index.
        """
        form = self.space.form
        compared = replace(form, key_parts=tuple(replace(part, is_as_written=False) for part in form.key_parts))
        if compared == form:
            return
        key_of = KeyCodec(compared).of_tuple
        if key_of(tuple_) == key_of(result):
            raise ImageError(
                f"an UPSERT into space {form.name!r} writes its row's key differently, which moves the row in a HASH index",
                f"No event can express that: {REBUILD} and continues after this row. Or exclude the space (spaces.exclude).",
                detail=f"the tuple was {before.hex(' '):.1000}, and is {after.hex(' '):.1000}",
            )

    def _rules(self, body: Body) -> dict[str, Any]:
        return {
            "base": body.get(_INDEX_BASE, 0),
            "names": self._names,
            "types": self._types,
            "version": self._version,
        }

    def _event(self, tuple_: Sequence[Any], change: tuple[bytes, bytes] | None) -> tuple[bytes, bytes, bytes] | None:
        """Return an event with its key, which is that of a tuple."""
        return None if change is None else (self.space.key_of(tuple_), *change)

    # A server logs a request's body as the client wrote it: with any keys, in any order, some of them twice.

    def _read(self, frame: bytes) -> tuple[Body, dict[int, bytes]]:
        """Return the body's values as the server read them, decoded and as received. Raises SchemaError for another space's."""
        values = body_values(frame, only_short_keys=self._version < _LONG_KEYS_SINCE)
        space_id = layout.integer(values[_SPACE_ID], 0)
        if space_id != self.space.form.space_id:
            raise SchemaError(f"a row of space {space_id} is made to look like one of space {self.space.form.space_id}")
        numbers = {key: layout.integer(values[key], 0) for key in (_SPACE_ID, _INDEX_BASE) if key in values}
        return numbers | {key: tuple_values(values[key]) for key in (_KEY, _TUPLE, _OPS) if key in values}, values
