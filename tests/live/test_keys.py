"""Keys are equal, and ordered, as a real server has them: it gets the values as they are, over the wire."""

from __future__ import annotations

import math
import random
import re
import uuid
from collections.abc import Callable, Iterator
from decimal import Context, Decimal
from typing import Any

import msgpack
import pytest

from cdc.errors import ServerError
from cdc.events.row_encoder import RowEncoder
from cdc.local.client import Client
from cdc.local.interface import TarantoolServer
from cdc.local.tarantool import ADMIN_USER, PASSWORD
from cdc.protocol.constants import Key
from cdc.protocol.extensions import pack, unpack
from cdc.schema.forms import KeyPart, SpaceForm
from cdc.schema.keys import KeyCodec
from cdc.schema.tracker import SchemaTracker
from tests.fakes.golden import ROOT

SELECT, INSERT = 1, 2
INDEX_ID, LIMIT, OFFSET, ITERATOR = 0x11, 0x12, 0x13, 0x14
DATA = 0x30
EQUAL, ALL = 0, 2
TUPLE_FOUND = 3
VALUES_COUNT = 400


class Wire(Client):
    """A client that sends values as they are: Lua would make integers of doubles."""

    def insert(self, space_id: int, row: list[Any]) -> bool:
        """Whether the server took it; False if its key is there."""
        try:
            self._request(INSERT, {Key.SPACE_ID: space_id, Key.TUPLE: plain(row)})
        except ServerError as error:
            if error.code != TUPLE_FOUND:
                raise
            return False
        return True

    def send(self, kind: int, body: bytes) -> None:
        """A request whose body is these bytes."""
        self._request(kind, body)

    def select(self, space_id: int, key: list[Any]) -> list[list[Any]]:
        """All rows in the index's order, or those of a key."""
        request = {INDEX_ID: 0, LIMIT: 1_000_000, OFFSET: 0, ITERATOR: EQUAL if key else ALL, Key.KEY: plain(key)}
        rows: list[list[Any]] = unpack(self._request(SELECT, {Key.SPACE_ID: space_id, **request}))[DATA]
        return rows


def plain(value: Any) -> Any:
    """With extensions as the client's library packs them."""
    return msgpack.unpackb(pack(value), unicode_errors="surrogateescape", strict_map_key=False)


@pytest.fixture
def wire(tarantool: TarantoolServer) -> Iterator[Wire]:
    """A connection to the test's server."""
    client = Wire(tarantool.port, ADMIN_USER, PASSWORD)
    yield client
    client.close()


def integers(dice: random.Random) -> int:
    edge = dice.choice([0, 1, 2**31, 2**53, 2**62, 2**63, 2**64 - 6, -(2**31), -(2**53), -(2**63) + 5])
    return edge + dice.randint(-5, 5) if edge not in (0, 1) else dice.randint(-3, 3)


def doubles(dice: random.Random) -> float:
    match dice.randrange(6):
        case 0:
            return float(integers(dice))
        case 1:
            return dice.choice([math.inf, -math.inf, 0.0, -0.0, 5e-324, -5e-324, 1.7e308, 1e23, -1e100])
        case 2:
            return math.nextafter(dice.choice([0.1, 0.3, 1.0, 2.0**53, 2.0**63, 2.0**64]), dice.choice([-math.inf, math.inf]))
        case _:
            return dice.randint(-40, 40) / 8


def decimals(dice: random.Random) -> Decimal:
    digits = dice.randrange(10 ** dice.choice([1, 2, 5, 20, 37]))
    return Decimal(digits).scaleb(-dice.randrange(20), None if digits < 10**20 else _WIDE) * dice.choice([-1, 1])


def short_numbers(dice: random.Random) -> Any:
    """Of few digits: for them the server's comparison is transitive."""
    text = f"{dice.randint(-30, 30)}.{dice.choice(['0', '1', '25', '3', '50', '125'])}"
    return dice.choice((float(text), Decimal(text), int(float(text))))


