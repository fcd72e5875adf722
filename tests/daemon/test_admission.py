"""Whether the store is where the checkpoint was written with one, and which processes had the state directory before this one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from confluent_kafka import KafkaError, KafkaException

from cdc.config import Config, parse
from cdc.daemon import admission
from cdc.daemon.admission import (
    StartOptions,
    StateDirectoryLock,
    StateMissingError,
    check_store,
    check_store_is_ours,
    is_store_ours,
    store_path,
)
from cdc.errors import ConnectionLostError, StateError
from cdc.kafka.clients import KafkaClients
from cdc.ops import asking
from cdc.positions.position import Position, SnapshotState
from cdc.store.files import set_aside
from cdc.store.store import StateStore
from cdc.stream.commits.checkpoint import Checkpoint, Sign, Writer, fold, position_record
from cdc.stream.commits.ownership import name_taken_message


def config(path: Path, images: str = "full") -> Config:
    values: dict[str, Any] = {
        "name": "shop",
        "source": {"uris": ["h:1"]},
        "kafka": {"bootstrap_servers": "k:1", "topic_prefix": "shop"},
        "state": {"path": str(path), "images": images},
    }
    return parse(values, "the test")


def stored(*, has_store: bool = True, is_published: bool = True) -> Checkpoint:
    found = Checkpoint()
    snapshot = SnapshotState(1, is_complete=False) if is_published else None
    key, value = position_record("shop", Position(snapshot=snapshot), Writer("w", has_store), 1)
    fold("shop", key, value, found)
    return found


def test_a_store_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StateMissingError, match=r"no state store in .*/images .*correct state\.path.*--rebuild-state"):
        check_store(config(tmp_path / "wrong"), stored())
    assert not (tmp_path / "wrong").exists()


def test_a_file_in_place_of_the_directory_is_no_lost_store(tmp_path: Path) -> None:
    """Nobody should be told to build the store again because of a slip in the path."""
    (tmp_path / "state").touch()
    with pytest.raises(StateError, match=r"/state \(state\.path\) is a file\. Give state\.path the directory") as found:
        check_store(config(tmp_path / "state"), stored())
    assert "--rebuild-state" not in str(found.value)


def test_where_none_is_needed(tmp_path: Path) -> None:
    check_store(config(tmp_path), Checkpoint())
    check_store(config(tmp_path), stored(has_store=False))
    check_store(config(tmp_path), stored(is_published=False))
    check_store(config(tmp_path, "none"), stored())
    old = stored()
    old.has_store = None
    check_store(config(tmp_path), old)


def test_a_store_that_is_there_in_whatever_state(tmp_path: Path) -> None:
    path = store_path(config(tmp_path))
    store = StateStore(path)
    check_store(config(tmp_path), stored())
    store.close()
    check_store(config(tmp_path), stored())
    set_aside(path)
    check_store(config(tmp_path), stored())
    (path / "data.mdb").write_bytes(b"damaged")
    check_store(config(tmp_path), stored())


def test_a_store_of_another_daemon(tmp_path: Path) -> None:
    check_store_is_ours(config(tmp_path), set())
    check_store_is_ours(config(tmp_path), {"shop"})
    with pytest.raises(StateError, match="belongs to the daemon 'orders', and this one is 'shop'"):
        check_store_is_ours(config(tmp_path), {"orders"})


def test_who_had_the_directory_before(tmp_path: Path) -> None:
    for number in range(20):
        directory_lock = StateDirectoryLock(config(tmp_path, "none"))
        directory_lock.record_holder(f"writer-{number}")
        directory_lock.close()
    directory_lock = StateDirectoryLock(config(tmp_path, "none"))
    former = directory_lock.former_writers()
    assert former[-2:] == ["writer-18", "writer-19"]
    assert len(former) < 20
    with pytest.raises(StateError, match="in use by the daemon 'shop', process"):
        StateDirectoryLock(config(tmp_path, "none"))
    directory_lock.close()
    assert (store_path(config(tmp_path)) / "writers").stat().st_mode & 0o077 == 0


def test_who_has_the_directory_is_on_the_disk_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a machine that stops soon afterwards would have a state that looks like another daemon's."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").read_text()))
    directory_lock = StateDirectoryLock(config(tmp_path, "none"))
    directory_lock.record_holder("this one")
    directory_lock.close()
    assert synced[-1].endswith("this one\n")


def test_who_held_the_lock_of_a_copied_directory_may_be_at_work(tmp_path: Path) -> None:
    settings = config(tmp_path / "one", "none")
    directory_lock = StateDirectoryLock(settings)
    directory_lock.record_holder("w")
    copied = config(tmp_path / "two", "none")
    shutil.copytree(settings.state.path, copied.state.path)
    assert directory_lock.former_writers() == directory_lock.former_holders() == ["w"]
    directory_lock.close()
    copy = StateDirectoryLock(copied)
    assert copy.former_writers() == ["w"]
    assert copy.former_holders() == []
    copy.record_holder("v")
    assert copy.former_holders() == ["w", "v"], "it is its own now"
    copy.close()
    # A directory that is moved is the same one.
    settings.state.path.rename(tmp_path / "three")
    assert StateDirectoryLock.holders_of(store_path(config(tmp_path / "three", "none"))) == ["w"]


def test_an_older_versions_directory_tells_nothing_of_its_lock(tmp_path: Path) -> None:
    path = store_path(config(tmp_path))
    path.mkdir(parents=True)
    assert StateDirectoryLock.holders_of(path) == []
    (path / "writers").write_text("v\nw\n")
    assert StateDirectoryLock.writers_in(path) == ["v", "w"]
    assert StateDirectoryLock.holders_of(path) == []
    (path / "writers").write_text("")
    assert StateDirectoryLock.holders_of(path) == []


def test_without_images_a_state_path_that_can_not_be_used_is_no_obstacle() -> None:
    directory_lock = StateDirectoryLock(config(Path("/proc/nope"), "none"))
    assert directory_lock.former_writers() == []
    directory_lock.record_holder("w")
    directory_lock.close()


def test_whose_store_it_is(tmp_path: Path) -> None:
    settings = config(tmp_path)
    assert is_store_ours(settings, stored(), ["v", "w"])
    assert not is_store_ours(settings, stored(), ["v"])
    assert is_store_ours(settings, stored(), []), "an older version has left no trace"
    assert is_store_ours(settings, stored(has_store=False), ["v"]), "no other store was written"
    assert is_store_ours(config(tmp_path, "none"), stored(), ["v"])


def test_who_finds_an_old_copy_leaves_no_trace(tmp_path: Path) -> None:
    settings = config(tmp_path, "none")
    directory_lock = StateDirectoryLock(settings)
    directory_lock.record_holder("v")
    directory_lock.record_holder("w")
    directory_lock.remove_holder("w")
    assert directory_lock.former_writers() == ["v"]
    directory_lock.close()


def test_a_remedy_keeps_the_orders_that_were_given() -> None:
    lost = "If it is lost, start once with --rebuild-state."
    assert StartOptions().added_to(lost) == lost
    assert StartOptions(take_over=True).added_to(lost) == "If it is lost, add --rebuild-state to --take-over."
    given = StartOptions(rebuild_state=True, take_prefix=True)
    assert given.added_to("To end it, start with --take-over.") == "To end it, add --take-over to --rebuild-state --take-prefix."
    assert given.added_to("Look there.") == "Look there."
    both = "Stop it, or start with --take-over and --rebuild-state to end it."
    assert StartOptions().added_to(both) == both
    assert given.added_to(both) == "Stop it, or add --take-over to --rebuild-state --take-prefix to end it."
    assert (
        StartOptions(take_prefix=True).added_to(both)
        == "Stop it, or add --take-over and --rebuild-state to --take-prefix to end it."
    )


def test_what_ends_another_daemon_that_listens_at_the_same_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same state directory no order does: it has the lock."""
    monkeypatch.setattr(asking, "_get", lambda *_: {"name": "shop", "process_id": 7})
    settings = config(tmp_path)

    def said() -> str:
        return str(admission.listener_conflict_error(settings))

    assert (
        "a daemon 'shop' is running and listens at 127.0.0.1:8085 (http.listen), process 7, and only one daemon of a name may run"
        in said()
    )
    assert "Stop that one first, or start with --take-over and --rebuild-state to end it and publish all rows again" in said()
    store = StateStore(store_path(settings))
    assert "--take-over" not in said()
    store.close()
    assert "Stop that one first, or start with --take-over to end it. If" in said()
    monkeypatch.setattr(asking, "_get", lambda *_: ["no", "daemon"])
    assert admission.listener_conflict_error(settings) is None


