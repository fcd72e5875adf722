"""UPDATE and UPSERT at the level of JSON: a row, a patch, the row after it.

What the server does to MessagePack (src/box/xrow_update*.c) is done here to the values that docs/events.md makes of it, so
that a consumer that keeps rows can follow a stream without images. Rows are lists of values; what their fields are called
is the form's affair.

What JSON no longer tells apart, the field's type in the format does, for fields of the tuple: a splice of a varbinary works
on the bytes behind the base64 text. A string that isn't UTF-8 arrives as base64 too and can't be told from text: a splice
of one is applied to the base64.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Final

from spark_jobs.forms import Form

_INT_MIN: Final = -(1 << 63)
_UINT_MAX: Final = (1 << 64) - 1
_DECIMAL: Final = Context(prec=38, rounding=ROUND_HALF_UP, Emin=-999999, Emax=999999)
_NOT_FINITE: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_STEP: Final = re.compile(r"""\[(?:(\d+)|"([^"]*)"|'([^']*)')\]|\.?([^.\[\]]+)""")

Operation = dict[str, Any]
Row = list[Any]


class PatchError(Exception):
    """An operation doesn't fit the row: the server would have refused it."""


def update(row: Row, patch: Sequence[Operation], form: Form) -> Row:
    """The row after an UPDATE. Raises PatchError if an operation doesn't fit, as the server would have."""
    changed: Row = _copy(row)
    for operation in patch:
        _apply(changed, operation, form)
    return changed


def upsert(row: Row, patch: Sequence[Operation], form: Form) -> Row:
    """An existing row after an UPSERT: operations that don't fit are passed over, and so is all of it if the key changes."""
    changed: Row = _copy(row)
    for operation in patch:
        attempt: Row = _copy(changed)
        try:
            _apply(attempt, operation, form)
        except PatchError:
            continue
        changed = attempt
    return changed if key_of(changed, form) == key_of(row, form) else row


def key_of(row: Row, form: Form) -> dict[str, Any] | None:
    """The primary key's fields by name, as in a message's key; None if the row hasn't got all of them."""
    key: dict[str, Any] = {}
    names = {form.field_name(place): place for place in range(len(row))}
    for part in form.key:
        if part in names:
            key[part] = row[names[part]]
            continue
        # A part inside a field: `data.user.id`. The longest name that fits is the field.
        field = max((name for name in names if part.startswith((f"{name}.", f"{name}["))), key=len, default=None)
        if field is None:
            return None
        value = row[names[field]]
        try:
            for step in _steps(part[len(field) :]):
                value = value[step]
        except (LookupError, TypeError):
            return None
        key[part] = value
    return key


def _apply(row: Row, operation: Operation, form: Form) -> None:
    code, field, path = operation["op"], operation["field"], operation.get("path")
    place = field if isinstance(field, int) else _place(field, form)
    if path is not None:
        _apply_inside(row, place, _steps(path), operation)
        return
    if place < 0:
        # Inserting before -1 appends, so it counts from one more.
        place += len(row) + (code == "!")
        if place < 0:
            raise PatchError(f"the row has no field {field}")
    size = len(row)
    if code in "=!" and place >= size:
        row.extend([None] * (place - size))
        row.append(operation["value"])
    elif code == "!":
        row.insert(place, operation["value"])
    elif code == "=":
        row[place] = operation["value"]
    elif code == "#":
        del row[place : place + operation["count"]]
    elif place >= size:
        raise PatchError(f"the row has no field {field!r}")
    else:
        kind = form.fields[place].type if place < len(form.fields) else ""
        row[place] = _computed(row[place], operation, kind)


def _apply_inside(row: Row, place: int, steps: list[int | str], operation: Operation) -> None:
    *parents, last = [place + len(row) if place < 0 else place, *steps]
    holder: Any = row
    for step in parents:
        if not _has(holder, step):
            raise PatchError(f"there is nothing at {step!r} of {operation['field']!r}{operation['path']}")
        holder = holder[step]
    where = f"{operation['field']!r}{operation['path']}"
    if isinstance(holder, list) and isinstance(last, int):
        _apply_in_array(holder, last, operation, where)
    elif isinstance(holder, dict) and isinstance(last, str):
        _apply_in_map(holder, last, operation, where)
    else:
        raise PatchError(f"what {where} leads into can have no {last!r}")


def _apply_in_array(array: list[Any], place: int, operation: Operation, where: str) -> None:
    code, size = operation["op"], len(array)
    if code == "#":
        del array[place : place + operation["count"]]
    elif code in "=!" and place == size:
        array.append(operation["value"])
    elif not 0 <= place < size:
        raise PatchError(f"there is nothing at {where}")
    elif code == "!":
        array.insert(place, operation["value"])
    else:
        array[place] = operation["value"] if code == "=" else _computed(array[place], operation, "")


