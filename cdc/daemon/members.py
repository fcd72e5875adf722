"""A replica set as a daemon's source: all members are asked for their ballots, and one is chosen and followed.

    ask all ─▶ choose ─▶ greet ─▶ ask for its ballot and its replica set again ─▶ plan ─▶ follow

cdc.upstream.failover decides which member is chosen, and for how long members are skipped. This module does the I/O.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID

import structlog

from cdc.config import Config
from cdc.daemon.beginning import Beginning, RunContext
from cdc.daemon.follower import Follower
from cdc.daemon.monitor import UpstreamMonitor
from cdc.daemon.start import rules
from cdc.errors import CdcError, PositionError
from cdc.kafka.clients import KafkaClients
from cdc.kafka.signal_reader import SignalReader
from cdc.ops.request_queue import RequestQueue
from cdc.protocol.ballot import Ballot
from cdc.protocol.failure import LogDamagedError
from cdc.sources.connection import Connection
from cdc.sources.handshake import greet, vote
from cdc.sources.log_end import check_end_of_log
from cdc.sources.replica_set import replicaset_uuid
from cdc.upstream import resume, selection, start
from cdc.upstream.failover import Failover
from cdc.upstream.identity import instance_uuid
from cdc.upstream.selection import Answer, Choice, Needed


class Members:
    """`Source` that follows one of the replica set's members."""

    def __init__(self, context: RunContext, requests: RequestQueue) -> None:
        """See NewSource. No member is asked yet."""
        config = context.config
        self._context = context
        self._config = config
        self._requests = requests
        self._log = structlog.get_logger().bind(name=config.name)
        self._instance_uuid = instance_uuid(config.name)
        self._failover = Failover(len(config.source.uris), rules(config))
        self._monitor = UpstreamMonitor(config.source, config.source.timeouts, context.status)
        # The member that was chosen last.
        self._index = 0
        self._signals = _signal_reader(config, requests)
        # Members that couldn't read their logs, and haven't proved since that they can read the end of them.
        self._damaged: set[int] = set()

    def start(self) -> None:
        """See `Source.start`. From now on all members are surveyed regularly."""
        self._monitor.start()
        if self._signals is not None:
            self._signals.start()

    def close(self) -> None:
        """See `Source.close`."""
        if self._signals is not None:
            self._signals.close()
        self._monitor.close()
        if self._context.buckets is not None:
            self._context.buckets.close()

    @contextmanager
    def opened(self, beginning: Beginning) -> Iterator[Follower]:
        """See `Source.opened`. Connects to the best member. Raises NobodyError if no member can be followed now."""
        self._monitor.needed = needed = start.needed(beginning.known)
        choice = self._choose(needed)
        connection = self._connected()
        try:
            self._failover.connected(time.monotonic())
            follower = self._follower(connection, beginning, choice, needed)
            self._monitor.follow(self._index, follower)
            try:
                yield follower
            finally:
                self._monitor.unfollow()
                self._failover.ended(time.monotonic(), has_streamed=follower.has_streamed)
        except PositionError as error:
            if connection.address not in error.message:
                error.message = f"{connection.address}: {error.message}"
            raise
        finally:
            connection.close()

    def failed(self, error: CdcError) -> None:
        """See `Source.failed`."""
        if isinstance(error, LogDamagedError):
            self._damaged.add(self._index)
        if selection.is_of_one_member(error):
            self._monitor.record_failure(self._index, error)

    def try_fail_over(self, error: CdcError) -> bool:
        """See `Source.try_fail_over`."""
        index = self._failover.try_fail_over(error)
        if index is None:
            return False
        self._log.warning("looking for another member", reason=str(error))
        self._monitor.record_failure(index, error)
        return True

    def next_delay(self) -> float:
        """See `Source.next_delay`."""
        return self._failover.next_delay()

    def delay_elapsed(self) -> None:
        """See `Source.delay_elapsed`. Members that were skipped are tried again."""
        self._failover.delay_elapsed()

    def succeeded(self) -> None:
        """See `Source.succeeded`."""
        self._failover.succeeded()

    def _choose(self, needed: Needed) -> Choice:
        """Choose the member to follow. Raises NobodyError if there is none now, and the errors of selection.choose."""
        answers: list[Answer] = []
        if self._failover.has_others:
            answers = self._monitor.ask_all(self._failover.passed_over)
            self._monitor.update_status(answers, needed)
        choice = self._failover.choose(answers, needed, time.monotonic())
        if answers:
            self._log.info("chosen", upstream=answers[choice.index].address, reason=choice.reason)
        self._index = choice.index
        return choice

    def _connected(self) -> Connection:
        member = self._config.source.members()[self._index]
        try:
            return greet(member, self._instance_uuid, frame_bytes_max=self._config.source.frame_bytes_max)
        except CdcError as error:
            self._monitor.record_failure(self._index, error)
            raise

    def _follower(self, connection: Connection, beginning: Beginning, choice: Choice, needed: Needed) -> Follower:
        """Make the follower, with a plan by the member's current ballot.

        Raises ForeignServerError if the member belongs to another replica set, before anything of it is judged or read, and
        ConnectionLostError if another member may be the better choice by now.
        """
        ballot = vote(connection)
        known, theirs = beginning.known, replicaset_uuid(connection)
        resume.check_replicaset(known.checkpoint, theirs)
        self._failover.confirm(Answer(connection.address, ballot=ballot, replicaset_uuid=theirs), needed)
        plan = start.plan(replace(known, forced=known.forced or choice.snapshot), ballot)
        if plan.snapshot is not None and self._index in self._damaged:
            self._check_end_of_log(theirs, ballot)
        return Follower(
            self._context,
            beginning,
            connection,
            plan,
            ballot,
            requests=self._requests,
            is_lost=self._monitor.is_lost,
            surveyed=self._monitor.surveyed,
        )

    def _check_end_of_log(self, replicaset: UUID, ballot: Ballot) -> None:
        """Raise ServerError if the chosen member, whose log is damaged, couldn't be followed after a snapshot either."""
        source = self._config.source
        probe = instance_uuid(f"{self._config.name} check")
        check_end_of_log(source.members()[self._index], probe, replicaset, ballot.vclock, frame_bytes_max=source.frame_bytes_max)
        self._damaged.discard(self._index)


def _signal_reader(config: Config, requests: RequestQueue) -> SignalReader | None:
    """Return the reader of signals, if the daemon is to obey them."""
    if not config.kafka.signal_topic:
        return None
    return SignalReader(config.kafka, KafkaClients(config.name, config.kafka), requests)
