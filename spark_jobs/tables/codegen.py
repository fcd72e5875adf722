"""Helpers that keep Spark from compiling a new program for every batch.

Spark generates a Java program for a query, compiles it, and caches it for the next query with the same program text. Java then
needs some thousand rows until it has optimized the program. A number in the query becomes part of the text: if it differs from
batch to batch, each batch begins with slow code.
"""

from __future__ import annotations

from typing import Final
from weakref import WeakKeyDictionary

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.tables.places import own_session

_WITHOUT: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # By default Spark searches one partition for a frame's first rows, then ten, and so on. Each search is a Spark job.
    "spark.sql.limit.initialNumPartitions": "1000000",
}
_BESIDE: Final[WeakKeyDictionary[SparkSession, SparkSession]] = WeakKeyDictionary()


def varying(number: int) -> Column:
    """Return a column for a number that differs from batch to batch, without putting it into the text of the program.

    The column reads the number from an array. Spark would evaluate a constant index while it plans the query. The index here
    contains the number of the partition, which Spark treats as different in every run.
    """
    return F.get(F.array(F.lit(number).cast("bigint")), F.spark_partition_id() * 0)


def interpreting(session: SparkSession) -> SparkSession:
    """Return a second session, always the same one for `session`, that compiles nothing: for small queries that run only once."""
    beside = _BESIDE.get(session)
    if beside is None:
        beside = _BESIDE[session] = own_session(session)
        for name, value in _WITHOUT.items():
            beside.conf.set(name, value)
    return beside
