"""Events and `maintain` with Iceberg tables. Each job's own tests on Delta hold for them, too (tables/test_contract.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession

from cdc.local.rest_catalog import RestCatalog
from cdc.local.servers import local_servers
from spark_jobs import run, show
from spark_jobs.contract.source import Topics
from spark_jobs.current import read_current, watermark
from spark_jobs.errors import JobError
from spark_jobs.history.job import rows_as_of
from spark_jobs.lake.changes import CHANGES_OF_READERS, ChangesSink
from spark_jobs.lake.control import ControlTable
from spark_jobs.lake.fresh_views import FreshViews
from spark_jobs.lake.lake import Lake
from spark_jobs.materialize.job import MaterializeSink
from spark_jobs.tables import iceberg, iceberg_tables
from spark_jobs.tables.codegen import interpreting
from spark_jobs.tables.location import Location
from spark_jobs.tables.places import CatalogTable, beside, qualified
from tests.spark.messages import FakeTopics, Message, delete, put, schema, update
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
    assert iceberg_tables.load(spark, users).currentSnapshot().summary()["tarantool_cdc.seq"] == "9"


@pytest.mark.one_of_these("Iceberg")
def test_a_table_that_is_put_back_has_the_form_of_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Iceberg puts back neither a table's properties nor its columns."""
    topics, path = FakeTopics(spark), qualified(spark, str(tmp_path / "lake"))
    users = f"{path}/users"

    def process(batch: int, *messages: Message) -> None:
        records = topics.send(*messages)
        topics.took(records)
        current_sink(spark, TOPICS, path, topics, table_format=iceberg, share=0.2, min_unmerged=1).write(records, batch, "query")

    def shown() -> dict[str, Any]:
        return {row["_key"]: (row["_row"], row["size"]) for row in read_current(spark, users).collect()}

    process(0, schema(0, columns=(("id", "unsigned"), ("count", "unsigned"))), put("c", {"id": 1, "count": 5}, 1))
    first = iceberg_tables.load(spark, users).currentSnapshot().snapshotId()
    renamed = schema(2, version=2, columns=(("id", "unsigned"), ("size", "unsigned")))
    process(1, renamed, put("c", {"id": 2, "size": 6}, 3, version=2))
    expected = {'{"id":1}': ('{"id":1,"size":5}', 5), '{"id":2}': ('{"id":2,"size":6}', 6)}
    assert shown() == expected
    iceberg_tables.load(spark, users).manageSnapshots().rollbackTo(first).commit()
    assert shown() == expected
    process(2, put("c", {"id": 3, "size": 7}, 4, version=2))
    assert shown() == {**expected, '{"id":3}': ('{"id":3,"size":7}', 7)}
    assert iceberg.read(spark, users).where("size is null").isEmpty()


@pytest.fixture
def rest_catalog(tmp_path: Path) -> Iterator[RestCatalog]:
    """A REST catalog without tables."""
    with local_servers(tmp_path / "servers") as started:
        yield started.start_rest_catalog()


