"""Rows whose keys few expect reach the topics under one key each, whatever is done to them."""

from __future__ import annotations

import json
import random
from typing import Any

import msgpack
import pytest

from cdc.errors import ServerError
from cdc.local.client import Client
from cdc.local.tarantool import ADMIN_USER, PASSWORD
from tests.live.scene import Scene

REPLACE = 3
SPACE_ID, INDEX_ID, INDEX_BASE, TUPLE = 0x10, 0x11, 0x15, 0x21

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


class Wire(Client):
    """A client that sends requests as they are."""

    def send(self, kind: int, body: bytes) -> bool:
        """Whether the server has carried it out."""
        try:
            self._request(kind, body)
        except ServerError:
            return False
        return True


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


_CREATE_NUMBERS = """
for name, parts in pairs{
    numbers = {{1, 'number'}}, scalars = {{1, 'scalar'}}, doubles = {{1, 'double'}}, decimals = {{1, 'decimal'}},
    inside = {{'[1].id', 'number'}}, several = {{2, 'string'}, {1, 'number'}},
} do
    box.schema.space.create(name):create_index('primary', {parts = parts})
end
"""
_CHANGE_NUMBERS = """
local decimal, ffi = require('decimal'), require('ffi')
local function double(value) return ffi.cast('double', value) end
local ten = {10, double(10), decimal.new('10'), decimal.new('10.00'), decimal.new('1E+1')}
local zero = {0, double(-0.0), double(0), decimal.new('0.000'), decimal.new('-0')}
local tenth = {0.1, decimal.new('0.1'), decimal.new('0.1000'), double(0.1), 0.1}
local big = {18446744073709551615ULL, decimal.new('18446744073709551615'), decimal.new('18446744073709551615.0')}
local long = {decimal.new('0.30000000000000001'), decimal.new('0.300000000000000010')}
local function only(kind, values)
    local found = {}
    for _, value in ipairs(values) do
        local is = decimal.is_decimal(value) and 'decimal' or ffi.istype('double', value) and 'double'
        if kind == nil or kind == is then table.insert(found, value) end
    end
    return found
end
local function each(space, kind, key_of, row_of)
    for _, values in ipairs{ten, zero, tenth, big, long} do
        values = only(kind, values)
        for number, value in ipairs(values) do
            local other = values[number % #values + 1]
            space:insert(row_of(value, number))
            space:replace(row_of(other, 'replaced'))
            space:update(key_of(value), {{'!', -1, 'updated'}})
            space:upsert(row_of(value, 'no row'), {{'!', -1, 'upserted'}})
            space:delete(key_of(other))
            space:upsert(row_of(other, 'new'), {{'!', -1, 'wrong'}})
            space:delete(key_of(value))
        end
        if #values > 1 then
            space:insert(row_of(values[1], 'first'))
            space:replace(row_of(values[#values], 'last'))
        end
    end
end
local function key(value) return {value} end
local function row(value, word) return {value, word} end
local space = box.space
each(space.numbers, nil, key, row)
each(space.scalars, nil, key, row)
each(space.doubles, 'double', key, row)
each(space.decimals, 'decimal', key, row)
each(space.inside, nil, key, function(value, word) return {{id = value}, word} end)
each(space.several, nil, function(value) return {'x', value} end, function(value, word) return {value, 'x', word} end)
"""


@pytest.mark.one_of_these
@pytest.mark.parametrize("images", ["full", "none"])
def test_a_number_is_one_key_however_it_is_written(scene: Scene, images: str) -> None:
    """The keys of a compacted topic are then the master's rows, and no others."""
    scene.daemon.settings["state"]["images"] = images
    scene.tarantool.eval(_CREATE_NUMBERS)
    scene.tarantool.eval(_CHANGE_NUMBERS)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.tarantool.eval("for _, space in pairs(box.space) do if space.id > 511 then space:truncate() end end")
    scene.tarantool.eval(_CHANGE_NUMBERS)
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    stream = scene.check()
    left: dict[str, set[bytes]] = {}
    for (topic, _), records in stream.records.items():
        compacted = {record.key: record.value for record in records}
        alive = {key for key, value in compacted.items() if key is not None and value is not None}
        left.setdefault(topic.removeprefix(f"{scene.prefix}."), set()).update(alive)
    ten, zero, tenth, big, long = b"10", b"0", b"0.1", b"18446744073709551615", b'"0.30000000000000001"'
    assert left["numbers"] == {b'{"field_1":%b}' % text for text in (ten, zero, tenth, big, long)}


_CREATE_HASHES = """
for name, kind in pairs{money = 'decimal', numbers = 'number', scalars = 'scalar', altered = 'number'} do
    local index = name == 'altered' and 'tree' or 'hash'
    box.schema.space.create(name, {format = {{'id', kind}, {'n', 'unsigned'}}}):create_index('primary', {type = index})
end
"""
_CHANGE_HASHES = """
local decimal = require('decimal')
local space, values = box.space[...], {}
for _, text in ipairs{'1', '1.0', '1.00', '1e2', '100', '0', '-0', '0.10'} do table.insert(values, decimal.new(text)) end
if space.name ~= 'money' then
    for _, value in ipairs{1, 100, 0, 0.1, 0/0, -(0/0)} do table.insert(values, value) end
end
for number, value in ipairs(values) do
    space:insert{value, number}
    space:replace{value, number + 100}
end
for number, value in ipairs(values) do
    if number % 3 == 0 then space:delete(value) else space:update(value, {{'+', 2, 1000}}) end
    if number % 2 == 0 then space:upsert({value, 7}, {{'+', 2, 10000}}) end
end
return space:len()
"""


