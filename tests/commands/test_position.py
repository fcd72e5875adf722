"""The checkpoint in a file: what is written, what is taken back, and when not. The drill with real servers is in tests/live."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.commands import position as command
from cdc.commands.position import export, put_back, show
from cdc.config import Config, parse
from cdc.errors import ConfigurationError, RequestError
from cdc.kafka.clients import KafkaClients
from cdc.kafka.topic_admin import TopicAdmin
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.schema.forms import StoredSpace
from cdc.store.store import StateStore
from cdc.stream.commits.checkpoint import Checkpoint, fold
from tests.fakes.master import REPLICASET

POSITION = Position(
    VClock({1: 90, 2: 5}), seq=77, schema_version=3, snapshot=SnapshotState(1, is_complete=True), replicaset_uuid=REPLICASET
)
SPACE = StoredSpace(512, [512, 1, "users", "memtx", 1, {}, []], {0: [512, 0, "pk", "tree", {}, [[0, "unsigned"]]]}, 3)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    values = {
        "name": "shop",
        "source": {"uris": ["cdc:s@a:3301"]},
        "kafka": {"bootstrap_servers": "k:9092", "topic_prefix": "shop"},
        "state": {"path": str(tmp_path / "state"), "images": "none"},
    }
    return parse(values, "the test")


class Kafka:
    """The checkpoint topic."""

    def __init__(self) -> None:
        self.stored = Checkpoint(position=POSITION, spaces={512: SPACE}, writer="w", has_store=False, transactional_id="shop")
        self.written: list[tuple[bytes, bytes]] = []


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    found = Kafka()
    monkeypatch.setattr("cdc.daemon.admission.read", lambda _: found.stored)
    monkeypatch.setattr("cdc.daemon.admission.check_alone", lambda *_: None)
    monkeypatch.setattr(command, "_write", lambda _, records: found.written.extend(records))
    return found


def refused(_: str) -> bool:
    raise AssertionError("nothing is to be confirmed")


def test_what_was_exported_is_put_back_whole(config: Config, kafka: Kafka, tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "checkpoint"
    export(config, said.append, file)
    assert said[-1].endswith("the position {1: 90, 2: 5}, seq 77, and the forms of 1 spaces, of which 1 are published")
    exported, kafka.stored = kafka.stored, Checkpoint()
    asked: list[str] = []

    def confirm(question: str) -> bool:
        asked.append(question)
        return True

    assert put_back(config, said.append, file, confirm)
    assert "{1: 90, 2: 5}, seq 77" in asked[0]
    found = Checkpoint()
    for key, value in kafka.written:
        fold("shop", key, value, found)
    assert (found.position, found.spaces) == (exported.position, exported.spaces)
    assert (found.writer, found.has_store, found.transactional_id, list(found.owners)) == ("w", False, "shop", ["shop"])


def test_a_position_is_never_replaced(config: Config, kafka: Kafka, tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    export(config, print, file)
    with pytest.raises(RequestError, match=r"has a checkpoint here, at \{1: 90, 2: 5\} with seq 77. It is never replaced"):
        put_back(config, print, file, refused)
    kafka.stored = Checkpoint()
    assert not put_back(config, print, file, lambda _: False)
    assert kafka.written == []


def test_a_file_is_never_replaced(config: Config, kafka: Kafka, tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    file.write_text("something")
    with pytest.raises(ConfigurationError, match="can't be written: File exists"):
        export(config, print, file)
    assert file.read_text() == "something"
    kafka.stored = Checkpoint()
    with pytest.raises(ConfigurationError, match="has no checkpoint at k:9092"):
        export(config, print, tmp_path / "other")


@pytest.mark.parametrize("lines", [2, 3])
def test_a_file_whose_end_is_missing(config: Config, kafka: Kafka, tmp_path: Path, lines: int) -> None:
    """Without the forms of some spaces, the rows after the position couldn't be read as they were published."""
    file = tmp_path / "checkpoint"
    export(config, print, file)
    whole = file.read_text().splitlines()
    assert len(whole) == 4
    file.write_text("".join(f"{line}\n" for line in whole[:lines]))
    kafka.stored = Checkpoint()
    with pytest.raises(ConfigurationError, match=f"can't be used: it has {lines - 1} of 3 records"):
        put_back(config, print, file, refused)


