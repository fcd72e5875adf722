"""The tree into which the server splits a tuple to apply one UPDATE or UPSERT, and the encoding of the resulting tuple.

The resulting bytes depend on how the operations interact, so the tree has the same node shapes as the server's:

    untouched   a slice of the old tuple, or of an operation's argument
    scalar      a computed value
    array, map  an opened container, whose elements are separate nodes. An array keeps its order. A map's touched keys are
                encoded first, the latest first, then the remaining pairs; its header and the touched keys are the shortest.
    lone        a single operation somewhere inside the field: all bytes keep their value and order, except the target and the
                header of the container that grows or shrinks; a new key of a map is put first
    route       the common path of several operations, up to the container where their paths diverge

When a second operation reaches a lone node or a route, it opens the container in which the paths diverge. The former node moves
into that container: a computed value is kept, any other operation is applied again. Therefore the server refuses a `#` on an
absent key or place if it is the only operation in the field, but ignores it in a container that is already open.

Version differences that are visible in logs:

    before 2.8      gaps aren't filled with nil, and deleting an absent place of the tuple or of an array is refused
    before 2.10.3   a step into a value that an earlier operation inserted isn't found: the search ends after the container, and
                    continues with the bytes there
    before 2.10.5   a path that extends an earlier operation's path is searched for in the old value, and a field that was
                    computed or set is treated as a map
    before 3.0      a field that an operation has touched can't be computed again: the second operation is refused
    from 3.0 on     such a field is computed again; an overflowing sum is refused, but nevertheless stays in the field

Where such a server's behaviour depends on the compiler (it reads past the tuple, or crashes), this module raises UndefinedError,
which ends an UPSERT too.

Sources: src/box/xrow_update_array.c, _map.c, _bar.c (lone), _route.c.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Final

from cdc.errors import SchemaError
from cdc.protocol import layout
from cdc.tuples.arithmetic import (
    NO_SCALAR,
    IntegerOverflowError,
    Kind,
    OperationRefusedError,
    Scalar,
    add,
    bits,
    read,
    splice,
    store,
)
from cdc.tuples.json_path import Mark, Token, follow, is_key, next_token
from cdc.tuples.update_nodes import Field, Instruction, Item, Shape, Span, UndefinedError, Version

FIELDS_MAX: Final = 1 << 22
"""Maximum number of fields to which a tuple is filled with nil; the server limits only the tuple's size."""


_TOKENS: Final[dict[str, type]] = {layout.ARRAY: int, layout.MAP: bytes}
"""Type of the token that addresses an element, by the container's type."""


