"""A Delta table with one row per event, to which each batch is appended once.

The cost of an append doesn't depend on the table's size. Each event is written exactly once as long as the checkpoint is kept,
because Delta accepts each batch of a query only once. If the checkpoint is lost, a new query reads from the beginning. It then
looks up the events whose `seq` isn't above the highest one in the table, and writes only missing ones. If the stream itself
repeats events (`kafka.delivery = "at_least_once"`), the query can look up all events.

The table belongs to the query that began last. An earlier query that is still running would write each event a second time, so it
ends, even in the middle of an append (lanes.py). Queries for other spaces, listed by their names, may share the table.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, Final

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.errors import JobError
from spark_jobs.lake import lanes
from spark_jobs.tables import delta
from spark_jobs.tables.format import OvertakenError, TableFormat, TableState
from spark_jobs.tables.found import PREFIX
from spark_jobs.tables.places import Table

_CLAIM: Final = "tarantool_cdc.claim "
"""Beginning of the table property with a lane's query, its claim's number, and the highest seq that others may have written."""
SHARDS: Final = "tarantool_cdc.shards"
"""Property of a fleet's table: the shards whose events it has. Each of its batches has whole source transactions."""
_TRIES: Final = 5


def table_is_gone(table: Table) -> JobError:
    """Return the error for a table to which earlier batches of the same checkpoint were written, and which isn't there."""
    return JobError(
        f"The table at {table} is gone, but earlier batches of this checkpoint were written to it. Put the table back where it "
        "was, or start from the beginning with an empty --checkpoint."
    )


def check_not_put_back(table: Table, found: TableState, remedy: str = "start with an empty --checkpoint") -> None:
    """Raise JobError if someone has put a table back to rows from before a job's last write, of which it has kept the number."""
    if (newest := found.put_back_from) is not None:
        raise JobError(
            f"The table at {table} was put back to an earlier version (RESTORE), and still has the numbers of the later events,"
            f" which would never be written again. Run RESTORE TABLE … TO VERSION AS OF {newest}, or {remedy}."
        )


@dataclass(frozen=True)
class Claim:
    """A query's claim of its lane. Events up to `known_seq` may have been written by other queries."""

    query: str
    number: int
    known_seq: int | None


@dataclass(frozen=True)
class AppendRules:
    """How a query's events are appended."""

    looks_for_all: bool = False
    """Whether each event is looked up in the table before it is written."""
    gets_columns: bool = False
    """Whether rows may have columns that the table lacks."""
    observes_seq: bool = False
    """Whether the highest seq of each batch is wanted."""
    identity: Sequence[str] = ("seq",)
    """Columns by which rows in the same partition of the table are the same event."""
    skips_by: Sequence[str] = ()
    """Columns of a new table whose values are summed up for each file (`TableFormat.create`)."""


USUAL_RULES: Final = AppendRules()


