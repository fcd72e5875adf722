"""A standby waits for its turn: it listens to the daemon that has the name, and keeps a state store of its own meanwhile.

    start ─▶ has nobody ever had the name, or a process of this state directory last? ─▶ start as ever
                 │ no
                 ▼
             listen (cdc.kafka.life_watch), and follow (cdc.daemon.standby_store)
                 │ the other is gone, and the store is ready
                 ▼
             start

It ends its wait by a start like any other: the checks of cdc.daemon.admission, the claim, the checkpoint, the stream. A daemon
that was fenced ends with its error, and its service manager starts it again: then it is a standby.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Final

import structlog

from cdc.config import Config
from cdc.daemon import admission
from cdc.daemon.admission import StateDirectoryLock
from cdc.daemon.backoff import jittered
from cdc.daemon.standby_store import StandbyStore
from cdc.errors import CdcError, ConfigurationError, ConnectionLostError, Remedy
from cdc.kafka import checkpoint_topic
from cdc.kafka.checkpoint_tail import CheckpointTail
from cdc.kafka.clients import KafkaClients
from cdc.kafka.life_watch import LifeWatch
from cdc.ops.status import Status
from cdc.store.writer import StateWriter
from cdc.stream.commits import ownership
from cdc.stream.commits.checkpoint import Checkpoint
from cdc.stream.commits.standby import Vigil
from cdc.upstream.failover import BackOff

_TURN_SECONDS: Final = 0.1
_DELAY_MAX_SECONDS: Final = 5.0
NOT_READY_SECONDS: Final = 10.0
"""Time for which a standby that isn't ready gives no reason. Its connection may only be about to be made again."""


def check_possible(config: Config) -> None:
    """Raise ConfigurationError where there can be no standby."""
    if config.state.images == "full" and config.kafka.has_co_writers:
        raise ConfigurationError(
            'standby = true needs fleet.topics = "per_shard" if there are images: rows of buckets that move between shards '
            "wait in the state store, and a standby's store lacks them",
            "Leave standby out: a daemon that is started again elsewhere, with its state.path, goes on where it was.",
        )


class _NobodyPublishesError(ConnectionLostError):
    """The other daemon is gone, and this one can't take over: it waits on, but nothing is published without an operator."""

    remedy = Remedy.OPERATOR


