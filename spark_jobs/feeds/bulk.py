"""Bulk requests to OpenSearch for many documents, and the meaning of each item of the response. Pure.

A document is written with the `seq` of its change as an external version: OpenSearch refuses a version that is not newer than
the stored one (409). Therefore events may be repeated, late and in any order, and a 409 counts as success like a 201.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from spark_jobs.errors import JobError

CONFLICT: Final = 409
_MISSING: Final = 404
_REFUSING: Final = frozenset({400, 413})
"""Statuses that blame the document itself; sending it again would change nothing."""
_QUOTED: Final = re.compile(r" in document with id|[.,]? *Preview of field|, all of which were skipped|[:;] |'", re.IGNORECASE)
"""Beginnings of the parts of OpenSearch's reasons that may contain values of the row."""
_REASON_LETTERS_MAX: Final = 300

_REMEDY: Final = (
    "--on-error dead-letter keeps such records apart, and the document's previous version stays. If the field has got another "
    "type, a second job with another --index and another --checkpoint builds an index with the new type"
)
_FIRST_DELAY_SECONDS: Final = 0.1
_DELAY_SECONDS_MAX: Final = 10.0


class Place(NamedTuple):
    """Position of a record in Kafka."""

    topic: str
    partition: int
    offset: int


class Action(NamedTuple):
    """One document to write, or with no `body` to delete.

    `older` is the action to carry out instead if OpenSearch refuses this one.
    """

    into: str
    identity: str
    version: int
    body: str | None
    place: Place
    version_type: str = "external"
    older: Action | None = None

    @property
    def size(self) -> int:
        """Approximate size in the request, in bytes."""
        return len(self.body or "") + len(self.identity) + 100


class IndexRefusedError(JobError):
    """OpenSearch's refusal to create or to change the index of one space. The text says why."""


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
    instead: list[Action] = field(default_factory=list)
    """Older actions for the documents whose newest version is refused."""
    missing: str | None = None
    """Name of an index that no longer exists."""


def request(actions: Iterable[Action]) -> str:
    """Return the body of a bulk request."""
    return "".join(map(_lines, actions))


def _lines(action: Action) -> str:
    kind = "delete" if action.body is None else "index"
    head = (
        f'{{"{kind}":{{"_index":"{action.into}","_id":{json.dumps(action.identity)},"version":{action.version}'
        f',"version_type":"{action.version_type}"}}}}\n'
    )
    return head if action.body is None else f"{head}{action.body}\n"


def decide(actions: Sequence[Action], items: Sequence[Mapping[str, Any]]) -> Decision:
    """Evaluate the response's items, which are in the order of the actions."""
    decision = Decision()
    for action, item in zip(actions, items, strict=True):
        (answer,) = item.values()
        status: int = answer["status"]
        if status < 300 or status == CONFLICT:
            continue
        error = answer.get("error", {})
        if action.body is None and status == _MISSING and not error:
            continue  # nothing to delete
        kind, reason = error.get("type", "error"), error.get("reason", "")
        if error.get("type") == "index_not_found_exception":
            decision.missing = action.into
        elif status in _REFUSING:
            decision.refused.append(refuse(action, f"OpenSearch refuses ({status} {kind}: {without_values(reason)})"))
            if action.older is not None:
                decision.instead.append(action.older)
        else:
            decision.again.append(action)
            decision.why_again = f"{status} {kind}: {reason}"
    return decision


def refuse(action: Action, why: str) -> Refused:
    """Return the refusal of an action that is given up."""
    return Refused(action.place, f"{where(action.place)}: {why} the document of this row in {action.into}. {_REMEDY}")


def without_values(reason: str) -> str:
    """Return OpenSearch's reason without the parts that may contain values of the row, which no message may show."""
    return _QUOTED.split(reason, maxsplit=1)[0][:_REASON_LETTERS_MAX]


def where(place: Place) -> str:
    """Return a position as text."""
    return f"topic {place.topic}, partition {place.partition}, offset {place.offset}"


def newest(actions: Iterable[Action]) -> list[Action]:
    """Return only the newest action for each document, each with the next older ones behind it."""
    found: dict[tuple[str, str], list[Action]] = {}
    for action in actions:
        found.setdefault((action.into, action.identity), []).append(action)
    return [some[0] if len(some) == 1 else _linked(some) for some in found.values()]


def _linked(actions: list[Action]) -> Action:
    first, *others = sorted({action.version: action for action in reversed(actions)}.values(), key=lambda one: one.version)
    for action in others:
        first = action._replace(older=first)
    return first


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
