"""Events with before and after images that the log's own rows have: Tarantool Enterprise writes them there (`wal_ext`).

    INSERT            tuple                                c
    REPLACE           old tuple, new tuple                 u, or c if there is no old tuple
    UPDATE, UPSERT    old tuple, new tuple                 u, or c if there is no old tuple
    DELETE            old tuple                            d; without an old tuple, too
    DELETE_RANGE      two keys                             refused: it has no image of any row

No state store is needed, and nothing is computed. A row that lacks the new tuple isn't published as a change with half of its
images: the server doesn't write them, or did not when it wrote this row. A DELETE without an old tuple may have found no row; it
is published all the same, as nothing else would tell that apart from a server that writes no images.
"""

from __future__ import annotations

from typing import Any, Final

from cdc.errors import EncodingError
from cdc.events.envelope import Change, SpaceEvents
from cdc.protocol.codec import Body
from cdc.protocol.constants import Key, Type

_OLD_TUPLE: Final = Key.OLD_TUPLE
_NEW_TUPLE: Final = Key.NEW_TUPLE

_HINT: Final = (
    'state.images is "source": set wal_ext = {old = true, new = true} for this space in the box.cfg of all members. For rows '
    'written before that, start once with snapshot.mode = "always". Without Tarantool Enterprise, state.images must be "full".'
)


class SourceImages:
    """Maker of one space's events from the images in its rows."""

    def __init__(self, space: SpaceEvents) -> None:
        self._space = space
        self._insert_whole = space.changes[Type.INSERT]
        self._delete_by_key = space.changes[Type.DELETE]
        self.changes: dict[int, Change] = {
            Type.INSERT: self._insert,
            Type.REPLACE: self._put,
            Type.DELETE: self._delete,
            Type.UPDATE: self._put,
            Type.UPSERT: self._put,
            **{kind: space.changes[kind] for kind in (Type.DELETE_RANGE, Type.INSERT_ARROW)},
        }

    def _insert(self, body: Body, frame: bytes) -> tuple[bytes, bytes, bytes] | None:
        return self._insert_whole(body, frame)

    def _put(self, body: Body, _: bytes) -> tuple[bytes, bytes, bytes] | None:
        after, before = self._new_tuple(body), body.get(_OLD_TUPLE)
        if before is None:
            return self._created(after)
        space = self._space
        key, row, openings = space.key_of(after), self._row(after), space.openings
        if not space.shows_before:
            return key, openings.update, row
        return key, openings.update_image, self._row(before) + openings.after + row

    def _delete(self, body: Body, frame: bytes) -> tuple[bytes, bytes, bytes] | None:
        before = body.get(_OLD_TUPLE)
        return self._delete_by_key(body, frame) if before is None else self._deleted(before)

    @staticmethod
    def _new_tuple(body: Body) -> list[Any]:
        after: list[Any] | None = body.get(_NEW_TUPLE)
        if after is None:
            raise EncodingError("the row has no images: the server's log doesn't contain the new tuple", _HINT)
        return after

    def _created(self, after: list[Any]) -> tuple[bytes, bytes, bytes]:
        return self._space.key_of(after), self._space.openings.create, self._row(after)

    def _deleted(self, before: list[Any]) -> tuple[bytes, bytes, bytes]:
        openings = self._space.openings
        return self._space.key_of(before), openings.delete_image, self._row(before) + openings.no_after

    def _row(self, tuple_: list[Any]) -> bytes:
        return self._space.rows[len(tuple_)](tuple_)
