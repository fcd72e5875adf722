"""Messages about mistakes in the configuration, in TOML's terms.

pydantic finds the mistakes, but describes them in Python's terms.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

Place = Sequence[int | str]
"""Path of a value: keys from the outermost to the innermost; a number is an index in a list."""

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
_FORMER_TIMEOUTS: Final = {
    "source.vote_timeout_ms": "the same time",
    "source.probe_after_ms": "1.25 times that",
    "source.silence_timeout_ms": "10 times that",
}
"""Keys of earlier versions, and how their values follow from `source.replication_timeout_ms`."""
_ORDINALS: Final = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


def mistake_message(kind: str, about: Mapping[str, Any], place: Place, value: object, *, default: str, is_text: bool) -> str:
    """Return a message that says what a value must be, in TOML's terms; empty if pydantic's error has a message of this project.

    `kind` and `about` are the type and the context of pydantic's error. Only the type of `value` is used, because it may be a
    secret. `default` is appended if a number is expected. `is_text`: the value is from the environment, where it has no quotes.
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


def former_key_message(place: Place) -> str:
    """Return a message that names the successor of a key that is gone; empty for other keys."""
    share = _FORMER_TIMEOUTS.get(".".join(map(str, place)))
    if share is None:
        return ""
    return f"is gone: it follows from source.replication_timeout_ms, as {share}; set that to the members' replication_timeout"


def wrong_toml(problem: str) -> str:
    """Return a hint for a TOML error caused by a table in two places, or by {…} on several lines; empty for other errors."""
    if not re.search("Cannot declare|Cannot mutate|Cannot overwrite|key part|inline table", problem):
        return ""
    return "Write each table once: as [kafka] with its keys in the lines below, or as kafka = { … } within one line."


def unknown_variable_error(environment: Iterable[str], prefix: str, keys: Iterable[str]) -> tuple[str, str] | None:
    """Return a message and a hint for a variable that looks like a key of the configuration but is none; None if there is none.

    `keys` are the keys with their sections, and the sections alone. Beside a service named tarantool-cdc, Kubernetes sets
    variables such as TARANTOOL_CDC_PORT in every pod. Such a variable is a mistake only if it resembles a key.
    """
    known = {prefix + key.upper().replace(".", "__") for key in keys}
    meant = {re.sub("_+", "_", name): name for name in known}
    for variable in environment:
        name = variable.upper()
        is_ours = name.startswith(prefix)
        if is_ours and prefix + name.removeprefix(prefix).split("__")[0] in known:
            continue  # the section's validation finds mistakes in the rest of the name
        found = meant.get(re.sub("_+", "_", name))
        if is_ours and found is None:
            found = next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.7)), None)
        if is_ours or found is not None:
            hint = f"Did you mean {found}?" if found is not None else "docs/configuration.md lists all keys."
            return f"no key of the configuration is called {variable} in the environment", hint
    return None


def place_shown(place: Sequence[int | str]) -> str:
    """Return the text for a path: the key, and the position in its list if the value is an item of a list."""
    key, *rest = ".".join(_key_shown(part) for part in place if isinstance(part, str)), *place
    index = next((part for part in rest if isinstance(part, int)), None)
    if index is None:
        return key or "configuration"
    return f"{key}, the {_ORDINALS[index] if index < len(_ORDINALS) else f'{index + 1}th'} of the list"


def _key_shown(part: int | str) -> str:
    """Return a key if it looks like one, else `…`: a value in the wrong place may be a secret."""
    text = str(part)
    return text if re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", text) else "…"
