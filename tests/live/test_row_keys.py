"""Rows whose keys few expect reach the topics under one key each, whatever is done to them."""

from __future__ import annotations

import json

import pytest

from tests.live.scene import Scene

_CREATE = """
for _, kind in ipairs{'string', 'varbinary'} do
    local space = box.schema.space.create(kind, {format = {{'id', kind}, {'n', 'integer'}}})
    space:create_index('primary', {parts = {{1, kind}}})
end
"""
# 2.6 has varbinary in Lua through SQL only.
_EMPTY_KEYS = {
    "string": [
        "box.space.string:insert{'', 1}",
        "box.space.string:replace{'', 2}",
        "box.space.string:update('', {{'+', 2, 40}})",
        "box.space.string:insert{'\\0', 3}",
        "box.space.string:upsert({'', 5}, {{'+', 2, 5}})",
        "box.space.string:delete('')",
        "box.space.string:upsert({'', 6}, {{'+', 2, 6}})",
    ],
    "varbinary": [
        """box.execute("INSERT INTO \\"varbinary\\" VALUES (x'', 1)")""",
        """box.execute("REPLACE INTO \\"varbinary\\" VALUES (x'', 2)")""",
        """box.execute("UPDATE \\"varbinary\\" SET \\"n\\" = 42")""",
        """box.execute("INSERT INTO \\"varbinary\\" VALUES (x'00', 3)")""",
        """box.execute("UPDATE \\"varbinary\\" SET \\"n\\" = 47 WHERE \\"id\\" = x''")""",
        """box.execute("DELETE FROM \\"varbinary\\" WHERE \\"id\\" = x''")""",
        """box.execute("INSERT INTO \\"varbinary\\" VALUES (x'', 6)")""",
    ],
}


@pytest.fixture(autouse=True)
def few_partitions(scene: Scene) -> None:
    """Making topics takes most of the time here."""
    scene.daemon.settings["kafka"]["partitions"] = 1


def test_a_row_without_a_letter_in_its_key(scene: Scene) -> None:
    """Written to the store row by row, and there before the daemon and after it has ended."""
    scene.daemon.settings["state"]["flush_interval_ms"] = 1
    scene.tarantool.eval(_CREATE)
    for statements in _EMPTY_KEYS.values():
        scene.tarantool.eval(statements[0])
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    for statements in _EMPTY_KEYS.values():
        for statement in statements[1:]:
            scene.tarantool.eval(statement)
            scene.catch_up()
    scene.daemon.restart_killed()
    scene.tarantool.eval("box.space.string:truncate() box.space.string:insert{'', 7}")
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    stream = scene.check()
    empty = json.dumps({"id": ""}, separators=(",", ":"))
    told = {
        name: [event.op for event in stream.events if event.source["table"] == name and event.key == empty]
        for name in _EMPTY_KEYS
    }
    # SQL replaces by deleting first.
    assert told == {"string": [*"ruuudcc"], "varbinary": [*"rdcuudc"]}
