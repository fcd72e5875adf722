"""The state store of a running daemon: its rows on demand, and whether they are the master's."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cdc.commands.verify import KEYLESS
from cdc.ops.rights import OWN_TOKEN
from cdc.protocol.extensions import pack, unpack
from cdc.schema.keys import space_prefix
from cdc.store.store import StateStore
from tests.live.daemon import DaemonProcess
from tests.live.forked import run_command
from tests.live.scene import Scene
from tests.live.stream import Stream

THINGS = """
box.schema.space.create('things', {format = {{'id', 'unsigned'}, {name = 'name', type = 'string', is_nullable = true}}})
box.space.things:create_index('primary')
for id = 1, ... do box.space.things:insert{id, 'thing ' .. id} end
"""


def command(daemon: DaemonProcess, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one command with the daemon's configuration; stderr holds no traceback."""
    file = daemon.directory / f"{daemon.name}.toml"
    ended = run_command(name, "--config", str(file), *arguments)
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended


def complaint(daemon: DaemonProcess, name: str, *arguments: str) -> str:
    """What a command says that fails."""
    ended = command(daemon, name, *arguments)
    assert (ended.returncode, ended.stdout) == (1, ""), ended
    assert ended.stderr.startswith("tarantool-cdc: "), ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr


def wait_until_shown(daemon: DaemonProcess) -> None:
    """Wait for the end of all requests."""
    daemon.wait_until("nothing is asked for", lambda status: status["snapshot_request"] is None)


def shown(stream: Stream, snapshot_id: str, space: str) -> list[Any]:
    """The ids of the rows of one request."""
    events = [event for event in stream.events if event.source.get("snapshot_id") == snapshot_id]
    assert {event.op for event in events} <= {"r"}
    return [event.value["after"]["id"] for event in events if event.source["table"] == space]


# snapshot


def test_snapshot_of_an_idle_space(scene: Scene) -> None:
    scene.tarantool.eval(THINGS, 5000)
    scene.daemon.start()
    scene.catch_up()
    ended = command(scene.daemon, "snapshot", "things")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "things" in ended.stdout
    wait_until_shown(scene.daemon)
    assert scene.daemon.terminate() == 0
    stream = scene.check()
    assert shown(stream, "2", "things") == list(range(1, 5001))
    records = [(record["snapshot_id"], record["status"]) for record in stream.control["snapshot"]]
    assert records == [("1", "STARTED"), ("1", "COMPLETED"), ("2", "STARTED"), ("2", "COMPLETED")]
    assert stream.control["snapshot"][-1]["spaces"] == [{"space": "things", "space_id": 512, "rows": 5000, "sweep_seq": 0}]


def test_snapshot_under_a_workload(scene: Scene) -> None:
    scene.workload.create(fill_rows=500)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.workload.start(fibers=2, pause=0.01)
    for _ in range(3):
        assert command(scene.daemon, "snapshot", "accounts", "kinds", "morph", "emptied", "vinyl").returncode == 0
        wait_until_shown(scene.daemon)
    scene.workload.stop()
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    stream = scene.check()
    # Other numbers are those of spaces whose primary key the workload has altered.
    completed = [record for record in stream.control["snapshot"] if record["status"] == "COMPLETED"]
    asked = [
        record["snapshot_id"] for record in completed if {"accounts", "vinyl"} <= {space["space"] for space in record["spaces"]}
    ]
    assert len(asked) == 4
    events = [event for event in stream.events if event.source.get("snapshot_id") in asked[1:]]
    between = range(events[0].seq, events[-1].seq)
    assert any(event.transaction_id is not None and event.seq in between for event in stream.events), "nothing happened meanwhile"


def test_live_events_do_not_wait(scene: Scene) -> None:
    """Rows that change while a larger space is shown come out among its rows, and as soon as ever."""
    scene.tarantool.eval(THINGS.replace("'thing ' .. id", "string.rep('x', 2000)"), 12_000)
    scene.tarantool.eval("box.schema.space.create('live'):create_index('primary', {sequence = true})")
    scene.daemon.start()
    scene.catch_up()
    scene.tarantool.eval(
        """
        local fiber = require('fiber')
        live = true
        fiber.create(function() while live do box.space.live:insert{box.NULL} fiber.sleep(0.002) end end)
        """
    )
    assert command(scene.daemon, "snapshot", "things").returncode == 0
    wait_until_shown(scene.daemon)
    scene.tarantool.eval("live = false")
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    stream = scene.check()
    assert shown(stream, "2", "things") == list(range(1, 12_001))
    seqs = [event.seq for event in stream.events if event.source.get("snapshot_id") == "2"]
    live = [event for event in stream.events if event.source["table"] == "live" and seqs[0] < event.seq < seqs[-1]]
    assert len(live) > 5
    between = sorted(event.seq for event in live)
    assert max(after - before for before, after in pairwise([seqs[0], *between, seqs[-1]])) < 6000
    waited = [event.value["ts_ms"] - event.source["ts_ms"] for event in live]
    assert max(waited) < 1000, "live events wait for the rows of the request"


