"""The tree into which the server takes a tuple apart under the operations of one UPDATE or UPSERT, and its bytes afterwards.

Which bytes come out depends on how the operations met each other, so the tree has the server's shapes:

    untouched   a slice of the old tuple, or of an operation's argument
    scalar      a value that was computed
    array, map  a container of which an operation has taken a field by itself. An array keeps its order. A map's touched keys
                are written first, the latest first, then what is left between them; its header and those keys are shortest.
    lone        one operation somewhere inside the field: everything but its target (and the header of the container that it
                makes longer or shorter) keeps its bytes and places; a new key of a map comes first
    route       a path that several operations have in common, to the container where they part

A second operation that comes to a lone one or to a route opens the container in which their paths part; what stood there
moves in: a computed value as it is, anything else is carried out again. That is also why deleting a key or place that isn't
there is refused by itself (nothing is lone there) but does nothing in a container that is open already.

Differences of versions that show in logs: before 3.0 a field that was computed or set can't be computed again (an UPSERT goes
on without the second operation); before 2.8 nothing is filled up with nil and nothing absent is deleted. Before 2.11 some
meetings of paths ended in undefined behaviour; they are errors here that no UPSERT goes on after.

Sources: src/box/xrow_update_array.c, _map.c, _bar.c (lone), _route.c.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from enum import Enum
from typing import Final

from cdc import slices
from cdc.arithmetic import NO_SCALAR, IntegerOverflowError, Kind, OperationRefusedError, Scalar, add, bits, read, splice, store
from cdc.errors import SchemaError
from cdc.paths import Mark, PathError, Token, follow, is_key, next_token

Span = tuple[int, int]
"""Where a value begins and ends."""

FIELDS_MAX: Final = 1 << 22
"""A tuple that is filled up beyond it is of no use; the server's own limit is the size of a tuple."""


_TOKENS: Final[dict[str, type]] = {slices.ARRAY: int, slices.MAP: bytes}
"""What names a field in which container."""


class UndefinedError(SchemaError):
    """What a server of this version makes of it isn't defined: it may have crashed, or made a tuple of garbage."""


class Instruction:
    """One operation, and how far its path has been followed.

    `argument` is a slice (begin, end) for `=` and `!`, a number for `+` and `-`, an integer for bits, a count for `#`,
    (offset, cut, paste) for `:`. `token` is the step at which it is; `consumed` says that it leads where it already is.
    """

    __slots__ = ("argument", "code", "consumed", "inserts", "is_for_root", "offset", "path", "token")

    def __init__(self, code: str, token: Token, path: bytes, offset: int, *, is_for_root: bool) -> None:
        self.code = code
        self.token = token
        self.path = path
        self.offset = offset
        self.is_for_root = is_for_root
        self.consumed = False
        self.inserts = False
        self.argument: object = None

    @property
    def is_terminal(self) -> bool:
        """Whether the path ends here."""
        return self.offset == len(self.path)

    def advance(self) -> Token:
        """Take the next step of the path. Raises OperationRefusedError."""
        try:
            token, self.offset = next_token(self.path, self.offset)
        except PathError as error:
            raise OperationRefusedError(f"the JSON path can't be read: {error}") from error
        return token

    def step(self) -> Token:
        """The step that is to be taken in the container at hand. Raises OperationRefusedError."""
        if self.consumed:
            token = self.advance()
            if token is Mark.END:
                raise OperationRefusedError("no such field")
            self.consumed, self.token = False, token
        return self.token

    def span(self) -> Span:
        """The argument of `=` or `!`."""
        assert isinstance(self.argument, tuple)
        return self.argument

    def count(self) -> int:
        """The argument of `#`."""
        assert isinstance(self.argument, int)
        return self.argument


class _Shape(Enum):
    UNTOUCHED = 0
    SCALAR = 1
    ARRAY = 2
    MAP = 3
    LONE = 4
    ROUTE = 5