class Tree:
    """A tuple to which operations are applied.

    `data` begins with the tuple (`size` bytes). It also contains the bytes that the operations' slices refer to, and a nil at
    offset `nil`.
    """

    def __init__(self, data: bytes, size: int, nil: int, *, version: Version) -> None:
        self._data = data
        self._size = size
        self._nil = (nil, nil + 1)
        self._version = version
        self._root = self._open(Field(Shape.UNTOUCHED, 0, 0), 0, None, None)

    def apply(self, instruction: Instruction) -> None:
        """Apply an operation.

        After OperationRefusedError the tree is in the state in which an UPSERT continues without the operation. After any other
        SchemaError the tree is unusable.
        """
        self._in_array(instruction, self._root)

    def store(self, types: Sequence[str]) -> bytes:
        """Encode and return the new tuple. `types` are the format's types of the top-level fields."""
        chunks = [layout.array_header(len(self._root.elements))]
        for number, element in enumerate(self._root.elements):
            self._store_element(element, types[number] if number < len(types) else "", chunks)
        return b"".join(chunks)

    # Operations.

    def _into(self, instruction: Instruction, field: Field) -> None:
        match field.shape:
            case Shape.UNTOUCHED:
                self._alone(instruction, field)
            case Shape.ARRAY:
                self._in_array(instruction, field)
            case Shape.MAP:
                self._in_map(instruction, field)
            case Shape.LONE:
                self._into(instruction, self._branch(field, instruction))
            case Shape.ROUTE:
                assert field.hop is not None
                if instruction.path.startswith(field.path, instruction.offset):
                    # The comparison is by bytes, as in the server, so `.a` counts as the beginning of `.ab`.
                    instruction.offset += len(field.path)
                    self._into(instruction, field.hop)
                else:
                    self._into(instruction, self._branch(field, instruction))
            case Shape.SCALAR:
                if self._version < (2, 10, 5) and isinstance(instruction.step(), bytes):
                    raise UndefinedError("an operation inside of a field that another has set")
                raise OperationRefusedError("no such field")

    def _compute(self, instruction: Instruction, field: Field) -> None:
        """Apply a computing operation to a value that is a separate node."""
        scalar = NO_SCALAR
        if field.shape is Shape.UNTOUCHED:
            scalar = self._computed(instruction, field.begin)
        else:
            if self._version < (3, 0):
                raise OperationRefusedError("the field was updated already")
            if field.shape is Shape.SCALAR:
                scalar = field.scalar
            try:
                scalar = self._calculate(instruction, scalar)
            except IntegerOverflowError as error:
                field.scalar = Kind.INTEGER, error.sum
                raise
        field.scalar = scalar
        field.shape = Shape.SCALAR

    def _computed(self, instruction: Instruction, position: int) -> Scalar:
        data = self._data
        if instruction.code in "&|^" and self._version < (3, 0) and layout.TYPES[data[position]] is not layout.UNSIGNED:
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

    def _in_array(self, instruction: Instruction, field: Field) -> None:
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

    def _element(self, field: Field, place: int) -> Field:
        element = field.elements[place]
        if isinstance(element, tuple):
            element = field.elements[place] = Field(Shape.UNTOUCHED, *element)
        return element

    def _raw(self, instruction: Instruction) -> Field:
        """Return a node for a set value, as in servers before 3.0: later operations can't change its inside."""
        begin, end = instruction.span()
        field = Field(Shape.SCALAR, begin, end)
        field.scalar = Kind.RAW, self._data[begin:end]
        return field

    def _in_map(self, instruction: Instruction, field: Field) -> None:
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
                field.items.insert(0, Item(key, Field(Shape.UNTOUCHED, *instruction.span()), 0, 0))
            elif code == "!":
                raise OperationRefusedError("the key exists already")
            elif self._version >= (3, 0):
                item.value = Field(Shape.UNTOUCHED, *instruction.span())
            else:
                item.value = self._raw(instruction)
        elif code == "#":
            if instruction.count() != 1:
                raise OperationRefusedError("only one key of a map can be deleted at once")
            if item is not None:
                item.key = None
                item.value = Field(Shape.UNTOUCHED, 0, 0)
                field.count -= 1
        else:
            assert item is not None
            self._compute(instruction, item.value)

    def _item(self, field: Field, key: bytes) -> Item | None:
        """Return a map's key as a separate node, created if necessary; None if the map lacks the key."""
        data = self._data
        for item in field.items:
            if item.key == key:
                return item
        for item in field.items:
            position = item.begin
            while position < item.end:
                begin = layout.end_of(data, position)
                end = layout.end_of(data, begin)
                if is_key(data, position, key):
                    value = Field(Shape.UNTOUCHED, begin, end)
                    if position == item.begin and item.key is None:
                        item.key, item.value, item.begin = key, value, end
                        return item
                    new = Item(key, value, end, item.end)
                    item.end = position
                    field.items.insert(0, new)
                    return new
                position = end
        return None

    # A single operation inside an otherwise untouched field.

    def _alone(self, instruction: Instruction, field: Field) -> None:
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
            point = (position, layout.end_of(data, position))
            if code == "!" and layout.TYPES[data[parent]] is layout.MAP:
                raise OperationRefusedError("the key exists already")
            if code == "#":
                point = self._deleted(instruction, field, parent, token, point, pair)
            elif code not in "=!":
                field.scalar = self._computed(instruction, position)
        # Nothing below fails: a refused operation must leave the field untouched.
        instruction.inserts = code == "!" or is_new
        field.shape = Shape.LONE
        field.instruction, field.path, field.parent, field.point = instruction, path, parent, point

    def _alone_new(self, field: Field, token: Token, parent: int) -> None:
        data = self._data
        kind = layout.TYPES[data[parent]]
        if isinstance(token, int):
            if kind is not layout.ARRAY:
                raise OperationRefusedError("only an array has places")
            if token > layout.header(data, parent)[0]:
                raise OperationRefusedError("no such field")
            end = layout.end_of(data, parent)
            field.point = (end, end)
        else:
            assert isinstance(token, bytes)
            if kind is not layout.MAP:
                raise OperationRefusedError("only a map has keys")
            field.key = token

    def _deleted(self, instruction: Instruction, field: Field, parent: int, token: Token, point: Span, pair: int) -> Span:
        data = self._data
        if layout.TYPES[data[parent]] is layout.ARRAY:
            assert isinstance(token, int)
            if token + instruction.count() >= 1 << 32:
                raise UndefinedError("a count that overflows 32 bits in the server")
            count = min(instruction.count(), layout.header(data, parent)[0] - token)
            instruction.argument = count
            end = point[1]
            for _ in range(count - 1):
                end = layout.end_of(data, end)
            return point[0], end
        if instruction.count() != 1:
            raise OperationRefusedError("only one key of a map can be deleted at once")
        # For an integer key the server removes as many bytes as a string of length `token` has: right only for key 1 in one byte.
        field.is_broken = isinstance(token, int) and (token != 0 or point[0] - pair != 1)
        return pair, point[1]

    # Operations that interact.

    def _branch(self, field: Field, instruction: Instruction) -> Field:
        """Open and return the container in which the paths of the field's operations and of a new one diverge."""
        data, version = self._data, self._version
        parent, after = field.begin, 0
        last: Token = Mark.END
        text_length = 0
        while True:
            before = after
            old, after = next_token(field.path, before)
            new = instruction.advance()
            if old is Mark.END and (new is Mark.END or version >= (2, 10, 5)):
                raise OperationRefusedError("the field was updated already")
            if old != new or (version >= (3, 0) and (after == len(field.path) or instruction.is_terminal)):
                break
            assert not isinstance(new, Mark)
            last = old
            if isinstance(old, bytes):
                text_length = len(old)
            found = follow(data, parent, new)
            if found is not None:
                parent = found[1]
            elif version >= (2, 10, 3):
                break
            else:
                # The value that an earlier operation inserted isn't found: the server continues where the search ended.
                is_array = layout.TYPES[data[parent]] is layout.ARRAY
                parent = layout.header(data, parent)[1] if is_array else layout.end_of(data, parent)
        if parent in (self._size, self._nil[0]):
            raise UndefinedError("an operation inside of a value that another has inserted at the tuple's end")
        expected = _TOKENS.get(layout.TYPES[data[parent]])
        if expected is None or not isinstance(new, expected):
            raise OperationRefusedError("no such field")
        child = self._child(field, after)
        step = (
            old
            if isinstance(old, expected)
            else self._step_after_kind_change(child, parent, last if old is Mark.END else old, text_length)
        )
        instruction.consumed, instruction.token = False, new
        if not before:
            # The paths diverge at their first step: open the field itself.
            return self._open(field, parent, child, step)
        hop = self._open(Field(Shape.UNTOUCHED, 0, 0), parent, child, step)
        if parent >= field.end:
            raise UndefinedError("an operation inside of a value that another has inserted at the field's end")
        field.shape = Shape.ROUTE
        field.path = field.path[:before]
        field.hop = hop
        return hop

    def _child(self, field: Field, after: int) -> Field:
        """Return a copy of a field for the container that follows `after` bytes of the field's path."""
        child = copy.copy(field)
        child.path = child.path[after:]
        if child.path:
            return child
        if child.shape is Shape.ROUTE:
            assert child.hop is not None
            return copy.copy(child.hop)
        assert child.instruction is not None
        if self._version >= (3, 0) and child.instruction.code not in "=!#":
            child.shape = Shape.SCALAR
        return child

    def _repeated(self, child: Field | None) -> Instruction | None:
        """Return the operation to apply again after its container is opened; None if its result is moved in instead."""
        if child is None or child.shape is not Shape.LONE or child.path:
            return None
        assert child.instruction is not None
        is_copied = child.instruction.code not in "!#" and not child.instruction.inserts
        return None if is_copied and self._version < (3, 0) else child.instruction

    def _step_after_kind_change(self, child: Field, parent: int, token: Token, text_length: int) -> Token | None:
        """Return the step by which to apply an operation again in a container of another kind than the step was for.

        The server uses the step as a place in the array, or as a key of the map, whatever the step was. A key read this way can
        be anywhere in the server's memory, with the length of the path's last key. Thus the server deletes nothing unless a key
        of the map has that length. Returns None if there is nothing to do. Raises UndefinedError if the outcome is unpredictable.
        """
        instruction, data = self._repeated(child), self._data
        if instruction is None:
            raise UndefinedError("an operation inside of a value that another has set")
        is_array = layout.TYPES[data[parent]] is layout.ARRAY
        if isinstance(token, int if is_array else bytes):
            return token
        if is_array:
            if instruction.code == "#" and self._version >= (2, 8):
                raise UndefinedError("an operation inside of a value that another has deleted")
            raise OperationRefusedError("no such field")
        keys = (begin for begin, _ in list(layout.elements(data, parent))[::2])
        if instruction.code == "#" and not (text_length and any(_has_length(data, key, text_length) for key in keys)):
            if instruction.count() != 1:
                raise OperationRefusedError("only one key of a map can be deleted at once")
            return None
        if instruction.code == "=" and not text_length:
            return b""
        raise UndefinedError("an operation beside an integer key of a map that another has set")

    def _open(self, field: Field, position: int, child: Field | None, token: Token | None) -> Field:
        """Turn `field` into the open container at `position`, and move `child`, at `token`, into it or apply it again."""
        data = self._data
        again = self._repeated(child)
        field.begin = field.end = position
        if layout.TYPES[data[position]] is layout.ARRAY:
            field.shape = Shape.ARRAY
            field.elements = list(layout.elements(data, position))
            field.end = field.elements[-1][1] if field.elements else layout.header(data, position)[1]  # type: ignore[index]
            if child and not again:
                assert isinstance(token, int)
                if token >= len(field.elements):
                    raise UndefinedError("an operation beside a value that isn't where it was inserted")
                child.begin, child.end = field.elements[token]  # type: ignore[misc]
                field.elements[token] = child
        else:
            field.shape = Shape.MAP
            field.count, begin = layout.header(data, position)
            field.end = layout.end_of(data, position)
            field.items = [Item(None, Field(Shape.UNTOUCHED, 0, 0), begin, field.end)]
            if child and not again:
                assert isinstance(token, bytes)
                item = self._item(field, token)
                if item is None:
                    raise UndefinedError("an operation beside a value that isn't where it was inserted")
                child.begin, child.end = item.value.begin, item.value.end
                item.value = child
        if again and token is not None:
            again.consumed, again.token = False, token
            self._into(again, field)
        return field

    # Encoding.

    def _store_element(self, element: Span | Field, field_type: str, chunks: list[bytes]) -> None:
        if isinstance(element, tuple):
            chunks.append(self._data[element[0] : element[1]])
        else:
            self._store(element, field_type, chunks)

    def _store(self, field: Field, field_type: str, chunks: list[bytes]) -> None:
        data = self._data
        match field.shape:
            case Shape.UNTOUCHED:
                chunks.append(data[field.begin : field.end])
            case Shape.SCALAR:
                chunks.append(store(field.scalar, field_type))
            case Shape.ARRAY:
                chunks.append(layout.array_header(len(field.elements)))
                for element in field.elements:
                    self._store_element(element, "", chunks)
            case Shape.MAP:
                chunks.append(layout.map_header(field.count))
                for item in field.items:
                    if item.key is not None:
                        chunks.append(layout.string(item.key))
                        self._store(item.value, "", chunks)
                chunks.extend(data[item.begin : item.end] for item in field.items)
            case Shape.ROUTE:
                assert field.hop is not None
                chunks.append(data[field.begin : field.hop.begin])
                self._store(field.hop, "", chunks)
                chunks.append(data[field.hop.end : field.end])
            case Shape.LONE:
                self._store_alone(field, chunks)

    def _store_alone(self, field: Field, chunks: list[bytes]) -> None:
        data, instruction = self._data, field.instruction
        assert instruction is not None
        if field.is_broken:
            raise UndefinedError("an integer key of a map is deleted")
        begin, end = field.point
        if instruction.code in "=!":
            value = data[slice(*instruction.span())]
        else:
            value = b"" if instruction.code == "#" else store(field.scalar)
        if not instruction.inserts and instruction.code != "#":
            chunks += (data[field.begin : begin], value, data[end : field.end])
            return
        count, first = layout.header(data, field.parent)
        is_array = layout.TYPES[data[field.parent]] is layout.ARRAY
        if instruction.code == "#":
            count -= instruction.count()
        else:
            count += 1
            if is_array:
                end = begin
            else:
                begin = end = first
                value = layout.string(field.key) + value
        chunks.append(data[field.begin : field.parent])
        chunks.append(layout.array_header(count) if is_array else layout.map_header(count))
        chunks += (data[first:begin], value, data[end : field.end])


def _has_length(data: bytes, position: int, length: int) -> bool:
    return layout.TYPES[data[position]] is layout.STRING and layout.content(data, position)[1] == length


def _adjusted(place: int, count: int) -> int:
    if place < 0:
        place += count
        if place < 0:
            raise OperationRefusedError("the tuple or array has fewer fields")
    elif place >= count:
        raise OperationRefusedError("the tuple or array has fewer fields")
    return place
