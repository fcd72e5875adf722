"""`spark_jobs.show` makes its session as the jobs do."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from spark_jobs import show
from spark_jobs.current import read_current
from spark_jobs.errors import JobError
from spark_jobs.lake.control import ControlTable
from spark_jobs.tables import delta as tables
from spark_jobs.tables.places import qualified
from tests.spark.messages import schema


def test_its_session_is_told_where_the_tables_are(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("THE_SECRET", "s3cret")
    asked: list[dict[str, Any]] = []

    def build_session(_: str, **given: Any) -> None:
        asked.append(given)
        raise JobError("no Spark here")

    monkeypatch.setattr(show, "build_session", build_session)
    given = ["--master", "local[1]", "--jars-dir", "jars", "--spark-conf", "spark.hadoop.fs.s3a.secret.key=$THE_SECRET"]
    assert show.main(["s3a://bucket/current/users", *given]) == 1
    assert asked == [
        {
            "master": "local[1]",
            "jars_directory": "jars",
            "settings": {"spark.hadoop.fs.s3a.secret.key": "s3cret"},
            "table_format": "delta",
        },
    ]
    assert "no Spark here" in capsys.readouterr().err


def test_what_java_ends_with_is_said_in_a_sentence_without_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("THE_SECRET", "s3cret")

    def build_session(*_: str, **__: Any) -> None:
        raise Py4JError("ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found, s3cret")

    monkeypatch.setattr(show, "build_session", build_session)
    assert show.main(["s3a://bucket/current/users", "--spark-conf", "spark.hadoop.fs.s3a.secret.key=$THE_SECRET"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("show: Spark has no file system of this kind.")
    assert "s3cret" not in said


def test_what_it_prints_is_json_wherever_the_table_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Rows:
        def select(self, *_: str) -> Rows:
            return self

        def toLocalIterator(self) -> list[dict[str, Any]]:  # noqa: N802 - Spark's
            return [{"_key": '{"id":1}', "_row": '{"id":1}', "_seq": 5}]

    rows = SimpleNamespace(rows=Rows)
    monkeypatch.setattr(show, "build_session", lambda *_, **__: None)
    monkeypatch.setattr(show, "table_at", lambda _, path: path)
    monkeypatch.setattr(
        "spark_jobs.lake.lake.Lake.of_table", lambda *_: (SimpleNamespace(place="lake", space_rows=lambda *_: rows), "users")
    )
    assert show.main(['a"b\\c/users']) == 0
    assert json.loads(capsys.readouterr().out) == {"path": 'a"b\\c/users', "key": {"id": 1}, "row": {"id": 1}, "seq": 5}


def test_a_place_without_any_table_is_named_with_what_is_to_be_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=rf"^There is no table {tmp_path}/lake/users, .* Name one as <--path>/<space>"):
        read_current(spark, f"{tmp_path}/lake/users")


@pytest.mark.parametrize(
    ("count", "which"),
    [
        (2, "The folders of spaces there are: a~2f00, a~2f01."),
        (11, f"The first 10 of the 11 folders of spaces there are: {', '.join(f'a~2f{number:02}' for number in range(10))}."),
    ],
)
def test_the_spaces_that_are_there_are_named_where_one_is_not(
    spark: SparkSession, tmp_path: Path, count: int, which: str
) -> None:
    path = qualified(spark, str(tmp_path))
    spark.range(1).write.format("delta").save(f"{path}/_changes")
    told = [schema(0, space=f"a/{number:02}", space_id=600 + number).value for number in range(count)]
    ControlTable(spark, f"{path}/_changes", tables).write([("schema", place, str(text)) for place, text in enumerate(told)])
    with pytest.raises(JobError) as raised:
        read_current(spark, f"{path}/nosuch")
    assert str(raised.value).endswith(f"have no such space. {which}")
