"""Which job, daemon and tables a Spark checkpoint belongs to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.errors import JobError
from spark_jobs.runner.checkpoint import claim

pytestmark = pytest.mark.spark


def test_a_checkpoint_is_one_jobs_for_one_place(spark: SparkSession, tmp_path: Path) -> None:
    owner = {"job": "changelog", "prefix": "shop", "place": "file:/lake/changelog"}
    path = str(tmp_path / "checkpoint")
    for _ in range(2):
        claim(spark, path, owner)
    for name, value in (("job", "current"), ("prefix", "market"), ("place", "file:/elsewhere")):
        with pytest.raises(JobError, match=f"belongs to {name} '.*', not to {name} '{value}'.*Choose another --checkpoint"):
            claim(spark, path, owner | {name: value})


def test_a_claim_that_was_cut_off_is_made_again(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "tarantool_cdc.json"
    for left in ("", '{"job": "chan'):
        file.write_text(left)
        claim(spark, str(tmp_path), {"job": "changelog"})
        assert json.loads(file.read_text()) == {"job": "changelog"}
