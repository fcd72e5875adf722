"""What the job `search_index` notes in the metadata of its indexes: the floor, and the aliases that it has created.

OpenSearch can't change metadata on a condition. Of two jobs for one index, one may therefore write back what it read before the
other one's change. The floor never falls and aliases are only added, so the higher floor and all aliases are always right. A job
sets metadata right again wherever it reads less than it knew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from spark_jobs.feeds.index_plan import joined
from spark_jobs.feeds.opensearch import Index, Indexes

_OURS: Final = "tarantool_cdc"


class IndexMetas:
    """The metadata of the indexes with one prefix's rows."""

    def __init__(self, indexes: Indexes, prefix: str) -> None:
        """Nothing is known yet."""
        self._indexes = indexes
        self._prefix = prefix
        self._known: dict[str, Mapping[str, Any]] = {}
        """By OpenSearch's ids of the indexes."""

    def describe(self, names: Iterable[str]) -> dict[str, Index]:
        """Return those of the indexes that exist, by name, with their metadata set right. Raises IndexRefusedError."""
        found = self._indexes.describe(list(names))
        for name, index in found.items():
            if self.owns(index):
                meta = joined(index, self._known.get(index.identity, {}))
                if meta != index.meta:
                    self.put(index, meta)
                found[name] = replace(index, meta=meta)
                self._known[index.identity] = meta
        return found

    def owns(self, index: Index) -> bool:
        """Return whether an index has this prefix's rows."""
        return bool(index.meta.get("prefix") == self._prefix)

    def put(self, index: Index, meta: Mapping[str, Any], **change: Any) -> None:
        """Change an index's metadata, together with other parts of its mapping. Raises IndexRefusedError."""
        self._indexes.put_mapping(index.name, {**change, "_meta": {_OURS: dict(meta)}})
        self._known[index.identity] = meta
