"""Rows as JSON texts become typed columns."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.forms import Field, Form
from spark_jobs.contract.row_texts import typed
from spark_jobs.errors import operator_message

pytestmark = pytest.mark.spark

FORM = Form("docs", 512, 1, 0, ("id",), (Field("id", "int64"), Field("text", "string")))


def test_a_string_of_any_length_is_read(spark: SparkSession) -> None:
    """Spark's JSON reader refuses strings of more than 20,000,000 characters by default; the master and Kafka take them."""
    length = 20_000_001
    row = F.concat(F.lit('{"id":1,"text":"'), F.repeat(F.lit("x"), F.lit(length)), F.lit('"}'))
    rows = spark.range(1).select(F.lit('{"id":1}').alias("_key"), row.alias("_row"), F.lit(1).alias("_seq"))
    assert typed(rows, FORM).select("id", F.length("text")).collect() == [(1, length)]


def test_the_message_about_a_row_that_is_no_json_does_not_show_it(spark: SparkSession) -> None:
    rows = spark.createDataFrame([('{"id":1}', "secret", 7)], "_key string, _row string, _seq bigint")
    with pytest.raises(PySparkException) as raised:
        typed(rows, FORM).collect()
    assert operator_message(raised.value) == 'the row of {"id":1} at seq 7 isn\'t a JSON object'
