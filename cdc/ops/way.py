"""The way of a change from the master to Kafka, as stations: which of them work, and at which one rows stand still, and why.

    source ─▶ quorum ─▶ daemon ─▶ registry ─▶ kafka
                          └─▶ store

Rows that stand still at one station fill the ones before it, so a station after which nothing arrives is idle and not to blame.
A wait for a quorum is a state of the replica set, no error: a master may wait for as long as it likes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

from cdc.ops.status import Status

Mode = Literal["works", "idle", "waits", "holds", "stands", "none"]
"""`waits`: rows wait here, which is in order for now; `holds`: everything waits here for long, by the replica set's own decision;
`stands`: here is the cause of a standstill; `none`: there is no such station."""


@dataclass(frozen=True, slots=True)
class Station:
    """One station: its name, what it does, and a few words about it."""

    name: str
    mode: Mode
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return the object that the page gets."""
        return {"name": self.name, "mode": self.mode, "text": self.text}


def way(status: Status) -> list[Station]:
    """Return the stations in the order of the way."""
    return [_source(status), _quorum(status), _daemon(status), _registry(status), _kafka(status), _store(status)]


def _source(status: Status) -> Station:
    address = status.upstream or "no server yet"
    match status.state:
        case "connecting" | "starting":
            # Without an error, the connection is being made.
            return Station("source", "stands" if status.error else "waits", "no connection" if status.error else "connecting")
        case "waiting for kafka" | "failed" | "stopping":
            return Station("source", "idle", "not connected")
        case "snapshot":
            return Station("source", "works", f"snapshot of {address}")
        case _:
            return Station("source", "works" if status.is_reading else "waits", address)


def _quorum(status: Status) -> Station:
    limbo = status.limbo
    if not limbo.transaction_count:
        return Station("quorum", "idle", "none waits")
    mode: Mode = "holds" if status.overdue_quorum is not None else "waits"
    return Station("quorum", mode, f"{limbo.transaction_count} wait, {status.limbo_seconds(time.time()):.0f} s")


def _daemon(status: Status) -> Station:
    match status.shown_state:
        case "failed":
            return Station("daemon", "stands", "failed")
        case "streaming" | "snapshot" if status.registry_wait is not None:
            return Station("daemon", "waits", "waits for the registry")
        case "streaming" | "snapshot":
            return Station("daemon", "works", status.state)
        case "standby":
            ready = status.is_standby_ready
            return Station("daemon", "idle" if ready else "waits", "stands by" if ready else "stands by, and isn't ready")
        case "stalled":
            return Station(
                "daemon", "waits", "reads, and can't commit" if status.is_reading else "doesn't read: its queue is full"
            )
        case state:
            return Station("daemon", "waits" if state != "stopping" else "idle", state)


def _registry(status: Status) -> Station:
    waits = status.registry_wait
    if waits is not None:
        return Station("registry", "stands", f"{waits.reason}: {waits.subject}")
    return Station("registry", "idle" if status.setup.has_registry else "none", "no row waits")


def _kafka(status: Status) -> Station:
    kafka = status.kafka
    if status.state == "waiting for kafka":
        return Station("kafka", "stands" if status.error else "waits", "no connection" if status.error else "connecting")
    if status.is_standby_deaf:
        return Station("kafka", "stands", "no checkpoint can be read")
    if status.registry_wait is not None or status.state not in ("streaming", "snapshot"):
        return Station("kafka", "idle", "nothing to commit")
    seconds = status.stalled_seconds
    if seconds >= status.stalled_after_seconds:
        return Station("kafka", "stands", f"no commit for {seconds:.0f} s")
    if kafka.trouble:
        return Station(
            "kafka", "stands" if seconds else "waits", "no broker answers" if seconds else "its client reports trouble"
        )
    if seconds >= 1:
        return Station("kafka", "waits", f"no commit for {seconds:.0f} s")
    return Station("kafka", "works" if kafka.commit_count else "idle", f"{kafka.commit_count} commits")


def _store(status: Status) -> Station:
    position = status.store_position
    if position is None:
        return Station("store", "none", "no images")
    if status.is_store_removed:
        return Station("store", "waits", "its files were removed")
    behind = sum(max(0, lsn - position[origin]) for origin, lsn in status.checkpoint.items())
    return Station("store", "works", f"{behind} rows behind Kafka" if behind else "as far as Kafka")
