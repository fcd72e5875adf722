"""The unmerged events of a space, fetched to this process if they are few.

Planning a query, compiling it and starting its tasks takes longer than fetching a few thousand events. So only one query reads
the table of events. If each event contains the complete row, this module also picks the newest event of each key, which saves
Spark a shuffle wherever the events are used.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any, Final

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.lake.control import Control
from spark_jobs.lake.current_rows import Unmerged

FEW: Final = 5_000
SMALL_BYTES: Final = 8192
"""Maximum size of an event's texts. So what is fetched at once, to Java and to Python, stays below 41 MB."""

_TIME: Final = "ts_us"
"""Column with times as numbers. Python's times can't represent the repeated hour when clocks are put back."""
_SCHEMA: Final = (
    f"key string, seq bigint, op string, after string, patch string, upsert string, {_TIME} bigint, space_id bigint,"
    " schema_version bigint, server_version string"
)
_COLUMNS: Final = tuple(column.split()[0] for column in _SCHEMA.split(", "))
_TEXTS: Final = ("key", "after", "patch", "upsert")
_IS_LARGE: Final = "is_large"


def fetch(events: DataFrame) -> list[Row] | None:
    """Return these events, or None if there are more than FEW, or if one is larger than SMALL_BYTES."""
    sizes = (F.coalesce(F.octet_length(text), F.lit(0)) for text in _TEXTS)
    is_large = reduce(add, sizes) > SMALL_BYTES
    columns = {column: F.col(column) for column in _COLUMNS if column != _TIME}
    columns |= {
        _TIME: F.unix_micros("source_ts"),
        **{text: F.when(~is_large, F.col(text)) for text in _TEXTS},
        _IS_LARGE: is_large,
    }
    found = events.select(*(column.alias(name) for name, column in columns.items())).limit(FEW + 1).collect()
    return found if len(found) <= FEW and not any(row[_IS_LARGE] for row in found) else None


def unmerged(session: SparkSession, rows: Sequence[Row], swept: int, control: Control) -> Unmerged | None:
    """Return the fetched events as a frame of this session; None if there are none.

    `swept` is the seq up to which snapshots have swept the space's rows.
    """
    if not rows:
        return None
    floor = max([swept, *(row["seq"] for row in rows if row["op"] == "t")])
    has_patches = any(row["patch"] is not None for row in rows)
    changes = [row for row in rows if row["op"] != "t" and row["seq"] > floor]
    # The forms of other events may be lost: the daemon can't write former forms again.
    forms = {version: control.forms.of(*version) for version in {(row["space_id"], row["schema_version"]) for row in changes}}
    if not has_patches:
        changes = list({row["key"]: row for row in sorted(changes, key=lambda row: int(row["seq"]))}.values())
    events = _frame(session, changes).withColumn("source_ts", F.timestamp_micros(_TIME)).drop(_TIME)
    return Unmerged(events, floor, forms, has_patches=has_patches, count=len(rows), is_latest=not has_patches)


def _frame(session: SparkSession, rows: Sequence[Row]) -> DataFrame:
    """Return the rows as a frame that Spark computes during planning. `createDataFrame` would need a Python worker each time."""
    jvm: Any = session.sparkContext._jvm
    # One text is passed to Java, instead of each value separately.
    lines = "\n".join(json.dumps(row.asDict()) for row in rows)
    texts = jvm.org.apache.commons.io.IOUtils.readLines(jvm.java.io.StringReader(lines))
    stored = session._jsparkSession.createDataset(texts, jvm.org.apache.spark.sql.Encoders.STRING())
    return DataFrame(stored.toDF(), session).select(F.from_json("value", _SCHEMA).alias("row")).select("row.*")