def test_a_hash_index_has_a_row_for_each_writing(scene: Scene) -> None:
    """One that was a TREE before has its rows under other keys from then on."""
    scene.tarantool.eval(_CREATE_HASHES)
    scene.tarantool.eval("local d = require('decimal') box.space.altered:insert{d.new('5.0'), 1}")
    assert scene.tarantool.eval(_CHANGE_HASHES, "scalars") == [12]
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    assert scene.tarantool.eval(_CHANGE_HASHES, "money") == [7]
    assert scene.tarantool.eval(_CHANGE_HASHES, "numbers") == [12]
    scene.tarantool.eval("box.space.altered.index.primary:alter{type = 'hash'} box.space.altered:insert{5, 2}")
    scene.catch_up()
    scene.daemon.restart_killed()
    scene.tarantool.eval(_CHANGE_HASHES, "altered")
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    events = [event for event in scene.check().events if event.source["table"] == "altered"]
    assert [(event.op, event.key) for event in events[:4]] == [
        ("r", '{"id":5}'),
        ("t", None),
        ("r", '{"id":"5.0"}'),
        ("c", '{"id":5}'),
    ]


def test_a_request_with_more_than_it_needs(scene: Scene, seed: int) -> None:
    """The server logs a body as the client has written it, which may look like another one."""
    (space_id,) = scene.tarantool.eval("local s = box.schema.space.create('crafted') s:create_index('primary') return s.id")
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    wire = Wire(scene.tarantool.port, ADMIN_USER, PASSWORD)
    opening = b"\x82\x10" + msgpack.packb(space_id) + b"\x21"
    disguised = [7, opening.decode(errors="surrogateescape") + "\udc92\x09"]
    plain = {SPACE_ID: space_id, TUPLE: disguised}
    try:
        assert wire.send(REPLACE, _map(*{**plain, INDEX_BASE: 1, INDEX_ID: 0}.items()))
        assert wire.send(REPLACE, _map(*{INDEX_ID: 0, **plain, 0x2C: [1], 0x2D: [2]}.items()))
        assert wire.send(REPLACE, _map(*plain.items(), (TUPLE, [7, "the last one counts"])))
        long_key = (
            b"\x83\x10" + _packed(space_id) + b"\x21" + _packed([7, "2.6 sees this"]) + b"\xcc\x21" + _packed([7, "not this"])
        )
        assert wire.send(REPLACE, long_key)
        scene.tarantool.eval("box.space.crafted:update(7, {{'!', -1, 'after'}})")
        dice = random.Random(seed)
        done = sum(wire.send(*_random_request(dice, space_id)) for _ in range(300))
        assert done > 60
    finally:
        wire.close()
    scene.tarantool.eval("for _, row in box.space.crafted:pairs() do box.space.crafted:update(row[1], {{'!', -1, 'end'}}) end")
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    scene.check()


def _random_request(dice: random.Random, space_id: int) -> tuple[int, bytes]:
    """A REPLACE, UPDATE, DELETE, UPSERT or INSERT, with what it needs, and other keys or the same once more in any form."""
    kind = dice.choice([2, 3, 3, 4, 4, 5, 9])
    rows = [[number, dice.choice(["a", 5, "\udc82\x10\udccd\x02\x00\x21\udc92"])] for number in range(3)]
    operations = [[["=", 2, "x"]], [["=", 1, 1]], [["!", 2, 7]], [["=", -1, "y"]]]
    keys = {2: (TUPLE,), 3: (TUPLE,), 4: (0x20, TUPLE, INDEX_BASE), 5: (0x20,), 9: (TUPLE, 0x28, INDEX_BASE)}[kind]
    values: dict[int, list[Any]] = {
        SPACE_ID: [space_id],
        INDEX_ID: [0],
        INDEX_BASE: [1, 1, 0],
        0x20: [[0], [1], [2], [3]],
        TUPLE: operations if kind == 4 else rows,
        0x28: operations,
        0x2C: [rows[0], opened := {SPACE_ID: space_id, TUPLE: rows[1]}],
        0x2D: [opened],
    }
    pairs = [(bytes([key]), dice.choice(values[key])) for key in (SPACE_ID, *keys)]
    for _ in range(dice.choice([0, 1, 1, 2, 3])):
        key = dice.choice(list(values))
        form = dice.choice([b"", b"", b"\xcc", b"\xcd\0", b"\xce\0\0\0", b"\xd0", b"\xd1\0", b"\xa1", b"\x91"])
        pairs.append((form + bytes([key]), dice.choice(values[key])))
    dice.shuffle(pairs)
    return kind, bytes([0x80 | len(pairs)]) + b"".join(key + _packed(value) for key, value in pairs)


def _map(*pairs: tuple[int, Any]) -> bytes:
    return bytes([0x80 | len(pairs)]) + b"".join(bytes([key]) + _packed(value) for key, value in pairs)


def _packed(value: Any) -> bytes:
    return bytes(msgpack.packb(value, unicode_errors="surrogateescape"))
