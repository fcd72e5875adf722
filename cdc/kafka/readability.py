"""Check that consumers can read all committed messages, before anything else is written.

A successful commit doesn't guarantee that, and a later abort would discard hanging messages (see the drawing in
cdc.kafka.hanging).

Readers must reach an end of each partition that is behind the transaction's messages. Where other producers write, too (the
shards of a fleet), that end is asked for before the commit. One asked for later would often be behind the first messages of
another shard's next transaction, so that each shard would wait for the other's next commit, in turns:

    s1   ██████ commit                  wait for ▒▒    ██████
    s2   ▒▒ waits for s1 ▒▒▒▒▒▒ begins at once, before s1 asks for the end
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import structlog

from cdc.errors import CdcError, ConnectionLostError
from cdc.kafka import readers_view
from cdc.kafka.delivery import Delivery
from cdc.kafka.ends import Ends
from cdc.kafka.errors import translate_kafka_errors
from cdc.kafka.hanging import Place
from cdc.kafka.readers_view import ReadersView
from cdc.stream.commits.losses import snapshot_remedy
from cdc.stream.commits.unseen import UnseenCommits

PAUSES_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
"""Pauses between two checks. Most commits are readable at the first check, two milliseconds after the commit's answer."""
TROUBLED_SECONDS: Final = 0.5
"""Pause before the next check if a partition didn't answer."""
SLOW_COMMIT_SECONDS: Final = 1.0
"""Duration of a commit from which on partitions may have new leaders."""
FILLERS_MAX: Final = 3
"""Number of filler transactions, while the partition has a leader, after which another producer's transaction must be the one
that holds up consumers."""
END_SECONDS: Final = 10.0
"""Time limit for the wait, at the daemon's stop, until consumers can read the last commit."""


