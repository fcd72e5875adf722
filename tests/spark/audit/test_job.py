"""Job audit: nothing on a clean day, each injected fault by its name, and batches that come again change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs import run
from spark_jobs.audit import facts, sink, state
from spark_jobs.audit.sources import TableSource
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from spark_jobs.lake.changes import ChangesSink
from spark_jobs.tables.format import TableFormat
from tests.spark.audit.auditor import ORDERS, Auditor, a_day, altered, change, removal, row, together, with_rows
from tests.spark.formats import in_either_format, load
from tests.spark.messages import FakeTopics, Message, put, snapshot

pytestmark = pytest.mark.spark


@pytest.fixture
def auditor(spark: SparkSession, tmp_path: Path) -> Auditor:
    return Auditor(spark, tmp_path)


@pytest.mark.one_of_these("audit")
def test_a_clean_day_has_no_findings_and_each_fault_of_the_next_one_is_found_with_its_place(
    auditor: Auditor, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = a_day()
    with monkeypatch.context() as earlier_version:
        earlier_version.setattr(facts, "_shortened", F.col)
        auditor.take(*first, only=(0,))
    # What is on its way, in the partition that is read much later than the other, is no gap.
    assert auditor.sink.finish() == 0
    auditor.take(*(message for batch in others for message in batch), only=(0,))
    auditor.restart()
    auditor.take(put("c", row(30), 18))
    assert auditor.sink.finish() == 0
    assert auditor.findings() == []
    doubled = put("c", row(31), 19)
    *events, begin, end = together("1:26", put("c", row(60), 26), put("c", row(61), 27))
    auditor.take(
        doubled,
        doubled,
        put("c", row(40), 21),  # swapped with 20, which is in the same partition
        put("c", row(42), 20),
        altered(change(row(40), row(40, "x"), 22), '"before":{"id":40,"name":"a"}', '"before":{"id":40,"name":"b"}'),
        put("c", row(50), 24),  # 23 was dropped
        altered(put("c", row(52), 25), '"lsn":25', '"lsn":24'),
        *events,
        begin,
        altered(end, '"event_count":2}', '"event_count":3}'),
        snapshot("STARTED", 27, snapshot_id="2"),
        altered(put("r", row(62), 28), '"snapshot_id":"1"', '"snapshot_id":"2"'),
        with_rows(snapshot("COMPLETED", 28, snapshot_id="2", sweep_seq=27), 2),
    )
    assert auditor.sink.finish() == 1
    assert auditor.kinds() == [
        ("duplicate", 19),
        ("duplicate", 25),
        ("gap", 23),
        ("image", 22),
        ("order", 20),
        ("snapshot", 27),
        ("transaction", 26),
    ]
    by_kind = {row["kind"]: row for row in auditor.findings()}
    gap, order = by_kind["gap"], by_kind["order"]
    assert gap["other_seq"] == 23
    assert (order["offset"], order["other_offset"], order["other_seq"]) == (order["other_offset"] + 1, order["offset"] - 1, 21)


@pytest.mark.one_of_these("audit")
def test_one_row_of_the_log_may_delete_many(auditor: Auditor) -> None:
    """DELETE_RANGE: its events have one lsn, in ascending order, here in two batches; what is published again is still found."""

    def deleted(first: int) -> list[Message]:
        found = [removal(row(number), first + number - 1, place=(first, number)) for number in range(1, 9)]
        return [altered(message, f'"lsn":{first + number}', '"lsn":9') for number, message in enumerate(found)]

    events = deleted(9)
    auditor.take(*(put("c", row(number), number) for number in range(1, 9)), *events[:4])
    auditor.take(*events[4:])
    assert auditor.sink.finish() == 0
    assert auditor.findings() == []
    auditor.take(*deleted(17))
    auditor.sink.finish()
    assert "duplicate" in {kind for kind, _ in auditor.kinds()}


@pytest.mark.one_of_these("audit")
def test_what_a_batch_leaves_open_the_next_one_settles(auditor: Auditor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault's two halves are in two batches. The first process of each batch is killed when it has appended the images and
    not yet kept its state, the second one before Spark notes the batch as done; and each one compacts the images.
    """
    monkeypatch.setattr(sink, "COMPACT_EVERY", 1)
    first = put("c", row(1), 1)
    batches = [
        [first, put("c", row(2), 2), put("c", row(6), 3)],
        [
            first,
            altered(change(row(2), row(2, "x"), 4), '"before":{"id":2,"name":"a"}', '"before":{"id":2,"name":"b"}'),
            change(row(6), row(6, "b"), 5),
            put("c", row(4), 8),
        ],
        # Row 6 is as it was, though its images were appended once and compacted twice.
        [put("c", row(20), 7), put("c", row(1, "again"), 9), change(row(6, "b"), row(6, "c"), 10), put("c", row(8), 11)],
    ]

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    for messages in batches:
        monkeypatch.setattr(auditor.sink, "_save", killed)
        with pytest.raises(KeyboardInterrupt):
            auditor.take(*messages)
        for _ in range(2):
            auditor.restart()
            auditor.repeat()
    auditor.sink.finish()
    assert auditor.kinds() == [("duplicate", 1), ("gap", 6), ("image", 4), ("image", 9), ("order", 7)]


