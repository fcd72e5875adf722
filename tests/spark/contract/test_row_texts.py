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
ALIKE = Form(
    "docs",
    512,
    1,
    0,
    ("id",),
    (
        Field("id", "int64"),
        *(Field(name, "string") for name in ("Text", "TEXT", "text", "_unreadable row", "gone")),
    ),
)


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


@pytest.mark.parametrize("row", ['[{"id":1}]', "[]", "5", '"text"', "", '{"id":1', "null"])
def test_a_text_that_is_no_object_is_no_row(row: str, spark: SparkSession) -> None:
    rows = spark.createDataFrame([('{"id":1}', row, 7)], "_key string, _row string, _seq bigint")
    for form in (FORM, ALIKE):
        with pytest.raises(PySparkException) as raised:
            typed(rows, form).collect()
        assert operator_message(raised.value) == 'the row of {"id":1} at seq 7 isn\'t a JSON object'


def test_values_are_found_by_names_that_spark_takes_for_the_same(spark: SparkSession) -> None:
    row = '{"id":1,"Text":"A","TEXT":null,"text":"c","_unreadable row":"d","more":[1, 1e300]}'
    rows = spark.createDataFrame([("{}", row, 7), ("{}", None, 8)], "_key string, _row string, _seq bigint")
    found = typed(rows, ALIKE).orderBy("_seq").collect()
    assert [tuple(one)[3:] for one in found] == [(1, "A", None, "c", "d", None), (None,) * 6]
    shorter = typed(rows, FORM).orderBy("_seq").collect()
    assert [tuple(one)[3:] for one in shorter] == [(1, "c"), (None, None)]


def test_a_number_is_in_one_of_its_two_columns(spark: SparkSession) -> None:
    form = Form("docs", 512, 1, 0, ("id",), (Field("a", "number"), Field("b", "decimal"), Field("a b", "number")))
    rows = spark.createDataFrame([("{}", '{"a":1.5,"b":"1e300","a b":null}', 7)], "_key string, _row string, _seq bigint")
    (found,) = typed(rows, form).collect()
    assert [None if value is None else str(value) for value in found[3:]] == [
        "1.500000000000000000",
        None,
        None,
        "1e300",
        None,
        None,
    ]
