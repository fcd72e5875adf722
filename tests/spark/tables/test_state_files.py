"""What a sink remembers in files: the last whole one counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from spark_jobs.tables.state_files import StateFiles, read_whole, write_whole

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
    # An earlier version was ended while it wrote.
    (folder / "query.000000000011").write_text('{"te')
    assert next(StateFiles(spark, str(folder)).read("query")) == (10, '{"text":"ä10"}')
    (folder / "query.000000000011").write_text("")
    assert next(StateFiles(spark, str(folder)).read("query")) == (10, '{"text":"ä10"}')


def test_what_was_there_stays_until_all_is_written(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(str(tmp_path / "state" / "query.1"))
    write_whole(spark, path, '{"a":1}')
    with monkeypatch.context() as broken:
        # A full disk fails while bytes are written or at the end; here Java gets no bytes.
        broken.setattr("spark_jobs.tables.state_files.bytearray", lambda _: None, raising=False)
        with pytest.raises(Py4JJavaError):
            write_whole(spark, path, '{"a":2}')
    assert read_whole(spark, path) == '{"a":1}'
    write_whole(spark, path, '{"a":3}')
    assert read_whole(spark, path) == '{"a":3}'
    assert {file.name for file in (tmp_path / "state").iterdir()} <= {"query.1", ".query.1.crc"}
