"""What the page shows: the status, the stations of the way, what is wrong and what to do; and the last hour for its plots.

A frame is made once per interval, however many pages are open: those who ask meanwhile get the same bytes.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from cdc.ops.event_tail import EventTail
from cdc.ops.flow_line import FlowLine
from cdc.ops.history import INTERVAL_SECONDS, History
from cdc.ops.status import Status
from cdc.ops.troubles import TroubleLog, current
from cdc.ops.way import way

FRAME_SECONDS: Final = 1.0


class View:
    """Everything that a listener shows of one daemon. Any thread may read it; `look` is for one thread."""

    def __init__(self, status: Status) -> None:
        self.status = status
        self.tail = EventTail()
        self._history = History()
        self._troubles = TroubleLog()
        self._flow_line = FlowLine(status)
        self._shared_frame, self._shared_history = Shared(FRAME_SECONDS), Shared(INTERVAL_SECONDS)

    def look(self) -> None:
        """Take a sample, note what is wrong, and log the line of the minute; called again and again."""
        self._history.sample(self.status, time.monotonic())
        self.status.recent_lag_seconds = self._history.recent_lag_seconds
        self._flow_line.look(time.monotonic(), time.time())
        self._troubles.look(self.status, time.time())

    def frame(self) -> bytes:
        """Return the page's contents now, as JSON."""
        return self._shared_frame.get(self._frame)

    def history(self) -> bytes:
        """Return the last hour, as JSON."""
        return self._shared_history.get(self._history.to_json)

    def _frame(self) -> dict[str, Any]:
        status = self.status
        return {
            "now": round(time.time(), 3),
            "status": status.to_json(),
            "master": status.master.to_json(),
            "lag_rows": status.lag_rows,
            "lag_seconds": round(status.steady_lag_seconds(time.time()), 3),
            "limbo_seconds": round(status.limbo_seconds(time.time()), 3),
            "setup": status.setup.to_json(),
            "way": [station.to_json() for station in way(status)],
            "troubles": [{**trouble.to_json(), "since": self._troubles.since(trouble)} for trouble in current(status)],
            "past": self._troubles.past(),
            "newest": self._history.newest(),
            "disk_free_bytes": _free_bytes(status.setup.state_path),
        }


class Shared:
    """A value as bytes of JSON, made anew if it is older than an interval. Of several threads that ask, one makes it."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._lock = threading.Lock()
        self._made_at = -interval_seconds
        self._bytes = b""

    def get(self, make: Callable[[], Any]) -> bytes:
        """Return the value."""
        with self._lock:
            now = time.monotonic()
            if now - self._made_at >= self._interval_seconds:
                self._bytes = json.dumps(make(), separators=(",", ":")).encode()
                self._made_at = now
            return self._bytes


def _free_bytes(path: str) -> int | None:
    """Return the free space where the state is; None if there is no such directory."""
    try:
        return shutil.disk_usage(path).free if path else None
    except OSError:
        return None
