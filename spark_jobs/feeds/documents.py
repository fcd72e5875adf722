"""How rows look in a search index: names, identifiers, types, and what is written for a change. Pure.

A document is the row as it was published, with one more member in front, `_cdc`: the `seq` of the change (`_cdc.seq`), the
schema_version whose names its fields have (`_cdc.form`), and for a row that is gone when that was noted (`_cdc.deleted_at`).

Rows that are deleted stay as such marks for a while. OpenSearch would forget after `index.gc_deletes` (a minute) which version it
has deleted, and at once when a shard moves, and an older event that comes later would then bring the row back. Truncations are
told by a floor: documents up to that seq are none. What searches use is an alias whose filter leaves out both, so a truncation is
one atomic change of the alias, whatever is on its way to the index, and what is hidden is removed at leisure.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from spark_jobs import json_text
from spark_jobs.errors import JobError
from spark_jobs.forms import Form

META: Final = "_cdc"

ID_BYTES_MAX: Final = 512
"""What OpenSearch takes as a document's id."""

NAME_BYTES_MAX: Final = 255

_Mapping = Mapping[str, Any]

_UNINDEXED: Final[_Mapping] = {"type": "object", "enabled": False}
_UNSIGNED: Final[_Mapping] = {"type": "unsigned_long", "ignore_malformed": True}
_INTEGER: Final[_Mapping] = {"type": "long", "ignore_malformed": True}
_NUMBER: Final[_Mapping] = {"type": "double", "ignore_malformed": True}
_WORD: Final[_Mapping] = {"type": "keyword", "ignore_above": 256}
_DECIMAL: Final[_Mapping] = {**_NUMBER, "fields": {"exact": _WORD}}
_TEXT: Final[_Mapping] = {"type": "text", "fields": {"keyword": _WORD}}