def test_killed_in_the_middle_of_a_request(scene: Scene) -> None:
    """It goes on where it stopped, no snapshot is taken for it, and each row comes once; the next one has its own number."""
    scene.tarantool.eval(THINGS, 8000)
    scene.daemon.start()
    scene.catch_up()
    assert command(scene.daemon, "snapshot", "things").returncode == 0
    scene.daemon.wait_until("it has begun", lambda status: status["position"]["snapshot_id"] == 2)
    scene.daemon.restart_killed()
    scene.daemon.wait_until_streaming()
    assert scene.daemon.wait_until_streaming()["snapshot_rows"] == 0
    wait_until_shown(scene.daemon)
    assert command(scene.daemon, "snapshot", "things").returncode == 0
    wait_until_shown(scene.daemon)
    scene.tarantool.eval("box.space.things:insert{0}")
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    stream = scene.check()
    ends = [record for record in stream.control["snapshot"] if record["status"] != "STARTED"][1:]
    assert [(end["snapshot_id"], end["status"], end["spaces"][0]["rows"]) for end in ends] == [
        ("2", "COMPLETED", 8000),
        ("3", "COMPLETED", 8000),
    ]
    for end in ends:
        assert shown(stream, end["snapshot_id"], "things") == list(range(1, 8001))


def test_snapshot_that_can_not_be_had(scene: Scene) -> None:
    scene.tarantool.eval(THINGS, 3)
    scene.daemon.start()
    scene.catch_up()
    assert "'nothing' is published. Published are: things." in complaint(scene.daemon, "snapshot", "things", "nothing")
    url = f"http://{scene.daemon.settings['http']['listen']}/snapshot"
    token = (Path(scene.daemon.settings["state"]["path"]) / OWN_TOKEN).read_text().strip()
    for body, kind, status in ((b"{}", "application/json", 400), (b'{"spaces":["things"]}', "text/plain", 415)):
        request = urllib.request.Request(url, data=body, headers={"Content-Type": kind, "Authorization": f"Bearer {token}"})
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(request, timeout=10)  # noqa: S310 - the scheme is ours
        with raised.value as answer:
            assert answer.code == status
            assert json.load(answer)["error"]
    assert scene.daemon.terminate() == 0
    assert "no daemon answers" in complaint(scene.daemon, "snapshot", "things")
    scene.daemon.settings["state"]["images"] = "none"
    scene.daemon.start()
    scene.daemon.kill()
    assert "state.images" in complaint(scene.daemon, "snapshot", "things")
    scene.daemon.settings["state"]["images"] = "full"
    scene.daemon.settings["http"]["listen"] = ""
    scene.daemon.start()
    scene.daemon.kill()
    assert "http.listen" in complaint(scene.daemon, "snapshot", "things")


# verify


def verified(daemon: DaemonProcess) -> tuple[int, list[dict[str, Any]], str]:
    """The exit status, the differences and the last sentence."""
    ended = command(daemon, "verify")
    return ended.returncode, [json.loads(line) for line in ended.stdout.splitlines()], ended.stderr


def store_of(daemon: DaemonProcess) -> StateStore:
    """The store of a daemon that is stopped."""
    return StateStore(Path(daemon.settings["state"]["path"]) / "images")


@pytest.mark.one_of_these("verify")
def test_verify_after_a_workload(scene: Scene) -> None:
    """And once more while the master goes on without the daemon, DDL included, and when it has."""
    scene.workload.create()
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.run_workload(50)
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    assert verified(scene.daemon)[:2] == (0, [])
    with_store = store_of(scene.daemon)
    before = {space_id: list(with_store.scan(space_id)) for space_id in with_store.space_ids()}, dict(with_store.records)
    with_store.close()
    scene.workload.start()
    assert verified(scene.daemon)[:2] == (0, [])
    scene.workload.stop()
    status, differences, sentence = verified(scene.daemon)
    assert (status, differences) == (0, [])
    assert "has the master's rows" in sentence
    with_store = store_of(scene.daemon)
    assert before == ({space_id: list(with_store.scan(space_id)) for space_id in with_store.space_ids()}, with_store.records)
    with_store.close()
    # verify has left nothing of its own behind.
    assert {path.name for path in Path(scene.daemon.settings["state"]["path"]).iterdir()} == {
        "http-token",
        "images",
        "numbers",
        "topics",
    }
    scene.daemon.start()
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    scene.check()


