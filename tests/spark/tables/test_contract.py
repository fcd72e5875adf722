"""What the jobs need of a table format, the same for each one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs import run
from spark_jobs.tables import delta, iceberg_tables
from spark_jobs.tables.format import NameTakenError, Once, OvertakenError, TableFormat
from spark_jobs.tables.places import Table, qualified
from tests.spark.formats import FORMATS, forget_at_once

pytestmark = pytest.mark.spark

COLUMNS = "_key string, _seq bigint, part string"
IDENTIFIERS = {"delta": lambda _, table: delta.identifier(table), "iceberg": iceberg_tables.identifier}


@pytest.fixture(params=FORMATS)
def known(request: pytest.FixtureRequest) -> TableFormat:
    """The format."""
    found: TableFormat = FORMATS[request.param]
    return found


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> str:
    """The path of a table that isn't there."""
    return f"{qualified(spark, str(tmp_path))}/a~2fb.c"


def rows(spark: SparkSession, *values: tuple[str, int, str]) -> DataFrame:
    return spark.createDataFrame(list(values), COLUMNS)


def stored(known: TableFormat, spark: SparkSession, table: Table, version: int | None = None) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in known.read(spark, table, version).collect())


def numbers(known: TableFormat, spark: SparkSession, table: Table) -> dict[str, int]:
    state = known.state(spark, table)
    assert state is not None
    return dict(state.transactions)


def test_a_table_is_made_once(known: TableFormat, spark: SparkSession, table: str) -> None:
    assert known.state(spark, table) is None
    assert not known.exists(spark, table)
    for properties in ({"tarantool_cdc.prefix": "it's"}, {"tarantool_cdc.prefix": "another"}):
        known.create(spark, table, rows(spark).schema, properties, partition_by=["part"])
    state = known.state(spark, table)
    assert state is not None
    assert known.exists(spark, table)
    assert (state.columns, state.properties["tarantool_cdc.prefix"]) == (("_key", "_seq", "part"), "it's")
    assert (dict(state.transactions), state.previous_version, stored(known, spark, table)) == ({}, None, [])
    known.set_properties(spark, table, {"tarantool_cdc.prefix": "shop", "more": "${x}"})
    changed = known.state(spark, table)
    assert changed is not None
    assert (changed.properties["tarantool_cdc.prefix"], changed.properties["more"]) == ("shop", "${x}")


def test_each_batch_is_appended_once(known: TableFormat, spark: SparkSession, table: str) -> None:
    first, second = rows(spark, ("1", 1, "x")), rows(spark, ("2", 2, "y"), ("3", 3, "y"))
    for batch, frame in ((5, first), (5, first), (4, second), (6, second), (6, second)):
        known.append_once(frame, table, partition_by=["part"], application="query", batch=batch)
    known.append_once(rows(spark), table, partition_by=["part"], application="other", batch=1)
    assert stored(known, spark, table) == [("1", 1, "x"), ("2", 2, "y"), ("3", 3, "y")]
    assert numbers(known, spark, table) == {"query": 6, "other": 1}
    more = rows(spark, ("4", 4, "z")).withColumn("new", F.struct(F.lit(1).alias("a.b"), F.lit("t").alias("c")))
    known.append_once(more, table, partition_by=["part"], application="query", batch=7, gets_columns=True)
    assert stored(known, spark, table)[-1] == ("4", 4, "z", (1, "t"))


