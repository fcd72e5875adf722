"""What a publisher counts, for whoever shows it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from cdc.stream.backlog import Backlog


@dataclass(slots=True)
class PublisherStatistics:
    """Counters since the start, and what waits; written by the publisher's thread, read by anybody."""

    event_count: int = 0
    byte_count: int = 0
    commit_count: int = 0
    abort_count: int = 0
    commit_seconds: float = 0.0
    last_commit_at: float = 0.0
    backlog: Backlog = field(default_factory=Backlog)
    trouble: str | None = None
    """The newest complaint of Kafka's client; None once a commit has come through again."""
    failure: str | None = None
    """Why the newest Kafka transaction was aborted; None once another has been committed."""
    recent_commit_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=512))

    def committed(self, started: float, ended: float) -> None:
        """A commit has come through, by the monotonic clock."""
        self.commit_count += 1
        self.commit_seconds += ended - started
        self.recent_commit_seconds.append(ended - started)
        self.last_commit_at = ended
        self.trouble = None
