"""The options of the job search_index."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs import run
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from spark_jobs.feeds.bulk import Place
from spark_jobs.feeds.index_sink import Actions, Change, Plan, Report, Target

REQUIRED = ["--bootstrap-servers", "k:9092", "--prefix", "shop", "--checkpoint", "c", "--to", "https://s:9200"]


def test_a_password_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2\n")
    options = run.parse_options("search_index", [*REQUIRED, "--password", f"@{tmp_path / 'password'}"])
    assert options.password == "hunter2"
    assert "hunter2" not in repr(options)


@pytest.mark.spark
def test_what_is_wrong_is_told_before_the_first_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = tmp_path / "body.json"

    def start(*arguments: str) -> None:
        job = run.JOBS["search_index"]
        job.sink(spark, Topics("k", "shop"), run.parse_options("search_index", [*REQUIRED, *arguments]))

    for name in ("nothing", "nowhere:f", "json:nothing", "json:__doc__"):
        with pytest.raises(JobError, match=f"--document {name}"):
            start("--document", name)
    for text in ("[1]", "no JSON", '{"mapping":{}}'):
        body.write_text(text)
        with pytest.raises(JobError, match="--index-body"):
            start("--index-body", str(body))
    monkeypatch.setitem(sys.modules, "spark_jobs.feeds.opensearch", None)
    with pytest.raises(JobError, match=r"needs opensearch-py.*pip install"):
        start()


def test_what_a_function_says_of_a_row_is_in_no_message() -> None:
    def failing(row: dict[str, Any], _: Change) -> dict[str, Any]:
        return {"number": int(row["name"])}

    changes: Any = [("c", '{"id":1}', '{"id":1,"name":"secret"}', "users", 512, 1, 1, False, "shop.users", 0, 7)]
    plan = Plan({512: Target("i", -1, 1, {})}, frozenset({(512, 1)}))
    for function, fault in (
        (failing, "ValueError in failing, test_search_index.py line "),
        (lambda *_: "secret", "None, not str"),
    ):
        report = Report()
        assert list(Actions(changes, plan, function, report, 0)) == []
        ((place, sentence),) = report.refused
        assert place == Place("shop.users", 0, 7)
        assert fault in sentence
        assert "secret" not in sentence
