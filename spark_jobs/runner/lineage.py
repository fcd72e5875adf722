"""What a catalog of lineage is told of a job's run, by OpenLineage (`--lineage`): topics, tables with their columns, and counts.

    START      when the job begins
    RUNNING    after a batch that is the first with a topic or table, and now and then after others
    COMPLETE, FAIL    at the end

A thread of its own sends the events, and reads the tables' columns for them, so no batch waits for a catalog. No failure of it
ends the job: it is told on stderr, once until something could be sent again. An error of the job may quote a record, so its class
alone is sent.
"""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

from spark_jobs.errors import JobError
from spark_jobs.runner.output import tell
from spark_jobs.runner.progress import Batch

if TYPE_CHECKING:
    from openlineage.client.event_v2 import OutputDataset

INTERVAL_SECONDS: Final = 60.0
END_SECONDS: Final = 5.0
_PRODUCER: Final = "urn:tarantool-cdc:spark_jobs"
_WAITING_MAX: Final = 1_000
"""Batches that wait for the catalog; if there are more, they are counted with a later one."""

Columns = Sequence[tuple[str, str]]
"""Names and types of a table's columns; none if they aren't known."""


class Place(NamedTuple):
    """The job's name and Kafka's servers, as Spark gets them (None: it reads a table)."""

    job: str
    bootstrap_servers: str | None


class Lineage:
    """Listener for batches that tells of one run."""

    def __init__(self, place: Place, tables: Callable[[], Mapping[str, Columns]]) -> None:
        """`tables` returns the columns of the tables that exist by now, by their places; called on this object's thread.

        Raises JobError if OpenLineage's client isn't installed.
        """
        try:
            from openlineage.client import OpenLineageClient
            from openlineage.client.uuid import generate_new_uuid
        except ImportError as error:
            raise JobError("--lineage needs the package openlineage-python: pip install '.[lineage]'") from error
        self._new_client: Callable[[], Any] = OpenLineageClient
        self._client: Any = None
        self._place = place
        self._tables = tables
        self._run_id = str(generate_new_uuid())
        self._waiting: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._failure: str | None = None
        self._topics: set[str] = set()
        self._told: Mapping[str, Columns] = {}
        self._told_at = 0.0
        self._batch: Batch | None = None
        self._records = 0
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="lineage", daemon=True)

    def __enter__(self) -> Self:
        """Tell of the begin."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Tell of the end, and wait for that for END_SECONDS."""
        self._failure = kind.__name__ if kind is not None else None
        self._waiting.put(None)
        self._thread.join(END_SECONDS)

    def batch(self, batch: Batch) -> None:
        """See `watch.Listener.batch`."""
        if self._waiting.qsize() < _WAITING_MAX:
            self._waiting.put(batch)

    def _run(self) -> None:
        self._attempt(lambda: self._send("START"))
        while (batch := self._waiting.get()) is not None:
            self._batch = batch
            self._records += batch.records or 0
            self._attempt(self._tell_batch)
        self._attempt(lambda: self._send("COMPLETE" if self._failure is None else "FAIL", self._tables()))

    def _attempt(self, send: Callable[[], None]) -> None:
        try:
            send()
        except Exception as error:  # noqa: BLE001 - whatever a transport raises, batches go on
            if not self._is_failing:
                tell(f"{self._place.job}: events of lineage can't be sent: {type(error).__name__}: {error}"[:500])
            self._is_failing = True
            self._told_at = time.monotonic()

    def _tell_batch(self) -> None:
        assert self._batch is not None
        has_passed = time.monotonic() - self._told_at >= INTERVAL_SECONDS
        news = set(self._batch.topics) - self._topics
        if has_passed or (news and not self._is_failing):
            self._topics |= news
            self._send("RUNNING", self._tables())

    def _send(self, state: str, tables: Mapping[str, Columns] | None = None) -> None:
        from openlineage.client.event_v2 import InputDataset, Job, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import RunFacet, error_message_run, job_type_job

        self._client = self._client or self._new_client()
        batch = self._batch
        counts = {
            "records": self._records,
            "batch": None if batch is None else batch.number,
            "seq": None if batch is None else batch.seq,
            "behind_records": None if batch is None else batch.behind_records,
        }
        facets: dict[str, Any] = {"tarantoolCdc_batches": RunFacet(producer=_PRODUCER).with_additional_properties(**counts)}
        if self._failure is not None:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
                f"{self._failure}: the job's log has the message", "Python", producer=_PRODUCER
            )
        kind = job_type_job.JobTypeJobFacet("STREAMING", "TARANTOOL_CDC", "SPARK_JOB", producer=_PRODUCER)
        kafka = f"kafka://{_first_broker(self._place.bootstrap_servers or '')}"
        self._client.emit(
            RunEvent(
                eventType=RunState[state],
                eventTime=datetime.now(UTC).isoformat(),
                run=Run(self._run_id, facets),
                job=Job(os.environ.get("OPENLINEAGE_NAMESPACE", "tarantool-cdc"), self._place.job, {"jobType": kind}),
                inputs=[InputDataset(kafka, topic) for topic in sorted(self._topics)],
                outputs=[_output(place, columns) for place, columns in (tables or {}).items()],
                producer=_PRODUCER,
            )
        )
        self._told_at, self._is_failing = time.monotonic(), False
        if state in ("COMPLETE", "FAIL"):
            self._client.close(END_SECONDS)


def _output(place: str, columns: Columns) -> OutputDataset:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import schema_dataset

    fields = [schema_dataset.SchemaDatasetFacetFields(name, type_) for name, type_ in columns]
    schema = {"schema": schema_dataset.SchemaDatasetFacet(fields, producer=_PRODUCER)} if fields else {}
    return OutputDataset(*dataset_name(place), facets=schema)  # type: ignore[arg-type] # it has facets of several kinds


def dataset_name(place: str) -> tuple[str, str]:
    """Return OpenLineage's namespace and name of a table: of its path, or of its name in a catalog."""
    if "/" not in place:
        catalog, _, name = place.partition(".")
        return f"spark://{catalog}", name or place
    parts = urlsplit(place)
    if parts.scheme in ("", "file"):
        return "file", re.sub("/+$", "", parts.path)
    return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")


def _first_broker(bootstrap_servers: str) -> str:
    first = bootstrap_servers.split(",")[0].strip()
    return urlsplit(first).netloc if "://" in first else first
