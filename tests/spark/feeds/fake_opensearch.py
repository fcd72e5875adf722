"""A stand-in for OpenSearch's bulk interface, with external versions, that can be told to fail."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class FakeBulk:
    """Documents by index and id; `troubles` are what the next requests meet: an exception, or a status for each item."""

    def __init__(self) -> None:
        self.documents: dict[tuple[str, str], tuple[int, dict[str, Any]]] = {}
        self.troubles: list[Exception | int | None] = []
        self.requests: list[int] = []
        self.indexes: set[str] | None = None

    def __call__(self, body: str) -> Sequence[Mapping[str, Any]]:
        actions = list(_actions(body))
        self.requests.append(len(actions))
        trouble = self.troubles.pop(0) if self.troubles else None
        if isinstance(trouble, Exception):
            raise trouble
        answers = []
        for place, (kind, action, document) in enumerate(actions):
            # With a status for items, every second one meets it.
            answers.append({kind: self._one(action, document, trouble if place % 2 == 0 else None)})
        return answers if any(answer["status"] >= 300 for one in answers for answer in one.values()) else []

    def _one(self, action: dict[str, Any], document: dict[str, Any] | None, status: int | None) -> dict[str, Any]:
        if self.indexes is not None and action["_index"] not in self.indexes:
            return {"status": 404, "error": {"type": "index_not_found_exception", "reason": "no such index"}}
        if status is not None:
            return {"status": status, "error": {"type": "es_rejected_execution_exception", "reason": "rejected"}}
        if document is not None and any(value == "refuse me" for value in document.values()):
            return {"status": 400, "error": {"type": "mapper_parsing_exception", "reason": "failed to parse"}}
        known, _ = self.documents.get((action["_index"], action["_id"]), (-1, {}))
        if action["version"] < known or (action["version"] == known and action["version_type"] == "external"):
            return {"status": 409, "error": {"type": "version_conflict_engine_exception", "reason": "older"}}
        if document is None:
            return {"status": 200 if self.documents.pop((action["_index"], action["_id"]), None) else 404}
        self.documents[action["_index"], action["_id"]] = (action["version"], document)
        return {"status": 200 if known >= 0 else 201}


def _actions(body: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any] | None]]:
    lines = iter(body.splitlines())
    for head in lines:
        ((kind, action),) = json.loads(head).items()
        yield kind, action, json.loads(next(lines)) if kind == "index" else None
