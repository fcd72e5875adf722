"""Which edges of the daemon's state diagrams a world walks, and how often.

The diagrams are the product's own tables: a connection's states (docs/connection-states.md) and a publisher's
(docs/publisher-states.md). The daemon's own states are what it shows as `state`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from cdc.protocol import states
from cdc.protocol.session import Session
from cdc.stream.commits import handover
from cdc.stream.commits.handover import Handover


def publisher_edge(state: handover.State, cause: handover.Input) -> str:
    """Name an edge."""
    return f"publisher: {state.name} --{cause.name}-> {handover.TRANSITIONS[state][cause].name}"


def connection_edge(state: states.State, cause: states.Input) -> str:
    """Name an edge."""
    return f"connection: {state.name} --{cause.name}-> {states.TRANSITIONS[state][cause].name}"


def all_edges() -> set[str]:
    """Every edge of the tables."""
    of_publisher = {publisher_edge(state, cause) for state, causes in handover.TRANSITIONS.items() for cause in causes}
    return of_publisher | {connection_edge(state, cause) for state, causes in states.TRANSITIONS.items() for cause in causes}


@contextmanager
def counted(walked: Counter[str]) -> Iterator[None]:
    """Count the edges that are walked meanwhile."""

    def counting(move: Callable[..., None], name: Callable[[Any, Any], str]) -> Callable[..., None]:
        def counted_move(self: Any, cause: Any) -> None:
            before = self.state
            move(self, cause)
            walked[name(before, cause)] += 1

        return counted_move

    with (
        patch.object(Handover, "_move", counting(Handover._move, publisher_edge)),
        patch.object(Session, "_move", counting(Session._move, connection_edge)),
        patch.object(Session, "_request", counting(Session._request, connection_edge)),
    ):
        yield
