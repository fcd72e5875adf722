"""Regular expressions for names that somebody sends to the running daemon, matched in a time that their author can't extend.

Python's own expressions try one way after the other, which may take minutes for a name of thirty characters, and all threads wait
meanwhile. Here all ways are followed at the same time: a character of the name costs one step for each place of the expression.

    a|b  ab  a*  a+  a?  (a)  (?:a)  .  [a-z]  [^a-z]  \\d \\w \\s \\D \\W \\S  and  \\ before any other sign
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Final, NamedTuple

PATTERN_MAX: Final = 500
"""Maximum length of an expression."""
STEPS_MAX: Final = 300_000
"""Maximum number of steps of all matches of one request."""
_DEPTH_MAX: Final = 40
_SETS: Final[dict[str, Callable[[str], bool]]] = {
    "d": str.isdecimal,
    "w": lambda sign: sign.isalnum() or sign == "_",
    "s": str.isspace,
}
_ESCAPABLE: Final = frozenset(string.punctuation + " ")


class PatternError(ValueError):
    """An expression that isn't one, or that takes too long."""


class Budget:
    """Steps that the matches of one request may take together."""

    def __init__(self, steps: int = STEPS_MAX) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Count steps. Raises PatternError if none are left."""
        self._left -= steps
        if self._left < 0:
            raise PatternError("it takes too long to compare the expressions with the names of all spaces")


class _Place(NamedTuple):
    """A place of an expression: the sign that leads on from it, or None if it leads on without one."""

    takes: Callable[[str], bool] | None
    next: tuple[int, ...]


_END: Final = -1


class NamePattern:
    """An expression that is compared with complete names."""

    def __init__(self, text: str) -> None:
        """Raises PatternError."""
        if len(text) > PATTERN_MAX:
            raise PatternError(f"an expression has {len(text)} characters, {PATTERN_MAX} are allowed")
        self._places: list[_Place] = []
        self._first = _Parser(text, self._places).parse()

    def matches(self, name: str, budget: Budget) -> bool:
        """Return whether the whole name matches. Raises PatternError if the budget is used up."""
        present = self._reached([self._first])
        for sign in name:
            budget.spend(1 + len(present))
            onward: list[int] = []
            for number in present:
                place = self._places[number] if number != _END else None
                if place is not None and place.takes is not None and place.takes(sign):
                    onward += place.next
            if not onward:
                return False
            present = self._reached(onward)
        return _END in present

    def _reached(self, numbers: list[int]) -> set[int]:
        """Return the places that are reached without another sign."""
        found: set[int] = set()
        waiting = list(numbers)
        while waiting:
            number = waiting.pop()
            if number in found:
                continue
            found.add(number)
            if number != _END and self._places[number].takes is None:
                waiting += self._places[number].next
        return found


class _Parser:
    """Parser that makes the places from the end of an expression to its beginning."""

    def __init__(self, text: str, places: list[_Place]) -> None:
        self._text = text.removeprefix("^")
        if self._text.endswith("$") and not self._text.endswith("\\$"):
            self._text = self._text[:-1]
        self._at = 0
        self._places = places

    def parse(self) -> int:
        """Return the number of the first place."""
        build = self._alternatives(0)
        if self._at < len(self._text):
            raise PatternError(f"the expression {self._text!r} has a ) without a (")
        return build(_END)

    # Each of these returns a function from the place that follows to the first place of the part.

    def _alternatives(self, depth: int) -> Callable[[int], int]:
        if depth > _DEPTH_MAX:
            raise PatternError(f"the expression {self._text[:80]!r}… has more than {_DEPTH_MAX} nested groups")
        ways = [self._sequence(depth)]
        while self._peek() == "|":
            self._at += 1
            ways.append(self._sequence(depth))
        if len(ways) == 1:
            return ways[0]
        return lambda onward: self._new(None, *(way(onward) for way in ways))

    def _sequence(self, depth: int) -> Callable[[int], int]:
        parts: list[Callable[[int], int]] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(depth))

        def build(onward: int) -> int:
            for part in reversed(parts):
                onward = part(onward)
            return onward

        return build

    def _repeated(self, depth: int) -> Callable[[int], int]:
        part = self._one(depth)
        mark = self._peek()
        if mark not in ("*", "+", "?"):
            if mark == "{":
                raise PatternError(f"the expression {self._text!r} has a {{, which isn't supported: write \\{{ for the sign")
            return part
        self._at += 1
        if self._peek() == "?":
            self._at += 1  # which of the ways is tried first makes no difference for complete names
        if self._peek() in ("*", "+", "?"):
            raise PatternError(f"the expression {self._text!r} has several of *, + and ? in a row")

        def build(onward: int) -> int:
            if mark == "?":
                return self._new(None, part(onward), onward)
            again = self._new(None)
            first = part(again)
            self._places[again] = _Place(None, (first, onward))
            return first if mark == "+" else again

        return build

    def _one(self, depth: int) -> Callable[[int], int]:
        sign = self._take()
        if sign == "(":
            if self._peek() == "?":
                self._at += 1
                if self._take() != ":":
                    raise PatternError(f"the expression {self._text!r} has a (? that isn't supported")
            inner = self._alternatives(depth + 1)
            if self._take() != ")":
                raise PatternError(f"the expression {self._text!r} has a ( without a )")
            return inner
        if sign in ("*", "+", "?", "{"):
            raise PatternError(f"the expression {self._text!r} has a {sign} with nothing before it; '.*' matches all names")
        takes = self._class_of() if sign == "[" else self._escaped() if sign == "\\" else _any if sign == "." else sign.__eq__
        return lambda onward: self._new(takes, onward)

    def _class_of(self) -> Callable[[str], bool]:
        is_negative = self._peek() == "^"
        self._at += is_negative
        ranges: list[tuple[str, str]] = []
        sets: list[Callable[[str], bool]] = []
        while not (self._peek() == "]" and (ranges or sets)):
            sign = self._take()
            if sign == "":
                raise PatternError(f"the expression {self._text!r} has a [ without a ]")
            if sign == "\\":
                if self._peek().lower() in _SETS:
                    sets.append(self._escaped())
                    continue
                sign = self._take_escapable()
            last = sign
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._take()
                if last == "\\":
                    last = self._take_escapable()
            ranges.append((sign, last))
        self._at += 1

        def takes(sign: str) -> bool:
            is_in = any(first <= sign <= last for first, last in ranges) or any(each(sign) for each in sets)
            return is_in != is_negative

        return takes

    def _escaped(self) -> Callable[[str], bool]:
        name = self._peek()
        known = _SETS.get(name.lower()) if name else None
        if known is None:
            return self._take_escapable().__eq__
        self._at += 1
        return known if name.islower() else lambda sign: not known(sign)

    def _take_escapable(self) -> str:
        sign = self._take()
        if sign not in _ESCAPABLE:
            raise PatternError(f"the expression {self._text!r} has \\{sign}, which isn't supported")
        return sign

    def _new(self, takes: Callable[[str], bool] | None, *onward: int) -> int:
        self._places.append(_Place(takes, onward))
        return len(self._places) - 1

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        sign = self._peek()
        self._at += 1
        return sign


def _any(_: str) -> bool:
    return True
