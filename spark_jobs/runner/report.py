"""Reports on a job's batches: a log line each, a progress bar on a terminal, and metrics for Prometheus (`--metrics-listen`)."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from spark_jobs.errors import JobError
from spark_jobs.runner.job import DeadLetters
from spark_jobs.runner.output import tell
from spark_jobs.runner.progress import Batch

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from rich.progress import Progress, TaskID

_NAMESPACE: Final = "tarantool_cdc_spark"
_SECONDS: Final = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800)


class Log:
    """Log with a line on stderr for each batch. On a terminal, a job with --available-now also shows a progress bar."""

    def __init__(self, job: str, *, shows_progress: bool) -> None:
        """Prepare the log; `shows_progress` asks for the bar. Nothing is shown yet."""
        self._job = job
        self._bar = _bar(job) if shows_progress and sys.stderr.isatty() else None
        self._done = 0

    def __enter__(self) -> Self:
        """Show the bar."""
        if self._bar is not None:
            self._bar[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar[0].stop()

    def batch(self, batch: Batch) -> None:
        """See `watch.Listener.batch`."""
        line = batch.line(self._job)
        if self._bar is None:
            tell(line)
            return
        progress, task = self._bar
        progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._done += batch.records or 0
        progress.update(task, completed=self._done, total=self._done + (batch.behind_records or 0))


class Metrics:
    """Prometheus metrics of one job."""

    def __init__(
        self, job: str, dead_letters: DeadLetters, registry: CollectorRegistry, counts: Callable[[], Mapping[str, int]] = dict
    ) -> None:
        """Register the metrics, all at 0. `counts` is `Sink.counts`."""
        from prometheus_client import Counter, Gauge, Histogram

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, ("job",), namespace=_NAMESPACE, registry=registry).labels(job)

        self._records = Counter(
            "records", "Records of Kafka that were processed", ("job",), _NAMESPACE, registry=registry
        ).labels(job)
        self._seconds = Histogram(
            "batch_seconds", "Duration of the batches", ("job",), _NAMESPACE, registry=registry, buckets=_SECONDS
        ).labels(job)
        self._lag_records = gauge("lag_records", "Records in Kafka after the newest batch, as of its start")
        self._lag_seconds = gauge("lag_seconds", "Age of the newest record of the newest batch, at the batch's end")
        self._seq = gauge("seq", "The newest seq of the newest batch")
        self._number = gauge("batch_number", "The number of the newest batch")
        self._ended = gauge("batch_timestamp_seconds", "When the newest batch was done, in seconds since 1970")
        gauge("dead_letters", "Records put among the dead letters since the start").set_function(lambda: dead_letters.count)
        for name in counts():
            gauge(name, f"How many {name.replace('_', ' ')} since the start").set_function(partial(_count, counts, name))

    def batch(self, batch: Batch) -> None:
        """See `watch.Listener.batch`."""
        self._records.inc(batch.records or 0)
        self._seconds.observe(batch.seconds)
        self._number.set(batch.number)
        self._ended.set(time.time())
        known = ((self._lag_records, batch.behind_records), (self._lag_seconds, batch.behind_seconds), (self._seq, batch.seq))
        for gauge, value in known:
            if value is not None:
                gauge.set(value)


def _count(counts: Callable[[], Mapping[str, int]], name: str) -> float:
    return counts()[name]


@contextlib.contextmanager
def metrics(
    job: str, dead_letters: DeadLetters, host: str, port: int, counts: Callable[[], Mapping[str, int]] = dict
) -> Iterator[Metrics]:
    """Serve a job's metrics. Raises JobError if the port can't be opened, or a package is missing."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise JobError("--metrics-listen needs the package prometheus-client: pip install '.[spark]'") from error
    registry = CollectorRegistry()
    found = Metrics(job, dead_letters, registry, counts)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise JobError(f"--metrics-listen {host}:{port}: {error.strerror}. Choose another port.") from error
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _bar(job: str) -> tuple[Progress, TaskID] | None:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    except ImportError:
        return None  # rich is installed with the project, but not with the jobs' zip alone
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True))
    return progress, progress.add_task(job, total=None)
