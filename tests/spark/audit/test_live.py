"""Job audit over the topics of a real day finds nothing: snapshot, restart, truncation, alterations, keys that move."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs import run
from tests.live.scene import Scene

BEFORE = """
box.schema.space.create('goods', {format = {{'id', 'unsigned'}, {'code', 'string'}, {'n', 'number'}}})
box.space.goods:create_index('primary')
box.schema.space.create('empty'):create_index('primary')
box.schema.space.create('short'):create_index('primary')
for id = 1, 200 do box.space.goods:insert{id, 'code ' .. id, id} end
for id = 1, 20 do box.space.short:insert{id} end
"""

DAY = """
local goods, short = box.space.goods, box.space.short
for id = 1, 60 do goods:update(id, {{'+', 3, 0.5}}) end
for turn = 1, 20 do
    box.begin()
    for id = turn, turn + 4 do goods:replace{id, 'code ' .. id, turn} short:replace{id, turn} end
    goods:delete(200 - turn)
    box.commit()
end
goods:format{{'id', 'unsigned'}, {'name', 'string'}, {'n', 'number'}, {'new', 'any', is_nullable = true}}
for id = 1, 40 do goods:update(id, {{'=', 4, {id}}}) end
short:truncate()
for id = 1, 10 do short:insert{id} end
"""

EVENING = """
local goods, short = box.space.goods, box.space.short
goods:create_index('by_n', {parts = {{2, 'string'}}})
goods.index.primary:alter{parts = {{2, 'string'}}}
for id = 1, 30 do goods:update('code ' .. id, {{'=', 3, 10.0}}) end
short:rename('shorter')
for id = 5, 15 do short:upsert({id, 1}, {{'=', 2, 2}}) end
box.schema.space.create('short'):create_index('primary')
for id = 1, 10 do box.space.short:insert{id, 'other'} end
box.space.empty:drop()
"""


@pytest.mark.spark
@pytest.mark.one_of_these("audit", seconds=40)
def test_a_real_day_is_clean(scene: Scene, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a daemon that is killed at noon, in several batches."""
    scene.daemon.settings["kafka"]["partitions"] = 3
    scene.tarantool.eval(BEFORE)
    scene.daemon.start()
    scene.catch_up()
    scene.tarantool.eval(DAY)
    scene.catch_up()
    scene.daemon.kill()
    scene.daemon.start()
    scene.tarantool.eval(EVENING)
    scene.catch_up()
    command = [
        *("audit", "--bootstrap-servers", scene.kafka.bootstrap_servers, "--prefix", scene.prefix),
        *("--path", str(tmp_path / "audit"), "--checkpoint", str(tmp_path / "checkpoint"), "--available-now"),
    ]
    assert spark is SparkSession.getActiveSession()
    assert run.main([*command, "--max-offsets-per-trigger", "700"]) == 0
    assert "audit: found nothing" in capsys.readouterr().err
    events = scene.check_events().events
    assert {event.op for event in events} == set("rcudt")
    assert len(events) > 700
