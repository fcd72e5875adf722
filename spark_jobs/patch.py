"""UPDATE and UPSERT at the level of JSON: a row, a patch, the row after it.

What the server does to MessagePack (src/box/xrow_update*.c) is done here to the values that docs/events.md makes of it, so
that a consumer that keeps rows can follow a stream without images. Rows are lists of values; what their fields are called
is the form's affair.

What an UPSERT goes on without depends on how its operations meet, and on the master's version. So each field that an operation
has come to is remembered beside its value, in the server's shapes:

    None    untouched, or set anew from 3.0 on
    Done    computed, or set before 3.0: nothing goes inside; only from 3.0 on it is computed again
    Lone    one operation somewhere inside
    Route   a path that several operations have in common, to the container where they part
    Opened  a container of which an operation has taken an element by itself

What JSON no longer tells apart, the field's type in the format does, for fields of the tuple: a splice of a varbinary works
on the bytes behind the base64 text. A string that isn't UTF-8 arrives as base64 too and can't be told from text: a splice
of one is applied to the base64. Nor is a text told from a decimal: a sum takes one that reads as a number for a number.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation, Overflow
from typing import Any, Final

from spark_jobs.forms import Form
from spark_jobs.key_text import canonical

Operation = dict[str, Any]
Row = list[Any]
Version = tuple[int, ...]
Step = int | str

NEWEST: Final[Version] = (3, 9)
"""The rules for events that don't tell their master's version."""

_INT_MIN: Final = -(1 << 63)
_UINT_MAX: Final = (1 << 64) - 1
_TRAPS: Final = [InvalidOperation, Overflow]
_DECIMAL: Final = Context(prec=38, rounding=ROUND_HALF_UP, Emin=-1, Emax=37, traps=_TRAPS)
_DECIMAL_FROM_3_5: Final = Context(prec=76, rounding=ROUND_HALF_UP, Emin=-999999, Emax=999999, traps=_TRAPS)
_NOT_FINITE: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_STEP: Final = re.compile(r"""\[(?:(\d+)|"([^"]*)"|'([^']*)')\]|\.?([^.\[\]]+)""")


class _Place(int):
    """A step of a path to a place in an array, from 0, with its text."""

    text = ""


class _Key(str):
    """A step of a path to a key of a map, with its text."""

    text = ""


class PatchError(Exception):
    """An operation doesn't fit the row: the server would have refused it."""


class _OverflowError(PatchError):
    """A sum is no 64-bit integer."""

    whole = 0


@dataclass
class _Done:
    """Computed or set."""


@dataclass
class _Lone:
    """The path of one operation inside, and what it did: computed, set, inserted, added (where nothing was) or deleted."""

    steps: list[Step]
    effect: str


@dataclass
class _Route:
    """The path that several operations have in common, and the container that it leads to."""

    steps: list[Step]
    opened: _Opened


@dataclass
class _Opened:
    """By place or key: what has become of the elements of a container. Keys that are missing are untouched."""

    children: list[_Node] | dict[Any, _Node]


_Node = _Done | _Lone | _Route | _Opened | None


def version_of(text: str | None) -> Version:
    """A master's version as events tell it; older events don't."""
    return tuple(int(part) for part in text.split(".")) if text else NEWEST


def update(row: Row, patch: Sequence[Operation], form: Form, version: Version = NEWEST) -> Row:
    """The row after an UPDATE. Raises PatchError if an operation doesn't fit, as the server would have."""
    work = _Work(row, form, version)
    for operation in patch:
        work.apply(operation)
    return work.result()


def upsert(row: Row, patch: Sequence[Operation], form: Form, version: Version = NEWEST) -> Row:
    """An existing row after an UPSERT: operations that don't fit are passed over, and so is all of it if the key changes."""
    work = _Work(row, form, version)
    for operation in patch:
        try:
            work.apply(operation)
        except PatchError:
            continue
    changed = work.result()
    return changed if key_of(changed, form) == key_of(row, form) else row


