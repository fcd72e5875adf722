"""Primary keys as bytes: equal where the server takes them for equal, and in the order of its index.

    space 513, key [7, "abc", 1.5]      00000201 │ 0000000000000007 │ 616263 0000 │ bff8000000000000 80
                                        space      unsigned           string        number

A key is always longer than its space's prefix, which by itself names the whole space: so the key "" is one zero, and a text
of nothing but zeroes, where it is the only part, has one more than it says.

The store compares keys with memcmp. So 1, 1.0 and decimal 1 have to become the same bytes, and less has to become less.

A number is the nearest double, in a form that memcmp orders, and a mark that says how it lies to that double: the double
itself, less or greater, and then exactly what it is. The server compares integers with doubles and with decimals exactly,
but a double with a decimal by the double's first 15 digits, so that double 0.1 and decimal 0.1 are one key; here a double
stands for those 15 digits where they lead back to it. Where they don't (0.1 + 0.2, or whole numbers of 16 digits and more
that are doubles) the server's comparison isn't transitive: decimal 0.3 equals two doubles that differ. No bytes can follow
it there; here such a double is no decimal's equal. NaN is less than all numbers; in a part of the type `double`, where the
server (2.6) takes it for equal to whatever it meets, it is a key of its own here.

In a HASH index equal numbers and points in time that are written differently are different keys (`KeyPart.is_as_written`): there
a decimal is its digits and its exponent, a NaN its bits, and a point in time its zone too. Such an index has no order.

Keys over KEY_BYTES_MAX keep their beginning and end in a hash of the whole. They stay different, and in one fixed order, but
keys that begin with the same 479 bytes aren't ordered as the server orders them. Parts in descending order (3.x) are kept
in ascending order.

What it refuses to know: who keeps the keys, and collations. With one, different strings are equal by rules that are only
in the server's copy of ICU.

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
from cdc.schema.forms import KeyPart, SpaceForm
from cdc.tuples.operations import steps

KEY_BYTES_MAX: Final = 511
"""What LMDB takes. Keys of this length are always hashes, shorter ones never."""

Encoder = Callable[[Any], bytes]

_HASH_BYTES: Final = 32
_SIGN_BIT: Final = 1 << 63
_UINT64_END: Final = 2.0**64
_UINT: Final = struct.Struct(">Q").pack
_SPACE: Final = struct.Struct(">I").pack
_DOUBLE: Final = struct.Struct(">d").pack
_BITS: Final[Callable[[bytes], tuple[int]]] = struct.Struct(">Q").unpack

# How a number lies to the double that is nearest to it.
_LESS: Final = b"\x40"
_SAME: Final = b"\x80"
_GREATER: Final = b"\xc0"
_NO_DECIMAL: Final = b"\x81"
"""The double itself, where no decimal equals it."""
_EXPONENT: Final = struct.Struct(">I").pack
_EXPONENT_BIAS: Final = 1 << 31
_COMPLEMENT: Final = bytes(255 - byte for byte in range(256))
_NAN: Final = b"\x00" * 8
_ZONE: Final = struct.Struct(">hh").pack


def space_prefix(number: int) -> bytes:
    """What all keys of a space begin with; the number is the space's id, or one that cdc.images has given it."""
    return _SPACE(number)


def is_keyable(form: SpaceForm) -> bool:
    """Whether a space's keys can be told to be equal as the server does it."""
    try:
        KeyCodec(form)
    except UnkeyableError:
        return False
    return True


