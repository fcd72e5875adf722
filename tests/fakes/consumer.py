"""A consumer that keeps rows: what docs/events.md tells it to do with events that have images, and what it then holds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.fakes.shop import Sent


class Consumer:
    """Rows by space and key, with the seq of the last event of each."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, dict[str, Any]]] = {}
        self._seqs: dict[int, dict[str, int]] = {}
        self._has_letters = False

    def take(self, messages: Iterable[Sent]) -> list[Sent]:
        """Apply messages in their order; returns the events. Raises AssertionError if one contradicts what was before."""
        events = []
        for sent in messages:
            if sent.op is not None:
                self._apply(sent)
                events.append(sent)
            elif sent.topic.endswith(".dlq"):
                self._has_letters = True
            elif isinstance(sent.value, dict) and sent.value.get("status") == "COMPLETED":
                for space in sent.value["spaces"]:
                    self.sweep(space["space_id"], space["sweep_seq"])
        return events

    def contents(self, space_id: int) -> list[dict[str, Any]]:
        """A space's rows, in an order that depends on nothing else."""
        return sorted(self.rows.get(space_id, {}).values(), key=json.dumps)

    def filled(self) -> set[int]:
        """The spaces that have rows."""
        return {space_id for space_id, rows in self.rows.items() if rows}

    def _apply(self, sent: Sent) -> None:
        space_id = sent.source["space_id"]
        rows, seqs = self.rows.setdefault(space_id, {}), self._seqs.setdefault(space_id, {})
        if sent.op == "t":
            rows.clear()
            seqs.clear()
            return
        key, where = json.dumps(sent.key), f"seq {sent.source['seq']}, {sent.op} of {sent.key}"
        before, after = sent.value["before"], sent.value["after"]
        is_untold = before is None and self._has_letters  # what is a dead letter can't be shown as a row before either
        assert is_untold or (before is None) == (sent.op in ("c", "r")), where
        assert (after is None) == (sent.op == "d"), where
        if sent.op != "r" and not is_untold:
            assert before == rows.get(key), where
        if after is None:
            assert is_untold or key in rows, where
            rows.pop(key, None)
            seqs.pop(key, None)
        else:
            rows[key], seqs[key] = after, sent.source["seq"]

    def sweep(self, space_id: int, sweep_seq: int) -> None:
        """Drop the rows of a space that no event after this one has touched."""
        for key in [key for key, seq in self._seqs.get(space_id, {}).items() if seq <= sweep_seq]:
            del self.rows[space_id][key], self._seqs[space_id][key]
