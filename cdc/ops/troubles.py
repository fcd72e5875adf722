"""What keeps a daemon from publishing now, or soon will, each with what to do about it; those that are over are kept for a while.

One cause often has several effects: without Kafka nothing is committed, and then the daemon stops reading. `current` lists causes
only, the one that holds up most first.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from cdc.ops.status import LOSSES_SHOWN, Status
from cdc.stream.reports.bucket_waits import STRANGERS_REMEDY
from cdc.stream.reports.limbo_watch import QUORUM_REMEDY
from cdc.upstream.overview import Upstream
from cdc.upstream.selection import Standing

Place = Literal["source", "quorum", "daemon", "registry", "kafka", "store"]
"""Where on the way from the master to Kafka it is."""

KEPT: Final = 20
"""Number of troubles that are over and still shown."""
_KAFKA_REMEDY: Final = (
    "Check whether the brokers run, can be reached from this machine, and have enough replicas in sync (min.insync.replicas), "
    "and whether a topic was deleted."
)
_REMEDIES: Final[dict[Place, str]] = {
    "source": "Start one of the members, or correct source.uris. The daemon tries again by itself.",
    "kafka": f"{_KAFKA_REMEDY} The daemon tries again by itself.",
    "daemon": "Look into the log.",
}
"""What to do about errors that don't say it."""
_STUCK_REMEDY: Final = (
    "Keep what SIGUSR2 has it write into the log. If it stays so, end it with `kill -9` and start it again; a fleet's process, "
    "systemd (WatchdogSec) and Kubernetes (liveness) do so by themselves."
)
_CLIENT_DETAILS: Final = re.compile(r" \(after \d+ms in state \w+(, \d+ identical error\(s\) suppressed)?\)")
"""What Kafka's client adds to a failure, which says nothing about its cause."""
_BUCKET_REMEDY: Final = "Look at that shard's daemon on the fleet's page, and start it or end its trouble. Other buckets go on."
_REGISTRY_REMEDIES: Final = {
    "away": "Start the registry, or correct format.registry.url.",
    "forbidden": "Check format.registry.user, its password and its rights.",
    "missing": "Register the schema: `tarantool-cdc check` prints it. Or set format.registry.auto_register.",
    "incompatible": "Make the change of the space's format compatible, or set the subject's compatibility to NONE until the "
    "schema is registered, if all readers can take it.",
    "refused": "The message has the registry's own words.",
}
STORE_REMOVED: Final = (
    "The state store's files were removed. The daemon goes on with what it has open, which is lost once it stops"
)
STORE_REMEDY: Final = (
    "Choose when to stop it: the next start needs --rebuild-state, and publishes all rows again, as `r`. A standby that is ready "
    "has a store of its own and needs no such start."
)
LAG_SECONDS: Final = 60.0
"""Age of what is published above which a daemon is behind, though nothing stands still."""
_SLOW_KAFKA_REMEDY: Final = (
    "Compare its commit time with that of other days (the plots): the brokers' disks, the network, or replicas that are out of "
    "sync may have slowed down. Raise kafka.commit_interval_ms for fewer, larger commits."
)
_SLOW_DAEMON_REMEDY: Final = (
    "If the lag falls, wait. If it grows, look at the daemon's CPU time: at 100 % of a core, leave spaces out, take "
    'state.images = "none" or the compiled row path (docs/operations.md, Which row path runs), or split the replica set.'
)
_MEMBER_REMEDIES: Final = {
    Standing.UNREACHABLE.value: "Start it, or take it out of source.uris. Until then it couldn't take the followed one's place."
}
"""What to do about a member whose error doesn't say it."""
REFUSED_REMEDY: Final = (
    "Mend it before the connection breaks: the user, its rights, and its password (source.password_file is read at each "
    "connection; a new one in source.uris needs a restart). The open connection goes on, and the next reconnect ends the daemon "
    "unless another member can be followed."
)
_BAD_STANDINGS: Final = {each.value for each in (Standing.UNREACHABLE, Standing.REFUSED, Standing.GAP, Standing.LOADING)}


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that is wrong: what kind, where, whether rows wait for it, a sentence, and what to do ("": it says so).

    `has_detail` says that the daemon's error quotes received data too, which the page shows to those who may see rows;
    `loses_rows`, that consumers lack rows until something is done; `is_urgent`, that rows go on only until the daemon connects or
    starts again. Two sightings of one kind are the same trouble, though a number in the sentence may have changed.
    """

    kind: str
    place: Place
    is_holding_up: bool
    sentence: str
    remedy: str
    has_detail: bool = False
    loses_rows: bool = False
    is_urgent: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the object that the page gets."""
        return {
            "place": self.place,
            "is_holding_up": self.is_holding_up,
            "sentence": self.sentence,
            "remedy": self.remedy,
            "has_detail": self.has_detail,
            "loses_rows": self.loses_rows,
            "is_urgent": self.is_urgent,
        }


