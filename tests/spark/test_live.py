"""The Spark jobs from a real Kafka, with transactions, to Delta tables."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from cdc.local.interface import KafkaServer
from spark_jobs import run
from spark_jobs.contract.envelope import parse
from spark_jobs.contract.source import Topics
from spark_jobs.current import read_current
from spark_jobs.errors import JobError
from spark_jobs.materialize.images import Fold
from spark_jobs.tables import iceberg
from tests.spark import duck
from tests.spark.messages import SPACE_ID, Message, delete, put, schema, snapshot, truncate, update

pytestmark = pytest.mark.spark

PARTITIONS = 2
TIMEOUT_SECONDS = 60


class Daemon:
    """Writes messages as the daemon does: in Kafka transactions, under a prefix of its own."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.prefix = f"spark-{uuid.uuid4().hex[:8]}"
        self.bootstrap_servers = bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        # Some transactions stay open while jobs run, which takes longer than Kafka's minute on a busy machine.
        settings: dict[str, Any] = {"transactional.id": self.prefix, "transaction.timeout.ms": 600_000}
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, **settings})
        self._producer.init_transactions(TIMEOUT_SECONDS)

    def create_topics(self, *names: str) -> None:
        """Topics under the prefix."""
        topics = [NewTopic(f"{self.prefix}.{name}", 1 if name in ("schema", "snapshot") else PARTITIONS, 1) for name in names]
        for created in self._admin.create_topics(topics).values():
            created.result(TIMEOUT_SECONDS)

    def send(self, *messages: Message) -> None:
        """One transaction, committed."""
        self.begin(*messages)
        self._producer.commit_transaction(TIMEOUT_SECONDS)

    def begin(self, *messages: Message) -> None:
        """One transaction, left open."""
        self._producer.begin_transaction()
        for message in messages:
            topic = message.topic.replace("shop.", f"{self.prefix}.", 1)
            value = None if message.value is None else message.value.replace('"name":"shop"', f'"name":"{self.prefix}"', 1)
            for partition in [-1] if message.key is not None else range(PARTITIONS):
                self._producer.produce(topic, value, message.key, partition=partition)
        self._producer.flush(TIMEOUT_SECONDS)

    def abort(self) -> None:
        """Take the open transaction back."""
        self._producer.abort_transaction(TIMEOUT_SECONDS)

    def arguments(self, path: Path) -> list[str]:
        """Options of a job that reads this daemon's topics."""
        places = ["--path", str(path / "tables"), "--checkpoint", str(path / "checkpoint")]
        return ["--bootstrap-servers", self.bootstrap_servers, "--prefix", self.prefix, *places, "--available-now"]


@pytest.fixture
def daemon(kafka: KafkaServer) -> Daemon:
    started = Daemon(kafka.bootstrap_servers)
    started.create_topics("schema", "snapshot", "users")
    return started


def process(session: SparkSession, job: str, arguments: Sequence[str]) -> None:
    """Run a job over what is there, as the command does."""
    options = run.parse_options(job, arguments)
    topics = Topics(options.bootstrap_servers, options.prefix)
    query = run.start(session, run.JOBS[job], replace(topics, max_offsets_per_trigger=20), options)
    assert query.awaitTermination(TIMEOUT_SECONDS * 3)


def test_jobs_see_committed_transactions_once_and_go_on_where_they_were(
    spark: SparkSession, daemon: Daemon, tmp_path: Path
) -> None:
    changelog, current = daemon.arguments(tmp_path / "changelog"), daemon.arguments(tmp_path / "current")
    daemon.begin(put("c", {"id": 1, "name": "taken back"}, 1))
    daemon.abort()
    daemon.send(schema(0), *(put("c", {"id": number, "name": "a", "balance": number}, number) for number in range(1, 26)))
    daemon.begin(put("c", {"id": 99, "name": "open"}, 26))
    process(spark, "changelog", changelog)
    process(spark, "current", current)
    log = spark.read.format("delta").load(str(tmp_path / "changelog" / "tables"))
    assert sorted(row["seq"] for row in log.select("seq").collect()) == list(range(1, 26))
    users = str(tmp_path / "current" / "tables" / "users")
    assert read_current(spark, users).count() == 25

    daemon.abort()
    # A space that is made while the jobs are running, and all that happens to rows.
    daemon.create_topics("orders")
    daemon.send(
        schema(25, space="orders", space_id=513, version=2),
        put("c", {"id": 1, "name": "o"}, 26, space="orders", space_id=513, version=2),
        truncate(27),
        put("c", {"id": 7, "name": "b", "balance": 1}, 28),
        update(7, [{"op": "+", "field": "balance", "value": 2}], 29),
        snapshot("STARTED", 29),
        put("r", {"id": 8, "name": "c", "balance": 8}, 30),
        snapshot("COMPLETED", 30, sweep_seq=29),
    )
    process(spark, "changelog", changelog)
    process(spark, "current", current)
    log = spark.read.format("delta").load(str(tmp_path / "changelog" / "tables"))
    assert sorted(row["seq"] for row in log.select("seq").collect()) == list(range(1, 31))
    assert [row["_row"] for row in read_current(spark, users).collect()] == ['{"id":8,"name":"c","balance":8}']
    orders = str(tmp_path / "current" / "tables" / "orders")
    assert [row["_row"] for row in read_current(spark, orders).collect()] == ['{"id":1,"name":"o"}']


