"""What indexes and aliases must be like, against what they are. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from spark_jobs.errors import JobError
from spark_jobs.feeds import documents
from spark_jobs.feeds.opensearch import Index


def index_body(
    properties: Mapping[str, Any], meta: Mapping[str, Any], write_alias: str, *, is_dynamic: bool = False
) -> dict[str, Any]:
    """The body that an index is made with. Unless it `is_dynamic`, fields that aren't named are kept and not searched."""
    mappings: dict[str, Any] = {"_meta": {"tarantool_cdc": dict(meta)}, "properties": dict(properties)}
    if not is_dynamic:
        mappings["dynamic"] = False
    return {"mappings": mappings, "aliases": {write_alias: {"is_write_index": True}}}


def deep_merged(body: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """A body with another one's members in it, which win. A field's mapping is replaced as a whole."""
    merged = dict(body)
    for name, value in above.items():
        ours = merged.get(name)
        if isinstance(ours, Mapping) and isinstance(value, Mapping) and "type" not in value:
            merged[name] = deep_merged(ours, value)
        else:
            merged[name] = value
    return merged


def missing_properties(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Of a form's fields, those that the index doesn't know. A name with dots is a field within an object for OpenSearch.

    A field that is given another type keeps its mapping: OpenSearch can't change one. What no longer fits it is kept and not
    searched, or refused, until the index is built anew.
    """
    return {name: mapping for name, mapping in wanted.items() if not _has(found, name.split("."))}


class Aliases:
    """Which aliases the job's indexes must have."""

    def __init__(self, indexes: Collection[str]) -> None:
        """`indexes` are all that the job may have made."""
        self._indexes = set(indexes)
        self._wanted: dict[str, tuple[str, str]] = {}

    def want(self, alias: str, index: str, space: str) -> None:
        """A space's alias leads to its index. Raises JobError."""
        if alias in self._wanted:
            raise JobError(
                f"The spaces {self._wanted[alias][1]!r} and {space!r} would both be called {alias!r}, as OpenSearch takes no "
                "capital letters. Choose one of them (--spaces), and the other one by another job with another --index."
            )
        if alias in self._indexes:
            raise JobError(f"The space {space!r} would be called {alias!r}, as an index of this job is. Choose another --index.")
        self._wanted[alias] = (index, space)

    def changes(self, found: Mapping[str, Index], keeps: Collection[str] = ()) -> list[dict[str, Any]]:
        """The actions, all to be carried out at once.

        Aliases that the job hasn't given are left alone, and so are those of the indexes in `keeps`, whose spaces are dropped:
        searches find nothing there, instead of failing, until another space takes the name.
        """
        actions: list[dict[str, Any]] = []
        for index in found.values():
            for alias in index.meta.get("aliases", []):
                target = self._wanted.get(alias)
                is_kept = target is None and index.name in keeps
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
