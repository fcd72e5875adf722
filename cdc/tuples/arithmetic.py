"""The server's arithmetic in an UPDATE: sums of four kinds of numbers, bitwise operations, and splices, with their result types.

* The sum of two integers is an integer in its shortest form. The server refuses results outside of -2^63 … 2^64-1.
* If an operand is a float32 or a double (and none is a decimal), the sum is computed in doubles. The result becomes a float32 if
  that loses nothing, whatever the operands' types. In a field whose format type is double (float64) or float32, the result has
  that type's width.
* If an operand is a decimal, the other is converted to a decimal; a double by its 15 leading digits. The result is rounded half
  up to the precision of decimals: 38 digits, with exponents of their own range, and 76 digits from 3.5 on. The server refuses
  an infinity, a NaN and an overflow.
* An UPDATE has no arithmetic of datetimes and intervals in any version up to 3.9; the server refuses it.
* Bitwise operations need unsigned integers. Splices count bytes, so they can split a UTF-8 character.

Out of scope: the origin of the operands. Sources: src/box/xrow_update_field.c, src/lib/core/decimal.c.
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
    """Kind of a value in arithmetic. The result of two numbers has the lesser of their kinds."""

    NONE = 0
    DECIMAL = 1
    DOUBLE = 2
    FLOAT = 3
    INTEGER = 4
    STRING = 5
    BINARY = 6
    RAW = 7
    """An encoded value that can't be an operand."""


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
    """The server refuses this operation on this tuple: an UPDATE then fails, an UPSERT skips the operation."""


class IntegerOverflowError(OperationRefusedError):
    """The sum of two integers is outside the server's range; `sum` is that sum."""

    sum = 0


def read(data: bytes, position: int) -> Scalar:
    """Decode the value at `position`; return NO_SCALAR for a type without arithmetic.

    Raises IndexError if the value is incomplete, SchemaError for a decimal that can't be decoded.
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
                raise SchemaError("a decimal can't be read", detail=data[position:end].hex())
            return Kind.DECIMAL, value
    return NO_SCALAR


def store(scalar: Scalar, field_type: str = "") -> bytes:
    """Encode a result as the server does in a field with this type in the format."""
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
    """Return the value that the server sees of an overflowed sum: its lowest 64 bits, as a signed number."""
    if INTEGER_MIN <= value <= INTEGER_MAX:
        return value
    low = value & INTEGER_MAX
    return low - (1 << 64) if low >> 63 else low


def _remains(value: int) -> bytes:
    """Encode an overflowed sum as the server does: if its 64-bit remainder isn't negative, the server writes only its last byte.

    Raises SchemaError if that byte isn't a MessagePack value.
    """
    rest = _int64(value)
    if rest >= 0 and 0x80 <= rest & 0xFF < 0xE0:
        raise SchemaError("the sum overflows, and the byte that the server writes for it isn't a value", detail=str(value))
    return integer(rest) if rest < 0 else _SMALL[rest & 0xFF]


def integer(value: int) -> bytes:
    """Encode an integer in its shortest form."""
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
        # C converts a double beyond float32's range to an infinity.
        return b"\xca" + struct.pack(">f", float("inf") if value > 0 else float("-inf"))


def add(left: Scalar, right: Scalar, *, minus: bool, version: tuple[int, ...]) -> Scalar:
    """Return `left` + `right`, or `left` - `right` if `minus`. `right` must be a number. Raises OperationRefusedError."""
    if left[0] not in NUMBERS:
        raise OperationRefusedError("the field isn't a number")
    kind = min(left[0], right[0])
    if kind is Kind.INTEGER:
        result = left[1] - right[1] if minus else left[1] + right[1]
        if not INTEGER_MIN <= result <= INTEGER_MAX:
            error = IntegerOverflowError("the result is no 64-bit integer", detail=str(result))
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
        raise OperationRefusedError("a decimal can't hold the result or an operand") from error


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
    """Combine the bits of two unsigned integers by `code`: `&`, `|` or `^`. Raises OperationRefusedError."""
    kind, value = left
    if kind is not Kind.INTEGER or not 0 <= value <= INTEGER_MAX:
        raise OperationRefusedError("the field isn't an unsigned integer")
    return kind, value & right if code == "&" else value | right if code == "|" else value ^ right


def splice(text: Scalar, offset: int, cut: int, paste: bytes, *, version: tuple[int, ...]) -> Scalar:
    """Return `text` with `cut` bytes at `offset` replaced by `paste`.

    `offset` counts from 0, or is negative; -1 is the position after the last byte. A negative `cut` is minus the number of
    bytes to keep at the end. Raises OperationRefusedError.
    """
    kind, value = text
    if kind is not Kind.STRING and (kind is not Kind.BINARY or version < (3, 2)):
        raise OperationRefusedError("the field isn't a string")
    length = len(value)
    if offset < 0:
        if -offset > length + 1:
            raise OperationRefusedError("the offset is before the string", detail=f"{offset} in {length} bytes")
        offset += length + 1
    offset = min(offset, length)
    behind = length - offset
    cut = min(cut, behind) if cut >= 0 else max(cut + behind, 0)
    return kind, value[:offset] + paste + value[offset + cut :]
