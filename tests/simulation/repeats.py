"""A consumer of at_least_once delivery: events may come again, so the highest `seq` of a key counts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.fakes.shop import Sent


class LastSeqs:
    """Rows by space and key, each with the `seq` that made it; a row that is gone keeps its `seq`."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, tuple[int, dict[str, Any] | None]]] = {}
        # By space: up to which seq all rows are gone.
        self._emptied: dict[int, int] = {}

    def take(self, messages: Iterable[Sent]) -> None:
        """Apply messages, in any order."""
        for sent in messages:
            if sent.op == "t":
                self.sweep(sent.source["space_id"], sent.source["seq"])
            elif sent.op is not None:
                self._put(sent)
            elif isinstance(sent.value, dict) and sent.value.get("status") == "COMPLETED":
                for space in sent.value["spaces"]:
                    self.sweep(space["space_id"], space["sweep_seq"])

    def contents(self, space_id: int) -> list[dict[str, Any]]:
        """A space's rows."""
        return [row for _, row in self._rows.get(space_id, {}).values() if row is not None]

    def _put(self, sent: Sent) -> None:
        space_id, seq = sent.source["space_id"], sent.source["seq"]
        rows, key = self._rows.setdefault(space_id, {}), json.dumps(sent.key)
        if seq > self._emptied.get(space_id, 0) and seq >= rows.get(key, (0, None))[0]:
            rows[key] = seq, sent.value["after"]

    def sweep(self, space_id: int, seq: int) -> None:
        """Drop the rows of a space that no event after this one has touched."""
        self._emptied[space_id] = max(seq, self._emptied.get(space_id, 0))
        rows = self._rows.get(space_id, {})
        for key in [key for key, (of_row, _) in rows.items() if of_row <= seq]:
            del rows[key]
