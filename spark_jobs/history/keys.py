"""Versions of rows that have got another primary key without any event: frames in, frames out.

A space without images publishes nothing for its rows when it gets another key. Each row that exists then ends its version under
the former key, and begins one under the new key, with the `op` MOVED and the seq of the last event before the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.forms import Form
from spark_jobs.contract.row_texts import rekey

MOVED: Final = "key"
"""The `op` of such a version's beginning and, without a row, end."""

PLACE: Final = "place"
"""Column that orders a key's rows of the same seq: 0 for events, then the changes of keys in their order."""


class Move(NamedTuple):
    """A change of a space's key that no event tells, with the time (`ts_us`) of the last event before it."""

    form: Form
    ts_us: int | None


def moves(own: DataFrame, histories: Iterable[Sequence[Form]]) -> list[Move]:
    """Return the changes of keys among these forms of spaces, in order, but for those that are followed by a truncation.

    With images a truncation follows at once, and then all rows. `own` has all rows of `versions` of these spaces.
    """
    changed = [form for history in histories for former, form in pairwise(history) if former.key_writing != form.key_writing]
    found = []
    for form in sorted(changed, key=lambda form: (form.seq, form.schema_version)):
        rows = own.where(F.col("space_id") == form.space_id)
        following = F.min(F.when(F.col("seq") > form.seq, F.struct("seq", "op")))
        # As a number: Python's times don't reach as far.
        last_time = F.max(F.when(F.col("seq") <= form.seq, F.unix_micros("ts")))
        first, last = rows.agg(following, last_time).collect()[0]
        if first is None or first["op"] != "t":
            found.append(Move(form, last))
    return found


def with_moves(events: DataFrame, endings: DataFrame, found: Sequence[Move]) -> DataFrame:
    """Return rows of `versions` with those that the moves add, and with PLACE. `endings` is as ENDING_SCHEMA."""
    rows = events.withColumn(PLACE, F.lit(0))
    for place, (form, ts_us) in enumerate(found, 1):
        own = rows.where((F.col("space_id") == form.space_id) & F.col("key").isNotNull() & (F.col("seq") <= form.seq))
        members = F.struct("seq", PLACE, "row", "schema_version")
        last = own.groupBy("space_id", "key").agg(F.max_by(members, F.struct("seq", PLACE)).alias("last"))
        of_space = endings.where(F.col("space_id") == form.space_id)
        ended = of_space.where(F.col("at") <= form.seq).select("up_to", "at")
        is_gone = (F.col("up_to") >= F.col("last.seq")) & (F.col("at") >= F.col("last.seq"))
        alive = last.where("last.row is not null").join(F.broadcast(ended), is_gone, "left_anti")
        doomed = of_space.agg(F.max("up_to")).collect()[0][0]
        new_key = rekey(form, -1 if doomed is None else doomed)("key", "last.row", "last.seq")
        # Computed once: it is needed twice, and by each later move.
        moved = alive.withColumn("new_key", new_key).where("new_key is not null and new_key <> key").localCheckpoint()
        newest = moved.groupBy("space_id", "new_key").agg(F.max_by("last", "last.seq").alias("last"))
        values = {
            "seq": F.lit(form.seq).cast("bigint"),
            "op": F.lit(MOVED),
            "ts": F.timestamp_micros(F.lit(ts_us).cast("bigint")),
            PLACE: F.lit(place),
        }
        added = {**values, "row": F.lit(None).cast("string"), "key": F.col("key")}
        begun = {**values, "row": F.col("last.row"), "key": F.col("new_key")}
        for frame, members_of in ((moved, added), (newest, begun)):
            columns = {"space_id": F.col("space_id"), "schema_version": F.col("last.schema_version"), **members_of}
            told = frame.select(*(column.alias(name) for name, column in columns.items()))
            rows = rows.unionByName(told, allowMissingColumns=True)
    return rows
