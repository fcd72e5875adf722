"""Primary keys encoded as bytes: equal if the server considers them equal, and in the order of the server's index.

    space 513, key [7, "abc", 1.5]      00000201 │ 0000000000000007 │ 616263 0000 │ bff8000000000000 80
                                        space      unsigned           string        number

A key is always longer than its space's prefix, because the prefix alone denotes the entire space. Therefore the key "" is
encoded as one zero byte, and a text of only zero bytes, if it is the key's only part, gets one more zero byte.

The store compares keys with memcmp. Therefore 1, 1.0 and decimal 1 must become the same bytes, and lesser values lesser bytes.

A number is encoded as the nearest double, in a form that memcmp orders, followed by a mark: equal to that double, less, or
greater. If the number isn't equal to the double, its exact digits follow. The server compares integers exactly with doubles and
decimals. It compares a double with a decimal by the double's first 15 digits, so that double 0.1 and decimal 0.1 are one key.
This module therefore encodes a double as those 15 digits, if they convert back to the same double. Otherwise (0.1 + 0.2, or
doubles that are integers of 16 or more digits) the server's comparison isn't transitive: decimal 0.3 equals two different
doubles. No encoding can reproduce that. Here such a double equals no decimal, unless it is an integer between -2^64 and 2^64:
then it equals exactly that integer. NaN is less than all numbers. In a part of the type `double`, the server (2.6) considers NaN
equal to whatever value it is compared with; here NaN is a separate key.

In a HASH index, equal numbers and points in time in different notations are different keys (`KeyPart.is_as_written`). There the
key contains a decimal's digits and exponent, a NaN's bits, and a point in time's zone. Such an index has no order.

If a key would reach KEY_BYTES_MAX, its first 479 bytes are kept and a hash of the entire key replaces the rest. Such keys stay
different and have a fixed order, but keys that share their first 479 bytes aren't in the server's order. Parts in descending
order (3.x) are stored in ascending order.

Out of scope: the storage of the keys, and collations. With a collation, different strings are equal by rules that exist only in
the server's copy of ICU.

Sources: src/box/tuple_compare.cc, src/lib/core/decimal.c (decimal_from_double), src/box/field_def.c (names of types).
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from cdc.errors import SchemaError, UnkeyableError, excerpt
from cdc.protocol.extensions import Datetime
from cdc.schema.forms import SHORTENED_TYPE_NAMES, KeyPart, SpaceForm
from cdc.tuples.operations import steps

KEY_BYTES_MAX: Final = 511
"""Maximum length of a key in LMDB, in bytes. Keys of this length always contain a hash, shorter ones never do."""

Encoder = Callable[[Any], bytes]

_HASH_BYTES: Final = 32
AS_IT_IS: Final = KEY_BYTES_MAX - _HASH_BYTES
"""Number of bytes with which a key of any length begins as it would without a hash."""
_SIGN_BIT: Final = 1 << 63
_UINT64_END: Final = 2.0**64
_UINT: Final = struct.Struct(">Q").pack
_SPACE: Final = struct.Struct(">I").pack
_DOUBLE: Final = struct.Struct(">d").pack
_BITS: Final[Callable[[bytes], tuple[int]]] = struct.Struct(">Q").unpack

# Position of a number relative to its nearest double.
_LESS: Final = b"\x40"
_SAME: Final = b"\x80"
_GREATER: Final = b"\xc0"
_NO_DECIMAL: Final = b"\x81"
"""The number is the double itself, and no decimal equals it."""
_EXPONENT: Final = struct.Struct(">I").pack
_EXPONENT_BIAS: Final = 1 << 31
_COMPLEMENT: Final = bytes(255 - byte for byte in range(256))
_NAN: Final = b"\x00" * 8
_ZONE: Final = struct.Struct(">hh").pack


def space_prefix(number: int) -> bytes:
    """Return the prefix of all keys of a space. `number` is the space's id, or a number that cdc.images has assigned."""
    return _SPACE(number)


def is_keyable(form: SpaceForm) -> bool:
    """Return whether equality of the space's keys can be decided as on the server."""
    try:
        KeyCodec(form)
    except UnkeyableError:
        return False
    return True


def no_key(form: SpaceForm, tuple_: Sequence[Any]) -> SchemaError:
    """Return the error for a tuple that lacks a field of its primary key."""
    return SchemaError(f"a tuple of space {form.name!r} has no primary key", no_key_hint(form), detail=excerpt(tuple_))


