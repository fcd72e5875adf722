"""Watching a query until it ends: its batches are told, and a signal ends it behind the batch that runs.

`query.stop()` alone cancels what runs, and the work of a long batch is lost. So a signal closes the gate that every batch comes
through; the query is stopped when the batch that was inside is committed. A second signal, or a time that is too long, does
cancel it: the batch is repeated at the next start.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, Protocol

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.errors import JobError
from spark_jobs.progress import Batch, batch_of

_CHECK_SECONDS: Final = 1
_CHECK_SECONDS_STOPPING: Final = 0.1
_FOREVER_MS: Final = 1 << 62


class Listener(Protocol):
    """Who is told of batches."""

    def batch(self, batch: Batch) -> None:
        """One is done."""


class Gate:
    """Lets batches in one after another, and when it is closed, none."""

    def __init__(self) -> None:
        """Open."""
        self._lock = threading.Lock()
        self._is_closed = False
        self.is_busy = False
        self.has_turned_away = False

    def close(self) -> None:
        """Let none in from now on."""
        with self._lock:
            self._is_closed = True

    @contextlib.contextmanager
    def batch(self, session: SparkSession) -> Iterator[None]:
        """Hold the gate for a batch. One that finds it closed waits here until the query is stopped."""
        with self._lock:
            self.has_turned_away |= self._is_closed
            self.is_busy = not self._is_closed
        if self.has_turned_away:
            # In Java, on the thread of the query, so that the end of it is an interruption as Spark knows it, and no failure.
            # To return instead would be to say that the batch is written.
            jvm: Any = session.sparkContext._jvm
            jvm.java.lang.Thread.sleep(_FOREVER_MS)
            raise JobError("A batch came after the query was told to stop.")
        try:
            yield
        finally:
            self.is_busy = False


class Watch:
    """One query, its gate, and who is told."""

    def __init__(
        self,
        session: SparkSession,
        query: StreamingQuery,
        gate: Gate,
        *listeners: Listener,
        stop_timeout_seconds: float | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """A query whose batches go through the gate; `check` raises what has failed beside it."""
        self._session = session
        self._query = query
        self._gate = gate
        self._listeners = listeners
        self._stop_timeout_seconds = stop_timeout_seconds
        self._check = check
        self._told = -1
        self._signals = 0
        self._is_canceled = False
        self._has_failed = False

    def wait(self, *, is_one_batch: bool = False) -> bool:
        """Until the query ends; whether it did so by itself, and not by a signal. Raises what it ended with.

        What has failed beside it ends it too, behind the batch that runs; so does the first batch if there is to be one alone.
        """

        def count(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as signal calls it
            # No more than this: the thread that is interrupted may be in the middle of a call to Java.
            self._signals += 1

        previous = {number: signal.signal(number, count) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while not self._query.awaitTermination(_CHECK_SECONDS):
                self._tell()
                self._check_beside()
                if self._signals:
                    print("Stopping when the batch that runs is done; a second signal cancels it.", file=sys.stderr)
                    self._stop()
                elif is_one_batch and self._query.lastProgress is not None:
                    self._stop()
            self._tell()
        except (Py4JError, Py4JNetworkError, PySparkException, ConnectionError):
            if self._has_failed or not (self._is_canceled or (self._signals and self._java_ends())):
                raise
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        return not self._signals

    def _check_beside(self) -> None:
        try:
            self._check()
        except BaseException:
            self._has_failed = True
            self._stop()
            raise

    def _stop(self) -> None:
        self._gate.close()
        started = time.monotonic()
        while self._query.isActive:
            is_late = self._stop_timeout_seconds is not None and time.monotonic() - started >= self._stop_timeout_seconds
            # Behind the gate Spark still commits the batch, as part of the trigger.
            is_done = not self._gate.is_busy and (self._gate.has_turned_away or not self._query.status["isTriggerActive"])
            self._is_canceled = not is_done and (is_late or self._signals > 1)
            if is_done or self._is_canceled:
                self._query.stop()
            else:
                self._query.awaitTermination(_CHECK_SECONDS_STOPPING)  # type: ignore[arg-type] # it takes fractions
            self._tell()

    def _java_ends(self) -> bool:
        """Sent to all processes of a service, the signal ends Java at the same time, and with it the query."""
        try:
            return bool(self._session.sparkContext._jsc.sc().isStopped())
        except (Py4JError, Py4JNetworkError, ConnectionError):
            return True

    def _tell(self) -> None:
        """Tell of the batches that are done since the last time."""
        last = self._query.lastProgress
        if last is None or last["batchId"] == self._told:
            return
        news = [last] if last["batchId"] == self._told + 1 else self._query.recentProgress
        for progress in news:
            if progress["batchId"] > self._told and (batch := batch_of(progress.json)) is not None:
                self._told = batch.number
                for listener in self._listeners:
                    listener.batch(batch)
