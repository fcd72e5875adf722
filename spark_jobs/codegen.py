"""What keeps Spark from compiling a program for every batch.

Spark writes a Java program for a query, compiles it, and keeps it for the next query with the same text; Java then takes some
thousand rows until it has made quick code of it. A number in the query stands in that text, so one that differs from batch to
batch would have each batch begin with slow code.
"""

from __future__ import annotations

from typing import Final
from weakref import WeakKeyDictionary

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

_WITHOUT: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # The first rows of a frame are looked for in one partition, then in ten: each look is a Spark job.
    "spark.sql.limit.initialNumPartitions": "1000000",
}
_BESIDE: Final[WeakKeyDictionary[SparkSession, SparkSession]] = WeakKeyDictionary()


def varying(number: int) -> Column:
    """A number that differs from batch to batch, as a column that isn't part of the program's text: one of an array.

    A place that is known beforehand would be looked up while the query is planned; Spark takes the number of a partition to be
    another one in every run.
    """
    return F.get(F.array(F.lit(number).cast("bigint")), F.spark_partition_id() * 0)


def interpreting(session: SparkSession) -> SparkSession:
    """A session beside this one, always the same, for small questions that are never asked twice: it compiles nothing."""
    beside = _BESIDE.get(session)
    if beside is None:
        beside = _BESIDE[session] = session.newSession()
        for name, value in _WITHOUT.items():
            beside.conf.set(name, value)
    return beside