def test_who_is_overtaken_appends_nothing(known: TableFormat, spark: SparkSession, table: str) -> None:
    """Between the check of a number and the commit, another writer claims the application: the write must not be there."""
    claims: list[int] = []

    known.append_once(rows(spark, ("1", 1, "x")), table, partition_by=(), application="lane", batch=1)

    class Claiming:
        """A frame during whose write another writer claims the lane."""

        def __init__(self, frame: DataFrame) -> None:
            self._frame = frame

        def __getattr__(self, name: str) -> object:
            if name in ("write", "writeTo") and not claims:
                claims.append(1)
                known.append_once(rows(spark), table, partition_by=(), application="lane", batch=100)
            return getattr(self._frame, name)

    late = Claiming(rows(spark, ("2", 2, "x")))
    # Delta may find the claim before it writes: then it appends nothing without a word.
    with contextlib.suppress(OvertakenError):
        known.append_once(late, table, partition_by=(), application="lane", batch=2)  # type: ignore[arg-type]
    assert claims
    assert stored(known, spark, table) == [("1", 1, "x")]
    assert numbers(known, spark, table) == {"lane": 100}


def test_rows_columns_and_properties_are_replaced_together(known: TableFormat, spark: SparkSession, table: str) -> None:
    known.create(spark, table, rows(spark).schema, {"tarantool_cdc.form": "1"})
    known.append_once(rows(spark, ("1", 1, "x"), ("2", 2, "x")), table, partition_by=(), application="query", batch=0)
    before = known.state(spark, table)
    assert before is not None
    wide = spark.createDataFrame([(7, "1", 3, "1.5")], "`a.b` bigint, _key string, _seq bigint, part2 string")
    for frame in (wide, wide.where("false")):  # the second one comes too late
        known.overwrite(frame, table, once=Once("merged", 3), properties={"tarantool_cdc.form": "2"})
    after = known.state(spark, table)
    assert after is not None
    assert (after.columns, after.properties["tarantool_cdc.form"]) == (("a.b", "_key", "_seq", "part2"), "2")
    assert dict(after.transactions) == {"query": 0, "merged": 3}
    assert stored(known, spark, table) == [(7, "1", 3, "1.5")]
    # The version before is as it was.
    assert after.identity != before.identity
    earlier = known.state(spark, table, before.version)
    assert earlier is not None
    assert (earlier.columns, earlier.properties["tarantool_cdc.form"]) == (("_key", "_seq", "part"), "1")
    assert dict(earlier.transactions) == {"query": 0}
    assert stored(known, spark, table, before.version) == [("1", 1, "x"), ("2", 2, "x")]
    back, versions = after, []
    while back.previous_version is not None and back.version != before.version:
        found = known.state(spark, table, back.previous_version)
        assert found is not None
        back = found
        versions.append(back.version)
    assert before.version in versions
    # Column types may change under a name, and the table may be the frame's source.
    kept = known.read(spark, table).withColumn("part2", F.col("part2").cast("double"))
    known.overwrite(kept, table)
    assert stored(known, spark, table) == [(7, "1", 3, 1.5)]
    assert numbers(known, spark, table) == {"query": 0, "merged": 3}


def test_a_tables_history_shows_what_each_commit_tells(known: TableFormat, spark: SparkSession, table: str) -> None:
    def told() -> list[str | None]:
        """As anyone finds it in SQL, the oldest commit first."""
        if known is delta:
            found = spark.sql(f"DESCRIBE HISTORY {delta.identifier(table)}").orderBy("version")
            texts = found.select(F.get_json_object("userMetadata", "$['tarantool_cdc.seq']"))
        else:
            name = iceberg_tables.identifier(spark, table)
            texts = spark.table(f"{name}.snapshots").orderBy("committed_at").selectExpr("summary['tarantool_cdc.seq']")
        return [row[0] for row in texts.collect()]

    def once(number: int) -> Once:
        return Once("merged", number, {"tarantool_cdc.seq": str(number)})

    known.create(spark, table, rows(spark).schema, {})
    known.overwrite(rows(spark, ("1", 1, "x")), table, once=once(4))
    own, newest = spark.newSession(), rows(spark, ("1", 5, "y")).withColumn("_deleted", F.lit(False))
    known.merge_rows(own, table, newest, once(5))
    known.append_once(
        rows(spark).limit(0), table, partition_by=(), application="merged", batch=6, told={"tarantool_cdc.seq": "6"}
    )
    known.merge_rows(own, table, newest, Once("other", 1))  # what an earlier MERGE told isn't told again
    assert told() == [None, "4", "5", "6", None]


