"""Expressions that choose rows, in CEL (Common Expression Language): `row.status != 'draft' && row.total > 100`.

    expression + form ──▶ RowFilter, compiled once for each form       mistakes and unknown fields are errors here
    RowFilter + a tuple's values ──▶ whether the row is chosen         an expression that fails for a row is an EncodingError

The library is Google's binding of cel-cpp. An expression has no side effects and always ends: the library bounds the iterations,
the depth of an expression, and regular expressions take linear time (RE2). It is imported with the first expression only.

An expression sees the row as the server has it, before `columns.rules` leave out or mask columns. Values are those that events
have as JSON, with one exception: binary is bytes. So a decimal, a UUID and a point in time are strings, which `double(…)` and
`timestamp(…)` convert.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from cdc.errors import ConfigurationError, EncodingError
from cdc.events.json_values import WAY_OUT, plain
from cdc.schema.forms import SpaceForm

_ROW: Final = "row."
_FAILED: Final = f"Change the expression so that it holds or doesn't hold for each row, or: {WAY_OUT}"
_TEXTS: Final = (
    ": an operator or a function doesn't take its values. Decimals, UUIDs and points in time are texts, which double(…) and"
    " timestamp(…) convert"
)
_SEEN: Final = frozenset({type(None), bool, int, float, bytes})
"""Types whose values an expression gets as they are."""
_TEXT: Final = re.compile(r"""[rRbB]*(?:'''.*?'''|\"\"\".*?\"\"\"|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")""", re.DOTALL)
_BY_NUMBER: Final = re.compile(r"\bfield_([1-9]\d{0,5})\b")
_QUOTABLE: Final = re.compile(r"[A-Za-z0-9_.\-/ ]+").fullmatch
"""Says whether an expression can have a field's name, in backquotes at least. Other fields are named by their places."""
_HAS_FIELD: Final = re.compile(r"\bhas\s*\(\s*row\s*\.\s*(`[^`]+`|\w+)\s*\)")
_MENTIONED: Final = re.compile(r"\brow\s*\.\s*(`[^`]+`|\w+)")
_WORD: Final = re.compile(r"\w+")
_TRIED: Final = 8
"""Number of names that an expression is compiled without, one by one, to find out whether it reads them."""
_INTERNAL: Final = re.compile(r"^[A-Z_]+: (ERROR: )?|( \[[A-Z_]+\])+$")


class RowFilter:
    """One expression for the rows of one form."""

    def __init__(self, expression: str, form: SpaceForm, origin: str) -> None:
        """Compile an expression; `origin` says in messages where it comes from. Raises ConfigurationError."""
        self.origin = origin
        self._form = form
        code = _TEXT.sub("''", expression)
        self._check_has(code)
        names = _candidates(expression, form)
        self._program(expression, names, code)
        names = _without_unread(expression, form, names, code)
        program = self._program(expression, names, code)
        if program.return_type().name() not in ("BOOL", "DYN"):
            raise self._mistake(f"is of type {program.return_type().name().lower()}, not true or false", "Compare it.")
        self._used = [(_ROW + name, place) for name, place in names.items()]
        self._evaluate: Callable[..., Any] = program.eval

    @property
    def places(self) -> frozenset[int]:
        """The places of the fields that the expression reads."""
        return frozenset(place for _, place in self._used)

    def __call__(self, values: Sequence[Any]) -> bool:
        """Return whether a row is chosen. A field that the tuple doesn't have is null. Raises EncodingError."""
        length = len(values)
        seen = {}
        for name, place in self._used:
            value = values[place] if place < length else None
            seen[name] = value if type(value) in _SEEN else _seen(value)
        try:
            found = self._evaluate(data=seen).value()
        except (RuntimeError, RecursionError) as error:  # the library couldn't take a value
            raise self._failure(str(error)) from None
        if found is True or found is False:
            return found
        raise self._failure(str(found) if isinstance(found, str) else f"it is neither true nor false: {found!r}")

    def _program(self, expression: str, names: dict[str, int], code: str) -> Any:
        try:
            return _compiled(expression, self._form, names)
        except RuntimeError as error:
            for found in _MENTIONED.findall(code):
                if found.strip("`") not in names:
                    raise self._mistake(
                        f"reads the field {found.strip('`')!r}, which the space doesn't have",
                        f"It has {_listed(self._form.field_names)}.",
                    ) from None
            raise self._mistake(
                f"can't be used: {_shown(error)}",
                "It is an expression in CEL, such as row.status == 'open' && row.total > 10: fields are row.NAME, or row.`NAME` "
                "if the name isn't made of the letters a to z, digits and '_', or row.field_N, the Nth one, if the name has "
                "characters beyond ASCII, or signs that no quoted name may have. A nullable field may be compared with null.",
            ) from None

    def _check_has(self, code: str) -> None:
        found = _HAS_FIELD.search(code)
        if found is not None:
            raise self._mistake(
                f"asks for {found[0]}, but a row has all fields of its space; those that it omits are null",
                f"Write row.{found[1]} != null.",
            )

    def _mistake(self, what: str, hint: str) -> ConfigurationError:
        return ConfigurationError(f"{self.origin}: for the space {self._form.name!r} the expression {what}", hint)

    def _failure(self, reason: str) -> EncodingError:
        # The library's reasons may quote values. With rules for columns these mustn't be shown.
        told = "" if self._form.columns else _INTERNAL.sub("", reason)
        sentence = f"{self.origin}: the expression fails for a row of space {self._form.name!r}"
        return EncodingError(f"{sentence}{_TEXTS if 'overload' in reason else ''}", _FAILED, detail=told)


