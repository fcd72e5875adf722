"""Without a store: what events the rows of a log have, and consumers of patches and of the log's own images (docs/events.md).

Where state.images changes from one start to the next, an event is as either of them has it, and consumers hold the same rows.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from cdc.protocol.constants import Key, Type
from tests.fakes.consumer import Consumer
from tests.fakes.fates import Contents, Expected
from tests.fakes.master import LogRow, Row
from tests.fakes.shop import Sent


class ImagelessContents(Contents):
    """What a consumer must hold, and the events that lead there if the daemon keeps no rows."""

    def _events(self, row: LogRow) -> list[Expected]:
        known, space_id = set(self.rows), row.body.get(Key.SPACE_ID)
        found = super()._events(row)
        if space_id not in known or space_id not in self.rows:
            return found
        match row.kind:
            case Type.NOP:
                return []
            case Type.DELETE:  # of a key that isn't there, too
                return [Expected(row.lsn, space_id, "d", None)]
            case Type.UPDATE | Type.UPSERT:
                return [Expected(row.lsn, space_id, "u", None)]
        return [replace(one, op="c" if row.kind == Type.INSERT else "u") for one in found]


class SourceContents(Contents):
    """The same, if the images are the log's own: a DELETE of a key that isn't there has an event, too."""

    def _events(self, row: LogRow) -> list[Expected]:
        space_id = row.body.get(Key.SPACE_ID)
        is_known = space_id in self.rows
        found = super()._events(row)
        if row.kind == Type.DELETE and is_known and space_id is not None and not found:
            return [Expected(row.lsn, space_id, "d", None)]
        return found


class MixedContents:
    """The same, if state.images changes: each event that one of the ways has, and which of them all have."""

    def __init__(self) -> None:
        self._ways = [Contents(), ImagelessContents(), SourceContents()]
        self.optional: set[tuple[int, int, int]] = set()
        """Origin, lsn and space of rows that have an event in some ways only."""

    @property
    def rows(self) -> dict[int, dict[bytes, Row]]:
        """The rows of the spaces."""
        return self._ways[0].rows

    def _events(self, row: LogRow) -> list[Expected]:
        by_way = [way._events(row) for way in self._ways]
        found: list[Expected] = []
        for one in itertools.chain(*by_way):
            if one not in found:
                found.append(one)
        if not all(by_way):
            self.optional |= {(row.origin, one.lsn, one.space_id) for one in found}
        return found


class SourceRows(Consumer):
    """A consumer of events whose images are the log's own."""

    def _apply(self, sent: Sent) -> None:
        if sent.op == "d" and sent.value["before"] is None:
            rows, key = self.rows.get(sent.source["space_id"], {}), json.dumps(sent.key)
            assert key not in rows, f"seq {sent.source['seq']} deletes {key} without showing the row"
            return
        super()._apply(sent)


class PatchedRows:
    """Rows by space and key, with the seq of the last event of each. Each event comes once."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, tuple[int, dict[str, Any]]]] = {}

    def take(self, messages: Iterable[Sent]) -> None:
        """Apply messages in their order. Raises AssertionError if a patch has no row."""
        for sent in messages:
            if sent.op is not None:
                self._apply(sent)
            elif isinstance(sent.value, dict) and sent.value.get("status") == "COMPLETED":
                for space in sent.value["spaces"]:
                    self.sweep(space["space_id"], space["sweep_seq"])

    def contents(self, space_id: int) -> list[dict[str, Any]]:
        """A space's rows."""
        return [row for _, row in self._rows.get(space_id, {}).values()]

    def sweep(self, space_id: int, seq: int) -> None:
        """Drop the rows of a space that no event after this one has touched."""
        rows = self._rows.get(space_id, {})
        for key in [key for key, (of_row, _) in rows.items() if of_row <= seq]:
            del rows[key]

    def _check_before(self, _: dict[str, Any] | None, sent: Sent) -> None:
        assert sent.value["before"] is None, f"seq {sent.source['seq']} has the row before, and nobody keeps rows"

    def _apply(self, sent: Sent) -> None:
        rows, key, seq = self._rows.setdefault(sent.source["space_id"], {}), json.dumps(sent.key), sent.source["seq"]
        self._check_before(rows[key][1] if key in rows else None, sent)
        if sent.op == "t":
            rows.clear()
        elif sent.op == "d":
            rows.pop(key, None)
        elif sent.value["after"] is not None:
            rows[key] = seq, sent.value["after"]
        elif key not in rows:
            assert "upsert" in sent.value, f"seq {seq} is a patch of {key}, which isn't there"
            rows[key] = seq, sent.value["upsert"]
        else:
            row = dict(rows[key][1])
            for step in sent.value["patch"]:
                place = step["field"]
                row[place] = step["value"] if step["op"] == "=" else row[place] + step["value"]
            rows[key] = seq, row


class MixedRows(PatchedRows):
    """The same, with images at times: what an event shows as the row before is the row."""

    def _check_before(self, row: dict[str, Any] | None, sent: Sent) -> None:
        before = sent.value["before"]
        assert before in (None, row), f"seq {sent.source['seq']} has {before} as the row before, which is {row}"
