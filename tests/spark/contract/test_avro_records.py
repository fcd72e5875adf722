"""Topics in Avro, through the jobs: with a real broker, a registry, and what a daemon makes of a master's changes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import Row, SparkSession

from cdc.formats.options import Format, FormatOptions, Registration
from cdc.local.interface import KafkaServer
from cdc.stream.batches.batch import Broadcast
from spark_jobs import run
from spark_jobs.contract import avro_records
from spark_jobs.contract.registry import Registry
from spark_jobs.errors import JobError
from tests.fakes.master import Master
from tests.fakes.registry import FakeRegistry
from tests.fakes.replica import Replica
from tests.formats.test_events import FORMAT, ROW, work
from tests.spark.test_live import PARTITIONS, TIMEOUT_SECONDS, Daemon

Record = Broadcast | tuple[str, bytes | None, bytes | None]


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry(first_id=40, user="reader:pass word") as started:
        yield started


def everything(registry: FakeRegistry, kind: Format, *, images: bool = True) -> list[Record]:
    """All that a daemon publishes in a format, its schemas in the registry."""

    def number(wanted: Registration) -> int:
        return registry.register(wanted.subject, wanted.text)

    master = Master("2.11")
    master.create_space("users", FORMAT)
    replica = Replica(master, images=images, formats=FormatOptions(kind, kind, schema_ids=number))
    replica.connect()
    master.insert("users", 1, "one", 10)
    work(master)
    master.insert("users", *ROW)
    master.insert("users", 5, "five", 5)
    # From here on the schema has another field.
    master.insert("users", 6, *[None] * (len(FORMAT) - 1), "past the format")
    master.update("users", [5], ["=", 2, "fünf"])
    replica.relay.relay()
    replica.receive()
    replica.commit()
    return list(replica.news())


def send(daemon: Daemon, records: Iterable[Record]) -> None:
    """Into the topics of the daemon's prefix; the name in the events is another one."""
    producer = Producer({"bootstrap.servers": daemon.bootstrap_servers})
    for record in records:
        topic, key, value = (record.topic, None, record.value) if isinstance(record, Broadcast) else record
        suffix = topic.removeprefix("shop.")
        if suffix not in ("users", "schema", "snapshot"):
            continue
        partitions = range(PARTITIONS) if isinstance(record, Broadcast) and suffix == "users" else [0]
        for partition in partitions:
            producer.produce(f"{daemon.prefix}.{suffix}", value, key, partition=partition)
    assert producer.flush(TIMEOUT_SECONDS) == 0


def options(registry: FakeRegistry) -> list[str]:
    login = ["--registry-user", "reader", "--registry-password", "pass word"]
    return ["--value-format", "avro", "--registry", registry.url, *login]


def present(value: Any) -> Any:
    """In Avro a field that a tuple lacks is null."""
    return {name: one for name, one in value.items() if one is not None}


def shown(row: Row, *names: str) -> dict[str, Any]:
    """A row's columns, the texts of rows as they are compared."""
    found = {name: row[name] for name in names}
    for name in {"before", "after", "_row"} & found.keys():
        found[name] = None if found[name] is None else present(json.loads(found[name]))
    return found


def events_in_json(registry: FakeRegistry) -> list[dict[str, Any]]:
    """What the daemon publishes of the same changes in JSON, as the columns of `changelog`, in the order of seq."""
    found = []
    for record in everything(registry, "json"):
        topic, key, value = (record.topic, None, record.value) if isinstance(record, Broadcast) else record
        if topic == "shop.users" and value is not None:
            event = json.loads(value)
            images = {name: event[name] and present(event[name]) for name in ("before", "after")}
            source = {name: event["source"][name] for name in ("seq", "lsn", "schema_version", "server_uuid")}
            found.append({"op": event["op"], "key": key and key.decode(), **images, **source})
    return found


def versions(events: Iterable[Mapping[str, Any]]) -> list[tuple[str, int, int | None]]:
    """Of each row: its key, the seq that begins it, the seq that ends it."""
    found: list[tuple[str, int, int | None]] = []
    open_ones: dict[str, int] = {}
    for event in events:
        ended = list(open_ones) if event["op"] == "t" else [event["key"]]
        found += [(key, open_ones.pop(key), event["seq"]) for key in ended if key in open_ones]
        if event["after"] is not None:
            open_ones[event["key"]] = event["seq"]
    return sorted([*found, *((key, seq, None) for key, seq in open_ones.items())], key=str)


