"""What the audit's runs report at their end, and what they go on from. Which findings batches have is given here, not judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from spark_jobs.audit import sink
from spark_jobs.audit.numbers import BUCKET_BITS, BUCKET_SIZE
from spark_jobs.audit.state import Finding, State
from spark_jobs.errors import JobError
from spark_jobs.tables import delta as tables
from tests.spark.audit.auditor import Auditor

pytestmark = pytest.mark.spark


class Reporter(Auditor):
    """A sink whose batches are given as the seqs that have come and as what was found in them, with its table in memory."""

    def __init__(self, spark: SparkSession, path: Path, **options: Any) -> None:
        super().__init__(spark, path, **options)
        self.table: list[Row] = []
        self._appended: dict[str, int] = {}

    def give(self, *seqs: int, found: tuple[Finding, ...] = ()) -> None:
        """Another batch. Nothing that is missing is on its way."""

        def judge(_cached: DataFrame, state: State, _batch: int, _query: str) -> list[Finding]:
            for seq in seqs:
                state.numbers.add(seq >> BUCKET_BITS, 1 << seq % BUCKET_SIZE)
            return list(found)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(self.sink, "_judge", judge)
            self.take()

    def append_once(self, rows: DataFrame, _path: str, *, application: str, batch: int, **_: Any) -> None:
        """As `tables.append_once`."""
        if batch > self._appended.get(application, -1):
            self._appended[application] = batch
            self.table += rows.collect()

    def findings(self) -> list[Row]:
        """See `Auditor.findings`."""
        return sorted(self.table, key=lambda row: (row["kind"], row["seq"]))


@pytest.fixture
def reporter(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reporter:
    made = Reporter(spark, tmp_path)
    monkeypatch.setattr(tables, "append_once", made.append_once)
    return made


IMAGE = Finding("image", "Seq 2 isn't what it was.", seq=2)


@pytest.mark.parametrize("killed_in", [0, 1, 2])
def test_killed_at_the_end_it_leaves_its_report_to_the_next_run(
    reporter: Reporter, monkeypatch: pytest.MonkeyPatch, killed_in: int
) -> None:
    """Killed before its findings are kept, before they are in the table, or before they count as reported."""
    reporter.give(1, 3)
    assert reporter.kinds() == []
    steps = count()

    def unless_killed(step: Callable[..., None]) -> Callable[..., None]:
        def stepped(*arguments: Any) -> None:
            if next(steps) == killed_in:
                raise KeyboardInterrupt
            step(*arguments)

        return stepped

    for name in ("_save", "_publish"):
        monkeypatch.setattr(reporter.sink, name, unless_killed(getattr(reporter.sink, name)))
    with pytest.raises(KeyboardInterrupt):
        reporter.sink.finish()
    # The next run has other findings of its own.
    reporter.restart()
    reporter.give(5)
    assert reporter.sink.finish() == 1
    assert reporter.kinds() == [("gap", 2), ("gap", 4)]
    reporter.restart()
    assert reporter.sink.finish() == 0


def test_killed_behind_its_last_batch_it_reports_at_the_next_start_what_it_would_have(
    reporter: Reporter, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once: a start behind the one that has reported has nothing to report."""
    reporter.give(1, 2, 4, found=(IMAGE,))
    assert reporter.kinds() == [("image", 2)]
    for expected, told in ((1, "found 1 gap, 1 image; "), (0, "found nothing\n")):
        reporter.restart()
        capsys.readouterr()
        assert reporter.sink.finish() == expected
        assert f"audit: {told}" in capsys.readouterr().err
        assert reporter.kinds() == [("gap", 3), ("image", 2)]
    reporter.give(6)
    assert reporter.sink.finish() == 1
    assert reporter.kinds() == [("gap", 3), ("gap", 5), ("image", 2)]
    reporter.restart()
    assert reporter.sink.finish() == 0


def test_of_too_many_gaps_it_says_how_many_more_there_are(reporter: Reporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "FINDINGS_MAX", 2)
    reporter.give(1, 3, 5, 7, *range(11, 19))
    reporter.sink.finish()
    assert reporter.kinds() == [("gap", 2), ("gap", 4), ("gap", 6)]
    last = reporter.findings()[-1]
    assert (last["sentence"], last["other_seq"]) == ("Further gaps between seq 6 and 10: 2, of 4 events together.", 10)


def test_some_spaces_alone_have_no_gaps(spark: SparkSession, tmp_path: Path) -> None:
    reporter = Reporter(spark, tmp_path, spaces="users")
    reporter.give(1, 5, 9)
    assert reporter.sink.finish() == 0


def test_an_older_copy_of_the_checkpoint_or_of_the_state_is_refused(reporter: Reporter) -> None:
    for seq in (1, 2):
        reporter.give(seq)
        reporter.restart()
    reporter.batch = -1
    with pytest.raises(JobError, match="is that after batch 1, and the checkpoint goes on with batch 0"):
        reporter.give(3)
    reporter.batch = 2
    with pytest.raises(JobError, match="is that after batch 1, and the checkpoint goes on with batch 3"):
        reporter.give(4)


def test_a_state_of_another_version_is_refused(reporter: Reporter) -> None:
    reporter.give(1)
    (kept,) = (reporter.path / "state").glob("query.*")
    members = json.loads(kept.read_text())
    state = json.loads(members["state"])
    del state["told_up_to"]
    kept.write_text(json.dumps({**members, "state": json.dumps(state)}))
    (kept.parent / f".{kept.name}.crc").unlink(missing_ok=True)  # otherwise the file is damaged, not of another version
    reporter.restart()
    with pytest.raises(JobError, match=r"doesn't know \('told_up_to' is missing\).*new --path and an empty --checkpoint"):
        reporter.give(2)
