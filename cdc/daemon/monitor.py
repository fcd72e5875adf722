"""Surveys of all members: for the choice of a member, for the status, and for noticing a followed member that is silent.

    daemon's thread  ── take ──▶ ballots of all members at once, within source.replication_timeout_ms ──▶ Failover.choose
    survey's thread  ── when the Watch says so ──▶ status.upstreams; a gap that a quiet master doesn't report
                                               └─▶ lost, if the followed member doesn't answer and another is good

Each inquiry uses a connection of its own: it logs in, and asks for the ballot and for the replica set, without which a ballot
means nothing. A member that doesn't answer in time counts as unreachable, whatever the cause: a stopped process whose system
still accepts connections, a lost route, a slow name server. The inquiry's thread ends by its own time limits. Until then no
second inquiry is started for that member.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Final, Protocol

import structlog

from cdc.config.source import Member, SourceSection
from cdc.config.timeouts import Timeouts
from cdc.errors import CdcError, ConfigurationError, ConnectionLostError, Remedy
from cdc.ops.status import Status
from cdc.positions.vclock import VClock
from cdc.protocol.session import Session, Voted
from cdc.sources.connection import Connection
from cdc.sources.handshake import expect, log_in
from cdc.sources.replica_set import replicaset_uuid
from cdc.upstream import overview
from cdc.upstream.overview import Upstream
from cdc.upstream.selection import FOLLOWING, Answer, Needed, Standing
from cdc.upstream.watch import Link, Phase, Watch

_NOBODY: Final = uuid.UUID(int=0)
"""UUID for sessions, which require one. No request made here contains it."""


def ask(member: Member, timeout_seconds: float) -> Answer:
    """Ask one member for its ballot and its replica set, within `timeout_seconds` plus the time for name resolution.

    Errors become the answer.
    """
    deadline = time.monotonic() + timeout_seconds
    try:
        connection = Connection(member.host, member.port, Session(_NOBODY), connect_timeout_seconds=timeout_seconds)
        try:
            log_in(connection, member, deadline=deadline)
            greeting = connection.session.greeting
            connection.session.vote()
            ballot = expect(connection, Voted, deadline - time.monotonic()).ballot
            # A server that loads its data can't say yet.
            theirs = replicaset_uuid(connection, deadline=deadline) if ballot.is_ready else None
            return Answer(member.address, ballot, greeting.version_text, greeting.uuid, replicaset_uuid=theirs)
        finally:
            connection.close()
    except CdcError as error:
        return Answer(member.address, error=error)


class Followed(Protocol):
    """Connection to the followed member, as the survey's thread sees it."""

    @property
    def phase(self) -> Phase:
        """Phase of the connection."""

    @property
    def last_heard_at(self) -> float:
        """When the server last sent anything (monotonic seconds)."""

    def needed(self) -> Needed:
        """Return what another member must have for the daemon to continue there now."""