def no_key_hint(form: SpaceForm) -> str:
    """Return the remedy for a row whose key can't be made."""
    hint = 'Leave the space out (spaces.exclude), or send such rows to the dead-letter topic (format.on_error = "dlq").'
    if form.is_vinyl:
        hint += (
            " In a vinyl space of a server before 2.6.1 UPSERTs can make such rows, and only emptying the space removes them: "
            "copy the other rows, truncate the space, and insert them again."
        )
    return hint


def compiled_part(part: KeyPart) -> tuple[int, list[int | str], str, bool]:
    """Return a part of a primary key as the compiled row path reads it."""
    return part.field, steps(part.path), part.type, part.is_as_written


class KeyCodec:
    """Encoder of one space's keys. For common kinds of keys, faster functions replace the general methods."""

    def __init__(self, form: SpaceForm, number: int | None = None) -> None:
        """Prefix all keys with `number`, by default the space's id.

        Raises UnkeyableError if equality of keys can't be decided as on the server.
        """
        for place, part in enumerate(form.key_parts, 1):
            _check(form, place, part)
        begin = form.space_id if number is None else number
        self._prefix = space_prefix(begin)
        self._form, self._name = form, form.name
        last = len(form.key_parts) - 1
        self._parts = [(part.field, tuple(steps(part.path))) for part in form.key_parts]
        self._encoders = [_encoder(part, is_last=place == last) for place, part in enumerate(form.key_parts)]
        self.is_text = len(form.key_parts) == 1 and form.key_parts[0].type in _TEXTS
        """Whether the key has a single part, a string or binary."""
        if self.is_text:
            self._encoders = [_filled(self._encoders[0])]
        self.of_tuple: Callable[[Sequence[Any]], bytes] = self._of_tuple
        """Encodes the key of a tuple, which may end after the key's fields. Raises SchemaError if they don't fit the form."""
        self.of_key: Callable[[Sequence[Any]], bytes] = self._of_key
        """Encodes a key, given the values of its parts. Raises SchemaError if they don't fit the form."""
        if len(form.key_parts) == 1:
            (part,) = form.key_parts
            single = _SINGLE.get(part.type)
            if single is not None:
                self.of_key = single(begin, 0, self._of_key)
                if not part.path:
                    self.of_tuple = single(begin, part.field, self._of_tuple)

    def _of_tuple(self, tuple_: Sequence[Any]) -> bytes:
        return self._encoded(self.values_of(tuple_))

    def values_of(self, tuple_: Sequence[Any]) -> list[Any]:
        """Return the values of a tuple's key. Raises SchemaError if the tuple lacks one."""
        values = []
        try:
            for field, path in self._parts:
                value = tuple_[field]
                for step in path:
                    value = value[step]
                values.append(value)
        except (IndexError, KeyError, TypeError) as error:
            raise no_key(self._form, tuple_) from error
        return values

    def _of_key(self, key: Sequence[Any]) -> bytes:
        if len(key) != len(self._encoders):
            message = f"a key of space {self._name!r} has {len(self._encoders)} parts, not {len(key)}"
            raise SchemaError(message, detail=excerpt(key))
        return self._encoded(key)

    def _encoded(self, values: Sequence[Any]) -> bytes:
        found = self.joined(self.parts_of(values))
        return found if len(found) < KEY_BYTES_MAX else _shortened(found)

    def parts_of(self, values: Sequence[Any]) -> list[bytes]:
        """Encode a key, or its first parts. Each part is ordered as its values are. Raises SchemaError if they don't fit."""
        try:
            return [encode(value) for encode, value in zip(self._encoders[: len(values)], values, strict=True)]
        except (struct.error, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            message = f"space {self._name!r} can't have the primary key of a row"
            raise SchemaError(message, no_key_hint(self._form), detail=f"{excerpt(values)} ({error})") from error

    def joined(self, parts: Sequence[bytes]) -> bytes:
        """Return the beginning of all keys with these first parts, of any length."""
        return self._prefix + b"".join(parts)


def _shortened(key: bytes) -> bytes:
    return key[:AS_IT_IS] + hashlib.sha256(key).digest()


def _check(form: SpaceForm, number: int, part: KeyPart) -> None:
    if part.type in SHORTENED_TYPE_NAMES:
        full = SHORTENED_TYPE_NAMES[part.type]
        raise UnkeyableError(
            f"part {number} of the primary key of space {form.name!r} has the type's name shortened to {part.type!r}",
            f"Write it in full: alter the index with the type {full!r} for this part.",
        )
    if part.type not in _ENCODERS:
        raise UnkeyableError(
            f"part {number} of the primary key of space {form.name!r} is of type {part.type!r}, which can't be ordered",
            'Leave the space out (spaces.exclude), or do without images (state.images = "none").',
        )
    if part.is_collated:
        raise UnkeyableError(
            f"part {number} of the primary key of space {form.name!r} has the collation {part.collation}, by which different "
            "strings may be the same key",
            'Leave the space out (spaces.exclude), or do without images (state.images = "none").',
        )


# The most common keys: a single part, an unsigned number or a string.


def _single_unsigned(number: int, place: int, general: Callable[[Sequence[Any]], bytes]) -> Callable[[Sequence[Any]], bytes]:
    pack = struct.Struct(">IQ").pack

    def of(values: Sequence[Any]) -> bytes:
        try:
            return pack(number, values[place])
        except (struct.error, IndexError, TypeError):
            return general(values)

    return of


def _single_string(number: int, place: int, general: Callable[[Sequence[Any]], bytes]) -> Callable[[Sequence[Any]], bytes]:
    prefix = space_prefix(number)
    above_zero = prefix + b"\x01"

    def of(values: Sequence[Any]) -> bytes:
        try:
            found: bytes = prefix + values[place].encode()
        except (UnicodeEncodeError, IndexError, AttributeError, TypeError):
            return general(values)
        if found < above_zero:
            return general(values)  # all bytes may be zero
        return found if len(found) < KEY_BYTES_MAX else _shortened(found)

    return of


# Parts. Unless a part is the last one, the encoding of one value must not be a prefix of another value's encoding.


def _unsigned(value: Any) -> bytes:
    if type(value) is not int:
        raise TypeError(f"{excerpt(value, 100)} isn't an integer")
    return _UINT(value)


def _integer(value: Any) -> bytes:
    if type(value) is not int:
        raise TypeError(f"{excerpt(value, 100)} isn't an integer")
    return b"\x01" + _UINT(value) if value >= 0 else b"\x00" + _UINT(value + _SIGN_BIT)


def _number(value: Any) -> bytes:
    kind = type(value)
    if kind is int:
        double = float(value)
        if double == value:
            return _ordered(double) + _SAME
        return _beside(double, value, Decimal(value))
    if kind is float:
        if not math.isfinite(value):
            return _not_finite(value)
        return _ordered(value) + (_NO_DECIMAL if comparable_value(value) is None else _SAME)
    if kind is not Decimal:
        raise TypeError(f"{excerpt(value, 100)} isn't a number")
    double = float(value)
    if math.isfinite(double) and comparable_value(double) == value:
        return _ordered(double) + _SAME
    return _beside(double, value, value)


def comparable_value(double: float) -> Decimal | None:
    """Return the number that a finite double equals in comparisons with integers and decimals; None if no decimal equals it."""
    if double.is_integer() and -_UINT64_END < double < _UINT64_END:
        return Decimal(int(double))
    digits = f"{double:.15g}"
    return Decimal(digits) if float(digits) == double else None


def _ordered(double: float) -> bytes:
    (bits,) = _BITS(_DOUBLE(double + 0.0))
    return _UINT(bits ^ 0xFFFF_FFFF_FFFF_FFFF if bits & _SIGN_BIT else bits | _SIGN_BIT)


def _beside(double: float, value: Any, exact: Decimal) -> bytes:
    """Encode a number that isn't a double: its nearest double, whether the number is less or greater, and its digits."""
    sign, digits, exponent = exact.as_tuple()
    assert isinstance(exponent, int), "Tarantool has no NaN and no infinity among its decimals"
    text = bytes(digits).rstrip(b"\0")
    # Trailing zeroes are dropped; digits are encoded as 1 to 10, so that the byte 0 can end them.
    tail = _EXPONENT(exponent + len(digits) + _EXPONENT_BIAS) + bytes(digit + 1 for digit in text) + b"\0"
    is_less = double > 0 if math.isinf(double) else value < (comparable_value(double) or Decimal(double))
    return _ordered(double) + (_LESS if is_less else _GREATER) + (tail.translate(_COMPLEMENT) if sign else tail)


def _not_finite(value: float) -> bytes:
    if math.isinf(value):
        return _ordered(value) + _SAME
    return _NAN + (b"\x01" if is_quiet_nan(value) else b"\x00")


def is_quiet_nan(value: float) -> bool:
    """Return whether a NaN is quiet, as computations return it. Quiet and signalling NaNs are two different keys."""
    (bits,) = _BITS(_DOUBLE(value))
    return bool(bits & 0x0008_0000_0000_0000)


def _string(value: Any) -> bytes:
    data: bytes = value.encode("utf-8", "surrogateescape")
    return data


def _binary(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"{excerpt(value, 100)} isn't binary")
    return value


def _ended(encode: Encoder) -> Encoder:
    """Return an encoder that adds an unambiguous end: zero bytes are escaped as 0 255, and the end is 0 0."""

    def encode_and_end(value: Any) -> bytes:
        return encode(value).replace(b"\0", b"\0\xff") + b"\0\0"

    return encode_and_end


def _filled(encode: Encoder) -> Encoder:
    """Return an encoder with the same order whose result is never empty: an empty or all-zero text gets one more zero byte."""

    def encode_and_fill(value: Any) -> bytes:
        data = encode(value)
        return data if data.strip(b"\0") else data + b"\0"

    return encode_and_fill


def _boolean(value: Any) -> bytes:
    if type(value) is not bool:
        raise TypeError(f"{excerpt(value, 100)} isn't a boolean")
    return b"\x01" if value else b"\x00"


def _uuid(value: Any) -> bytes:
    if type(value) is not UUID:
        raise TypeError(f"{excerpt(value, 100)} isn't a UUID")
    return value.bytes


def _datetime(value: Any) -> bytes:
    if type(value) is not Datetime:
        raise TypeError(f"{excerpt(value, 100)} isn't a datetime")
    return _UINT(value.seconds + _SIGN_BIT) + _EXPONENT(value.nanosecond + _EXPONENT_BIAS)


def _number_as_written(value: Any) -> bytes:
    if type(value) is Decimal:
        sign, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int), "Tarantool has no NaN and no infinity among its decimals"
        return bytes((2, sign)) + _EXPONENT(exponent + _EXPONENT_BIAS) + bytes(digit + 1 for digit in digits) + b"\0"
    if type(value) is float and math.isnan(value):
        return b"\x01" + _DOUBLE(value)
    return b"\x00" + _number(value)


