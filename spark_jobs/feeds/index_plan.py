"""Required state of indexes and aliases, compared with their actual state. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from spark_jobs.feeds import documents
from spark_jobs.feeds.bulk import IndexRefusedError
from spark_jobs.feeds.field_names import count_of
from spark_jobs.feeds.opensearch import FIELDS_MAX, FIELDS_SETTING, Index


def index_body(
    properties: Mapping[str, Any],
    meta: Mapping[str, Any],
    write_alias: str,
    above: Mapping[str, Any],
    *,
    is_dynamic: bool = False,
) -> dict[str, Any]:
    """Return the body for creating an index: the job's, merged with the user's (`above`), whose members win.

    Unless it `is_dynamic`, fields without a mapping are stored and not indexed.
    """
    mappings: dict[str, Any] = {"_meta": {"tarantool_cdc": dict(meta)}, "properties": dict(properties)}
    if not is_dynamic:
        mappings["dynamic"] = False
    body = deep_merged({"mappings": mappings, "aliases": {write_alias: {"is_write_index": True}}}, above)
    limit = wanted_limit(body["mappings"]["properties"])
    if limit > FIELDS_MAX and "total_fields" not in str(above.get("settings")):
        body["settings"] = {FIELDS_SETTING: limit, **body.get("settings", {})}
    return body


def joined(index: Index, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that an index must have: what it has, joined with what was `known` of it before.

    The filters of the aliases have the floor, too.
    """
    aliases = dict.fromkeys((*known.get("aliases", []), *index.meta.get("aliases", [])))
    filters = (index.aliases.get(alias, {}).get("filter") for alias in aliases)
    floors = (index.meta.get("floor"), known.get("floor"), *map(documents.floor_of, filters))
    floor = max((one for one in floors if one is not None), default=-1)
    return {**index.meta, "floor": floor, "aliases": list(aliases)}


def wanted_limit(properties: Mapping[str, Any]) -> int:
    """Return the limit for the fields of an index with these properties: OpenSearch's default, or more if they need it."""
    count = count_of(properties)
    return FIELDS_MAX if count <= FIELDS_MAX else 2 * count


def deep_merged(body: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `body` merged with `above`, whose members win. The mapping of a field is replaced completely."""
    merged = dict(body)
    for name, value in above.items():
        ours = merged.get(name)
        if isinstance(ours, Mapping) and isinstance(value, Mapping) and "type" not in value:
            merged[name] = deep_merged(ours, value)
        else:
            merged[name] = value
    return merged


def missing_properties(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a form's properties that the index lacks. OpenSearch takes a name with dots as a field within an object.

    A field whose type changes keeps its mapping, because OpenSearch can't change one. Values that no longer fit it are stored
    and not indexed, or refused, until the index is built again.
    """
    return {name: mapping for name, mapping in wanted.items() if not _has(found, name.split("."))}


class Aliases:
    """Aliases that the job's indexes must have."""

    def __init__(self, indexes: Collection[str]) -> None:
        """`indexes` are the names of all indexes that the job may have created."""
        self._indexes = set(indexes)
        self._wanted: dict[str, tuple[str, str]] = {}

    def want(self, alias: str, index: str, space: str) -> None:
        """Require that a space's alias leads to its index. Raises IndexRefusedError."""
        if alias in self._wanted:
            raise IndexRefusedError(
                f"the spaces {self._wanted[alias][1]!r} and {space!r} would both be called {alias!r}, as OpenSearch allows no "
                "capital letters. Choose one of them (--spaces), and give the other one to another job with another --index."
            )
        if alias in self._indexes:
            raise IndexRefusedError(
                f"the space {space!r} would be called {alias!r}, as an index of this job is. Choose another --index."
            )
        self._wanted[alias] = (index, space)

    def changes(self, found: Mapping[str, Index], keeps: Mapping[str, str | None]) -> list[dict[str, Any]]:
        """Return the actions to carry out in one request.

        Aliases that the job didn't create stay. So do those in `keeps` (index → its alias, None for all), until another space
        takes the name.
        """
        actions: list[dict[str, Any]] = []
        for index in found.values():
            for alias in index.meta.get("aliases", []):
                target = self._wanted.get(alias)
                is_kept = target is None and index.name in keeps and keeps[index.name] in (alias, None)
                if alias in index.aliases and not is_kept and (target is None or target[0] != index.name):
                    actions.append({"remove": {"index": index.name, "alias": alias}})
        for alias, (name, _) in self._wanted.items():
            visible = documents.visible(found[name].meta.get("floor", -1))
            if found[name].aliases.get(alias, {}).get("filter") != visible:
                actions.append({"add": {"index": name, "alias": alias, "filter": visible}})
        return actions


def _has(properties: Mapping[str, Any], path: list[str]) -> bool:
    first, *others = path
    if ".".join(path) in properties:
        return True
    if first not in properties:
        return False
    return not others or _has(properties[first].get("properties", {}), others)