@pytest.mark.one_of_these("whole events")
def test_iceberg_tables_are_right_wherever_the_job_dies(
    spark: SparkSession, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rows staged and not committed, and with a commit that no batch knows of."""
    arguments = ["current", *daemon.arguments(tmp_path), "--table-format", "iceberg"]
    publish = iceberg._publish

    def dies(folder: str, *, is_committed: bool) -> None:
        def in_the_middle(transaction: Any) -> None:
            table = transaction.table()
            is_it = table.location().endswith(folder) and table.currentSnapshot().summary().get("added-records")
            if not is_it or is_committed:
                publish(transaction)
            if is_it:
                raise JobError("died")

        with monkeypatch.context() as broken:
            broken.setattr(iceberg, "_publish", in_the_middle)
            assert run.main(arguments) == 1

    daemon.send(schema(0), *(put("c", {"id": number, "name": "a", "balance": number}, number) for number in range(1, 26)))
    dies("/_changes", is_committed=False)
    dies("/_changes", is_committed=True)
    assert run.main(arguments) == 0
    daemon.send(put("u", {"id": 7, "name": "b", "balance": 70}, 26), update(8, [{"op": "+", "field": "balance", "value": 2}], 27))
    daemon.send(delete(9, 28))
    dies("/users", is_committed=True)
    assert run.main(arguments) == 0
    balances = {number: number for number in range(1, 26) if number != 9} | {7: 70, 8: 10}
    tables = tmp_path / "tables"
    assert sorted(duck.rows("select id, balance from iceberg_scan(?)", str(tables / "users"))) == sorted(balances.items())
    assert sorted(duck.rows("select seq from iceberg_scan(?)", str(tables / "_changes"))) == [(seq,) for seq in range(1, 29)]
    shown = read_current(spark, str(tables / "users"), "watermark")
    assert {int(row["id"]): int(row["balance"]) for row in shown.collect()} == balances


@pytest.mark.one_of_these("commands of jobs")
def test_the_command_ends_with_a_sentence(
    spark: SparkSession, daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is SparkSession.getActiveSession()
    daemon.send(schema(0), Message("shop.users", '{"id":2}', '{"not":"an event"}'))
    assert run.main(["changelog", *daemon.arguments(tmp_path), "--typed"]) == 1
    (last,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("changelog: "))
    assert last.startswith(f"changelog: topic {daemon.prefix}.users, partition ")
    assert last.endswith('holds something that is no change event: {"not":"an event"}')
    # By default the job is given the record at each start; told to, it keeps it and goes on, and says what it did. That there is
    # another topic by then changes nothing: Spark alone would refuse to repeat the batch for ever.
    daemon.create_topics("orders")
    daemon.send(put("c", {"id": 7, "name": "b", "balance": 1}, 41))
    arguments = [*daemon.arguments(tmp_path), "--typed", "--on-error", "dead-letter"]
    assert run.main(["changelog", *arguments]) == 0
    said = capsys.readouterr().err.splitlines()
    assert "Repeated the batch that an earlier run had begun; Spark tells no figures of it." in said
    (last,) = (line for line in said if line.startswith("changelog: "))
    assert re.fullmatch(
        r"changelog: batch=1 records=\d seconds=\S+ records_per_second=\d+ seq=41 behind_seconds=\S+ behind_records=0", last
    )
    assert spark.read.format("delta").load(str(tmp_path / "checkpoint_dead_letters")).count() == 1
    typed = spark.read.format("delta").load(str(tmp_path / "tables" / "users"))
    assert typed.where("seq = 41").select("new.*").collect() == [(7, "b", 1, None)]


@pytest.mark.one_of_these("commands of jobs")
def test_the_audit_of_topics_ends_with_its_findings(
    spark: SparkSession, daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kafka is asked once more for what is missing, before that is told."""
    assert spark is SparkSession.getActiveSession()
    daemon.create_topics("orders")
    daemon.send(*(put("c", {"id": number}, number) for number in (1, 2, 3, 5, 6)))
    assert run.main(["audit", *daemon.arguments(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "audit: gap: Seq 4 is on no topic." in said
    assert f"audit: found 1 gap; the table {tmp_path}/tables/findings has them" in said.replace("file:", "")
    assert run.main(["audit", *daemon.arguments(tmp_path)]) == 0


@pytest.mark.one_of_these("whole events")
def test_whole_events_are_published_where_they_were_and_beside_no_others(
    spark: SparkSession, kafka: KafkaServer, daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The seq of another daemon says nothing there, and a consumer would take one event for the other."""
    assert spark is SparkSession.getActiveSession()
    servers, whole = kafka.bootstrap_servers, f"{daemon.prefix}-whole"

    def publish(one: Daemon, place: str, prefix: str = whole) -> int:
        return run.main(["materialize", *one.arguments(tmp_path / place), "--to", f"kafka://{servers}/{prefix}"])

    daemon.send(schema(0), *(put("c", {"id": number, "name": "a", "balance": number}, number) for number in range(1, 9)))
    again = put("c", {"id": 5, "name": "a", "balance": 1}, 10)
    daemon.send(truncate(9), again, update(5, [{"op": "+", "field": "balance", "value": 2}], 11))
    assert publish(daemon, "first") == 0
    told, sent = (
        parse(topics.read(spark, topics.of_space("users"))).orderBy("partition", "offset").collect()
        for topics in (Topics(servers, daemon.prefix), Topics(servers, whole))
    )
    # Each event in the partition that it was in, in the same order, under the same key.
    assert [(row["partition"], row["source"]["seq"], row["key"]) for row in sent] == [
        (row["partition"], row["source"]["seq"], row["key"]) for row in told
    ]
    (last,) = (row for row in sent if row["source"]["seq"] == 11)
    assert (last["op"], last["before"], last["after"]) == (
        "u",
        '{"id":5,"name":"a","balance":1}',
        '{"id":5,"name":"a","balance":3}',
    )
    capsys.readouterr()
    other = Daemon(servers)
    other.create_topics("schema", "snapshot", "users")
    other.send(schema(0), put("c", {"id": 1, "name": "a", "balance": 1}, 1))
    assert publish(other, "other") == 1
    said = capsys.readouterr().err
    assert f"The topics of the prefix '{whole}' of --to have the events of '{daemon.prefix}'" in said
    assert publish(daemon, "again") == 0
    other.create_topics("checkpoint")
    assert publish(daemon, "beside", other.prefix) == 1
    assert f"A daemon publishes to the prefix '{other.prefix}' of --to" in capsys.readouterr().err


@pytest.mark.one_of_these("whole events")
def test_the_remedy_for_a_lost_form_leads_to_whole_events(spark: SparkSession, daemon: Daemon, tmp_path: Path) -> None:
    """A job from the first event on would meet the lost form again; one in a daemon's midst would meet patches without rows."""
    assert spark is SparkSession.getActiveSession()
    add, now = [{"op": "+", "field": "balance", "value": 2}], dict[str, Any](version=2)
    lost = {"seq": 1, "op": "c", "schema_version": 1, "after": "{}", **dict.fromkeys(("patch", "upsert", "server_version"))}
    with pytest.raises(JobError) as raised:
        Fold({}, skip_missing=False)(SPACE_ID, '{"id":1}', None, None, None, [lost], [])
    said = str(raised.value)
    daemon.send(put("c", {"id": 1, "label": "a", "balance": 0}, 1), put("c", {"id": 2, "label": "b", "balance": 0}, 2))
    daemon.send(schema(2, **now), update(1, add, 3, **now))
    order = "stop the daemon, start the job with (.*), another --path and another --checkpoint, and when the job runs, start"
    found = re.search(order, said)
    assert "no form of space 512 at schema_version 1" in said
    assert found is not None
    again = ["materialize", *daemon.arguments(tmp_path / "again"), *found[1].split()]
    assert run.main(again) == 0
    rows = [{"id": 1, "name": "a", "balance": 2}, {"id": 3, "name": "c", "balance": 0}]
    daemon.send(
        schema(3, in_snapshot=True, **now),
        snapshot("STARTED", 3),
        *(put("r", row, seq, **now) for seq, row in enumerate(rows, 4)),
        snapshot("COMPLETED", 5, sweep_seq=3),
    )
    daemon.send(update(1, add, 6, **now), update(3, add, 7, **now))
    assert run.main(again) == 0
    whole = spark.read.format("delta").load(str(tmp_path / "again" / "tables")).orderBy("seq").collect()
    assert [(row["seq"], json.loads(row["after"])["balance"]) for row in whole] == [(4, 2), (5, 0), (6, 4), (7, 2)]


@pytest.mark.one_of_these("commands of jobs")
def test_a_history_of_topics_is_written_down_at_the_end(spark: SparkSession, daemon: Daemon, tmp_path: Path) -> None:
    daemon.send(schema(0), put("c", {"id": 1, "name": "a"}, 1), put("u", {"id": 1, "name": "b"}, 2), truncate(3))
    spark.sql("CREATE SCHEMA live")
    try:
        arguments = [one for one in daemon.arguments(tmp_path) if one not in ("--path", str(tmp_path / "tables"))]
        template = ["--catalog", "spark_catalog.live", "--table-template", "{table}_history"]
        assert run.main(["history", *arguments, *template]) == 0
        found = spark.table("live.users_history").orderBy("_begin_seq").collect()
        assert [(row["name"], row["_begin_seq"], row["_end_seq"], row["_end_op"]) for row in found] == [
            ("a", 1, 2, "u"),
            ("b", 2, 3, "t"),
        ]
    finally:
        spark.sql("DROP SCHEMA live CASCADE")
