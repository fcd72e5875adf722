"""Control of how often a client is asked for an ACK, and how much it may leave unacknowledged.

The distance between two requests for an ACK grows while ACKs arrive quickly, and shrinks while they are slow. A fast client
acknowledges once in thousands of messages. A slow or distant client never has much unacknowledged data.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from cdc.feeds.tap.session import ClientPosition

INTERVAL_MIN: Final = 16
INTERVAL_MAX: Final = 4096
"""Bounds of the number of messages between two requests for an ACK."""
_SOON_SECONDS: Final = 0.25
_LATE_SECONDS: Final = 2.0
_QUESTIONS_MAX: Final = 4
"""Maximum number of open requests."""


@dataclass(slots=True)
class _Question:
    opaque: int
    position: ClientPosition
    asked_at: float
    byte_count: int


class AckWindow:
    """One client's open requests for an ACK."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._questions: deque[_Question] = deque()
        self.interval = INTERVAL_MIN
        """Number of messages to send until the next request."""
        self.unacked_bytes = 0
        self.unacked_messages = 0
        self._counts: deque[int] = deque()

    @property
    def has_room(self) -> bool:
        """Whether more may be sent."""
        return not self._questions or (len(self._questions) < _QUESTIONS_MAX and self.unacked_bytes < self._bytes_max)

    def asked(self, opaque: int, position: ClientPosition, count: int, byte_count: int, now: float) -> None:
        """Record that messages were sent of which the last one asks for an ACK; with its ACK the client is at `position`."""
        self._questions.append(_Question(opaque, position, now, byte_count))
        self._counts.append(count)
        self.unacked_bytes += byte_count
        self.unacked_messages += count

    def answered(self, opaque: int, now: float) -> ClientPosition | None:
        """Return the client's position after this ACK, or None if no request has this opaque.

        An ACK also acknowledges everything before it, because messages arrive in order.
        """
        if all(question.opaque != opaque for question in self._questions):
            return None
        while True:
            question = self._questions.popleft()
            self.unacked_bytes -= question.byte_count
            self.unacked_messages -= self._counts.popleft()
            if question.opaque == opaque:
                break
        waited = now - question.asked_at
        if waited < _SOON_SECONDS:
            self.interval = min(2 * self.interval, INTERVAL_MAX)
        elif waited > _LATE_SECONDS:
            self.interval = max(self.interval // 2, INTERVAL_MIN)
        return question.position
