"""What `check` finds that `run` would regret: patterns that fit nothing, and a state.path that can't be used."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.commands.check_start import (
    of_cluster,
    of_columns,
    of_deleted_topics,
    of_filters,
    of_kafka,
    of_limits,
    of_lost_forms,
    of_missing_topics,
    of_patterns,
    of_replicaset_name,
    of_settings,
    of_signal_topic,
    of_state_path,
    of_store,
    runs_already,
)
from cdc.config import Config, parse
from cdc.daemon import admission
from cdc.daemon.admission import StateDirectoryLock
from cdc.events.columns import ColumnRules
from cdc.kafka.readers_view import ReadersView
from cdc.kafka.topic_settings import Setting
from cdc.ops import asking
from cdc.ops.troubles import STORE_REMEDY, STORE_REMOVED
from cdc.positions.numbers import Numbers
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.schema.forms import Field, KeyPart, SpaceForm, StoredSpace
from cdc.store.files import daemon_named, is_locked
from cdc.store.numbers_file import NumbersFile
from cdc.store.store import StateStore
from cdc.stream.commits.checkpoint import Checkpoint, Sign, fold, owner_record, sign_record
from cdc.stream.commits.losses import LostTopic
from tests import test_fleet_config
from tests.fakes.kafka import Cluster, clients
from tests.fakes.shop import Shop

SPACES = [(280, "_space"), (512, "users"), (513, "orders"), (514, "sessions")]


def config(**sections: dict[str, Any]) -> Config:
    values: dict[str, Any] = {
        "name": "shop",
        "source": {"uris": ["h:1"]},
        "kafka": {"bootstrap_servers": "k:1", "topic_prefix": "shop"},
    }
    return parse(values | sections, "the test")


def failures(findings: Iterable[Any]) -> list[str]:
    return [str(finding) for finding in findings if finding.is_failure]


@pytest.mark.parametrize(
    ("spaces", "words"),
    [
        (
            {"include": ["userz"]},
            ["spaces.include: FAILED: 'userz' matches no space; 'users' looks like it", "no space would be"],
        ),
        (
            {"include": ["users", "ordr"]},
            ["'ordr' matches no space; 'orders' looks like it. The spaces are: orders, sessions, users"],
        ),
        ({"include": ["user"]}, ["'user' matches no space", "no space would be"]),
        (
            {"include": [".*"], "exclude": ["session"]},
            ["spaces.exclude: FAILED: 'session' matches no space; 'sessions' looks like it"],
        ),
        ({"exclude": ["ess"]}, ["a pattern has to match the whole name, as '.*ess.*' would match 'sessions'"]),
        ({"exclude": [".*"]}, ["no space would be published. The spaces are: orders, sessions, users"]),
        ({"include": ["space"]}, ["'space' matches no space", "no space would be"]),
    ],
)
def test_patterns_that_fit_nothing(spaces: dict[str, list[str]], words: list[str]) -> None:
    found = failures(of_patterns(config(spaces=spaces), SPACES))
    assert len(found) == len(words), found
    for text, word in zip(found, words, strict=True):
        assert word in text


@pytest.mark.parametrize(
    "spaces", [{}, {"include": ["us.*", "_space"]}, {"exclude": ["sessions", "_sp.*"]}, {"include": ["_.*"]}]
)
def test_patterns_that_fit(spaces: dict[str, list[str]]) -> None:
    assert not failures(of_patterns(config(spaces=spaces), SPACES))


def test_a_master_without_spaces_is_no_mistake() -> None:
    (found,) = of_patterns(config(), [(280, "_space")])
    assert not found.is_failure
    assert str(found) == (
        "spaces: warning: no space would be published. The server has no spaces of its own yet: create one, which a running "
        "daemon takes up, or check that source.uris names the right server."
    )
    assert failures(of_patterns(config(spaces={"include": ["users"]}), [(280, "_space")]))


def test_control_topics_that_lose_what_they_have() -> None:
    good = {topic: {"cleanup.policy": Setting("compact")} for topic in ("shop.checkpoint", "shop.schema")}
    assert not list(of_settings(config(), good))
    assert not list(of_settings(config(), {})), "who may not ask learns nothing"
    for topic in good:
        for policy in ("delete", "compact,delete"):
            (found,) = map(str, of_settings(config(), good | {topic: {"cleanup.policy": Setting(policy)}}))
            assert found.startswith(f"{topic}: warning: its cleanup.policy is {policy!r}")
            command = f"--alter --entity-type topics --entity-name {topic} --add-config cleanup.policy=compact"
            assert found.endswith(f"kafka-configs.sh --bootstrap-server k:1 {command}")


def test_topics_that_accept_less_than_may_come() -> None:
    settings = {"shop.users": {"max.message.bytes": Setting("100000")}, "shop.orders": {"max.message.bytes": Setting("99999999")}}
    (found,) = of_limits(config(), settings)
    assert str(found).startswith("shop.users: warning: its max.message.bytes is 100000, less than kafka.message_bytes_max")
    assert not list(of_limits(config(), {"shop.users": {}}))


def test_forms_that_the_topic_has_lost_and_the_store_has() -> None:
    at, users = Position(VClock({1: 5}), snapshot=SnapshotState(1, is_complete=True)), StoredSpace(512, [512], {}, 1)
    stored, in_store = Checkpoint(at), Checkpoint(at, {512: users})
    (found,) = map(str, of_lost_forms(config(), stored, in_store))
    assert found.startswith("shop.checkpoint: warning: the topic shop.checkpoint has lost the forms of 1 space, which are taken")
    assert stored.spaces == {512: users}, "what follows is found out as by a start"
    assert not list(of_lost_forms(config(), stored, in_store))
    assert not list(of_lost_forms(config(), Checkpoint(at), None))


def test_another_kafka_than_in_the_last_run(tmp_path: Path) -> None:
    own = config(state={"path": str(tmp_path)})
    admin = clients(Cluster()).admin()
    assert not list(of_cluster(own, Checkpoint(), admin, "a")), "nothing is known of an earlier one"
    NumbersFile(tmp_path, "shop", "shop").begin("a", "exactly_once")
    assert not list(of_cluster(own, Checkpoint(), admin, "a"))
    assert not list(of_cluster(own, Checkpoint(), admin, None))
    (found,) = map(str, of_cluster(own, Checkpoint(), admin, "b"))
    assert found.startswith("kafka.bootstrap_servers: warning: this is another Kafka than in the last run: its cluster id is b, ")


@pytest.mark.parametrize("what", ["the state store has rows", "the file numbers in state.path counts events"])
def test_a_kafka_that_has_nothing_of_what_was_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """It may be the wrong one, which would get all rows, and the state store would be emptied for it."""
    monkeypatch.setattr(ReadersView, "newest_numbers", lambda _: Numbers())
    monkeypatch.setattr(admission, "check_alone", lambda *_: None)
    own = config(state={"path": str(tmp_path)}, http={"listen": ""})
    assert not failures(of_kafka(own, Checkpoint()))
    at = Position(VClock({1: 5}), 180, snapshot=SnapshotState(1, is_complete=True))
    store = at if "store" in what else None
    if store is None:
        NumbersFile(tmp_path, "shop", "shop").close(at)
    (found,) = failures(of_kafka(own, Checkpoint(), store))
    assert "there is no checkpoint of the daemon 'shop' in shop.checkpoint, and no event of shop at k:1" in found
    assert f"but {what} up to seq 180: this is another Kafka, or it has lost its topics" in found
    assert "correct kafka.bootstrap_servers. Otherwise start once with --rebuild-state" in found
    assert "with seqs from 181 on" in found


def test_with_the_prefix_of_another_daemon_its_events_are_no_lost_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is to be rebuilt: the remedy is a prefix of its own."""
    monkeypatch.setattr(ReadersView, "newest_numbers", lambda _: Numbers(7))
    monkeypatch.setattr(admission, "check_alone", lambda *_: None)
    monkeypatch.setattr(admission, "read", lambda _: Checkpoint(Position()))
    own = config(http={"listen": ""})
    (begun,) = failures(of_kafka(own, Checkpoint()))
    assert "another daemon of this name has begun meanwhile" in begun
    monkeypatch.setattr(admission, "read", lambda _: Checkpoint())
    (lost,) = failures(of_kafka(own, Checkpoint()))
    assert "--rebuild-state" in lost
    assert "put it back first, with `position set FILE`" in lost
    foreign = Checkpoint()
    fold("shop", *owner_record("other", 1), foreign)
    (found,) = failures(of_kafka(own, foreign))
    assert found.startswith("kafka.topic_prefix: FAILED: kafka.topic_prefix 'shop' belongs to the daemon 'other'")
    assert "--rebuild-state" not in found