@pytest.mark.usefixtures("kafka")
def test_a_disk_that_is_full_leaves_no_half_of_a_file(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("cdc.commands.position.os.fsync", fail)
    file = tmp_path / "checkpoint"
    with pytest.raises(ConfigurationError, match="checkpoint can't be written: No space left on device"):
        export(config, print, file)
    assert not file.exists()


def test_a_daemon_that_starts_while_the_question_waits(config: Config, kafka: Kafka, tmp_path: Path) -> None:
    """Its position is newer than the file's, and isn't replaced either."""
    file = tmp_path / "checkpoint"
    export(config, print, file)
    started, kafka.stored = kafka.stored, Checkpoint()

    def confirm(_: str) -> bool:
        kafka.stored = started
        return True

    with pytest.raises(RequestError, match="It is never replaced"):
        put_back(config, print, file, confirm)
    assert kafka.written == []


HEAD = {"format": command.FORMAT, "name": "shop", "prefix": "shop", "records": 1}


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["nonsense"], "hasn't written it like that"),
        ([json.dumps(HEAD | {"format": "x"})], "it has the format 'x'"),
        ([json.dumps(HEAD | {"name": "other"})], "it is of the daemon 'other' with the prefix 'shop'"),
        ([json.dumps(HEAD | {"records": 0})], "it has no position"),
        ([json.dumps(HEAD), "[1, 2]"], "hasn't written it like that"),
        ([], "hasn't written it like that"),
    ],
)
def test_files_that_are_none(config: Config, kafka: Kafka, tmp_path: Path, lines: list[str], problem: str) -> None:
    kafka.stored = Checkpoint()
    file = tmp_path / "checkpoint"
    file.write_text("\n".join(lines))
    with pytest.raises(ConfigurationError, match=problem):
        put_back(config, print, file, refused)
    with pytest.raises(ConfigurationError, match="No such file"):
        put_back(config, print, tmp_path / "none", refused)


def test_it_is_shown(config: Config, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_members", lambda _: ({"a:3301": VClock({1: 95, 2: 4})}, ["b:3301 is away"]))
    said: list[Any] = []
    show(config, said.append, as_json=False)
    lines = [line.split(maxsplit=1) for line in said]
    assert ["checkpoint", "{1: 90, 2: 5}"] in lines
    assert ["member", "a:3301 at {1: 95, 2: 4}: 5 rows that aren't in Kafka"] in lines
    assert ["member", "b:3301 is away"] in lines
    said.clear()
    show(config, said.append, as_json=True)
    assert json.loads(said[0])["checkpoint"]["seq"] == 77
    kafka.stored = Checkpoint()
    show(config, said.append, as_json=False)
    assert said[-1] == "the daemon 'shop' has no checkpoint at k:9092"


def test_the_first_record_is_sent_alone(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Kafka refuses a first batch and takes a second one, the first one is lost: that would be the position."""
    calls: list[str] = []
    producer = SimpleNamespace(
        init_transactions=lambda _: None,
        begin_transaction=lambda: None,
        produce=lambda topic, value, key, partition: calls.append(key.decode()),  # noqa: ARG005 - as it is called
        flush=lambda _: calls.append("flush"),
        commit_transaction=lambda _: calls.append("commit"),
    )
    monkeypatch.setattr("cdc.daemon.admission.read", lambda _: Checkpoint())
    monkeypatch.setattr(KafkaClients, "fencer", lambda *_: producer)
    monkeypatch.setattr(TopicAdmin, "ensure", lambda *_: None)
    command._write(config, [(b"position", b"1"), (b"form", b"2"), (b"owner", b"3")])
    assert calls == ["position", "flush", "form", "owner", "commit"]


@pytest.mark.usefixtures("kafka")
def test_a_store_that_the_daemon_has(config: Config) -> None:
    """Where it is shown is said, as it is for none."""
    ours = config.model_copy(update={"state": config.state.model_copy(update={"images": "full"})})

    def shown() -> str:
        said: list[str] = []
        show(ours, said.append, as_json=False)
        return next(line for line in said if line.startswith("store "))

    assert shown() == "store        empty"
    store = StateStore(ours.state.path / "images")
    assert shown() == "store        in use by the running daemon: `tarantool-cdc status` shows its position"
    store.close()