def test_newest_rows_are_merged_once(known: TableFormat, spark: SparkSession, table: str) -> None:
    known.append_once(rows(spark, ("1", 1, "x"), ("2", 2, "x")), table, partition_by=(), application="query", batch=0)
    newer = rows(spark, ("1", 5, "y"), ("2", 1, "y"), ("4", 6, "x")).withColumn("_deleted", F.lit(False))
    gone = rows(spark, ("2", 1, "x"), ("3", 5, "x"), ("4", 7, "x")).withColumn("_deleted", F.lit(True))
    own = spark.newSession()
    known.merge_rows(own, table, newer, Once("merged", 6))
    assert stored(known, spark, table) == [("1", 5, "y"), ("2", 2, "x"), ("4", 6, "x")]
    known.merge_rows(own, table, gone, Once("merged", 6))
    known.merge_rows(own, table, gone, Once("merged", 7))
    assert stored(known, spark, table) == [("1", 5, "y"), ("2", 2, "x")]
    known.delete(spark, table, "_key = '2'")
    assert stored(known, spark, table) == [("1", 5, "y")]
    assert numbers(known, spark, table) == {"query": 0, "merged": 7}


def test_versions_are_found_by_their_time(known: TableFormat, spark: SparkSession, table: str) -> None:
    known.append_once(rows(spark, ("1", 1, "x")), table, partition_by=(), application="query", batch=3)
    state = known.state(spark, table)
    assert state is not None
    assert known.state_at(spark, table, 1.0) is None
    found = known.state_at(spark, table, 4e9)
    assert found is not None
    assert found.identity == state.identity


def test_missing_rows_are_inserted_and_others_replaced_on_condition(known: TableFormat, spark: SparkSession, table: str) -> None:
    known.append_once(rows(spark, ("1", 1, "x"), ("2", 2, "x")), table, partition_by=(), application="query", batch=0)
    known.upsert(spark, table, rows(spark, ("1", 1, "y"), ("2", 2, "y"), ("2", 3, "y")), ["_key", "_seq"])
    assert stored(known, spark, table) == [("1", 1, "x"), ("2", 2, "x"), ("2", 3, "y")]
    changed = rows(spark, ("1", 1, "z"), ("2", 2, "x"), ("9", 9, "z"))
    known.upsert(spark, table, changed, ["_key", "_seq"], "stored.part <> new.part")
    assert stored(known, spark, table) == [("1", 1, "z"), ("2", 2, "x"), ("2", 3, "y"), ("9", 9, "z")]
    # The settings of that session's snapshots are those of no other table's.
    known.delete(spark, table, "_key = '9'")
    assert numbers(known, spark, table) == {"query": 0}


def test_a_merge_leaves_the_values_of_fields_that_are_called_as_its_own_columns(
    known: TableFormat, spark: SparkSession, table: str
) -> None:
    names = ("__row_operation", "__ROW_ID", "__row_from_source", "__original_row_id_x")
    wide = [rows(spark, *some) for some in ([("1", 1, "x"), ("2", 2, "x")], [("1", 5, "y"), ("3", 3, "y")])]
    first, newer = (frame.select("*", *(F.lit(7 + place).alias(name) for place, name in enumerate(names))) for frame in wide)
    known.append_once(first, table, partition_by=(), application="query", batch=0)
    own = (7, 8, 9, 10)
    before = [("1", 1, "x", *own), ("2", 2, "x", *own)]
    merges: tuple[Callable[[], None], ...] = (
        lambda: known.merge_rows(spark.newSession(), table, newer.withColumn("_deleted", F.lit(False)), Once("merged", 5)),
        lambda: known.upsert(spark, table, newer, ["_key"], "new._seq > stored._seq"),
    )
    for merge in merges:
        try:
            merge()
        except NameTakenError:
            assert stored(known, spark, table) == before
        else:
            assert stored(known, spark, table) == [("1", 5, "y", *own), ("2", 2, "x", *own), ("3", 3, "y", *own)]


