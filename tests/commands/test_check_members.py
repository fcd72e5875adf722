"""What `check` says of the members: as `run` would find them, and within a limited time."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cdc.commands import check_members
from cdc.commands.check_members import choose_member, examine_member
from cdc.config import Config, parse
from cdc.daemon.start import supposed_before
from cdc.errors import Remedy
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.protocol.constants import Type
from cdc.stream.commits.checkpoint import Checkpoint
from cdc.upstream.identity import instance_uuid
from tests.daemon.test_monitor import Listener, Serve, serving
from tests.fakes.master import REPLICASET, SCHEMA, Master, MasterConnection

OTHER = UUID("cccccccc-0000-4000-8000-000000000001")


def member(**attributes: Any) -> Master:
    master = Master("2.11")
    master.create_space("things")
    for name, value in attributes.items():
        setattr(master, name, value)
    return master


class Behind(MasterConnection):
    """A server with a synchronous transaction that waits for its quorum: no snapshot begins."""

    def _handle(self, header: dict[int, Any], body: dict[int, Any] | None) -> None:
        if header[0] != Type.FETCH_SNAPSHOT:
            super()._handle(header, body)


def behind(master: Master) -> Serve:
    def serve(connection: socket.socket) -> None:
        server = Behind(master)
        connection.sendall(server.data_to_send())
        while data := connection.recv(4096):
            server.receive_data(data)
            connection.sendall(server.data_to_send())

    return serve


def dripping(master: Master) -> Serve:
    """A server that sends a snapshot byte by byte."""

    def serve(connection: socket.socket) -> None:
        server = MasterConnection(master)
        connection.sendall(server.data_to_send())
        while data := connection.recv(4096):
            server.receive_data(data)
            answer = server.data_to_send()
            if len(answer) < 400:
                connection.sendall(answer)
                continue
            for place in range(len(answer)):
                connection.sendall(answer[place : place + 1])
                time.sleep(0.05)

    return serve


Checked = Callable[..., tuple[list[str], list[Remedy]]]


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Checked]:
    """`check`'s lines about servers, and the remedies of what would keep `run` from starting."""
    monkeypatch.setattr(check_members, "may_write", lambda *_: True)  # the fakes have no users
    listeners: list[Listener] = []

    def run(*serves: Serve, position: Position | None = None, **source: Any) -> tuple[list[str], list[Remedy]]:
        listeners.extend(map(Listener, serves))
        ports = [listener.port for listener in listeners[-len(serves) :]]
        values = {
            "name": "shop",
            "source": {"uris": [f"cdc:secret@127.0.0.1:{port}" for port in ports], **source},
            "kafka": {"bootstrap_servers": "k:1", "topic_prefix": "shop"},
            "state": {"path": str(tmp_path), "images": "none"},
        }
        config: Config = parse(values, "the test")
        lines: list[str] = []
        stored = Checkpoint(position=position)
        known = supposed_before(config, stored)
        found = [
            examine_member(config, each, stored, known, lambda line: lines.append(str(line)), is_first=position is None)
            for each in config.source.members()
        ]
        remedies = choose_member(config, [each.candidate for each in found], known, lambda line: lines.append(str(line)))
        for place, port in enumerate(ports):
            lines = [line.replace(f"127.0.0.1:{port}", f"m{place}") for line in lines]
        return lines, remedies

    yield run
    for listener in listeners:
        listener.close()


def at(vclock: dict[int, int]) -> Position:
    return Position(VClock(vclock), 1, replicaset_uuid=REPLICASET, snapshot=SnapshotState(1, is_complete=True))


def test_a_registered_first_start_waits_for_a_writable_member(checked: Checked) -> None:
    lines, remedies = checked(serving(member(is_read_only=True)), mode="registered")
    assert remedies == [Remedy.WAIT]
    assert lines[-1].startswith("no member can be followed now: the server m0 is read-only")
    _, remedies = checked(serving(member(is_read_only=True)))
    assert remedies == [], "anonymously it starts"


def test_the_member_that_is_named_is_the_one_that_would_be_followed(checked: Checked) -> None:
    lines, remedies = checked(serving(member(is_read_only=True)), serving(member()), mode="registered")
    assert remedies == []
    assert lines[-1].startswith("m1 would be followed: ")
    enrolled = member()
    enrolled.enroll(instance_uuid("shop"))
    enrolled.is_read_only = True
    lines, remedies = checked(serving(enrolled), serving(member()), mode="registered")
    assert lines[-1].startswith("m0 would be followed: ")
    assert any("m0: cdc may replicate; the daemon is registered as instance 2" in line for line in lines)


def test_a_synchronous_transaction_is_not_waited_for_without_end(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_members, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(check_members, "SNAPSHOT_SECONDS", 0.6)
    began = time.monotonic()
    lines, remedies = checked(behind(member()))
    assert 0.6 <= time.monotonic() - began < 5
    assert any("m0: waiting up to 1 s for a snapshot to begin" in line and "quorum" in line for line in lines)
    assert any(line.startswith("m0: warning: m0 hasn't begun a snapshot") for line in lines)
    assert remedies == [Remedy.WAIT], "a first start takes a snapshot"
    master = member()
    lines, remedies = checked(behind(master), position=at(master.vclock))
    assert remedies == [], "with a checkpoint it needs none"
    assert any("would resume from" in line for line in lines)


def test_a_snapshot_that_never_gets_on(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_members, "CONTENTS_SECONDS", 0.6)
    lines, remedies = checked(dripping(member()))
    assert any(line.startswith("m0: warning: the server m0 sends its snapshot so slowly") for line in lines)
    assert remedies == [Remedy.WAIT]


def test_a_server_of_another_replica_set(checked: Checked) -> None:
    ours, other = member(), member(replicaset_uuid=OTHER)
    other.replace(SCHEMA, "cluster", str(OTHER))
    other.gc_vclock = other.vclock
    position = at(ours.vclock)
    lines, remedies = checked(serving(other), position=position)
    assert remedies == [Remedy.OPERATOR]
    assert lines == [line for line in lines if "would" not in line and "resnapshot" not in line], "nothing of it is judged"
    assert f"m0: FAILED: the server belongs to replica set {OTHER}, the checkpoint to {REPLICASET}" in lines[0]
    lines, remedies = checked(serving(other), serving(ours), position=position)
    assert remedies == []
    assert lines[-1].startswith("m1 would be followed: ")
    lines, remedies = checked(serving(other), serving(ours))
    assert remedies == [Remedy.OPERATOR]
    assert f"source.uris leads to 2 replica sets: {OTHER} at m0; {REPLICASET} at m1" in lines[-1]


def test_the_name_of_the_replica_set(tmp_path: Path) -> None:
    """By which vshard may call it."""
    named = member()
    named.insert(SCHEMA, "replicaset_name", "storage-1")
    for master, name in ((named, "storage-1"), (member(), None)):
        listener = Listener(serving(master))
        values = {
            "name": "shop",
            "source": {"uris": [f"cdc:secret@127.0.0.1:{listener.port}"]},
            "kafka": {"bootstrap_servers": "k:1", "topic_prefix": "shop"},
            "state": {"path": str(tmp_path), "images": "none"},
        }
        config = parse(values, "the test")
        found = examine_member(config, config.source.members()[0], Checkpoint(), None, lambda _: None, is_first=True)
        listener.close()
        assert found.contents is not None
        assert found.contents.replicaset_name == name
