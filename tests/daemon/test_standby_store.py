"""When a standby's store is enough for a start, which a snapshot that the configuration asks for decides, too."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from cdc.config import parse
from cdc.config.source import Member
from cdc.daemon import admission, kept_logs, standby_store
from cdc.daemon.standby_store import StandbyStore
from cdc.errors import ConnectionLostError
from cdc.ops.status import Status
from cdc.positions.position import Position, Rekeyed, SnapshotState
from cdc.positions.vclock import VClock
from cdc.protocol.ballot import Ballot
from cdc.schema.forms import StoredSpace
from cdc.stream.commits.checkpoint import Checkpoint
from cdc.upstream.selection import Answer

K = Position(VClock({1: 50}), 40, 3, UUID(int=1), snapshot=SnapshotState(4, True))
S = replace(K, vclock=VClock({1: 30}), seq=20)


@pytest.fixture(autouse=True)
def in_kafka(monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """The newest checkpoint."""
    newest = Checkpoint(K)
    monkeypatch.setattr(admission, "read", lambda _: newest)
    return newest


@pytest.fixture(autouse=True)
def kept_from(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """From where on the member keeps its logs, by origin. Without any it is down."""
    kept = {1: 30}

    def ask(*_: object) -> Answer:
        if not kept:
            return Answer("m:3301", error=ConnectionLostError("down"))
        ballot = Ballot(VClock({1: 60}), VClock(kept), is_read_only=False, is_ready=True)
        return Answer("m:3301", ballot, replicaset_uuid=UUID(int=1))

    monkeypatch.setattr(kept_logs, "ask", ask)
    return kept


def standby(path: Path, writer: object, tail: object, mode: str = "initial") -> StandbyStore:
    """A standby that has this store, and has read the checkpoint so far."""
    values: dict[str, Any] = {
        "name": "shop",
        "standby": True,
        "source": {"uris": ["m:3301"]},
        "kafka": {"bootstrap_servers": "k:9092", "topic_prefix": "shop"},
        "snapshot": {"mode": mode},
        "state": {"path": str(path)},
        "http": {"listen": ""},
    }
    stopping = threading.Event()
    return StandbyStore(parse(values, "test"), Status("shop"), cast(Any, writer), cast(Any, tail), stopping.wait, stopping.is_set)


def is_startable(path: Path, store: Position, *, mode: str = "initial", published: bool = True) -> bool:
    """Whether a standby that follows a member and has this store may claim the name, if it has read the checkpoint K."""
    primary = [512, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]]
    space = StoredSpace(512, [512, 1, "things", "memtx", 0, {}, []], {0: primary}, 3 if published else 0)
    tail = SimpleNamespace(checkpoint=Checkpoint(K, {512: space}), is_read=True)
    writer = SimpleNamespace(position=store, checkpoint=lambda: Checkpoint(store, {512: space}))
    one = standby(path, writer, tail, mode)
    one._is_following = True
    assert one.is_ready
    return one.is_startable


def test_the_rest_of_the_rows_can_be_read_after_the_start(tmp_path: Path) -> None:
    assert is_startable(tmp_path, S)


def test_an_open_subscription_does_not_prove_that_the_log_is_kept(tmp_path: Path, kept_from: dict[int, int]) -> None:
    """The rows may have been received, and wait; but a start asks for them anew. It would fence a good daemon, and fail."""
    kept_from[1] = 31
    assert not is_startable(tmp_path, S)
    kept_from.clear()
    assert not is_startable(tmp_path, S), "nobody answers"
    assert is_startable(tmp_path, K), "nothing is asked for"


def test_the_checkpoint_that_was_read_may_be_an_old_one(tmp_path: Path, in_kafka: Checkpoint, kept_from: dict[int, int]) -> None:
    in_kafka.position = replace(K, vclock=VClock({1: 60}), seq=50)
    assert is_startable(tmp_path, K), "the rows from there on are in the log"
    kept_from[1] = 51
    assert not is_startable(tmp_path, K)


def test_one_whose_log_is_gone_while_rows_are_published_again_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_from: dict[int, int]
) -> None:
    monkeypatch.setattr(kept_logs, "LOOK_SECONDS", 0.0)
    kafka = Checkpoint(replace(K, rekeyed=(Rekeyed(512),)))
    writer: Any = SimpleNamespace(position=S, checkpoint=lambda: Checkpoint(writer.position))
    one = standby(tmp_path, writer, SimpleNamespace(checkpoint=kafka, is_read=True))
    one._is_following = True
    seen = []
    for kept in (30, 31, 30):
        kept_from[1] = kept
        for _ in range(2):
            one._watch_logs()
        seen.append((one.is_ready, one.lacks_log))
    assert seen == [(True, False), (False, True), (True, False)]
    kept_from[1] = 31
    one._watch_logs()
    writer.position = K
    assert (one.is_ready, one.lacks_log) == (True, False)


def test_the_last_sign_may_come_before_the_last_checkpoint(tmp_path: Path, in_kafka: Checkpoint) -> None:
    in_kafka.position = replace(K, vclock=VClock({1: 60}), seq=50)
    assert not is_startable(tmp_path, K, mode="always")


def test_an_empty_store_is_enough_while_nothing_is_published(tmp_path: Path, in_kafka: Checkpoint) -> None:
    """The other one may have published its first snapshot, and ended, since the checkpoint was read last."""
    tail = SimpleNamespace(checkpoint=Checkpoint(Position()), is_read=True)
    writer = SimpleNamespace(position=None, checkpoint=Checkpoint)
    one = standby(tmp_path, writer, tail)
    assert one.is_ready
    assert not one.is_startable
    in_kafka.position = None
    assert one.is_startable


@pytest.mark.parametrize("options", [{"mode": "always"}, {"published": False}], ids=["each start", "a space is newly published"])
def test_a_snapshot_needs_the_rows_at_the_checkpoint(tmp_path: Path, options: dict[str, Any]) -> None:
    """A start with an older store would be refused, as it is another daemon's: again and again."""
    assert not is_startable(tmp_path, S, **options)
    assert is_startable(tmp_path, replace(S, vclock=K.vclock), **options)


