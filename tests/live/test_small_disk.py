"""A disk that fills up under the state store: the first error is the one that is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.scene import Scene

ROWS = 40_000


@pytest.mark.parametrize("moment", ["snapshot", "stream"])
def test_no_room_for_the_store(scene: Scene, small_disk: Path, moment: str) -> None:
    tarantool, daemon = scene.tarantool, scene.daemon
    tarantool.eval("box.schema.space.create('wide'):create_index('pk')")
    fill = """
        for i = 1, ... do
            box.space.wide:replace({i, string.rep('x', 200)})
            if i % 1000 == 0 then require('fiber').yield() end
        end
    """
    if moment == "snapshot":
        tarantool.eval(fill, ROWS)
    daemon.settings["state"]["path"] = str(small_disk / "state")
    daemon.settings["log"] = {"format": "json"}
    daemon.start()
    if moment == "stream":
        daemon.wait_until_streaming()
        tarantool.eval(fill, ROWS)
    assert daemon.wait_for_end(120) == 1
    *_, last = daemon.run.log_tail().splitlines()
    assert f"the state store {small_disk}/state/images couldn't be written, there is no room left on its disk" in last
    assert "is closed" not in daemon.run.log_tail()