class KeyCodec:
    """Makes keys of one space's tuples. Methods that a key's kind allows to be faster replace the general ones."""

    def __init__(self, form: SpaceForm, number: int | None = None) -> None:
        """Keys begin with `number`, the space's id by default.

        Raises UnkeyableError if keys that the server takes for equal can't be told to be equal.
        """
        for place, part in enumerate(form.key_parts, 1):
            _check(form, place, part)
        begin = form.space_id if number is None else number
        self._prefix = space_prefix(begin)
        self._name = form.name
        last = len(form.key_parts) - 1
        self._parts = [(part.field, tuple(steps(part.path))) for part in form.key_parts]
        self._encoders = [_encoder(part, is_last=place == last) for place, part in enumerate(form.key_parts)]
        self.is_text = len(form.key_parts) == 1 and form.key_parts[0].type in _TEXTS
        """Whether the key is one string or binary and nothing else."""
        if self.is_text:
            self._encoders = [_filled(self._encoders[0])]
        self.of_tuple: Callable[[Sequence[Any]], bytes] = self._of_tuple
        """The key of a tuple, or as much of one as the key's fields. Raises SchemaError if the tuple doesn't fit the form."""
        self.of_key: Callable[[Sequence[Any]], bytes] = self._of_key
        """The key of a key's values. Raises SchemaError if they don't fit the form."""
        if len(form.key_parts) == 1:
            (part,) = form.key_parts
            single = _SINGLE.get(part.type)
            if single is not None:
                self.of_key = single(begin, 0, self._of_key)
                if not part.path:
                    self.of_tuple = single(begin, part.field, self._of_tuple)

    def _of_tuple(self, tuple_: Sequence[Any]) -> bytes:
        values = []
        try:
            for field, path in self._parts:
                value = tuple_[field]
                for step in path:
                    value = value[step]
                values.append(value)
        except (IndexError, KeyError, TypeError) as error:
            raise SchemaError(f"a tuple of space {self._name!r} has no primary key: {excerpt(tuple_)}") from error
        return self._encoded(values)

    def _of_key(self, key: Sequence[Any]) -> bytes:
        if len(key) != len(self._encoders):
            raise SchemaError(f"a key of space {self._name!r} has {len(self._encoders)} parts, not {len(key)}: {excerpt(key)}")
        return self._encoded(key)

    def _encoded(self, values: Sequence[Any]) -> bytes:
        try:
            found = self._prefix + b"".join([encode(value) for encode, value in zip(self._encoders, values, strict=True)])
        except (struct.error, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise SchemaError(f"space {self._name!r} can't have the primary key {excerpt(values)} ({error})") from error
        return found if len(found) < KEY_BYTES_MAX else _shortened(found)


def _shortened(key: bytes) -> bytes:
    return key[: KEY_BYTES_MAX - _HASH_BYTES] + hashlib.sha256(key).digest()


def _check(form: SpaceForm, number: int, part: KeyPart) -> None:
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


# The commonest keys: one part that is an unsigned number or a string.


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
            return general(values)  # it may be all zeroes
        return found if len(found) < KEY_BYTES_MAX else _shortened(found)

    return of


# Parts. Each encoder's bytes must not be the beginning of another value's, except where the part is the last.


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
        return _ordered(value) + (_NO_DECIMAL if stood_for(value) is None else _SAME)
    if kind is not Decimal:
        raise TypeError(f"{excerpt(value, 100)} isn't a number")
    double = float(value)
    if math.isfinite(double) and stood_for(double) == value:
        return _ordered(double) + _SAME
    return _beside(double, value, value)


def stood_for(double: float) -> Decimal | None:
    """The number that a finite double is compared as with integers and decimals; None if with no decimal."""
    if double.is_integer() and -_UINT64_END < double < _UINT64_END:
        return Decimal(int(double))
    digits = f"{double:.15g}"
    return Decimal(digits) if float(digits) == double else None


def _ordered(double: float) -> bytes:
    (bits,) = _BITS(_DOUBLE(double + 0.0))
    return _UINT(bits ^ 0xFFFF_FFFF_FFFF_FFFF if bits & _SIGN_BIT else bits | _SIGN_BIT)


def _beside(double: float, value: Any, exact: Decimal) -> bytes:
    """A number that is no double: its nearest one, on which side of it the number lies, and the number's digits."""
    sign, digits, exponent = exact.as_tuple()
    assert isinstance(exponent, int), "Tarantool has no NaN and no infinity among its decimals"
    text = bytes(digits).rstrip(b"\0")
    # Zeroes at the end are no part of the number; digits are counted from 1, so that 0 ends them.
    tail = _EXPONENT(exponent + len(digits) + _EXPONENT_BIAS) + bytes(digit + 1 for digit in text) + b"\0"
    is_less = double > 0 if math.isinf(double) else value < (stood_for(double) or Decimal(double))
    return _ordered(double) + (_LESS if is_less else _GREATER) + (tail.translate(_COMPLEMENT) if sign else tail)


def _not_finite(value: float) -> bytes:
    if math.isinf(value):
        return _ordered(value) + _SAME
    return _NAN + (b"\x01" if is_quiet_nan(value) else b"\x00")


def is_quiet_nan(value: float) -> bool:
    """Of the two kinds of NaN, which are two keys: whether it is the one that computing gives."""
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
    """The same with an end that no other string goes on after: 0 is 0 255, and the end 0 0."""

    def encode_and_end(value: Any) -> bytes:
        return encode(value).replace(b"\0", b"\0\xff") + b"\0\0"

    return encode_and_end


def _filled(encode: Encoder) -> Encoder:
    """The same, never empty, and in the same order: a text of nothing but zeroes, none too, gets one more."""

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
    """Values of all types, ordered by their type's class first (mp_class)."""
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
_TEXTS: Final = frozenset({"string", "str", "varbinary"})

# By type: how a part is written where others follow it, and where it is the last.
_ENCODERS: Final[dict[str, tuple[Encoder, Encoder]]] = {
    **dict.fromkeys(("unsigned", "num", "uint", "uint8", "uint16", "uint32", "uint64"), (_unsigned, _unsigned)),
    **dict.fromkeys(("integer", "int", "int8", "int16", "int32", "int64"), (_integer, _integer)),
    **dict.fromkeys(_NUMBERS, (_number, _number)),
    **dict.fromkeys(("string", "str"), (_ended(_string), _string)),
    "varbinary": (_ended(_binary), _binary),
    "boolean": (_boolean, _boolean),
    "uuid": (_uuid, _uuid),
    "datetime": (_datetime, _datetime),
    "scalar": (_scalar(_ended(_string), _ended(_binary)), _scalar(_string, _binary)),
}

# Of parts whose values are different keys where they are written differently.
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


_SINGLE: Final = {"unsigned": _single_unsigned, "num": _single_unsigned, "string": _single_string, "str": _single_string}
