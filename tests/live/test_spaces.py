"""Imports into a shadow that then takes the name of a published space: all of its rows come, live and out of files."""

from __future__ import annotations

import re

from cdc.local.interface import KafkaServer, TarantoolServer
from tests.conftest import TarantoolFactory
from tests.live.conftest import SceneFactory
from tests.live.test_files import replay, replay_all, work_dir
from tests.live.test_state import verified

CREATE = """
local name, count, text = ...
box.schema.space.create(name, {format = {{'id', 'unsigned'}, {'text', 'string'}}}):create_index('primary')
box.begin()
for id = 1, count do
    box.space[name]:insert{id, text .. id}
    if id % 1000 == 0 then box.commit() box.begin() end
end
box.commit()
"""

SWAP = "box.begin() box.space.goods:rename('goods_old') box.space.goods_new:rename('goods') box.commit()"


def test_swapped_with_a_shadow(scene_factory: SceneFactory, kafka: KafkaServer, tarantool_factory: TarantoolFactory) -> None:
    """The daemon is killed in the snapshot that brings the rows; and then a replay needs a .snap that has them."""
    master: TarantoolServer = tarantool_factory(checkpoint_count=100)
    scene = scene_factory(kafka, master)
    scene.daemon.settings["spaces"] = {"exclude": ["goods_.*"]}
    for name, count in (("goods", 100), ("goods_new", 10_000), ("bystander", 10)):
        master.eval(CREATE, name, count, name)
    scene.daemon.start()
    scene.catch_up()
    master.eval("box.space.bystander:delete{1}")
    master.eval(SWAP)
    master.eval("box.space.goods:update(1, {{'=', 2, 'at once'}}) box.space.goods:delete{2} box.space.bystander:delete{2}")
    scene.daemon.wait_until("a snapshot begins", lambda status: status["position"]["snapshot_id"] >= 2)
    said = scene.daemon.run.log_text()
    scene.daemon.restart_killed()
    scene.daemon.wait_until_streaming()
    master.eval("box.space.goods:update(3, {{'=', 2, 'later'}}) box.space.goods:delete{4} box.space.goods_old:drop()")
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    stream = scene.check()
    ops = "".join(event.op for event in stream.events if event.source["table"] == "bystander")
    # Killed while the store lacked what Kafka had of that snapshot, the daemon doesn't know what consumers have: all rows again.
    is_lost = "refilling the state store" in scene.daemon.run.log_text()
    assert re.fullmatch("r{10}dd?r{8}" if is_lost else "r{10}dd", ops)
    assert "'goods_new' (" in said
    assert "which isn't published, was renamed to 'goods', which is" in said
    assert verified(scene.daemon)[:2] == (0, [])
    master.eval(CREATE, "goods_new", 20, "once more ")
    master.eval(SWAP)
    master.eval("box.space.goods_old:drop() box.space.goods:delete{1}")
    replay(scene, work_dir(master))
    assert scene.daemon.wait_for_end() == 1
    last = scene.daemon.run.log_tail(1)
    assert "was renamed to 'goods', which is" in last
    assert "Call box.snapshot() on the server" in last
    master.eval("box.snapshot()")
    master.eval("box.space.goods:delete{2}")
    replay_all(scene, work_dir(master))
    assert [event.op for event in scene.check().events[-1:]] == ["d"]
