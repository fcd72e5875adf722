"""Job audit: nothing on a clean day, each injected fault by its name, and batches that come again change nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs import run
from spark_jobs.audit import facts, job, state
from spark_jobs.audit.job import AuditSink
from spark_jobs.audit.sources import TableSource, TopicSource
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from spark_jobs.lake.changes import ChangesSink
from tests.spark.messages import FakeTopics, Message, compact, delete, event, put, schema, snapshot, truncate

pytestmark = pytest.mark.spark

ORDERS: dict[str, Any] = {"space": "orders", "space_id": 513}


class Auditor:
    """A sink over topics in memory, whose batches are what was sent since the last one."""

    def __init__(self, spark: SparkSession, path: Path, **options: Any) -> None:
        self.topics = FakeTopics(spark)
        self.path = path
        self.batch = -1
        self._places = {name: options.pop(name) for name in ("first_offsets",) if name in options}
        self._options = options
        self._spark = spark
        self._taken: dict[tuple[str, int], int] = {}
        self.records: DataFrame | None = None
        self.restart()

    def restart(self) -> None:
        """As in another process."""
        topics = Topics("k", "shop", self._options.pop("spaces", ".*"))
        read = {"read_behind": self._behind, "read_topic": self.topics.read, **self._places}
        source = TopicSource(self._spark, topics, **read)
        self.sink = AuditSink(self._spark, topics, str(self.path), source, lambda: "query", **self._options)

    def take(self, *messages: Message, only: Sequence[int] = (0, 1)) -> None:
        """Send messages, and give what is new in these partitions to the sink."""
        self.topics.send(*messages)
        ranges = {}
        for place, log in self.topics.messages.items():
            if place[1] in only and not place[0].endswith(".schema"):
                ranges[place] = (self._taken.get(place, 0), len(log))
                self._taken[place] = len(log)
        self.records = self.topics.slice(ranges)
        self.batch += 1
        self.sink.write(self.records, self.batch, "query")

    def findings(self) -> list[Row]:
        """All that there are."""
        path = self.path / "findings"
        if not path.exists():
            return []
        return self._spark.read.format("delta").load(str(path)).orderBy("kind", "seq").collect()

    def kinds(self) -> list[tuple[str, int]]:
        return [(row["kind"], row["seq"]) for row in self.findings()]

    def _behind(self, offsets: Mapping[str, Mapping[str, int]]) -> DataFrame:
        return self.topics.slice(
            {
                (topic, partition): (offsets.get(topic, {}).get(str(partition), 0), len(log))
                for (topic, partition), log in self.topics.messages.items()
                if topic.rpartition(".")[2] not in ("schema", "snapshot", "transaction")
            }
        )


@pytest.fixture
def auditor(spark: SparkSession, tmp_path: Path) -> Auditor:
    return Auditor(spark, tmp_path)


def row(identity: int, text: str = "a") -> dict[str, Any]:
    return {"id": identity, "name": text}


def change(before: Mapping[str, Any], after: Mapping[str, Any], seq: int, **options: Any) -> Message:
    """A change with both images."""
    return event("u", {"id": after["id"]}, seq, {"before": dict(before), "after": dict(after)}, **options)


def removal(before: Mapping[str, Any], seq: int, **options: Any) -> Message:
    return event("d", {"id": before["id"]}, seq, {"before": dict(before)}, **options)


def together(identity: str, *messages: Message) -> list[Message]:
    """Messages as events of one source transaction, with its BEGIN and END."""
    found, counts = [], dict[str, int]()
    for order, message in enumerate(messages, 1):
        assert message.value is not None
        value = json.loads(message.value)
        space = value["source"]["table"]
        counts[space] = counts.get(space, 0) + 1
        value["transaction"] = {"id": identity, "total_order": order, "data_collection_order": counts[space]}
        found.append(replace(message, value=compact(value)))
    collections = [{"data_collection": space, "event_count": count} for space, count in counts.items()]
    end = {"status": "END", "id": identity, "event_count": len(found), "data_collections": collections, "ts_ms": 1}
    begin = {**end, "status": "BEGIN", "event_count": None, "data_collections": None}
    return [*found, *(Message("shop.transaction", compact({"id": identity}), compact(value)) for value in (begin, end))]


def tombstone(message: Message) -> Message:
    return replace(message, value=None)


def a_day() -> list[list[Message]]:
    """Batches: a snapshot, changes of two spaces, another format, a truncation, another primary key."""
    first = removal(row(2), 9)
    return [
        [
            schema(0, in_snapshot=True),
            snapshot("STARTED", 0, snapshot_id="1"),
            put("r", row(1), 1),
            put("r", row(2), 2),
            put("r", {"id": 3, "name": None}, 3),
        ],
        [
            # COMPLETED comes later than what it counts.
            with_rows(snapshot("COMPLETED", 3, snapshot_id="1"), 3),
            *together(
                "1:4", change(row(1), row(1, "x"), 4), put("c", row(1), 5, **ORDERS), change({"id": 3, "name": None}, row(3), 6)
            ),
            *together("1:7", put("c", row(8), 7), put("c", row(9), 8)),
            first,
            tombstone(first),
        ],
        [
            put("c", row(2, "new"), 10),
            # Another name of a field: the row before has it too, though the one after it hadn't. And a new field, which Avro has
            # in both.
            change({"id": 1, "title": "x", "more": None}, {"id": 1, "title": "y", "more": None}, 11, version=2),
            truncate(12),
            put("c", {"id": 1, "title": "z"}, 13, version=2),
            # In Avro, once another row had more fields than the format.
            change({**row(1), "field_3": None, "field_4": None}, row(1, "o"), 14, **ORDERS),
        ],
        [
            truncate(15),
            altered(
                event("r", {"title": "z"}, 16, {"after": {"id": 1, "title": "z"}}, version=3),
                '"snapshot_id":"1"',
                '"snapshot_id":"9"',
            ),
            event("u", {"title": "z"}, 17, {"before": {"id": 1, "title": "z"}, "after": {"id": 2, "title": "z"}}, version=3),
        ],
    ]


def with_rows(message: Message, rows: int) -> Message:
    assert message.value is not None
    return replace(message, value=message.value.replace('"rows":1', f'"rows":{rows}'))


def test_a_clean_day_has_no_findings_however_it_is_cut(auditor: Auditor, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = a_day()
    with monkeypatch.context() as earlier_version:
        earlier_version.setattr(facts, "_shortened", F.col)
        auditor.take(*first, only=(0,))
    # One partition is read much later than the other.
    auditor.take(*(message for batch in others for message in batch), only=(0,))
    auditor.restart()
    auditor.take(put("c", row(70), 18))
    assert auditor.sink.finish() == 0
    assert auditor.findings() == []


def altered(message: Message, old: str, new: str) -> Message:
    assert message.value is not None
    assert old in message.value
    return replace(message, value=message.value.replace(old, new))


def test_each_fault_is_found_with_its_place(auditor: Auditor) -> None:
    auditor.take(*(message for batch in a_day() for message in batch))
    doubled = put("c", row(31), 19)
    *events, begin, end = together("1:26", put("c", row(60), 26), put("c", row(61), 27))
    auditor.take(
        put("c", row(30), 18),
        doubled,
        doubled,
        put("c", row(40), 21),  # swapped with 20, which is in the same partition
        put("c", row(42), 20),
        altered(change(row(30), row(30, "x"), 22), '"before":{"id":30,"name":"a"}', '"before":{"id":30,"name":"b"}'),
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


def test_what_a_batch_leaves_open_the_next_one_settles(auditor: Auditor) -> None:
    """The same, with each fault's two halves in two batches, each batch given twice, by a new process each time."""
    first = put("c", row(1), 1)
    whole = [
        [first, put("c", row(2), 2)],
        [
            first,
            altered(change(row(2), row(2, "x"), 3), '"before":{"id":2,"name":"a"}', '"before":{"id":2,"name":"b"}'),
            put("c", row(4), 6),
        ],
        [put("c", row(6), 5), put("c", row(1, "again"), 7), put("c", row(8), 8)],
    ]
    for batch in whole:
        auditor.take(*batch)
        auditor.restart()
        assert auditor.records is not None
        auditor.sink.write(auditor.records, auditor.batch, "query")
    auditor.sink.finish()
    assert auditor.kinds() == [("duplicate", 1), ("gap", 4), ("image", 3), ("image", 7), ("order", 5)]


