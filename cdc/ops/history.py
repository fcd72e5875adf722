"""The last hour of a few values, for the page's plots: kept whether somebody looks or not, in a fixed amount of memory."""

from __future__ import annotations

import threading
import time
from array import array
from typing import Any, Final

from cdc.ops.status import Status

INTERVAL_SECONDS: Final = 5.0
LENGTH: Final = 720
"""Number of samples that are kept: an hour of them."""

RATES: Final = ("rows_per_second", "events_per_second", "bytes_per_second", "commits_per_second")
LEVELS: Final = ("lag_seconds", "lag_rows", "queued_bytes", "limbo_transactions", "commit_ms")
SERIES: Final = (*RATES, *LEVELS)
"""Names of the values. Rates are those of the time since the sample before; `commit_ms` is the mean of that time's commits, and
`lag_seconds` the most that was seen: it is 0 whenever everything that has been received is committed."""


class History:
    """The samples of one status. `sample` is called by one thread, the rest by any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times = array("d")
        self._values: dict[str, array[float]] = {name: array("d") for name in SERIES}
        self._counters: tuple[float, ...] | None = None
        self._sampled_at = -INTERVAL_SECONDS
        self._lag_seconds = 0.0

    def sample(self, status: Status, now: float) -> None:
        """Take a sample if the interval has passed; `now` is in seconds of the monotonic clock."""
        kafka, epoch, elapsed = status.kafka, time.time(), now - self._sampled_at
        self._lag_seconds = max(self._lag_seconds, status.lag_seconds(epoch))
        if elapsed < INTERVAL_SECONDS:
            return
        lag_seconds, self._lag_seconds = self._lag_seconds, 0.0
        counters = (status.row_count, kafka.event_count, kafka.byte_count, kafka.commit_count, kafka.commit_seconds)
        before, self._counters, self._sampled_at = self._counters, counters, now
        if before is None:
            return
        # A counter that has fallen belongs to another life of what is counted.
        gains = [max(0.0, after - former) for after, former in zip(counters, before, strict=True)]
        commit_ms = gains[4] / gains[3] * 1000 if gains[3] else 0.0
        rates = [gain / elapsed for gain in gains[:4]]
        levels = (lag_seconds, status.lag_rows, status.queued_bytes, status.limbo.transaction_count, commit_ms)
        with self._lock:
            self._times.append(epoch)
            for name, value in zip(SERIES, (*rates, *levels), strict=True):
                self._values[name].append(value)
            if len(self._times) > LENGTH:
                for values in (self._times, *self._values.values()):
                    del values[0]

    @property
    def recent_lag_seconds(self) -> float:
        """The longest lag since the sample before the newest one."""
        with self._lock:
            newest = self._values["lag_seconds"]
            return max(self._lag_seconds, newest[-1] if newest else 0.0)

    def newest(self) -> dict[str, float]:
        """Return the newest sample by name, with its time (`at`, in seconds since the epoch); empty before there is one."""
        with self._lock:
            if not self._times:
                return {}
            return {"at": round(self._times[-1], 1), **{name: round(self._values[name][-1], 3) for name in SERIES}}

    def to_json(self) -> dict[str, Any]:
        """Return all samples: a list for each name, oldest first, and one with their times (`at`)."""
        with self._lock:
            values = {name: [round(value, 3) for value in self._values[name]] for name in SERIES}
            return {"at": [round(at, 1) for at in self._times], **values}