def test_what_was_appended_since_a_version_is_told_until_it_is_gone(
    known: TableFormat, spark: SparkSession, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def append(batch: int) -> int:
        known.append_once(rows(spark, (str(batch), batch, "x")), table, partition_by=(), application="query", batch=batch)
        state = known.state(spark, table)
        assert state is not None
        return state.version

    def appended(after: int, up_to: int) -> list[int]:
        return sorted(row["_seq"] for row in known.appended(spark, table, after, up_to).collect())

    append(0)
    known.keep_appended(spark, table)
    versions = [append(batch) for batch in (1, 2, 3)]
    assert appended(versions[0], versions[2]) == [2, 3]
    assert appended(versions[0], versions[1]) == [2]
    options = forget_at_once(spark, known, table)
    assert run.main(["maintain", "--path", table, *options]) == 0
    assert run.main(["maintain", "--path", table, *options]) == 0
    capsys.readouterr()
    with pytest.raises((PySparkException, Py4JError)) as raised:
        appended(versions[0], append(4))
    assert known.are_gone(raised.value)
    assert not known.are_gone(ValueError("another"))


def test_a_stream_begins_with_all_rows_and_goes_on_where_it_stopped(
    known: TableFormat, spark: SparkSession, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if `maintain` has removed all earlier versions before it begins, and between two runs those that it has read."""
    checkpoint = str(tmp_path / "checkpoint")
    found: list[list[int]] = []

    def append(batch: int) -> None:
        known.append_once(rows(spark, (str(batch), batch, "x")), table, partition_by=(), application="query", batch=batch)

    def maintain() -> None:
        assert run.main(["maintain", "--path", table, *forget_at_once(spark, known, table)]) == 0
        capsys.readouterr()

    def read() -> list[list[int]]:
        found.clear()
        writer = known.stream(spark, table, checkpoint).writeStream.option("checkpointLocation", checkpoint)
        query = writer.foreachBatch(lambda frame, _: found.append(sorted(row["_seq"] for row in frame.collect())))
        query.trigger(availableNow=True).start().awaitTermination()
        return [batch for batch in found if batch]

    append(0)
    append(1)
    maintain()
    append(2)
    assert read() == [[0, 1, 2]]
    append(3)
    assert [seq for batch in read() for seq in batch] == [3]
    append(4)
    append(5)
    assert [seq for batch in read() for seq in batch] == [4, 5]
    assert read() == []


def test_tables_and_columns_have_comments(known: TableFormat, spark: SparkSession, table: str) -> None:
    """Those that a table is made with, and those that columns come with later."""

    def commented(frame: DataFrame, **comments: str) -> DataFrame:
        return frame.select(*(F.col(name).alias(name, metadata={"comment": comments.get(name, "")}) for name in frame.columns))

    def comments() -> dict[str, str | None]:
        return {field.name: field.metadata.get("comment") for field in known.read(spark, table).schema.fields}

    schema = commented(rows(spark), _key="the user's key").schema
    known.create(spark, table, schema, {"comment": "it's a table"})
    assert comments()["_key"] == "the user's key"
    found = spark.sql(f"DESCRIBE EXTENDED {IDENTIFIERS[known.NAME](spark, table)}").where("col_name = 'Comment'").collect()
    assert [row["data_type"] for row in found] == ["it's a table"]
    more = rows(spark, ("1", 1, "a")).withColumn("more", F.lit(1))
    known.overwrite(commented(more, _key="the user's key", more="counted"), table)
    assert (comments()["_key"], comments()["more"]) == ("the user's key", "counted")
