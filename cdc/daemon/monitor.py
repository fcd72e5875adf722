"""Asking all members how they are: for a choice among them, for an operator, and for one that has fallen silent.

    daemon's thread  ── take ──▶ ballots of all, at once, in source.vote_timeout_ms at most ──▶ upstreams.choose
    survey's thread  ── every source.survey_interval_ms ──▶ status.upstreams; a gap that a quiet master doesn't tell of
                     └─ the followed one silent for source.probe_after_ms ──▶ lost, if it doesn't answer and another would do

Each question is a connection of its own with a greeting and a VOTE, which needs no user. Who doesn't answer in time is
unreachable, whatever its reason: a stopped process whose system accepts, a lost route, a name server that takes its time. Its
thread ends with its own time limits, and until then no second one is started for that member.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Final

import structlog

from cdc.config import SourceSection
from cdc.errors import CdcError, ConnectionLostError
from cdc.ops.status import Status
from cdc.protocol.session import Greeted, Session, Voted
from cdc.sources.connection import Connection
from cdc.sources.handshake import expect
from cdc.upstream import overview, selection
from cdc.upstream.selection import Answer, Needed, Standing

_NOBODY: Final = uuid.UUID(int=0)
"""A session wants a UUID, and no request made here carries one."""


def ask(host: str, port: int, timeout_seconds: float) -> Answer:
    """One member's answer, in `timeout_seconds` (and what the name server takes). What goes wrong is in the answer."""
    address = f"{host}:{port}"
    deadline = time.monotonic() + timeout_seconds
    try:
        connection = Connection(host, port, Session(_NOBODY), connect_timeout_seconds=timeout_seconds)
        try:
            greeting = expect(connection, Greeted, deadline - time.monotonic()).greeting
            connection.session.vote()
            ballot = expect(connection, Voted, deadline - time.monotonic()).ballot
            return Answer(address, ballot=ballot, version=greeting.version_text, uuid=greeting.uuid)
        finally:
            connection.close()
    except CdcError as error:
        return Answer(address, error=error)


