"""What the tree of `cdc.tuples.update_tree` is made of: operations on their way, and the fields that they have come to.

It refuses to know what an operation does, and how two of them meet.
"""

from __future__ import annotations

import dataclasses
from enum import Enum

from cdc.errors import SchemaError
from cdc.tuples.arithmetic import NO_SCALAR, OperationRefusedError, Scalar
from cdc.tuples.json_path import Mark, PathError, Token, next_token

Span = tuple[int, int]
"""Where a value begins and ends."""

Version = tuple[int, ...]
"""A server's: (2, 10, 5). What isn't said counts as nothing, so (2, 10) is older."""


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


class Shape(Enum):
    """What a field has become; `cdc.tuples.update_tree` tells what each means."""

    UNTOUCHED = 0
    SCALAR = 1
    ARRAY = 2
    MAP = 3
    LONE = 4
    ROUTE = 5


@dataclasses.dataclass(slots=True)
class Field:
    """A node. Which attributes mean something depends on its shape; positions are absolute in the tree's bytes."""

    shape: Shape
    begin: int
    end: int
    scalar: Scalar = NO_SCALAR
    elements: list[Span | Field] = dataclasses.field(default_factory=list)
    items: list[Item] = dataclasses.field(default_factory=list)
    count: int = 0
    instruction: Instruction | None = None
    path: bytes = b""
    parent: int = 0
    point: Span = (0, 0)
    key: bytes = b""
    hop: Field | None = None
    is_broken: bool = False


@dataclasses.dataclass(slots=True)
class Item:
    """A touched key of a map, None if it is gone, its value, and where the untouched pairs behind it begin and end."""

    key: bytes | None
    value: Field
    begin: int
    end: int
