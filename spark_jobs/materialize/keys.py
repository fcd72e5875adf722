"""Rows under another primary key: frames in, frames out.

A space without images publishes no events for its rows when it gets another key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.forms import Form
from spark_jobs.contract.row_texts import rekey, relabel

Change = tuple[Form, tuple[Form, ...]]
"""A form with another key than the form before it, and all earlier forms of the space."""


def key_changes(histories: Iterable[Sequence[Form]], settled: Collection[str]) -> dict[int, list[Change]]:
    """Return the changes of keys by the last seq before each, in the order of seq, but for the forms in `settled` (`point`)."""
    found: dict[int, list[Change]] = {}
    for history in histories:
        for place, (former, form) in enumerate(pairwise(history), 1):
            if former.key_writing != form.key_writing and form.point not in settled:
                found.setdefault(form.seq, []).append((form, tuple(history[:place])))
    return dict(sorted(found.items()))


def rekeyed(stored: DataFrame, endings: DataFrame, changes: Sequence[Change]) -> DataFrame:
    """Return the rows (STORED_SCHEMA) to add to the stored ones: each row under its new key, and the end of its former one."""
    added = stored.where("false")
    for form, earlier in changes:
        versions = [one.schema_version for one in earlier if one.key_writing != form.key_writing]
        own = stored.where(
            (F.col("space_id") == form.space_id) & F.col("schema_version").isin(versions) & F.col("row").isNotNull()
        )
        doomed = endings.where(F.col("space_id") == form.space_id).agg(F.max("up_to")).collect()[0][0]
        key = rekey(form, -1 if doomed is None else doomed)("key", "row", "seq")
        moved = own.withColumn("new_key", key).where("new_key is not null").localCheckpoint()
        version = F.lit(form.schema_version).cast("bigint").alias("schema_version")
        ended = moved.where("new_key <> key").select("space_id", "key", "seq", F.lit(None).cast("string").alias("row"), version)
        kept = moved.select("space_id", F.col("new_key").alias("key"), "seq", relabel(form)(F.col("row")).alias("row"), version)
        added = added.unionByName(kept).unionByName(ended)
    return added
