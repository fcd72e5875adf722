"""Who waits as a standby and who starts as ever, and what a standby without a store of use does: it waits, and says so."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

from cdc.config import Config, parse
from cdc.config.shard import Shard
from cdc.daemon import admission, standby
from cdc.daemon.admission import StateDirectoryLock
from cdc.daemon.standby import Standby
from cdc.errors import CdcError, ConfigurationError, ConnectionLostError, PublishError, Remedy
from cdc.kafka.checkpoint_tail import CheckpointTail
from cdc.kafka.life_watch import LifeWatch
from cdc.ops.status import Status
from cdc.positions.position import Position
from cdc.store.writer import StateWriter
from cdc.stream.commits import standby as standby_core
from cdc.stream.commits.checkpoint import Checkpoint, Sign
from cdc.stream.commits.standby import Vigil


def config(path: Path, images: str = "none") -> Config:
    values: dict[str, Any] = {
        "name": "shop",
        "standby": True,
        "source": {"uris": ["m:3301"]},
        "kafka": {"bootstrap_servers": "k:9092", "topic_prefix": "shop"},
        "state": {"images": images, "path": str(path)},
        "http": {"listen": ""},
    }
    return parse(values, "test")


class Watch:
    """A life watch that hears nothing; the vigil is as it was at the beginning."""

    outage: CdcError | None = None

    def __init__(self, *_: object) -> None:
        self.vigil = _[-1]

    def start(self) -> None:
        pass

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


def wait_of(path: Path, stored: Checkpoint, monkeypatch: pytest.MonkeyPatch, *, process: str = "ours") -> tuple[bool, list[str]]:
    """Whether it has waited for another, and the processes that are recorded in the state directory afterwards."""
    monkeypatch.setattr(admission, "read", lambda *_: stored)
    monkeypatch.setattr(admission, "check_owner", lambda *_: None)
    monkeypatch.setattr(standby, "LifeWatch", Watch)
    (path / "images").mkdir(parents=True, exist_ok=True)
    lock = StateDirectoryLock(config(path))
    try:
        found = Standby(config(path), Status("shop"), threading.Event(), None).await_turn(lock, process)
        assert found in (stored, None)
        return found is not None, lock.former_writers()
    finally:
        lock.close()


def test_where_nobody_has_ever_had_the_name_it_starts_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wait_of(tmp_path, Checkpoint(), monkeypatch) == (False, [])


def test_who_had_the_name_last_starts_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = StateDirectoryLock(config(tmp_path))
    lock.record_holder("killed")
    lock.close()
    assert wait_of(tmp_path, Checkpoint(Position(), writer="killed"), monkeypatch) == (False, ["killed"])


def test_who_waited_is_no_owner_of_the_checkpoints_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory's store is another one: without a record a later start would take it for the checkpoint's."""
    ended = Sign("other", "there", 7, 0, is_last=True)
    stored = Checkpoint(Position(), writer="other", has_store=True, signs={"shop": ended})
    assert wait_of(tmp_path, stored, monkeypatch) == (True, ["ours"])
    assert not admission.is_store_ours(config(tmp_path, "full"), stored, ["ours"])


def test_a_daemon_that_only_the_listener_does_not_hear_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener may be deaf: what another client reads before the claim decides."""
    first = Checkpoint(Position(), writer="first", signs={"shop": Sign("first", "there", 7, 0, is_last=True)})
    again = Checkpoint(Position(), writer="second", signs={"shop": Sign("second", "there", 8, 1)})
    ended = Checkpoint(Position(), writer="second", signs={"shop": Sign("second", "there", 8, 2, is_last=True)})
    answers = iter([first, again, ended, ended])
    monkeypatch.setattr(standby_core, "SILENCE_SECONDS", 0.0)
    monkeypatch.setattr(Watch, "check", lambda watch: watch.vigil.record_quiet(time.monotonic()))
    monkeypatch.setattr(admission, "read", lambda *_: next(answers))
    monkeypatch.setattr(admission, "check_owner", lambda *_: None)
    monkeypatch.setattr(standby, "LifeWatch", Watch)
    (tmp_path / "images").mkdir(parents=True)
    lock = StateDirectoryLock(config(tmp_path))
    try:
        with structlog.testing.capture_logs() as logs:
            assert Standby(config(tmp_path), Status("shop"), threading.Event(), None).await_turn(lock, "ours")
    finally:
        lock.close()
    assert next(answers, "all were read") == "all were read"
    assert [entry["event"] for entry in logs if "listening anew" in entry["event"]]


def test_kafka_may_be_away_while_a_fleets_claim_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([ConnectionLostError("away"), None])

    def check_owner(*_: object) -> None:
        answer = next(answers)
        if answer is not None:
            raise answer

    monkeypatch.setattr(standby, "jittered", lambda _: 0.0)
    monkeypatch.setattr(admission, "read", lambda *_: Checkpoint())
    monkeypatch.setattr(admission, "check_owner", check_owner)
    (tmp_path / "images").mkdir(parents=True)
    lock = StateDirectoryLock(config(tmp_path))
    try:
        assert not Standby(config(tmp_path), Status("shop"), threading.Event(), None).await_turn(lock, "ours")
    finally:
        lock.close()
    assert next(answers, "asked twice") == "asked twice"


def test_shared_topics_have_no_standby_with_a_store(tmp_path: Path) -> None:
    shard = Shard("s1", "shop", "shop", ("s1", "s2"), shares_topics=True)
    own = config(tmp_path)

    def shared(images: str) -> Config:
        state = own.state.model_copy(update={"images": images})
        return own.model_copy(update={"kafka": own.kafka.of_shard(shard), "state": state})

    with pytest.raises(ConfigurationError, match="per_shard"):
        Standby(shared("full"), Status("shop"), threading.Event(), cast(StateWriter, object()))
    Standby(shared("none"), Status("shop"), threading.Event(), None)


class Store:
    """A standby's store that is ready after a while."""

    seconds = 0.0

    def __init__(self, *arguments: Any) -> None:
        *_, self._pause, self._is_over = arguments
        self._begun = time.monotonic()

    @property
    def is_ready(self) -> bool:
        return time.monotonic() - self._begun >= self.seconds

    @property
    def is_startable(self) -> bool:
        return self.is_ready

    @property
    def lacks_log(self) -> bool:
        return False

    def follow(self) -> None:
        while not self._is_over():
            self._pause(0.01)


