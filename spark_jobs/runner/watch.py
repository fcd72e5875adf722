"""Supervision of a job until it ends: report its batches, and on a signal stop it after the running batch.

`query.stop()` alone cancels the running batch, and the work of a long batch is lost. Every batch therefore passes a gate. A
signal closes the gate, and the query is stopped when the batch inside has been committed. A second signal, or a timeout, does
cancel the batch; the next start repeats it. The work after the last batch (`last_step`) is canceled by the first signal.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Any, Final, Protocol, Self

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.errors import JobError
from spark_jobs.runner.output import tell
from spark_jobs.runner.progress import Batch, batch_of

_CHECK_SECONDS: Final = 1
_CHECK_SECONDS_STOPPING: Final = 0.1
_FOREVER_MS: Final = 1 << 62
_OF_REPEATED: Final = 'the return value of "scala.Option.get()" is null'
"""Part of the error with which Spark 4.1.1 ends a query after a repeated batch (SPARK-55271).

Once the batch is committed, it measures how far it is behind offsets that it hasn't asked Kafka for in this run.
"""


class _Signals:
    """Count of the signals that have come within the context: SIGINT, SIGTERM, and SIGHUP (a closed terminal; not with nohup)."""

    def __init__(self) -> None:
        self.count = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        self._previous = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.restore()

    def restore(self) -> None:
        """Count no further signals. They have the effect that they had before."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as signal calls it
        # Only count: the interrupted thread may be in the middle of a call to Java.
        self.count += 1


class Listener(Protocol):
    """Receiver of reports on completed batches."""

    def batch(self, batch: Batch) -> None:
        """Report a completed batch."""


class Gate:
    """Gate that admits one batch after another, and none after it has been closed."""

    def __init__(self) -> None:
        """Open the gate."""
        self._lock = threading.Lock()
        self._is_closed = False
        self.is_busy = False
        self.has_turned_away = False

    def close(self) -> None:
        """Admit no further batch."""
        with self._lock:
            self._is_closed = True

    @contextlib.contextmanager
    def batch(self, session: SparkSession) -> Iterator[None]:
        """Occupy the gate during a batch. If the gate is closed, the batch waits here until the query is stopped."""
        with self._lock:
            self.has_turned_away |= self._is_closed
            self.is_busy = not self._is_closed
        if self.has_turned_away:
            # Sleep in Java, on the query's thread: stopping the query then interrupts the sleep, which Spark doesn't treat as a
            # failure. Returning instead would tell Spark that the batch has been written.
            jvm: Any = session.sparkContext._jvm
            jvm.java.lang.Thread.sleep(_FOREVER_MS)
            raise JobError("A batch began after the query was asked to stop.")
        try:
            yield
        finally:
            self.is_busy = False


class Watch:
    """Supervision of one query, with its gate and its listeners."""

    def __init__(
        self,
        session: SparkSession,
        query: StreamingQuery,
        gate: Gate,
        *listeners: Listener,
        stop_timeout_seconds: float | None = None,
        check: Callable[[], None] = lambda: None,
        newest_seq: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Set the supervision up. The query's batches must pass `gate`.

        `check` raises the error of work that failed beside the query. `newest_seq` is `Sink.newest_seq`. After a signal, the
        running batch is canceled when `stop_timeout_seconds` have passed; with None there is no limit.
        """
        self._session = session
        self._query = query
        self._gate = gate
        self._listeners = listeners
        self._stop_timeout_seconds = stop_timeout_seconds
        self._check = check
        self._newest_seq = newest_seq
        self._told = -1
        self._signals = _Signals()
        self._is_canceled = False
        self._has_failed = False

    def wait(self, *, is_one_batch: bool = False) -> bool:
        """Wait until the query ends, and return whether it ended without a signal. Raises the error with which the query ended.

        If work beside the query fails, the query is stopped after the running batch, and the error is raised. With `is_one_batch`
        the query is stopped after its first batch, unless Spark ends it there with the error that it has after a repeated batch.
        """
        with self._signals:
            try:
                while not self._query.awaitTermination(_CHECK_SECONDS):
                    self._tell()
                    self._check_beside()
                    if self._signals.count:
                        tell("Stopping when the running batch is done; a second signal cancels it.")
                        self._stop()
                    elif is_one_batch and self._query.lastProgress is not None:
                        self._stop()
                self._tell()
            except (Py4JError, Py4JNetworkError, PySparkException, ConnectionError) as error:
                is_repeated = is_one_batch and _OF_REPEATED in str(error)
                is_asked_for = self._is_canceled or (self._signals.count and self._java_ends())
                if self._has_failed or not (is_repeated or is_asked_for):
                    raise
                if is_repeated:
                    tell("Repeated the batch that an earlier run had begun; Spark tells no figures of it.")
        return not self._signals.count

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
            # After the batch has left the gate, Spark still commits it, as part of the trigger.
            is_done = not self._gate.is_busy and (self._gate.has_turned_away or not self._query.status["isTriggerActive"])
            self._is_canceled = not is_done and (is_late or self._signals.count > 1)
            if is_done or self._is_canceled:
                self._query.stop()
            else:
                self._query.awaitTermination(_CHECK_SECONDS_STOPPING)  # type: ignore[arg-type] # it takes fractions
            self._tell()

    def _java_ends(self) -> bool:
        """Return whether Java is ending, too. A signal that all processes of a service get ends Java, and with it the query."""
        try:
            return bool(self._session.sparkContext._jsc.sc().isStopped())
        except (Py4JError, Py4JNetworkError, ConnectionError):
            return True

    def _tell(self) -> None:
        """Report the batches that have been completed since the last report."""
        last = self._query.lastProgress
        if last is None or last["batchId"] == self._told:
            return
        news = [last] if last["batchId"] == self._told + 1 else self._query.recentProgress
        for progress in news:
            if progress["batchId"] > self._told and (batch := batch_of(progress.json)) is not None:
                self._told = batch.number
                if batch.seq is None:
                    batch = replace(batch, seq=self._newest_seq())
                for listener in self._listeners:
                    listener.batch(batch)


def last_step(session: SparkSession, step: Callable[[], int], cancel: Callable[[], object] = lambda: None) -> int | None:
    """Run the work after the last batch, and return its exit status; None if a signal canceled it.

    Every part of such work may be repeated, so the next start completes it. A second signal ends the process at once. `cancel`
    ends those parts of it that aren't Spark jobs.
    """
    with _Signals() as signals:
        try:
            with ThreadPoolExecutor(1) as thread:
                # On a thread of its own: an exception in the thread that waits for Java would tear its connection to Java.
                running: Future[int] = thread.submit(inheritable_thread_target(session)(step))
                while not wait([running], _CHECK_SECONDS).done and not signals.count:
                    pass
                if not running.done():
                    tell("Stopping: the work after the last batch is canceled. The next start does it.")
                    signals.restore()
                    cancel()
                while not running.done():
                    # Repeated, because the step may be between two of its Spark jobs.
                    session.sparkContext.cancelAllJobs()
                    wait([running], _CHECK_SECONDS_STOPPING)
            return running.result()
        except (Py4JError, PySparkException, ConnectionError, CancelledError):
            # The cancellation, or Java's end: a signal that all processes of a service get ends Java, too.
            if not signals.count:
                raise
            return None
