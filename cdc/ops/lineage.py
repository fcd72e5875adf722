"""Tells a catalog of lineage, by OpenLineage, what the daemon reads and writes, and how it goes.

A thread of its own reads the status, and the forms of spaces as they are stored with the checkpoint: nothing here is on the way
of rows. Nothing here can end the daemon either: what can't be sent is logged, once until something could be sent again, and is
sent with the next event. At the end the daemon waits `END_SECONDS` for the last event.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog

from cdc.errors import ConfigurationError
from cdc.ops.lineage_places import Place
from cdc.ops.status import Status
from cdc.stream.reports.flows import Flow

if TYPE_CHECKING:
    from cdc.ops.lineage_events import RunEvents

END_SECONDS: Final = 5.0
_TURN_SECONDS: Final = 1.0
_READING: Final = ("snapshot", "streaming")


class Lineage:
    """The thread that tells of one run."""

    def __init__(self, place: Place, interval_seconds: float, status: Status, flows: Callable[[], Sequence[Flow]]) -> None:
        """`flows` returns what is published at the checkpoint; any thread may call it. Raises ConfigurationError."""
        try:
            from openlineage.client import OpenLineageClient

            from cdc.ops.lineage_events import RunEvents
        except ImportError as error:
            raise ConfigurationError(
                f"lineage.enabled needs OpenLineage's client, which isn't installed ({error})",
                "Install the extra: pip install 'tarantool-cdc[lineage]'.",
            ) from error
        self._status = status
        self._flows = flows
        self._interval_seconds = interval_seconds
        self._log = structlog.get_logger().bind(name=status.name)
        self._new_client: Callable[[], Any] = OpenLineageClient
        self._client: Any = None
        self._events: RunEvents = RunEvents(place)
        self._told_version: int | None = None
        """The schema version whose datasets were sent last; None before START."""
        self._told_at = 0.0
        self._is_failing = False
        self._failure: str | None = None
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lineage", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        _pass_on_log()
        self._thread.start()

    def close(self, fault: BaseException | None) -> None:
        """Tell of the run's end, and how it fails, if there is an exception that it ends with. No row is quoted."""
        if fault is not None:
            told = self._status.error if self._status.state == "failed" else None
            self._failure = told or f"a fault of the program: {type(fault).__name__}"
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join(END_SECONDS)

    def _run(self) -> None:
        while not self._is_stopping.wait(_TURN_SECONDS):
            if self._status.state in _READING:
                self._attempt(self._tell_state)
        self._attempt(self._tell_end)

    def _attempt(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Exception as error:  # noqa: BLE001 - whatever a transport raises, rows go on
            if not self._is_failing:
                self._log.warning("events of lineage can't be sent", reason=f"{type(error).__name__}: {error}"[:500])
            self._is_failing = True
            self._told_at = time.monotonic()

    def _tell_state(self) -> None:
        version = self._status.schema_version
        is_news = version != self._told_version
        if not self._is_due(is_news=is_news):
            return
        flows = self._flows() if is_news else None
        if is_news and not flows:
            return  # the first snapshot has made no form durable yet
        self._send("START" if self._told_version is None else "RUNNING", flows)
        self._told_version = version

    def _is_due(self, *, is_news: bool) -> bool:
        """Return whether to tell something now: after a failure, too, not before the interval has passed."""
        has_passed = time.monotonic() - self._told_at >= self._interval_seconds
        return has_passed or (is_news and not self._is_failing)

    def _tell_end(self) -> None:
        if self._told_version is None:
            if self._failure is None:
                return
            self._send("START", self._flows())
        self._send("FAIL" if self._failure is not None else "COMPLETE", self._flows(), self._failure)

    def _send(self, state: str, flows: Sequence[Flow] | None, error: str | None = None) -> None:
        from openlineage.client.event_v2 import RunState

        self._client = self._client or self._new_client()
        self._client.emit(self._events.event(RunState[state], self._counts(), flows, error))
        self._told_at, self._is_failing = time.monotonic(), False
        if state in ("FAIL", "COMPLETE"):
            self._client.close(END_SECONDS)

    def _counts(self) -> dict[str, Any]:
        """Return how far the run has come: the position that is durable, the lag, and counts since the process began."""
        status = self._status
        return {
            "checkpoint": {str(origin): lsn for origin, lsn in status.checkpoint.items()},
            "seq": status.seq,
            "lag_seconds": round(status.lag_seconds(time.time()), 3),
            "rows": status.row_count,
            "events": status.kafka.event_count,
            "bytes": status.kafka.byte_count,
            "commits": status.kafka.commit_count,
        }


class _Log(logging.Handler):
    """What OpenLineage's client logs, as lines of the daemon's log."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(record.levelno, "OpenLineage's client says", line=record.getMessage())


def _pass_on_log() -> None:
    library = logging.getLogger("openlineage")
    library.handlers, library.propagate = [_Log()], False
    library.setLevel(logging.INFO)
