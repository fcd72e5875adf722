"""One line of the log a minute, which says how fast changes flow and how far Kafka is behind; none while nothing happens."""

from __future__ import annotations

from typing import Final

import structlog

from cdc.ops.status import Status

INTERVAL_SECONDS: Final = 60.0


class FlowLine:
    """The line about one status. For one thread."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._log = structlog.get_logger().bind(name=status.name)
        self._last: tuple[float, int, int, int] | None = None

    def look(self, now: float, epoch: float) -> None:
        """Log the line if it is due. `now` is in seconds of the monotonic clock, `epoch` in those since the epoch."""
        status = self._status
        if status.state != "streaming":
            self._last = None  # a snapshot has lines of its own, and every other state says why nothing flows
            return
        counts = (now, status.row_count, status.kafka.event_count, status.kafka.commit_count)
        if self._last is None:
            self._last = counts
        elapsed = now - self._last[0]
        if elapsed < INTERVAL_SECONDS:
            return
        rows, events, commits = (after - before for after, before in zip(counts[1:], self._last[1:], strict=True))
        self._last = counts
        lag = status.lag_seconds(epoch)
        if rows or events or lag:
            self._log.info(
                "flow",
                rows_per_second=round(rows / elapsed, 1),
                events_per_second=round(events / elapsed, 1),
                commits=commits,
                lag_seconds=round(lag, 3),
                lag_rows=status.lag_rows,
                seq=status.seq,
            )