@pytest.mark.parametrize(("seconds", "warns"), [(0.1, False), (0.6, True)])
def test_one_that_cannot_take_over_says_so_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, *, warns: bool
) -> None:
    """Not while a connection that has just ended is made again."""
    monkeypatch.setattr(standby, "NOT_READY_SECONDS", 0.3)
    monkeypatch.setattr(standby, "StandbyStore", Store)
    monkeypatch.setattr(Store, "seconds", seconds)
    waiting = Standby(config(tmp_path, "full"), Status("shop"), threading.Event(), cast(StateWriter, object()))
    vigil = Vigil(time.monotonic(), has_ended=True)
    with structlog.testing.capture_logs() as logs:
        tail = cast(CheckpointTail, SimpleNamespace(close=lambda: None))
        waiting._keep_store(cast(StateWriter, object()), tail, vigil, cast(LifeWatch, Watch(vigil)))
    assert [entry["log_level"] for entry in logs] == (["warning"] if warns else [])
    assert waiting._status.error is None, "it is ready now"


def test_one_that_hears_nobody_says_why_and_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "NOT_READY_SECONDS", 0.0)
    lost = PublishError("the topic shop.checkpoint was deleted", "Start once with --rebuild-state.")
    vigil = Vigil(time.monotonic())
    watch = cast(LifeWatch, Watch(vigil))
    status = Status("shop", "standby")
    waiting = Standby(config(tmp_path), status, threading.Event(), None)
    watch.outage = lost
    with structlog.testing.capture_logs() as logs:
        waiting._show_readiness(vigil, watch, has_store=True)
        waiting._show_readiness(vigil, watch, has_store=True)
    assert [entry["needs_operator"] for entry in logs] == [True]
    assert (status.error, status.is_standby_ready, status.is_standby_deaf) == (lost.public, False, True)
    watch.outage, vigil.sign = None, Sign("first", "there", 7, 0)
    assert waiting._show_readiness(vigil, watch, has_store=True)
    assert (status.error, status.is_standby_deaf) == (None, False)
    assert status.standby_of == "process 7 on there"
    waiting._show_readiness(vigil, watch, has_store=False)
    assert status.error is not None
    assert "isn't at a position that consumers have yet" in status.error
    vigil.is_gone = True
    waiting._show_readiness(vigil, watch, has_store=False)
    assert "the daemon that has the name is gone" in status.error


@pytest.mark.parametrize("lacks_log", [False, True])
def test_where_nobody_publishes_an_operator_is_needed(*, lacks_log: bool) -> None:
    assert standby._not_ready(lacks_log).remedy is Remedy.OPERATOR
    assert standby._not_yet_ready(lacks_log).remedy is Remedy.WAIT


def test_one_whose_rows_nobody_has_any_more_says_so_as_long_as_that_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "NOT_READY_SECONDS", 0.0)
    vigil, status = Vigil(time.monotonic()), Status("shop", "standby")
    watch = cast(LifeWatch, Watch(vigil))
    waiting = Standby(config(tmp_path), status, threading.Event(), None)
    for is_gone in (False, True, False):
        for lacks_log in (True, False):
            vigil.is_gone = is_gone
            waiting._show_readiness(vigil, watch, has_store=False, lacks_log=lacks_log)
            assert status.error is not None
            assert ("no member that answers has the log after it" in status.error) == lacks_log
            assert ("is gone" in status.error) == is_gone
