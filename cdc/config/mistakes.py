"""What is wrong with a value of the configuration, and where it stands, in the words of a TOML file.

pydantic finds the mistakes and says them in Python's words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