@pytest.mark.parametrize("killed_in", [pytest.param(0, marks=pytest.mark.soak), 1, 2])
def test_killed_at_the_end_it_leaves_its_report_to_the_next_run(
    auditor: Auditor, monkeypatch: pytest.MonkeyPatch, killed_in: int
) -> None:
    """Killed before its findings are kept, before they are in the table, or before they count as reported."""
    # One partition stays behind, so only the end tells what is missing.
    auditor.take(put("c", row(1), 1), put("c", row(2), 3))
    assert auditor.kinds() == []
    steps = count()

    def unless_killed(step: Callable[..., None]) -> Callable[..., None]:
        def stepped(*arguments: Any) -> None:
            if next(steps) == killed_in:
                raise KeyboardInterrupt
            step(*arguments)

        return stepped

    for name in ("_save", "_publish"):
        monkeypatch.setattr(auditor.sink, name, unless_killed(getattr(auditor.sink, name)))
    with pytest.raises(KeyboardInterrupt):
        auditor.sink.finish()
    # The next run has other findings of its own.
    auditor.restart()
    auditor.take(put("c", row(4), 5))
    assert auditor.sink.finish() == 1
    assert auditor.kinds() == [("gap", 2), ("gap", 4)]
    auditor.restart()
    assert auditor.sink.finish() == 0


