"""A primary key that is altered under load, and a part of it that is renamed: the rows come again out of the store."""

from __future__ import annotations

import json
import random
import time

import pytest

from tests.live.scene import Scene
from tests.live.stream import Event, Stream
from tests.live.test_state import verified
from tests.live.topics import TopicReader
from tests.live.waiting import wait_for

CREATE = """
box.schema.space.create('goods', {format = {{'id', 'unsigned'}, {'code', 'string'}, {'n', 'unsigned'}, {'text', 'string'}}})
box.space.goods:create_index('primary')
box.space.goods:create_index('by_code', {parts = {{2, 'string'}}})
box.schema.space.create('bystander'):create_index('primary', {sequence = true})
box.begin()
for id = 1, ... do
    box.space.goods:insert{id, 'code ' .. (1000000 - id), 0, string.rep('x', 100)}
    if id % 5000 == 0 then box.commit() box.begin() end
end
box.commit()
"""

# Rows change by whichever key is there, come and go, before the alteration and after it, and another space's with them.
LOAD = """
local fiber = require('fiber')
local count = ...
loading = true
fiber.create(function()
    for step = 1, 1000000 do
        if not loading then break end
        local id = math.random(count)
        local code = 'code ' .. (1000000 - id)
        local row = box.space.goods.index.by_code:get(code)
        if row == nil then
            box.space.goods:replace{id, code, step, 'again'}
        elseif step % 5 == 0 then
            box.space.goods.index.by_code:delete(code)
        elseif not pcall(box.space.goods.index.by_code.update, box.space.goods.index.by_code, code, {{'+', 3, 1}}) then
            -- The field is a part of the primary key now, which an UPDATE may not change.
            box.begin()
            box.space.goods.index.by_code:delete(code)
            box.space.goods:insert{id, code, row[3] + 1, row[4]}
            box.commit()
        end
        if step % 3 == 0 then box.space.bystander:insert{box.NULL} end
        fiber.sleep(0.001)
    end
end)
"""

BY_CODE = "box.space.goods.index.primary:alter{parts = {{2, 'string'}}}"
BY_BOTH = "box.space.goods.index.primary:alter{parts = {{3, 'unsigned'}, {1, 'unsigned'}}}"
RENAMED = "box.space.goods:format{{'id', 'unsigned'}, {'name', 'string'}, {'n', 'unsigned'}, {'text', 'string'}}"


def again(stream: Stream) -> list[Event]:
    """Rows that came because of another key."""
    return [event for event in stream.events if event.op == "r" and event.source["snapshot_id"] != "1"]


def wait_until_rows_come_again(scene: Scene, snapshot_id: int) -> None:
    """Wait for the first of them."""
    scene.daemon.wait_until("rows come again", lambda status: status["position"]["snapshot_id"] >= snapshot_id)


def wait_until_rows_have_come_again(scene: Scene, snapshot_id: int) -> None:
    """Wait for the last of them. Where nothing else changes, the position in the master's log doesn't tell."""
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix, only="snapshot") as reader:

        def have_come() -> bool:
            reader.look()
            records = [json.loads(record.value or b"{}") for records in reader.records.values() for record in records]
            return any((one["snapshot_id"], one["status"]) == (str(snapshot_id), "COMPLETED") for one in records)

        wait_for("all rows come again", have_come, 600)


@pytest.mark.parametrize(
    ("rows", "kills"),
    [
        pytest.param(5_000, (1, 0, 0), id="short"),
        pytest.param(300_000, (4, 4, 4), id="long", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
def test_altered_under_load_and_killed(scene: Scene, rows: int, kills: tuple[int, ...], seed: int) -> None:
    """No snapshot is taken, and each row comes once under each key."""
    chance = random.Random(seed)
    scene.tarantool.eval(CREATE, rows)
    scene.daemon.start()
    scene.catch_up()
    scene.tarantool.eval(LOAD, rows)
    said = ""
    for number, change, kill_count in zip((2, 3, 4), (BY_CODE, RENAMED, BY_BOTH), kills, strict=True):
        scene.tarantool.eval(change)
        wait_until_rows_come_again(scene, number)
        for _ in range(kill_count):
            time.sleep(chance.random() * 0.3)  # the moment is random, so there is nothing to wait for
            said += scene.daemon.run.log_text()
            scene.daemon.restart_killed()
            scene.daemon.wait_until_streaming()
        wait_until_rows_have_come_again(scene, number)
        scene.catch_up(600)
    scene.tarantool.eval("loading = false")
    scene.catch_up()
    assert (said + scene.daemon.run.log_text()).count("taking a snapshot") == 1, "the first one"
    assert scene.daemon.terminate() == 0
    stream = scene.check()
    records = [(record["snapshot_id"], record["status"]) for record in stream.control["snapshot"]]
    assert records == [(number, status) for number in "1234" for status in ("STARTED", "COMPLETED")]
    keys: dict[str, set[tuple[str, ...]]] = {}
    for event in again(stream):
        assert event.key is not None
        keys.setdefault(event.source["snapshot_id"], set()).add(tuple(json.loads(event.key)))
    assert keys == {"2": {("code",)}, "3": {("name",)}, "4": {("n", "id")}}
    assert verified(scene.daemon)[:2] == (0, [])
