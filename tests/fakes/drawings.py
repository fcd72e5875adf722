"""Pages of docs/ that show decisions: states with the inputs that move them, and the decision at every start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import product
from typing import Any, Final

from cdc.errors import PositionError
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.protocol import states
from cdc.protocol.ballot import Ballot
from cdc.stream.commits import handover
from cdc.upstream.resume import Policy
from cdc.upstream.start import Known, plan
from tests.fakes.marked import MARK, first_lines


def connection() -> Iterator[str]:
    """One connection's states."""
    yield from _drawn("connection-states.md", states.State.GREETING, states.TRANSITIONS)


def publisher() -> Iterator[str]:
    """The publisher's states."""
    yield from _drawn("publisher-states.md", handover.State.RUNNING, handover.TRANSITIONS)


def _drawn(page: str, first: Enum, transitions: Mapping[Any, Mapping[Any, Any]]) -> Iterator[str]:
    yield from first_lines(page)
    yield MARK
    yield ""
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield f"    [*] --> {first.name}"
    for state, moves in transitions.items():
        for cause, following in moves.items():
            yield f"    {state.name} --> {following.name}: {cause.name.lower()}"
    yield "```"


_SNAPSHOT: Final = SnapshotState(1, is_complete=True)
_CHECKPOINT: Final = Position(VClock({1: 15}), seq=15, snapshot=_SNAPSHOT)
_INTERRUPTED: Final = Position(VClock({1: 15}), seq=15, snapshot=SnapshotState(1, is_complete=False))
_CHECKPOINTS: Final = {"none yet": None, "complete": _CHECKPOINT, "in a snapshot": _INTERRUPTED}
_STORES: Final[dict[str, Position | None]] = {
    "none (`state.images` = `none`)": None,
    "empty": None,
    "at the checkpoint": _CHECKPOINT,
    "behind it": Position(VClock({1: 12}), seq=12, snapshot=_SNAPSHOT),
    "ahead of it": Position(VClock({1: 17}), seq=17, snapshot=_SNAPSHOT),
}
_MEMBERS: Final = {
    "has all logs": Ballot(VClock({1: 20}), VClock({1: 10}), is_read_only=False, is_ready=True),
    "lacks logs": Ballot(VClock({1: 20}), VClock({1: 16}), is_read_only=False, is_ready=True),
    "lacks changes": Ballot(VClock({1: 14}), VClock({1: 10}), is_read_only=False, is_ready=True),
}


def starts() -> Iterator[str]:
    """Return the page with the decision at every start."""
    yield from first_lines("starts.md")
    yield MARK
    yield ""
    yield "| checkpoint | state store | the member | the policy is to take a snapshot | the policy is to stop |"
    yield "|---|---|---|---|---|"
    for (checkpoint, position), (store, stored) in product(_CHECKPOINTS.items(), _STORES.items()):
        if position is not _CHECKPOINT and stored not in (None, _CHECKPOINT):
            continue  # unless both have a complete snapshot, the store is at the checkpoint or useless
        if position is None and stored is not None:
            continue
        known = Known(position, not store.startswith("none"), position if stored is _CHECKPOINT else stored)
        found = {
            member: f"{_in_words(known, ballot, 'resnapshot')} | {_in_words(known, ballot, 'fail')}"
            for member, ballot in _MEMBERS.items()
        }
        if len(set(found.values())) == 1:
            found = {"any": found["has all logs"]}
        for member, decisions in found.items():
            yield f"| {checkpoint} | {store} | {member} | {decisions} |"


def _in_words(known: Known, ballot: Ballot, policy: Policy) -> str:
    known = Known(known.checkpoint, known.has_store, known.store, on_gap=policy, on_divergence=policy)
    try:
        found = plan(known, ballot)
    except PositionError:
        return "stops"
    if found.catch_up_to is not None:
        return "brings the store up to the checkpoint, then resumes from there"
    if found.snapshot is None:
        return "resumes from the checkpoint"
    if found.clears_store is not None:
        return "empties the store; a snapshot, compared with nothing"
    is_compared = known.has_store and known.store is not None
    return f"a snapshot, compared with {'the store' if is_compared else 'nothing'}"
