"""Job `changelog`: every event as a row of one append-only Delta table, partitioned by space and date.

Exactly once as long as the checkpoint is kept: Delta takes a batch of a query only once. A lost checkpoint makes a new
query that reads from the beginning; then events whose `seq` is not above the highest that the table had are looked up in it
and written only if they are missing. A stream that itself repeats events (`kafka.delivery = "at_least_once"`) needs
`--deduplicate always`.
"""

from __future__ import annotations

import argparse
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs import tables
from spark_jobs.envelope import parse
from spark_jobs.errors import JobError
from spark_jobs.job import Job, Sink
from spark_jobs.source import Topics
from spark_jobs.transforms import changelog

_PARTITIONS: Final = ("space", "date")
_QUERY: Final = "tarantool_cdc.query"
_PREFIX: Final = "tarantool_cdc.prefix"
_KNOWN_SEQ: Final = "tarantool_cdc.known_seq"


class Changelog(Job):
    """See the module."""

    name = "changelog"
    summary = "append every event to one Delta table, partitioned by space and date"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As `Job.add_options`."""
        parser.add_argument(
            "--deduplicate",
            choices=("restart", "always"),
            default="restart",
            help="look for events in the table before appending them: only those that a lost checkpoint may bring again"
            " (restart), or all, for a daemon that delivers at least once (always); default: %(default)s",
        )

    def sink(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> ChangelogSink:
        """As `Job.sink`."""
        return ChangelogSink(session, options.path, topics.prefix, always=options.deduplicate == "always")


class ChangelogSink(Sink):
    """Appends batches, each once."""

    def __init__(self, session: SparkSession, path: str, prefix: str, *, always: bool = False) -> None:
        """`always` looks for each event in the table first."""
        self._session = session
        self._path = path
        self._prefix = prefix
        self._always = always
        self._known_seq: dict[str, int | None] = {}

    def write(self, records: DataFrame, batch: int, query: str) -> None:
        """As `Sink.write`."""
        rows = changelog(parse(records))
        if query not in self._known_seq:
            self._known_seq = {query: self._adopt(rows, query)}
        known = self._known_seq[query]
        if self._always:
            rows = self._missing(rows.dropDuplicates(["seq"]), None)
        elif known is not None and not rows.where(F.col("seq") <= known).isEmpty():
            rows = self._missing(rows, known)
        tables.append_once(rows, self._path, partition_by=_PARTITIONS, application=query, batch=batch)

    def _adopt(self, rows: DataFrame, query: str) -> int | None:
        """Make the table this query's; the highest seq that others may have written, if there is one."""
        if not tables.exists(self._session, self._path):
            empty = rows.limit(0).write.format("delta").partitionBy(*_PARTITIONS)
            empty.mode("ignore").save(self._path)
        found, _ = tables.describe(self._session, self._path)
        if found.get(_PREFIX, self._prefix) != self._prefix:
            raise JobError(
                f"The table at {self._path} holds the events of {found[_PREFIX]!r}, whose seq is counted apart from that of "
                f"{self._prefix!r}. Choose another --path."
            )
        if found.get(_QUERY) == query:
            return int(found[_KNOWN_SEQ]) if found.get(_KNOWN_SEQ) else None
        known: int | None = tables.read(self._session, self._path).agg(F.max("seq")).collect()[0][0]
        changed = {_PREFIX: self._prefix, _QUERY: query, _KNOWN_SEQ: "" if known is None else str(known)}
        tables.set_properties(self._session, self._path, changed)
        return known

    def _missing(self, rows: DataFrame, known: int | None) -> DataFrame:
        """The rows whose event the table doesn't have; those above `known` surely aren't there."""
        written = tables.read(self._session, self._path).select("space", "date", "seq")
        if known is not None:
            written = written.where(F.col("seq") <= known)
        return rows.join(written, ["space", "date", "seq"], "left_anti")