class EventTable:
    """Table of events to which the batches of one query at a time are appended."""

    def __init__(
        self,
        session: SparkSession,
        path: Table,
        prefix: str,
        partition_by: Sequence[str],
        *,
        spaces: str = ".*",
        rules: AppendRules = USUAL_RULES,
        table_format: TableFormat = delta,
    ) -> None:
        """Name the table, and create nothing yet.

        `spaces` is the regular expression of `--spaces` for the query's events.
        """
        self.path = path
        self._session = session
        self._prefix = prefix
        self._partition_by = tuple(partition_by)
        self._spaces = spaces
        self._rules = rules
        self._format = table_format
        self._lane = lanes.lane(spaces)
        self._claim: Claim | None = None
        self._appended: Observation | None = None
        self._version: int | None = None
        """The table's version after this query's last append: nobody else has changed it while it stays the same."""

    @property
    def newest_seq(self) -> int | None:
        """The highest seq of the last batch; None if it isn't known, as when the table had the batch already."""
        if self._appended is None:
            return None
        java: Any = self._appended._jo
        return self._appended.get["seq"] if java.future().isCompleted() else None

    def take(self, rows: DataFrame, batch: int, query: str, noted: int = 0) -> Claim:
        """Make the table belong to the query, if it doesn't yet, before anything of this batch is written. Rows aren't computed.

        `noted` is a number that an earlier write of the query has had.

        Raises JobError if the table has another daemon's events, if it is gone, if another query has taken it over, or if the
        checkpoint doesn't go on where the table ends.
        """
        claim = self._claim
        if noted:
            self._check_not_older(noted)
        if claim is None or claim.query != query:
            self._check_there(batch)
            claim = self._claim = self._adopt(rows, query)
        found = self._check_own(claim)
        if found.version != self._version:
            check_not_put_back(self.path, found)
        self._check_goes_on(found.transactions, batch)
        return claim

    def append(self, rows: DataFrame, batch: int, query: str, *, noted: int = 0) -> int:
        """Append a micro-batch of a query, and return the number of this write. `rows` must have all of the table's columns.

        `noted` is as in `take`, and JobError is raised likewise.
        """
        claim = self.take(rows, batch, query, noted)
        if self._rules.looks_for_all:
            rows = self._missing(rows.dropDuplicates(list(self._rules.identity)), None)
        elif claim.known_seq is not None and not rows.where(F.col("seq") <= claim.known_seq).isEmpty():
            rows = self._missing(rows, claim.known_seq)
        if self._rules.observes_seq:
            self._appended = Observation()
            rows = rows.observe(self._appended, F.max("seq").alias("seq"))
        number = lanes.number(claim.number, batch)
        try:
            self._format.append_once(
                rows,
                self.path,
                partition_by=self._partition_by,
                application=self._lane,
                batch=number,
                gets_columns=self._rules.gets_columns,
            )
        except OvertakenError as error:
            raise self._taken_over() from error
        # Delta skips the append without a word if another query has claimed the table meanwhile.
        self._version = self._check_own(claim).version
        return number

    def _check_there(self, batch: int) -> None:
        """Raise JobError if the table of earlier batches is gone, because their events would never be read again."""
        if batch and not self._is_there():
            raise table_is_gone(self.path)

    def _check_not_older(self, noted: int) -> None:
        """Raise JobError if the table lacks a write of this number, as numbers never decrease; a claim would make them higher."""
        if lanes.highest(self._state().transactions) < noted:
            raise JobError(
                f"The table at {self.path} lacks batches that this checkpoint has written to it: the table is an older copy. Put"
                " the newest one back, or start with an empty --checkpoint, which reads again what Kafka still has."
            )

    def _check_own(self, claim: Claim) -> TableState:
        """Return the table's state.

        Raises JobError if the table is gone, or if another query for the same events has taken it over.
        """
        found = self._state()
        if not lanes.holds(claim.number, self._lane, found.transactions):
            raise self._taken_over()
        return found

    def _check_goes_on(self, transactions: Mapping[str, int], batch: int) -> None:
        """Raise JobError unless the table ends with the batch before this one, or with this one, which is repeated.

        Otherwise the table or the checkpoint is an older copy. Delta would take the new events of a former batch's number for
        those of that batch, and leave them out.
        """
        last = lanes.last_batch(self._lane, transactions)
        if last > batch:
            raise JobError(
                f"The table at {self.path} has the batches of this checkpoint up to number {last}, and the checkpoint goes on"
                f" with number {batch}: it is an older copy, and the table would leave out new events. Put the newest checkpoint"
                " back, or start with an empty --checkpoint. Events that the table has aren't written again."
            )
        # A claim begins with any batch. A table that gets columns is one of several, and only gets the batches with its rows.
        if 0 <= last < batch - 1 and not self._rules.gets_columns:
            raise JobError(
                f"The table at {self.path} lacks the batches {last + 1} to {batch - 1} of this checkpoint: the table is an older"
                " copy. Put the newest one back, or start with an empty --checkpoint, which reads again what Kafka still has."
            )

    def _taken_over(self) -> JobError:
        return JobError(
            f"Another job, or this job with another --checkpoint, has begun to write events to the table at {self.path}, which"
            " would then have the same ones twice. Run only one of the two; the rows in the table stay unchanged. (Jobs can share"
            " a table if the --spaces of each lists its spaces by name, as in 'users|orders', and no two have the same.)"
        )

    def _state(self) -> TableState:
        """Return the table's state. Raises JobError if there is no table any more."""
        found = self._format.state(self._session, self.path)
        if found is None:
            raise table_is_gone(self.path)
        return found

    def _adopt(self, rows: DataFrame, query: str) -> Claim:
        """Make the table belong to this query, and return its claim."""
        if not self._is_there():
            self._format.create(
                self._session,
                self.path,
                rows.schema,
                {},
                partition_by=self._partition_by,
                skips_by=self._rules.skips_by,
                has_others_inside=True,
            )
        found = self._state().properties
        if found.get(PREFIX, self._prefix) != self._prefix:
            raise JobError(
                f"The table at {self.path} holds the events of the prefix {found[PREFIX]!r}, whose seq is independent of that of "
                f"{self._prefix!r}. Choose another --path."
            )
        kept = json.loads(found.get(f"{_CLAIM}{self._spaces}", "{}"))
        if kept.get("query") == query:
            claim = Claim(**kept)
            if lanes.holds(claim.number, self._lane, self._state().transactions):
                return claim
        number = self._claim_lanes(rows)
        # Read after the claim, so that no other query can add events meanwhile.
        known: int | None = self._format.read(self._session, self.path).agg(F.max("seq")).collect()[0][0]
        claim = Claim(query, number, known)
        told = {"query": query, "number": number, "known_seq": known}
        changed = {PREFIX: self._prefix, f"{_CLAIM}{self._spaces}": json.dumps(told)}
        self._format.set_properties(self._session, self.path, changed)
        return claim

    def _claim_lanes(self, rows: DataFrame) -> int:
        """Claim this query's lane, and the others with the same events; return the claim's number."""
        empty = self._session.createDataFrame([], rows.schema)
        for _ in range(_TRIES):
            before = self._state().transactions
            claimed = lanes.claimed(self._spaces, before)
            number = lanes.next_claim(claimed, before, random.randint(1, lanes.JUMP_MAX))  # noqa: S311 - no secret
            try:
                for name in claimed:
                    self._format.append_once(
                        empty,
                        self.path,
                        partition_by=self._partition_by,
                        application=name,
                        batch=lanes.number(number, -1),
                        gets_columns=self._rules.gets_columns,
                    )
            except OvertakenError:
                continue
            if lanes.holds(number, self._lane, self._state().transactions):
                return number
        raise self._taken_over()

    def _is_there(self) -> bool:
        return self._format.exists(self._session, self.path)

    def _missing(self, rows: DataFrame, known: int | None) -> DataFrame:
        """Return the rows whose event isn't in the table. The table has no events with a seq above `known`."""
        same = [*self._partition_by, *self._rules.identity]
        written = self._format.read(self._session, self.path)
        if known is not None:
            written = written.where(F.col("seq") <= known)
        written = written.select(*(F.col(name).alias(f"written {name}") for name in same))
        is_same = reduce(and_, (F.col(name).eqNullSafe(F.col(f"`written {name}`")) for name in same))
        return rows.join(written, is_same, "left_anti")
