"""Topics that somebody deletes: told, and the topic of forms filled again, by a publisher against a cluster of words."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from cdc.config.shard import Shard
from cdc.errors import CdcError, PublishError
from cdc.kafka import lost_topics, readers_view
from cdc.kafka.errors import ProducerLostError
from cdc.kafka.losses import Losses
from cdc.kafka.publisher import Publisher
from cdc.kafka.topic_ids import KnownIds, SeenTopics
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.schema.forms import StoredSpace
from cdc.stream.batches.batch import Batch, Broadcast
from cdc.stream.batches.covered import Covered
from cdc.stream.commits.checkpoint import Checkpoint, Writer
from cdc.stream.commits.losses import LostTopic
from cdc.stream.commits.publisher_statistics import PublisherStatistics
from tests.fakes.kafka import Cluster, clients
from tests.kafka.test_publisher import MODES, Mode, config_of, row, wait
from tests.live.waiting import wait_for

FORM = StoredSpace(
    512,
    [512, 1, "things", "memtx", 0, {}, [{"name": "id", "type": "unsigned"}]],
    {0: [512, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]]},
    3,
)

FORM_KEY = b'{"space_id":512,"schema_version":3}'
SNAPSHOT_KEY = b'{"snapshot_id":"1"}'


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers_view, "MARKERS_SECONDS", 0.1)
    monkeypatch.setattr(lost_topics, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr("cdc.kafka.publisher_loop.PROOF_SECONDS", 0.1)


@pytest.fixture
def published() -> Cluster:
    """A cluster with one space that was published, and its form."""
    cluster = Cluster()
    publisher = begin(cluster, "exactly_once")
    end = b'{"snapshot_id":"1","status":"COMPLETED","vclock":{"1":1},"seq":1,"spaces":[],"ts_ms":1}'
    found = batch(1, ("shop.schema", FORM_KEY, b"form"), ("shop.things", b"1", row(1)), ("shop.snapshot", SNAPSHOT_KEY, end))
    found.stored, found.topics = {512: FORM}, ["shop.schema", "shop.things", "shop.snapshot"]
    publisher.submit(found)
    wait(publisher)
    assert publisher.stop(20)
    return cluster


def begin(cluster: Cluster, mode: Mode, seen: SeenTopics | None = None) -> Publisher:
    publisher = Publisher("x", config_of(mode), Writer("writer", has_store=False), clients(cluster), topics_seen=seen)
    publisher.start()
    return publisher


def batch(number: int, *messages: Any) -> Batch:
    position = Position(VClock({1: number}), number, snapshot=SnapshotState(1, is_complete=True))
    return Batch(list(messages), 10, 1, 1, position, True, {}, ["shop.things"], 1.0)


def delete(cluster: Cluster, topic: str) -> None:
    del cluster.partitions[topic]
    cluster.records = [record for record in cluster.records if record[0] != topic]


@pytest.mark.parametrize("mode", MODES)
def test_rows_that_were_deleted_while_no_daemon_ran(published: Cluster, mode: Mode) -> None:
    delete(published, "shop.things")
    with structlog.testing.capture_logs() as logs:
        publisher = begin(published, mode)
        publisher.submit(batch(2, ("shop.things", b"2", row(2))))
        wait(publisher)
        assert publisher.stop(20)
    (said,) = [entry["event"] for entry in logs]
    assert said == (
        "the topic shop.things was deleted and has been created again, empty: `tarantool-cdc snapshot --config FILE "
        "things` sends its rows again"
    )


@pytest.mark.parametrize("mode", MODES)
def test_the_loss_is_told_until_the_rows_are_there_again(published: Cluster, mode: Mode) -> None:
    """By every publisher that comes after, of any process: the checkpoint topic has it."""
    delete(published, "shop.things")
    publisher = begin(published, mode)
    publisher.submit(batch(2, ("shop.things", b"2", row(2))))
    wait(publisher)
    assert lost(publisher) == [("shop.things", ("things",), 1)]
    assert publisher.stop(20)
    again = begin(published, mode)
    assert lost(again) == [("shop.things", ("things",), 1)]
    for number, covered, left in ((3, Covered("shop.things", "things", 0), 1), (4, Covered("shop.things", "things", 2), 0)):
        found = batch(number, ("shop.things", b"2", row(number)))
        found.covered = [covered]
        again.submit(found)
        wait(again)
        assert len(lost(again)) == left
    assert again.stop(20)
    last = begin(published, mode)
    assert not lost(last)
    assert last.stop(20)


def another_makes_it_again(cluster: Cluster, topic: str) -> None:
    cluster.records = [record for record in cluster.records if record[0] != topic]
    cluster.topic_ids[topic] = "another"


@pytest.mark.parametrize("mode", MODES)
def test_a_topic_that_somebody_else_makes_again(published: Cluster, mode: Mode) -> None:
    """It is there whenever the daemon looks; its id tells it, also to the next publisher. Once it is told, that is enough."""
    publisher = begin(published, mode)
    wait_for("a look", lambda: bool(publisher._lost_topics.losses.ids.changed({"shop.things": "none"})))
    another_makes_it_again(published, "shop.things")
    with structlog.testing.capture_logs() as logs:
        wait_for("the loss", lambda: bool(lost(publisher)))
        assert publisher.stop(20)
    assert [entry["event"].partition(" (")[0] for entry in logs] == ["the topic shop.things was deleted"], logs
    seen = publisher.topics_seen
    found = batch(2, ("shop.things", b"2", row(2)))
    found.covered = [Covered("shop.things", None, 0)]
    again = begin(published, mode, seen)
    again.submit(found)
    wait(again)
    assert again.stop(20)
    last = begin(published, mode, seen)
    assert not lost(last), "it was made up for"
    assert last.stop(20)
    another_makes_it_again(published, "shop.things")
    published.topic_ids["shop.things"] = "a third"
    next_run = begin(published, mode, SeenTopics(ids=KnownIds({"shop.things": "another"}, ["writer"])))
    assert len(lost(next_run)) == 1
    assert next_run.stop(20)


def test_a_topic_that_the_daemon_makes_again_for_a_truncation(published: Cluster) -> None:
    """Its id is another one, too, and nothing is lost that consumers need."""
    publisher = begin(published, "exactly_once")
    delete(published, "shop.things")
    published.topic_ids["shop.things"] = "another"
    found = batch(2, Broadcast("shop.things", b"t"))
    found.topics = ["shop.things"]
    publisher.submit(found)
    wait(publisher)
    looks = publisher._lost_topics._next_check
    wait_for("a look", lambda: publisher._lost_topics._next_check > looks)
    assert not lost(publisher)
    assert publisher.stop(20)


def test_it_is_on_record_before_the_topic_is_made_again(published: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a daemon that dies in between would find a topic that is there, and say nothing."""

    def die(*_: object) -> None:
        raise PublishError("killed")

    delete(published, "shop.things")
    publisher = begin(published, "exactly_once")
    monkeypatch.setattr("cdc.kafka.topic_admin.TopicAdmin._create", die)
    publisher.submit(batch(2, ("shop.things", b"2", row(2))))
    with pytest.raises(PublishError, match="killed"):
        until_it_ends(publisher.collect)
    publisher.stop(0)
    monkeypatch.undo()
    again = begin(published, "exactly_once")
    assert len(lost(again)) == 1
    assert again.stop(20)


