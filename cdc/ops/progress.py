"""Progress of a snapshot: a bar on a terminal, otherwise a log line at intervals.

The number of rows isn't known beforehand. The progress is a share of the last complete snapshot's number of rows, if there was
one."""

from __future__ import annotations

import sys
import time
from typing import Final

import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

LOG_INTERVAL_SECONDS: Final = 5.0


class SnapshotProgress:
    """Counter of a snapshot's rows that shows the progress."""

    def __init__(self, expected_rows: int, *, has_bar: bool = True) -> None:
        """Start the display: a bar, if wanted and on a terminal. `expected_rows` is 0 if unknown."""
        self._expected_rows = expected_rows
        self._rows = 0
        self._started_at = self._logged_at = time.monotonic()
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
        """Mean rate since the start, in rows per second."""
        return self._rows / max(1e-6, time.monotonic() - self._started_at)

    def advance(self, rows: int) -> None:
        """Add received rows."""
        self._rows += rows
        if self._bar is not None:
            self._bar.update(self._task, completed=self._rows, rate=f"{self.rows_per_second:,.0f}")
        elif time.monotonic() - self._logged_at >= LOG_INTERVAL_SECONDS:
            self._logged_at = time.monotonic()
            share = {"share": round(min(1.0, self._rows / self._expected_rows), 3)} if self._expected_rows else {}
            structlog.get_logger().info("snapshot", rows=self._rows, rows_per_second=round(self.rows_per_second), **share)

    def finish(self) -> None:
        """Remove the bar, after the snapshot has ended or failed."""
        if self._bar is not None:
            self._bar.stop()
