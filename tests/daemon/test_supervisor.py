"""The daemon's rounds over several members, as failover decides: who is asked, what is waited for, and what ends it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from cdc.config import parse
from cdc.daemon import admission
from cdc.daemon.admission import StartOptions, StateMissingError
from cdc.daemon.members import Members
from cdc.daemon.supervisor import Daemon
from cdc.errors import (
    CdcError,
    ConfigurationError,
    ConnectionLostError,
    ForeignServerError,
    OtherHistoryError,
    PositionError,
    PublishAborted,
    UnsupportedRowError,
)
from cdc.kafka.errors import NAME_HINT, FencedError
from cdc.kafka.publisher import Publisher
from cdc.kafka.topic_ids import SeenTopics
from cdc.ops import asking
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.protocol.constants import ErrorCode
from cdc.protocol.failure import XlogGapError, parse_error
from cdc.stream.commits.checkpoint import Checkpoint
from cdc.stream.commits.ownership import NameTakenError
from cdc.upstream.selection import Answer, Choice, NobodyError
from cdc.upstream.start import needed
from tests.upstream.test_selection import GOOD, PUBLISHED, answer

LOST = ConnectionLostError("it broke")
GAP = XlogGapError("the master has removed logs that are needed")
DENIED = parse_error({0: 0x8000 | ErrorCode.ACCESS_DENIED}, {0x31: "denied"})


class Clock(threading.Event):
    """A stop that never comes, and how long it was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        return False


@dataclass
class Scene:
    """A daemon that has published up to PUBLISHED, and members that answer as they are told to."""

    daemon: Daemon
    members: Members
    clock: Clock
    texts: list[str]

    def choose(self) -> Choice:
        """As for a stream, up to the connection."""
        return self.members._choose(needed(self.daemon._known()))

    def fail(self, error: CdcError) -> None:
        """What becomes of an error of the present connection."""
        self.daemon._recover(error)

    @property
    def failed(self) -> Mapping[int, CdcError]:
        return self.members._failover.passed_over


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Scene:
    texts: list[str] = [GOOD, GOOD]
    options: dict[str, Any] = getattr(request, "param", {})
    values = {
        "name": "shop",
        "source": {"uris": ["m0:3301", "m1:3301"], **options},
        "kafka": {"bootstrap_servers": "k:9092", "topic_prefix": "shop"},
        "state": {"images": "none", "path": str(tmp_path)},
        "http": {"listen": ""},
    }
    daemon, clock = Daemon(parse(values, "test")), Clock()

    def ask_all(passed_over: Mapping[int, CdcError]) -> list[Answer]:
        return [
            Answer(f"m{place}:3301", error=passed_over[place]) if place in passed_over else answer(text, place)
            for place, text in enumerate(texts)
        ]

    members = daemon._source
    assert isinstance(members, Members)
    monkeypatch.setattr(members._monitor, "ask_all", ask_all)
    monkeypatch.setattr(daemon, "_is_stopping", clock)
    daemon._checkpoint.position = Position(vclock=PUBLISHED, snapshot=SnapshotState(1, is_complete=True))
    daemon._connect_count = 1
    return Scene(daemon, members, clock, texts)


def test_one_that_fails_is_passed_over_at_once(scene: Scene) -> None:
    assert scene.choose().index == 0
    scene.fail(LOST)
    assert scene.choose().index == 1
    assert not scene.clock.waits


def test_when_all_have_failed_it_waits_and_begins_again(scene: Scene) -> None:
    for place in (0, 1):
        assert scene.choose().index == place
        scene.fail(LOST)
    with pytest.raises(NobodyError, match="it broke") as caught:
        scene.choose()
    scene.daemon._recover(caught.value)
    assert len(scene.clock.waits) == 1
    assert scene.daemon.status.error is not None
    assert scene.choose().index == 0


def test_when_all_refuse_it_ends(scene: Scene) -> None:
    for _ in range(2):
        scene.choose()
        scene.fail(DENIED)
    with pytest.raises(NobodyError, match=r"none of the 2 members.*grant") as caught:
        scene.choose()
    with pytest.raises(NobodyError):
        scene.daemon._recover(caught.value)
    assert not scene.clock.waits


