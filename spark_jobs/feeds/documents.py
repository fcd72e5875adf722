"""Documents of a search index: names, ids, types, and the document written for a change. Pure.

A document is the published row with one additional first member, `_cdc`: the `seq` of the change (`_cdc.seq`), the
schema_version whose names the fields have (`_cdc.form`), and for a deleted row the time of the mark (`_cdc.deleted_at`).

Deleted rows stay as such marks for a while. OpenSearch would forget the version of a deletion after `index.gc_deletes` (one
minute), or immediately when a shard moves; an older event that arrives later would then restore the row. A truncation sets a
floor: documents up to that seq count as removed. Searches use an alias whose filter hides both. So a truncation is one atomic
change of the alias, whatever is still on its way to the index, and hidden documents are removed later.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from spark_jobs.contract import json_text
from spark_jobs.contract.forms import Form
from spark_jobs.errors import JobError
from spark_jobs.feeds.bulk import IndexRefusedError
from spark_jobs.feeds.field_names import META, stored_names

ID_BYTES_MAX: Final = 512
"""OpenSearch's limit for a document's id, in bytes."""

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
"""Mapping by field type. Fields of all other types (array, map, any, scalar) are stored and shown, but not indexed."""

_META_PROPERTIES: Final = {
    "properties": {"seq": {"type": "long"}, "form": {"type": "long"}, "deleted_at": {"type": "date", "format": "epoch_millis"}}
}

_FOREIGN_TO_NAMES: Final = re.compile(r"[^a-z0-9_.-]")
_FORBIDDEN_FIRST: Final = ("-", "_", "+", ".")


def document_id(key: str) -> str:
    """Return a document's id: the key's text, or its SHA-256 in hexadecimal digits if the text is too long for an id.

    No key's text looks like a hash, because each begins with a brace.
    """
    data = key.encode()
    return key if len(data) <= ID_BYTES_MAX else f"sha256:{hashlib.sha256(data).hexdigest()}"


def alias_name(template: str, prefix: str, space: str) -> str:
    """Return the name that searches use for a space. Raises IndexRefusedError.

    OpenSearch allows no capital letters, so they are lowered, and few other characters: the rest are written as `~` and the
    hexadecimal digits of their bytes.
    """
    written = _FOREIGN_TO_NAMES.sub(lambda found: "".join(f"~{byte:02x}" for byte in found[0].encode()), space.lower())
    name = template.replace("{prefix}", prefix.lower()).replace("{space}", written)
    if name.startswith(_FORBIDDEN_FIRST) or len(name.encode()) > NAME_BYTES_MAX - len(".write"):
        raise IndexRefusedError(f"OpenSearch allows no index called {name!r}, for space {space!r}. Choose another --index.")
    return name


def index_name(template: str, prefix: str, space_id: int) -> str:
    """Return the name of the index behind the alias. When the space is renamed, the index keeps its name and the alias moves."""
    return alias_name(template, prefix, f"space-{space_id}")


def write_alias(index: str) -> str:
    """Return the alias for writing.

    Writing to a removed index directly would make OpenSearch create it again, without its mapping.
    """
    return f"{index}.write"


def names_of(form: Form, found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names that a form's fields have in documents of an index with the properties `found` (field_names.py)."""
    return stored_names([(field.name, field.type not in _TYPES) for field in form.fields], found)


def properties(form: Form, names: Sequence[str]) -> dict[str, Any]:
    """Return the mapping's properties for a form, whose fields have these names in documents."""
    kinds = (_TYPES.get(field.type, _UNINDEXED) for field in form.fields)
    return {META: _META_PROPERTIES, **{name: dict(kind) for name, kind in zip(names, kinds, strict=True)}}


def meta_properties() -> dict[str, Any]:
    """Return the properties of documents that a user's function makes: only `_cdc`; OpenSearch detects the others."""
    return {META: dict(_META_PROPERTIES)}