class Standby:
    """The wait of one process for its turn."""

    def __init__(self, config: Config, status: Status, is_stopping: threading.Event, writer: StateWriter | None) -> None:
        """`writer` has the standby's store, None without images. Raises the error of `check_possible`."""
        check_possible(config)
        self._config = config
        self._status = status
        self._is_stopping = is_stopping
        self._writer = writer
        self._log = structlog.get_logger().bind(name=config.name)
        self._told: str | None = None
        self._unready_since: float | None = None

    def await_turn(self, lock: StateDirectoryLock, process: str) -> Checkpoint | None:
        """Wait until the name is free and this `process`, which holds the lock, can take it; or until a stop is requested.

        Returns the checkpoint of the process for whose end it has waited, None if it hasn't waited for any. Raises
        PrefixTakenError, or an error of Kafka or of the store that no retry can cure.
        """
        config, former = self._config, lock.former_holders()
        stored = self._stored()
        if stored is None or not _is_of_another(config, stored, former):
            return None
        # This store isn't the checkpoint's, and no later start may take it for that.
        lock.record_holder(process)
        sign = stored.signs.get(config.name)
        self._log.info(
            "waiting as a standby for the daemon that has the name",
            other=f"process {sign.process_id} on {sign.host}" if sign is not None else stored.writer,
        )
        while (vigil := self._heard_until_turn(stored)) is not None:
            newest = self._stored()
            if newest is None:
                return None
            if not vigil.has_missed(newest.signs.get(config.name)):
                self._log.info("taking over: the daemon that had the name is gone", former=vigil.writer)
                return newest
            self._log.warning("the daemon that has the name wasn't heard, and isn't gone: listening anew")
            stored = newest
        return None

    def _heard_until_turn(self, stored: Checkpoint) -> Vigil | None:
        """Wait for this one's turn, and return what was heard until then; None if a stop was requested."""
        config = self._config
        has_ended = ownership.is_known_gone(stored, config.name, ())
        vigil = Vigil(time.monotonic(), stored.writer, has_ended=has_ended, sign=stored.signs.get(config.name))
        clients, topic = KafkaClients(config.name, config.kafka), checkpoint_topic.name_of(config.kafka.control_prefix)
        watch = LifeWatch(clients, topic, config.name, vigil)
        watch.start()
        try:
            if self._writer is None:
                while not vigil.is_gone and not self._is_stopping.wait(_TURN_SECONDS):
                    watch.check()
                    self._show_readiness(vigil, watch, has_store=True)
            else:
                self._keep_store(self._writer, CheckpointTail(clients, topic, config.name), vigil, watch)
        finally:
            watch.close()
            self._status.is_standby_ready = self._status.is_standby_deaf = False
        return None if self._is_stopping.is_set() else vigil

    def _stored(self) -> Checkpoint | None:
        """Read the checkpoint, as soon as Kafka answers; None if a stop is requested before. Raises PrefixTakenError."""
        delays = BackOff(0.5, _DELAY_MAX_SECONDS)
        while not self._is_stopping.is_set():
            try:
                stored = admission.read(self._config, lambda reason: self._log.info("kafka doesn't answer yet", reason=reason))
                admission.check_owner(self._config, stored)
            except ConnectionLostError as error:
                self._tell(error)
                self._is_stopping.wait(jittered(delays.next()))
            else:
                self._status.error = None
                return stored
        return None

    def _keep_store(self, writer: StateWriter, tail: CheckpointTail, vigil: Vigil, watch: LifeWatch) -> None:
        """Keep the store near the checkpoint until the name is free and the store is ready, or a stop is requested."""
        delays = BackOff(0.2, _DELAY_MAX_SECONDS)
        store: StandbyStore | None = None
        has_turn = False

        def is_over() -> bool:
            # Once it is this one's turn, it stays so: a store that ends its connection for that would seem not to be ready.
            nonlocal has_turn
            assert store is not None
            watch.check()
            if self._show_readiness(vigil, watch, has_store=store.is_ready, lacks_log=store.lacks_log):
                delays.reset()
            # The other one may be heard while Kafka is asked.
            has_turn = has_turn or (vigil.is_gone and store.is_startable and vigil.is_gone)
            return has_turn or self._is_stopping.is_set()

        store = StandbyStore(self._config, self._status, writer, tail, self._is_stopping.wait, is_over)
        try:
            while not is_over():
                try:
                    store.follow()
                except CdcError as error:
                    if isinstance(error, ConfigurationError):
                        raise
                    if self._config.columns.rules:
                        error.conceal()
                    if watch.outage is None:
                        self._tell(error)
                    deadline = time.monotonic() + jittered(delays.next())
                    while time.monotonic() < deadline and not is_over():
                        with contextlib.suppress(ConnectionLostError):  # the next look, in `follow`, says so
                            tail.look()
                        self._is_stopping.wait(_TURN_SECONDS)
        finally:
            tail.close()

    def _show_readiness(self, vigil: Vigil, watch: LifeWatch, *, has_store: bool, lacks_log: bool = False) -> bool:
        """Show whether this standby could take over, and why not if that lasts. Return whether a told reason has just ended.

        `lacks_log`: no member has the log from the store to the checkpoint.
        """
        status, outage = self._status, watch.outage
        sign = vigil.sign
        status.standby_of = f"process {sign.process_id} on {sign.host}" if sign is not None else None
        status.is_standby_ready, status.is_standby_deaf = has_store and vigil.is_steady, outage is not None
        if has_store and outage is None:
            self._unready_since = None
            if self._told is None:
                return False
            status.error, self._told = None, None
            return True
        now = time.monotonic()
        self._unready_since = now if self._unready_since is None else self._unready_since
        if now - self._unready_since >= NOT_READY_SECONDS:
            reason = outage or (_not_ready(lacks_log) if vigil.is_gone else _not_yet_ready(lacks_log))
            # An error of the member says more than that the store isn't ready; an outage of Kafka comes before both.
            is_better = outage is not None or self._told in (None, *_NOT_READY)
            if is_better and reason.message != self._told:
                self._tell(reason)
        return False

    def _tell(self, error: CdcError) -> None:
        status = self._status
        status.error_remedy, status.error_detail, status.error = error.hint, error.detail, error.public
        tell = self._log.debug if self._told == error.message else self._log.warning
        self._told = error.message
        tell("the standby waits", reason=str(error), needs_operator=error.remedy is Remedy.OPERATOR)


def _not_yet_ready(lacks_log: bool) -> CdcError:
    return ConnectionLostError(
        f"{_behind(lacks_log)}, so it couldn't take over",
        "A member that is down may have it. Else this one goes on by itself, with rows that it has received, once the other one "
        "no longer publishes rows again from its own store."
        if lacks_log
        else "It is filled from a member, and follows the log from there; the other's snapshot, or doubtful keys, delay that.",
    )


def _not_ready(lacks_log: bool) -> CdcError:
    return _NobodyPublishesError(
        f"the daemon that has the name is gone, and {_behind(lacks_log)}, so it can't take over",
        "Start the other one again, with its state.path. If that is lost for good, start this one once with --take-over and "
        "--rebuild-state: all rows are published again.",
    )


def _behind(lacks_log: bool) -> str:
    if lacks_log:
        return "this standby's state store is behind what consumers have, and no member that answers has the log after it"
    return "this standby's state store isn't at a position that consumers have yet"


_NOT_READY: Final = frozenset(reason(lacks_log).message for reason in (_not_yet_ready, _not_ready) for lacks_log in (True, False))


def _is_of_another(config: Config, stored: Checkpoint, former: list[str]) -> bool:
    """Return whether another state directory's process has, or had last, the name: else an ordinary start is right."""
    if stored.writer is None and stored.signs.get(config.name) is None:
        return False
    return stored.writer not in former
