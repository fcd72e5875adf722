"""The newest events of a topic, for somebody who looks at them: taken from the batches that go to the publisher.

    runner ─ note(batch) ─▶ the watched topics' newest events ─▶ take(topic), by HTTP

Nothing is kept, and batches aren't looked into, unless somebody asked for a topic during the last `WATCHED_SECONDS`. Events are
as Kafka gets them, so columns that are left out or masked are here, too. They may not be committed yet.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final, NamedTuple

from cdc.ops.allowance import Allowance
from cdc.stream.batches.batch import Batch, Broadcast, Message

WATCHED_SECONDS: Final = 10.0
TOPICS_MAX: Final = 8
"""Number of topics that can be watched at a time; one more replaces the one that was asked for least recently."""
EVENTS_MAX: Final = 50
VALUE_BYTES_MAX: Final = 16 * 1024
"""Bytes of a value, and of a key, that are kept; the rest is cut off."""
KNOWN_TOPICS_MAX: Final = 10_000
LOOKS_PER_SECOND: Final = 5_000
"""Messages that are looked at, on the daemon's thread: some milliseconds of CPU time per second."""


class TailEvent(NamedTuple):
    """One event: its number in the tail, the beginnings of its key and of its value (None: a tombstone), and the value's complete
    size."""

    number: int
    key: bytes | None
    value: bytes | None
    byte_count: int


class Tail(NamedTuple):
    """The newest events of a topic, oldest first, the number of the very newest, and how many messages of all topics weren't
    looked at since the topic is watched."""

    events: list[TailEvent]
    newest: int
    skipped: int


class _Watched:
    def __init__(self) -> None:
        self.asked_at = 0.0
        self.number = 0
        self.skipped = 0
        self.events: deque[TailEvent] = deque(maxlen=EVENTS_MAX)


class EventTail:
    """The tails of the watched topics."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._topics: dict[str, None] = {}
        self._allowance = Allowance(LOOKS_PER_SECOND)

    def take(self, topic: str, after: int = 0) -> Tail:
        """Return a topic's newest events whose numbers are greater than `after`, and watch the topic from now on."""
        now = time.monotonic()
        with self._lock:
            self._forget(now)
            watched = self._watched.pop(topic, None) or _Watched()
            watched.asked_at = now
            if len(self._watched) >= TOPICS_MAX:
                del self._watched[next(iter(self._watched))]
            self._watched[topic] = watched  # the one that was asked for last comes last
            return Tail([event for event in watched.events if event.number > after], watched.number, watched.skipped)

    def topics(self) -> list[str]:
        """Return the topics that were written to since the start, but no more than KNOWN_TOPICS_MAX."""
        with self._lock:
            return sorted(self._topics)

    def note(self, batch: Batch) -> None:
        """Keep a batch's newest events of the watched topics. Called for each batch, by the daemon's thread."""
        if batch.topics and len(self._topics) < KNOWN_TOPICS_MAX:
            with self._lock:
                self._topics.update(dict.fromkeys(batch.topics))
        if not self._watched:
            return
        now = time.monotonic()
        with self._lock:
            self._forget(now)
            if self._watched:
                self._look(batch, now)

    def _forget(self, now: float) -> None:
        for topic in [topic for topic, watched in self._watched.items() if now - watched.asked_at > WATCHED_SECONDS]:
            del self._watched[topic]

    def _look(self, batch: Batch, now: float) -> None:
        """Look at the batch's last messages, as many as the allowance permits."""
        found: dict[str, list[tuple[bytes | None, bytes | None]]] = {topic: [] for topic in self._watched}
        total = sum(1 if isinstance(part, tuple | Broadcast) else len(part) for part in batch.parts)
        left = looked = min(total, int(self._allowance.left(now)))
        for part in reversed(batch.parts):
            if left <= 0:
                break
            messages: list[Message]
            if isinstance(part, Broadcast):
                messages = [(part.topic, None, part.value)]
            elif isinstance(part, tuple):
                messages = [part]
            else:
                messages = [part[index] for index in range(len(part) - 1, max(-1, len(part) - 1 - left), -1)]
            left -= len(messages)
            for topic, key, value in messages:
                newest = found.get(topic)
                if newest is not None and len(newest) < EVENTS_MAX:
                    newest.append((key, value))
        self._allowance.use(looked)
        for topic, newest in found.items():
            watched = self._watched[topic]
            watched.skipped += total - looked
            for key, value in reversed(newest):
                watched.number += 1
                size = 0 if value is None else len(value)
                watched.events.append(TailEvent(watched.number, _beginning(key), _beginning(value), size))


def _beginning(content: bytes | None) -> bytes | None:
    return None if content is None else content[:VALUE_BYTES_MAX]
