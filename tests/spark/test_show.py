"""`spark_jobs.show` makes its session as the jobs do."""

from __future__ import annotations

from typing import Any

import pytest

from spark_jobs import show
from spark_jobs.errors import JobError


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
        {"master": "local[1]", "jars_directory": "jars", "settings": {"spark.hadoop.fs.s3a.secret.key": "s3cret"}},
    ]
    assert "no Spark here" in capsys.readouterr().err