@pytest.mark.one_of_these("verify")
def test_verify_finds_exactly_what_differs(scene: Scene) -> None:
    scene.tarantool.eval(THINGS, 2000)
    scene.tarantool.eval("box.schema.space.create('others'):create_index('primary') box.space.others:insert{1}")
    scene.daemon.start()
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    store = store_of(scene.daemon)
    rows = {unpack(tuple_)[0]: (key, tuple_) for key, tuple_ in store.scan(512)}
    store.write(
        [
            (rows[7][0], pack([7, "changed"])),
            (rows[8][0], None),
            (space_prefix(512) + (9999).to_bytes(8, "big"), pack([9999, "added"])),
            # One value in another form, which events don't show: no difference.
            (rows[10][0], b"\x92\xcd\x00\x0a\xa8thing 10"),
        ],
        (),
    )
    store.close()
    scene.tarantool.eval("box.space.things:insert{3000} box.space.things:delete(1999)")
    status, differences, sentence = verified(scene.daemon)
    assert status == 1
    assert sorted(differences, key=lambda difference: difference["key"]["id"]) == [
        {
            "space": "things",
            "key": {"id": 7},
            "what": "different",
            "ours": {"id": 7, "name": "changed"},
            "theirs": {"id": 7, "name": "thing 7"},
        },
        {"space": "things", "key": {"id": 8}, "what": "missing", "ours": None, "theirs": {"id": 8, "name": "thing 8"}},
        {"space": "things", "key": {"id": 9999}, "what": "extra", "ours": {"id": 9999, "name": "added"}, "theirs": None},
    ]
    assert "1 missing, 1 extra, 1 different; 2001 rows" in sentence


@pytest.mark.parametrize("images", ["full", pytest.param("none", marks=pytest.mark.soak)])
def test_rows_without_their_key(scene: Scene, images: str) -> None:
    """2.6.0 lets UPSERTs of vinyl make them. They stop the daemon with a remedy, and by that remedy they alone are set aside."""
    scene.tarantool.eval(
        """local odd = box.schema.space.create('odd', {engine = 'vinyl', format = {{'a', 'integer'}, {'b', 'boolean'}}})
        odd:create_index('pk', {parts = {{1, 'integer'}, {2, 'boolean'}, {3, 'integer'}}})
        odd:insert{1, true, 1}
        for i = 1, 3 do pcall(odd.upsert, odd, {-2, true, 7}, {{'#', 3, 1}}) end
        local good = box.schema.space.create('good', {format = {{'id', 'unsigned'}}})
        good:create_index('pk')
        good:insert{1}
        box.snapshot()"""
    )
    scene.daemon.settings["state"]["images"] = images
    scene.daemon.start()
    assert scene.daemon.wait_for_end() == 1
    said = scene.daemon.run.log_tail()
    assert "a tuple of space 'odd' has no primary key; row" in said
    assert "on_error" in said
    assert "truncate the space" in said
    scene.daemon.settings["format"] = {"on_error": "dlq"}
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.tarantool.eval("box.space.good:insert{2} box.space.odd:insert{3, true, 3}")
    scene.catch_up(60)
    assert scene.daemon.terminate() == 0
    if images == "full":
        status, differences, sentence = verified(scene.daemon)
        assert status == 1
        assert {difference["reason"] for difference in differences} == {KEYLESS}
        assert "--rebuild-state" not in sentence, "that can't help"
    # The other remedy, which the message names.
    scene.tarantool.eval("box.space.odd:truncate() box.space.odd:insert{1, true, 1}")
    scene.daemon.settings["format"] = {"on_error": "fail"}
    scene.daemon.start()
    scene.catch_up(60)
    assert scene.daemon.terminate() == 0
    scene.check()


@pytest.mark.one_of_these("verify")
def test_verify_that_can_not_be_done(scene: Scene) -> None:
    scene.tarantool.eval(THINGS, 3)
    scene.daemon.start()
    scene.catch_up()
    assert f"is in use by the daemon '{scene.prefix}', process " in complaint(scene.daemon, "verify")
    assert scene.daemon.terminate() == 0
    # The logs after the store's position go.
    for _ in range(3):
        scene.tarantool.eval("box.space.things:replace{1} box.snapshot() box.cfg{checkpoint_count = 1}")
    said = complaint(scene.daemon, "verify")
    assert "no longer has the logs" in said
    other = scene.new_daemon("other", state={"images": "none"}, kafka={"topic_prefix": f"{scene.prefix}-other"})
    other.start()
    other.kill()
    assert "state.images" in complaint(other, "verify")
    other.settings["state"]["images"] = "full"
    other.start("--until-caught-up")
    other.kill()
    assert "state store" in command(other, "verify").stderr


def test_status_tells_of_the_store(scene: Scene) -> None:
    scene.tarantool.eval(THINGS, 100)
    scene.daemon.start()
    scene.catch_up()
    status = scene.daemon.wait_until("the store has it", lambda status: status["store"]["rows"] == 100)
    assert status["store"]["bytes"] > 0
    assert status["store"]["position"] == status["position"]["checkpoint"]
    # The checkpoint gets the row at which the stream resumes a moment later, and the store may get a page for it.
    scene.daemon.wait_until(
        "the command tells the same",
        lambda status: f"store        100 rows, {status['store']['bytes']} bytes, at " in command(scene.daemon, "status").stdout,
    )

    def metrics() -> str:
        with urllib.request.urlopen(f"http://{scene.daemon.settings['http']['listen']}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    status = scene.daemon.wait_until(
        "the metrics tell the same",
        lambda status: f"tarantool_cdc_state_bytes {float(status['store']['bytes'])}" in metrics(),
    )
    told = metrics()
    assert "tarantool_cdc_state_rows 100.0" in told
    lsn = status["store"]["position"]["1"]
    assert f'tarantool_cdc_lsn{{position="state",replica_id="1"}} {float(lsn)}' in told
