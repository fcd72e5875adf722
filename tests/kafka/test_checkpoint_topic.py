"""What a record that can't be understood does to the reading of the checkpoint, and that the command against it holds."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError

from cdc.errors import ConfigurationError
from cdc.kafka.checkpoint_topic import read
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.stream.commits.checkpoint import Checkpoint, Writer, owner_record, position_record, space_record

Record = tuple[bytes | None, bytes | None]
TOPIC = "shop.checkpoint"


def position(lsn: int) -> tuple[bytes, bytes]:
    found = Position(vclock=VClock({1: lsn}), seq=lsn, snapshot=SnapshotState(1, is_complete=True))
    return position_record("shop", found, Writer("w", has_store=True), 1)


KEY = position(1)[0]
SPACE = space_record("shop", 512, None)[0]


class Topic:
    """A consumer of one partition, with an offset for each record."""

    def __init__(self, records: list[Record]) -> None:
        self._left: list[Any] = [
            SimpleNamespace(error=lambda: None, key=lambda k=key: k, value=lambda v=value: v, offset=lambda o=offset: o)
            for offset, (key, value) in enumerate(records)
        ]
        end = KafkaError(KafkaError._PARTITION_EOF)
        self._left.append(SimpleNamespace(error=lambda: end))

    def poll(self, _: float) -> Any:
        return self._left.pop(0)

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None


def folded(*records: Record) -> Checkpoint:
    return read(cast(Consumer, Topic(list(records))), TOPIC, "shop", "k:1")


def reached(*records: Record) -> int:
    found = folded(*records).position
    assert found is not None
    return found.seq


BAD: list[Record] = [
    (KEY, b"hello"),
    (KEY, b"[]"),
    (KEY, b'{"name": "shop"}'),
    (SPACE, b'{"rows": 1}'),
    (b"hello", b"world"),
    (b"\xff", b"world"),
    (owner_record("shop", 1)[0], b"1"),
]


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_a_record_that_a_later_one_replaces_is_passed_over(bad: Record) -> None:
    key = bad[0]
    later: Record = position(2) if key == KEY else (key, None)
    assert reached(position(1), bad, bad, position(2), later) == 2
    with pytest.raises(ConfigurationError):
        folded(position(1), bad)


def test_a_record_without_a_key_is_nobodys() -> None:
    assert reached(position(1), (None, b"hello")) == 1


def mended(tmp_path: Path, *records: Record) -> list[Record]:
    """The topic after the command that the error shows has been typed."""
    with pytest.raises(ConfigurationError) as found:
        folded(*records)
    assert TOPIC in found.value.message
    command = found.value.hint[found.value.hint.index("printf") :]
    tool = tmp_path / "kafka-console-producer.sh"
    tool.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\nexec cat\n')
    tool.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    ended = subprocess.run(["sh", "-c", command], capture_output=True, check=True, env=environment, timeout=30)
    arguments = (tmp_path / "arguments").read_text()
    assert shlex.split(arguments) == [
        *("--bootstrap-server", "k:1", "--topic", TOPIC, "--property", "parse.key=true", "--property", "null.marker=NULL")
    ]
    typed = [line.split(b"\t") for line in ended.stdout.splitlines()]
    return [*records, *((key, None if value == b"NULL" else value) for key, value in typed)]


def test_the_command_writes_the_last_good_one_again(tmp_path: Path) -> None:
    records: list[Record] = [position(1), position(2), (KEY, b"hello"), (KEY, b"there")]
    with pytest.raises(
        ConfigurationError,
        match=r"shop\.checkpoint, partition 0, offset 3: .*name.*shop.* holds b'there'.*Write the key's last readable record",
    ):
        folded(*records)
    assert reached(*mended(tmp_path, *records)) == 2


def test_the_command_removes_what_is_not_ours(tmp_path: Path) -> None:
    assert reached(*mended(tmp_path, position(1), (b'it\'s "this"', b"world"))) == 1


@pytest.mark.parametrize("bad", [(KEY, b"hello"), (SPACE, b"hello")], ids=["position", "space"])
def test_with_no_good_one_the_whole_checkpoint_goes(tmp_path: Path, bad: Record) -> None:
    records: list[Record] = [bad] if bad[0] == KEY else [position(1), bad]
    with pytest.raises(ConfigurationError, match="start once with --rebuild-state"):
        folded(*records)
    assert folded(*mended(tmp_path, *records)).position is None


def test_a_key_that_can_not_be_typed() -> None:
    with pytest.raises(ConfigurationError, match=r"Delete the topic shop\.checkpoint, and start once with --rebuild-state"):
        folded(position(1), (b"\xff", b"world"))
