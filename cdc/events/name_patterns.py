"""Regular expressions for names that somebody sends to the running daemon, matched in a time that their author can't extend.

Python's own expressions try one way after the other, which may take minutes for a name of thirty characters, and all threads wait
meanwhile. RE2 follows all ways at the same time: a byte of a name costs at most one step for each instruction of the expression.
It has neither back references nor lookaround; \\d, \\s and \\w are ASCII's. Names are compared as their UTF-8.
"""

from __future__ import annotations

from typing import Final

import re2

PATTERN_MAX: Final = 500
"""Maximum length of an expression."""
STEPS_MAX: Final = 200_000_000
"""Maximum number of steps of all expressions and matches of one request; RE2 needs less than 10 ns for one."""
_STEPS_TO_COMPILE: Final = 100
"""What an instruction's compilation counts."""
_BYTES_MAX: Final = 64 * 1024
"""Memory of one expression. It bounds what repetitions, as in `(a{100}){100}`, make of a short one."""


class PatternError(ValueError):
    """An expression that isn't one, or that takes too long."""


class Budget:
    """Steps that all expressions of one request may take together."""

    def __init__(self, steps: int = STEPS_MAX) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Count steps. Raises PatternError if none are left."""
        self._left -= steps
        if self._left < 0:
            raise PatternError("it takes too long to compare the expressions with the names of all spaces")


class NamePattern:
    """An expression that is compared with complete names."""

    def __init__(self, text: str, budget: Budget) -> None:
        """Raises PatternError, also if the budget is used up."""
        if len(text) > PATTERN_MAX:
            raise PatternError(f"an expression has {len(text)} characters, {PATTERN_MAX} are allowed")
        options = re2.Options()
        options.log_errors = False
        options.max_mem = _BYTES_MAX
        try:
            self._compiled = re2.compile(_encoded(text), options)
        except UnicodeEncodeError as error:
            raise PatternError(f"the expression {text[:80]!r} can't be read: half a surrogate pair is no character") from error
        except re2.error as error:
            raise PatternError(f"the expression {text[:80]!r} can't be read: {error.args[0].decode(errors='replace')}") from error
        self._budget = budget
        budget.spend(_STEPS_TO_COMPILE * self._compiled.programsize)

    def matches(self, name: str) -> bool:
        """Return whether the whole name matches. Raises PatternError if the budget is used up."""
        encoded = _encoded(name)
        self._budget.spend(self._compiled.programsize * (1 + len(encoded)))
        return self._compiled.fullmatch(encoded) is not None


def _encoded(text: str) -> bytes:
    # A name that isn't UTF-8 has its own bytes.
    return text.encode(errors="surrogateescape")