def _datetime_as_written(value: Any) -> bytes:
    return _datetime(value) + _ZONE(value.offset_minutes, value.timezone_index)


def _scalar(string: Encoder, binary: Encoder, number: Encoder = _number, datetime: Encoder = _datetime) -> Encoder:
    """Return an encoder for values of all scalar types, ordered first by their type's class (mp_class)."""
    classes: dict[type, tuple[bytes, Encoder]] = {
        bool: (b"\x01", _boolean),
        int: (b"\x02", number),
        float: (b"\x02", number),
        Decimal: (b"\x02", number),
        str: (b"\x03", string),
        bytes: (b"\x04", binary),
        UUID: (b"\x05", _uuid),
        Datetime: (b"\x06", datetime),
    }

    def encode(value: Any) -> bytes:
        found = classes.get(type(value))
        if found is None:
            raise TypeError(f"{excerpt(value, 100)} isn't a scalar")
        return found[0] + found[1](value)

    return encode


_NUMBERS: Final = ("number", "double", "decimal", "float32", "float64", "decimal32", "decimal64", "decimal128", "decimal256")
_TEXTS: Final = frozenset({"string", "varbinary"})

# By type: the encoder of a part that others follow, and the encoder of the last part.
_ENCODERS: Final[dict[str, tuple[Encoder, Encoder]]] = {
    **dict.fromkeys(("unsigned", "uint8", "uint16", "uint32", "uint64"), (_unsigned, _unsigned)),
    **dict.fromkeys(("integer", "int8", "int16", "int32", "int64"), (_integer, _integer)),
    **dict.fromkeys(_NUMBERS, (_number, _number)),
    "string": (_ended(_string), _string),
    "varbinary": (_ended(_binary), _binary),
    "boolean": (_boolean, _boolean),
    "uuid": (_uuid, _uuid),
    "datetime": (_datetime, _datetime),
    "scalar": (_scalar(_ended(_string), _ended(_binary)), _scalar(_string, _binary)),
}

# The same for parts in which different notations of a value are different keys.
_AS_WRITTEN: Final[dict[str, tuple[Encoder, Encoder]]] = {
    **dict.fromkeys(_NUMBERS, (_number_as_written, _number_as_written)),
    "datetime": (_datetime_as_written, _datetime_as_written),
    "scalar": (
        _scalar(_ended(_string), _ended(_binary), _number_as_written, _datetime_as_written),
        _scalar(_string, _binary, _number_as_written, _datetime_as_written),
    ),
}


def _encoder(part: KeyPart, *, is_last: bool) -> Encoder:
    return (_AS_WRITTEN if part.is_as_written else _ENCODERS)[part.type][is_last]


_SINGLE: Final = {"unsigned": _single_unsigned, "string": _single_string}