def texts(dice: random.Random) -> str:
    return bytes(dice.choices([0, 1, 65, 66, 127, 128, 255, 0xC3, 0xA9], k=dice.randrange(5))).decode("utf-8", "surrogateescape")


def scalars(dice: random.Random) -> Any:
    """Without UUIDs, which 2.6 does not take for scalars."""
    return dice.choice((short_numbers(dice), texts(dice), binaries(dice), dice.random() < 0.5))


def binaries(dice: random.Random) -> bytes:
    return texts(dice).encode("utf-8", "surrogateescape")


def uuids(dice: random.Random) -> uuid.UUID:
    return uuid.UUID(bytes=bytes(dice.choices([0, 1, 127, 128, 255], k=16)))


def mixed(dice: random.Random) -> Any:
    """NaN is less than all other numbers in a `number`; in a `double` 2.6 takes it for equal to each of them."""
    return dice.choice((integers(dice), doubles(dice), doubles(dice), math.nan))


def decimals_and_integers(dice: random.Random) -> Any:
    return dice.choice([integers, decimals])(dice)


_WIDE = Context(prec=60)


def keyed_space(tarantool: TarantoolServer, types: list[str], index: str = "tree") -> int:
    """The id of a space whose primary key has parts of these types, in order."""
    found: list[int] = tarantool.eval(
        """
        local types, index = ...
        local parts = {}
        for place, kind in ipairs(types) do parts[place] = {place, kind} end
        local space = box.schema.space.create('keys')
        space:create_index('primary', {type = index, parts = parts})
        return space.id
        """,
        types,
        index,
    )
    return found[0]


