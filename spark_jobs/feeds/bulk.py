"""Bulk requests to OpenSearch for many documents, and the meaning of each item of the response. Pure.

A document is written with the `seq` of its change as an external version: OpenSearch refuses a version that is not newer than
the stored one (409). Therefore events may be repeated, late and in any order, and a 409 counts as success like a 201.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

CONFLICT: Final = 409
_REFUSING: Final = frozenset({400, 413})
"""Statuses that blame the document itself; sending it again would change nothing."""

_FIRST_DELAY_SECONDS: Final = 0.1
_DELAY_SECONDS_MAX: Final = 10.0


class Place(NamedTuple):
    """Position of a record in Kafka."""

    topic: str
    partition: int
    offset: int


class Action(NamedTuple):
    """One document to write."""

    into: str
    identity: str
    version: int
    body: str
    place: Place
    version_type: str = "external"

    @property
    def size(self) -> int:
        """Approximate size in the request, in bytes."""
        return len(self.body) + len(self.identity) + 100


class Refused(NamedTuple):
    """A record that can't become a document, and the reason."""

    place: Place
    sentence: str


@dataclass
class Decision:
    """Consequences of a response for the actions of its request."""

    again: list[Action] = field(default_factory=list)
    why_again: str = ""
    refused: list[Refused] = field(default_factory=list)
    missing: str | None = None
    """Name of an index that no longer exists."""


def request(actions: Iterable[Action]) -> str:
    """Return the body of a bulk request."""
    return "".join(
        f'{{"index":{{"_index":"{action.into}","_id":{json.dumps(action.identity)},"version":{action.version}'
        f',"version_type":"{action.version_type}"}}}}\n{action.body}\n'
        for action in actions
    )


def decide(actions: Sequence[Action], items: Sequence[Mapping[str, Any]]) -> Decision:
    """Evaluate the response's items, which are in the order of the actions."""
    decision = Decision()
    for action, item in zip(actions, items, strict=True):
        (answer,) = item.values()
        status: int = answer["status"]
        if status < 300 or status == CONFLICT:
            continue
        error = answer.get("error", {})
        reason = f"{error.get('type', 'error')}: {error.get('reason', '')}"
        if error.get("type") == "index_not_found_exception":
            decision.missing = action.into
        elif status in _REFUSING:
            decision.refused.append(refuse(action, f"OpenSearch refuses ({status} {reason})"))
        else:
            decision.again.append(action)
            decision.why_again = f"{status} {reason}"
    return decision


def refuse(action: Action, why: str) -> Refused:
    """Return the refusal of an action that is given up."""
    return Refused(action.place, f"{where(action.place)}: {why} the document {action.identity[:200]} of {action.into}")


def where(place: Place) -> str:
    """Return a position as text."""
    return f"topic {place.topic}, partition {place.partition}, offset {place.offset}"


def newest(actions: Iterable[Action]) -> list[Action]:
    """Return only the newest action for each document."""
    found: dict[tuple[str, str], Action] = {}
    for action in actions:
        known = found.get((action.into, action.identity))
        if known is None or known.version < action.version:
            found[action.into, action.identity] = action
    return list(found.values())


def chunks(actions: Iterable[Action], count_max: int, bytes_max: int) -> Iterator[list[Action]]:
    """Split actions into requests of at most `count_max` actions and about `bytes_max` bytes; a single action may be larger."""
    chunk: list[Action] = []
    size = 0
    for action in actions:
        if chunk and (len(chunk) >= count_max or size + action.size > bytes_max):
            yield newest(chunk)
            chunk, size = [], 0
        chunk.append(action)
        size += action.size
    if chunk:
        yield newest(chunk)


def delays(limit_seconds: float) -> Iterator[float]:
    """Yield the delay before each further attempt, in seconds, until the delays add up to `limit_seconds`."""
    delay, waited = _FIRST_DELAY_SECONDS, 0.0
    while waited < limit_seconds:
        yield delay
        waited += delay
        delay = min(delay * 2, _DELAY_SECONDS_MAX)