def _library() -> Any:
    try:
        from cel_expr_python import cel
    except ImportError as error:
        raise ConfigurationError(
            f"expressions over rows need the package cel-expr-python, which can't be imported: {error}",
            "Install it beside the daemon: pip install 'tarantool-cdc[filter]'.",
        ) from None
    return cel


def _compiled(expression: str, form: SpaceForm, names: dict[str, int]) -> Any:
    """Compile an expression that may read these fields. Raises RuntimeError."""
    cel = _library()
    kinds = {"string": cel.Type.STRING, "boolean": cel.Type.BOOL, "varbinary": cel.Type.BYTES}
    types = {}
    for name, place in names.items():
        field = form.fields[place] if place < len(form.fields) else None
        types[_ROW + name] = cel.Type.DYN if field is None or field.is_nullable else kinds.get(field.type, cel.Type.DYN)
    return cel.NewEnv(variables=types).compile(expression)


def _compiles(expression: str, form: SpaceForm, names: dict[str, int]) -> bool:
    """Return whether an expression reads no other fields than these."""
    try:
        _compiled(expression, form, names)
    except RuntimeError:
        return False
    return True


def _without_unread(expression: str, form: SpaceForm, names: dict[str, int], code: str) -> dict[str, int]:
    """Return the fields that an expression reads, of those whose names occur in it; `code` is the expression without its texts.

    Only the compiler knows which ones these are. To compile takes milliseconds, and somebody may send an expression with hundreds
    of names, so that is done a few times only: where the text misleads, a field may be taken for one that is read. And `row.a.b`
    may be the entry `b` of `a`, or the field `a.b`, which the compiler takes if there is one: then both are taken for read.
    """
    mentioned = {found.strip("`") for found in _MENTIONED.findall(code)}
    likely = {name: place for name, place in names.items() if name in mentioned or name.partition(".")[0] in mentioned}
    if len(likely) == len(names) or _compiles(expression, form, likely):
        return likely
    others = names.keys() - likely.keys()
    for name in sorted(others, key=len) if len(others) <= _TRIED else ():
        rest = {other: place for other, place in names.items() if other != name}
        if not any(name.startswith(f"{other}.") for other in rest) and _compiles(expression, form, rest):
            names = rest
    return names


def _candidates(expression: str, form: SpaceForm) -> dict[str, int]:
    """Return the fields whose names occur in an expression, with their places: a form may have hundreds of others."""
    words = frozenset(_WORD.findall(expression))
    found = {
        name: place
        for place, name in enumerate(form.field_names)
        if (name in words if _WORD.fullmatch(name) else name in expression)
    }
    for number in _BY_NUMBER.findall(expression):
        place = int(number) - 1
        if place >= len(form.fields) or not _QUOTABLE(form.field_names[place]):
            found.setdefault(f"field_{number}", place)
    return found


def _seen(value: Any) -> Any:
    """Return a value as an expression sees it. Raises EncodingError for one that has no form as JSON."""
    return value if isinstance(value, float) else _without_uuids(plain(value))


def _without_uuids(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, list):
        return [_without_uuids(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_uuids(item) for key, item in value.items()}
    return value


def _listed(names: Iterable[str]) -> str:
    first = [repr(name) for _, name in zip(range(30), names, strict=False)]
    return ", ".join(first) if first else "no names of fields: they are field_1, field_2 and so on"


def _shown(error: RuntimeError) -> str:
    """Return the library's message without its codes, on one line."""
    return " ".join(_INTERNAL.sub("", str(error)).replace("<input>:", "").split())