def _apply_in_map(entries: dict[str, Any], key: str, operation: Operation, where: str) -> None:
    code = operation["op"]
    if code == "#":
        if operation["count"] != 1:
            raise PatchError("of a map one key is deleted at a time")
        entries.pop(key, None)
    elif code == "=" or (code == "!" and key not in entries):
        entries[key] = operation["value"]
    elif code == "!":
        raise PatchError(f"there is something at {where} already")
    elif key not in entries:
        raise PatchError(f"there is nothing at {where}")
    else:
        entries[key] = _computed(entries[key], operation, "")


def _has(holder: Any, step: int | str) -> bool:
    if isinstance(step, int):
        return isinstance(holder, list) and 0 <= step < len(holder)
    return isinstance(holder, dict) and step in holder


def _computed(value: Any, operation: Operation, kind: str) -> Any:
    code, operand = operation["op"], operation["value"]
    if code == ":":
        return _spliced(value, operation["position"], operation["length"], operand, kind)
    if code in "+-":
        return _sum(value, operand, -1 if code == "-" else 1, kind)
    if not (_is_unsigned(value) and _is_unsigned(operand)):
        raise PatchError(f"{code!r} needs two unsigned numbers, not {value!r} and {operand!r}")
    if code == "&":
        return value & operand
    return value | operand if code == "|" else value ^ operand


def _is_unsigned(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _sum(value: Any, operand: Any, sign: int, kind: str) -> Any:
    left, right = _number(value), _number(operand)
    if isinstance(left, int) and isinstance(right, int):
        whole = left + sign * right
        if not _INT_MIN <= whole <= _UINT_MAX:
            raise PatchError(f"{value!r} and {operand!r} give {whole}, which is no 64-bit number")
        return whole
    if isinstance(left, Decimal) or isinstance(right, Decimal):
        addends = _decimal(left), _decimal(right)
        exact = _DECIMAL.add(*addends) if sign > 0 else _DECIMAL.subtract(*addends)
        return format(exact, "f")
    floating = float(left) + sign * float(right)
    return _single(floating) if kind == "float32" else floating


def _single(number: float) -> float:
    """The nearest number of 32 bits."""
    try:
        nearest: float = struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return nearest


def _number(value: Any) -> int | float | Decimal:
    """A value as the number that its JSON stands for: texts are decimals, or floats that JSON has no number for."""
    if isinstance(value, str):
        try:
            return _NOT_FINITE[value] if value in _NOT_FINITE else Decimal(value)
        except InvalidOperation:
            raise PatchError(f"{value!r} is no number") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PatchError(f"{value!r} is no number")
    return value


def _decimal(number: float | Decimal) -> Decimal:
    """A float has the 15 digits that are surely right; the server takes no more either."""
    if isinstance(number, float):
        number = Decimal(f"{number:.15g}")
        if not number.is_finite():
            raise PatchError(f"{number} is no decimal")
    return Decimal(number)


def _spliced(value: Any, position: int, length: int, paste: Any, kind: str) -> str:
    if not isinstance(value, str) or not isinstance(paste, str):
        raise PatchError(f"a splice needs strings, not {value!r} and {paste!r}")
    binary = kind == "varbinary"
    text, inserted = (_unbase64(value), _unbase64(paste)) if binary else (value.encode(), paste.encode())
    size = len(text)
    start = position - 1 if position > 0 else position + size + 1
    if position == 0 or start < 0:
        raise PatchError(f"position {position} is outside of a string of {size} bytes")
    start = min(start, size)
    rest = size - start
    cut = max(length + rest, 0) if length < 0 else min(length, rest)
    result = text[:start] + inserted + text[start + cut :]
    return base64.b64encode(result).decode() if binary else _text(result)


def _text(data: bytes) -> str:
    """As the contract shows strings: those that aren't UTF-8, as those that a splice cut inside a character, in base64."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode()


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise PatchError(f"{text!r} is no base64") from None


def _place(field: str, form: Form) -> int:
    for place, known in enumerate(form.fields):
        if known.name == field:
            return place
    number = field.removeprefix("field_")
    if number != field and number.isdecimal() and int(number) > 0:
        return int(number) - 1
    raise PatchError(f"the form has no field {field!r}")


def _steps(path: str) -> list[int | str]:
    """Array places from 0, and map keys."""
    steps: list[int | str] = []
    position = 0
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            raise PatchError(f"the path {path!r} can't be read")
        place, double, single, name = step.groups()
        steps.append(int(place) - 1 if place is not None else next(key for key in (double, single, name) if key is not None))
        position = step.end()
    return steps


def _copy(value: Any) -> Any:
    if isinstance(value, list):
        return [_copy(item) for item in value]
    if isinstance(value, dict):
        return {name: _copy(item) for name, item in value.items()}
    return value