def key_of(row: Row, form: Form) -> dict[str, Any] | None:
    """The primary key's fields by name, as in a message's key; None if the row hasn't got all of them."""
    key: dict[str, Any] = {}
    names = {form.field_name(place): place for place in range(len(row))}
    for part in form.key:
        if part in names:
            place = names[part]
            kind = form.fields[place].type if place < len(form.fields) else "any"
            key[part] = canonical(row[place], kind, is_as_written=part in form.as_written)
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
        key[part] = canonical(value, "any")
    return key


class _Work:
    """A row under the operations of one request. An operation that doesn't fit changes nothing."""

    def __init__(self, row: Row, form: Form, version: Version) -> None:
        self._row: Row = _copy(row)
        self._form = form
        self._version = version
        self._root = _Opened([None] * len(row))

    def apply(self, operation: Operation) -> None:
        """Carry out an operation. Raises PatchError."""
        field, path = operation["field"], operation.get("path")
        place = field if isinstance(field, int) else _place(field, self._form)
        steps = [place, *(_steps(path) if path is not None else ())]
        self._enter(self._root, self._row, steps, operation)

    def result(self) -> Row:
        """The row as it is stored."""
        return [_stored(value) for value in self._row]

    def _enter(self, opened: _Opened, holder: Any, steps: list[Step], operation: Operation) -> None:
        """An operation on an element of an opened container, or inside of one."""
        if isinstance(opened.children, list):
            self._enter_array(opened.children, holder, steps, operation)
        else:
            self._enter_map(opened.children, holder, steps, operation)

    def _enter_array(self, children: list[_Node], holder: list[Any], steps: list[Step], operation: Operation) -> None:
        code, place, size = operation["op"], steps[0], len(holder)
        if not isinstance(place, int):
            raise PatchError("an array has no keys")
        is_terminal = len(steps) == 1
        if place < 0:
            # Inserting before -1 appends, so it counts from one more.
            place += size + (code == "!" and is_terminal)
            if place < 0:
                raise PatchError(f"there is no field {operation['field']!r}")
        fills = holder is self._row and self._version >= (2, 8)
        if is_terminal and (code == "!" or (code == "=" and place >= size)):
            if place > size and not fills:
                raise PatchError(f"there is no field {operation['field']!r}")
            padding = max(0, place - size)
            holder.extend([None] * padding)
            children.extend([None] * padding)
            holder.insert(place, _copy(operation["value"]))
            children.insert(place, None)
        elif place >= size:
            if not (is_terminal and code == "#" and self._version >= (2, 8)):
                raise PatchError(f"there is no field {operation['field']!r}")
        elif not is_terminal:
            self._into(children, place, holder[place], steps[1:], operation)
        elif code == "#":
            del holder[place : place + operation["count"]]
            del children[place : place + operation["count"]]
        elif code == "=":
            holder[place], children[place] = _copy(operation["value"]), self._set()
        else:
            kind = self._form.fields[place].type if holder is self._row and place < len(self._form.fields) else ""
            children[place] = self._compute(children[place], holder, place, operation, kind)

    def _enter_map(self, children: dict[Any, _Node], holder: dict[str, Any], steps: list[Step], operation: Operation) -> None:
        code, key = operation["op"], steps[0]
        if not isinstance(key, str):
            raise PatchError("a map has no places")
        is_there = key in holder
        if len(steps) > 1:
            if not is_there:
                raise PatchError(f"there is no key {key!r}")
            children.setdefault(key, None)
            self._into(children, key, holder[key], steps[1:], operation)
        elif code == "#":
            if operation["count"] != 1:
                raise PatchError("of a map one key is deleted at a time")
            holder.pop(key, None)
            children.pop(key, None)
        elif code == "=":
            children[key] = self._set() if is_there else None
            holder[str(key)] = _copy(operation["value"])
        elif code == "!":
            if is_there:
                raise PatchError(f"there is a key {key!r} already")
            holder[str(key)] = _copy(operation["value"])
            children[key] = None
        elif not is_there:
            raise PatchError(f"there is no key {key!r}")
        else:
            children[key] = self._compute(children.get(key), holder, key, operation, "")

    def _set(self) -> _Node:
        return None if self._version >= (3, 0) else _Done()

    def _compute(self, node: _Node, holder: Any, place: Any, operation: Operation, kind: str) -> _Node:
        """An operation on a value that is taken by itself."""
        if node is not None and (self._version < (3, 0) or not isinstance(node, _Done)):
            raise PatchError("the field was updated already")
        try:
            holder[place] = _computed(holder[place], operation, kind, self._version)
        except _OverflowError as error:
            if node is not None:
                holder[place] = error.whole  # the server refuses the sum, and keeps it
            raise
        return _Done()

    def _into(self, children: Any, key: Step, value: Any, steps: list[Step], operation: Operation) -> None:
        """An operation inside of a value, of which `children[key]` tells what has become of it."""
        node: _Node = children[key]
        match node:
            case None:
                children[key] = self._alone(value, steps, operation)
            case _Done():
                raise PatchError("there is nothing inside of what was computed or set")
            case _Opened():
                self._enter(node, value, steps, operation)
            case _Route() if _path_text(steps).startswith(_path_text(node.steps)):
                # The server compares texts here, so `.ab` begins like `.a`, and then can't be read; `["a"]` is another way.
                if len(steps) <= len(node.steps) or steps[: len(node.steps)] != node.steps:
                    raise PatchError("the field was updated already")
                self._enter(node.opened, _descend(value, node.steps), steps[len(node.steps) :], operation)
            case _:
                depth, parent = self._parting(node, value, steps)
                opened = _Opened([None] * len(parent) if isinstance(parent, list) else {})
                old = node.steps[depth]
                if isinstance(old, int if isinstance(parent, list) else str) and _find(parent, old) is not None:
                    opened.children[old] = self._moved(node, node.steps[depth + 1 :])  # type: ignore[index]
                # It stays opened, also if the operation doesn't fit in there.
                children[key] = _Route(steps[:depth], opened) if depth else opened
                self._enter(opened, parent, steps[depth:], operation)

    def _alone(self, value: Any, steps: list[Step], operation: Operation) -> _Node:
        """The first operation inside of a value."""
        code, last = operation["op"], steps[-1]
        holder = _descend(value, steps[:-1])
        key = _find(holder, last)
        if key is None:
            if code not in "=!":
                raise PatchError(f"there is nothing at {operation['field']!r}{operation['path']}")
            if isinstance(holder, list) and last == len(holder):
                holder.append(_copy(operation["value"]))
            elif isinstance(holder, dict) and isinstance(last, str):
                holder[str(last)] = _copy(operation["value"])
            else:
                raise PatchError(f"what {operation['field']!r}{operation['path']} leads into can have no {last!r}")
            return _Lone(steps, "added")
        if code == "#":
            self._delete(holder, key, last, operation["count"])
            return _Lone(steps, "deleted")
        if code == "!":
            if isinstance(holder, dict):
                raise PatchError(f"there is something at {operation['field']!r}{operation['path']} already")
            holder.insert(key, _copy(operation["value"]))
            return _Lone(steps, "inserted")
        holder[key] = _copy(operation["value"]) if code == "=" else _computed(holder[key], operation, "", self._version)
        return _Lone(steps, "set" if code == "=" else "computed")

    @staticmethod
    def _delete(holder: Any, key: Any, step: Step, count: int) -> None:
        if isinstance(holder, list):
            del holder[key : key + count]
        elif count != 1:
            raise PatchError("of a map one key is deleted at a time")
        elif isinstance(step, str) or step == 0:
            del holder[key]
        # The server reckons where an integer key begins as if it were a string: right for 1 alone.

    def _parting(self, node: _Lone | _Route, value: Any, steps: list[Step]) -> tuple[int, Any]:
        """After how many steps the paths of two operations part, and in which container. Raises PatchError if they may not."""
        old, version, parent, depth = node.steps, self._version, value, 0
        while depth < len(old) and depth < len(steps) and old[depth] == steps[depth]:
            is_last = depth + 1 == len(old)
            if version >= (3, 0) and (is_last or depth + 1 == len(steps)):
                break
            if is_last and version >= (2, 10, 3) and isinstance(node, _Lone) and node.effect == "added":
                break
            if is_last:
                raise PatchError("the field was updated already")
            parent = _descend(parent, [old[depth]])
            depth += 1
        kind = int if isinstance(parent, list) else str if isinstance(parent, dict) else None
        if kind is None or depth == len(steps) or not isinstance(steps[depth], kind):
            raise PatchError("what the paths part in can have no such element")
        return depth, parent

    def _moved(self, node: _Lone | _Route, steps: list[Step]) -> _Node:
        """What stood in a value, as it moves into the container that was opened in there."""
        if isinstance(node, _Route):
            return _Route(steps, node.opened) if steps else node.opened
        if steps:
            return _Lone(steps, node.effect)
        return _Done() if node.effect == "computed" else self._set() if node.effect == "set" else None


