"""What the daemon can't know: rows that can't be carried out, and what a server before 2.6.1 merges in vinyl."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import Any

from cdc.protocol.extensions import pack, unpack
from tests.live.daemon import DaemonProcess
from tests.live.scene import Scene
from tests.live.test_state import command, store_of, verified
from tests.live.topics import Record, TopicReader

SPACES = """
for _, engine in ipairs{'memtx', 'vinyl'} do
    local format = {{'id', 'unsigned'}, {'n', 'integer'}, {'s', 'string'}}
    box.schema.space.create(engine, {engine = engine, format = format}):create_index('primary')
    for id = 1, 3 do box.space[engine]:insert{id, 0, 'abc'} end
end
box.snapshot()
"""


def metric(daemon: DaemonProcess, name: str) -> float:
    """A metric's value now."""
    with urllib.request.urlopen(f"http://{daemon.settings['http']['listen']}/metrics", timeout=10) as answer:
        found = re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


def records(scene: Scene) -> list[Record]:
    """All that the dead-letter topic holds."""
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix, only="dlq") as reader:
        reader.look()
        return [record for found in reader.records.values() for record in found]


def spoil(daemon: DaemonProcess, row: list[Any]) -> None:
    """Put another tuple into the state store of a daemon that is stopped."""
    store = store_of(daemon)
    (key,) = [key for key, tuple_ in store.scan(512) if unpack(tuple_)[0] == row[0]]
    store.write([(key, pack(row))], ())
    store.close()


def test_way_past_a_row_that_can_not_be_carried_out(scene: Scene) -> None:
    master, daemon = scene.tarantool, scene.daemon
    master.eval(SPACES)
    daemon.start()
    scene.catch_up()
    assert daemon.terminate() == 0
    spoil(daemon, [1, "no number", "abc"])
    master.eval("box.space.memtx:update(1, {{'+', 2, 1}}) box.space.memtx:update(2, {{'+', 2, 1}})")
    daemon.start()
    assert daemon.wait_for_end() == 1
    assert 'format.on_image_error = "dlq"' in daemon.run.log_text()
    # The remedy of the error, first the configuration, then the command that the letter has.
    daemon.settings.setdefault("format", {})["on_image_error"] = "dlq"
    daemon.start()
    scene.catch_up()
    daemon.wait_until("the key is in doubt", lambda status: status["store"]["doubtful_keys"] == 1)
    assert metric(daemon, "tarantool_cdc_doubtful_keys") == 1
    daemon.kill()
    master.eval("box.space.memtx:update(1, {{'+', 2, 1}})")
    daemon.start()
    scene.catch_up()
    daemon.wait_until("the key is in doubt", lambda status: status["store"]["doubtful_keys"] == 1)
    assert daemon.terminate() == 0
    status, differences, _ = verified(daemon)
    assert (status, [difference["reason"] for difference in differences]) == (
        1,
        ["a row of this key couldn't be applied and was skipped"],
    )
    letters = [json.loads(record.value) for record in records(scene) if record.value is not None]
    assert [letter["lsn"] for letter in letters] == sorted({letter["lsn"] for letter in letters})
    assert len(letters) == 2
    (remedy,) = set(re.findall(r"box\.atomic\(.* end\)", letters[0]["error"]))
    master.eval(remedy)
    daemon.start()
    scene.catch_up()
    daemon.wait_until("no key is in doubt", lambda status: status["store"]["doubtful_keys"] == 0)
    assert daemon.terminate() == 0
    assert verified(daemon)[0] == 0


