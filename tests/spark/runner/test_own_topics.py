"""Topics and clusters that aren't a job's own, with a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc.local.interface import KafkaServer
from spark_jobs import run
from tests.spark.messages import Message, put, schema
from tests.spark.test_live import TIMEOUT_SECONDS, Daemon, daemon

__all__ = ["daemon"]
pytestmark = pytest.mark.spark


def other(kafka: KafkaServer, prefix: str) -> Daemon:
    """Another daemon on the same cluster."""
    found = Daemon(kafka.bootstrap_servers)
    found.prefix = prefix
    found.create_topics("schema", "users")
    found.send(schema(0), put("c", {"id": 7, "name": "foreign"}, 1))
    return found


@pytest.mark.parametrize("job", ["changelog", pytest.param("history", marks=pytest.mark.soak)])
@pytest.mark.one_of_these("own topics")
def test_only_the_daemons_own_topics_and_events_count(
    spark: SparkSession, kafka: KafkaServer, daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str], job: str
) -> None:
    daemon.create_topics("users_archive", "old_users", "schema_migrations", "notes", "signal", "notification")
    own = [
        put("c", {"id": 1, "name": "a"}, number, space=space) for number, space in enumerate(("users", "schema_migrations"), 1)
    ]
    daemon.send(schema(0), schema(0, space="schema_migrations", space_id=513), *own)
    # In a topic of its own there may be events of a daemon whose prefix and space make the same name.
    daemon.send(Message("shop.users", '{"id":1}', (own[0].value or "").replace('"name":"shop"', '"name":"sh"')))
    daemon.send(Message("shop.notes", "key", "of another program"))
    # Control topics that only some daemons have.
    daemon.send(Message("shop.signal", "shop", "{"), Message("shop.notification", '{"id":"1"}', '{"id":"1","type":"STARTED"}'))
    for prefix in (f"e{daemon.prefix}", f"{daemon.prefix}.eu", f"{daemon.prefix}-eu"):
        other(kafka, prefix)
    arguments = daemon.arguments(tmp_path)
    assert run.main([job, *arguments]) == 0, capsys.readouterr().err
    said = capsys.readouterr().err
    eu = f"{daemon.prefix}.eu"
    assert f"{job}: leaves out the topic {eu}.users: its events are those of '{eu}', and " in said
    assert f"leaves out the topic {daemon.prefix}.notes: its events are those of no daemon" in said
    assert not [name for name in ("signal", "notification") if f"{daemon.prefix}.{name}" in said]
    path = tmp_path / "tables" / ("_versions" if job == "history" else "")
    rows = spark.read.format("delta").load(str(path)).where("space not like '~%'").collect()
    assert {(row["space"], row["seq"]) for row in rows} == {("users", 1), ("schema_migrations", 2)}
    # A space that is created later, and one whose form is no longer there.
    daemon.create_topics("orders", "lost")
    daemon.send(schema(2, space="orders", space_id=514), put("c", {"id": 1}, 3, space="orders", space_id=514))
    daemon.send(put("c", {"id": 1}, 4, space="lost", space_id=515))
    assert run.main([job, *arguments]) == 0
    rows = spark.read.format("delta").load(str(path)).where("space not like '~%'").collect()
    assert sorted(row["seq"] for row in rows) == [1, 2, 3, 4]
    # Fewer spaces: what is left out isn't gone in silence.
    assert run.main([job, *arguments, "--spaces", "users"]) == 1
    assert "Start it with the former --spaces" in capsys.readouterr().err
    # From now on its rows go to another topic, which the job wouldn't find by the space's name.
    moved = json.loads(schema(5, space="orders", space_id=514, version=2).value or "")
    moved["tableChanges"][0]["topic"] = "sales"
    daemon.send(Message("shop.schema", '{"space_id":514,"schema_version":2}', json.dumps(moved)))
    daemon.send(put("c", {"id": 2}, 6))
    assert run.main([job, *arguments]) == 1
    said = capsys.readouterr().err
    assert f"the rows of 'orders' to {daemon.prefix}.sales" in said
    assert "--spaces" in said


@pytest.mark.one_of_these("own topics")
def test_without_forms_an_event_of_another_daemon_ends_the_job(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lone = Daemon(kafka.bootstrap_servers)
    lone.create_topics("users")
    lone.send(put("c", {"id": 1}, 1))
    arguments = lone.arguments(tmp_path)
    assert run.main(["changelog", *arguments]) == 0
    assert f"the topic {lone.prefix}.schema, which tells whose topics these are, is missing" in capsys.readouterr().err
    assert spark.read.format("delta").load(str(tmp_path / "tables")).count() == 1
    lone.send(Message("shop.users", '{"id":1}', (put("c", {"id": 1}, 2).value or "").replace('"name":"shop"', '"name":"sh"')))
    assert run.main(["changelog", *arguments]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "has an event of the daemon sh, and the topic" in last
    # Mirrored with its forms, the name needn't be the prefix.
    lone.create_topics("schema")
    lone.send(Message("shop.schema", "{}", (schema(0).value or "").replace('"name":"shop"', '"name":"sh"')))
    assert run.main(["changelog", *arguments]) == 0
    assert sorted(row["seq"] for row in spark.read.format("delta").load(str(tmp_path / "tables")).collect()) == [1, 2]


def test_a_prefix_without_topics_is_an_error_that_says_what_there_is(
    spark: SparkSession, daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is SparkSession.getActiveSession()
    daemon.send(put("c", {"id": 1}, 1))
    wrong = [f"{word}x" if word == daemon.prefix else word for word in daemon.arguments(tmp_path)]
    assert run.main(["current", *wrong]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"has no topic whose name begins with '{daemon.prefix}x.'. Check --prefix" in last
    assert daemon.prefix in last.partition("Prefixes there:")[2]
    assert run.main(["current", *daemon.arguments(tmp_path), "--spaces", "usrs"]) == 1
    assert "--spaces 'usrs' selects none of the spaces with topics: users." in capsys.readouterr().err


@pytest.mark.one_of_these("own topics")
def test_another_cluster_and_a_topic_that_was_made_anew_end_the_job(
    spark: SparkSession, daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is SparkSession.getActiveSession()
    daemon.send(schema(0), put("c", {"id": 1}, 1))
    assert run.main(["changes", *daemon.arguments(tmp_path)]) == 0
    kept = tmp_path / "checkpoint" / "tarantool_cdc_kafka.json"
    before = json.loads(kept.read_text())
    assert {f"{daemon.prefix}.{name}" for name in ("users", "schema", "snapshot")} == before["topics"].keys()
    kept.write_text(json.dumps({**before, "cluster": "another"}))
    assert run.main(["changes", *daemon.arguments(tmp_path)]) == 1
    assert "has offsets of the Kafka cluster another, and 127.0.0.1" in capsys.readouterr().err
    kept.write_text(json.dumps(before))
    daemon._admin.delete_topics([f"{daemon.prefix}.users"])[f"{daemon.prefix}.users"].result(TIMEOUT_SECONDS)
    while f"{daemon.prefix}.users" in daemon._admin.list_topics(timeout=TIMEOUT_SECONDS).topics:
        pass
    daemon.create_topics("users")
    daemon.send(*(put("c", {"id": number}, number) for number in range(2, 9)))
    assert run.main(["changes", *daemon.arguments(tmp_path)]) == 1
    assert f"the topic {daemon.prefix}.users was deleted and created again" in capsys.readouterr().err