@pytest.mark.parametrize("error", [UnsupportedRowError("a row"), PositionError("of another replica set")])
def test_what_concerns_all_members_ends_it(scene: Scene, error: CdcError) -> None:
    scene.choose()
    with pytest.raises(type(error)):
        scene.fail(error)


def test_trouble_with_kafka_is_nobodys(scene: Scene) -> None:
    """Between connections the same error as a member's is Kafka's."""
    scene.choose()
    scene.fail(LOST)
    scene.daemon._recover(ConnectionLostError("Kafka didn't answer"))
    assert len(scene.clock.waits) == 1
    assert not scene.failed


@pytest.mark.parametrize("scene", [{"uris": ["m0:3301"], "on_gap": "fail"}], indirect=True)
def test_one_alone_is_chosen_unasked(scene: Scene) -> None:
    scene.texts[:] = ["away"]
    assert scene.choose() == Choice(0, "there is no other", is_settled=True)
    scene.fail(LOST)
    assert len(scene.clock.waits) == 1
    scene.choose()
    with pytest.raises(XlogGapError):
        scene.fail(GAP)


@pytest.mark.parametrize("scene", [{"uris": ["m0:3301"], "on_divergence": "resnapshot"}], indirect=True)
def test_another_history_is_a_divergence(scene: Scene) -> None:
    scene.fail(OtherHistoryError("other rows"))
    assert scene.daemon._forced_snapshot == "other rows"
    with pytest.raises(ForeignServerError):
        scene.fail(ForeignServerError("of another replica set"))


@pytest.mark.parametrize("scene", [{"uris": ["m0:3301"]}], indirect=True)
def test_another_history_ends_the_daemon_by_default(scene: Scene) -> None:
    with pytest.raises(OtherHistoryError):
        scene.fail(OtherHistoryError("other rows"))


def test_what_is_needed(scene: Scene) -> None:
    daemon = scene.daemon
    wanted = needed(daemon._known())
    assert (wanted.published, wanted.logs_from, wanted.takes_snapshot) == (PUBLISHED, PUBLISHED, False)
    daemon._forced_snapshot = "a reason"
    assert needed(daemon._known()).takes_snapshot
    daemon._forced_snapshot, daemon._checkpoint.position = None, None
    assert needed(daemon._known()).takes_snapshot
    assert needed(daemon._known()).published == VClock()


