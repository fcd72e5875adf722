"""The daemon's life: keep a publisher, keep a connection, and know which trouble heals by waiting.

After trouble on the source's side, what was submitted is settled first, and the next connection goes on from there: no event
is made twice. After an aborted Kafka transaction the next connection goes on from the checkpoint in Kafka: the way to
recover is the way to start.
"""

from __future__ import annotations

import gc
import random
import threading
import uuid
from typing import Final

import structlog

from cdc.checkpoint import Checkpoint
from cdc.config import Config
from cdc.delivery import FencedError
from cdc.errors import CdcError, ConnectionLostError, KeysChangedError, PublishAborted, Remedy, ReplayError, StateLostError
from cdc.follower import Follower, Goal, greet, vote
from cdc.http import StatusServer
from cdc.protocol.failure import XlogGapError
from cdc.publisher import Publisher
from cdc.snapshot_requests import SnapshotRequests
from cdc.state import set_aside
from cdc.state_writer import StateWriter
from cdc.status import Status

BACK_OFF_FIRST_SECONDS: Final = 0.1
BACK_OFF_MAX_SECONDS: Final = 5.0

# The daemon's replica has the same UUID whenever it has the same name: a master from 3.3 on keeps logs for each UUID it sees.
_INSTANCE_NAMESPACE: Final = uuid.UUID("a2bb4f0e-8d5f-5c0d-9a59-6f3a5e0a4c1b")


def instance_uuid(name: str) -> uuid.UUID:
    """The UUID under which a daemon's replica is known to its masters."""
    return uuid.uuid5(_INSTANCE_NAMESPACE, name)