def current(status: Status) -> list[Trouble]:
    """Return what is wrong now, by how much it holds up."""
    found = [*_of_error(status), *_of_stuck(status), *_of_kafka(status), *_of_registry(status), *_of_quorum(status)]
    told = " ".join(trouble.sentence for trouble in found)
    for upstream in status.upstreams:
        # A member that is the reason for a wait has been named already.
        found += [] if upstream.address in told else _of_member(upstream)
    found += [*_of_store(status), *_of_buckets(status)]
    found += [
        Trouble(f"lost {loss.topic}", "kafka", False, loss.sentence, loss.remedy, loses_rows=True)
        for loss in status.kafka.losses[:LOSSES_SHOWN]
    ]
    found += _of_lag(status) if not any(trouble.is_holding_up for trouble in found) else []
    signals = status.requests.signals.sentence if status.requests is not None else None
    if signals:
        found.append(Trouble("signals", "kafka", False, signals, "Rows go on; the daemon tries again every 5 s."))
    return sorted(found, key=lambda trouble: (not trouble.is_holding_up, not trouble.loses_rows, not trouble.is_urgent))


def _of_error(status: Status) -> Iterator[Trouble]:
    error = status.error
    if error is None:
        return
    place: Place = (
        "kafka"
        if status.state == "waiting for kafka" or status.is_standby_deaf
        else "daemon"
        if status.state in ("failed", "standby")
        else "source"
    )
    remedy = status.error_remedy
    sentence = error.removesuffix(remedy).rstrip()
    yield Trouble(f"error {place}", place, True, sentence, remedy or _REMEDIES[place], bool(status.error_detail))


def _of_stuck(status: Status) -> Iterator[Trouble]:
    stuck = status.stuck
    if stuck is not None:
        yield Trouble("stuck", "daemon", True, stuck, _STUCK_REMEDY)


def _of_kafka(status: Status) -> Iterator[Trouble]:
    kafka = status.kafka
    seconds = status.stalled_seconds if status.registry_wait is None else 0.0
    trouble = _CLIENT_DETAILS.sub("", kafka.trouble or "")
    client = f" (its client reports: {trouble})" if trouble else ""
    if seconds >= status.stalled_after_seconds:
        sentence = f"Kafka has committed nothing for {seconds:.0f} s, while changes wait{client}. Nothing is lost"
        yield Trouble("kafka", "kafka", True, sentence, f"{_KAFKA_REMEDY} The daemon resumes by itself.")
    elif trouble:
        # Also while no change waits: a quiet master would hide it.
        yield Trouble("kafka", "kafka", bool(seconds), f"Kafka's client reports: {trouble}", _KAFKA_REMEDY)
    elif kafka.failure:
        yield Trouble("abort", "kafka", False, kafka.failure, "The daemon has gone back to the checkpoint and publishes again.")


def _of_registry(status: Status) -> Iterator[Trouble]:
    waits = status.registry_wait
    if waits is not None:
        sentence = f"Rows have been waiting for the registry of schemas for {status.registry_seconds:.0f} s: {waits.sentence}"
        yield Trouble("registry", "registry", True, sentence, _REGISTRY_REMEDIES[waits.reason])