def test_an_aborted_transaction_is_nobodys(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    went_back = []
    monkeypatch.setattr(scene.daemon, "_go_back", lambda: went_back.append(1))
    scene.choose()
    scene.fail(PublishAborted("aborted"))
    assert went_back
    assert not scene.failed


def test_what_kafka_throws_away_again_and_again_is_tried_more_and_more_rarely(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scene.daemon, "_go_back", lambda: None)
    aborted = PublishAborted("Kafka threw it away")
    scene.fail(aborted)
    assert not scene.clock.waits  # the first time it is tried again at once
    for _ in range(8):
        scene.fail(aborted)
    assert scene.clock.waits[0] < 0.2
    assert scene.clock.waits[-1] > 3
    scene.daemon._checkpoint.position = Position(vclock=VClock({1: 10_000}), snapshot=SnapshotState(1, is_complete=True))
    scene.fail(aborted)  # something was committed in between
    assert len(scene.clock.waits) == 8


def test_a_store_that_is_missing_may_be_that_of_a_daemon_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started from another directory: to build the store anew is no remedy then, so it is looked for the daemon before."""
    position = Position(vclock=PUBLISHED, snapshot=SnapshotState(1, is_complete=True))
    monkeypatch.setattr(admission, "read", lambda *_: Checkpoint(position=position, has_store=True, writer="another"))
    values = {
        "name": "shop",
        "source": {"uris": ["m0:3301"]},
        "kafka": {"bootstrap_servers": "k:9092", "topic_prefix": "shop"},
        "state": {"path": str(tmp_path / "elsewhere")},
        "http": {"listen": ""},
    }

    def at_work(*_: object) -> None:
        raise NameTakenError("a daemon 'shop' is at work")

    def start(options: StartOptions) -> None:
        Daemon(parse(values, "test"), options)._be_admitted()

    monkeypatch.setattr(admission, "check_alone", at_work)
    with pytest.raises(NameTakenError):
        start(StartOptions())
    with pytest.raises(StateMissingError):
        start(StartOptions(take_over=True))
    monkeypatch.setattr(admission, "check_alone", lambda *_: None)
    with pytest.raises(StateMissingError):
        start(StartOptions())
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(("is_standby", "remedy"), [(True, "Start it again: it will be the standby"), (False, "Otherwise stop")])
def test_who_was_fenced_is_told_what_becomes_of_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, remedy: str, *, is_standby: bool
) -> None:
    """With standby = true nobody is to stop the daemon that works."""
    daemon = scene.daemon
    daemon._config = daemon._config.model_copy(update={"standby": is_standby})

    def fence(*, until_caught_up: bool) -> None:  # noqa: ARG001 - as it is called
        raise FencedError("another daemon has taken the name 'shop'", NAME_HINT)

    monkeypatch.setattr(daemon, "_stand_by", fence)
    with pytest.raises(FencedError) as caught:
        daemon.run()
    assert remedy in str(caught.value)


def test_after_a_claim_that_was_lost_at_once_another_process_begins(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has the name now may take the id of the first claim for its own, as it was in the checkpoint it found."""
    daemon, turns = scene.daemon, list[str]()
    monkeypatch.setattr(daemon, "_stand_by", lambda *, until_caught_up: turns.append(f"{daemon._writer_id} {until_caught_up}"))
    first = daemon._writer_id
    assert daemon._has_turn(until_caught_up=False)
    assert (daemon._writer_id, turns) == (first, [])
    assert daemon._has_turn(until_caught_up=False)
    assert daemon._writer_id != first
    assert daemon._former._writer == daemon._writer_id
    assert turns == [f"{daemon._writer_id} False"]


def test_with_take_over_the_address_is_listened_at_once_the_other_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it that is the end, and where something else has the address, too."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        values = {
            "name": "shop",
            "source": {"uris": ["m0:3301"]},
            "kafka": {"bootstrap_servers": "k:9092", "topic_prefix": "shop"},
            "state": {"path": str(tmp_path)},
            "http": {"listen": f"127.0.0.1:{port}"},
        }
        config = parse(values, "test")
        monkeypatch.setattr(asking, "_status_at", lambda *_: {"name": "another"})
        with pytest.raises(ConfigurationError):
            Daemon(config, StartOptions(take_over=True))
        monkeypatch.setattr(asking, "_status_at", lambda *_: {"name": "shop"})
        with pytest.raises(NameTakenError, match=r"start with --take-over"):
            Daemon(config)
        daemon = Daemon(config, StartOptions(take_over=True))
        assert daemon.http_port is None
        monkeypatch.setattr("cdc.daemon.listener._ENDS_SECONDS", 0.0)
        with pytest.raises(ConfigurationError):
            daemon._listener.open_late(threading.Event())
    daemon._listener.open_late(threading.Event())
    assert daemon.http_port == port
    daemon._listener.close()


class Reloading:
    """A publisher whose transaction was aborted, and what it reads then."""

    committed = None
    topics_seen = SeenTopics()

    def __init__(self, writer: str) -> None:
        self._writer = writer
        self.did: list[str] = []

    def reload(self) -> Checkpoint:
        self.did.append("reload")
        return Checkpoint(Position(), writer=self._writer)

    def reset(self) -> None:
        self.did.append("reset")

    def stop(self, _: float) -> bool:
        self.did.append("stop")
        return True


@pytest.mark.parametrize(("writer", "did"), [("ours", ["reload", "reset"]), ("another", ["reload", "stop"])])
def test_after_an_abort_it_goes_on_only_with_its_own_checkpoint(scene: Scene, writer: str, did: list[str]) -> None:
    """A frozen one may wake up in the middle of a transaction that is aborted meanwhile, as another one has the name."""
    publisher = Reloading(writer)
    scene.daemon._publisher = cast(Publisher, publisher)
    scene.daemon._writers = {"ours"}
    scene.fail(PublishAborted("a message was refused"))
    assert publisher.did == did
    assert (scene.daemon._publisher is None) == (writer == "another")
