"""Rows that a real server takes and libraries don't: as deep as a tuple's size allows, and MessagePack's own extension."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from cdc.local.client import Client
from cdc.local.interface import TarantoolServer
from cdc.local.tarantool import ADMIN_USER, PASSWORD
from cdc.protocol.codec import tuple_values
from tests.live.scene import Scene

SPACE_ID, TUPLE = b"\x10", b"\x21"
REPLACE = 3
TIMESTAMP = b"\xd6\xff\x00\x00\x00\x05"
NO_TIMESTAMP = b"\xd4\xff\x07"


class Wire(Client):
    """A client that sends a tuple as it is."""

    def replace(self, space_id: int, tuple_: bytes) -> None:
        """The body as bytes, which no library would write."""
        self._request(REPLACE, b"\x82" + SPACE_ID + b"\xcd" + space_id.to_bytes(2) + TUPLE + tuple_)


@pytest.fixture
def wire(tarantool: TarantoolServer) -> Iterator[Wire]:
    """A connection to the test's server."""
    client = Wire(tarantool.port, ADMIN_USER, PASSWORD)
    yield client
    client.close()


def deep(number: int, depth: int) -> bytes:
    """A row with a value of so many levels."""
    return b"\x92" + bytes([number]) + b"\x91" * depth + b"\x05"


def letters_and_events(scene: Scene) -> tuple[list[bytes], list[tuple[str, Any]]]:
    """The tuples of the dead letters, and of the events what they are and of which row."""
    letters, events = [], []
    with scene.reader() as reader:
        look = reader.look_at_rest()
        for record in reader.below(look):
            value: Any = json.loads(record.value or b"null")
            if record.topic == f"{scene.prefix}.dlq":
                letters.append(base64.b64decode(value["body"]))
            elif record.topic == f"{scene.prefix}.open" and value is not None:
                events.append((value["op"], json.loads(record.key or b"null")["id"]))
    return letters, events


def test_rows_that_no_event_can_show(scene: Scene, tarantool: TarantoolServer, wire: Wire) -> None:
    """In a space that isn't published they pass; in one that is they become dead letters, byte for byte, in the snapshot as in
    the stream, and the rows around them are as ever.
    """
    for name in ("open", "hidden"):
        tarantool.eval("local s = box.schema.space.create(..., {format = {{'id', 'unsigned'}}}) s:create_index('pk')", name)
    open_, hidden = (tarantool.eval("return box.space[...].id", name)[0] for name in ("open", "hidden"))
    tuples = [deep(1, 2_000), deep(2, 100_000), b"\x92\x03" + TIMESTAMP, b"\x92\x04" + NO_TIMESTAMP]
    for tuple_ in tuples[::2]:
        wire.replace(hidden, tuple_)
        wire.replace(open_, tuple_)
    wire.replace(open_, b"\x91\x0a")
    daemon = scene.daemon
    daemon.settings.update(format={"on_error": "dlq"}, spaces={"include": ["open"]})
    daemon.start()
    scene.catch_up()
    for tuple_ in tuples[1::2]:
        wire.replace(hidden, tuple_)
        wire.replace(open_, tuple_)
    wire.replace(open_, b"\x91\x0b")
    tarantool.eval("box.space.open:update(2, {{'=', 3, 'x'}}) box.space.open:delete(1) box.space.open:replace({2})")
    wire.replace(open_, b"\x91\x0c")
    scene.catch_up()
    letters, events = letters_and_events(scene)
    assert [event for event in events if event[1] >= 10] == [("r", 10), ("c", 11), ("c", 12)]
    # What follows a dead letter tells consumers of the key, though it can't tell them the row before.
    assert sorted(event for event in events if event[1] < 10) == [("d", 1), ("u", 2)]
    wanted = [tuples[0], tuples[2], tuples[1], tuples[3]]
    assert [body[body.index(TUPLE) + 1 :] for body in letters[:4]] == wanted
    assert daemon.terminate() == 0
    daemon.start(command="verify")
    assert daemon.wait_for_end() == 0, daemon.run.log_tail()


def test_a_row_that_stops_the_daemon_is_named(scene: Scene, tarantool: TarantoolServer, wire: Wire) -> None:
    tarantool.eval("local s = box.schema.space.create('open', {format = {{'id', 'unsigned'}}}) s:create_index('pk')")
    (open_,) = tarantool.eval("return box.space.open.id")
    scene.daemon.settings.update(spaces={"include": ["open"]})
    scene.daemon.start()
    scene.catch_up()
    wire.replace(open_, deep(1, 2_000))
    assert scene.daemon.wait_for_end() == 1
    tail = scene.daemon.run.log_tail()
    assert "nested too deeply to be written as JSON" in tail
    assert "(REPLACE) of space" in tail
    assert "body 82 10 cd" in tail
    assert "Traceback" not in tail
    assert tuple_values(deep(1, 2_000))[0] == 1
