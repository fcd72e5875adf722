"""What a live server takes into a field of each type, and under which names it knows the types."""

from __future__ import annotations

from cdc.local.interface import TarantoolServer
from cdc.schema.fitting import FIELD_TYPES, Fitting
from cdc.schema.forms import Field, KeyPart, SpaceForm, type_of_field
from tests.live import raw_requests as raw
from tests.live.raw_requests import RawRequests
from tests.schema.test_fitting import VALUES

NAMES = [*sorted(FIELD_TYPES), "NUM", "nu", "n", "", "Str", "st", "S", "*", "Unsigned", "uint", "int", "bool", "numb"]
MAKE = """
local made = {}
for place, name in ipairs(...) do
    local format = {{name = 'id', type = 'unsigned'}, {name = 'v', type = name}}
    local ok, space = pcall(box.schema.space.create, 'fitting' .. place, {format = format})
    if ok then space:create_index('pk') end
    table.insert(made, ok and space.id or 0)
end
return made
"""


def test_a_live_server_takes_the_same_values(tarantool: TarantoolServer) -> None:
    (made,) = tarantool.eval(MAKE, NAMES)
    (text,) = tarantool.eval("return box.info.version")
    version = tuple(int(number) for number in text.partition("-")[0].split("."))
    known = {name for name, space_id in zip(NAMES, made, strict=True) if space_id}
    assert known & {"uint", "int", "bool", "numb"} == set()
    assert {type_of_field(name) for name in known} <= FIELD_TYPES
    assert {"NUM", "", "Str", "S", "*", "Unsigned", "scalar", "uuid"} <= known
    with RawRequests(tarantool) as requests:
        for name, space_id in zip(NAMES, made, strict=True):
            if not space_id:
                continue
            field = Field("v", type_of_field(name), is_nullable=False)
            fitting = Fitting(
                SpaceForm(512, "s", (Field("id", "unsigned", False), field), (KeyPart(0, "", "unsigned"),)), version
            )
            for place, (kind, value) in enumerate(VALUES.items()):
                # One at a time: what is refused is answered before what is written.
                body = raw.body((raw.SPACE_ID, raw.packed(space_id)), (raw.TUPLE, b"\x92" + raw.packed(place) + value))
                (answer,) = requests.send([(raw.INSERT, body)])
                assert fitting.fits(b"\x92\x01" + value) is (not answer), (name, kind, answer)
