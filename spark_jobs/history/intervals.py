"""Versions of rows → intervals in which they held: frames in, frames out. No tables, no topics, no state.

A version begins with an event and ends with the next one of its key, with a truncation of the space, or with the end of a
snapshot that didn't repeat it. So nothing has to be known of the order in which versions were written: an interval is made
from what stands beside it by `seq`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.envelope import CONTROL
from spark_jobs.forms import Form, same_name
from spark_jobs.transforms import relabel, typed

SOURCE_FIELDS: Final = ("ts_us",)

META_COLUMNS: Final = ("_key", "_row", "_begin_seq", "_end_seq", "_begin", "_end", "_begin_op", "_end_op")
"""What each interval has before the fields of its space."""

ENDING_SCHEMA: Final = "space_id bigint, up_to bigint, at bigint, ts timestamp, op string"
"""Versions that began at `up_to` or before, and not behind `at`, end with the event `at`."""

_APART: Final = "the interval"
_NO_ROW: Final = (
    " has an UPDATE without its row, which a history can't be made of. Let job `materialize` make whole rows, and `history_of` a"
    " history of its table; or leave the space out with --spaces."
)


def versions(changes: DataFrame) -> DataFrame:
    """One row per event of what `parse` gave of `packed` records, and one per control record.

    Of these `op` is schema or snapshot, `space` the same behind a ~, `seq` the offset and `row` the record.
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
    """The same, of a table of events (lake/change_rows.py)."""
    op = _checked(F.col("seq"), F.col("space")).alias("op")
    row, time = F.col("after").alias("row"), F.col("source_ts").alias("ts")
    return rows.select("space", "space_id", "seq", op, "key", row, "schema_version", time)


def control_versions(control: DataFrame) -> DataFrame:
    """The same, of the records beside a table of events (lake/control.py)."""
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
    """The `op` of an event that tells its row; others end the query."""
    lacks_row = F.col("op").isin("c", "r", "u") & F.col("after").isNull()
    complaint = F.concat(F.lit("Seq "), seq.cast("string"), F.lit(" of "), space, F.lit(_NO_ROW))
    return F.when(lacks_row, F.raise_error(complaint)).otherwise(F.col("op"))


def intervals(found: DataFrame, endings: DataFrame) -> DataFrame:
    """META_COLUMNS, space_id and schema_version of all versions among these rows of `versions`; `endings` as ENDING_SCHEMA.

    A repeated event is one.
    """
    of_key = Window.partitionBy("space_id", "key").orderBy("seq")
    once = found.where("key is not null").dropDuplicates(["space_id", "key", "seq"])
    linked = once.withColumn("following", F.lead(F.struct("seq", "ts", "op")).over(of_key)).where("op <> 'd'")
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


def shown(found: DataFrame, form: Form, stale: Sequence[tuple[int, int]]) -> DataFrame:
    """Intervals with the columns of a form; rows of the forms in `stale` (space_id, schema_version) get its names."""
    is_stale: Column = F.lit(False)
    for space_id, version in stale:
        is_stale = is_stale | ((F.col("space_id") == space_id) & (F.col("schema_version") == version))
    row = F.col("_row")
    if stale:
        row = F.when(is_stale, relabel(form)(F.when(is_stale, row))).otherwise(row)
    # In a column whose name no field can have: those of the fields are made beside it.
    apart = found.select("_key", row.alias("_row"), F.col("_begin_seq").alias("_seq"), F.struct(*META_COLUMNS).alias(_APART))
    read = typed(apart, form)
    interval = [F.col("_row") if name == "_row" else F.col(f"`{_APART}`")[name].alias(name) for name in META_COLUMNS]
    fields = [read[f"`{name}`"].alias(shown) for name, shown in _names_beside_meta_columns(form).items()]
    return read.select(*interval, *fields)


def _names_beside_meta_columns(form: Form) -> dict[str, str]:
    """What a form's columns are called beside META_COLUMNS."""
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
    """Of intervals, those that held right after an event."""
    return found.where((F.col("_begin_seq") <= seq) & (F.col("_end_seq").isNull() | (F.col("_end_seq") > seq)))


def seq_at(found: DataFrame, moment: Any) -> int:
    """The number of the last event, of all rows of `versions`, that the master had made at a moment; -1 if there is none.

    All events of a source transaction have one time, so what is seen is never half of one.
    """
    last = found.where(F.col("ts") <= F.lit(moment).cast("timestamp")).agg(F.max("seq")).collect()[0][0]
    return -1 if last is None else int(last)