def test_killed_behind_its_last_batch_it_reports_at_the_next_start_what_it_would_have(
    auditor: Auditor, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once: a start behind the one that has reported has nothing to report."""
    auditor.take(put("c", row(1), 1), put("c", row(1), 2), put("c", row(2), 4))
    assert auditor.kinds() == [("image", 2)]
    for expected, told in ((1, "found 1 gap, 1 image; "), (0, "found nothing\n")):
        auditor.restart()
        capsys.readouterr()
        assert auditor.sink.finish() == expected
        assert f"audit: {told}" in capsys.readouterr().err
        assert auditor.kinds() == [("gap", 3), ("image", 2)]
    auditor.take(put("c", row(6), 6))
    assert auditor.sink.finish() == 1
    assert auditor.kinds() == [("gap", 3), ("gap", 5), ("image", 2)]
    auditor.restart()
    assert auditor.sink.finish() == 0


def test_killed_before_its_state_is_kept_it_has_no_more_findings_than_there_are(
    auditor: Auditor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch compacts the images, and comes twice: the first process has appended them, and was killed then."""
    monkeypatch.setattr(job, "_COMPACT_EVERY", 1)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    changes = [put("c", row(1), 1), *(change(row(1, "abc"[seq - 2]), row(1, "abc"[seq - 1]), seq) for seq in (2, 3))]
    for message in changes:
        monkeypatch.setattr(auditor.sink, "_save", killed)
        with pytest.raises(KeyboardInterrupt):
            auditor.take(message)
        auditor.restart()
        assert auditor.records is not None
        auditor.sink.write(auditor.records, auditor.batch, "query")
    assert auditor.sink.finish() == 0
    auditor.take(altered(change(row(1, "c"), row(1, "d"), 4), '"name":"c"', '"name":"x"'))
    assert auditor.sink.finish() == 1
    assert auditor.kinds() == [("image", 4)]


def test_of_too_many_gaps_it_says_how_many_more_there_are(auditor: Auditor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_FINDINGS_MAX", 2)
    auditor.take(*(put("c", row(number), number) for number in (1, 3, 5, 7, *range(11, 19))))
    auditor.sink.finish()
    assert auditor.kinds() == [("gap", 2), ("gap", 4), ("gap", 6)]
    last = auditor.findings()[-1]
    assert (last["sentence"], last["other_seq"]) == ("Further gaps between seq 6 and 10: 2, of 4 events together.", 10)


def test_numbers_that_retention_has_taken_are_no_gap(spark: SparkSession, tmp_path: Path) -> None:
    begun = {"shop.users": {"0": 7, "1": 0}, "shop.orders": {"0": 3, "1": 0}}
    auditor = Auditor(spark, tmp_path, first_offsets=lambda: begun)
    auditor.take(put("c", row(1), 9), put("c", row(2), 12))
    # In the one partition of orders whose beginning is gone there is nothing yet: what is missing may have been there.
    assert auditor.sink.finish() == 0
    both = put("c", row(1), 15, **ORDERS), put("c", row(2), 16, **ORDERS)
    auditor.take(*both, put("c", row(4), 14), put("c", row(6), 13), put("c", row(5), 18), put("c", row(8), 19))
    assert auditor.sink.finish() == 1
    assert auditor.kinds() == [("gap", 17), ("order", 13)]


def test_transactions_are_judged_where_retention_has_taken_others_and_left_their_ends(
    auditor: Auditor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (job, state):
        monkeypatch.setattr(module, "TRANSACTIONS_MAX", 3)
    # The space's topic has nothing of these any more.
    ends = [message for lsn in range(1, 8) for message in together(f"1:{lsn}", put("c", row(1), lsn))[1:]]
    auditor.take(*ends)
    # One that comes as a whole, and one whose END comes before its events.
    first, second = (together(f"1:{lsn}", put("c", row(lsn), lsn - 9)) for lsn in (10, 11))
    auditor.take(*first[:-1], altered(first[-1], '"event_count":1}', '"event_count":2}'))
    auditor.take(altered(second[-1], '"event_count":1}', '"event_count":2}'))
    auditor.take(second[0])
    assert auditor.kinds() == [("transaction", 1), ("transaction", 2)]


def test_what_is_on_its_way_is_no_gap(auditor: Auditor) -> None:
    auditor.take(put("c", row(1), 1), put("c", row(2), 2), put("c", row(3), 3), only=(1,))
    assert auditor.sink.finish() == 0
    auditor.take(only=(0,))
    assert auditor.sink.finish() == 0
    assert auditor.findings() == []


def test_a_daemon_that_repeats_is_believed_and_still_watched(spark: SparkSession, tmp_path: Path) -> None:
    auditor = Auditor(spark, tmp_path, repeats=True)
    one, two = put("c", row(1), 1), put("c", row(2), 2)
    auditor.take(one, two, one, two, put("c", row(3), 4))
    auditor.take(two)
    assert auditor.sink.finish() == 1
    assert auditor.kinds() == [("gap", 3)]


def test_some_spaces_alone_have_no_gaps(spark: SparkSession, tmp_path: Path) -> None:
    auditor = Auditor(spark, tmp_path, spaces="users")
    auditor.take(put("c", row(1), 1), put("c", row(2), 5), delete(2, 9))
    assert auditor.sink.finish() == 0


def test_a_table_of_changes_is_looked_at_without_kafka(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topics, table = FakeTopics(spark), tmp_path / "changes"
    sink = ChangesSink(spark, Topics("k", "shop"), str(table), topics)
    command = ["audit", "--changes", str(table), "--path", str(tmp_path / "audit"), "--checkpoint", str(tmp_path / "c")]
    command += ["--available-now", "--grace-seconds"]

    def write(batch: int, *messages: Message) -> None:
        sink.write(topics.send(*messages).where("topic not like '%.transaction'"), batch, "query")

    write(0, *(message for batch in a_day() for message in batch))
    # What is missing may still come, if it hasn't been for long; an event that is there twice is so whatever comes.
    write(1, put("c", row(18), 18), put("c", row(20), 20), change(row(18, "other"), row(18, "b"), 21))
    again = spark.read.format("delta").load(str(table)).where("seq = 18")
    again.write.format("delta").mode("append").save(str(table))
    assert run.main([*command, "60"]) == 1
    assert "gap" not in capsys.readouterr().err
    write(2, put("c", row(22), 22), snapshot("STARTED", 22), with_rows(snapshot("COMPLETED", 22, sweep_seq=22), 3))
    assert run.main([*command, "0"]) == 1
    assert f"audit: gap: Seq 19 is not in the table file:{table}." in capsys.readouterr().err
    found = spark.read.format("delta").load(str(tmp_path / "audit" / "findings")).orderBy("kind").collect()
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


def test_an_older_copy_of_the_checkpoint_or_of_the_state_is_refused(auditor: Auditor) -> None:
    for seq in (1, 2):
        auditor.take(put("c", row(seq), seq))
        auditor.restart()
    auditor.batch = -1
    with pytest.raises(JobError, match="is that after batch 1, and the checkpoint goes on with batch 0"):
        auditor.take(put("c", row(3), 3))
    auditor.batch = 2
    with pytest.raises(JobError, match="is that after batch 1, and the checkpoint goes on with batch 3"):
        auditor.take(put("c", row(4), 4))


def test_a_state_of_another_version_is_refused(auditor: Auditor) -> None:
    auditor.take(put("c", row(1), 1))
    (kept,) = (auditor.path / "state").glob("query.*")
    members = json.loads(kept.read_text())
    state = json.loads(members["state"])
    del state["told_up_to"]
    kept.write_text(json.dumps({**members, "state": json.dumps(state)}))
    (kept.parent / f".{kept.name}.crc").unlink(missing_ok=True)  # otherwise the file is damaged, not of another version
    auditor.restart()
    with pytest.raises(JobError, match=r"doesn't know \('told_up_to' is missing\).*new --path and an empty --checkpoint"):
        auditor.take(put("c", row(2), 2))


def test_a_topic_of_another_daemon_whose_beginning_was_deleted_excuses_no_gap(spark: SparkSession, tmp_path: Path) -> None:
    auditor = Auditor(spark, tmp_path, first_offsets=lambda: {"shop.users": {"0": 0, "1": 0}, "shop.eu.users": {"0": 5}})
    auditor.sink._topics.known.foreign = frozenset({"shop.eu.users"})
    auditor.take(put("c", row(1), 1), put("c", row(3), 3))
    assert auditor.sink.finish() == 1
    assert auditor.kinds() == [("gap", 2)]