class UpstreamMonitor:
    """Survey of all members, and its latest result.

    `ask_all`, `follow` and `record_failure` are for the daemon's thread, `is_lost` is for the follower.
    """

    def __init__(self, source: SourceSection, timeouts: Timeouts, status: Status) -> None:
        """Ask no member yet. `start` begins the regular surveys."""
        self._source = source
        self._addresses = source.addresses()
        self._timeouts = timeouts
        self._timeout = timeouts.vote
        self._status = status
        # The members as the status shows them.
        self._shown: tuple[Upstream, ...] = ()
        self._surveyed: tuple[float, Sequence[VClock]] = (0.0, ())
        self._log = structlog.get_logger().bind(name=status.name)
        self._lock = threading.Lock()
        # The start and result of the latest inquiry to each member. An inquiry that overruns its time limit isn't repeated.
        self._inquiries: dict[int, tuple[float, Future[Answer]]] = {}
        self._failures: dict[int, CdcError] = {}
        self._followed: tuple[int, Followed] | None = None
        # The `last_heard_at` of the followed member when it was found lost.
        self._lost_since: float | None = None
        self._is_stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.needed = Needed(takes_snapshot=True)
        """What the daemon needs of a member at its next choice. While it streams, the connection's `needed` counts instead."""

    # For the daemon.

    def start(self) -> None:
        """Begin the regular surveys, and the watch for silence."""
        self._thread = threading.Thread(target=self._run, name="survey", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the surveys."""
        self._is_stopping.set()
        if self._thread is not None:
            self._thread.join(self._timeout + 1)

    def ask_all(self, passed_over: Mapping[int, CdcError] | None = None) -> list[Answer]:
        """Ask all members at once. Members in `passed_over` are not asked: their error is the answer."""
        skipped = passed_over or {}
        inquiries = {index: self._inquire(index) for index in range(len(self._addresses)) if index not in skipped}
        wait(inquiries.values(), self._timeout)
        answers = []
        for index, (host, port) in enumerate(self._addresses):
            if index in skipped:
                answers.append(Answer(f"{host}:{port}", error=skipped[index]))
            elif inquiries[index].done():
                answers.append(inquiries[index].result())
            else:
                sentence = f"the server {host}:{port} didn't answer in {self._timeout:g} s"
                answers.append(Answer(f"{host}:{port}", error=ConnectionLostError(sentence)))
        return answers

    def follow(self, index: int, followed: Followed) -> None:
        """Record that this member is followed from now on."""
        self._followed, self._lost_since = (index, followed), None
        self._failures.pop(index, None)
        self._update_member_status(index, FOLLOWING, None)

    def unfollow(self) -> None:
        """Record that no member is followed any more."""
        self._followed = self._lost_since = None

    def record_failure(self, index: int, error: CdcError) -> None:
        """Record that a connection to this member failed. /status shows the error until the member is followed."""
        self._failures[index] = error
        state = Standing.UNREACHABLE if isinstance(error, ConnectionLostError) else Standing.REFUSED
        if state is Standing.UNREACHABLE or error.remedy is Remedy.OPERATOR:
            self._update_member_status(index, state.value, str(error))

    def _update_member_status(self, index: int, state: str, error: str | None) -> None:
        """Update one member in the status at once, instead of at the next survey."""
        shown = list(self._shown)
        if shown:
            shown[index] = replace(shown[index], state=state, error=error)
            self._shown = self._status.upstreams = tuple(shown)

    def update_status(self, answers: Sequence[Answer], needed: Needed) -> None:
        """Put the answers into the status, and log members whose state got worse or good again."""
        before, link = self._shown, self._link()
        found = overview.overview(answers, needed, link.index if link is not None else None, dict(self._failures))
        self._shown = self._status.upstreams = found
        self._surveyed = time.monotonic(), [each.vclock for each in found if each.vclock is not None]
        self._status.surveyed_at = time.monotonic()
        for index, upstream in enumerate(found):
            earlier = before[index] if before else None
            lost_logs = upstream.is_following and _has_gap(upstream)
            if lost_logs and not (earlier is not None and earlier.is_following and _has_gap(earlier)):
                self._log.warning(
                    "the followed server no longer keeps the logs after the checkpoint: on a quiet server nothing else reveals "
                    "that, and the stream ends with a gap at the next change or reconnect; then source.on_gap decides",
                    upstream=upstream.address,
                    checkpoint=str(needed.logs_from),
                    logs_from=str(upstream.gc_vclock),
                )
            if upstream.is_following and upstream.is_refused and not (earlier is not None and earlier.is_refused):
                self._log.warning(
                    "the followed server would refuse a new connection: the open one goes on, and the next reconnect ends the "
                    "daemon unless another member can be followed",
                    upstream=upstream.address,
                    reason=upstream.error,
                )
            state, was = upstream.state, earlier.state if earlier is not None else None
            if state != was and state in _REPORTED_STATES and not upstream.is_following:
                self._log.warning("a member can't be followed", upstream=upstream.address, state=state, reason=upstream.error)
            elif state == Standing.GOOD.value and was in _REPORTED_STATES:
                self._log.info("a member can be followed again", upstream=upstream.address)

    def is_lost(self) -> bool:
        """Return whether the followed member left a survey unanswered, has sent nothing since, and another member is good."""
        followed, lost_since = self._followed, self._lost_since
        return followed is not None and lost_since is not None and lost_since == followed[1].last_heard_at

    def surveyed(self) -> tuple[float, Sequence[VClock]]:
        """Return when the last survey ended (monotonic seconds), and the positions of the members that answered."""
        return self._surveyed

    # The survey's own thread.

    def _run(self) -> None:
        watch = Watch(
            len(self._addresses),
            time.monotonic(),
            survey_seconds=self._timeouts.survey,
            probe_after_seconds=self._timeouts.probe_after,
            silence_seconds=self._timeouts.silence,
        )
        while not self._is_stopping.wait(watch.pause(time.monotonic(), self._link())):
            link = self._link()
            if not watch.is_due(time.monotonic(), link):
                continue
            # The needs are read before the ballots, so that a ballot is never compared with a later position.
            needed = self._needed_now()
            answers = self.ask_all()
            self.update_status(answers, needed)
            if watch.is_lost(time.monotonic(), self._link(), answers, needed) and link is not None:
                self._lost_since = link.last_heard_at

    def _link(self) -> Link | None:
        followed = self._followed
        return Link(followed[0], followed[1].phase, followed[1].last_heard_at) if followed is not None else None

    def _needed_now(self) -> Needed:
        followed = self._followed
        if followed is None or followed[1].phase is not Phase.STREAMING:
            return self.needed
        return followed[1].needed()

    def _inquire(self, index: int) -> Future[Answer]:
        now = time.monotonic()
        with self._lock:
            begun = self._inquiries.get(index)
            if begun is not None and not begun[1].done() and now - begun[0] > self._timeout:
                return begun[1]
            future: Future[Answer] = Future()
            self._inquiries[index] = (now, future)
        host, port = self._addresses[index]

        def answer() -> None:
            try:
                # The password file is read each time, as it is for the connection to be followed: a password may be changed.
                future.set_result(ask(self._source.members()[index], self._timeout))
            except ConfigurationError as error:
                future.set_result(Answer(f"{host}:{port}", error=error))
            except BaseException as error:  # noqa: BLE001 - raised by whoever waits for the answer
                future.set_exception(error)

        threading.Thread(target=answer, name=f"ask {host}:{port}", daemon=True).start()
        return future


_REPORTED_STATES: Final = frozenset(
    {Standing.UNREACHABLE.value, Standing.REFUSED.value, Standing.GAP.value, Standing.LOADING.value}
)


def _has_gap(upstream: overview.Upstream) -> bool:
    return upstream.headroom_rows is not None and upstream.headroom_rows < 0