def test_what_could_not_be_written_comes_before_the_log_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk was full, and has room again: rows that are written then would otherwise be applied a second time."""
    writer: Any = SimpleNamespace(position=S, checkpoint=lambda: Checkpoint(writer.position), begun=[])

    def flush(**_: bool) -> None:
        writer.position = K

    def follow(_: StandbyStore, connection: object) -> None:  # noqa: ARG001 - as it is called
        writer.begun.append(writer.position)

    writer.flush = flush
    greeting = SimpleNamespace(version_text="2.6.0", uuid=UUID(int=2))
    connection = SimpleNamespace(address="m:3301", close=lambda: None, session=SimpleNamespace(greeting=greeting))
    ballot = SimpleNamespace(gc_vclock=VClock())
    monkeypatch.setattr(standby_store, "greet", lambda *_, **__: connection)
    monkeypatch.setattr(standby_store, "vote", lambda _: ballot)
    monkeypatch.setattr(standby_store, "replicaset_uuid", lambda _: UUID(int=1))
    monkeypatch.setattr(StandbyStore, "_follow", follow)
    tail = SimpleNamespace(checkpoint=Checkpoint(K), is_read=True)
    one = standby(tmp_path, writer, tail)
    one.follow()
    assert writer.begun == [K]
    assert (one._status.upstream_version, one._status.replicaset_uuid) == ("2.6.0", str(UUID(int=1)))


def test_a_changed_password_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def greet(member: Member, *_: object, **__: object) -> None:
        assert member.password is not None
        seen.append(member.password.get_secret_value())
        raise ConnectionLostError("down")

    monkeypatch.setattr(standby_store, "greet", greet)
    file = tmp_path / "password"
    file.write_text("old")
    one = standby(tmp_path, SimpleNamespace(position=S), SimpleNamespace(checkpoint=Checkpoint(K), is_read=True))
    source = one._config.source.model_copy(update={"user": "cdc", "password_file": file})
    one._config = one._config.model_copy(update={"source": source})
    for password in ("old", "new"):
        file.write_text(password)
        with pytest.raises(ConnectionLostError):
            one.follow()
    assert seen == ["old", "new"]