def _of_quorum(status: Status) -> Iterator[Trouble]:
    overdue = status.overdue_quorum
    if overdue is not None:
        yield Trouble("quorum", "quorum", True, overdue.description(time.time_ns() // 1000), QUORUM_REMEDY)


def _of_store(status: Status) -> Iterator[Trouble]:
    if status.is_store_removed:
        yield Trouble("store", "store", False, STORE_REMOVED, STORE_REMEDY, is_urgent=True)


def _of_buckets(status: Status) -> Iterator[Trouble]:
    buckets = status.buckets
    sentence = buckets.sentence(time.time_ns() // 1000) if buckets is not None and buckets.is_overdue else None
    if buckets is not None and sentence is not None:
        yield Trouble("bucket", "source", buckets.is_full, sentence, _BUCKET_REMEDY)
    strangers = buckets.strangers_sentence if buckets is not None else None
    if strangers is not None:
        yield Trouble("strangers", "source", False, strangers, STRANGERS_REMEDY, loses_rows=True)


def _of_lag(status: Status) -> Iterator[Trouble]:
    """Say that a daemon is behind though nothing stands still, and whether it or Kafka is slower than the rows were written."""
    seconds = status.steady_lag_seconds(time.time())
    if status.state != "streaming" or seconds < LAG_SECONDS:
        return
    behind = f"what is published now was written {seconds:.0f} s ago, and the replica set has {status.lag_rows} rows more"
    if not status.is_reading:
        sentence = f"{behind}: Kafka takes messages more slowly than rows arrive, so the daemon reads only as fast as that"
        yield Trouble("lag", "kafka", False, sentence, _SLOW_KAFKA_REMEDY)
    else:
        reason = "the Python row path runs, at several times the CPU time" if status.row_path == "python" else "it is catching up"
        yield Trouble("lag", "daemon", False, f"{behind}: {reason}", _SLOW_DAEMON_REMEDY)


def _of_member(upstream: Upstream) -> Iterator[Trouble]:
    headroom = upstream.headroom_rows
    if upstream.is_following and headroom is not None and headroom < 0:
        sentence = f"{upstream.address} no longer has the logs of {-headroom} rows after the checkpoint"
        yield Trouble(
            "gap",
            "source",
            False,
            sentence,
            "The stream ends with a gap at the next change or reconnect; then source.on_gap decides.",
        )
    elif upstream.is_following and upstream.is_refused:
        yield Trouble(
            f"refused {upstream.address}",
            "source",
            False,
            f"{upstream.address} would refuse a new connection, so the next reconnect may end the daemon: {upstream.error}",
            REFUSED_REMEDY,
            is_urgent=True,
        )
    elif upstream.state in _BAD_STANDINGS:
        # Its error says what to do, where that isn't to wait.
        sentence = f"{upstream.address} can't be followed now ({upstream.state})"
        about = f"{sentence}: {upstream.error}" if upstream.error else sentence
        yield Trouble(f"member {upstream.address}", "source", False, about, _MEMBER_REMEDIES.get(upstream.state, ""))


class TroubleLog:
    """The troubles of the last time, with their begin and end. `look` is called by one thread, the rest by any."""

    def __init__(self) -> None:
        # By kind: since when (seconds since the epoch), and the newest sighting.
        self._open: dict[str, tuple[float, Trouble]] = {}
        self._over: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def look(self, status: Status, now: float) -> None:
        """Note what is wrong at `now`, in seconds since the epoch."""
        seen = {trouble.kind: trouble for trouble in current(status)}
        for kind, (since, trouble) in list(self._open.items()):
            if kind not in seen:
                self._over.appendleft({**trouble.to_json(), "since": since, "until": now})
        self._open = {kind: (self._open[kind][0] if kind in self._open else now, trouble) for kind, trouble in seen.items()}

    def past(self) -> list[dict[str, Any]]:
        """Return those that are over, newest first."""
        return list(self._over)

    def since(self, trouble: Trouble) -> float | None:
        """Return since when there has been this trouble, in seconds since the epoch; None if it hasn't been noted yet."""
        found = self._open.get(trouble.kind)
        return found[0] if found is not None else None