@pytest.mark.spark
@pytest.mark.one_of_these("jobs that read Avro", seconds=50)
def test_a_job_makes_of_avro_what_it_makes_of_json(
    spark: SparkSession, registry: FakeRegistry, kafka: KafkaServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stream is converted for all of them alike. That each text is the same says test_avro_text.py."""
    wanted = events_in_json(registry)
    assert len(wanted) > 12
    daemon = Daemon(kafka.bootstrap_servers)
    daemon.create_topics("users", "schema", "snapshot")
    send(daemon, everything(registry, "avro", images=False))
    assert run.main(["materialize", *daemon.arguments(tmp_path), *options(registry)]) == 0, capsys.readouterr().err
    columns = ("op", "key", "before", "after", "seq")
    table = spark.read.format("delta").load(str(tmp_path / "tables")).orderBy("seq").collect()
    assert [shown(row, *columns) for row in table] == [{name: event[name] for name in columns} for event in wanted]


@pytest.mark.spark
@pytest.mark.soak
def test_other_jobs_make_of_avro_what_they_make_of_json(
    spark: SparkSession, registry: FakeRegistry, kafka: KafkaServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = events_in_json(registry)
    daemon = Daemon(kafka.bootstrap_servers)
    daemon.create_topics("users", "schema", "snapshot")
    send(daemon, everything(registry, "avro"))
    for job in ("current", "history", "audit"):
        assert run.main([job, *daemon.arguments(tmp_path / job), *options(registry)]) == 0, capsys.readouterr().err

    def table(job: str) -> list[Row]:
        return spark.read.format("delta").load(str(tmp_path / job / "tables" / "users")).collect()

    (truncated,) = (event["seq"] for event in wanted if event["op"] == "t")
    newest = {event["key"]: event["after"] for event in wanted if event["seq"] > truncated}
    current = [shown(row, "_key", "_row") for row in table("current")]
    assert {row["_key"]: row["_row"] for row in current} == newest
    history = [(row["_key"], row["_begin_seq"], row["_end_seq"]) for row in table("history")]
    assert sorted(history, key=str) == versions(wanted)


@pytest.mark.spark
@pytest.mark.one_of_these("jobs that read Avro")
def test_what_keeps_a_job_from_reading_avro_is_said_and_loses_nothing(
    spark: SparkSession, registry: FakeRegistry, kafka: KafkaServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = Daemon(kafka.bootstrap_servers)
    daemon.create_topics("users", "schema", "snapshot")
    records = everything(registry, "avro")
    send(daemon, records)
    # What isn't the Avro of its schema is a record like others that are no change event.
    event = next(one for one in records if not isinstance(one, Broadcast) and one[0] == "shop.users" and one[2] is not None)
    send(daemon, [("shop.users", event[1], (event[2] or b"")[:-1]), ("shop.users", event[1], event[2])])
    arguments = ["changelog", *daemon.arguments(tmp_path), *options(registry), "--on-error", "dead-letter"]
    registered = [(subject, text) for subject, texts in registry.subjects.items() for text in texts]
    registered.sort(key=lambda one: registry.register(*one))
    registry.forget(next_id=900)
    assert run.main(arguments) == 1
    assert "has no schema with the id" in capsys.readouterr().err
    registry.forget(next_id=40)
    for subject, text in registered:
        registry.register(subject, text)
    assert run.main(arguments) == 0
    (dead,) = spark.read.format("delta").load(str(tmp_path / "checkpoint_dead_letters")).collect()
    assert "holds something that is no change event" in dead["sentence"]
    assert "bytes that aren't the Avro of their schema" in dead["sentence"]
    wanted = events_in_json(registry)
    changelog = spark.read.format("delta").load(str(tmp_path / "tables")).where("op <> 'control'")
    found = {row["seq"]: shown(row, *wanted[0]) for row in changelog.collect()}
    assert found == {event["seq"]: event for event in wanted}


def test_a_registry_that_refuses_the_user_is_named(registry: FakeRegistry) -> None:
    number = registry.register("x-value", '"string"')
    with pytest.raises(JobError, match=r"refuses this user \(HTTP status 401\)\. Check --registry-user and --registry-password"):
        avro_records.as_json(Registry(registry.url, "reader", "let me in"))(b"\0" + number.to_bytes(4, "big"))


def test_options_that_lack_each_other_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["changes", "--bootstrap-servers", "x:1", "--prefix", "x", "--path", "x", "--checkpoint", "x"]
    for given, said in (
        (["--value-format", "avro"], "--value-format avro needs the registry's address"),
        (["--registry", "http://x"], "--registry has an effect only with --value-format avro"),
    ):
        with pytest.raises(SystemExit, match="2"):
            run.main([*arguments, *given])
        assert said in capsys.readouterr().err


def test_json_and_what_is_no_record_stay_as_they_are() -> None:
    convert = avro_records.as_json(Registry("http://127.0.0.1:1"))
    assert [convert(data) for data in (None, b"", b'{"id":1}')] == [None, b"", b'{"id":1}']


def test_a_registry_that_stays_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("spark_jobs.contract.registry.sleep", pauses.append)
    with pytest.raises(JobError, match=r"The registry http://127\.0\.0\.1:1 doesn't give the schema 7 .* refused"):
        Registry("http://127.0.0.1:1").schema(7)
    assert len(pauses) == 4


def test_a_failing_registry_is_asked_again(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    number = registry.register("x-value", '"string"')
    registry.failure = 503, {"message": "not now"}

    def back(_: float) -> None:
        registry.failure = None

    monkeypatch.setattr("spark_jobs.contract.registry.sleep", back)
    assert Registry(registry.url, "reader", "pass word").schema(number) == '"string"'