def tune_garbage_collector() -> None:
    """Rows are made and dropped by the hundred thousand and hold no cycles: let the collector look at them rarely.

    Every collection of the youngest generation in the middle of a batch would visit all of the batch's dicts; it costs
    more than a third of the decoding.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)


class BackOff:
    """Delays that grow, with jitter, until something succeeds."""

    def __init__(self) -> None:
        self._delay = BACK_OFF_FIRST_SECONDS

    def next(self) -> float:
        """The next delay in seconds."""
        delay, self._delay = self._delay, min(BACK_OFF_MAX_SECONDS, self._delay * 2)
        return delay * random.uniform(0.75, 1.25)  # noqa: S311 - spreads reconnects, guards nothing

    def reset(self) -> None:
        """It works again."""
        self._delay = BACK_OFF_FIRST_SECONDS


class Daemon:
    """One run of the daemon, from its start to its stop."""

    def __init__(self, config: Config) -> None:
        """Raises ConfigurationError if http.listen can't be had."""
        self._config = config
        self._log = structlog.get_logger().bind(name=config.name)
        self._writer_id = str(uuid.uuid4())
        self._instance_uuid = instance_uuid(config.name)
        self._is_stopping = threading.Event()
        self._publisher: Publisher | None = None
        self._writer: StateWriter | None = None
        self._checkpoint = Checkpoint()
        # Once this process has had the name: itself, and who wrote the checkpoint before it.
        self._writers: set[str | None] = set()
        self._connect_count = 0
        self._back_off = BackOff()
        # The reason for a snapshot that the stream itself asks for: a gap that the ballot did not show.
        self._forced_snapshot: str | None = None
        self._requests = SnapshotRequests()
        self.status = Status(config.name, requests=self._requests)
        self._server = StatusServer(config.http.address, self.status) if config.http.address else None

    @property
    def http_port(self) -> int | None:
        """The port of /metrics and /status, if there is one."""
        return self._server.port if self._server else None

    def stop(self) -> None:
        """Ask for a clean stop; safe in a signal handler."""
        self._is_stopping.set()

    def run(self, *, until_caught_up: bool = False) -> None:
        """Follow the master until stopped, or caught up. Raises the error that an operator must see."""
        tune_garbage_collector()
        goal = Goal(until_caught_up)
        try:
            if self._config.state.images == "full":
                self._writer = self._open_store()
            while not self._is_stopping.is_set():
                try:
                    if self._publisher is None:
                        self._publisher = self._start_publisher()
                    if self._follow(self._publisher, goal):
                        break
                except CdcError as error:
                    self._recover(error)
            self.status.state = "stopping"
        except CdcError as error:
            self.status.state, self.status.error = "failed", str(error)
            raise
        finally:
            self._stop_publisher()
            if self._writer is not None:
                self._writer.close()
            if self._server is not None:
                self._server.close()

    def _open_store(self) -> StateWriter:
        state = self._config.state
        path = state.path / "images"
        try:
            return StateWriter(path, self._config.name, state.flush_interval_ms / 1000)
        except StateLostError as error:
            self._log.warning("building the state store anew", reason=error.message, old=str(set_aside(path)))
            return StateWriter(path, self._config.name, state.flush_interval_ms / 1000)

    # Following.

    def _follow(self, publisher: Publisher, goal: Goal) -> bool:
        """One connection. Returns whether the goal was reached."""
        self.status.state = "connecting"
        # One upstream at a time, the first that answers; choosing among several is the next step of this product.
        member = self._config.source.members()[self._connect_count % len(self._config.source.uris)]
        is_first_connect = self._connect_count == 0
        self._connect_count += 1
        self.status.reconnect_count = self._connect_count - 1
        connection = greet(member, self._instance_uuid, frame_bytes_max=self._config.source.frame_bytes_max)
        try:
            ballot = vote(connection)
            follower = Follower(
                self._config,
                connection,
                publisher,
                self._checkpoint,
                status=self.status,
                is_stopping=self._is_stopping,
                goal=goal,
                writer=self._writer,
                requests=self._requests,
            )
            try:
                forced, self._forced_snapshot = self._forced_snapshot, None
                return follower.run(ballot, is_first_connect=is_first_connect, forced_snapshot=forced)
            except PublishAborted:
                raise
            except CdcError:
                follower.settle_submitted()
                raise
            finally:
                if follower.has_streamed:
                    self._back_off.reset()
        finally:
            connection.close()

    def _recover(self, error: CdcError) -> None:
        """Do what makes another round worth trying, or raise the error again."""
        match error:
            case PublishAborted():
                self._log.warning("a Kafka transaction was aborted; going back to the checkpoint", reason=str(error))
                self._go_back()
            case FencedError() if self._publisher is not None:
                # By a second daemon of this name, or by a coordinator that gave up on us while Kafka was away: a new
                # producer finds out which, and only in the second case goes on.
                self._log.warning("the Kafka producer was fenced; looking who has the name", reason=str(error))
                _discard(self._publisher)
                self._publisher = None
            case XlogGapError() if self._config.source.on_gap == "resnapshot" or self._config.snapshot.mode == "when_needed":
                self._log.warning("the stream has a gap", reason=error.message)
                self._forced_snapshot = error.message
            case KeysChangedError() | ReplayError():
                self._log.warning("only a snapshot can fill the state store", reason=error.message)
                self._forced_snapshot = error.message
            case _ if error.remedy is Remedy.WAIT:
                delay = self._back_off.next()
                self.status.error = str(error)
                self._log.warning("waiting", reason=str(error), retry_seconds=round(delay, 2))
                self._is_stopping.wait(delay)
            case _:
                raise error

    # The publisher's life.

    def _start_publisher(self) -> Publisher:
        self.status.state = "waiting for kafka"
        publisher = Publisher(self._config.name, self._config.kafka, self._writer_id)
        try:
            self._checkpoint = publisher.start(expected_writers=self._writers)
        except PublishAborted as error:
            _discard(publisher)
            # Before there is a stream, there is nothing to go back to: it is Kafka that is not ready.
            raise ConnectionLostError(error.message, error.hint) from error
        except CdcError:
            _discard(publisher)
            raise
        self._writers |= {self._writer_id, self._checkpoint.writer}
        self.status.kafka = publisher.statistics
        position = self._checkpoint.position
        self._log.info("kafka is ready", checkpoint=str(position.vclock) if position else None)
        self._back_off.reset()
        return publisher

    def _go_back(self) -> None:
        assert self._publisher is not None
        while not self._is_stopping.is_set():
            try:
                checkpoint = self._publisher.reload()
            except ConnectionLostError as error:
                self._log.warning("the checkpoint can't be read yet", reason=str(error))
                self._is_stopping.wait(self._back_off.next())
                continue
            if checkpoint is None:
                # Only taking the name anew tells whether a transaction is being ended slowly or hangs.
                self._log.warning("Kafka doesn't show the end of the last commit; taking the name anew")
                _discard(self._publisher)
                self._publisher = None
                return
            self._checkpoint = checkpoint
            self._publisher.reset()
            return

    def _stop_publisher(self) -> None:
        if self._publisher is None:
            return
        is_whole = self._publisher.stop(self._config.kafka.stop_timeout_ms / 1000)
        if self._writer is not None:
            for position in self._publisher.last_settled():
                self._writer.settle(position)
        if is_whole:
            self._log.info("stopped", seq=self.status.seq, checkpoint=str(self.status.published))
        else:
            self._log.warning("stopped before Kafka took everything; the next start goes on from the checkpoint")


def _discard(publisher: Publisher) -> None:
    """Let go of a publisher that is of no use. Its producers hold threads and sockets, and only the collector, which has
    little reason to run while nothing flows, would end them."""
    publisher.stop(0)
    gc.collect()
