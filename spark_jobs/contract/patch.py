"""UPDATE and UPSERT on JSON values: apply a patch to a row, and return the new row.

The server applies operations to MessagePack (src/box/xrow_update*.c). This module does the same to the JSON values that
docs/events.md defines for them. A consumer that keeps rows can thereby follow a stream without images. Rows are lists of values;
the form has the names of their fields.

An UPSERT skips operations that don't fit. Which ones these are depends on how its operations overlap, and on the master's
version. For each value that an operation has touched, this module therefore keeps a node beside the value. The nodes have the
server's kinds:

    None    untouched, or set in version 3.0 or later
    Done    computed, or set before 3.0. No operation may go inside; only from 3.0 on it may be computed again
    Lone    a single operation somewhere inside
    Route   a path that several operations share, to the container where their paths part
    Opened  a container one of whose elements an operation has changed directly

Some types look the same in JSON. For fields of the tuple, the type in the format distinguishes them: a splice of a varbinary
works on the bytes that the base64 text stands for. A string that isn't UTF-8 also arrives as base64 and can't be distinguished
from text, so a splice is applied to the base64. A text can't be distinguished from a decimal either: a sum treats a text that
reads as a number as a number.
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

from spark_jobs.contract.forms import Form
from spark_jobs.contract.key_text import canonical

Operation = dict[str, Any]
Row = list[Any]
Version = tuple[int, ...]
Step = int | str

NEWEST: Final[Version] = (3, 9)
"""The version whose rules apply to events that don't contain their master's version."""

_INT_MIN: Final = -(1 << 63)
_UINT_MAX: Final = (1 << 64) - 1
_TRAPS: Final = [InvalidOperation, Overflow]
_DECIMAL: Final = Context(prec=38, rounding=ROUND_HALF_UP, Emin=-1, Emax=37, traps=_TRAPS)
_DECIMAL_FROM_3_5: Final = Context(prec=76, rounding=ROUND_HALF_UP, Emin=-999999, Emax=999999, traps=_TRAPS)
_NOT_FINITE: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_STEP: Final = re.compile(r"""\[(?:(\d+)|"([^"]*)"|'([^']*)')\]|\.?([^.\[\]]+)""")


class _Place(int):
    """Step of a path to a place in an array (from 0), with the step's text in the path."""

    text = ""


class _Key(str):
    """Step of a path to a key of a map, with the step's text in the path."""

    text = ""


class PatchError(Exception):
    """Error for an operation that doesn't fit the row. The server would have refused it."""


class _OverflowError(PatchError):
    """Error for a sum that isn't a 64-bit integer. `whole` is the exact sum."""

    whole = 0


@dataclass
class _Done:
    """Node of a value that was computed or set."""


@dataclass
class _Lone:
    """Node of a value with a single operation inside: the operation's path and its effect.

    The effect is computed, set, inserted, added (where nothing was) or deleted.
    """

    steps: list[Step]
    effect: str


@dataclass
class _Route:
    """Node of a value inside which several operations share a path, with the container to which that path leads."""

    steps: list[Step]
    opened: _Opened


@dataclass
class _Opened:
    """Node of a container, with the nodes of its elements by place or key. Elements of a map without a node are untouched."""

    children: list[_Node] | dict[Any, _Node]


_Node = _Done | _Lone | _Route | _Opened | None


def version_of(text: str | None) -> Version:
    """Return the master's version from an event's text, or NEWEST for an older event, which doesn't contain it."""
    return tuple(int(part) for part in text.split(".")) if text else NEWEST


def update(row: Row, patch: Sequence[Operation], form: Form, version: Version = NEWEST) -> Row:
    """Return the row after an UPDATE. Raises PatchError if an operation doesn't fit; the server would have refused it, too."""
    work = _Work(row, form, version)
    for operation in patch:
        work.apply(operation)
    return work.result()


def upsert(row: Row, patch: Sequence[Operation], form: Form, version: Version = NEWEST) -> Row:
    """Return an existing row after an UPSERT. Operations that don't fit are skipped. If the key changes, all are skipped."""
    work = _Work(row, form, version)
    for operation in patch:
        try:
            work.apply(operation)
        except PatchError:
            continue
    changed = work.result()
    return changed if key_of(changed, form) == key_of(row, form) else row


