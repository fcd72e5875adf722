"""Orders that arrive as HTTP requests, the same as those of the signal topic."""

from __future__ import annotations

import json
import uuid
from typing import Any, Final

from cdc.stream.snapshots.orders import FILTER_MAX, Acknowledge, Condition, Execute, Order, Pause, Resume, Stop, is_unicode

PATHS: Final = ("/snapshot", "/snapshot/stop", "/snapshot/pause", "/snapshot/resume", "/losses/acknowledge")


class BodyError(ValueError):
    """A body that isn't one of the path's; the text says what one is."""


def order_in(path: str, body: bytes) -> Order:
    """Return the order of a POST to one of PATHS. Raises BodyError."""
    try:
        content = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        content = {"spaces": None}
    if path == "/losses/acknowledge":
        topics = _names(content.get("topics"))
        if not topics or content.keys() != {"topics"}:
            raise BodyError('the body must be {"topics": [names]}')
        return Acknowledge(f"http-{uuid.uuid4()}", topics)
    identity, spaces = f"http-{uuid.uuid4()}", _names(content.get("spaces", ()))
    match path:
        case "/snapshot":
            where = content.get("where")
            is_text = isinstance(where, str) and 0 < len(where) <= FILTER_MAX and is_unicode(where)
            if not spaces or not (where is None or is_text) or not content.keys() <= {"spaces", "where"}:
                raise BodyError('the body must be {"spaces": [names]}, with a filter {"spaces": [names], "where": "expression"}')
            return Execute(identity, spaces, () if where is None else (Condition(None, where),), exact=True)
        case "/snapshot/stop":
            if spaces is None or not content.keys() <= {"spaces"}:
                raise BodyError('the body must be {"spaces": [names]}, or {} for all')
            return Stop(identity, spaces or None, exact=True)
        case _:
            if content:
                raise BodyError("the body must be {}")
            return Pause(identity) if path == "/snapshot/pause" else Resume(identity)


def _names(value: Any) -> tuple[str, ...] | None:
    is_list = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    return tuple(value) if is_list else None
