"""What the server computes in an UPDATE: sums of four kinds of numbers, bits, and splices, with the types of their results.

* Two integers make an integer in its shortest form; outside of -2^63 … 2^64-1 the server refuses.
* With a float32 or a double in it (and no decimal), the sum is taken in doubles and becomes a float32 if that loses nothing,
  be the operands what they were; a field that the format calls double (float64) or float32 keeps its own width.
* With a decimal in it, all becomes decimal: doubles by their 15 leading digits, rounded half up to the digits that decimals
  have: 38, with exponents of their own range, and from 3.5 on 76. An infinity or NaN is refused, as is an overflow.
* There is no arithmetic of datetimes and intervals in an UPDATE, in any version up to 3.9: it is refused.
* Bits are those of unsigned integers. Splices count bytes, so that they may cut UTF-8 apart.

What it refuses to know: where an operand came from. Sources: src/box/xrow_update_field.c, src/lib/core/decimal.c.
"""

from __future__ import annotations

import decimal
import struct
from decimal import Decimal
from enum import IntEnum
from typing import Any, Final

from cdc.errors import SchemaError
from cdc.protocol import layout
from cdc.protocol.extensions import EXT_DECIMAL, decode_extension, pack


class Kind(IntEnum):
    """What a value is to arithmetic. Of two numbers the lesser kind is that of the result."""

    NONE = 0
    DECIMAL = 1
    DOUBLE = 2
    FLOAT = 3
    INTEGER = 4
    STRING = 5
    BINARY = 6
    RAW = 7
    """Bytes that stand for themselves: nothing can be computed with them."""


Scalar = tuple[Kind, Any]
NO_SCALAR: Final[Scalar] = (Kind.NONE, None)

NUMBERS: Final = (Kind.DECIMAL, Kind.DOUBLE, Kind.FLOAT, Kind.INTEGER)
INTEGER_MIN: Final = -(2**63)
INTEGER_MAX: Final = 2**64 - 1
_FLOAT_MAX: Final = struct.unpack(">f", b"\x7f\x7f\xff\xff")[0]

_TRAPS: Final = [decimal.Overflow, decimal.InvalidOperation]
_DECIMALS: Final = decimal.Context(
    prec=38, rounding=decimal.ROUND_HALF_UP, Emin=-1, Emax=37, capitals=1, clamp=0, flags=[], traps=_TRAPS
)
_DECIMALS_FROM_3_5: Final = decimal.Context(
    prec=76, rounding=decimal.ROUND_HALF_UP, Emin=-999_999, Emax=999_999, capitals=1, clamp=0, flags=[], traps=_TRAPS
)


class OperationRefusedError(SchemaError):
    """The server refuses such an operation on such a tuple: an UPDATE fails by it, an UPSERT goes on without it."""


class IntegerOverflowError(OperationRefusedError):
    """The sum of two integers is none that the server has."""

    sum = 0


def read(data: bytes, position: int) -> Scalar:
    """The value at `position`, Kind.NONE if nothing can be computed with it.

    Raises IndexError if it isn't whole, SchemaError for a decimal that can't be read.
    """
    kind = layout.TYPES[data[position]]
    if kind is layout.UNSIGNED or kind is layout.INTEGER:
        return Kind.INTEGER, layout.integer(data, position)
    end = layout.end_of(data, position)
    if kind is layout.DOUBLE:
        return Kind.DOUBLE, struct.unpack(">d", data[position + 1 : end])[0]
    if kind is layout.FLOAT:
        return Kind.FLOAT, struct.unpack(">f", data[position + 1 : end])[0]
    if kind is layout.STRING or kind is layout.BINARY:
        begin, length = layout.content(data, position)
        return (Kind.STRING if kind is layout.STRING else Kind.BINARY), data[begin : begin + length]
    if kind is layout.EXTENSION:
        begin, length = layout.content(data, position)
        if data[begin - 1] == EXT_DECIMAL:
            value = decode_extension(EXT_DECIMAL, data[begin : begin + length])
            if not isinstance(value, Decimal):
                raise SchemaError(f"a decimal can't be read: {data[position:end].hex()}")
            return Kind.DECIMAL, value
    return NO_SCALAR


def store(scalar: Scalar, field_type: str = "") -> bytes:
    """The bytes that the server writes for a result, in a field of this type of the format."""
    kind, value = scalar
    match kind:
        case Kind.INTEGER:
            return integer(value) if INTEGER_MIN <= value <= INTEGER_MAX else _remains(value)
        case Kind.DOUBLE if field_type == "float32":
            return _float(value)
        case Kind.FLOAT if field_type not in ("double", "float64"):
            return _float(value)
        case Kind.DOUBLE | Kind.FLOAT:
            return b"\xcb" + struct.pack(">d", value)
        case Kind.DECIMAL:
            return pack(value)
        case Kind.STRING:
            return layout.string(value)
        case Kind.BINARY:
            return layout.binary(value)
    raw: bytes = value
    return raw


