"""Progress of a snapshot: in the status, as a bar on a terminal, otherwise as a log line at intervals.

A server doesn't say how many rows it will send. The expected number is that of the last complete snapshot, if there was one.
Without it, only the number of spaces shows how far the snapshot is: their rows come space after space.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cdc.stream.snapshots.reading import SnapshotReading

LOG_INTERVAL_SECONDS: Final = 5.0
_RATE_SECONDS: Final = 10.0
"""Time over which the present rate is measured, about."""


class SnapshotProgress:
    """Progress of one snapshot. The daemon's thread writes it, other threads read it."""

    def __init__(self, expected_rows: int, *, has_bar: bool = True) -> None:
        """Start the display: a bar, if wanted and on a terminal. `expected_rows` is 0 if unknown."""
        self._expected_rows = expected_rows
        self.reading = SnapshotReading()
        """How far the snapshot has been read."""
        self.published_rows = 0
        """Number of events that were made of the rows."""
        self._started_at = self._logged_at = self._advanced_at = time.monotonic()
        self._finished_at: float | None = None
        # Begin of the time over which the rate is measured, and the rows at that time; the same of the time before.
        self._measured = self._measured_before = (self._started_at, 0)
        self._bar: Progress | None = None
        if has_bar and sys.stderr.isatty():
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("snapshot"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]} rows/s"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("snapshot", total=expected_rows or None, rate="0")
            self._bar.start()

    @property
    def rows_per_second(self) -> float:
        """Present rate, in rows per second; after the end, the mean rate."""
        since, rows = (self._started_at, 0) if self._finished_at is not None else self._measured_before
        return (self.reading.rows - rows) / max(1e-6, (self._finished_at or time.monotonic()) - since)

    @property
    def share(self) -> float | None:
        """Part of the expected rows that was read; None if no number is expected. 1 only after the end."""
        if self._finished_at is not None:
            return 1.0
        if not self._expected_rows:
            return None
        return min(0.999, self.reading.rows / self._expected_rows)

    @property
    def seconds_left(self) -> float | None:
        """Expected time until the end, in seconds; None if unknown."""
        if self._finished_at is not None:
            return 0.0
        left, rate = self._expected_rows - self.reading.rows, self.rows_per_second
        return left / rate if self._expected_rows and left > 0 and rate > 0 else None

    def advance(self, reading: SnapshotReading, events: int) -> None:
        """Note how far the snapshot has been read, and how many more events that has made."""
        now = time.monotonic()
        if reading.rows > self.reading.rows:
            self._advanced_at = now
        self.reading = reading
        self.published_rows += events
        if now - self._measured[0] >= _RATE_SECONDS:
            self._measured_before, self._measured = self._measured, (now, reading.rows)
        if self._bar is not None:
            self._bar.update(self._task, completed=reading.rows, rate=f"{self.rows_per_second:,.0f}")
        elif now - self._logged_at >= LOG_INTERVAL_SECONDS:
            self._logged_at = now
            share = {"share": round(self.share, 3)} if self.share is not None else {}
            left = {"seconds_left": round(self.seconds_left)} if self.seconds_left is not None else {}
            structlog.get_logger().info(
                "snapshot",
                rows=reading.rows,
                published=self.published_rows,
                space=reading.space,
                rows_per_second=round(self.rows_per_second),
                **share,
                **left,
            )

    def finish(self, *, is_complete: bool) -> None:
        """Remove the bar, after the snapshot has ended or failed."""
        if is_complete:
            self._finished_at = time.monotonic()
        if self._bar is not None:
            self._bar.stop()

    def to_json(self) -> dict[str, Any]:
        """Return the object that /status shows."""
        reading, now = self.reading, time.monotonic()
        left = self.seconds_left
        return {
            "is_complete": self._finished_at is not None,
            "rows": reading.rows,
            "published_rows": self.published_rows,
            "expected_rows": self._expected_rows or None,
            "share": round(self.share, 3) if self.share is not None else None,
            "space": reading.space,
            "spaces_read": reading.spaces_read,
            "spaces": reading.spaces,
            "rows_per_second": round(self.rows_per_second),
            "seconds": round((self._finished_at or now) - self._started_at, 1),
            "seconds_since_rows": round(now - self._advanced_at, 1) if self._finished_at is None else None,
            "seconds_left": round(left, 1) if left is not None else None,
        }