def _computed(value: Any, operation: Operation, kind: str, version: Version) -> Any:
    code, operand = operation["op"], operation["value"]
    if code == ":":
        if kind == "varbinary" and version < (3, 2):
            raise PatchError("before 3.2 there are no splices of varbinary")
        return _spliced(value, operation["position"], operation["length"], operand, kind)
    if code in "+-":
        return _sum(value, operand, -1 if code == "-" else 1, kind, version)
    if not (_is_unsigned(value) and _is_unsigned(operand)):
        raise PatchError(f"{code!r} needs two unsigned numbers, not {value!r} and {operand!r}")
    if code == "&":
        return value & operand
    return value | operand if code == "|" else value ^ operand


def _is_unsigned(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _UINT_MAX


def _sum(value: Any, operand: Any, sign: int, kind: str, version: Version) -> Any:
    left, right = _number(value), _number(operand)
    if isinstance(left, int) and isinstance(right, int):
        whole = left + sign * right
        if not _INT_MIN <= whole <= _UINT_MAX:
            error = _OverflowError(f"{value!r} and {operand!r} give {whole}, which is no 64-bit number")
            error.whole = whole
            raise error
        return whole
    left = _int64(left) if isinstance(left, int) else left
    if isinstance(left, Decimal) or isinstance(right, Decimal):
        context = _DECIMAL if version < (3, 5) else _DECIMAL_FROM_3_5
        addends = _decimal(left), _decimal(right)
        try:
            exact = context.add(*addends) if sign > 0 else context.subtract(*addends)
        except (InvalidOperation, Overflow) as error:
            raise PatchError(f"a decimal can't hold {value!r} and {operand!r} together") from error
        return format(exact, "f")
    floating = float(left) + sign * float(right)
    return _single(floating) if kind == "float32" and version >= (3, 3) else floating


def _int64(number: int) -> int:
    """What the server takes a sum for that has overflowed: its 64 lowest bits, with a sign."""
    if _INT_MIN <= number <= _UINT_MAX:
        return number
    low = number & _UINT_MAX
    return low - (1 << 64) if low >> 63 else low


def _stored(value: Any) -> Any:
    """A value without sums that have overflowed: of one that the server takes for positive it stores the last byte."""
    if isinstance(value, list):
        return [_stored(item) for item in value]
    if isinstance(value, dict):
        return {name: _stored(item) for name, item in value.items()}
    if isinstance(value, int) and not _INT_MIN <= value <= _UINT_MAX:
        rest = _int64(value)
        return rest if rest < 0 else (rest & 0xFF) - (0x100 if rest & 0x80 else 0)
    return value


def _path_text(steps: Sequence[Step]) -> str:
    return "".join(step.text for step in steps if isinstance(step, (_Place, _Key)))


def _find(holder: Any, step: Step) -> Any:
    """The place or key to which a step leads, None if there is none. In a map a place is the integer key that it has from 1."""
    if isinstance(holder, list):
        return step if isinstance(step, int) and step < len(holder) else None
    if isinstance(holder, dict):
        key = str(step) if isinstance(step, str) else str(step + 1)
        return key if key in holder else None
    return None


def _descend(value: Any, steps: Sequence[Step]) -> Any:
    for step in steps:
        key = _find(value, step)
        if key is None:
            raise PatchError(f"there is nothing at {step!r}")
        value = value[key]
    return value


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
        found: _Place | _Key
        if place is not None:
            found = _Place(int(place) - 1)
        else:
            found = _Key(next(key for key in (double, single, name) if key is not None))
        found.text = step.group()
        steps.append(found)
        position = step.end()
    return steps


def _copy(value: Any) -> Any:
    if isinstance(value, list):
        return [_copy(item) for item in value]
    if isinstance(value, dict):
        return {name: _copy(item) for name, item in value.items()}
    return value