def _int64(value: int) -> int:
    """What the server takes a sum for that has overflowed: its 64 lowest bits, with a sign."""
    if INTEGER_MIN <= value <= INTEGER_MAX:
        return value
    low = value & INTEGER_MAX
    return low - (1 << 64) if low >> 63 else low


def _remains(value: int) -> bytes:
    """The bytes of a sum that has overflowed: of one that it takes for positive the server writes the last byte.

    Raises SchemaError if that is no value.
    """
    rest = _int64(value)
    if rest >= 0 and 0x80 <= rest & 0xFF < 0xE0:
        raise SchemaError(f"of the overflow {value} the server has left a byte that is no value")
    return integer(rest) if rest < 0 else _SMALL[rest & 0xFF]


def integer(value: int) -> bytes:
    """An integer in its shortest form."""
    if value >= 0:
        if value < 0x80:
            return _SMALL[value]
        if value < 0x100:
            return b"\xcc" + value.to_bytes(1, "big")
        if value < 0x1_0000:
            return b"\xcd" + value.to_bytes(2, "big")
        return b"\xce" + value.to_bytes(4, "big") if value < 0x1_0000_0000 else b"\xcf" + value.to_bytes(8, "big")
    if value >= -0x20:
        return _SMALL[value + 0x100]
    if value >= -0x80:
        return b"\xd0" + value.to_bytes(1, "big", signed=True)
    if value >= -0x8000:
        return b"\xd1" + value.to_bytes(2, "big", signed=True)
    if value >= -0x8000_0000:
        return b"\xd2" + value.to_bytes(4, "big", signed=True)
    return b"\xd3" + value.to_bytes(8, "big", signed=True)


_SMALL: Final = tuple(bytes((value,)) for value in range(256))


def _float(value: float) -> bytes:
    try:
        return b"\xca" + struct.pack(">f", value)
    except OverflowError:
        # What C makes of a double that no float32 reaches.
        return b"\xca" + struct.pack(">f", float("inf") if value > 0 else float("-inf"))


def add(left: Scalar, right: Scalar, *, minus: bool, version: tuple[int, ...]) -> Scalar:
    """`left` + `right`, or - `right`. The right one must be a number. Raises OperationRefusedError."""
    if left[0] not in NUMBERS:
        raise OperationRefusedError("the field isn't a number")
    kind = min(left[0], right[0])
    if kind is Kind.INTEGER:
        result = left[1] - right[1] if minus else left[1] + right[1]
        if not INTEGER_MIN <= result <= INTEGER_MAX:
            error = IntegerOverflowError(f"the result {result} is no 64-bit integer")
            error.sum = result
            raise error
        return Kind.INTEGER, result
    if kind is not Kind.DECIMAL:
        one, other = (float(_int64(value) if number is Kind.INTEGER else value) for number, value in (left, right))
        total = one - other if minus else one + other
        fits = -_FLOAT_MAX <= total <= _FLOAT_MAX and struct.unpack(">f", struct.pack(">f", total))[0] == total
        return (Kind.FLOAT if fits else Kind.DOUBLE), total
    context = _DECIMALS if version < (3, 5) else _DECIMALS_FROM_3_5
    try:
        first, second = _decimal(left, context), _decimal(right, context)
        return Kind.DECIMAL, context.subtract(first, second) if minus else context.add(first, second)
    except (decimal.Overflow, decimal.InvalidOperation) as error:
        raise OperationRefusedError("a decimal can't hold the result or an operand of it") from error


def _decimal(scalar: Scalar, context: decimal.Context) -> Decimal:
    kind, value = scalar
    if kind is Kind.DECIMAL:
        found: Decimal = value
        return found
    if kind is Kind.INTEGER:
        return Decimal(_int64(value))
    if value - value != 0:
        raise OperationRefusedError("an infinity or NaN is no decimal")
    return context.create_decimal(f"{value:.15g}")


def bits(code: str, left: Scalar, right: int) -> Scalar:
    """The bits of two unsigned integers, by `&`, `|` or `^`. Raises OperationRefusedError."""
    kind, value = left
    if kind is not Kind.INTEGER or not 0 <= value <= INTEGER_MAX:
        raise OperationRefusedError("the field isn't an unsigned integer")
    return kind, value & right if code == "&" else value | right if code == "|" else value ^ right


def splice(text: Scalar, offset: int, cut: int, paste: bytes, *, version: tuple[int, ...]) -> Scalar:
    """`text` without `cut` bytes at `offset` (from 0, or negative from behind the end), and `paste` in their place.

    A negative `cut` says how many bytes stay at the end. Raises OperationRefusedError.
    """
    kind, value = text
    if kind is not Kind.STRING and (kind is not Kind.BINARY or version < (3, 2)):
        raise OperationRefusedError("the field isn't a string")
    length = len(value)
    if offset < 0:
        if -offset > length + 1:
            raise OperationRefusedError(f"the offset {offset} is before a string of {length} bytes")
        offset += length + 1
    offset = min(offset, length)
    behind = length - offset
    cut = min(cut, behind) if cut >= 0 else max(cut + behind, 0)
    return kind, value[:offset] + paste + value[offset + cut :]
