"""What is wrong with a value of the configuration, and where it stands, in the words of a TOML file.

pydantic finds the mistakes and says them in Python's words.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

Place = Sequence[int | str]
"""Keys from the outermost in; a number is an index in a list."""

_TYPE_NAMES: Final = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
}
_LISTS: Final = {
    "uris": 'strings, ["user:password@host:3301"]',
    "exclude_origins": "whole numbers, [3]",
    "allowed_hosts": 'strings, ["cdc.example"]',
}
_LIST_OF_NAMES: Final = 'strings, ["users"]'
_ORDINALS: Final = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


def what_is_wrong(kind: str, about: Mapping[str, Any], place: Place, value: object, *, default: str, is_text: bool) -> str:
    """What a value must be, in TOML's words, from pydantic's type of error; empty for a sentence of our own.

    Of the `value` only its type is looked at: it may be a secret. `default` is shown where it is a number. `is_text`: the value
    stands in the environment, where there are no quotes to leave out.
    """
    given = _TYPE_NAMES.get(type(value), "")
    last = str(place[-1]) if place else ""
    but = f", and is {given}" if given else ""
    unquoted = "" if is_text else " without quotes"
    match kind:
        case "missing":
            return "is missing"
        case "list_type":
            return f"must be a list of {_LISTS.get(last, _LIST_OF_NAMES)}{but}"
        case "string_type" | "path_type":
            return f"must be a string, in quotes{but}"
        case "int_type" | "int_parsing" | "int_parsing_size" | "int_from_float":
            return f"must be a whole number{unquoted}{default}"
        case "bool_type" | "bool_parsing":
            return f"must be true or false{unquoted}"
        case "literal_error":
            return f"must be {about['expected']}".replace("'", '"')
        case "greater_than_equal":
            return f"must be {about['ge']} at least"
        case "less_than_equal":
            return f"must be {about['le']} at most"
        case "too_short":
            return f"must have {about['min_length']} at least"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"must be a table, [{'.'.join(map(str, place))}]{but}"
    return ""


def wrong_toml(problem: str) -> str:
    """What to do about a parser's error that comes of a table in two places, or of {…} on several lines; empty for others."""
    if not re.search("Cannot declare|Cannot mutate|Cannot overwrite|key part|inline table", problem):
        return ""
    return "Write each table once: as [kafka] with its keys in the lines below, or as kafka = { … } within one line."


def unread_variable(environment: Iterable[str], prefix: str, keys: Iterable[str]) -> tuple[str, str] | None:
    """What is wrong with a variable that looks like one of ours and that nobody would read, and what to do; None without one.

    Keys of the configuration are given with their sections, and sections by themselves. Kubernetes gives every pod variables
    that begin like ours, TARANTOOL_CDC_PORT, beside a service tarantool-cdc: without a key that is meant they are no mistake.
    """
    known = {prefix + key.upper().replace(".", "__") for key in keys}
    meant = {re.sub("_+", "_", name): name for name in known}
    for variable in environment:
        name = variable.upper()
        is_ours = name.startswith(prefix)
        if is_ours and prefix + name.removeprefix(prefix).split("__")[0] in known:
            continue  # what is wrong below a section, its validation finds
        found = meant.get(re.sub("_+", "_", name))
        if is_ours and found is None:
            found = next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.7)), None)
        if is_ours or found is not None:
            hint = f"Did you mean {found}?" if found is not None else "docs/configuration.md lists all keys."
            return f"no key of the configuration is called {variable} in the environment", hint
    return None


def place_shown(place: Sequence[int | str]) -> str:
    """A key, and which of a list's members it is."""
    key, *rest = ".".join(_key_shown(part) for part in place if isinstance(part, str)), *place
    index = next((part for part in rest if isinstance(part, int)), None)
    if index is None:
        return key or "configuration"
    return f"{key}, the {_ORDINALS[index] if index < len(_ORDINALS) else f'{index + 1}th'} of the list"


def _key_shown(part: int | str) -> str:
    """A key, if it looks like one: what stands in the wrong place may be a secret."""
    text = str(part)
    return text if re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", text) else "…"
