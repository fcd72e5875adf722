"""Keys of a cache that a change makes stale. Pure.

A template per space describes the application's cache key of a row: `user:{id}`. Its fields are taken from the primary key, and
the others from the row. In the latter case a change affects two cache keys: those of the row before and of the row after.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark_jobs.contract import json_text
from spark_jobs.errors import JobError

DEFAULT: Final = "{space}:{key}"
SPACE: Final = "space"
KEY: Final = "key"

_PART: Final = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


@dataclass(frozen=True)
class Template:
    """Template of cache keys: literal texts, each followed by a field's name (None after the last)."""

    text: str
    parts: tuple[tuple[str, str | None], ...]

    @classmethod
    def parsed(cls, text: str) -> Template:
        """Parse a template; literal braces are doubled. Raises JobError."""
        parts: list[tuple[str, str | None]] = []
        literal, end = "", 0
        for found in _PART.finditer(text):
            literal += text[end : found.start()]
            end = found.end()
            if found[0] in ("{{", "}}"):
                literal += found[0][0]
            elif found[1] is None:
                raise JobError(f"The template {text!r} has a lone {found[0]!r}: write it twice where it is part of the key.")
            else:
                parts.append((literal, found[1]))
                literal = ""
        literal += text[end:]
        if not parts or all(name == SPACE for _, name in parts):
            raise JobError(f"The template {text!r} names no field, so all rows would have one key. Write {{field}} or {{key}}.")
        return cls(text, (*parts, (literal, None)))

    def of(self, space: str) -> Template:
        """Return the template for one space, with the space's name inserted. Raises JobError."""
        parts: list[tuple[str, str | None]] = []
        literal = ""
        for text, name in self.parts:
            literal += text
            if name == SPACE:
                literal += space
            else:
                parts.append((literal, name))
                literal = ""
        if not parts[0][0]:
            raise JobError(
                f"The template {self.text!r} begins with a field. A truncation of {space!r} empties all that matches it, "
                "which would be the entire cache: begin it with a text that only keys of this space begin with."
            )
        return Template(self.text, tuple(parts))

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the template's fields."""
        return tuple(name for _, name in self.parts if name is not None)

    @property
    def glob(self) -> str:
        """Pattern for Redis' SCAN that matches all keys of the template, and possibly others."""
        return "".join(re.sub(r"([*?\[\]\\^-])", r"\\\1", text) + ("*" if name is not None else "") for text, name in self.parts)

    def matches(self, key: str) -> bool:
        """Whether a key may be of this template."""
        return (
            re.fullmatch("".join(re.escape(text) + (".*" if name is not None else "") for text, name in self.parts), key, re.S)
            is not None
        )

    @property
    def may_need_rows(self) -> bool:
        """Whether a primary key may lack fields of the template."""
        return self.fields != (KEY,)

    def lacks(self, key: Mapping[str, Any]) -> list[str]:
        """Return the template's fields that a primary key lacks."""
        return [name for name in self.fields if name != KEY and name not in key]

    def render(self, key: Mapping[str, Any], row: Mapping[str, Any]) -> str | None:
        """Return the cache key of a row, or None if a field has no value: no application stores anything under such a key."""
        written = []
        for text, name in self.parts:
            written.append(text)
            if name is None:
                continue
            if name == KEY:
                written.append(":".join(map(shown, key.values())))
                continue
            value = key[name] if name in key else row.get(name)
            if value is None:
                return None
            written.append(shown(value))
        return "".join(written)


def shown(value: Any) -> str:
    """Return a value as part of a key: a string unchanged, anything else as JSON."""
    return value if isinstance(value, str) else json_text.render(value)


def stale_keys(template: Template, key: Mapping[str, Any], rows: Sequence[Mapping[str, Any]] = ()) -> set[str]:
    """Return the cache keys that a change of the row with this primary key makes stale.

    `rows` are the row before and the row after, as far as they exist. They aren't needed if the primary key has all the fields.
    """
    found = {template.render(key, row) for row in rows} if template.lacks(key) else {template.render(key, {})}
    return {one for one in found if one is not None}


def places(fields: Sequence[str], form: Sequence[str], forms: Sequence[Sequence[str]]) -> dict[str, int | None]:
    """Return the places in a row, counted from 0, of those fields that the row's own form doesn't name.

    `form` has the names of its fields, and `forms` those of all forms of the space, in order. DDL that renames a field leaves its
    value in its place, so the place is the one in the newest form with that name. It is None if no form has the name.
    """
    found = {name: names.index(name) for names in forms for name in fields if name in names}
    return {name: found.get(name) for name in fields if name not in form}


def with_names(row: Mapping[str, Any], fields: Mapping[str, int]) -> Mapping[str, Any]:
    """Return a row whose values in these places also have these names. Places past the row's end are skipped."""
    values = list(row.values())
    return {**row, **{name: values[place] for name, place in fields.items() if place < len(values)}}