def visible(floor: int) -> dict[str, Any]:
    """Return the alias' filter: rows that exist and that no truncation has removed."""
    return {
        "bool": {
            "must_not": [{"exists": {"field": f"{META}.deleted_at"}}, {"range": {f"{META}.seq": {"lte": floor}}}],
        }
    }


def floor_of(filter_: Any) -> int | None:
    """Return the floor in an alias' filter; None if it isn't a filter that `visible` returned."""
    try:
        floor = filter_["bool"]["must_not"][1]["range"][f"{META}.seq"]["lte"]
    except (KeyError, IndexError, TypeError):
        return None
    return floor if filter_ == visible(floor) else None


def expired(floor: int, deleted_before_ms: int) -> dict[str, Any]:
    """Return the query for removable documents: marks older than a time, and documents that a truncation has removed."""
    forgotten = {"range": {f"{META}.deleted_at": {"lt": deleted_before_ms}}}
    return {"bool": {"should": [forgotten, {"range": {f"{META}.seq": {"lte": floor}}}]}}


def labelled_before(schema_version: int) -> dict[str, Any]:
    """Return the query for rows whose fields have the names of an older form."""
    older = {"range": {f"{META}.form": {"lt": schema_version}}}
    return {"bool": {"filter": [older], "must_not": [{"exists": {"field": f"{META}.deleted_at"}}]}}


def document(row: str, seq: int, form: int) -> str:
    """Return the document of a row's text."""
    separator = "" if row == "{}" else ","
    # A document must be one line of the request. In JSON a line can only end between tokens, where a space is equivalent.
    return f'{{"{META}":{{"seq":{seq},"form":{form}}}{separator}{row[1:]}'.replace("\n", " ").replace("\r", " ")


def mark(seq: int, form: int, now_ms: int) -> str:
    """Return the document of a deleted row."""
    return f'{{"{META}":{{"seq":{seq},"form":{form},"deleted_at":{now_ms}}}}}'


def relabelled(row: str, names: Sequence[str]) -> str:
    """Return a row's text with the field names of the latest form."""
    values = json_text.parse(row).values()
    return json_text.render({_name(names, place): value for place, value in enumerate(values)})


def relabelled_source(source: Mapping[str, Any], names: Sequence[str], form: int) -> str:
    """Return a stored document with the field names of the latest form."""
    values = [value for name, value in source.items() if name != META]
    members = {_name(names, place): value for place, value in enumerate(values)}
    return json_text.render({META: {**source[META], "form": form}, **members})


def of_function(made: object, seq: int, form: int) -> str:
    """Return the document that a user's function made of a row. Raises JobError."""
    if not isinstance(made, Mapping) or META in made:
        # No message may show what the function has returned: it has values of the row.
        what = f"a dict with {META!r}" if isinstance(made, Mapping) else type(made).__name__
        raise JobError(f"--document must return a dict without {META!r}, or None, not {what}")
    return document(json.dumps(made, separators=(",", ":"), ensure_ascii=False, allow_nan=False), seq, form)


def labels(forms: Sequence[Form], latest: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """Return the current field names by schema_version, for those forms of a space whose rows have other names.

    `latest` are the names that the last form's fields shall have.
    """
    names = tuple(latest)
    return {form.schema_version: names for form in forms if tuple(field.name for field in form.fields) != names}


def renamed_since(forms: Sequence[Form], names: Mapping[int, Sequence[str]]) -> int | None:
    """Return the first schema_version since which names have only been added, or None if no field was ever renamed.

    `names` are those of each form's fields in documents, by schema_version.
    """
    latest = list(names[forms[-1].schema_version])
    first = None
    for form, following in pairwise(forms):
        before = list(names[form.schema_version])
        if before != latest[: len(before)]:
            first = following.schema_version
    return first


def _name(names: Sequence[str], place: int) -> str:
    return names[place] if place < len(names) else f"field_{place + 1}"
