"""Versions of rows → intervals in which they held: frames in, frames out. No tables, topics or state.

A version begins with an event. It ends with the next event of its key, with a truncation of the space, or with the end of a
snapshot that didn't repeat it. An interval is computed from the neighbouring events by `seq`, so the order in which versions
were written doesn't matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.envelope import CONTROL
from spark_jobs.contract.forms import Form, same_name
from spark_jobs.contract.row_texts import relabel, typed
from spark_jobs.contract.unfit_values import UnfitValues
from spark_jobs.history.keys import MOVED, PLACE

SOURCE_FIELDS: Final = ("ts_us",)

META_COLUMNS: Final = ("_key", "_row", "_begin_seq", "_end_seq", "_begin", "_end", "_begin_op", "_end_op")
"""Columns of each interval, before the fields of its space."""

ENDING_SCHEMA: Final = "space_id bigint, up_to bigint, at bigint, ts timestamp, op string"
"""Endings of many versions: versions that began at `up_to` or before, and not after `at`, end with the event `at`."""

_APART: Final = "the interval"
_NO_ROW: Final = (
    " has an UPDATE without its row, which a history can't be made of. Let job `materialize` make whole rows, and `history_of` a"
    " history of its table; or leave the space out with --spaces."
)


def versions(changes: DataFrame) -> DataFrame:
    """Convert the result of `parse` on records `with_value_as_key` to one row per event and one per control record.

    For control records, `op` is schema or snapshot, `space` the same after a ~, `seq` the offset and `row` the record.
    """
    is_control = F.col("op") == CONTROL
    kind = F.substring_index("topic", ".", -1)
    source = F.col("source")
    return changes.where((F.col("op") != "t") | (F.col("partition") == 0)).select(
        F.when(is_control, F.concat(F.lit("~"), kind)).otherwise(source["table"]).alias("space"),
        source["space_id"].alias("space_id"),
        F.when(is_control, F.col("offset")).otherwise(source["seq"]).alias("seq"),
        F.when(is_control, kind).otherwise(_checked(source["seq"], source["table"])).alias("op"),
        F.when(is_control, F.lit(None)).otherwise(F.col("key")).alias("key"),
        F.when(is_control, F.col("key")).otherwise(F.col("after")).alias("row"),
        source["schema_version"].alias("schema_version"),
        F.timestamp_micros(source["ts_us"]).alias("ts"),
    )


def versions_of(rows: DataFrame) -> DataFrame:
    """Convert a table of events (lake/change_rows.py) to the same rows."""
    op = _checked(F.col("seq"), F.col("space")).alias("op")
    row, time = F.col("after").alias("row"), F.col("source_ts").alias("ts")
    return rows.select("space", "space_id", "seq", op, "key", row, "schema_version", time)


def control_versions(control: DataFrame) -> DataFrame:
    """Convert the control records beside a table of events (lake/control.py) to the same rows."""
    nothing = F.lit(None)
    return control.select(
        F.concat(F.lit("~"), "kind").alias("space"),
        nothing.cast("bigint").alias("space_id"),
        F.col("position").alias("seq"),
        F.col("kind").alias("op"),
        nothing.cast("string").alias("key"),
        F.col("value").alias("row"),
        nothing.cast("bigint").alias("schema_version"),
        nothing.cast("timestamp").alias("ts"),
    )


def _checked(seq: Column, space: Column) -> Column:
    """Return the `op` of an event that has its row; any other event makes the query fail."""
    lacks_row = F.col("op").isin("c", "r", "u") & F.col("after").isNull()
    complaint = F.concat(F.lit("Seq "), seq.cast("string"), F.lit(" of "), space, F.lit(_NO_ROW))
    return F.when(lacks_row, F.raise_error(complaint)).otherwise(F.col("op"))


def intervals(found: DataFrame, endings: DataFrame) -> DataFrame:
    """Return META_COLUMNS, space_id and schema_version of all versions among the rows of `with_moves`.

    `endings` is as ENDING_SCHEMA. A repeated event counts once.
    """
    of_key = Window.partitionBy("space_id", "key").orderBy("seq", PLACE)
    once = found.where("key is not null").dropDuplicates(["space_id", "key", "seq", PLACE])
    is_version = (F.col("op") != "d") & ((F.col("op") != MOVED) | F.col("row").isNotNull())
    linked = once.withColumn("following", F.lead(F.struct("seq", "ts", "op")).over(of_key)).where(is_version)
    ended = endings.groupBy("space_id").agg(F.sort_array(F.collect_list(F.struct("at", "up_to", "ts", "op"))).alias("ended"))
    both = linked.join(F.broadcast(ended), "space_id", "left")
    emptied = F.expr("try_element_at(filter(ended, one -> one.at >= seq and one.up_to >= seq), 1)")
    closed = both.withColumn("emptied", emptied).withColumn(
        "last",
        F.expr(
            "if(emptied is not null and (following is null or emptied.at < following.seq),"
            " named_struct('seq', emptied.at, 'ts', emptied.ts, 'op', emptied.op), following)"
        ),
    )
    return closed.select(
        F.col("key").alias("_key"),
        F.col("row").alias("_row"),
        F.col("seq").alias("_begin_seq"),
        F.col("last.seq").alias("_end_seq"),
        F.col("ts").alias("_begin"),
        F.col("last.ts").alias("_end"),
        F.col("op").alias("_begin_op"),
        F.col("last.op").alias("_end_op"),
        "space_id",
        "schema_version",
    )


def shown(found: DataFrame, form: Form, stale: Sequence[tuple[int, int]], unfit: UnfitValues | None = None) -> DataFrame:
    """Return intervals with the columns of a form; rows of the forms in `stale` (space_id, schema_version) get its names.

    `unfit` is as in `typed`.
    """
    is_stale: Column = F.lit(False)
    for space_id, version in stale:
        is_stale = is_stale | ((F.col("space_id") == space_id) & (F.col("schema_version") == version))
    row = F.col("_row")
    if stale:
        row = F.when(is_stale, relabel(form)(F.when(is_stale, row))).otherwise(row)
    # Put the interval's columns into one whose name no field can have: the fields' columns are created beside it.
    apart = found.select("_key", row.alias("_row"), F.col("_begin_seq").alias("_seq"), F.struct(*META_COLUMNS).alias(_APART))
    read = typed(apart, form, unfit)
    interval = [F.col("_row") if name == "_row" else F.col(f"`{_APART}`")[name].alias(name) for name in META_COLUMNS]
    fields = [read[f"`{name}`"].alias(shown) for name, shown in _names_beside_meta_columns(form).items()]
    return read.select(*interval, *fields)


def shown_columns(form: Form) -> list[str]:
    """Return the names of the columns of `shown`."""
    return [*META_COLUMNS, *_names_beside_meta_columns(form).values()]


def _names_beside_meta_columns(form: Form) -> dict[str, str]:
    """Return the name of each of the form's columns beside META_COLUMNS."""
    names, own = form.column_names(), {same_name(name) for name in META_COLUMNS}
    taken = own | {same_name(name) for name in names}
    found = {}
    for name in names:
        free = f"{name}__" if same_name(name) in own else name
        while free != name and same_name(free) in taken:
            free += "_"
        taken.add(same_name(free))
        found[name] = free
    return found


def as_of(found: DataFrame, seq: int) -> DataFrame:
    """Return the intervals that held right after an event."""
    return found.where((F.col("_begin_seq") <= seq) & (F.col("_end_seq").isNull() | (F.col("_end_seq") > seq)))


def seq_at(found: DataFrame, moment: Any) -> int:
    """Return the seq of the last event, among rows of `versions`, that the master had written at a moment; -1 if there is none.

    All events of a source transaction have the same time, so the result never splits one.
    """
    last = found.where(F.col("ts") <= F.lit(moment).cast("timestamp")).agg(F.max("seq")).collect()[0][0]
    return -1 if last is None else int(last)
