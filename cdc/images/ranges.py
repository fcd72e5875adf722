"""The rows that a DELETE_RANGE deletes, from the images, as DELETEs of their keys.

    begin [7, 'b']   end [9]           deletes   (7, 'b') (7, 'c') (8, 'a')      but not (9, 'a')
    begin []         end [7, 'c']      deletes   everything up to (7, 'b')

Either key may have fewer parts than the index: then it is compared by these parts. The row that equals `begin` is deleted, the
one that equals `end` isn't; without parts, there is no limit. Only a TREE in memtx has such requests (src/box/memtx_space.c,
memtx_space_execute_delete_range).

The rows are read one by one as the caller asks for them, so their number doesn't matter. They come in the order of the kept
keys, in which a part is ascending even if it is descending in the index. Keys that are too long for the store, and of which the
first AS_IT_IS bytes are the same, come in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from cdc.errors import SchemaError
from cdc.images.notations import KeyNotation
from cdc.images.overlay import Images
from cdc.protocol.codec import Body, tuple_values
from cdc.protocol.constants import Key
from cdc.protocol.extensions import pack
from cdc.schema.forms import SpaceForm
from cdc.schema.keys import AS_IT_IS, KEY_BYTES_MAX

_FRAME_START: Final = b"\xce\x00\x00\x00\x00\x80"
"""Length and header of a frame that nobody but this program reads: neither counts."""


def delete_start(form: SpaceForm) -> bytes:
    """Return the body of a DELETE of a space up to the parts of the key, which follow as they are written."""
    count = len(form.key_parts)
    array = bytes((0x90 | count,)) if count < 16 else b"\xdc%b" % count.to_bytes(2)
    return b"".join((b"\x82", pack(int(Key.SPACE_ID)), pack(form.space_id), pack(int(Key.KEY)), array))


class KeyRange:
    """One space's keys from `begin` on, up to `end`."""

    def __init__(self, form: SpaceForm, images: Images, begin: Sequence[Any], end: Sequence[Any]) -> None:
        """Raises SchemaError if the space can't have such keys."""
        codec = images.codec(form)
        for limit in (begin, end):
            if len(limit) > len(form.key_parts):
                raise SchemaError(f"a key of space {form.name!r} has {len(form.key_parts)} parts, not {len(limit)}")
        if any(part.is_as_written for part in form.key_parts):
            raise SchemaError(f"a DELETE_RANGE of space {form.name!r}, whose primary key is a HASH index: it has no order")
        self._form = form
        self._codec = codec
        self._images = images
        self._begin, self._end = codec.parts_of(begin), codec.parts_of(end)
        self._are_descending = [part.is_descending for part in form.key_parts]

    def deletes(self) -> Iterator[tuple[Body, bytes]]:
        """Yield body and frame of a DELETE for each row in the range. The images may change meanwhile by these alone."""
        form = self._form
        parts_of = KeyNotation(form, self._images.version).parts_of_tuple
        body, start = {Key.SPACE_ID: form.space_id}, _FRAME_START + delete_start(form)
        for tuple_ in self._tuples():
            yield body, start + b"".join(parts_of(tuple_))

    def _tuples(self) -> Iterator[bytes]:
        """Yield the tuples in the range."""
        codec = self._codec
        if any(self._are_descending):
            # The kept keys are in another order than the index's, so all of them have to be looked at.
            for _, tuple_ in self._images.scan(self._form.space_id):
                parts = codec.parts_of(codec.values_of(tuple_values(tuple_)))
                if not self._is_before(parts, self._begin) and (not self._end or self._is_before(parts, self._end)):
                    yield tuple_
            return
        begin, end = codec.joined(self._begin), codec.joined(self._end) if self._end else None
        for key, tuple_ in self._images.scan(self._form.space_id, _before(begin) if self._begin else b""):
            if end is not None and key[:AS_IT_IS] > end[:AS_IT_IS]:
                return
            is_cut = len(key) == KEY_BYTES_MAX
            whole = codec.joined(codec.parts_of(codec.values_of(tuple_values(tuple_)))) if is_cut else key
            if begin <= whole and (end is None or whole < end):
                yield tuple_

    def _is_before(self, parts: Sequence[bytes], limit: Sequence[bytes]) -> bool:
        """Return whether a key comes before these first parts of another one in the index."""
        for part, other, is_descending in zip(parts, limit, self._are_descending, strict=False):
            if part != other:
                return (part < other) is not is_descending
        return False


def _before(begin: bytes) -> bytes:
    """Return the last possible key of the store before all keys that aren't less than `begin`."""
    *_, last = start = begin[:AS_IT_IS]
    return (start[:-1] + bytes((last - 1,))).ljust(KEY_BYTES_MAX, b"\xff") if last else start[:-1]