def test_from_whom_a_name_is_taken() -> None:
    settings = parse(
        {"name": "x", "source": {"uris": ["h:1"]}, "kafka": {"bootstrap_servers": "k:1", "topic_prefix": "shop"}}, "the test"
    )
    stored = Checkpoint(writer="w", signs={"x": Sign("w", "vm", 7, 1)})
    assert admission.former_holder(settings, stored) == "process 7 on vm"
    assert name_taken_message(stored, "x").startswith("another daemon, process 7 on vm, has taken the name 'x'")
    stored.signs["x"] = Sign("w", "vm", 7, 1, is_last=True)
    assert admission.former_holder(settings, stored) is None
    stored.signs["x"] = Sign("before", "vm", 7, 1)
    assert admission.former_holder(settings, stored) is None
    assert name_taken_message(stored, "x").startswith("another daemon has taken the name 'x'")


class FencedIds:
    """What claims transactional ids, and is refused some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refusals: dict[str, int] | None = None) -> None:
        self.claimed: list[str] = []
        refused = refusals or {}

        def fencer(_: object, transactional_id: str, __: int) -> Any:
            def init_transactions(_: float) -> None:
                if transactional_id in refused:
                    raise KafkaException(KafkaError(refused[transactional_id]))
                self.claimed.append(transactional_id)

            return SimpleNamespace(init_transactions=init_transactions)

        monkeypatch.setattr(KafkaClients, "fencer", fencer)


def with_prefix(path: Path, prefix: str) -> Config:
    found = config(path)
    return found.model_copy(update={"kafka": found.kafka.model_copy(update={"topic_prefix": prefix})})


def test_a_process_of_an_older_version_is_fenced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its id was the name alone."""
    ids = FencedIds(monkeypatch)
    admission.fence_former_version(config(tmp_path), stored())
    admission.fence_former_version(with_prefix(tmp_path, "staging"), Checkpoint())
    assert ids.claimed == []
    found = stored()
    admission.fence_former_version(with_prefix(tmp_path, "staging"), found)
    assert ids.claimed == ["shop"]
    found.transactional_id = "staging/shop"
    admission.fence_former_version(with_prefix(tmp_path, "staging"), found)
    assert ids.claimed == ["shop"]


