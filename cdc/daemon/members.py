"""The members of a replica set as a daemon's source: all are asked, one is chosen, and is followed over one connection.

    ask all ─▶ choose ─▶ greet ─▶ its ballot once more ─▶ plan ─▶ follow

Which one, and which are passed over for how long, is decided in cdc.upstream.failover; here it is carried out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import structlog

from cdc.config import Config
from cdc.daemon.follower import Follower
from cdc.daemon.monitor import UpstreamMonitor
from cdc.daemon.source import Beginning
from cdc.daemon.start import rules
from cdc.errors import CdcError, PositionError
from cdc.ops.backfill_queue import SnapshotRequests
from cdc.ops.status import Status
from cdc.sources.connection import Connection
from cdc.sources.handshake import greet, vote
from cdc.upstream import selection, start
from cdc.upstream.failover import Failover
from cdc.upstream.identity import instance_uuid
from cdc.upstream.selection import Answer, Choice, Needed


class Members:
    """A `Source`."""

    def __init__(self, config: Config, status: Status, is_stopping: threading.Event, requests: SnapshotRequests) -> None:
        """As NewSource; nobody is asked yet."""
        self._config = config
        self._status = status
        self._is_stopping = is_stopping
        self._requests = requests
        self._log = structlog.get_logger().bind(name=config.name)
        self._instance_uuid = instance_uuid(config.name)
        self._failover = Failover(len(config.source.uris), rules(config))
        self._monitor = UpstreamMonitor(config.source, status)
        # The one that was chosen last.
        self._index = 0

    def start(self) -> None:
        """As `Source.start`: from now on all members are asked now and then."""
        self._monitor.start()

    def close(self) -> None:
        """As `Source.close`."""
        self._monitor.close()

    @contextmanager
    def opened(self, beginning: Beginning) -> Iterator[Follower]:
        """As `Source.opened`: over a connection to the member that suits. Raises NobodyError if there is none now."""
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
        """As `Source.failed`."""
        if selection.is_of_one_member(error):
            self._monitor.blame(self._index, error)

    def looks_elsewhere(self, error: CdcError) -> bool:
        """As `Source.looks_elsewhere`."""
        index = self._failover.looks_elsewhere(error)
        if index is None:
            return False
        self._log.warning("looking for another member", reason=str(error))
        self._monitor.blame(index, error)
        return True

    def next_delay(self) -> float:
        """As `Source.next_delay`."""
        return self._failover.next_delay()

    def rested(self) -> None:
        """As `Source.rested`: those that were passed over get another chance."""
        self._failover.rested()

    def works(self) -> None:
        """As `Source.works`."""
        self._failover.works()

    def _choose(self, needed: Needed) -> Choice:
        """The member to follow. Raises NobodyError if there is nobody now, and as selection.choose."""
        answers: list[Answer] = []
        if self._failover.has_others:
            answers = self._monitor.take(self._failover.passed_over)
            self._monitor.show(answers, needed)
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
            self._monitor.blame(self._index, error)
            raise

    def _follower(self, connection: Connection, beginning: Beginning, choice: Choice, needed: Needed) -> Follower:
        """With a plan by the ballot that the member has now. Raises ConnectionLostError if another may be the right one."""
        ballot = vote(connection)
        self._failover.confirm(Answer(connection.address, ballot=ballot), needed)
        known = beginning.known
        return Follower(
            self._config,
            connection,
            beginning.publisher,
            beginning.checkpoint,
            start.plan(replace(known, forced=known.forced or choice.snapshot), ballot),
            ballot,
            status=self._status,
            is_stopping=self._is_stopping,
            goal=beginning.goal,
            noticed=beginning.noticed,
            writer=beginning.writer,
            requests=self._requests,
            is_lost=self._monitor.is_lost,
        )
