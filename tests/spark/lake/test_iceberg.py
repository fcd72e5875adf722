"""Events and `maintain` with Iceberg tables. Each job's own tests on Delta hold for them, too (tables/test_contract.py)."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from spark_jobs import run
from spark_jobs.contract.source import Topics
from spark_jobs.current import read_current, watermark
from spark_jobs.errors import JobError
from spark_jobs.lake.changes import ChangesSink
from spark_jobs.lake.control import ControlTable
from spark_jobs.lake.lake import Lake
from spark_jobs.tables import iceberg, iceberg_tables
from spark_jobs.tables.codegen import interpreting
from spark_jobs.tables.location import Location
from spark_jobs.tables.places import qualified
from tests.spark.messages import FakeTopics, Message, delete, put, schema
from tests.spark.sinks import current_sink

pytestmark = pytest.mark.spark

TOPICS = Topics("nowhere:9092", "shop")
# Names that Iceberg, or Spark's MERGE, uses itself.
RESERVED = (
    *("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number", "_change_type"),
    *("_change_ordinal", "_commit_snapshot_id", "__row_operation", "__row_id", "file_path", "pos", "a.b"),
)
COLUMNS = (("id", "unsigned"), ("balance", "unsigned"), *((name, "unsigned") for name in RESERVED))
NAMED = {name: number for number, name in enumerate(RESERVED)}
KEPT = "history.expire.max-snapshot-age-ms"


def files(path: Path) -> int:
    return len(list((path / "data").glob("**/*.parquet")))


@pytest.mark.one_of_these("Iceberg")
def test_maintain_removes_what_no_version_needs_and_nothing_else(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topics, path = FakeTopics(spark), qualified(spark, str(tmp_path / "lake"))
    users, changes = f"{path}/users", f"{path}/_changes"

    def process(batch: int, *messages: Message) -> None:
        records = topics.send(*messages)
        topics.took(records)
        sink = current_sink(spark, TOPICS, path, topics, table_format=iceberg, share=0.2, min_unmerged=1)
        sink.write(records, batch, "query")

    def balances(as_of: int | None = None) -> dict[str, int]:
        return {row["_key"]: int(row["balance"]) for row in read_current(spark, users, as_of).collect()}

    process(0, schema(0, columns=COLUMNS), *(put("c", {"id": key, "balance": 1}, key) for key in range(1, 6)))
    process(1, put("u", {"id": 1, "balance": 2}, 6), delete(2, 7), put("c", {"id": 9, "balance": 9, **NAMED}, 8))
    expected = {'{"id":1}': 2, '{"id":3}': 1, '{"id":4}': 1, '{"id":5}': 1, '{"id":9}': 9}
    assert (balances(), balances(watermark(spark, path))) == (expected, expected)
    assert balances(5) == dict.fromkeys((f'{{"id":{key}}}' for key in range(1, 6)), 1)
    (nine,) = iceberg.read(spark, users).where("id = 9").collect()
    assert [int(value) for value in nine[-len(RESERVED) :]] == list(NAMED.values())
    # What a process left that was killed before its commit.
    iceberg._stage(iceberg_tables.load(spark, users), iceberg.read(spark, users), gets_columns=False)

    arguments = ["maintain", "--path", path, "--table-format", "iceberg"]
    assert run.main([*arguments, "--vacuum-hours", "1"]) == 1
    assert "is less than 120 hours, for which" in capsys.readouterr().err
    assert run.main([*arguments, "--dry-run"]) == 0
    assert f"{users}: would optimize 2 files" in capsys.readouterr().out
    before = files(tmp_path / "lake" / "users")
    for table in (users, changes, f"{changes}/_control", f"{path}/_watermark"):
        iceberg.set_properties(spark, table, {KEPT: "0"})
    iceberg.set_properties(spark, f"{changes}/_control", {KEPT: "0"})
    Lake.at(spark, path).forgotten_table.create()  # type: ignore[union-attr]
    iceberg.set_properties(spark, f"{changes}/_forgotten", {KEPT: "0"})
    assert run.main([*arguments, "--vacuum-hours", "0"]) == 0
    said = capsys.readouterr().out
    assert f"{users}: rewrote 2 files into 1; expired snapshots and removed files older than 0 hours" in said
    assert f"{changes}: forgot 8 events" in said
    assert (before, files(tmp_path / "lake" / "users"), files(tmp_path / "lake" / "_changes")) == (4, 1, 0)
    # All that the job needs is there: its numbers, its properties, and the next batch once.
    assert balances() == expected
    process(1, put("u", {"id": 1, "balance": 2}, 6), delete(2, 7), put("c", {"id": 9, "balance": 9}, 8))
    process(2, put("u", {"id": 3, "balance": 7}, 9))
    assert balances() == {**expected, '{"id":3}': 7}
    assert Lake.at(spark, path).table("users").merged == 9


@pytest.fixture
def schema_in_sqlite(spark: SparkSession, tmp_path: Path) -> tuple[str, str]:
    """A schema of a JDBC catalog."""
    name_of_catalog = f"in_sqlite_{uuid4().hex}"
    catalog = f"spark.sql.catalog.{name_of_catalog}"
    settings = {"type": "jdbc", "uri": f"jdbc:sqlite:{tmp_path}/catalog", "warehouse": f"file:{tmp_path}/warehouse"}
    # A command gets them by --spark-conf, for all of its sessions.
    for session in (spark, interpreting(spark)):
        session.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
        for name, value in {**settings, "jdbc.schema-version": "V1"}.items():
            session.conf.set(f"{catalog}.{name}", value)
    spark.sql(f"CREATE NAMESPACE {name_of_catalog}.cdc")
    return name_of_catalog, "cdc"


@pytest.mark.one_of_these("Iceberg")
def test_events_in_a_catalog(spark: SparkSession, schema_in_sqlite: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    topics, location = FakeTopics(spark), Location(schema=schema_in_sqlite, prefix="shop", format=iceberg)
    table = location.only("changes")
    records = topics.send(schema(0), *(put("c", {"id": key}, key) for key in range(1, 6)))
    topics.took(records)
    for batch in (0, 0):
        ChangesSink(spark, TOPICS, table, topics, table_format=iceberg).write(records, batch, "query")
    late = ChangesSink(spark, TOPICS, table, topics, table_format=iceberg)
    late.write(topics.send(put("c", {"id": 6}, 6)), 1, "query")
    # Another checkpoint begins from the beginning: it takes the table over, and writes no event again.
    ChangesSink(spark, TOPICS, table, topics, table_format=iceberg).write(topics.read("shop.users"), 0, "another")
    with pytest.raises(JobError, match="Another job, or this job with another --checkpoint, has begun to write"):
        late.write(topics.send(put("c", {"id": 7}, 7)), 2, "query")
    assert sorted(row["seq"] for row in iceberg.read(spark, table).collect()) == [1, 2, 3, 4, 5, 6]
    assert ControlTable(spark, table, iceberg).read().forms.names() == {"users"}
    assert run.main(["maintain", "--catalog", ".".join(schema_in_sqlite), "--table-format", "iceberg"]) == 0
    names = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert names == [str(table), f"{table}_control"]