class Readability:
    """Readability of one publisher's commits. Used by one thread at a time: by the publisher's thread, once it runs."""

    def __init__(
        self,
        name: str,
        topic_prefix: str,
        view: ReadersView,
        ends: Ends,
        is_stopping: threading.Event,
        *,
        has_co_writers: bool = False,
    ) -> None:
        """`has_co_writers`: other producers write transactions to the same partitions."""
        self._name = name
        self._topic_prefix = topic_prefix
        self._view = view
        self._ends = ends
        self._is_stopping = is_stopping
        self._has_co_writers = has_co_writers
        # The ends that were asked for before the last commit.
        self._known: Mapping[Place, int] = {}
        self._unseen = UnseenCommits()
        self._check_count = self._filler_count = 0
        # Whether the partitions' leaders may have changed.
        self._is_doubtful = False
        # Time since which partitions have been open although they have leaders.
        self._open_since: float | None = None
        # Time since which Kafka hasn't shown a topic that was written to.
        self._missing_since: float | None = None
        self.remedy_of: Callable[[str], str] = self._remedy_by_name
        """Returns the command that publishes a topic's rows again."""
        self.trouble: str | None = None
        """Why the last check couldn't tell whether consumers can read the last commit."""
        # Why `await_end` stopped waiting.
        self._reason: str | None = None

    def before_commit(self, delivery: Delivery) -> None:
        """Ask for the ends that readers have to reach, if others write there, too. Raises the errors of `Delivery.arrived`."""
        self._known = {}
        if not self._has_co_writers or not self.is_seen:
            return
        topics = delivery.arrived()
        try:
            self._known, _ = self._ends.written(topics)
        except ConnectionLostError:
            self._is_doubtful = True  # they are asked for after the commit

    def committed(self, topics: Iterable[str], seconds: float) -> None:
        """Record the commit of a transaction that wrote to these topics, and how many `seconds` the commit took."""
        self._is_doubtful |= seconds >= SLOW_COMMIT_SECONDS
        self._unseen.committed(topics)
        self._check_count = self._filler_count = 0
        self._open_since = self._missing_since = None

    def complained(self) -> None:
        """Record a broker error of Kafka's client: the broker's partitions may get new leaders."""
        self._is_doubtful = True

    @property
    def is_seen(self) -> bool:
        """Whether consumers were seen to be able to read all committed messages. Nothing may be written before that."""
        return self._unseen.is_seen

    @property
    def unreadable(self) -> str | None:
        """Why consumers may not be able to read all committed messages; None if they were seen to be readable."""
        if self.is_seen:
            return None
        return self._reason or self.trouble or "Kafka has not written all markers of the last commit yet"

    def check(self, delivery: Delivery) -> float | None:
        """Check once, and end hanging transactions. Returns the pause until the next check in seconds, or None if `is_seen`.

        Raises the errors of `Delivery.end_hanging`.
        """
        if self._is_doubtful:
            self._is_doubtful = False
            self._ends.reset_clients()
        try:
            self._ask()
            if not self._unseen.is_seen and self._is_patience_over():
                self._end_own(delivery)
        except ConnectionLostError as error:
            self._is_doubtful = True
            self._open_since, self._filler_count = None, 0
            self._unseen.ask_again()
            if self.trouble is None:
                structlog.get_logger().info(
                    "can't check whether consumers can read the last commit", name=self._name, reason=error.message
                )
            self.trouble = error.message
            return TROUBLED_SECONDS
        if self.trouble is not None:
            structlog.get_logger().info("the check whether consumers can read the last commit works again", name=self._name)
            self.trouble = None
        if self._unseen.is_seen:
            return None
        self._check_count += 1
        # By the last pause the commit should be readable. The broker that was asked may not be the leader any more.
        self._is_doubtful = self._check_count == len(PAUSES_SECONDS)
        return PAUSES_SECONDS[min(self._check_count, len(PAUSES_SECONDS)) - 1]

    def await_end(self, delivery: Delivery) -> None:
        """Wait, after the final commit, until consumers can read it. If they can't in time, `unreadable` says why."""
        deadline = time.monotonic() + END_SECONDS
        while not self.is_seen:
            try:
                with translate_kafka_errors():
                    pause = self.check(delivery)
            except CdcError as error:
                self._reason = error.message
                return
            if pause is not None and (time.monotonic() > deadline or self._is_stopping.wait(pause)):
                return

    def end(self, delivery: Delivery, open_: Collection[Place], *, commit: bool) -> None:
        """End the hanging transaction in these partitions. Raises the errors of `Delivery.end_hanging`."""
        log = structlog.get_logger()
        log.warning("Kafka has left a transaction open; ending it", name=self._name, partitions=len(open_), commit=commit)
        try:
            delivery.end_hanging(open_, commit=commit)
        except CdcError as error:
            if commit:
                log.error(
                    "committed events may be lost to read_committed consumers: the transaction to make them readable failed. "
                    "The Spark job `audit` lists the missing events",
                    name=self._name,
                    reason=error.message,
                    partitions=[f"{topic}-{number}" for topic, number in sorted(open_)],
                    remedy=self._remedy(open_),
                )
            raise

    def close(self) -> None:
        """Close the connections."""
        self._ends.reset_clients()

    def _ask(self) -> None:
        if not self._unseen.has_ends:
            known = {topic for topic, _ in self._known}
            ends, missing = self._ends.written(self._unseen.topics - known)
            ends |= {place: end for place, end in self._known.items() if place[0] in self._unseen.topics}
            if missing:
                # A broker that has just started may know only some of the topics. A topic that stays missing was deleted.
                now = time.monotonic()
                self._missing_since = self._missing_since or now
                if now < self._missing_since + readers_view.GONE_SECONDS:
                    raise ConnectionLostError(f"Kafka doesn't show the topic {missing[0]}")
            else:
                self._missing_since = None
            self._unseen.written(ends)
            self._known = {}
        self._unseen.reached(self._ends.committed(self._unseen.open))

    def _is_patience_over(self) -> bool:
        now = time.monotonic()
        self._open_since = self._open_since or now
        return now >= self._open_since + readers_view.MARKERS_SECONDS

    def _end_own(self, delivery: Delivery) -> None:
        """End the daemon's own hanging transaction. It was committed, as no transaction of the daemon is running now."""
        own = self._view.own(self._unseen.open)
        if self._filler_count >= FILLERS_MAX:
            own = {}
        others = self._unseen.open.keys() - own.keys()
        if others:
            structlog.get_logger().warning(
                "committed events aren't readable: another producer's transaction is open in the same partitions",
                name=self._name,
                partitions=[f"{topic}-{number}" for topic, number in sorted(others)],
            )
            self._unseen.ignore(others)
        if own:
            self.end(delivery, own, commit=True)
            self._filler_count += 1
            self._open_since = None
            self._check_count = 0
            self._unseen.committed({topic for topic, _ in own})

    def _remedy(self, partitions: Iterable[Place]) -> str:
        return "; ".join(map(self.remedy_of, sorted({topic for topic, _ in partitions})))

    def _remedy_by_name(self, topic: str) -> str:
        return snapshot_remedy([topic.removeprefix(f"{self._topic_prefix}.")], ())


def others_transaction(topic_prefix: str) -> ConnectionLostError:
    """Return the error for a transaction that stays open although this daemon has ended its own."""
    return ConnectionLostError(
        f"another producer's transaction is open in topics of {topic_prefix}",
        "Wait until it ends, or abort it with kafka-transactions.sh; give each daemon a kafka.topic_prefix of its own.",
    )