@pytest.fixture(params=["jdbc", pytest.param("rest", marks=pytest.mark.soak)])
def a_schema(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[str, str]:
    """A schema of a catalog."""
    name_of_catalog = f"{request.param}_{uuid4().hex}"
    catalog = f"spark.sql.catalog.{name_of_catalog}"
    if request.param == "jdbc":
        place = {"uri": f"jdbc:sqlite:{tmp_path}/catalog", "warehouse": f"file:{tmp_path}/warehouse"}
        settings = {**place, "jdbc.schema-version": "V1"}
    else:
        settings = {"uri": request.getfixturevalue("rest_catalog").url}
    # A command gets them by --spark-conf, for all of its sessions.
    for session in (spark, interpreting(spark)):
        session.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
        for name, value in {**settings, "type": request.param}.items():
            session.conf.set(f"{catalog}.{name}", value)
    spark.sql(f"CREATE NAMESPACE {name_of_catalog}.cdc")
    return name_of_catalog, "cdc"


@pytest.mark.one_of_these("Iceberg")
def test_events_in_a_catalog(spark: SparkSession, a_schema: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    topics, location = FakeTopics(spark), Location(schema=a_schema, prefix="shop", format=iceberg)
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
    assert run.main(["maintain", "--catalog", ".".join(a_schema), "--table-format", "iceberg"]) == 0
    names = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert names == [str(table), f"{table}_control"]


@pytest.mark.one_of_these("Iceberg", seconds=40)
def test_current_in_a_catalog(spark: SparkSession, a_schema: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each table has its name there, also those that the job keeps for itself, and readers need no more than a name."""
    topics, location = FakeTopics(spark), Location(schema=a_schema, prefix="shop", format=iceberg)
    schema_name = ".".join(a_schema)
    own: dict[str, Any] = {"space": "_changes", "space_id": 513}

    def process(batch: int, *messages: Message) -> None:
        records = topics.send(*messages)
        topics.took(records)
        views = FreshViews.at(spark, location)
        assert views is not None
        current_sink(spark, TOPICS, location, topics, share=10, min_unmerged=1, views=views).write(records, batch, "query")

    def balances(rows: DataFrame) -> dict[str, int]:
        return {row["_key"]: int(row["balance"]) for row in rows.collect()}

    with pytest.raises(JobError, match="has no such table yet"):
        watermark(spark, schema_name)
    first = [schema(0), schema(0, **own), *(put("c", {"id": key, "balance": key}, key) for key in range(1, 6))]
    process(0, *first, put("c", {"id": 7, "balance": 7}, 6, **own))
    process(1, put("u", {"id": 1, "balance": 20}, 7), delete(2, 8))
    tables = {row["tableName"] for row in spark.sql(f"SHOW TABLES IN {schema_name}").collect()}
    own_table = location.of("_changes", ("_changes",))
    assert tables == {
        *("shop__changes", "shop__changes_control", "shop__changes_forgotten", "shop__watermark", "shop_users"),
        str(own_table).rpartition(".")[2],
    }
    expected = {'{"id":1}': 20, '{"id":3}': 3, '{"id":4}': 4, '{"id":5}': 5}
    users = f"{schema_name}.shop_users"
    view = f"SELECT _key, balance FROM {users}_fresh"  # noqa: S608 - the test's own name
    assert watermark(spark, schema_name) == watermark(spark, schema_name, "shop") == 8
    assert balances(read_current(spark, users)) == balances(read_current(spark, users, "watermark")) == expected
    assert balances(read_current(spark, users, 6)) == {f'{{"id":{key}}}': key for key in range(1, 6)}
    assert balances(read_current(spark, str(own_table), 6)) == {'{"id":7}': 7}
    assert balances(spark.sql(view)) == expected
    # The view adds what isn't merged yet, also after it was made.
    merged = balances(iceberg.read(spark, location.of("users")))
    records = topics.send(put("u", {"id": 3, "balance": 30}, 9))
    appending = ChangesSink(spark, TOPICS, location.inner("_changes"), topics, layout=CHANGES_OF_READERS, table_format=iceberg)
    appending.write(records, 2, "query")
    expected['{"id":3}'] = 30
    assert balances(iceberg.read(spark, location.of("users"))) == merged != expected
    assert balances(spark.sql(view)) == expected
    assert show.main([users]) == 0
    assert '"key":{"id":3},"row":{"id":3,"balance":30},"seq":9' in capsys.readouterr().out
    with pytest.raises(JobError, match="isn't the table of a space"):
        read_current(spark, f"{schema_name}.shop__watermark")
    with pytest.raises(JobError, match=r"has no such table of the prefix 'shop\.eu' yet"):
        watermark(spark, schema_name, "shop.eu")
    # Merged events go once no kept version needs them.
    for name in tables:
        iceberg.set_properties(spark, CatalogTable((*a_schema, name)), {KEPT: "0"})
    assert run.main(["maintain", "--catalog", schema_name, "--table-format", "iceberg", "--vacuum-hours", "0"]) == 0
    assert f"{schema_name}.shop__changes: forgot" in capsys.readouterr().out
    process(3, put("u", {"id": 4, "balance": 40}, 10))
    expected['{"id":4}'] = 40
    assert balances(read_current(spark, users)) == balances(spark.sql(view)) == expected


@pytest.mark.one_of_these("Iceberg", seconds=40)
def test_history_audit_and_whole_events_in_a_catalog(
    spark: SparkSession, tmp_path: Path, a_schema: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    topics, location = FakeTopics(spark), Location(schema=a_schema, prefix="shop", format=iceberg)
    schema_name, checkpoint = ".".join(a_schema), str(tmp_path / "checkpoint")
    whole = location.only("materialize")
    assert isinstance(whole, CatalogTable)
    sink = MaterializeSink(spark, TOPICS, location, state_path=str(tmp_path / "order"), read_topic=topics.read)
    options = ["--catalog", schema_name, "--table-format", "iceberg"]
    history = ["history_of", "--changes", str(whole), *options, "--table-template", "{prefix}_{table}_history"]
    change = [{"op": "+", "field": "balance", "value": 2}]
    row = {"id": 1, "balance": 1, **NAMED}
    for batch, messages in enumerate(([schema(0, columns=COLUMNS), put("c", row, 1)], [update(1, change, 2)])):
        sink.write(topics.send(*messages), batch, "query")
        # The snapshots before the table's present one have expired: a reader that begins now gets their rows, too.
        if batch == 0:
            for name in ("", "_control", "_rows"):
                iceberg.set_properties(spark, beside(whole, name), {KEPT: "0"})
            assert run.main(["maintain", *options, "--vacuum-hours", "0", "--no-optimize"]) == 0
        assert run.main([*history, "--checkpoint", checkpoint]) == 0
    names = [row["tableName"] for row in spark.sql(f"SHOW TABLES IN {schema_name}").collect()]
    assert sorted(names) == sorted(
        [
            *("shop__versions_history", "shop_users_history"),
            *("shop_materialize", "shop_materialize_control", "shop_materialize_rows"),
        ]
    )
    rows = iceberg.read(spark, CatalogTable((*a_schema, "shop_users_history"))).orderBy("_begin_seq").collect()
    assert [(row["_begin_seq"], row["_end_seq"], int(row["balance"])) for row in rows] == [(1, 2, 1), (2, None, 3)]
    assert [int(value) for value in rows[1][-len(RESERVED) :]] == list(NAMED.values())
    assert [int(found["balance"]) for found in rows_as_of(spark, schema_name, "users", seq=1).collect()] == [1]
    capsys.readouterr()
    assert run.main(["show_history", *options, "--space", "users", "--as-of-seq", "2"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"key": {"id": 1}, "row": {**row, "balance": 3}, "begin_seq": 2, "end_seq": None}
    audit = ["audit", "--changes", str(whole), *options, "--checkpoint", str(tmp_path / "audited"), "--available-now"]
    assert run.main([*audit, "--grace-seconds", "0"]) == 0
    sink.write(topics.send(put("c", {"id": 2, "balance": 5}, 4)), 2, "query")
    assert run.main([*audit, "--grace-seconds", "0"]) == 1
    findings = iceberg.read(spark, location.of("findings")).collect()
    assert [(row["kind"], row["seq"]) for row in findings] == [("gap", 3)]
