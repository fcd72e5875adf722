"""UPDATE and UPSERT: compute the tuple that a server stores after the operations of a row, byte for byte.

Fields that no operation touches keep their exact bytes, and values set by `=` and `!` keep the operation's encoding. All other
values are encoded as the server does: `cdc.tuples.arithmetic` handles numbers and strings, `cdc.tuples.update_tree` handles
operations of one request that interact. This module reads the operations, by these rules:

* Operations are applied one after the other. Each refers to the fields as the previous operations left them.
* A field number counts from INDEX_BASE, or is negative from the end: -1 is the last field, and for `!` the place after it. A text
  is a field's name. If no field has that name, the text is a JSON path that begins with a name or with `[place]`. Places in a
  path always count from 1.
* If `=` or `!` targets a place beyond the end of the tuple (not of an array in it), the gap is filled with nil, since 2.8. `#`
  deletes at most the existing fields.
* If an operation can't be read (an unknown code, a name that isn't in the format, an operand of the wrong type, a splice before
  the first byte), the server refuses the entire request, including an UPSERT. If an operation of an UPSERT doesn't fit the tuple,
  the server skips only that operation and logs it. Such cases are: no such field, a number expected but not found, an overflow,
  a key that exists already, a path that can't be read after its first step.

Rows of a log were accepted by a server, so an operation that can't be applied raises SchemaError: either the tuple differs from
the server's, or this module doesn't support that kind of server. `version` is the master's. It determines the digits of
decimals, and the behaviour of operations on a common path (see `cdc.tuples.update_tree`).

Out of scope: keys, and formats beyond the names and types of the top-level fields. If an index with a JSON path declares the
type `double` for a number inside a field, this module ignores that declaration.

Sources: src/box/xrow_update.c, xrow_update_field.c, compared from 2.6 to 3.9, and held by the answers of live servers
(tests/captures/updates.jsonl.gz, tests/live/test_update.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgpack

from cdc.errors import SchemaError, excerpt
from cdc.protocol import layout
from cdc.protocol.extensions import unpack
from cdc.tuples.arithmetic import NUMBERS, OperationRefusedError, read
from cdc.tuples.json_path import Mark, PathError, next_token
from cdc.tuples.update_nodes import Instruction, UndefinedError, Version
from cdc.tuples.update_tree import Tree

NEWEST: Final[Version] = (3, 9)
"""Server version whose rules apply by default."""

_OPERATIONS_MAX: Final = 4000
_COUNTS: Final = {**dict.fromkeys("=+-&|^!#", 3), ":": 5}


def update(
    tuple_: bytes,
    operations: bytes,
    *,
    base: int,
    names: Sequence[str],
    types: Sequence[str] = (),
    version: Version = NEWEST,
) -> bytes:
    """Return the tuple after an UPDATE.

    `base` is the request's INDEX_BASE. `names` and `types` are those of the format's fields; `types` may be shorter.
    Raises SchemaError, whose detail contains the operation, for operations that the server would have refused.
    """
    return _result(tuple_, operations, base, names, types, version, upserts=False)


def upsert(
    tuple_: bytes,
    operations: bytes,
    *,
    base: int,
    names: Sequence[str],
    types: Sequence[str] = (),
    version: Version = NEWEST,
) -> bytes:
    """Return the tuple after an UPSERT that found an existing tuple. The parameters are those of `update`.

    The caller, who knows the keys and the format, must check two cases, in which the old tuple remains:

    * The server ignores an UPSERT whose result has another primary key, so compare the keys of both tuples.
    * Vinyl accepts an UPSERT without reading the tuple, and ignores it if the result doesn't fit the format. Memtx refuses such
      a request, so it isn't in the log.

    Raises SchemaError for operations that can't be read, or whose outcome is undefined on a server of that version.
    """
    return _result(tuple_, operations, base, names, types, version, upserts=True)


def _result(
    tuple_: bytes,
    operations: bytes,
    base: int,
    names: Sequence[str],
    types: Sequence[str],
    version: Version,
    *,
    upserts: bool,
) -> bytes:
    # The tree's slices point into the tuple, the operations and one nil, so all of them are put into one buffer.
    shift = len(tuple_)
    data = b"".join((tuple_, operations, bytes((layout.NIL,))))
    with _Explained("the tuple", data, (0, shift)):
        if layout.TYPES[tuple_[0]] is not layout.ARRAY or layout.end_of(tuple_, 0) != shift:
            raise SchemaError("it should be one array")
        tree = Tree(data, shift, len(data) - 1, version=version)
    with _Explained("the list of operations", data, (shift, len(data) - 1)):
        if layout.TYPES[operations[0]] is not layout.ARRAY or layout.end_of(operations, 0) != len(operations):
            raise SchemaError("it should be one array")
        spans = list(layout.elements(data, shift))
        if len(spans) > _OPERATIONS_MAX:
            raise SchemaError(f"a server accepts at most {_OPERATIONS_MAX} operations")
    # Read all operations before applying any: one unreadable operation makes the server refuse all.
    instructions = []
    for span in spans:
        with _Explained("the operation", data, span):
            instructions.append(_decoded(data, span, base, names, version))
    for span, instruction in zip(spans, instructions, strict=True):
        try:
            with _Explained("the operation", data, span):
                tree.apply(instruction)
        except OperationRefusedError:
            if not upserts:
                raise
    with _Explained("the result of the operations", data, (shift, len(data) - 1)):
        return tree.store(types)


_EXPLAINED: Final = (SchemaError, IndexError, RecursionError)


class _Explained:
    """Context that adds to an error's message what caused it, and converts errors of malformed bytes to SchemaError.

    It is no generator with `contextmanager`, which would take a tenth of an UPDATE's time.
    """

    __slots__ = ("_data", "_span", "_what")

    def __init__(self, what: str, data: bytes, span: tuple[int, int]) -> None:
        self._what = what
        self._data = data
        self._span = span

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            return
        what = self._what
        shown = _shown(self._data, self._span) if isinstance(error, _EXPLAINED) else ""
        match error:
            case SchemaError():
                explained = type(error)(f"{what} can't be carried out: {error.message}", error.hint, detail=error.detail)
                raise explained.quoting(shown) from error
            case IndexError():
                raise SchemaError(f"{what} can't be read: {error}", detail=shown) from error
            case RecursionError():
                raise SchemaError(f"{what} is nested too deeply to be processed", detail=shown) from error


def _shown(data: bytes, span: tuple[int, int]) -> str:
    raw = data[slice(*span)]
    try:
        return f"{excerpt(unpack(raw), 200)}"
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return raw.hex()[:200]


def _decoded(data: bytes, span: tuple[int, int], base: int, names: Sequence[str], version: Version) -> Instruction:
    """Decode one operation. Raises SchemaError or IndexError."""
    if layout.TYPES[data[span[0]]] is not layout.ARRAY:
        raise SchemaError("it should be an array")
    parts = [begin for begin, _ in layout.elements(data, span[0])]
    code = _text(data, parts[0]).decode("latin-1") if parts else ""
    if len(parts) != _COUNTS.get(code):
        raise SchemaError("such an operation is unknown")
    instruction = _addressed(data, code, parts[1], base, names)
    begin = parts[2]
    kind = layout.TYPES[data[begin]]
    match code:
        case "=" | "!":
            instruction.argument = begin, layout.end_of(data, begin)
        case "+" | "-":
            instruction.argument = operand = read(data, begin)
            if operand[0] not in NUMBERS:
                raise SchemaError("its operand should be a number")
        case "#":
            # The server uses only the lowest 32 bits of the count.
            count = layout.integer(data, begin) & 0xFFFF_FFFF if kind is layout.UNSIGNED else 0
            if not count:
                raise SchemaError("its count should be positive")
            instruction.argument = count
        case ":":
            offset, cut = _int32(data, begin), _int32(data, parts[3])
            if -(2**31) in (offset, cut):
                raise UndefinedError("a number that the server can't negate")
            if offset >= 0:
                offset -= base
                if offset < 0:
                    raise SchemaError("its position is before the first byte")
            instruction.argument = offset, cut, _text(data, parts[4], binary=version >= (3, 2))
        case _:
            if kind is not layout.UNSIGNED:
                raise SchemaError("its operand should be a positive integer")
            instruction.argument = layout.integer(data, begin)
    return instruction


def _addressed(data: bytes, code: str, begin: int, base: int, names: Sequence[str]) -> Instruction:
    if layout.TYPES[data[begin]] is not layout.STRING:
        number = _int32(data, begin)
        if 0 <= number < base:
            raise SchemaError(f"the first field has the number {base}")
        return Instruction(code, number if number < 0 else number - base, b"", 0, is_for_root=True)
    path = _text(data, begin)
    # A field name that contains dots takes precedence over the equal path.
    place = _named(path, names)
    if place is not None:
        return Instruction(code, place, path, len(path), is_for_root=True)
    try:
        token, offset = next_token(path, 0)
    except PathError as error:
        raise SchemaError(f"its path can't be read: {error}") from error
    if isinstance(token, bytes):
        place = _named(token, names)
        if place is None:
            raise SchemaError(f"the format at its position has no such field: {list(names)!r:.500}")
        token = place
    elif isinstance(token, Mark):
        raise SchemaError("its path names no field")
    return Instruction(code, token, path, offset, is_for_root=offset == len(path))


def _named(name: bytes, names: Sequence[str]) -> int | None:
    text = name.decode(errors="surrogateescape")
    return names.index(text) if text in names else None


def _int32(data: bytes, begin: int) -> int:
    number = layout.integer(data, begin)
    if not -(2**31) <= number < 2**31:
        raise SchemaError("a number is outside the 32-bit range that a server accepts here", detail=str(number))
    return number


def _text(data: bytes, begin: int, *, binary: bool = False) -> bytes:
    kind = layout.TYPES[data[begin]]
    if kind is not layout.STRING and not (binary and kind is layout.BINARY):
        raise SchemaError("one of its parts should be a string")
    start, length = layout.content(data, begin)
    return data[start : start + length]