@pytest.mark.one_of_these("audit")
def test_numbers_that_retention_has_taken_are_no_gap(spark: SparkSession, tmp_path: Path) -> None:
    begun = {"shop.users": {"0": 7, "1": 0}, "shop.orders": {"0": 3, "1": 0}, "shop.eu.users": {"0": 5}}
    auditor = Auditor(spark, tmp_path, first_offsets=lambda: begun)
    # The topic of another daemon has none of the numbers, whatever was deleted from it.
    auditor.sink._topics.known.foreign = frozenset({"shop.eu.users"})
    auditor.take(put("c", row(1), 9), put("c", row(2), 12))
    # In the one partition of orders whose beginning is gone there is nothing yet: what is missing may have been there.
    assert auditor.sink.finish() == 0
    both = put("c", row(1), 15, **ORDERS), put("c", row(2), 16, **ORDERS)
    auditor.take(*both, put("c", row(4), 14), put("c", row(6), 13), put("c", row(5), 18), put("c", row(8), 19))
    assert auditor.sink.finish() == 1
    assert auditor.kinds() == [("gap", 17), ("order", 13)]


@pytest.mark.one_of_these("audit")
def test_transactions_are_judged_where_retention_has_taken_others_and_left_their_ends(
    auditor: Auditor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sink, state):
        monkeypatch.setattr(module, "TRANSACTIONS_MAX", 3)
    # The space's topic has nothing of these any more.
    ends = [message for lsn in range(1, 8) for message in together(f"1:{lsn}", put("c", row(1), lsn))[1:]]
    # One that comes as a whole, and one whose END comes before its events.
    first, second = (
        [*events, begin, altered(end, '"event_count":1}', '"event_count":2}')]
        for *events, begin, end in (together(f"1:{lsn}", put("c", row(lsn), lsn - 9)) for lsn in (10, 11))
    )
    auditor.take(*ends, *first, second[-1])
    assert auditor.kinds() == [("transaction", 1)]
    auditor.take(second[0])
    assert auditor.kinds() == [("transaction", 1), ("transaction", 2)]


@pytest.mark.one_of_these("audit")
def test_a_daemon_that_repeats_is_believed_and_still_watched(spark: SparkSession, tmp_path: Path) -> None:
    auditor = Auditor(spark, tmp_path, repeats=True)
    one, two = put("c", row(1), 1), put("c", row(2), 2)
    auditor.take(one, two, one, two, put("c", row(3), 4), two, one)
    assert auditor.sink.finish() == 1
    assert auditor.kinds() == [("gap", 3)]


@pytest.mark.one_of_these("audit")
@in_either_format
def test_a_table_of_changes_is_looked_at_without_kafka(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], known: TableFormat
) -> None:
    topics, table = FakeTopics(spark), tmp_path / "changes"
    sink = ChangesSink(spark, Topics("k", "shop"), str(table), topics, table_format=known)
    command = ["audit", "--changes", str(table), "--path", str(tmp_path / "audit"), "--checkpoint", str(tmp_path / "c")]
    command += ["--table-format", known.NAME]
    command += ["--available-now", "--grace-seconds"]

    def write(batch: int, *messages: Message) -> None:
        sink.write(topics.send(*messages).where("topic not like '%.transaction'"), batch, "query")

    # What is missing may still come, if it hasn't been for long; an event that is there twice is so whatever comes.
    faulty = put("c", row(18), 18), put("c", row(20), 20), change(row(18, "other"), row(18, "b"), 21)
    write(0, *(message for batch in a_day() for message in batch), *faulty)
    known.append_once(load(spark, known, table).where("seq = 18"), str(table), partition_by=("space",), application="x", batch=0)
    assert run.main([*command, "60"]) == 1
    assert "gap" not in capsys.readouterr().err
    write(1, put("c", row(22), 22), snapshot("STARTED", 22), with_rows(snapshot("COMPLETED", 22, sweep_seq=22), 3))
    assert run.main([*command, "0"]) == 1
    assert f"audit: gap: Seq 19 is not in the table file:{table}." in capsys.readouterr().err
    found = load(spark, known, tmp_path / "audit" / "findings").orderBy("kind").collect()
    assert [(row["kind"], row["seq"]) for row in found] == [("duplicate", 18), ("gap", 19), ("image", 21), ("snapshot", 22)]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--changes", "c", "--prefix", "shop"], "name either Kafka or a table"),
        (["--prefix", "shop"], "are required, or --changes"),
    ],
)
def test_an_audit_is_of_one_of_the_two(more: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["audit", "--path", "p", "--checkpoint", "c", *more])
    assert said in capsys.readouterr().err


def test_only_a_table_of_changes_will_do(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(1).write.format("delta").save(str(tmp_path / "other"))
    for path in (tmp_path / "other", tmp_path / "none"):
        with pytest.raises(JobError, match="There is no table of events in"):
            TableSource(spark, str(path)).prefix()
