"""Topics in Avro, through the jobs: with a real broker, a registry, and what a daemon makes of a master's changes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from cdc.formats.options import Format, FormatOptions, Registration
from cdc.local.interface import KafkaServer
from cdc.stream.batch import Broadcast
from spark_jobs import run
from spark_jobs.contract import avro_records
from spark_jobs.contract.registry import Registry
from spark_jobs.current import read_current
from spark_jobs.errors import JobError
from tests.fakes.master import Master
from tests.fakes.registry import FakeRegistry
from tests.fakes.replica import Replica
from tests.formats.test_events import FORMAT, ROW, work
from tests.spark.test_live import PARTITIONS, TIMEOUT_SECONDS, Daemon


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry(first_id=40, user="reader:pass word") as started:
        yield started


def everything(registry: FakeRegistry, kind: Format) -> list[Broadcast | tuple[str, bytes | None, bytes | None]]:
    """All that a daemon publishes in a format, its schemas in the registry."""

    def number(wanted: Registration) -> int:
        return registry.register(wanted.subject, wanted.text)

    master = Master("2.11")
    master.create_space("users", FORMAT)
    replica = Replica(master, images=True, formats=FormatOptions(kind, kind, schema_ids=number))
    replica.connect()
    master.insert("users", 1, "one", 10)
    work(master)
    master.insert("users", *ROW)
    master.insert("users", 5, "five", 5)
    replica.relay.relay()
    replica.receive()
    replica.commit()
    return list(replica.news())


def send(daemon: Daemon, records: Iterable[Broadcast | tuple[str, bytes | None, bytes | None]]) -> None:
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


def rows(frame: DataFrame, *texts: str) -> list[Any]:
    """A table's rows, the texts of JSON as values, without what differs between two runs."""
    kept = [name for name in frame.columns if name != "topic" and not name.startswith("kafka_")]
    found = [row.asDict(recursive=True) for row in frame.select(kept).collect()]
    for row in found:
        for name in texts:
            row[name] = None if row[name] is None else present(json.loads(row[name]))
    return sorted(found, key=lambda row: str(sorted(row.items(), key=str)))


def present(value: Any) -> Any:
    """In Avro a field that a tuple lacks is null."""
    return {name: one for name, one in value.items() if one is not None}


@pytest.mark.spark
def test_jobs_make_of_avro_what_they_make_of_json(
    spark: SparkSession, registry: FakeRegistry, kafka: KafkaServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables: dict[str, dict[str, list[Any]]] = {"json": {}, "avro": {}}
    kinds: tuple[Format, ...] = ("json", "avro")
    for kind in kinds:
        daemon = Daemon(kafka.bootstrap_servers)
        daemon.create_topics("users", "schema", "snapshot")
        send(daemon, everything(registry, kind))
        given = options(registry) if kind == "avro" else []
        for job in ("changelog", "current"):
            place = tmp_path / kind / job
            assert run.main([job, *daemon.arguments(place), *given]) == 0, capsys.readouterr().err
            assert " seq=11 " in capsys.readouterr().err
        changelog = spark.read.format("delta").load(str(tmp_path / kind / "changelog" / "tables"))
        tables[kind]["changelog"] = rows(changelog.where("op <> 'control'"), "before", "after")
        current = read_current(spark, str(tmp_path / kind / "current" / "tables" / "users"))
        tables[kind]["current"] = rows(current, "_row")
    assert len(tables["json"]["changelog"]) > 8
    assert tables["avro"]["changelog"] == tables["json"]["changelog"]
    assert len(tables["json"]["current"]) == 2
    assert tables["avro"]["current"] == tables["json"]["current"]


@pytest.mark.spark
def test_what_keeps_a_job_from_reading_avro_is_said_and_loses_nothing(
    spark: SparkSession, registry: FakeRegistry, kafka: KafkaServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = Daemon(kafka.bootstrap_servers)
    daemon.create_topics("users", "schema", "snapshot")
    records = everything(registry, "avro")
    send(daemon, records)
    arguments = ["changelog", *daemon.arguments(tmp_path)]
    wrong = [*options(registry)[:-1], "let me in"]
    assert run.main([*arguments, *wrong]) == 1
    assert "refuses this user (HTTP status 401). Check --registry-user and --registry-password" in capsys.readouterr().err
    registered = [(subject, text) for subject, texts in registry.subjects.items() for text in texts]
    registered.sort(key=lambda one: registry.register(*one))
    registry.forget(next_id=900)
    assert run.main([*arguments, *options(registry)]) == 1
    assert "has no schema with the id" in capsys.readouterr().err
    registry.forget(next_id=40)
    for subject, text in registered:
        registry.register(subject, text)
    # What isn't the Avro of its schema is a record like others that are no change event.
    event = next(one for one in records if not isinstance(one, Broadcast) and one[0] == "shop.users" and one[2] is not None)
    send(daemon, [("shop.users", event[1], (event[2] or b"")[:-1]), ("shop.users", event[1], event[2])])
    assert run.main([*arguments, *options(registry)]) == 1
    told = capsys.readouterr().err
    assert "holds something that is no change event" in told
    assert "bytes that aren't the Avro of their schema" in told
    assert run.main([*arguments, *options(registry), "--on-error", "dead-letter"]) == 0
    dead = spark.read.format("delta").load(str(tmp_path / "checkpoint_dead_letters"))
    assert dead.count() == 1


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