def test_vinyl_before_2_6_1_merges_upserts(scene: Scene) -> None:
    """What is read before a dump is what the daemon has; the dump loses the second operation on a field."""
    master, daemon = scene.tarantool, scene.daemon
    master.eval(SPACES)
    daemon.start()
    scene.catch_up()
    for space in ("memtx", "vinyl"):
        for _ in range(2):
            master.eval("box.space[...]:upsert({1, 0, 'new'}, {{'=', 3, 'x'}, {'+', 2, 1}})", space)
            master.eval("box.space[...]:upsert({2, 0, 'new'}, {{'+', 2, 1}})", space)
    scene.catch_up()
    assert metric(daemon, "tarantool_cdc_vinyl_upserts_total") == 4
    assert command(daemon, "status", "--json").returncode == 0
    master.eval("box.snapshot()")
    assert daemon.terminate() == 0
    status, differences, sentence = verified(daemon)
    assert status == 1
    (difference,) = differences
    assert difference.pop("reason").startswith("before 2.6.1 a server merges UPSERTs")
    assert difference == {
        "space": "vinyl",
        "key": {"id": 1},
        "what": "different",
        "ours": {"id": 1, "n": 2, "s": "x"},
        "theirs": {"id": 1, "n": 1, "s": "x"},
    }
    assert "Of these 1: before 2.6.1" in sentence
    # Written whole, it is the same everywhere.
    master.eval("local s = box.space.vinyl box.atomic(function() s:replace(s:get{1}) end)")
    assert verified(daemon)[0] == 0


NOTATIONS = """
local decimal = require('decimal').new
for _, request in ipairs{'update', 'delete', 'upsert', 'phantom', 'keyless', 'certain', 'insert', 'replace'} do
    box.schema.space.create(request, {engine = 'vinyl'}):create_index('pk', {parts = {{1, 'decimal'}}})
    box.space[request]:replace{decimal('-1.5'), 'old'}
end
box.snapshot()
while box.stat.vinyl().memory.level0 > 0 do require('fiber').sleep(0.01) end
"""
REQUESTS = """
local key = require('decimal').new('-1.50')
box.space.update:update({key}, {{'=', 2, 'new'}})
box.space.delete:delete({key})
box.space.upsert:upsert({key, 'up'}, {{'=', 2, 'new'}})
box.space.phantom:update({key}, {{'=', 1, require('decimal').new(7)}, {'=', 2, 'new'}})
box.space.keyless:update({key}, {{'#', 1, 2}})
box.space.certain:update({require('decimal').new('-1.5')}, {{'=', 2, 'new'}})
box.space.insert:insert{key, 'new'}
box.space.replace:replace{key, 'new'}
"""
DOUBTFUL_REQUESTS = {"update", "delete", "upsert", "phantom", "keyless"}


def test_vinyl_finds_keys_on_disk_by_their_notation(scene: Scene) -> None:
    """The server logs each request; whether it found its row can't be told, so each goes to the dead letters and is mended."""
    master, daemon = scene.tarantool, scene.daemon
    daemon.settings.setdefault("format", {})["on_image_error"] = "dlq"
    master.eval(NOTATIONS)
    daemon.start()
    scene.catch_up()
    master.eval(REQUESTS)
    scene.catch_up()
    daemon.wait_until("the keys are in doubt", lambda status: status["store"]["doubtful_keys"] == len(DOUBTFUL_REQUESTS))
    letters = [json.loads(record.value) for record in records(scene) if record.value is not None]
    assert {re.findall("of vinyl space '(.*?)'", letter["error"])[0] for letter in letters} == DOUBTFUL_REQUESTS
    assert all("only the server knows whether this request found the row" in letter["error"] for letter in letters)
    # Each letter's remedy ends the doubt, whether the server has the row or not.
    for letter in letters:
        (remedy,) = re.findall(r"box\.atomic\(.* end\)", letter["error"])
        master.eval(remedy)
    scene.catch_up()
    daemon.wait_until("no key is in doubt", lambda status: status["store"]["doubtful_keys"] == 0)
    assert daemon.terminate() == 0
    assert verified(daemon)[0] == 0
    # The server forgets an inserted row together with its deletion, when it writes to disk: the former row is there again.
    daemon.start()
    master.eval("box.space.insert:delete{require('decimal').new('-1.50')} box.space.certain:insert{require('decimal').new(9)}")
    scene.catch_up()
    assert daemon.terminate() == 0
    assert verified(daemon)[0] == 0
    master.eval("box.snapshot() while box.stat.vinyl().memory.level0 > 0 do require('fiber').sleep(0.01) end")
    status, (difference,), _ = verified(daemon)
    assert (status, difference["space"], difference["what"]) == (1, "insert", "missing")
    assert difference["reason"].startswith("the keys of this vinyl space can be written in several notations")
