"""Building blocks of the tree in `cdc.tuples.update_tree`: operations with their progress along a path, and touched fields.

Out of scope: the effect of an operation, and the interaction of two operations.
"""

from __future__ import annotations

import dataclasses
from enum import Enum

from cdc.errors import SchemaError
from cdc.tuples.arithmetic import NO_SCALAR, OperationRefusedError, Scalar
from cdc.tuples.json_path import Mark, PathError, Token, next_token

Span = tuple[int, int]
"""Begin and end of a value."""

Version = tuple[int, ...]
"""A server's version, such as (2, 10, 5). A shorter tuple is older: (2, 10) is less than (2, 10, 0)."""


class UndefinedError(SchemaError):
    """The result of an operation is undefined in this server version: the server may have crashed or written garbage."""


class Instruction:
    """One operation, and the part of its path that has been followed.

    `argument` is a slice (begin, end) for `=` and `!`, a number for `+` and `-`, an integer for bitwise operations, a count for
    `#`, (offset, cut, paste) for `:`. `token` is the current step of the path; `consumed` says that this step has been taken.
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
        """Read and return the next step of the path. Raises OperationRefusedError."""
        try:
            token, self.offset = next_token(self.path, self.offset)
        except PathError as error:
            raise OperationRefusedError(f"the JSON path can't be read: {error}") from error
        return token

    def step(self) -> Token:
        """Return the step to take in the current container. Raises OperationRefusedError."""
        if self.consumed:
            token = self.advance()
            if token is Mark.END:
                raise OperationRefusedError("no such field")
            self.consumed, self.token = False, token
        return self.token

    def span(self) -> Span:
        """Return the argument of `=` or `!`, a slice."""
        assert isinstance(self.argument, tuple)
        return self.argument

    def count(self) -> int:
        """Return the argument of `#` or of a bitwise operation, an integer."""
        assert isinstance(self.argument, int)
        return self.argument


class Shape(Enum):
    """Shape of a field in the tree; `cdc.tuples.update_tree` explains each."""

    UNTOUCHED = 0
    SCALAR = 1
    ARRAY = 2
    MAP = 3
    LONE = 4
    ROUTE = 5


@dataclasses.dataclass(slots=True)
class Field:
    """A node of the tree. Its shape determines which attributes are used; positions are absolute in the tree's bytes."""

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
    """A touched key of a map (None if none, or deleted), its value, and the begin and end of the untouched pairs after it."""

    key: bytes | None
    value: Field
    begin: int
    end: int