_TYPES: Final[Mapping[str, _Mapping]] = {
    **dict.fromkeys(("unsigned", "uint64"), _UNSIGNED),
    **dict.fromkeys(("integer", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"), _INTEGER),
    **dict.fromkeys(("double", "float", "float32", "float64", "number"), _NUMBER),
    **dict.fromkeys(("decimal", "decimal32", "decimal64", "decimal128", "decimal256"), _DECIMAL),
    "boolean": {"type": "boolean"},
    "string": _TEXT,
    **dict.fromkeys(("uuid", "interval"), _WORD),
    "varbinary": {"type": "binary"},
    "datetime": {"type": "date", "ignore_malformed": True},
}
"""All others are kept and shown, and not searched: array, map, any, scalar."""

_META_PROPERTIES: Final = {
    "properties": {"seq": {"type": "long"}, "form": {"type": "long"}, "deleted_at": {"type": "date", "format": "epoch_millis"}}
}

_FOREIGN_TO_NAMES: Final = re.compile(r"[^a-z0-9_.-]")
_FORBIDDEN_FIRST: Final = ("-", "_", "+", ".")


def document_id(key: str) -> str:
    """The id of the document: the key's text, or its SHA-256 in hexadecimal digits where it is too long for an id.

    No key's text looks like that: each begins with a brace.
    """
    data = key.encode()
    return key if len(data) <= ID_BYTES_MAX else f"sha256:{hashlib.sha256(data).hexdigest()}"


def alias_name(template: str, prefix: str, space: str) -> str:
    """What searches call a space. Raises JobError.

    OpenSearch takes no capital letters, and few other characters: `~` and the hexadecimal digits of its bytes stand for others.
    """
    written = _FOREIGN_TO_NAMES.sub(lambda found: "".join(f"~{byte:02x}" for byte in found[0].encode()), space.lower())
    name = template.replace("{prefix}", prefix.lower()).replace("{space}", written)
    if name.startswith(_FORBIDDEN_FIRST) or len(name.encode()) > NAME_BYTES_MAX - len(".write"):
        raise JobError(f"OpenSearch takes no index called {name!r}, for space {space!r}. Choose another --index.")
    return name


def index_name(template: str, prefix: str, space_id: int) -> str:
    """The index behind the alias. It keeps its name when the space is given another one, and then the alias moves."""
    return alias_name(template, prefix, f"space-{space_id}")


def write_alias(index: str) -> str:
    """The alias through which is written: OpenSearch would make an index that somebody has removed, without its mapping."""
    return f"{index}.write"


def properties(form: Form) -> dict[str, Any]:
    """The mapping's properties for a form. Raises JobError."""
    if any(field.name == META for field in form.fields):
        raise JobError(
            f"Space {form.space!r} has a field called {META!r}, which documents have for themselves. Call the field otherwise, "
            "or leave the space out (--spaces)."
        )
    return {META: _META_PROPERTIES, **{field.name: dict(_TYPES.get(field.type, _UNINDEXED)) for field in form.fields}}


def meta_properties() -> dict[str, Any]:
    """The properties of documents that a user's function makes: `_cdc` alone; OpenSearch finds the others."""
    return {META: dict(_META_PROPERTIES)}


def visible(floor: int) -> dict[str, Any]:
    """The filter of the alias: rows that are there, and no truncation has passed."""
    return {
        "bool": {
            "must_not": [{"exists": {"field": f"{META}.deleted_at"}}, {"range": {f"{META}.seq": {"lte": floor}}}],
        }
    }


def expired(floor: int, deleted_before_ms: int) -> dict[str, Any]:
    """The query for what may be removed for good: the marks of rows deleted before, and what a truncation has passed."""
    forgotten = {"range": {f"{META}.deleted_at": {"lt": deleted_before_ms}}}
    return {"bool": {"should": [forgotten, {"range": {f"{META}.seq": {"lte": floor}}}]}}


def labelled_before(schema_version: int) -> dict[str, Any]:
    """The query for rows whose fields are called as in an older form."""
    older = {"range": {f"{META}.form": {"lt": schema_version}}}
    return {"bool": {"filter": [older], "must_not": [{"exists": {"field": f"{META}.deleted_at"}}]}}


def document(row: str, seq: int, form: int) -> str:
    """The document of a row's text."""
    separator = "" if row == "{}" else ","
    # A line of its own in the request. In JSON a line can only end between the parts, where a space is as good.
    return f'{{"{META}":{{"seq":{seq},"form":{form}}}{separator}{row[1:]}'.replace("\n", " ").replace("\r", " ")


def mark(seq: int, form: int, now_ms: int) -> str:
    """The document of a row that is gone."""
    return f'{{"{META}":{{"seq":{seq},"form":{form},"deleted_at":{now_ms}}}}}'


def relabelled(row: str, names: Sequence[str]) -> str:
    """A row's text with its fields called as the latest form calls them."""
    values = json_text.parse(row).values()
    return json_text.render({_name(names, place): value for place, value in enumerate(values)})


def relabelled_source(source: Mapping[str, Any], names: Sequence[str], form: int) -> str:
    """A stored document, likewise."""
    values = [value for name, value in source.items() if name != META]
    members = {_name(names, place): value for place, value in enumerate(values)}
    return json_text.render({META: {**source[META], "form": form}, **members})


def of_function(made: object, seq: int, form: int) -> str:
    """What a user's function has made of a row, as a document. Raises ValueError."""
    if not isinstance(made, Mapping) or META in made:
        raise ValueError(f"it must return a dict without {META!r}, or None, not {made!r:.200}")
    return document(json.dumps(made, separators=(",", ":"), ensure_ascii=False, allow_nan=False), seq, form)


def labels(forms: Sequence[Form]) -> dict[int, tuple[str, ...]]:
    """By schema_version: the names that fields have now, for those forms of a space in which they have others."""
    latest = tuple(field.name for field in forms[-1].fields)
    return {form.schema_version: latest for form in forms if tuple(field.name for field in form.fields) != latest}


def renamed_since(forms: Sequence[Form]) -> int | None:
    """The first schema_version since which all names have only been added to; None if no field was ever renamed."""
    latest = [field.name for field in forms[-1].fields]
    first = None
    for form, following in pairwise(forms):
        names = [field.name for field in form.fields]
        if names != latest[: len(names)]:
            first = following.schema_version
    return first


def _name(names: Sequence[str], place: int) -> str:
    return names[place] if place < len(names) else f"field_{place + 1}"
