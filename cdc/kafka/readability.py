"""Sees to it that readers can reach what was committed, before anything else is written: that a commit has come through doesn't
say so, and an abort would take along what hangs (see cdc.kafka.hanging, where it is drawn).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from typing import Final

import structlog

from cdc.errors import CdcError, ConnectionLostError
from cdc.kafka import readers_view
from cdc.kafka.delivery import Delivery
from cdc.kafka.ends import Ends
from cdc.kafka.errors import translate_kafka_errors
from cdc.kafka.hanging import Place
from cdc.kafka.readers_view import ReadersView
from cdc.kafka.topic_admin import snapshot_remedy
from cdc.stream.unseen import Unseen

PAUSES_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
"""Between one look and the next: a commit is mostly readable at the first, two milliseconds after its answer."""
TROUBLED_SECONDS: Final = 0.5
"""Until the next look where a partition didn't tell."""
SLOW_COMMIT_SECONDS: Final = 1.0
"""Where a commit took so long, partitions may have got other leaders."""
FILLERS_MAX: Final = 3
"""So often what hangs is ended in vain, while its partition has a leader, until it is another producer's transaction that keeps
readers from getting on."""
END_SECONDS: Final = 10.0
"""How long the end waits for readers to reach the last commit."""


class Readability:
    """Of what one publisher has committed. Used by one thread at a time: by the publisher's once that runs."""

    def __init__(self, name: str, topic_prefix: str, view: ReadersView, ends: Ends, is_stopping: threading.Event) -> None:
        self._name = name
        self._topic_prefix = topic_prefix
        self._view = view
        self._ends = ends
        self._is_stopping = is_stopping
        self._unseen = Unseen()
        self._look_count = self._filler_count = 0
        # Whether it may be another broker by now that is to be asked.
        self._is_doubtful = False
        # Since when partitions are known to be open, although they have leaders.
        self._open_since: float | None = None
        # Since when Kafka doesn't know a topic that was written to.
        self._missing_since: float | None = None
        self.trouble: str | None = None
        """Why it couldn't be seen at the last look whether readers can reach the last commit."""
        # Why the end didn't wait for it any longer.
        self._reason: str | None = None

    def committed(self, topics: Iterable[str], seconds: float) -> None:
        """A transaction that wrote to these topics has been committed within so many seconds."""
        self._is_doubtful |= seconds >= SLOW_COMMIT_SECONDS
        self._unseen.committed(topics)
        self._look_count = self._filler_count = 0
        self._open_since = self._missing_since = None

    def complained(self) -> None:
        """Kafka's client has trouble with a broker, whose partitions may get other leaders."""
        self._is_doubtful = True

    @property
    def is_seen(self) -> bool:
        """Whether readers have been seen to reach all that was committed. Nothing may be written before."""
        return self._unseen.is_seen

    @property
    def unreadable(self) -> str | None:
        """Why it isn't known that readers can reach all that was committed; None if it is."""
        if self.is_seen:
            return None
        return self._reason or self.trouble or "Kafka has not written all markers of the last commit yet"

    def look(self, delivery: Delivery) -> float | None:
        """Look once, and end what hangs. Returns how long to wait until the next look, None if all `is_seen`.

        Raises as `Delivery.end_hanging`.
        """
        if self._is_doubtful:
            self._is_doubtful = False
            self._ends.forget()
        try:
            self._ask()
            if not self._unseen.is_seen and self._is_patience_over():
                self._end_own(delivery)
        except ConnectionLostError as error:
            self._is_doubtful = True
            self._open_since, self._filler_count = None, 0
            self._unseen.ask_again()
            if self.trouble is None:
                structlog.get_logger().info("what readers can reach isn't known", name=self._name, reason=error.message)
            self.trouble = error.message
            return TROUBLED_SECONDS
        if self.trouble is not None:
            structlog.get_logger().info("what readers can reach is known again", name=self._name)
            self.trouble = None
        if self._unseen.is_seen:
            return None
        self._look_count += 1
        # By the last pause it would be readable. Whoever was asked may not be the leader any more.
        self._is_doubtful = self._look_count == len(PAUSES_SECONDS)
        return PAUSES_SECONDS[min(self._look_count, len(PAUSES_SECONDS)) - 1]

    def await_end(self, delivery: Delivery) -> None:
        """All is committed, and this is the end: wait until readers can reach it. Where they don't, `unreadable` says why."""
        deadline = time.monotonic() + END_SECONDS
        while not self.is_seen:
            try:
                with translate_kafka_errors():
                    pause = self.look(delivery)
            except CdcError as error:
                self._reason = error.message
                return
            if pause is not None and (time.monotonic() > deadline or self._is_stopping.wait(pause)):
                return

    def end(self, delivery: Delivery, open_: Collection[Place], *, commit: bool) -> None:
        """End what hangs in these partitions. Raises as `Delivery.end_hanging`."""
        log = structlog.get_logger()
        log.warning("Kafka has left a transaction open; ending it", name=self._name, partitions=len(open_), commit=commit)
        try:
            delivery.end_hanging(open_, commit=commit)
        except CdcError as error:
            if commit:
                log.error(
                    "what was committed may be lost to readers of committed messages: the transaction that should end it failed. "
                    "`tarantool-cdc audit` tells which events they lack",
                    name=self._name,
                    reason=error.message,
                    partitions=[f"{topic}-{number}" for topic, number in sorted(open_)],
                    remedy=self._remedy(open_),
                )
            raise

    def close(self) -> None:
        """Let go of the connections."""
        self._ends.forget()

    def _ask(self) -> None:
        if not self._unseen.has_ends:
            ends, missing = self._ends.written(self._unseen.topics)
            if missing:
                # A broker that has just started may know fewer than there are. One that stays away was deleted with all it had.
                now = time.monotonic()
                self._missing_since = self._missing_since or now
                if now < self._missing_since + readers_view.GONE_SECONDS:
                    raise ConnectionLostError(f"Kafka doesn't show the topic {missing[0]}")
            else:
                self._missing_since = None
            self._unseen.written(ends)
        self._unseen.reached(self._ends.committed(self._unseen.open))

    def _is_patience_over(self) -> bool:
        now = time.monotonic()
        self._open_since = self._open_since or now
        return now >= self._open_since + readers_view.MARKERS_SECONDS

    def _end_own(self, delivery: Delivery) -> None:
        """All of it was committed, as nothing is under way."""
        own = self._view.own(self._unseen.open)
        if self._filler_count >= FILLERS_MAX:
            own = {}
        others = self._unseen.open.keys() - own.keys()
        if others:
            structlog.get_logger().warning(
                "what was committed can't be seen: another producer's transaction is open in the same partitions",
                name=self._name,
                partitions=[f"{topic}-{number}" for topic, number in sorted(others)],
            )
            self._unseen.leave(others)
        if own:
            self.end(delivery, own, commit=True)
            self._filler_count += 1
            self._open_since = None
            self._look_count = 0
            self._unseen.committed({topic for topic, _ in own})

    def _remedy(self, partitions: Iterable[Place]) -> str:
        topics = {topic.removeprefix(f"{self._topic_prefix}.") for topic, _ in partitions}
        return "; ".join(snapshot_remedy(topic) for topic in sorted(topics))


def others_transaction(topic_prefix: str) -> ConnectionLostError:
    """What to raise when something stays open although this daemon has ended its own."""
    return ConnectionLostError(
        f"another producer's transaction is open in topics of {topic_prefix}",
        "Wait for its end, or end it with kafka-transactions.sh; give daemons of their own topic_prefix.",
    )
