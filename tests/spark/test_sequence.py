"""`spark_jobs.sequence`: several commands one after another in one Spark session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs import sequence
from spark_jobs.contract.source import Topics
from tests.spark.messages import FakeTopics, delete, put, schema
from tests.spark.sinks import current_sink

pytestmark = pytest.mark.spark


def test_the_first_that_fails_ends_the_sequence(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, missing = str(tmp_path / "users"), str(tmp_path / "missing")
    topics = FakeTopics(spark)
    row = {"id": 1, "name": "a"}
    topics.took(records := topics.send(schema(6), put("c", row, 7), put("c", {"id": 2}, 8), delete(2, 9)))
    current_sink(spark, Topics("nowhere:9092", "shop"), str(tmp_path), topics).write(records, 0, "query")
    assert sequence.main(["show", path, "then", "show", missing, "then", "show", path]) == 1
    shown = capsys.readouterr()
    row, done = map(json.loads, shown.out.splitlines())
    assert row == {"path": path, "key": {"id": 1}, "row": {"id": 1, "name": "a"}, "seq": 7}
    assert done["command"] == "show"
    assert done["seconds"] > 0
    assert shown.err.startswith("show: ")


def test_each_command_has_its_own_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        sequence.main(["unknown", "then", "show"])
    assert "unknown" in capsys.readouterr().err