@pytest.mark.parametrize(
    ("types", "makers"),
    [
        (["unsigned"], [lambda dice: abs(integers(dice))]),
        (["integer"], [integers]),
        (["number"], [mixed]),
        (["number"], [decimals_and_integers]),
        (["number"], [short_numbers]),
        (["double"], [doubles]),
        (["decimal"], [decimals]),
        (["string"], [texts]),
        (["varbinary"], [binaries]),
        (["boolean"], [lambda dice: dice.random() < 0.5]),
        (["uuid"], [uuids]),
        (["scalar"], [scalars]),
        (["string", "number", "string"], [texts, short_numbers, texts]),
        (["varbinary", "integer", "uuid"], [binaries, integers, uuids]),
        (["scalar", "scalar"], [scalars, scalars]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value[0], str) else getattr(value[0], "__name__", "values"),
)
def test_order_and_equality_are_the_servers(
    tarantool: TarantoolServer, wire: Wire, types: list[str], makers: list[Callable[[random.Random], Any]], seed: int
) -> None:
    space_id = keyed_space(tarantool, types)
    codec = KeyCodec(SpaceForm(space_id, "keys", (), tuple(KeyPart(place, "", kind) for place, kind in enumerate(types))))
    dice = random.Random(seed)
    stored: dict[bytes, list[Any]] = {}
    for _ in range(VALUES_COUNT):
        row = [make(dice) for make in makers]
        key = codec.of_tuple(row)
        if wire.insert(space_id, row):
            assert key not in stored, f"the server tells {row} from {stored[key]}"
            stored[key] = row
        else:
            assert key in stored, f"the server has {row} among {list(stored.values())}"
    found = [codec.of_tuple(row) for row in wire.select(space_id, [])]
    assert found == sorted(stored)
    for _ in range(VALUES_COUNT):
        values = [make(dice) for make in makers]
        rows = wire.select(space_id, values)
        assert [codec.of_tuple(row) for row in rows] == [key for key in [codec.of_key(values)] if key in stored]


def written_numbers(dice: random.Random) -> Any:
    """Few numbers in all the writings that 2.6 has for them."""
    match dice.randrange(4):
        case 0:
            return decimals_as_written(dice)
        case 1:
            return dice.choice([math.nan, -math.nan, math.inf, -math.inf, -0.0])
        case _:
            return short_numbers(dice)


def decimals_as_written(dice: random.Random) -> Decimal:
    digits = dice.choice(["0", "-0", "1", "10", "-25", "100"])
    return Decimal(f"{digits}E{dice.randint(-3, 2)}")


def written_scalars(dice: random.Random) -> Any:
    return dice.choice((written_numbers(dice), texts(dice), binaries(dice), dice.random() < 0.5))


@pytest.mark.parametrize(
    ("types", "makers"),
    [
        (["unsigned"], [lambda dice: abs(integers(dice))]),
        (["integer"], [integers]),
        (["number"], [written_numbers]),
        (["double"], [doubles]),
        (["decimal"], [decimals_as_written]),
        (["varbinary"], [binaries]),
        (["scalar"], [written_scalars]),
        (["string", "number", "decimal"], [texts, written_numbers, decimals_as_written]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value[0], str) else getattr(value[0], "__name__", "values"),
)
def test_keys_of_a_hash_index_are_the_servers(
    tarantool: TarantoolServer, wire: Wire, types: list[str], makers: list[Callable[[random.Random], Any]], seed: int
) -> None:
    """It tells apart what is written differently, as far as the hash of the bytes does."""
    space_id = keyed_space(tarantool, types, "hash")
    tracker = SchemaTracker()
    for system in (280, 288):
        (row,) = wire.select(system, [space_id])
        tracker.apply(INSERT, {Key.SPACE_ID: system, Key.TUPLE: row})
    form = tracker.form(space_id)
    codec, encoder = KeyCodec(form), RowEncoder(form)
    dice = random.Random(seed)
    stored: dict[bytes, bytes] = {}
    for _ in range(VALUES_COUNT):
        row = [make(dice) for make in makers]
        key, text = codec.of_tuple(row), encoder.key_of(row)
        if wire.insert(space_id, row):
            assert key not in stored, f"the server tells {row} from the one with the key {stored[key]!r}"
            assert text not in stored.values(), f"the server tells {row} from the one with the key {text!r}"
            stored[key] = text
        else:
            assert stored.get(key) == text, f"the server has {row} among {list(stored.values())}"
    assert {codec.of_tuple(row): encoder.key_of(row) for row in wire.select(space_id, [])} == stored
    for _ in range(VALUES_COUNT):
        values = [make(dice) for make in makers]
        rows = wire.select(space_id, values)
        assert [codec.of_tuple(row) for row in rows] == [key for key in [codec.of_key(values)] if key in stored]


def test_a_key_that_is_written_longer_than_need_be_can_be_removed(tarantool: TarantoolServer, wire: Wire) -> None:
    """By what docs/events.md says, which leaves the other row alone, and makes one that stands alone an ordinary one."""
    (space_id,) = tarantool.eval("local s = box.schema.space.create('things') s:create_index('primary') return s.id")
    long = b"\xcf" + (7).to_bytes(8, "big")
    for key, word in ((b"\x07", "short"), (long, "long"), (b"\xcc\x08", "alone"), (b"\x09", "ordinary")):
        wire.send(INSERT, b"\x82\x10" + pack(space_id) + b"\x21\x92" + key + pack(word))
    _, _, section = (ROOT.parent / "docs" / "events.md").read_text().partition("### Keys that are written longer than need be")
    lua = re.findall(r"```lua\n(.*?)```", section, re.DOTALL)[0]
    assert tarantool.eval("return #box.space.things:select()") == [4]
    tarantool.eval(lua)
    assert sorted(wire.select(space_id, [])) == [[7, "short"], [8, "alone"], [9, "ordinary"]]
    assert tarantool.eval("return box.space.things:get(7)[2], box.space.things:get(8)[2]") == ["short", "alone"]