def key_of(row: Row, form: Form) -> dict[str, Any] | None:
    """Return the primary key's fields by name, as in a message's key; None if the row lacks one of them."""
    key: dict[str, Any] = {}
    names = {form.field_name(place): place for place in range(len(row))}
    for part in form.key:
        if part in names:
            place = names[part]
            kind = form.fields[place].type if place < len(form.fields) else "any"
            key[part] = canonical(row[place], kind, is_as_written=part in form.as_written)
            continue
        # The part is inside a field: `data.user.id`. The field is the one with the longest matching name.
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
    """A row to which the operations of one request are applied. An operation that doesn't fit changes nothing."""

    def __init__(self, row: Row, form: Form, version: Version) -> None:
        self._row: Row = _copy(row)
        self._form = form
        self._version = version
        self._root = _Opened([None] * len(row))

    def apply(self, operation: Operation) -> None:
        """Apply an operation to the row. Raises PatchError if it doesn't fit."""
        field, path = operation["field"], operation.get("path")
        place = field if isinstance(field, int) else _place(field, self._form)
        steps = [place, *(_steps(path) if path is not None else ())]
        self._enter(self._root, self._row, steps, operation)

    def result(self) -> Row:
        """Return the row as the server stores it."""
        return [_stored(value) for value in self._row]

    def _enter(self, opened: _Opened, holder: Any, steps: list[Step], operation: Operation) -> None:
        """Apply an operation to an element of an opened container, or inside such an element."""
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
            # Inserting at -1 appends, so for an insertion the places count from one more.
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
                raise PatchError("only one key of a map can be deleted at a time")
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
        """Apply an arithmetic operation or a splice directly to an element, and return the element's new node."""
        if node is not None and (self._version < (3, 0) or not isinstance(node, _Done)):
            raise PatchError("the field was updated already")
        try:
            holder[place] = _computed(holder[place], operation, kind, self._version)
        except _OverflowError as error:
            if node is not None:
                holder[place] = error.whole  # the server refuses the sum, but keeps it as the value
            raise
        return _Done()

    def _into(self, children: Any, key: Step, value: Any, steps: list[Step], operation: Operation) -> None:
        """Apply an operation inside a value, whose node is `children[key]`."""
        node: _Node = children[key]
        match node:
            case None:
                children[key] = self._alone(value, steps, operation)
            case _Done():
                raise PatchError("an operation can't go inside a value that was computed or set")
            case _Opened():
                self._enter(node, value, steps, operation)
            case _Route() if _path_text(steps).startswith(_path_text(node.steps)):
                # The server compares the texts of paths here: `.ab` also begins with `.a`, and then can't be read further;
                # `["a"]` counts as a different path.
                if len(steps) <= len(node.steps) or steps[: len(node.steps)] != node.steps:
                    raise PatchError("the field was updated already")
                self._enter(node.opened, _descend(value, node.steps), steps[len(node.steps) :], operation)
            case _:
                depth, parent = self._parting(node, value, steps)
                opened = _Opened([None] * len(parent) if isinstance(parent, list) else {})
                old = node.steps[depth]
                if isinstance(old, int if isinstance(parent, list) else str) and _find(parent, old) is not None:
                    opened.children[old] = self._moved(node, node.steps[depth + 1 :])  # type: ignore[index]
                # The container stays opened, even if the operation doesn't fit inside it.
                children[key] = _Route(steps[:depth], opened) if depth else opened
                self._enter(opened, parent, steps[depth:], operation)

    def _alone(self, value: Any, steps: list[Step], operation: Operation) -> _Node:
        """Apply the first operation inside a value, and return the value's new node."""
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
                raise PatchError(f"the container at the end of {operation['field']!r}{operation['path']} can't have {last!r}")
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
            raise PatchError("only one key of a map can be deleted at a time")
        elif isinstance(step, str) or step == 0:
            del holder[key]
        # The server computes the beginning of an integer key as if the key were a string, which is right only for the key 1.

    def _parting(self, node: _Lone | _Route, value: Any, steps: list[Step]) -> tuple[int, Any]:
        """Return after how many steps the paths of two operations part, and the container in which they part.

        Raises PatchError if the server doesn't allow the second operation there.
        """
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
            raise PatchError("the value in which the paths part can't have such an element")
        return depth, parent

    def _moved(self, node: _Lone | _Route, steps: list[Step]) -> _Node:
        """Return a value's former node as it moves into the container that was opened inside the value."""
        if isinstance(node, _Route):
            return _Route(steps, node.opened) if steps else node.opened
        if steps:
            return _Lone(steps, node.effect)
        return _Done() if node.effect == "computed" else self._set() if node.effect == "set" else None


def _computed(value: Any, operation: Operation, kind: str, version: Version) -> Any:
    code, operand = operation["op"], operation["value"]
    if code == ":":
        if kind == "varbinary" and version < (3, 2):
            raise PatchError("a server before 3.2 can't splice a varbinary")
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
            error = _OverflowError(f"{value!r} and {operand!r} give {whole}, which isn't a 64-bit number")
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
            raise PatchError(f"the result for {value!r} and {operand!r} doesn't fit into a decimal") from error
        return format(exact, "f")
    floating = float(left) + sign * float(right)
    return _single(floating) if kind == "float32" and version >= (3, 3) else floating


def _int64(number: int) -> int:
    """Return the value that the server uses for an overflowed sum: its lowest 64 bits, as a signed number."""
    if _INT_MIN <= number <= _UINT_MAX:
        return number
    low = number & _UINT_MAX
    return low - (1 << 64) if low >> 63 else low


def _stored(value: Any) -> Any:
    """Return a value with overflowed sums replaced: of a sum that the server treats as positive, it stores only the last byte."""
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
    """Return the place or key to which a step leads, None if there is none. In a map a place means the integer key place + 1."""
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
    """Return the nearest 32-bit float."""
    try:
        nearest: float = struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return nearest


def _number(value: Any) -> int | float | Decimal:
    """Return the number that a JSON value stands for. Texts are decimals, or floats that JSON can't write as numbers."""
    if isinstance(value, str):
        try:
            return _NOT_FINITE[value] if value in _NOT_FINITE else Decimal(value)
        except InvalidOperation:
            raise PatchError(f"{value!r} isn't a number") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PatchError(f"{value!r} isn't a number")
    return value


def _decimal(number: float | Decimal) -> Decimal:
    """Return a number as a decimal. Of a float only the 15 reliable digits are used; the server doesn't use more either."""
    if isinstance(number, float):
        number = Decimal(f"{number:.15g}")
        if not number.is_finite():
            raise PatchError(f"{number} isn't a decimal")
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
    """Return a string as in docs/events.md: base64 if it isn't UTF-8, for example after a splice inside a character."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode()


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise PatchError(f"{text!r} isn't base64") from None


def _place(field: str, form: Form) -> int:
    for place, known in enumerate(form.fields):
        if known.name == field:
            return place
    number = field.removeprefix("field_")
    if number != field and number.isdecimal() and int(number) > 0:
        return int(number) - 1
    raise PatchError(f"the form has no field {field!r}")


def _steps(path: str) -> list[int | str]:
    """Return the steps of a path: places in arrays (from 0) and keys of maps."""
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
