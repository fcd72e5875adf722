"""Images from the log's own rows, at a server that isn't Enterprise: it writes none, and nothing is published without them."""

from __future__ import annotations

import json
from typing import Any

from tests.live.scene import Scene
from tests.live.stream import parse
from tests.live.topics import TopicReader


def row(*values: Any) -> dict[str, Any]:
    return dict(zip(("id", "name"), values, strict=True))


def test_a_server_that_writes_no_images(scene: Scene) -> None:
    scene.daemon.settings["state"]["images"] = "source"
    scene.tarantool.eval("""
        local space = box.schema.space.create('users', {format = {{'id', 'unsigned'}, {'name', 'string'}}})
        space:create_index('pk') space:insert{1, 'one'} space:insert{2, 'two'}
    """)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.tarantool.eval(
        "local users = box.space.users users:insert{3, 'three'} users:delete(1) users:update(2, {{'=', 2, 'TWO'}})"
    )
    assert scene.daemon.wait_for_end() == 1
    said = scene.daemon.run.log_text()
    assert "(UPDATE) of space 'users'" in said
    assert "the row has no images" in said
    assert 'state.images must be "full"' in said
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix) as reader:
        found = parse(reader).events
    assert [(event.op, json.loads(event.key or ""), event.value["before"], event.value["after"]) for event in found] == [
        ("r", {"id": 1}, None, row(1, "one")),
        ("r", {"id": 2}, None, row(2, "two")),
        ("c", {"id": 3}, None, row(3, "three")),
        ("d", {"id": 1}, None, None),
    ]
