"""Rows as of the watermark: whatever has been read of which partition, no reader sees half of a source transaction."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.source import Topics
from spark_jobs.current import read_current, watermark
from spark_jobs.errors import JobError
from spark_jobs.lake.base_table import BaseTable
from spark_jobs.lake.lake import Lake
from spark_jobs.tables import delta as tables
from tests.spark.messages import FakeTopics, delete, put, schema, snapshot
from tests.spark.sinks import current_sink

pytestmark = pytest.mark.spark

TOPICS = Topics("nowhere:9092", "shop")
COLUMNS = (("id", "unsigned"), ("balance", "int64"))
ACCOUNTS = 6
TOTAL = 2 * ACCOUNTS * 100
SPACES: dict[str, dict[str, Any]] = {"savings": {"space_id": 600}, "current": {"space_id": 601, "version": 2}}


def send_transfers(topics: FakeTopics, chance: random.Random, count: int) -> None:
    """Accounts in two spaces, and money that goes between them; accounts are closed and opened on the way."""
    for space, which in SPACES.items():
        topics.send(schema(0, space=space, columns=COLUMNS, **which))
    balances = {(space, number): 100 for space in SPACES for number in range(ACCOUNTS)}
    seq = 0
    first = [("c", account) for account in balances]
    for transaction in [first, *(None for _ in range(count))]:
        changed = transaction
        if changed is None:
            giver, taker = chance.sample(sorted(balances), 2)
            amount = chance.randrange(30)
            balances[giver] -= amount
            balances[taker] += amount
            changed = [("u", giver), ("u", taker)]
        begin = seq + 1
        for order, (op, account) in enumerate(changed, 1):
            seq += 1
            space, number = account
            which = {"space": space, "place": (begin, order), **SPACES[space]}
            if op == "u" and balances[account] == 0:
                topics.send(delete(number, seq, **which))
            else:
                topics.send(put(op, {"id": number, "balance": balances[account]}, seq, **which))
    assert sum(balances.values()) == TOTAL


def total(spark: SparkSession, path: Path, as_of: int | None) -> int:
    """The money in both spaces."""
    frames = (read_current(spark, f"{path}/{space}", as_of).select("balance") for space in SPACES)
    found = next(frames).unionAll(next(frames)).agg(F.sum("balance")).collect()[0][0]
    return int(found or 0)


@pytest.mark.parametrize(
    ("seed", "count", "cut", "interval_seconds"),
    [
        (1, 12, 8, 60.0),
        pytest.param(2, 60, 25, 0.1, marks=pytest.mark.soak),
        pytest.param(3, 60, 25, 0.1, marks=pytest.mark.soak),
    ],
)
def test_no_reader_sees_half_a_transfer(
    spark: SparkSession, tmp_path: Path, seed: int, count: int, cut: int, interval_seconds: float
) -> None:
    chance = random.Random(seed)
    topics = FakeTopics(spark)
    with pytest.raises(JobError, match="no watermark"):
        watermark(spark, str(tmp_path))
    send_transfers(topics, chance, count)
    ends = {place: len(log) for place, log in topics.messages.items() if not place[0].endswith("schema")}
    # Merges run in a thread of their own, of few changes or many, while others read.
    often = {"interval_seconds": interval_seconds, "share": 0.5, "min_unmerged": 1}
    sink = current_sink(spark, TOPICS, str(tmp_path), topics, is_background=True, **often)  # type: ignore[arg-type]
    done, marks, is_torn = dict.fromkeys(ends, 0), [0], False
    batch = 0
    while done != ends:
        goal = {place: min(end, done[place] + chance.randrange(1, cut)) for place, end in ends.items()}
        records = topics.slice({place: (done[place], goal[place]) for place in ends})
        topics.took(records)
        sink.write(records, batch, "query")
        done, batch = goal, batch + 1
        # What is read without the watermark is torn: it is what makes it whole.
        is_torn = is_torn or total(spark, tmp_path, None) != TOTAL
        mark = watermark(spark, str(tmp_path)) if Lake.at(spark, str(tmp_path)).has_watermark() else 0
        if mark != marks[-1]:
            marks.append(mark)
            assert total(spark, tmp_path, mark) == TOTAL
    sink.close()
    # A run that has nothing left to read merges the rest.
    current_sink(spark, TOPICS, str(tmp_path), topics).write(topics.slice({}), batch, "query")
    last = watermark(spark, str(tmp_path))
    assert marks == sorted(marks)
    assert last == 2 * ACCOUNTS + 2 * count
    merged = sum(tables.read(spark, f"{tmp_path}/{space}").agg(F.sum("balance")).collect()[0][0] for space in SPACES)
    assert (merged, is_torn) == (TOTAL, True)
    # One that is older than what is merged is found in an older version of the tables.
    assert {total(spark, tmp_path, mark) for mark in (*marks[1:2], last)} == {TOTAL}


@pytest.mark.one_of_these("order of events")
def test_a_snapshot_is_seen_whole_or_not_at_all(spark: SparkSession, tmp_path: Path) -> None:
    topics = FakeTopics(spark)
    sink = current_sink(spark, TOPICS, str(tmp_path), topics)

    def take(batch: int, *messages: Any) -> int:
        records = topics.send(*messages)
        topics.took(records)
        sink.write(records, batch, "query")
        return read_current(spark, f"{tmp_path}/users", "watermark").count()

    assert take(0, schema(0), snapshot("STARTED", 0), *(put("r", {"id": number}, number) for number in (1, 2, 3))) == 0
    assert read_current(spark, f"{tmp_path}/users").count() == 3
    assert take(1, put("r", {"id": 4}, 4), snapshot("COMPLETED", 4)) == 4
    assert take(2, put("c", {"id": 5}, 5)) == 5


@pytest.mark.one_of_these("order of events")
def test_the_watermark_moves_from_one_renaming_to_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = FakeTopics(spark)
    # Each renaming comes after two transactions. The second one lies inside a transaction: its row 5 has the former name.
    names = ("first", "first", "second", "second", "second", "third", "third")
    places = ((1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (5, 2), (7, 1))
    rows = (
        put("c", {"id": seq}, seq, space=name, place=place)
        for seq, (name, place) in enumerate(zip(names, places, strict=True), 1)
    )
    forms = (schema(0, space="first"), schema(2, space="second", version=2), schema(5, space="third", version=3))
    shown: list[tuple[int, dict[str, int]]] = []
    publish, apply_form_change = Lake.publish, BaseTable.apply_form_change

    def rows_at(mark: int) -> dict[str, int]:
        found = {name: read_current(spark, f"{tmp_path}/{name}", mark).count() for name in set(names)}
        return {name: count for name, count in found.items() if count}

    def publish_and_read(lake: Lake, mark: int, *more: Any) -> None:
        publish(lake, mark, *more)
        shown.append((mark, rows_at(mark)))

    def apply_and_read(table: BaseTable, *arguments: Any) -> None:
        apply_form_change(table, *arguments)
        # Who reads while the rows move finds those that were there before.
        mark, found = shown[-1]
        assert rows_at(mark) == found

    monkeypatch.setattr(Lake, "publish", publish_and_read)
    monkeypatch.setattr(BaseTable, "apply_form_change", apply_and_read)
    records = topics.send(*forms, *rows)
    topics.took(records)
    current_sink(spark, TOPICS, str(tmp_path), topics).write(records, 0, "query")
    assert shown == [(1, {"first": 1}), (4, {"second": 4}), (7, {"third": 7})]