@dataclasses.dataclass(slots=True)
class _Field:
    """A node. Which attributes mean something depends on its shape; positions are absolute in the tree's bytes."""

    shape: _Shape
    begin: int
    end: int
    scalar: Scalar = NO_SCALAR
    elements: list[Span | _Field] = dataclasses.field(default_factory=list)
    items: list[_Item] = dataclasses.field(default_factory=list)
    count: int = 0
    instruction: Instruction | None = None
    path: bytes = b""
    parent: int = 0
    point: Span = (0, 0)
    key: bytes = b""
    hop: _Field | None = None


@dataclasses.dataclass(slots=True)
class _Item:
    """A touched key of a map, None if it is gone, its value, and where the untouched pairs behind it begin and end."""

    key: bytes | None
    value: _Field
    begin: int
    end: int


class Tree:
    """A tuple under operations.

    `data` begins with the tuple and holds what the slices of the operations point to, and a nil at `nil`.
    """

    def __init__(self, data: bytes, nil: int, *, version: tuple[int, int]) -> None:
        self._data = data
        self._nil = (nil, nil + 1)
        self._version = version
        self._root = self._open(_Field(_Shape.UNTOUCHED, 0, 0), 0, None, None)

    def apply(self, instruction: Instruction) -> None:
        """Carry out an operation.

        Raises OperationRefusedError: the tree is what it is after an UPSERT has gone on without the operation.
        Raises SchemaError: it is of no use any more.
        """
        self._in_array(instruction, self._root)

    def store(self, types: Sequence[str]) -> bytes:
        """The new tuple. `types` are those of the top fields by the format."""
        chunks = [slices.array_header(len(self._root.elements))]
        for number, element in enumerate(self._root.elements):
            self._store_element(element, types[number] if number < len(types) else "", chunks)
        return b"".join(chunks)

    # Operations.

    def _into(self, instruction: Instruction, field: _Field) -> None:
        match field.shape:
            case _Shape.UNTOUCHED:
                self._alone(instruction, field)
            case _Shape.ARRAY:
                self._in_array(instruction, field)
            case _Shape.MAP:
                self._in_map(instruction, field)
            case _Shape.LONE:
                self._into(instruction, self._branch(field, instruction))
            case _Shape.ROUTE:
                assert field.hop is not None
                if instruction.path.startswith(field.path, instruction.offset):
                    # As the server does, bytes are compared here, so that `.a` is taken for the beginning of `.ab`.
                    instruction.offset += len(field.path)
                    self._into(instruction, field.hop)
                else:
                    self._into(instruction, self._branch(field, instruction))
            case _Shape.SCALAR:
                if self._version < (2, 11):
                    raise UndefinedError("an operation inside of a field that another has set")
                raise OperationRefusedError("no such field")

    def _compute(self, instruction: Instruction, field: _Field) -> None:
        """An operation on a value that is taken by itself."""
        scalar = NO_SCALAR
        if field.shape is _Shape.UNTOUCHED:
            scalar = self._computed(instruction, field.begin)
        else:
            if self._version < (3, 0):
                raise OperationRefusedError("the field was updated already")
            if field.shape is _Shape.SCALAR:
                scalar = field.scalar
            try:
                scalar = self._calculate(instruction, scalar)
            except IntegerOverflowError as error:
                raise UndefinedError(f"{error}, on which the server leaves remains in the field") from error
        field.scalar = scalar
        field.shape = _Shape.SCALAR

    def _computed(self, instruction: Instruction, position: int) -> Scalar:
        data = self._data
        if instruction.code in "&|^" and self._version < (3, 0) and slices.TYPES[data[position]] is not slices.UNSIGNED:
            raise OperationRefusedError("the field isn't an unsigned integer")
        return self._calculate(instruction, read(data, position))

    def _calculate(self, instruction: Instruction, scalar: Scalar) -> Scalar:
        code, argument = instruction.code, instruction.argument
        if code in "+-":
            assert isinstance(argument, tuple)
            return add(scalar, argument, minus=code == "-", version=self._version)
        if code == ":":
            assert isinstance(argument, tuple)
            return splice(scalar, *argument, version=self._version)
        return bits(code, scalar, instruction.count())

    def _in_array(self, instruction: Instruction, field: _Field) -> None:
        place = instruction.step()
        if not isinstance(place, int):
            raise OperationRefusedError("an array has no keys")
        elements, code, count = field.elements, instruction.code, len(field.elements)
        if not instruction.is_terminal:
            child = self._element(field, _adjusted(place, count))
            instruction.consumed = True
            self._into(instruction, child)
        elif code == "!" or (code == "=" and (place == count or (place > count and self._version >= (2, 8)))):
            if place > count and instruction.is_for_root and self._version >= (2, 8):
                if place > FIELDS_MAX:
                    raise SchemaError(f"a tuple that is to be filled up with nil to {place} fields is too long")
                elements.extend([self._nil] * (place - count))
            elements.insert(_adjusted(place, len(elements) + 1), instruction.span())
        elif code == "=":
            place = _adjusted(place, count)
            elements[place] = instruction.span() if self._version >= (3, 0) else self._raw(instruction)
        elif code == "#":
            if place < count or self._version < (2, 8):
                place = _adjusted(place, count)
                del elements[place : place + instruction.count()]
        else:
            self._compute(instruction, self._element(field, _adjusted(place, count)))

    def _element(self, field: _Field, place: int) -> _Field:
        element = field.elements[place]
        if isinstance(element, tuple):
            element = field.elements[place] = _Field(_Shape.UNTOUCHED, *element)
        return element

    def _raw(self, instruction: Instruction) -> _Field:
        """A value that was set, as servers before 3.0 keep it: nothing can be done in it any more."""
        begin, end = instruction.span()
        field = _Field(_Shape.SCALAR, begin, end)
        field.scalar = Kind.RAW, self._data[begin:end]
        return field

    def _in_map(self, instruction: Instruction, field: _Field) -> None:
        key = instruction.step()
        if not isinstance(key, bytes):
            raise OperationRefusedError("a map has no places")
        item, code = self._item(field, key), instruction.code
        if item is None and (code not in "=!#" or not instruction.is_terminal):
            raise OperationRefusedError("no such field")
        if not instruction.is_terminal:
            assert item is not None
            instruction.consumed = True
            self._into(instruction, item.value)
        elif code in "=!":
            if item is None:
                field.count += 1
                field.items.insert(0, _Item(key, _Field(_Shape.UNTOUCHED, *instruction.span()), 0, 0))
            elif code == "!":
                raise OperationRefusedError("the key exists already")
            elif self._version >= (3, 0):
                item.value = _Field(_Shape.UNTOUCHED, *instruction.span())
            else:
                item.value = self._raw(instruction)
        elif code == "#":
            if instruction.count() != 1:
                raise OperationRefusedError("only one key of a map can be deleted at once")
            if item is not None:
                item.key = None
                item.value = _Field(_Shape.UNTOUCHED, 0, 0)
                field.count -= 1
        else:
            assert item is not None
            self._compute(instruction, item.value)

    def _item(self, field: _Field, key: bytes) -> _Item | None:
        """A key that is taken by itself from now on, None if the map hasn't got it."""
        data = self._data
        for item in field.items:
            if item.key == key:
                return item
        for item in field.items:
            position = item.begin
            while position < item.end:
                begin = slices.end_of(data, position)
                end = slices.end_of(data, begin)
                if is_key(data, position, key):
                    value = _Field(_Shape.UNTOUCHED, begin, end)
                    if position == item.begin and item.key is None:
                        item.key, item.value, item.begin = key, value, end
                        return item
                    new = _Item(key, value, end, item.end)
                    item.end = position
                    field.items.insert(0, new)
                    return new
                position = end
        return None

    # One operation inside of a field that is otherwise untouched.

    def _alone(self, instruction: Instruction, field: _Field) -> None:
        data, code = self._data, instruction.code
        path = instruction.path[instruction.offset :]
        position = parent = field.begin
        pair, is_new = -1, False
        token: Token = Mark.END
        while not instruction.is_terminal:
            token = instruction.advance()
            if token is Mark.ANY:
                raise OperationRefusedError("[*] names no field")
            parent = position
            found = follow(data, position, token)
            if found is None:
                if code not in "=!" or instruction.advance() is not Mark.END:
                    raise OperationRefusedError("no such field")
                is_new = True
                break
            pair, position = found
        if is_new:
            self._alone_new(field, token, parent)
            point = field.point
        else:
            point = (position, slices.end_of(data, position))
            if code == "!" and slices.TYPES[data[parent]] is slices.MAP:
                raise OperationRefusedError("the key exists already")
            if code == "#":
                point = self._deleted(instruction, parent, token, point, pair)
            elif code not in "=!":
                field.scalar = self._computed(instruction, position)
        # From here on nothing fails: an operation that does leaves the field untouched.
        instruction.inserts = code == "!" or is_new
        field.shape = _Shape.LONE
        field.instruction, field.path, field.parent, field.point = instruction, path, parent, point

    def _alone_new(self, field: _Field, token: Token, parent: int) -> None:
        data = self._data
        kind = slices.TYPES[data[parent]]
        if isinstance(token, int):
            if kind is not slices.ARRAY:
                raise OperationRefusedError("only an array has places")
            if token > slices.header(data, parent)[0]:
                raise OperationRefusedError("no such field")
            end = slices.end_of(data, parent)
            field.point = (end, end)
        else:
            assert isinstance(token, bytes)
            if kind is not slices.MAP:
                raise OperationRefusedError("only a map has keys")
            field.key = token

    def _deleted(self, instruction: Instruction, parent: int, token: Token, point: Span, pair: int) -> Span:
        data = self._data
        if slices.TYPES[data[parent]] is slices.ARRAY:
            assert isinstance(token, int)
            if token + instruction.count() >= 1 << 32:
                raise UndefinedError("a count that the server reckons past 32 bits")
            count = min(instruction.count(), slices.header(data, parent)[0] - token)
            instruction.argument = count
            end = point[1]
            for _ in range(count - 1):
                end = slices.end_of(data, end)
            return point[0], end
        if instruction.count() != 1:
            raise OperationRefusedError("only one key of a map can be deleted at once")
        if isinstance(token, int):
            raise UndefinedError("deleting an integer key of a map")
        return pair, point[1]

    # Operations that meet.

    def _branch(self, field: _Field, instruction: Instruction) -> _Field:
        """Open the container in which the paths of a field's operations and of a new one part."""
        data, is_old = self._data, self._version < (2, 11)
        parent, after = field.begin, 0
        while True:
            before = after
            old, after = next_token(field.path, before)
            new = instruction.advance()
            if is_old and old is new is Mark.END:
                raise OperationRefusedError("the field was updated already")
            if old != new or (not is_old and (after == len(field.path) or instruction.is_terminal)):
                break
            assert not isinstance(new, Mark)
            found = follow(data, parent, new)
            if found is None:
                if is_old:
                    raise UndefinedError("an operation inside of a value that another has inserted")
                break
            parent = found[1]
        expected = _TOKENS.get(slices.TYPES[data[parent]])
        if expected is None or not isinstance(new, expected):
            raise OperationRefusedError("no such field")
        if not isinstance(old, expected):
            raise UndefinedError("an operation inside of a value that another has set")
        instruction.consumed, instruction.token = False, new
        child = copy.copy(field)
        child.path = child.path[after:]
        if not child.path and child.shape is _Shape.ROUTE:
            assert child.hop is not None
            child = copy.copy(child.hop)
        elif not child.path:
            assert child.instruction is not None
            if child.instruction.code not in "=!#":
                child.shape = _Shape.SCALAR
        if not before:
            # They part at once: the field itself is opened.
            return self._open(field, parent, child, old)
        field.shape = _Shape.ROUTE
        field.path = field.path[:before]
        field.hop = self._open(_Field(_Shape.UNTOUCHED, 0, 0), parent, child, old)
        return field.hop

    def _open(self, field: _Field, position: int, child: _Field | None, token: Token | None) -> _Field:
        """Make `field` the container at `position`, with what was done to one of its fields before."""
        data = self._data
        again = child.instruction if child and child.shape is _Shape.LONE and not child.path else None
        field.begin = field.end = position
        if slices.TYPES[data[position]] is slices.ARRAY:
            field.shape = _Shape.ARRAY
            field.elements = list(slices.elements(data, position))
            field.end = field.elements[-1][1] if field.elements else slices.header(data, position)[1]  # type: ignore[index]
            if child and not again:
                assert isinstance(token, int)
                child.begin, child.end = field.elements[token]  # type: ignore[misc]
                field.elements[token] = child
        else:
            field.shape = _Shape.MAP
            field.count, begin = slices.header(data, position)
            field.end = slices.end_of(data, position)
            field.items = [_Item(None, _Field(_Shape.UNTOUCHED, 0, 0), begin, field.end)]
            if child and not again:
                assert isinstance(token, bytes)
                item = self._item(field, token)
                assert item is not None
                child.begin, child.end = item.value.begin, item.value.end
                item.value = child
        if again:
            assert token is not None
            again.consumed, again.token = False, token
            self._into(again, field)
        return field

    # Bytes.

    def _store_element(self, element: Span | _Field, field_type: str, chunks: list[bytes]) -> None:
        if isinstance(element, tuple):
            chunks.append(self._data[element[0] : element[1]])
        else:
            self._store(element, field_type, chunks)

    def _store(self, field: _Field, field_type: str, chunks: list[bytes]) -> None:
        data = self._data
        match field.shape:
            case _Shape.UNTOUCHED:
                chunks.append(data[field.begin : field.end])
            case _Shape.SCALAR:
                chunks.append(store(field.scalar, field_type))
            case _Shape.ARRAY:
                chunks.append(slices.array_header(len(field.elements)))
                for element in field.elements:
                    self._store_element(element, "", chunks)
            case _Shape.MAP:
                chunks.append(slices.map_header(field.count))
                for item in field.items:
                    if item.key is not None:
                        chunks.append(slices.string(item.key))
                        self._store(item.value, "", chunks)
                chunks.extend(data[item.begin : item.end] for item in field.items)
            case _Shape.ROUTE:
                assert field.hop is not None
                chunks.append(data[field.begin : field.hop.begin])
                self._store(field.hop, "", chunks)
                chunks.append(data[field.hop.end : field.end])
            case _Shape.LONE:
                self._store_alone(field, chunks)

    def _store_alone(self, field: _Field, chunks: list[bytes]) -> None:
        data, instruction = self._data, field.instruction
        assert instruction is not None
        begin, end = field.point
        if instruction.code in "=!":
            value = data[slice(*instruction.span())]
        else:
            value = b"" if instruction.code == "#" else store(field.scalar)
        if not instruction.inserts and instruction.code != "#":
            chunks += (data[field.begin : begin], value, data[end : field.end])
            return
        count, first = slices.header(data, field.parent)
        is_array = slices.TYPES[data[field.parent]] is slices.ARRAY
        if instruction.code == "#":
            count -= instruction.count()
        else:
            count += 1
            if is_array:
                end = begin
            else:
                begin = end = first
                value = slices.string(field.key) + value
        chunks.append(data[field.begin : field.parent])
        chunks.append(slices.array_header(count) if is_array else slices.map_header(count))
        chunks += (data[first:begin], value, data[end : field.end])


def _adjusted(place: int, count: int) -> int:
    if place < 0:
        place += count
        if place < 0:
            raise OperationRefusedError("the tuple or array has fewer fields")
    elif place >= count:
        raise OperationRefusedError("the tuple or array has fewer fields")
    return place
