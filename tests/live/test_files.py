"""`replay`: a server's own files make its contents, from the same checkpoint as the daemon's, before it and after it."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.config.source import Member
from cdc.local.interface import KafkaServer, TarantoolServer
from cdc.positions.vclock import VClock
from cdc.protocol.constants import Key
from cdc.protocol.session import Heartbeat, StreamRows, Subscribed
from cdc.sources.handshake import expect, greet
from cdc.sources.log_directory import LogDirectory
from cdc.sources.log_stream import LogStream
from tests.conftest import TarantoolFactory
from tests.live.conftest import SceneFactory
from tests.live.scene import Scene
from tests.live.stream import parse
from tests.live.waiting import wait_for

SPACES = """
for _, name in ipairs({'plain', 'altered', 'emptied', 'dropped'}) do
    box.schema.space.create(name, {format = {{'id', 'unsigned'}, {'text', 'string'}}}):create_index('primary')
    for id = 1, 50 do box.space[name]:insert{id, name .. id} end
end
box.schema.space.create('local', {is_local = true}):create_index('primary')
box.schema.space.create('temporary', {temporary = true}):create_index('primary')
"""

CHANGES = """
local plain, hidden = box.space.plain, box.space['local']
for id = 51, 60 do plain:insert{id, 'alone'} hidden:replace{id} box.space.temporary:replace{id} end
box.begin() plain:delete{1} hidden:replace{1} plain:update(2, {{'=', 2, 'within'}}) box.commit()
box.begin() plain:upsert({3, ''}, {{':', 2, 1, 0, 'x'}}) plain:delete{4} hidden:replace{2} box.commit()
box.begin() hidden:replace{3} plain:replace{5, 'one of all'} box.commit()
box.begin() hidden:replace{4} hidden:replace{5} box.commit()
box.begin() hidden:replace{6} plain:replace{6, 'in between'} hidden:replace{7} box.commit()
box.begin() for id = 1000, 4000 do plain:insert{id, 'large ' .. id} end box.commit()
box.space.altered:format({{'id', 'unsigned'}, {'words', 'string'}, {'more', 'any', is_nullable = true}})
box.space.altered:insert{100, 'by the new format', {a = 1}}
box.space.emptied:truncate()
box.space.emptied:insert{1, 'after it'}
box.space.dropped:drop()
box.schema.space.create('late'):create_index('primary')
box.space.late:insert{1, 2, 3}
"""

SYNCHRONOUS = """
box.cfg{replication_synchro_quorum = ..., replication_synchro_timeout = 1000}
local certain = box.space.certain or box.schema.space.create('certain', {is_sync = true})
certain:create_index('primary', {if_not_exists = true})
require('fiber').create(function() certain:insert{1, 'waits'} end)
require('fiber').create(function() box.space.plain:insert{9000, 'behind it'} end)
"""


@pytest.fixture
def master(tarantool_factory: TarantoolFactory) -> TarantoolServer:
    """It keeps its files, and begins new logs often."""
    return tarantool_factory(checkpoint_count=100, wal_max_size=64 * 1024)


def work_dir(tarantool: TarantoolServer) -> Path:
    (found,) = tarantool.eval("return require('fio').abspath(box.cfg.wal_dir)")
    return Path(found)


def replay(scene: Scene, directory: Path, *arguments: str) -> None:
    scene.daemon.start(*arguments, str(directory), command="replay")


def replay_all(scene: Scene, directory: Path) -> None:
    replay(scene, directory)
    assert scene.daemon.wait_for_end() == 0, scene.daemon.run.log_tail()


def wait_for_rows(scene: Scene, rows: int) -> None:
    scene.daemon.wait_until(f"{rows} rows", lambda status: status["rows"] >= rows and status["kafka"]["commits"])


def test_files_say_what_the_relay_says(master: TarantoolServer) -> None:
    master.eval(SPACES)
    master.eval("box.snapshot()")
    master.eval(CHANGES)
    end = VClock(master.vclock())
    in_files = [
        (header, body)
        for frames in LogStream(LogDirectory(work_dir(master)), VClock()).rows()
        if frames is not None
        for header, body in zip(frames.headers, frames.bodies, strict=True)
    ]
    relayed = list(_relayed(master, end))
    assert len(relayed) > 3_000
    assert in_files == relayed


def _relayed(tarantool: TarantoolServer, end: VClock) -> Iterator[tuple[dict[int, Any], dict[int, Any]]]:
    """The rows of a subscription from the beginning, as they would be without a connection."""
    member = Member("127.0.0.1", tarantool.port, "cdc", None)
    connection = greet(member, uuid.uuid4(), frame_bytes_max=2**24)
    try:
        session = connection.session
        user, password = tarantool.uri.split("@")[0].split(":")
        session.authenticate(user, password)
        connection.send()
        connection.receive(5)
        session.subscribe(uuid.UUID(tarantool.replicaset_uuid), VClock())
        expect(connection, Subscribed)
        reached: dict[int, int] = {}
        while not VClock(reached).covers(end):
            for event in connection.receive(5):
                if isinstance(event, Heartbeat):
                    continue
                assert isinstance(event, StreamRows)
                for header, body in zip(event.frames.headers, event.frames.bodies, strict=True):
                    reached[header[Key.REPLICA_ID]] = header[Key.LSN]
                    yield {key: value for key, value in header.items() if key != Key.SYNC}, body
    finally:
        connection.close()


@pytest.mark.one_of_these("replay")
def test_killed_and_gone_on(scene_factory: SceneFactory, kafka: KafkaServer, master: TarantoolServer) -> None:
    """With vinyl spaces, whose rows no .snap has: so everything comes from the logs, from the first one on."""
    scene = scene_factory(kafka, master)
    scene.workload.create(2_000)
    scene.run_workload(60)
    scene.tarantool.eval("box.snapshot()")
    scene.run_workload(60)
    scene.tarantool.eval("box.snapshot()")
    scene.run_workload(30)
    directory = work_dir(scene.tarantool)
    assert len(list(directory.glob("*.xlog"))) >= 3
    reader = scene.reader()
    for rows in (1, 2_000):
        replay(scene, directory)
        wait_for_rows(scene, rows)
        scene.daemon.kill()
        scene.check_whole_while_dead(reader)
    replay_all(scene, directory)
    stream = scene.check()
    replay_all(scene, directory)
    assert len(scene.check().events) == len(stream.events), "a replay of what was replayed has nothing to say"


@pytest.mark.one_of_these("replay")
def test_replay_and_run_take_turns(scene_factory: SceneFactory, kafka: KafkaServer, master: TarantoolServer) -> None:
    scene = scene_factory(kafka, master)
    directory = work_dir(scene.tarantool)
    scene.tarantool.eval(SPACES)
    scene.tarantool.eval("box.snapshot()")
    scene.tarantool.eval("box.space.plain:insert{99, 'behind the first snapshot'} box.snapshot()")
    scene.tarantool.eval(CHANGES)
    replay_all(scene, directory)
    stream = scene.check()
    assert sum(event.op == "r" for event in stream.events) == 201, "the newest snapshot has all rows before it"
    scene.tarantool.eval("box.space.plain:insert{5000, 'for run'}")
    scene.daemon.start("--until-caught-up")
    assert scene.daemon.wait_for_end() == 0, scene.daemon.run.log_tail()
    scene.tarantool.eval("box.space.plain:insert{5001, 'for replay'} box.snapshot() box.space.plain:delete{5000}")
    replay_all(scene, directory)
    stream = scene.check()
    assert [record["status"] for record in stream.control["snapshot"]] == ["STARTED", "COMPLETED"]
    assert [event.op for event in stream.events[-3:]] == ["c", "c", "d"]


def test_transactions_that_still_wait(scene_factory: SceneFactory, kafka: KafkaServer, master: TarantoolServer) -> None:
    scene = scene_factory(kafka, master)
    directory = work_dir(master)
    master.eval(SPACES)
    master.eval(SYNCHRONOUS, 2)
    wait_for("both rows in the log", lambda: len(list(_rows_of(directory, 9000))) == 1)
    replay_all(scene, directory)
    assert "neither confirm nor roll back" in scene.daemon.run.log_tail()
    reader = scene.reader()
    assert not [event for event in parse(reader).events if event.source["table"] == "certain" or event.key == '{"id":9000}']
    master.eval("box.cfg{replication_synchro_quorum = 1}")
    wait_for("the confirmation", lambda: master.eval("return box.space.plain:get(9000) ~= nil") == [True])
    replay_all(scene, directory)
    stream = scene.check()
    assert [event.source["table"] for event in stream.events[-2:]] == ["certain", "plain"]


def _rows_of(directory: Path, key: int) -> Iterator[dict[int, Any]]:
    for frames in LogStream(LogDirectory(directory), VClock()).rows():
        assert frames is not None
        for body in frames.bodies:
            match body.get(Key.TUPLE):
                case [first, *_] if first == key:
                    yield body


@pytest.mark.one_of_these("replay")
def test_follows_a_server_that_writes(scene_factory: SceneFactory, kafka: KafkaServer, master: TarantoolServer) -> None:
    scene = scene_factory(kafka, master)
    directory = work_dir(scene.tarantool)
    scene.workload.create(200)
    scene.workload.start(pause=0.01)
    replay(scene, directory, "--follow")
    for number in range(3):
        wait_for_rows(scene, 2_000 * (number + 1))
        scene.tarantool.eval("box.snapshot()")
    scene.workload.stop()
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    scene.check()


def test_missing_and_damaged_files_are_named(
    scene_factory: SceneFactory, kafka: KafkaServer, master: TarantoolServer, tmp_path: Path
) -> None:
    scene = scene_factory(kafka, master)
    directory = work_dir(scene.tarantool)
    scene.tarantool.eval(SPACES)
    for number in range(3):
        scene.tarantool.eval("box.space.plain:insert{..., 'row'} box.snapshot()", 100 + number)
    scene.tarantool.eval("box.space.plain:insert{200, 'row'}")
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("*.snap.inprogress"))
    for file in sorted(copy.glob("*.snap"))[1:]:
        file.unlink()
    logs = sorted(copy.glob("*.xlog"))
    logs[1].rename(tmp_path / logs[1].name)
    replay(scene, copy)
    assert scene.daemon.wait_for_end() == 1
    last = scene.daemon.run.log_tail(1)
    assert ".xlog files are missing" in last
    assert logs[2].name in last
    (tmp_path / logs[1].name).rename(logs[1])
    damaged = bytearray(logs[1].read_bytes())
    damaged[-20] ^= 1
    logs[1].write_bytes(damaged)
    replay(scene, copy)
    assert scene.daemon.wait_for_end() == 1
    assert logs[1].name in scene.daemon.run.log_tail(1)
    damaged[-20] ^= 1
    logs[1].write_bytes(damaged)
    # As if the server had been upgraded meanwhile: the text header has no checksum.
    logs[3].write_bytes(logs[3].read_bytes().replace(b"Version: 2.6.0", b"Version: 2.7.0", 1))
    replay_all(scene, copy)
    assert "the server's version changes" in scene.daemon.run.log_tail()
    stream = scene.check()
    assert stream.checkpoints[-1]["vclock"] == VClock(scene.tarantool.vclock()).to_json()
