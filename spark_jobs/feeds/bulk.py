"""What is asked of OpenSearch for many documents at once, and what its answer means for each. Pure.

A document is written under the `seq` of its change as an external version: OpenSearch refuses what is not newer than what it
has (409). So events may come again, late and in any order, and a 409 is as good as a 201.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

CONFLICT: Final = 409
_REFUSING: Final = frozenset({400, 413})
"""It is the document's own fault; sending it again would change nothing."""

_FIRST_DELAY_SECONDS: Final = 0.1
_DELAY_SECONDS_MAX: Final = 10.0


class Place(NamedTuple):
    """Where a record stands in Kafka."""

    topic: str
    partition: int
    offset: int


class Action(NamedTuple):
    """One document to be written."""

    into: str
    identity: str
    version: int
    body: str
    place: Place
    version_type: str = "external"

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return len(self.body) + len(self.identity) + 100


class Refused(NamedTuple):
    """A record that can't become a document, and why."""

    place: Place
    sentence: str


@dataclass
class Decision:
    """What to do about each action of a request."""

    again: list[Action] = field(default_factory=list)
    why_again: str = ""
    refused: list[Refused] = field(default_factory=list)
    missing: str | None = None
    """An index that is gone."""


def request(actions: Iterable[Action]) -> str:
    """The body of a request."""
    return "".join(
        f'{{"index":{{"_index":"{action.into}","_id":{json.dumps(action.identity)},"version":{action.version}'
        f',"version_type":"{action.version_type}"}}}}\n{action.body}\n'
        for action in actions
    )


def decide(actions: Sequence[Action], items: Sequence[Mapping[str, Any]]) -> Decision:
    """What the answers to single actions mean, in their order."""
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
    """An action that is given up."""
    return Refused(action.place, f"{where(action.place)}: {why} the document {action.identity[:200]} of {action.into}")


def where(place: Place) -> str:
    """A place in words."""
    return f"topic {place.topic}, partition {place.partition}, offset {place.offset}"


def newest(actions: Iterable[Action]) -> list[Action]:
    """Of the actions on one document, only the newest."""
    found: dict[tuple[str, str], Action] = {}
    for action in actions:
        known = found.get((action.into, action.identity))
        if known is None or known.version < action.version:
            found[action.into, action.identity] = action
    return list(found.values())


def chunks(actions: Iterable[Action], count_max: int, bytes_max: int) -> Iterator[list[Action]]:
    """Actions in requests of at most so many, and about so many bytes; one alone may be larger."""
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
    """How long to wait before each further attempt, until they have taken this long together."""
    delay, waited = _FIRST_DELAY_SECONDS, 0.0
    while waited < limit_seconds:
        yield delay
        waited += delay
        delay = min(delay * 2, _DELAY_SECONDS_MAX)
