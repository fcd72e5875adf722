"""Numbers that differ from batch to batch, and sessions that compile nothing."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.tables.codegen import interpreting, varying

pytestmark = pytest.mark.spark


def session(spark: SparkSession) -> SparkSession:
    """One that compiles, as the tests' own doesn't."""
    compiling = spark.newSession()
    compiling.conf.set("spark.sql.codegen.wholeStage", "true")
    compiling.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    return compiling


def program(spark: SparkSession, number: Column) -> str:
    """What Spark writes for a query with a number, and compiles."""
    jvm: Any = spark._jvm
    text: str = jvm.PythonSQLUtils.explainString(spark.range(3).select(number)._jdf.queryExecution(), "codegen")
    return text.partition("Generated code:")[2]


def test_a_number_that_varies_is_not_in_the_program(spark: SparkSession) -> None:
    compiling = session(spark)
    assert program(compiling, varying(17)) == program(compiling, varying(23)) != ""
    assert program(compiling, F.lit(17)) != program(compiling, F.lit(23))
    assert [row[0] for row in spark.range(3).select(varying(2**62)).collect()] == [2**62] * 3


def test_a_session_that_compiles_nothing_is_made_once(spark: SparkSession) -> None:
    compiling = session(spark)
    beside = interpreting(compiling)
    assert beside is interpreting(compiling)
    assert program(beside, F.lit(17)) == ""
