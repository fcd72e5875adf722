"""Names of a row's fields in the documents of a search index. Pure.

OpenSearch reads a name with dots as a path through objects, and keeps some names for itself. So it can't store the fields `a`
and `a.b` of one row, nor a field `_id`. In documents such a field has another name: each dot is written as `~2e`, and an
underscore at the beginning as `~5f`. If that name is taken too, `~` follows it. All other fields keep their names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

META: Final = "_cdc"
"""Member of each document that doesn't come from the row."""

_OWN: Final = frozenset(
    {
        *("_data_stream_timestamp", "_doc_count", "_field_names", "_id", "_ignored", "_index", "_nested_path", "_routing"),
        *("_seq_no", "_source", "_version", META),
    }
)
"""Names that documents can't have for a field of the row."""

_DEPTH_MAX: Final = 20
"""OpenSearch's default limit for the parts of a path (`index.mapping.depth.limit`)."""

_Path = tuple[str, ...]


def stored_names(fields: Sequence[tuple[str, bool]], properties: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names in documents for the fields of a form: their names, each with whether its value may be an object.

    `properties` are those that the index has. They never change, so the same fields always get the same names, and fields that
    are added later don't change the names of earlier ones.
    """
    values, objects = _paths(properties)
    known_objects = set(objects)
    names: list[str] = []
    for name, may_be_object in fields:
        # A property of the index that is an object takes objects of this field, unless other fields of the form are within it.
        own = known_objects if may_be_object else frozenset()
        stored = name
        if name in names or not _is_storable(name) or not _is_free(_path(name), values, objects, own):
            stored = _escaped(name)
            while stored in names or not _is_free(_path(stored), values, objects, ()):
                stored += "~"
        path = _path(stored)
        within = {path[:end] for end in range(1, len(path))}
        values.add(path)
        objects |= within
        known_objects -= within
        names.append(stored)
    return tuple(names)


def count_of(properties: Mapping[str, Any]) -> int:
    """Return how many fields OpenSearch counts in these properties: objects, and further fields of a field, count too."""
    return sum(
        1 + count_of(mapping.get("properties", {})) + count_of(mapping.get("fields", {})) for mapping in properties.values()
    ) + sum(name.count(".") for name in properties)


def _is_storable(name: str) -> bool:
    parts = name.split(".")
    return parts[0] not in _OWN and len(parts) <= _DEPTH_MAX and all(part.strip() for part in parts)


def _escaped(name: str) -> str:
    written = f"~5f{name[1:]}" if name.startswith("_") else name
    return written.replace(".", "~2e") or "~"


def _is_free(path: _Path, values: Collection[_Path], objects: Collection[_Path], own: Collection[_Path]) -> bool:
    """Return whether a field can have this path: no part of the way is a value, and there is no object at its end."""
    is_blocked = any(path[:end] in values for end in range(1, len(path)))
    return not is_blocked and (path not in objects or path in own)


def _path(name: str) -> _Path:
    return tuple(name.split("."))


def _paths(properties: Mapping[str, Any], above: _Path = ()) -> tuple[set[_Path], set[_Path]]:
    """Return the paths of the properties that hold values, and of those that are objects with properties."""
    values: set[_Path] = set()
    objects: set[_Path] = set()
    for name, mapping in properties.items():
        path = (*above, *_path(name))
        objects |= {path[:end] for end in range(len(above) + 1, len(path))}
        if "properties" in mapping and mapping.get("type", "object") == "object":
            objects.add(path)
            inner_values, inner_objects = _paths(mapping["properties"], path)
            values |= inner_values
            objects |= inner_objects
        else:
            values.add(path)
    return values, objects