def test_a_former_id_that_may_not_be_used_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FencedIds(monkeypatch, {"shop": KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED})
    with structlog.testing.capture_logs() as logs:
        admission.fence_former_version(with_prefix(tmp_path, "staging"), stored())
    assert [entry["transactional_id"] for entry in logs] == ["shop"]
    FencedIds(monkeypatch, {"shop": KafkaError._TIMED_OUT})
    with pytest.raises(ConnectionLostError, match="'shop' can't be claimed"):
        admission.fence_former_version(with_prefix(tmp_path, "staging"), stored())


def test_a_store_of_the_same_name_and_another_prefix_is_not_emptied(tmp_path: Path) -> None:
    """Staging was started with production's state.path."""
    production, staging = config(tmp_path), with_prefix(tmp_path, "staging")
    store = StateStore(store_path(production))
    admission.check_store_prefix(staging)  # an older version recorded no prefix
    StateDirectoryLock(production).record_holder("w")
    store.close()
    admission.check_store_prefix(production)
    with pytest.raises(
        StateError, match=r"with kafka\.topic_prefix 'shop', and this daemon, 'shop', has 'staging'.*--rebuild-state"
    ):
        admission.check_store_prefix(staging)
    admission.check_store_prefix(staging.model_copy(update={"state": config(tmp_path, "none").state}))
    assert StateDirectoryLock.writers_in(store_path(production)) == ["w"]
    assert StateDirectoryLock.holders_of(store_path(production)) == ["w"]


