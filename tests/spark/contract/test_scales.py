"""Scales that somebody gives for decimals whose format says none, and what becomes of values with more digits."""

from __future__ import annotations

import argparse
import re
from decimal import Decimal
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_jobs.contract.forms import Forms
from spark_jobs.contract.scales import decimal_scale, unused, with_scales
from spark_jobs.contract.source import Topics
from spark_jobs.current import read_current
from spark_jobs.errors import JobError, operator_message
from spark_jobs.history.job import HistorySink
from spark_jobs.history.store import History
from spark_jobs.lake.typed_events import TypedEventsSink
from spark_jobs.runner.checkpoint import MadeTables
from spark_jobs.runner.job import Sink
from spark_jobs.runner.unfit_counts import UnfitCounts
from spark_jobs.tables.format import TableFormat
from tests.spark.formats import in_either_format, load, under
from tests.spark.messages import FakeTopics, Message, compact, put, schema
from tests.spark.sinks import current_sink

COLUMNS = (("id", "unsigned"), ("balance", "decimal"), ("rate", "decimal"), ("amount", "number"))


def columns(text: str) -> dict[str, str]:
    form = Forms("shop.schema", [text]).latest("users")
    assert form is not None
    return form.columns()


def record() -> str:
    value = schema(0, columns=COLUMNS).value
    assert value is not None
    return value


@pytest.mark.parametrize(
    ("given", "name", "scale"), [("users=2", "users", 2), ("users.balance=38", "users.balance", 38), ("a=b.c=0", "a=b.c", 0)]
)
def test_a_scale_is_given_for_a_space_or_a_field(given: str, name: str, scale: int) -> None:
    assert decimal_scale(given) == (name, scale)


@pytest.mark.parametrize("given", ["users", "=2", "users=", "users=39", "users=-1", "users=x", "users=²"])
def test_anything_else_is_refused(given: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="isn't SPACE=DIGITS"):
        decimal_scale(given)


def test_the_field_comes_before_the_space_and_other_types_stay() -> None:
    two = {"balance": "decimal(38,2)", "rate": "decimal(38,6)"}
    rest = {"id": "decimal(20,0)", "amount": "decimal(37,18)", "amount__exact": "string"}
    found = columns(with_scales(record(), {"users": 2, "users.rate": 6, "orders": 1}))
    assert found == {**two, **rest}
    assert columns(record()).keys() == {*two, *rest, "balance__exact", "rate__exact"}


def test_a_scale_that_the_format_says_stays() -> None:
    sized = record().replace('"typeName":"decimal","position":2', '"typeName":"decimal","position":2,"scale":3')
    assert columns(with_scales(sized, {"users": 2}))["balance"] == "decimal(38,3)"


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"source":{"table":"users"},"tableChanges":[{"table":null}]}', record()])
def test_a_record_without_such_a_decimal_stays_to_the_byte(text: str) -> None:
    assert with_scales(text, {"orders": 2}) == text
    assert unused([text], {"orders": 2}) == ["orders"]


def test_names_that_no_decimal_has_are_told() -> None:
    scales = {"users": 2, "users.rate": 1, "users.amount": 3, "users.gone": 4}
    assert unused([record()], scales) == ["users.amount", "users.gone"]


@pytest.mark.spark
@pytest.mark.one_of_these("typed events", seconds=40)
@in_either_format
def test_all_tables_have_one_column_for_such_a_decimal(
    spark: SparkSession, tmp_path: Path, known: TableFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables that were made without the scale, too, from the next batch on; and values with more digits are counted."""
    topics = FakeTopics(spark)

    def sinks(scales: dict[str, int], *, fails: bool = False) -> dict[str, Sink]:
        place = Topics("nowhere:9092", "shop", scales=scales)
        typed = TypedEventsSink(
            spark,
            place,
            under(tmp_path / "typed", known),
            MadeTables(spark, str(tmp_path / "checkpoint")),
            unfit=UnfitCounts("after", fails=fails),
            read_topic=topics.read,
        )
        unfit = UnfitCounts(fails=fails)
        current = current_sink(
            spark, place, str(tmp_path / "current"), topics, table_format=known, unfit=unfit, share=0.0, min_unmerged=1
        )
        history = HistorySink(spark, place, under(tmp_path / "history", known), publish_every=1, fails_at_unfit=fails)
        return {"current": current, "typed": typed, "history": history}

    def process(batch: int, given: dict[str, Sink], *messages: Message) -> dict[str, int]:
        records = topics.send(*messages)
        topics.took(records)
        for sink in given.values():
            sink.write(records, batch, "query")
        return {name: sink.counts()["unfit_values"] for name, sink in given.items() if sink.counts()}

    form, rows = schema(0, columns=COLUMNS[:2]), [put("c", {"id": n, "balance": f"{n}.50"}, n) for n in range(1, 8)]
    assert process(0, sinks({}), form, *rows) == {"current": 0, "typed": 0}
    scaled = sinks({"users.balance": 2, "users.none": 1})
    # The first one comes with the table's rewriting, the second one into it by MERGE.
    assert process(1, scaled, put("c", {"id": 8, "balance": "8.125"}, 8)) == {"current": 1, "typed": 1}
    assert process(2, scaled, put("c", {"id": 9, "balance": "9.125"}, 9)) == {"current": 2, "typed": 2}
    said = capsys.readouterr().err
    assert "--decimal-scale: no space has such a decimal so far: users.none" in said
    assert said.count("1 values of users don't fit their columns, which are null there; `_row` has them.") == 2
    expected = [*(Decimal(f"{n}.50") for n in range(1, 8)), None, None]
    users, versions = str(tmp_path / "current" / "users"), str(tmp_path / "history")
    for seq, found in (
        ("_seq", read_current(spark, users)),
        ("_seq", load(spark, known, users)),
        ("_begin_seq", History(spark, versions).intervals("users")),
        ("_begin_seq", load(spark, known, f"{versions}/users")),
    ):
        assert dict(found.dtypes)["balance"] == "decimal(38,2)"
        assert "balance__exact" not in found.columns
        ordered = found.orderBy(seq).collect()
        assert [row["balance"] for row in ordered] == expected
        assert ordered[7]["_row"] == compact({"id": 8, "balance": "8.125"})
    events = load(spark, known, tmp_path / "typed" / "users").orderBy("seq").collect()
    assert [row["new"]["balance__decimal"] for row in events[6:]] == [None, None, None]
    assert [row["new"]["balance"] for row in events[6:]] == [Decimal("7.50"), None, None]

    records = topics.send(put("c", {"id": 10, "balance": "0.001"}, 10))
    topics.took(records)
    for sink in sinks({"users": 2}, fails=True).values():
        with pytest.raises((JobError, PySparkException, Py4JError)) as raised:
            sink.write(records, 3, "query")
        assert re.search(r"users at seq 10 has a value that the column balance\w* can't hold", operator_message(raised.value))