class UpstreamMonitor:
    """Asks, remembers and shows. `take`, `follow` and `blame` are for the daemon's thread, `is_lost` for the follower."""

    def __init__(self, source: SourceSection, status: Status) -> None:
        """Nothing is asked yet. `start` begins the regular surveys."""
        self._addresses = source.addresses()
        self._timeout = source.vote_timeout_ms / 1000
        self._interval = source.survey_interval_ms / 1000 or float("inf")
        self._is_regular = self._interval < float("inf")
        self._probe_after = source.probe_after_ms / 1000
        self._silence = source.silence_timeout_ms / 1000
        self._ignored = frozenset(source.exclude_origins)
        self._status = status
        self._log = structlog.get_logger().bind(name=status.name)
        self._lock = threading.Lock()
        # The latest question to each member; one that hasn't ended is not asked twice.
        self._inquiries: dict[int, tuple[float, Future[Answer]]] = {}
        self._failures: dict[int, CdcError] = {}
        self._followed: int | None = None
        # When the followed one was last heard before it was found lost.
        self._lost_since: float | None = None
        self._is_stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.needed = Needed(takes_snapshot=True)
        """What the daemon needs of a member at its next choice; while it streams the status tells."""

    # For the daemon.

    def start(self) -> None:
        """Begin the regular surveys, and listen for silence."""
        self._thread = threading.Thread(target=self._run, name="survey", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End them."""
        self._is_stopping.set()
        if self._thread is not None:
            self._thread.join(self._timeout + 1)

    def take(self, passed_over: Mapping[int, CdcError] | None = None) -> list[Answer]:
        """Ask all members at once. Those of `passed_over` are not asked: their error is the answer."""
        skipped = passed_over or {}
        inquiries = {place: self._inquire(place) for place in range(len(self._addresses)) if place not in skipped}
        wait(inquiries.values(), self._timeout)
        answers = []
        for place, (host, port) in enumerate(self._addresses):
            if place in skipped:
                answers.append(Answer(f"{host}:{port}", error=skipped[place]))
            elif inquiries[place].done():
                answers.append(inquiries[place].result())
            else:
                sentence = f"the server {host}:{port} didn't answer in {self._timeout:g} s"
                answers.append(Answer(f"{host}:{port}", error=ConnectionLostError(sentence)))
        return answers

    def follow(self, place: int | None) -> None:
        """This member is being followed from now on."""
        self._followed, self._lost_since = place, None
        if place is not None:
            self._failures.pop(place, None)

    def blame(self, place: int, error: CdcError) -> None:
        """A connection to this member failed: for /status, until it is followed."""
        self._failures[place] = error

    def show(self, answers: Sequence[Answer], needed: Needed) -> None:
        """Put the answers into the status, and say what has changed to the worse."""
        before = self._status.upstreams
        found = overview.overview(answers, needed, self._followed, dict(self._failures))
        self._status.upstreams, self._status.surveyed_at = found, time.monotonic()
        for index, upstream in enumerate(found):
            earlier = before[index] if before else None
            lost_logs = upstream.is_following and _has_gap(upstream)
            if lost_logs and not (earlier is not None and earlier.is_following and _has_gap(earlier)):
                self._log.warning(
                    "the followed server no longer keeps the logs after the checkpoint: on a quiet server nothing else shows it, "
                    "and the stream ends with a gap at the next change, or when it breaks; then source.on_gap decides",
                    upstream=upstream.address,
                    checkpoint=str(needed.logs_from),
                    logs_from=str(upstream.gc_vclock),
                )
            state, was = upstream.state, earlier.state if earlier is not None else None
            if state != was and state in _NEWS and not upstream.is_following:
                self._log.warning("a member can't be followed", upstream=upstream.address, state=state, reason=upstream.error)
            elif state == Standing.GOOD.value and was in _NEWS:
                self._log.info("a member can be followed again", upstream=upstream.address)

    def is_lost(self) -> bool:
        """Whether the followed member doesn't answer, has not been heard since it was asked, and another would do."""
        return self._lost_since is not None and self._lost_since == self._status.last_heard_at

    # The survey's own thread.

    def _run(self) -> None:
        next_probe = time.monotonic()
        next_survey = next_probe if self._is_regular else self._interval
        has_seen_stream = not self._is_regular
        while True:
            now = time.monotonic()
            due = min(next_survey, max(next_probe, self._doubt_at()), now + _TURN_SECONDS)
            if self._is_stopping.wait(max(0.0, due - now)):
                return
            now, heard_at = time.monotonic(), self._status.last_heard_at
            is_streaming = self._status.state == "streaming"
            is_in_doubt = now >= max(next_probe, self._doubt_at())
            # What a member has can be judged well only once there is a position: then it is asked at once.
            if now < next_survey and not is_in_doubt and (has_seen_stream or not is_streaming):
                continue
            has_seen_stream = is_streaming or not self._is_regular
            needed = self._needed_now()
            answers = self.take()
            self.show(answers, needed)
            now = time.monotonic()
            next_survey = now + self._interval
            if is_in_doubt:
                next_probe = now + self._probe_after
            # A regular survey does as well, if the member has been silent for long enough by its end.
            if now >= self._doubt_at() and self._should_be_left(answers, needed):
                self._lost_since = heard_at

    def _doubt_at(self) -> float:
        """When the followed member's silence will be suspicious; a snapshot may be slow to begin, and is dear to break off."""
        status = self._status
        if len(self._addresses) == 1 or self._followed is None or not status.last_heard_at:
            return float("inf")
        match status.state:
            case "streaming":
                return status.last_heard_at + self._probe_after
            case "snapshot":
                return status.last_heard_at + max(self._silence, self._probe_after)
        return float("inf")

    def _should_be_left(self, answers: Sequence[Answer], needed: Needed) -> bool:
        followed = self._followed
        if followed is None or selection.standing(answers[followed], needed) is not Standing.UNREACHABLE:
            return False
        return any(selection.standing(answer, needed) is Standing.GOOD for answer in answers)

    def _needed_now(self) -> Needed:
        status = self._status
        if status.state != "streaming":
            return self.needed
        # What the daemon would have to go on from, were it to go on now. Ballots are asked for after this is looked at.
        return Needed(published=status.checkpoint, logs_from=status.stored or status.checkpoint, ignored=self._ignored)

    def _inquire(self, place: int) -> Future[Answer]:
        now = time.monotonic()
        with self._lock:
            begun = self._inquiries.get(place)
            if begun is not None and not begun[1].done() and now - begun[0] > self._timeout:
                return begun[1]
            future: Future[Answer] = Future()
            self._inquiries[place] = (now, future)
        host, port = self._addresses[place]

        def answer() -> None:
            try:
                future.set_result(ask(host, port, self._timeout))
            except BaseException as error:  # noqa: BLE001 - raised by whoever waits for the answer
                future.set_exception(error)

        threading.Thread(target=answer, name=f"ask {host}:{port}", daemon=True).start()
        return future


_TURN_SECONDS: Final = 1.0
_NEWS: Final = frozenset({Standing.UNREACHABLE.value, Standing.REFUSED.value, Standing.GAP.value, Standing.LOADING.value})


def _has_gap(upstream: overview.Upstream) -> bool:
    return upstream.headroom_rows is not None and upstream.headroom_rows < 0
