"""Whether a request writes its key as the stored row does: only then is it certain that vinyl finds the row.

Equal keys may be written differently: -1.5 and -1.50, number 2 and decimal 2, one point in time in two zones. In memory vinyl
compares keys by their values. On disk it passes over each file whose bloom filter lacks the hash of the key's bytes, so there an
equal key in another notation usually isn't found. Only the server knows where the row is, and it logs a request that found
nothing as it logs any other.

    the stored row's key  -1.5    UPDATE, DELETE or UPSERT of  -1.5    certain: the row exists
                                                               -1.50   doubtful: found in memory, mostly not on disk

The filter hashes a string without its length, a whole double as the integer, and all other values as they are written. Since
2.11.6, 3.2.2, 3.3.2 and 3.4 integers and floating-point numbers are hashed by value, whatever their length.

Sources: src/box/tuple_hash.cc (tuple_hash_field), src/box/vy_run.c, src/box/vy_point_lookup.c.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from cdc.protocol import layout
from cdc.protocol.extensions import pack, unpack
from cdc.schema.forms import SpaceForm
from cdc.tuples.operations import steps

_ONE_NOTATION: Final = frozenset({"string", "boolean"})
"""Types of which equal values always have the same hash."""
_NUMBERS: Final = (layout.UNSIGNED, layout.INTEGER, layout.FLOAT, layout.DOUBLE)
_INT64_MIN: Final = -(2.0**63)
_UINT64_END: Final = 2.0**64


def notation_of(form: SpaceForm, version: tuple[int, ...]) -> KeyNotation | None:
    """Return how to compare the notations of a space's keys; None if the server finds every equal key."""
    if not form.is_vinyl or all(part.type in _ONE_NOTATION for part in form.key_parts):
        return None
    return KeyNotation(form, version)


class KeyNotation:
    """Comparison of one vinyl space's keys by what its bloom filters see."""

    def __init__(self, form: SpaceForm, version: tuple[int, ...]) -> None:
        self._places = [(part.field, tuple(steps(part.path))) for part in form.key_parts]
        self._is_plain = all(not path for _, path in self._places)
        self._last = max(field for field, _ in self._places)
        self._hashes_by_value = (2, 11, 6) <= version < (3,) or (3, 2, 2) <= version < (3, 3) or version >= (3, 3, 2)

    def parts_of_tuple(self, tuple_: bytes) -> list[bytes]:
        """Return the parts of a tuple's key as they are written. The tuple must have its key."""
        if not self._is_plain:
            return [_value_at(tuple_, (field, *path)) for field, path in self._places]
        _, begin = layout.header(tuple_, 0)
        fields = []
        for _ in range(self._last + 1):
            end = layout.end_of(tuple_, begin)
            fields.append(tuple_[begin:end])
            begin = end
        return [fields[field] for field, _ in self._places]

    @staticmethod
    def parts_of_key(key: bytes) -> list[bytes]:
        """Return the parts of a request's key as they are written."""
        return [key[begin:end] for begin, end in layout.elements(key, 0)]

    def is_same(self, one: Sequence[bytes], other: Sequence[bytes]) -> bool:
        """Return whether the server finds a row with one of these equal keys by the other one."""
        return one == other or [self._hashed(part) for part in one] == [self._hashed(part) for part in other]

    def _hashed(self, part: bytes) -> bytes:
        """Return the bytes of a key's part that are hashed."""
        kind = layout.TYPES[part[0]]
        if kind is layout.STRING:
            return part[layout.content(part, 0)[0] :]
        if kind not in _NUMBERS:
            return part
        value = unpack(part)
        if type(value) is float and math.isfinite(value) and value.is_integer() and _INT64_MIN <= value < _UINT64_END:
            return pack(int(value))
        return pack(value) if self._hashes_by_value else part


def _value_at(data: bytes, path: Sequence[int | str]) -> bytes:
    """Return the value at a path as it is written."""
    begin, end = 0, len(data)
    for step in path:
        places = list(layout.elements(data, begin))
        if layout.TYPES[data[begin]] is layout.MAP:
            keys, values = places[::2], places[1::2]
            # If a key occurs twice, the decoder keeps the last one.
            begin, end = next(
                value for key, value in zip(reversed(keys), reversed(values), strict=True) if unpack(data[slice(*key)]) == step
            )
        else:
            assert isinstance(step, int), "an array has no names"
            begin, end = places[step]
    return data[begin:end]
