"""Statistics of a publisher, for display."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from cdc.stream.commits.backlog import Backlog
from cdc.stream.commits.losses import LostTopic

BATCH_BYTES_MAX: Final = 1024 * 1024
"""Maximum size of a batch of messages that goes to Kafka, in bytes."""


@dataclass(slots=True)
class PublisherStatistics:
    """Counters since the start, and the present backlog. The publisher's thread writes them; any thread may read them."""

    event_count: int = 0
    byte_count: int = 0
    commit_count: int = 0
    abort_count: int = 0
    commit_seconds: float = 0.0
    last_commit_at: float = 0.0
    backlog: Backlog = field(default_factory=Backlog)
    trouble: str | None = None
    """The newest problem that Kafka's client reported; None once a commit has succeeded again."""
    failure: str | None = None
    """Why the newest Kafka transaction was aborted; None once another has been committed."""
    batch_bytes_max: int = BATCH_BYTES_MAX
    """Maximum size of a batch of messages. It is lowered once a topic has refused a batch."""
    losses: tuple[LostTopic, ...] = ()
    """Topics that were deleted, and whose rows consumers may lack."""
    recent_commit_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=512))

    def committed(self, started: float, ended: float) -> None:
        """Record a successful commit. Times are seconds of the monotonic clock."""
        self.commit_count += 1
        self.commit_seconds += ended - started
        self.recent_commit_seconds.append(ended - started)
        self.last_commit_at = ended
        self.trouble = None
