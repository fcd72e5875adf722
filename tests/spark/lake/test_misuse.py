"""Tables, options and jobs that change: nothing is lost, doubled or begun anew without a sentence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs import run
from spark_jobs.contract.source import Topics
from spark_jobs.current import read_current
from spark_jobs.current.job import CurrentSink
from spark_jobs.errors import JobError
from spark_jobs.lake.changes import ChangesSink
from spark_jobs.lake.forgotten import ForgottenTable
from spark_jobs.tables import delta as tables
from tests.spark.messages import FakeTopics, put, schema
from tests.spark.sinks import current_sink

pytestmark = pytest.mark.spark

TOPICS = Topics("nowhere:9092", "shop")


def seqs(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row["seq"] for row in tables.read(spark, str(path)).select("seq").collect())


def puts(first: int, last: int) -> list[Any]:
    return [put("c", {"id": number, "name": "a", "balance": number}, number) for number in range(first, last + 1)]


@pytest.mark.one_of_these
@pytest.mark.parametrize("step", ["append_once", "set_properties"])
def test_a_query_that_is_taken_over_in_the_middle_of_a_step_writes_nothing_more(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Between the older query's check and its append, and between the newer one's look at the table and its claim."""
    topics = FakeTopics(spark)
    first, second = topics.send(schema(0), *puts(1, 5)), topics.send(*puts(6, 10))
    everything = topics.read("shop.users")
    older, newer = (ChangesSink(spark, TOPICS, str(tmp_path), topics) for _ in range(2))
    older.write(first, 0, "older")
    real: Callable[..., Any] = getattr(tables, step)
    errors: list[str] = []

    def write(sink: ChangesSink, *arguments: Any) -> None:
        try:
            sink.write(*arguments)
        except JobError as error:
            errors.append(str(error))

    def between(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(tables, step, real)
        if step == "append_once":
            write(newer, everything, 0, "newer")
        else:
            write(older, second, 1, "older")
        return real(*arguments, **options)

    monkeypatch.setattr(tables, step, between)
    if step == "append_once":
        write(older, second, 1, "older")
    else:
        write(newer, everything, 0, "newer")
    third = topics.send(*puts(11, 12))
    write(older, third, 2, "older")
    assert len(errors) >= 1
    assert all("has begun to write events to the table" in error for error in errors)
    write(newer, third, 1, "newer")
    assert seqs(spark, tmp_path) == list(range(1, 13))


@pytest.mark.one_of_these("tables that are not as they were")
def test_queries_for_the_same_events_do_not_share_a_table_however_their_spaces_are_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    topics = FakeTopics(spark)
    older = ChangesSink(spark, TOPICS, str(tmp_path), topics)
    newer = ChangesSink(spark, Topics("nowhere:9092", "shop", spaces="users|orders"), str(tmp_path), topics)
    apart = ChangesSink(spark, Topics("nowhere:9092", "shop", spaces="carts"), str(tmp_path), topics)
    older.write(topics.send(schema(0), *puts(1, 3)), 0, "older")
    newer.write(topics.read("shop.users"), 0, "newer")
    apart.write(topics.send(put("c", {"id": 1}, 4, space="carts", space_id=513)), 0, "apart")
    more = topics.send(*puts(5, 6))
    newer.write(more, 1, "newer")
    with pytest.raises(JobError, match="Run only one of the two"):
        older.write(more, 1, "older")
    # What was appended once isn't again, by whichever process of the query.
    ChangesSink(spark, Topics("nowhere:9092", "shop", spaces="users|orders"), str(tmp_path), topics).write(more, 1, "newer")
    assert seqs(spark, tmp_path) == list(range(1, 7))


@pytest.mark.one_of_these("tables that are not as they were")
def test_a_space_that_is_read_later_is_merged_when_all_its_events_have_been_read(spark: SparkSession, tmp_path: Path) -> None:
    topics, path = FakeTopics(spark), str(tmp_path / "lake")
    orders = [put("c", {"id": number}, number, space="orders", space_id=513) for number in range(1, 13)]
    forms = [schema(0), schema(0, space="orders", space_id=513)]
    hidden = {("shop.orders", partition) for partition in (0, 1)}

    class Seen(FakeTopics):
        """Topics of which the job doesn't see one at first."""

        is_wide = False

        def ends(self, kinds: Any = ()) -> Any:
            found = super().ends(kinds)
            return found if self.is_wide else {place: end for place, end in found.items() if place not in hidden}

        def read_up_to(self, batch: int) -> Any:
            found = super().read_up_to(batch)
            return found if self.is_wide else {place: end for place, end in found.items() if place not in hidden}

    topics = Seen(spark)

    def process(batch: int, records: Any, spaces: str) -> CurrentSink:
        topics.took(records)
        sink = current_sink(spark, Topics("nowhere:9092", "shop", spaces=spaces), path, topics, share=0.0, min_unmerged=1)
        sink.write(records, batch, "query")
        return sink

    users = topics.send(*forms, put("c", {"id": 1}, 13))
    topics.send(*orders)
    process(0, users, "users").finish()
    topics.is_wide = True
    places = {place: len(log) for place, log in topics.messages.items() if place in hidden}
    half = topics.slice({place: (0, end // 2) for place, end in places.items()})
    rest = topics.slice({place: (end // 2, end) for place, end in places.items()})
    process(1, half, "users|orders")
    with pytest.raises(JobError, match="has begun to read the space 'orders' after others"):
        read_current(spark, f"{path}/orders", "watermark")
    process(2, rest, "users|orders").finish()  # another process: the first one may have been killed
    for found in (read_current(spark, f"{path}/orders"), read_current(spark, f"{path}/orders", "watermark")):
        assert found.count() == 12
    assert tables.read(spark, f"{path}/orders").count() == 12


def _version(spark: SparkSession, table: str) -> int:
    """A Delta table's present version."""
    state = tables.state(spark, table)
    assert state is not None
    return state.version


def _process(spark: SparkSession, topics: FakeTopics, path: str, batch: int, *messages: Any) -> None:
    """Let a new job process a batch, merge all of it, and end."""
    records = topics.send(*messages)
    topics.took(records)
    sink = current_sink(spark, TOPICS, path, topics, share=0.0, min_unmerged=1)
    sink.write(records, batch, "query")
    sink.finish()


@pytest.mark.one_of_these("tables that are not as they were")
def test_a_table_that_is_gone_is_made_again_only_from_all_its_events(spark: SparkSession, tmp_path: Path) -> None:
    topics, path = FakeTopics(spark), str(tmp_path)

    process = partial(_process, spark, topics, path)
    process(0, schema(0), *puts(1, 5))
    shutil.rmtree(f"{path}/users")
    process(1, *puts(6, 7))
    assert tables.read(spark, f"{path}/users").count() == 7
    ForgottenTable(spark, f"{path}/_changes", tables).record({"users": 4})
    shutil.rmtree(f"{path}/users")
    with pytest.raises(JobError, match="is gone, and can't be made again: `maintain` has removed its merged events up to seq 4"):
        process(2, *puts(8, 8))
    shutil.rmtree(f"{path}/_changes")
    with pytest.raises(JobError, match="_changes is gone, but earlier batches"):
        current_sink(spark, TOPICS, path, topics).finish()


@pytest.mark.one_of_these("tables that are not as they were")
def test_an_older_copy_of_the_checkpoint_or_of_the_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    topics, path = FakeTopics(spark), tmp_path / "lake"

    def write(batch: int, records: Any, query: str = "query") -> None:
        ChangesSink(spark, TOPICS, str(path), topics).write(records, batch, query)

    batches = [topics.send(schema(0), *puts(1, 2)), topics.send(*puts(3, 4)), topics.send(*puts(5, 6))]
    write(0, batches[0])
    shutil.copytree(path, tmp_path / "copy")
    write(1, batches[1])
    write(1, batches[1])
    write(2, batches[2])
    # The checkpoint is that after the first batch. Its next batch has whatever is there now.
    with pytest.raises(JobError, match="up to number 2, and the checkpoint goes on with number 1: it is an older copy"):
        write(1, topics.send(*puts(7, 8)))
    write(0, topics.read("shop.users"), "another")
    assert seqs(spark, path) == list(range(1, 9))
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    with pytest.raises(JobError, match="lacks the batches 1 to 2 of this checkpoint: the table is an older copy"):
        write(3, topics.send(*puts(9, 9)))
    write(0, topics.read("shop.users"), "a third one")
    assert seqs(spark, path) == list(range(1, 10))


@pytest.mark.one_of_these("tables that are not as they were")
def test_a_table_that_was_put_back_is_refused_until_it_is_as_the_job_left_it(spark: SparkSession, tmp_path: Path) -> None:
    """Delta puts rows back, and leaves the numbers of the later batches and merges: their events would never come again."""
    topics, path = FakeTopics(spark), str(tmp_path / "lake")
    _process(spark, topics, path, 0, schema(0), *puts(1, 3))
    old = {name: _version(spark, f"{path}/{name}") for name in ("_changes", "users")}
    _process(spark, topics, path, 1, *puts(4, 5))
    new = {name: _version(spark, f"{path}/{name}") for name in old}

    def restore(name: str, versions: dict[str, int]) -> None:
        spark.sql(f"RESTORE TABLE delta.`{path}/{name}` TO VERSION AS OF {versions[name]}")

    for name in old:
        restore(name, old)
        with pytest.raises(JobError, match=rf"/{name} was put back to an earlier .* VERSION AS OF {new[name]}, or "):
            _process(spark, topics, path, 2, *puts(6, 6))
        if name == "users":
            with pytest.raises(JobError, match="was put back to an earlier version"):
                read_current(spark, f"{path}/users")
        restore(name, new)
    _process(spark, topics, path, 3, *puts(7, 7))
    assert seqs(spark, tmp_path / "lake" / "_changes") == [1, 2, 3, 4, 5, 6, 7]
    assert tables.read(spark, f"{path}/users").count() == 7


@pytest.mark.one_of_these("tables that are not as they were")
def test_rows_whose_events_maintain_has_removed_are_not_read_as_if_nothing_had_happened(
    spark: SparkSession, tmp_path: Path
) -> None:
    topics, path = FakeTopics(spark), str(tmp_path / "lake")

    process = partial(_process, spark, topics, path)
    process(0, schema(0), *puts(1, 3))
    shutil.copytree(f"{path}/users", tmp_path / "copy")
    process(1, *puts(4, 6))
    assert read_current(spark, f"{path}/users", 5).count() == 5
    assert run.main(["maintain", "--path", path, "--no-vacuum", "--vacuum-hours", "0"]) == 0
    assert read_current(spark, f"{path}/users", 6).count() == 6
    with pytest.raises(JobError, match=r"as of seq 5 can't be read any more: .* as of seq 6 or later"):
        read_current(spark, f"{path}/users", 5)
    shutil.rmtree(f"{path}/users")
    shutil.copytree(tmp_path / "copy", f"{path}/users")
    with pytest.raises(JobError, match=r"lacks events up to seq 6, .* it is an older copy, or gone"):
        read_current(spark, f"{path}/users")
    with pytest.raises(JobError, match="lacks events up to seq 6"):
        process(2, *puts(7, 7))