def test_the_daemon_whose_checkpoint_was_deleted_is_still_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be told to end itself, or to have another state.path."""
    monkeypatch.setattr(ReadersView, "newest_numbers", lambda _: Numbers(7))
    own = config(state={"path": str(tmp_path)}, http={"listen": "127.0.0.1:1"})
    store = StateStore(admission.store_path(own), daemon_named("shop"))
    monkeypatch.setattr(asking, "name_at", lambda *_: "shop")
    assert [finding.key for finding in of_kafka(own, Checkpoint())] == ["shop.checkpoint", "name"]
    monkeypatch.setattr(asking, "name_at", lambda *_: "other")
    *_, path = of_kafka(own, Checkpoint())
    assert path.key == "state.path"
    assert f"in use by the daemon 'shop', process {os.getpid()}. Stop that one first." in path.sentence
    store.close()


@pytest.mark.parametrize("listen", ["", "127.0.0.1:1"])
def test_a_standby_that_runs_is_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listen: str) -> None:
    """It would be told to stop a daemon, which is itself, or to have another name."""
    own = config(state={"path": str(tmp_path)}, http={"listen": listen}).model_copy(update={"standby": True})
    stored = Checkpoint(Position(), writer="other", transactional_id="shop")
    fold("shop", *sign_record("shop", Sign("other", "there", 7, 1)), stored)
    store = StateStore(admission.store_path(own), daemon_named("shop"))
    (tmp_path / "images" / "writers").write_text("ours")
    monkeypatch.setattr(asking, "_status_at", lambda *_: {"name": "shop", "process_id": 8, "standby": {"is_ready": True}})
    found = [each for each in of_kafka(own, stored) if each.key != "shop.checkpoint"]
    assert [str(each) for each in found] == [f"name: it is this one, process {os.getpid()}, the standby of process 7 on there"]
    if listen:
        monkeypatch.setattr(asking, "_status_at", lambda *_: {"name": "shop", "process_id": 8, "standby": None})
        assert "state.path" in [each.key for each in of_kafka(own, stored) if each.is_failure]
    store.close()


def test_a_daemon_whose_store_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own words are all that is told: it holds no folder any more, and seems another daemon of the name."""
    own = config(state={"path": str(tmp_path)}, http={"listen": "127.0.0.1:1"})
    stored = Checkpoint(Position(), writer="writer-1", transactional_id="shop")
    fold("shop", *sign_record("shop", Sign("writer-1", "vm", 42, time.time_ns() // 1_000_000)), stored)
    status = {"name": "shop", "process_id": 42, "store": {"is_removed": True}}
    monkeypatch.setattr(asking, "_status_at", lambda *_: status)
    monkeypatch.setattr(asking, "_get", lambda *_: status)
    found = [each for each in of_kafka(own, stored) if each.key != "shop.checkpoint"]
    found += of_state_path(own, stored, is_running=True)
    assert [(each.key, each.sentence) for each in found if each.is_failure] == [
        ("state.path", f"{STORE_REMOVED}. {STORE_REMEDY}"),
    ]
    assert runs_already(own, stored)
    status["store"] = {"is_removed": False}
    assert not runs_already(own, stored), "it has its store elsewhere"


def test_a_store_that_verify_has_is_no_daemon_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` would stop there, though the checkpoint was written last by a daemon in this directory."""
    monkeypatch.setattr(ReadersView, "newest_numbers", lambda _: Numbers(0))
    own = config(state={"path": str(tmp_path)}, http={"listen": ""})
    stored = Checkpoint()
    fold("shop", *sign_record("shop", Sign("writer-1", "vm", 42, 1)), stored)
    none = config(state={"path": str(tmp_path), "images": "none"})
    directory_lock = StateDirectoryLock(none)
    directory_lock.record_holder("writer-1")
    assert runs_already(own, stored)
    directory_lock.close()
    store = StateStore(admission.store_path(own), "`verify` of 'shop'")
    assert not runs_already(own, stored)
    (found,) = [each for each in of_kafka(own, stored) if each.is_failure]
    assert str(found).startswith("state.path: FAILED: the state store ")
    assert f"is in use by `verify` of 'shop', process {os.getpid()}. Stop that one first." in found.sentence
    store.close()


@pytest.mark.parametrize("listens", [True, False])
def test_a_daemon_that_is_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, listens: bool) -> None:
    """It holds its locks, and the system takes connections for it; the time of its last sign of life tells it without these."""
    monkeypatch.setattr(ReadersView, "newest_numbers", lambda _: Numbers(0))
    monkeypatch.setattr(asking, "STATUS_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        frozen = config(state={"path": str(tmp_path), "images": "none"}, http={"listen": address if listens else ""})
        directory_lock = StateDirectoryLock(frozen)
        directory_lock.record_holder("writer-1")
        for age_ms, is_silent in ((1_000, listens), (60_000, True)):
            stored = Checkpoint()
            fold("shop", *sign_record("shop", Sign("writer-1", "vm", 42, time.time_ns() // 1_000_000 - age_ms)), stored)
            (found,) = [each for each in of_kafka(frozen, stored) if each.key == "name"]
            assert (found.is_failure, found.is_silence) == (is_silent, is_silent)
            text = f"the daemon 'shop' runs, and doesn't answer: its process {os.getpid()} has answered nothing for "
            assert found.sentence.startswith(text) == is_silent
            assert (f"`kill -9 {os.getpid()}` ends it" in found.sentence) == is_silent
        directory_lock.close()


def test_the_replica_set_has_another_name(tmp_path: Path) -> None:
    """Only vshard's names in shared topics matter; a server before 3.0 has none."""
    shared, apart = (test_fleet_config.fleet(tmp_path, f'topics = "{topics}"').shard("s1") for topics in ("shared", "per_shard"))
    (found,) = of_replicaset_name(shared, "storage-1")
    assert (found.key, found.is_failure) == ("fleet.shards.s1.replicaset_name", False)
    assert 'Set replicaset_name = "storage-1"' in found.sentence
    for config_, name in ((shared, "s1"), (shared, None), (apart, "storage-1"), (config(), "storage-1")):
        assert not list(of_replicaset_name(config_, name))


def test_topics_of_signals_and_notifications() -> None:
    kafka = {"bootstrap_servers": "k:1", "topic_prefix": "shop", "create_topics": False}
    on, off = (config(kafka={**kafka, "signal_topic": is_on, "notification_topic": is_on}) for is_on in (True, False))
    there = ["shop.checkpoint", "shop.schema", "shop.snapshot", "shop.transaction"]
    (missing,) = failures(of_missing_topics(on, [], there))
    assert "shop.notification, shop.signal are missing" in missing
    assert not failures(of_missing_topics(off, [], there))
    (wrong,) = of_signal_topic(on, {"shop.signal": 3})
    assert "has 3 partitions" in wrong.sentence
    assert not [*of_signal_topic(on, {"shop.signal": 1}), *of_signal_topic(on, {}), *of_signal_topic(off, {"shop.signal": 3})]


def test_filters_of_the_first_snapshot() -> None:
    shop = Shop()
    forms = shop.replica.pipeline.published_forms()
    filters = {"users": "row.nothing > 1", "us.*": "row.id > 1", "nobody": "true"}
    found = list(of_filters(config(snapshot={"filters": filters}), forms))
    assert [finding.is_failure for finding in found] == [True, False]
    assert "'nothing'" in found[0].sentence
    assert "'nobody' matches none" in found[1].sentence
    assert not list(of_filters(config(snapshot={"filters": {"us.*": "row.id > 1"}}), forms))


def test_topics_that_were_deleted(tmp_path: Path) -> None:
    """Those that the checkpoint has as published, and no others: a new space's topic, say, was never there."""
    shared = test_fleet_config.fleet(tmp_path).shard("s1")
    stored = Checkpoint(
        position=Position(VClock({1: 5}), 5, snapshot=SnapshotState(1, is_complete=True)),
        spaces={
            512: StoredSpace(512, [512, 1, "us ers", "memtx", 0, {}, []], {0: [512, 0, "pk", "tree", {}, [[0, "unsigned"]]]}, 1),
            513: StoredSpace(513, [513, 1, "hidden", "memtx", 0, {}, []], {0: [513, 0, "pk", "tree", {}, [[0, "unsigned"]]]}, 0),
        },
    )
    spaces = ["shop.us_ers", "shop.hidden", "shop.new"]
    lines = list(map(str, of_deleted_topics(config(), spaces, ["shop.schema"], stored)))
    assert lines == [
        "shop.us_ers: warning: it was deleted, and what was published there is gone. While the daemon runs, "
        "`tarantool-cdc snapshot --config FILE 'us ers'` sends its rows again"
    ]
    other = of_deleted_topics(shared, spaces, [], stored, is_ours=False)
    assert not list(other), "with another fleet.topics, they have never been there"
    own = config(kafka={"bootstrap_servers": "k:1", "topic_prefix": "shop", "create_topics": False})
    (said,) = map(str, of_deleted_topics(own, spaces, ["shop.schema"], stored))
    assert "gone. Once it is there again and the daemon runs, `tarantool-cdc snapshot" in said
    (said,) = map(str, of_deleted_topics(shared, spaces, ["shop.s1.schema"], stored))
    assert "snapshot --config FILE --shard s1 'us ers'` (and the same for each other shard: s2) sends its rows again" in said
    (said,) = map(str, of_deleted_topics(config(), spaces, ["shop.us_ers"], stored))
    assert said.startswith("shop.schema: warning: it was deleted, and without it consumers can't read rows")
    assert not list(of_deleted_topics(config(), ["shop.new"], [], Checkpoint()))
    loss = LostTopic("shop.us_ers", ("us ers",), 5, 0)
    stored.losses = {"shop.us_ers": loss}
    for existing in (["shop.schema"], ["shop.schema", "shop.us_ers"]):  # also once it is made again
        (finding,) = of_deleted_topics(config(), spaces, existing, stored)
        assert finding.loses_rows
        assert finding.sentence == f"{loss.sentence}. {loss.remedy}"
    (finding,) = of_deleted_topics(shared, spaces, ["shop.s1.schema", "shop.us_ers"], stored)
    assert "--shard s1 --acknowledge shop.us_ers` (and the same for each other shard: s2)" in finding.sentence
    stored.losses = {}
    stored.position = Position(VClock({1: 5}), 5, snapshot=SnapshotState(1, is_complete=False))
    assert not list(of_deleted_topics(config(), spaces, ["shop.schema"], stored)), "all rows come again"


def at(path: Path | str, **state: str) -> list[str]:
    return failures(of_state_path(config(state={"path": str(path), **state}), Checkpoint()))


def test_state_path_that_can_be_used(tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert not at(tmp_path / "not" / "yet" / "there")
    assert not at(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before, "check changes nothing"


def test_a_store_that_a_daemon_at_work_has_is_not_lost(tmp_path: Path) -> None:
    position = Position(VClock({1: 5}), 5, snapshot=SnapshotState(1, is_complete=True))
    stored, elsewhere = Checkpoint(position=position, has_store=True), config(state={"path": str(tmp_path / "elsewhere")})
    (lost,) = failures(of_state_path(elsewhere, stored))
    assert "If it is lost, start once with --rebuild-state" in lost
    (found,) = failures(of_state_path(elsewhere, stored, is_running=True))
    assert found.endswith(": to replace that daemon, stop it and name that directory here.")
    standby = elsewhere.model_copy(update={"standby": True})
    assert not failures(of_state_path(standby, stored, is_running=True)), "it fills one of its own"
    assert failures(of_state_path(standby, stored)), "nobody is there to wait for"


@pytest.mark.parametrize(("standby", "expected"), [(False, "Stop that one first"), (True, "this one would be its standby")])
def test_another_daemon_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, standby: bool, expected: str) -> None:
    monkeypatch.setattr(admission, "_listen_for", lambda *_, **__: Sign("other", "there", 7, 0))
    ours = config(state={"path": str(tmp_path)}).model_copy(update={"standby": standby})
    stored = Checkpoint(writer="other", transactional_id="shop")
    (found,) = [each for each in of_kafka(ours, stored, Position()) if each.key == "name"]
    assert "running on there as process 7" in found.sentence
    assert expected in found.sentence
    assert (found.is_failure, found.is_well) == (not standby, standby)


def test_state_path_that_can_not(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path, word in ((file, "is a file"), (file / "below", "is a file"), ("/proc/nope", "nothing can be made in /proc")):
        (found,) = at(path)
        assert word in found
        assert found.startswith(f"state.path: FAILED: {path} can't be used: ")
        assert found.endswith("Give state.path a directory that the daemon may write to.")
        # Without images it is needed by large transactions alone.
        assert not at(path, images="none")
    assert "Give state.path a directory" in run_into("/proc/nope")


@pytest.fixture
def denied() -> Iterator[Path]:
    """A state directory whose store only its owner may look into, as another user finds it."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        (path / "images").mkdir(mode=0)
        user = os.geteuid()
        if not user:
            os.seteuid(65534)
        try:
            yield path
        finally:
            os.seteuid(user)


def test_a_store_of_another_user(denied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is looked at without it, and nothing is advised that would take the store from the daemon that has it."""
    monkeypatch.setattr(ReadersView, "newest_numbers", lambda _: Numbers(0))
    ours = config(state={"path": str(denied)}, http={"listen": "127.0.0.1:1"})
    assert of_store(ours) == (None, [])
    monkeypatch.setattr(asking, "name_at", lambda *_: None)
    (found,) = of_state_path(ours, Checkpoint())
    assert found.is_failure
    assert "can't be accessed" in found.sentence
    assert "Run this as " in found.sentence
    assert "chown" not in found.sentence
    monkeypatch.setattr(asking, "name_at", lambda *_: "shop")
    assert [finding.is_failure for finding in of_state_path(ours, Checkpoint())] == [False]
    assert [(finding.key, finding.is_well) for finding in of_kafka(ours, Checkpoint())] == [("name", True)]


def run_into(path: str) -> str:
    """What a store says there."""
    program = "import sys, pathlib; from cdc.store.store import StateStore; StateStore(pathlib.Path(sys.argv[1]) / 'images')"
    ended = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    return ended.stderr


def test_who_uses_a_store_shows_without_taking_it(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "images")
    assert not (tmp_path / "images").exists()
    store = StateStore(tmp_path / "images")
    assert is_locked(tmp_path / "images")
    store.write([], [(b"x", b"y")])
    store.close()
    assert not is_locked(tmp_path / "images")
    StateStore(tmp_path / "images").close()


def test_rules_for_columns() -> None:
    fields = (Field("id", "unsigned", is_nullable=False), Field("email", "string", is_nullable=True))
    users = SpaceForm(512, "users", fields, (KeyPart(0, "", "unsigned"),))

    def found(*rules: dict[str, Any]) -> list[str]:
        columns = config(columns={"rules": [{"spaces": "users", **rule} for rule in rules]}).columns
        return list(map(str, of_columns(ColumnRules(columns.rules), [users])))

    assert not found({"exclude": ["email"]})
    (refused,) = found({"exclude": ["id|email"]})
    assert refused.startswith("columns: FAILED: ")
    assert "in the primary key of space 'users'" in refused
    (useless,) = found({"exclude": ["mail"]})
    assert useless.startswith("columns: warning: ")
    assert "'mail' matches no column of users" in useless
