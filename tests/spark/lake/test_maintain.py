"""Task maintain, alone and beside a job that writes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import run
from spark_jobs.contract.forms import Field, Form
from spark_jobs.lake import maintain
from spark_jobs.runner.registered import Names, job_folder
from spark_jobs.tables import delta as tables
from spark_jobs.tables.location import Location
from spark_jobs.tables.places import qualified

pytestmark = pytest.mark.spark

EVENT = ("string('c') op", "'{}' vclock")


@pytest.mark.one_of_these("maintain")
def test_tables_are_compacted_and_old_files_and_events_go(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changelog, users = str(tmp_path / "changelog"), str(tmp_path / "current" / "users")
    for seq, date in enumerate(("date'2001-01-01'", "current_date()", "current_date()")):
        spark.range(1).selectExpr(f"{seq}L seq", f"{date} date", *EVENT).write.format("delta").partitionBy("date").mode(
            "append"
        ).save(changelog)
        spark.range(seq, seq + 1).write.format("delta").mode("append").save(users)
    (tmp_path / "current" / "checkpoint" / "offsets").mkdir(parents=True)
    arguments = ["maintain", "--path", str(tmp_path)]

    assert run.main([*arguments, "--dry-run", "--forget-events-after-days", "30"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"file:{changelog}: would forget 1 events older than 30 days; would optimize 3 files of {_size(spark, changelog)} bytes;"
        " would vacuum 0 files",
        f"file:{users}: would optimize 3 files of {_size(spark, users)} bytes; would vacuum 0 files",
    ]
    assert run.main([*arguments, "--vacuum-hours", "1"]) == 1
    assert "--vacuum-hours 1 is less than interval 168 hours" in capsys.readouterr().err

    tables.set_properties(spark, users, {"delta.deletedFileRetentionDuration": "interval 0 hours"})
    assert run.main(["maintain", "--path", users, "--vacuum-hours", "0"]) == 0
    assert capsys.readouterr().out.endswith("; vacuumed files older than 0 hours\n")
    assert len(list(Path(users).glob("*.parquet"))) == 1
    assert sorted(row["id"] for row in tables.read(spark, users).collect()) == [0, 1, 2]

    assert run.main([*arguments, "--forget-events-after-days", "30", "--no-vacuum"]) == 0
    assert [row["seq"] for row in tables.read(spark, changelog).orderBy("seq").collect()] == [1, 2]
    assert capsys.readouterr().out.splitlines() == [
        f"file:{changelog}: forgot 1 events older than 30 days; optimized 2 files into 1",
        f"file:{users}: nothing to do",
    ]


def test_only_tables_of_jobs_are_touched_in_a_catalog(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    spark.sql("CREATE SCHEMA kept")
    try:
        spark.sql("CREATE TABLE kept.ours (id bigint) USING delta TBLPROPERTIES ('tarantool_cdc.prefix' = 'shop')")
        spark.sql("CREATE TABLE kept.theirs (id bigint) USING delta")
        for name in ("ours_held", "theirs_held", "nobodys_held"):
            spark.sql(f"CREATE TABLE kept.{name} (id bigint) USING delta")
        spark.sql("CREATE TABLE kept.another (id bigint) USING parquet")
        # As the findings of `audit`: the job writes to a path, and the program gives the table its name.
        location = Location(schema=("spark_catalog", "kept"), prefix="shop")
        findings = f"{job_folder(spark, location, 'audit')}/findings"
        spark.range(1).write.format("delta").save(findings)
        Names(spark, location).give({"findings": findings})
        assert run.main(["maintain", "--catalog", "spark_catalog.kept", "--no-vacuum"]) == 0
        assert capsys.readouterr().out == (
            "spark_catalog.kept.ours: nothing to do\nspark_catalog.kept.ours_held: nothing to do\n"
            "spark_catalog.kept.shop_findings: nothing to do\n"
        )
    finally:
        spark.sql("DROP SCHEMA kept CASCADE")


def test_a_large_table_may_be_clustered_by_what_is_summed_up(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintain, "_LARGE_BYTES", 0)
    table = str(tmp_path / "users")
    tables.create(spark, table, spark.range(0).selectExpr("id", "id seq", "id other").schema, {}, skips_by=["seq", "id"])
    spark.range(1).selectExpr("id", "id seq", "id other").write.format("delta").mode("append").save(table)
    assert run.main(["maintain", "--path", table, "--no-vacuum"]) == 0
    _, _, advised = capsys.readouterr().out.strip().partition("and run ")
    command, _, allowed = advised.partition("(that column)")
    assert allowed == ", which must be one of seq, id"
    with pytest.raises(AnalysisException, match="other"):
        spark.sql(f"{command}(other)")
    spark.sql(f"{command}(seq)")
    # A table of `current`, which keeps it so.
    of_space = str(tmp_path / "orders")
    form = Form("it's", 512, 1, 0, ("id",), (Field("id", "unsigned"),)).to_json()
    tables.create(spark, of_space, spark.range(0).schema, {"tarantool_cdc.form": form})
    assert run.main(["maintain", "--path", of_space, "--no-vacuum"]) == 0
    assert capsys.readouterr().out.endswith(""", start `current` with --cluster-by 'it'"'"'s=FIELD'\n""")


def test_where_no_table_is_there_is_nothing_to_do(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(["maintain", "--path", str(tmp_path)]) == 1
    assert f"There are no tables in {qualified(spark, str(tmp_path))}. " in capsys.readouterr().err


@pytest.mark.one_of_these("maintain")
def test_it_runs_beside_a_query_that_merges(spark: SparkSession, tmp_path: Path) -> None:
    """Both rewrite the same files all the time, so either must do its step again."""
    files, table = tmp_path / "files", str(tmp_path / "tables" / "users")
    files.mkdir()
    batches = 6
    for number in range(batches):
        (files / f"{number}").write_text(f"{number}\n")
    first = spark.range(20).selectExpr("string(id) _key", "-1L _seq")
    first.repartition(4).write.format("delta").save(table)
    begun, maintained = threading.Event(), 0

    def merge(records: DataFrame, batch: int) -> None:
        rows = spark.range(20).selectExpr("string(id) _key", f"{batch}L _seq").join(records.limit(1)).select("_key", "_seq")

        def step() -> None:
            merge = tables.delta(spark, table).alias("stored").merge(rows.alias("new"), "stored._key = new._key")
            merge.whenMatchedUpdateAll().execute()

        tables.retried(step)
        begun.set()

    stream = spark.readStream.option("maxFilesPerTrigger", 1).text(str(files)).writeStream.foreachBatch(merge)
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert begun.wait(120)
    while query.isActive:
        assert run.main(["maintain", "--path", str(tmp_path / "tables")]) == 0
        maintained += 1
    assert query.awaitTermination(120)
    assert maintained > 0
    assert sorted((int(row["_key"]), row["_seq"]) for row in tables.read(spark, table).collect()) == [
        (key, batches - 1) for key in range(20)
    ]


def _size(spark: SparkSession, path: str) -> int:
    return int(tables.delta(spark, path).detail().collect()[0]["sizeInBytes"])


@pytest.mark.parametrize(
    "option", ["--forget-events-after-days=-1", "--vacuum-hours=-1", "--vacuum-hours=nan", "--vacuum-hours=inf"]
)
def test_an_age_that_is_none_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A negative one would forget today's events too."""
    with pytest.raises(SystemExit):
        run.main(["maintain", "--path", "nowhere", option])
    assert "0 or more" in capsys.readouterr().err
