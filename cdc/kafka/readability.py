"""Sees to it that readers can reach what was committed: that a commit has come through doesn't say so (see cdc.kafka.hanging).

Nobody but the producer itself can end what hangs, and only its next transaction in the same partition does it by the way:
with a commit well, with an abort to the loss of what was committed before. So it is looked

    after every commit      for a while after a slow one, or a complaint of Kafka's client: brokers that fell silent lose
                            their partitions, and get them again, within their session's time
    when it is quiet        once after the last commit
    before the end          as there is no next transaction
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import Final

import structlog

from cdc.errors import CdcError, ConnectionLostError
from cdc.kafka.delivery import Delivery
from cdc.kafka.errors import translate_kafka_errors
from cdc.kafka.hanging import Place
from cdc.kafka.readers_view import ReadersView

SLOW_COMMIT_SECONDS: Final = 1.0
DOUBT_SECONDS: Final = 10.0
"""How long the while is."""
QUIET_SECONDS: Final = 1.0
INTERVAL_SECONDS: Final = 10.0
"""Between two looks when it is quiet."""
END_SECONDS: Final = 10.0
"""How long the end waits for readers to reach the last commit."""
_POLL_SECONDS: Final = 0.5


class Readability:
    """Of what one publisher has committed. Used by the publisher's thread alone."""

    def __init__(self, name: str, topic_prefix: str, view: ReadersView, is_stopping: threading.Event) -> None:
        self._name = name
        self._topic_prefix = topic_prefix
        self._view = view
        self._is_stopping = is_stopping
        # Whether readers were seen to reach the last commit.
        self._is_seen = True
        self._committed_at = 0.0
        self._doubtful_until = 0.0
        self._next_look = 0.0
        self.unreadable: str | None = None
        """Why it isn't known, after `await_end`, that readers can reach the last commit."""

    def committed(self, started: float, ended: float, *, has_events: bool) -> None:
        """A commit has come through, by the monotonic clock.

        After one without events there is nothing to look for: the position alone is committed again and again while it is
        quiet, and the next time ends what this time may have left.
        """
        if has_events:
            self._is_seen = False
            self._committed_at = ended
        if ended - started >= SLOW_COMMIT_SECONDS:
            self._doubtful_until = ended + DOUBT_SECONDS

    def complained(self, now: float) -> None:
        """Kafka's client has trouble with a broker."""
        self._doubtful_until = now + DOUBT_SECONDS

    def is_look_due(self, now: float, *, is_idle: bool) -> bool:
        """Whether to look now that no transaction is open."""
        if self._is_seen or now < self._next_look:
            return False
        return now < self._doubtful_until or (is_idle and now >= self._committed_at + QUIET_SECONDS)

    def look(self, delivery: Delivery) -> None:
        """Look, and end what hangs; no transaction may be open. Raises as `Delivery.end_hanging`."""
        started = time.monotonic()
        try:
            self._see_to_it(delivery)
        except ConnectionLostError as error:
            # A partition without a leader takes its time to tell, and may be without one for days.
            self._next_look = time.monotonic() + INTERVAL_SECONDS + 10 * (time.monotonic() - started)
            structlog.get_logger().info("what readers can reach isn't known", name=self._name, reason=error.message)
        else:
            if time.monotonic() >= self._doubtful_until:
                self._next_look = time.monotonic() + INTERVAL_SECONDS

    def await_end(self, delivery: Delivery) -> None:
        """All is committed, and this is the end: wait until readers can reach all of it, or note why that isn't known."""
        deadline = time.monotonic() + END_SECONDS
        while not self._is_seen:
            try:
                with translate_kafka_errors():
                    self._see_to_it(delivery)
            except CdcError as error:
                is_over = time.monotonic() > deadline or not isinstance(error, ConnectionLostError)
                if is_over or self._is_stopping.wait(_POLL_SECONDS):
                    self.unreadable = error.message
                    return

    def end(self, delivery: Delivery, open_: Collection[Place], *, commit: bool) -> None:
        """End what hangs in these partitions. Raises as `Delivery.end_hanging`."""
        structlog.get_logger().warning(
            "Kafka has left a transaction open; ending it", name=self._name, partitions=len(open_), commit=commit
        )
        delivery.end_hanging(open_, commit=commit)

    def _see_to_it(self, delivery: Delivery) -> None:
        open_ = self._view.still_open()
        if open_:
            # All of it was committed, as nothing is under way.
            self.end(delivery, open_, commit=True)
            if self._view.still_open():
                raise others_transaction(self._topic_prefix)
        self._is_seen = True


def others_transaction(topic_prefix: str) -> ConnectionLostError:
    """What to raise when something stays open although this daemon has ended its own."""
    return ConnectionLostError(
        f"another producer's transaction is open in topics of {topic_prefix}",
        "Wait for its end, or end it with kafka-transactions.sh; give daemons of their own topic_prefix.",
    )
