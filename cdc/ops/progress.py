"""How far a snapshot is: a bar on a terminal, a log line now and then elsewhere.

How many rows there will be nobody says beforehand; the number of the last complete snapshot, if there was one, is the
measure for a share.
"""

from __future__ import annotations

import sys
import time
from typing import Final

import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

LOG_INTERVAL_SECONDS: Final = 5.0


class SnapshotProgress:
    """Counts a snapshot's rows for whoever watches."""

    def __init__(self, expected_rows: int) -> None:
        """`expected_rows` is 0 if nothing is known."""
        self._expected_rows = expected_rows
        self._rows = 0
        self._started_at = self._logged_at = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
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
        """The mean rate since the start."""
        return self._rows / max(1e-6, time.monotonic() - self._started_at)

    def advance(self, rows: int) -> None:
        """More rows have arrived."""
        self._rows += rows
        if self._bar is not None:
            self._bar.update(self._task, completed=self._rows, rate=f"{self.rows_per_second:,.0f}")
        elif time.monotonic() - self._logged_at >= LOG_INTERVAL_SECONDS:
            self._logged_at = time.monotonic()
            share = {"share": round(min(1.0, self._rows / self._expected_rows), 3)} if self._expected_rows else {}
            structlog.get_logger().info("snapshot", rows=self._rows, rows_per_second=round(self.rows_per_second), **share)

    def finish(self) -> None:
        """The snapshot has ended, well or not."""
        if self._bar is not None:
            self._bar.stop()