def test_a_topic_that_was_only_not_listed_is_not_lost(published: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has just started lists some topics only, and refuses to make one that is there."""
    publisher = begin(published, "exactly_once")
    listed = published.topics
    calls = []

    def without_things(*arguments: Any, **others: Any) -> Any:
        found: Any = listed(*arguments, **others)
        calls.append(1)
        if len(calls) == 1:
            found.topics.pop("shop.things")
        return found

    monkeypatch.setattr(published, "topics", without_things)
    publisher.submit(batch(2, ("shop.things", b"2", row(2))))
    wait(publisher)
    assert not lost(publisher)
    assert publisher.stop(20)
    assert len(published.written("shop.checkpoint")) > 2  # it was noted, and withdrawn
    again = begin(published, "exactly_once")
    assert not lost(again)
    assert again.stop(20)


def test_a_loss_is_on_record_where_others_make_the_topic_again(published: Cluster) -> None:
    delete(published, "shop.things")
    config = config_of("exactly_once").model_copy(update={"create_topics": False})
    publisher = Publisher("x", config, Writer("writer", has_store=False), clients(published))
    publisher.start()
    publisher.submit(batch(2, ("shop.things", b"2", row(2))))
    with pytest.raises(PublishError, match=r"the topic shop\.things was deleted"):
        until_it_ends(publisher.collect)
    publisher.stop(0)
    published.partitions["shop.things"] = 4
    again = begin(published, "exactly_once")
    assert lost(again) == [("shop.things", ("things",), 1)]
    assert again.stop(20)


def test_a_daemon_at_rest_notices_that_rows_are_gone(published: Cluster) -> None:
    publisher = begin(published, "exactly_once")
    delete(published, "shop.things")
    wait_for("the loss", lambda: bool(lost(publisher)))
    assert "shop.things" not in published.partitions
    assert publisher.stop(20)


def test_a_look_that_misses_a_topic_once_says_nothing(published: Cluster) -> None:
    """A broker that has just started lists some topics only."""
    config, statistics = config_of("exactly_once"), PublisherStatistics()
    losses = Losses(config, clients(published), statistics)
    losses.begin(readers_view.ReadersView(config, "x", clients(published)).checkpoint())
    for existing in ([], ["shop.things"], []):
        losses.look(existing)
        assert not statistics.losses
    losses.look([])
    assert len(statistics.losses) == 1


def test_a_loss_knows_the_shards_whose_daemons_write_there(published: Cluster) -> None:
    """Whether it is noticed now, or was before this start: the remedy is typed for each of them."""
    shard = Shard("s1", "shop", "shop", ("s1", "s2"), shares_topics=True)
    config, statistics = config_of("exactly_once").of_shard(shard), PublisherStatistics()
    losses = Losses(config, clients(published), statistics)
    before = LostTopic("shop.before", ("before",), 1, 0)
    losses.begin(Checkpoint(losses={"shop.before": before}))
    losses.note({"shop.things": ["things"]})
    assert [(loss.topic, loss.shards) for loss in statistics.losses] == [
        ("shop.before", ("s1", "s2")),
        ("shop.things", ("s1", "s2")),
    ]


def test_one_without_rows_is_not_missed_while_its_first_snapshot_runs(published: Cluster) -> None:
    """Its topic may not have been made."""
    publisher = begin(published, "exactly_once")
    new = batch(2)
    new.position = Position(VClock({1: 2}), 2, snapshot=SnapshotState(2, is_complete=False))
    new.stored = {513: StoredSpace(513, [513, 1, "others", *FORM.space_row[3:]], {0: [513, *FORM.index_rows[0][1:]]}, 4)}
    new.topics = []
    publisher.submit(new)
    wait(publisher)
    commits = publisher.statistics.commit_count
    wait_for("some looks", lambda: publisher.statistics.commit_count > commits + 4)
    assert not lost(publisher)
    assert publisher.stop(20)


def lost(publisher: Publisher) -> list[tuple[str, tuple[str, ...], int]]:
    return [(loss.topic, loss.spaces, loss.seq) for loss in publisher.statistics.losses]


def test_nobody_misses_rows_of_a_space_that_is_truncated_or_dropped(published: Cluster) -> None:
    delete(published, "shop.things")
    with structlog.testing.capture_logs() as logs:
        publisher = begin(published, "exactly_once")
        publisher.submit(batch(2, Broadcast("shop.things", b"t"), ("shop.things", b"2", row(2))))
        wait(publisher)
        assert publisher.stop(20)
    assert not logs
    assert not lost(publisher)
    assert "shop.things" in published.partitions


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_there", [True, False])
def test_forms_are_written_again_at_a_start(published: Cluster, mode: Mode, *, is_there: bool) -> None:
    """Also where somebody has made the topic, without anything in it."""
    delete(published, "shop.schema")
    if is_there:
        published.partitions["shop.schema"] = 1
    with structlog.testing.capture_logs() as logs:
        assert begin(published, mode).stop(20)
    (said,) = logs
    assert said["event"].startswith("the topic shop.schema, which consumers need to read rows, was deleted")
    assert said["spaces"] == 1
    ((_, _, key, value),) = published.written("shop.schema")
    assert json.loads(key or b"") == {"space_id": 512, "schema_version": 3}
    told = json.loads(value or b"")
    (change,) = told["tableChanges"]
    assert (change["type"], change["table"]["columns"][0]["name"]) == ("CREATE", "id")
    assert (told["source"]["table"], told["source"]["seq"], told["source"]["snapshot"]) == ("things", 1, "true")
    with structlog.testing.capture_logs() as logs:
        assert begin(published, mode).stop(20)
    assert not logs
    assert len(published.written("shop.schema")) == 1


def test_a_daemon_at_work_notices_that_the_forms_are_gone(published: Cluster) -> None:
    publisher = begin(published, "exactly_once")
    delete(published, "shop.schema")
    with pytest.raises(ProducerLostError, match=r"shop\.schema was deleted"):
        until_it_ends(publisher.collect)
    publisher.stop(20)
    assert begin(published, "exactly_once").stop(20)
    assert len(published.written("shop.schema")) == 1


def test_so_does_one_that_has_published_its_first_forms(published: Cluster) -> None:
    """It had none to look for when it began."""
    delete(published, "shop.checkpoint")
    publisher = begin(published, "exactly_once")
    form = batch(1, ("shop.schema", FORM_KEY, b"form"))
    form.stored, form.topics = {512: FORM}, ["shop.schema"]
    publisher.submit(form)
    wait(publisher)
    delete(published, "shop.schema")
    with pytest.raises(ProducerLostError, match=r"shop\.schema was deleted"):
        until_it_ends(publisher.collect)
    publisher.stop(20)


@pytest.mark.parametrize(("is_first_start", "is_there"), [(True, False), (False, False), (False, True)])
def test_without_its_checkpoint_a_daemon_at_work_ends(published: Cluster, *, is_first_start: bool, is_there: bool) -> None:
    """And doesn't take it for another daemon's doing, nor for a first start, which would publish all rows unasked."""
    if is_first_start:
        delete(published, "shop.checkpoint")
    before = begin(published, "exactly_once")
    assert before.stop(20)
    delete(published, "shop.checkpoint")
    if is_there:
        published.partitions["shop.checkpoint"] = 1
    after = Publisher(
        "x", config_of("exactly_once"), Writer("writer", has_store=False), clients(published), topics_seen=before.topics_seen
    )
    with structlog.testing.capture_logs() as logs, pytest.raises(PublishError) as caught:
        after.start(expected_writers={"writer", None if is_first_start else "former"})
    after.stop(0)
    assert str(caught.value).startswith(
        "the topic shop.checkpoint was deleted, and with it this daemon's checkpoint. Start once with --rebuild-state"
    )
    assert not logs


@pytest.mark.parametrize("mode", MODES)
def test_a_form_that_is_missing_among_others_is_written_again(published: Cluster, mode: Mode) -> None:
    """Compaction is off, or somebody deleted records up to an offset."""
    other = StoredSpace(513, [513, 1, "others", *FORM.space_row[3:]], {0: [513, *FORM.index_rows[0][1:]]}, 4)
    publisher = begin(published, mode)
    found = batch(2, ("shop.schema", b'{"space_id":513,"schema_version":4}', b"form"))
    found.stored = {513: other}
    publisher.submit(found)
    wait(publisher)
    assert publisher.stop(20)
    published.expire("shop.schema", 1)
    with structlog.testing.capture_logs() as logs:
        assert begin(published, mode).stop(20)
    (said,) = logs
    assert said["event"].startswith("the topic shop.schema lacked current forms of spaces")
    assert said["spaces"] == 1
    assert [key for _, _, key, _ in published.written("shop.schema")[2:]] == [FORM_KEY]
    with structlog.testing.capture_logs() as logs:
        assert begin(published, mode).stop(20)
    assert not logs


@pytest.mark.parametrize("mode", MODES)
def test_the_end_of_the_last_snapshot_is_written_again(published: Cluster, mode: Mode) -> None:
    published.expire("shop.snapshot", 1)
    with structlog.testing.capture_logs() as logs:
        assert begin(published, mode).stop(20)
    (said,) = logs
    assert said["event"].startswith("the topic shop.snapshot lacked the end of the last snapshot")
    _, (_, _, key, value) = published.written("shop.snapshot")
    assert key == SNAPSHOT_KEY
    told = json.loads(value or b"")
    assert (told["status"], told["seq"], told["spaces"]) == ("COMPLETED", 1, [])
    with structlog.testing.capture_logs() as logs:
        assert begin(published, mode).stop(20)
    assert not logs


@pytest.mark.parametrize("topic", ["shop.schema", "shop.snapshot"])
def test_a_daemon_at_work_notices_that_records_have_expired(published: Cluster, topic: str) -> None:
    publisher = begin(published, "exactly_once")
    published.expire(topic, 1)
    with pytest.raises(ProducerLostError, match=rf"first records of the topic {topic} were deleted"):
        until_it_ends(publisher.collect)
    publisher.stop(20)
    assert begin(published, "exactly_once").stop(20)
    assert len(published.written(topic)) == 2


def test_so_does_one_whose_first_forms_have_expired() -> None:
    """There was no topic when it began."""
    cluster = Cluster()
    publisher = begin(cluster, "exactly_once")
    form = batch(1, ("shop.schema", FORM_KEY, b"form"))
    form.stored, form.topics = {512: FORM}, ["shop.schema"]
    publisher.submit(form)
    wait(publisher)
    cluster.expire("shop.schema", 1)
    with pytest.raises(ProducerLostError, match=r"first records of the topic shop\.schema"):
        until_it_ends(publisher.collect)
    publisher.stop(20)


def until_it_ends(collect: Callable[[], object]) -> None:
    """Raises what it raises."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        collect()
        time.sleep(0.01)
    raise CdcError("it doesn't end")
