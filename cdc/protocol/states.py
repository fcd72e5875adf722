"""The state machine of one connection, as a table: the requests allowed in each state, and the packets that may arrive.

    GREETING ──greeting──▶ READY ──authenticate──▶ AUTHENTICATING ──ok──▶ READY
                             │ ├──identify──▶ IDENTIFYING ──ok──▶ READY
                             │ ├──vote──▶ VOTING ──ok──▶ READY
                             │ ├──select──▶ SELECTING ──ok──▶ READY
                             │ ├──delete──▶ DELETING ──ok──▶ READY
                             │ ├──fetch_snapshot──▶ FETCHING ──ok──▶ META ──▶ SNAPSHOT ──ok──▶ READY
                             │ ├──join──▶ JOINING ──ok──▶ JOIN_META ──▶ JOIN_SNAPSHOT ──ok──▶ JOIN_FINAL ──ok──▶ READY
                             │ ├──register──▶ REGISTERING ──ok──▶ READY
                             │ └──subscribe──▶ SUBSCRIBING ──ok──▶ STREAMING ⟲ rows, heartbeats
                             any ──error packet, end of stream, malformed bytes──▶ CLOSED

Rows arrive in both META states, both SNAPSHOT states, JOIN_FINAL, REGISTERING and STREAMING. JOIN is FETCH_SNAPSHOT with one
more stage: the rows of the log from the snapshot's START to its STOP, including the row that gives the joiner its id.

Two rules of the protocol determine the table. Replication requests tolerate no other pending request on their connection, so
each request waits for its answer. One connection can be used for a snapshot and then for the stream.

Sources: iproto.cc (dispatch), applier.cc (order of requests, the snapshot's three stages), relay.cc (Raft's state goes to a
registered replica after SUBSCRIBE and whenever it changes, between any two transactions).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class State(Enum):
    """State of a session."""

    GREETING = auto()
    READY = auto()
    AUTHENTICATING = auto()
    IDENTIFYING = auto()
    VOTING = auto()
    SELECTING = auto()
    DELETING = auto()
    FETCHING = auto()
    META = auto()
    SNAPSHOT = auto()
    JOINING = auto()
    JOIN_META = auto()
    JOIN_SNAPSHOT = auto()
    JOIN_FINAL = auto()
    REGISTERING = auto()
    SUBSCRIBING = auto()
    STREAMING = auto()
    CLOSED = auto()


class Input(Enum):
    """Inputs that move a session from one state to another: the caller's requests, and packets that arrive."""

    GREETING = auto()
    AUTHENTICATE = auto()
    IDENTIFY = auto()
    VOTE = auto()
    SELECT = auto()
    DELETE = auto()
    FETCH_SNAPSHOT = auto()
    JOIN = auto()
    REGISTER = auto()
    SUBSCRIBE = auto()
    OK = auto()
    META = auto()
    META_END = auto()
    ROW = auto()
    RAFT = auto()


TRANSITIONS: Final[dict[State, dict[Input, State]]] = {
    State.GREETING: {Input.GREETING: State.READY},
    State.READY: {
        Input.AUTHENTICATE: State.AUTHENTICATING,
        Input.IDENTIFY: State.IDENTIFYING,
        Input.VOTE: State.VOTING,
        Input.SELECT: State.SELECTING,
        Input.DELETE: State.DELETING,
        Input.FETCH_SNAPSHOT: State.FETCHING,
        Input.JOIN: State.JOINING,
        Input.REGISTER: State.REGISTERING,
        Input.SUBSCRIBE: State.SUBSCRIBING,
    },
    State.AUTHENTICATING: {Input.OK: State.READY},
    State.IDENTIFYING: {Input.OK: State.READY},
    State.VOTING: {Input.OK: State.READY},
    State.SELECTING: {Input.OK: State.READY},
    State.DELETING: {Input.OK: State.READY},
    State.FETCHING: {Input.OK: State.SNAPSHOT},
    State.SNAPSHOT: {Input.ROW: State.SNAPSHOT, Input.META: State.META, Input.OK: State.READY},
    State.META: {Input.ROW: State.META, Input.RAFT: State.META, Input.META_END: State.SNAPSHOT},
    State.JOINING: {Input.OK: State.JOIN_SNAPSHOT},
    State.JOIN_SNAPSHOT: {Input.ROW: State.JOIN_SNAPSHOT, Input.META: State.JOIN_META, Input.OK: State.JOIN_FINAL},
    State.JOIN_META: {Input.ROW: State.JOIN_META, Input.RAFT: State.JOIN_META, Input.META_END: State.JOIN_SNAPSHOT},
    State.JOIN_FINAL: {Input.ROW: State.JOIN_FINAL, Input.OK: State.READY},
    State.REGISTERING: {Input.ROW: State.REGISTERING, Input.OK: State.READY},
    State.SUBSCRIBING: {Input.OK: State.STREAMING},
    State.STREAMING: {Input.ROW: State.STREAMING, Input.RAFT: State.STREAMING, Input.OK: State.STREAMING},
    State.CLOSED: {},
}
"""All transitions of a session; any other input is an error. An error packet or the end of the stream closes the session from any
state."""

LOG_STATES: Final = frozenset({State.JOIN_FINAL, State.REGISTERING, State.SUBSCRIBING, State.STREAMING})
"""States in which the server reads its log for the replica."""