class Listened:
    """Stands for listening: the former daemon is heard so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int = 0) -> None:
        self.count = 0

        def listen(*_: object, apart_from: str) -> Sign | None:
            assert apart_from == "new"
            self.count += 1
            return Sign("old", "vm", 7, 1) if self.count <= times else None

        monkeypatch.setattr(admission, "listen", listen)


@pytest.mark.parametrize(
    ("takes_over", "delivery", "writer", "awaits_former", "is_awaited"),
    [
        (True, "at_least_once", "old", False, True),
        (True, "at_least_once", "ours", False, False),
        (False, "at_least_once", "old", False, False),
        (True, "exactly_once", "old", False, False),
        # The process before waited, and ended: with whatever options this one starts, it waits, too.
        (True, "at_least_once", "ours", True, True),
        (False, "at_least_once", "ours", True, True),
        (False, "exactly_once", "ours", True, True),
    ],
)
def test_who_is_awaited(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    delivery: str,
    writer: str,
    *,
    takes_over: bool,
    awaits_former: bool,
    is_awaited: bool,
) -> None:
    listened = Listened(monkeypatch, times=2)
    settings = config(tmp_path, "none")
    settings = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"delivery": delivery})})
    found, directory_lock = Checkpoint(), StateDirectoryLock(settings)
    fold("shop", *position_record("shop", Position(), Writer(writer, has_store=False, awaits_former=awaits_former), 1), found)
    directory_lock.record_holder("ours")
    former = admission.Former(settings, StartOptions(take_over=takes_over), "new")
    assert former.is_to_be_awaited(found, directory_lock) == is_awaited
    former.await_end(lambda: False)
    assert (listened.count, former.is_awaited) == (3 if is_awaited else 0, False)
    # Its own record, from before the wait's end, doesn't begin another wait.
    fold("shop", *position_record("shop", Position(), Writer("new", has_store=False, awaits_former=is_awaited), 1), found)
    assert not former.is_to_be_awaited(found, directory_lock)
    directory_lock.close()


def test_a_stop_while_the_former_daemon_is_awaited_leaves_that_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Listened(monkeypatch)
    former = admission.Former(config(tmp_path), StartOptions(), "new")
    found = stored()
    found.awaits_former = True
    assert former.is_to_be_awaited(found, None)
    former.await_end(lambda: True)
    assert former.is_awaited


def test_a_checkpoint_written_while_it_was_listened_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two first starts at once: the other one has published, and ended, and its store is elsewhere."""
    before, after = Checkpoint(writer="other"), Checkpoint(Position(seq=3), writer="other")
    monkeypatch.setattr(admission, "listen", lambda *_, **__: None)
    for newest in (before, Checkpoint(writer="third"), after):
        monkeypatch.setattr(admission, "read", lambda _, newest=newest: newest)
        if newest is before:
            admission.check_alone(config(tmp_path), before, (), lambda: False)
            continue
        with pytest.raises(ConnectionLostError, match="reading the checkpoint again"):
            admission.check_alone(config(tmp_path), before, (), lambda: False)
        admission.check_alone(config(tmp_path), before, (), lambda: True)
