"""What a sink remembers in files: the last whole one counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.state_files import StateFiles

pytestmark = pytest.mark.spark


def test_the_last_whole_file_counts(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    files = StateFiles(spark, str(folder))
    assert list(files.read("query")) == []
    for batch in range(9, 12):
        files.write("query", batch, f'{{"text":"ä{batch}"}}')
        files.write("other", batch, "{}")
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith("query")) == [
        "query.000000000010",
        "query.000000000011",
    ]
    assert next(files.read("query")) == (11, '{"text":"ä11"}')
    # The process ended while it was being written.
    (folder / "query.000000000011").write_text('{"te')
    assert next(StateFiles(spark, str(folder)).read("query")) == (10, '{"text":"ä10"}')
