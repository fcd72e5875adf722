"""Keys in formats with a schema: as many keys as in JSON, and the same rows under each."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import EncodingError
from cdc.events.row_encoder import RowEncoder
from cdc.formats import avro_events, connect_events
from cdc.formats.options import FormatOptions
from cdc.protocol.extensions import Datetime
from cdc.schema.forms import Field, KeyPart, SpaceForm
from tests.formats.oracles import Ids

DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20, places=3)
NUMBERS = st.one_of(st.integers(-(2**63), 2**64 - 1), st.floats(), DECIMALS, st.integers(-3, 3).map(float))
MOMENTS = st.builds(Datetime, st.integers(-(10**10), 10**10), st.sampled_from([0, 5]), st.sampled_from([0, 60, -60]))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "unsigned": st.integers(0, 2**63 - 1),
    "integer": st.integers(-(2**63), 2**63 - 1),
    "number": NUMBERS,
    "double": st.one_of(st.floats(), st.integers(-3, 3)),
    "decimal": st.one_of(DECIMALS, st.integers(-20, 20).map(lambda n: Decimal(n).scaleb(-1)), st.integers(-20, 20).map(Decimal)),
    "datetime": MOMENTS,
    "scalar": st.one_of(NUMBERS, st.text(max_size=3), st.booleans(), st.binary(max_size=2), st.uuids(), MOMENTS),
    "string": st.text(max_size=3),
    "uuid": st.uuids(),
    "varbinary": st.binary(max_size=3),
    "boolean": st.booleans(),
}


def form(kind: str, *, as_written: bool = False, path: str = "") -> SpaceForm:
    part = KeyPart(0, path, kind, is_as_written=as_written)
    return SpaceForm(512, "users", (Field("id", "any" if path else kind, is_nullable=False),), (part,), schema_version=1)


def avro(ids: Ids, of: SpaceForm, **options: Any) -> Any:
    return avro_events.key_pieces("shop", FormatOptions("avro", schema_ids=ids, **options))(of, "shop.users")


@pytest.mark.parametrize("as_written", [False, True], ids=["tree", "hash"])
@pytest.mark.parametrize("kind", VALUES)
def test_keys_are_equal_where_they_are_in_json(kind: str, as_written: bool) -> None:
    of = form(kind, as_written=as_written)
    text, binary = RowEncoder(of).key, avro(Ids(), of).key

    @given(VALUES[kind], VALUES[kind])
    def compare(one: Any, other: Any) -> None:
        assert (text([one]) == text([other])) == (binary([one]) == binary([other]))

    compare()


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("unsigned", 7, 7),
        ("decimal", Decimal("10.00"), {"scale": 0, "value": b"\x0a"}),
        ("decimal", Decimal("1E+2"), {"scale": 0, "value": b"\x64"}),
        ("number", Decimal("10.00"), "10"),
        ("double", -0.0, 0.0),
        ("datetime", Datetime(1709240398, 0, 180), "2024-02-29T20:59:58Z"),
        ("scalar", UUID(int=5), '{"uuid":"00000000-0000-0000-0000-000000000005"}'),
        ("scalar", "x", '"x"'),
        ("uuid", UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        ("varbinary", b"\xff", b"\xff"),
    ],
)
def test_values(kind: str, value: object, shown: object) -> None:
    ids = Ids()
    key, key_of, _ = avro(ids, form(kind))
    assert ids.read(key([value])) == {"id": shown}
    assert key([value]) == key_of([value, "more"])


def test_a_part_inside_a_field() -> None:
    ids = Ids()
    found = avro(ids, form("unsigned", path=".user.id"))
    assert ids.read(found.key_of([{"user": {"id": 7}}])) == {"id_user_id": 7}
    in_text = connect_events.key_pieces("shop", FormatOptions("json_schema"))(form("unsigned", path=".user.id"), "shop.users")
    assert json.loads(in_text.key([7]))["payload"] == {"id.user.id": 7}


def test_a_string_that_is_not_utf_8_is_no_key() -> None:
    key = avro(Ids(), form("string")).key
    with pytest.raises(EncodingError, match="isn't a string of UTF-8"):
        key(["\udcff"])


@pytest.mark.parametrize("value", [Decimal("-0"), Decimal("-0.00")])
def test_a_negative_zero_is_no_key_where_each_notation_is_one(value: Decimal) -> None:
    """Its number has no sign of its own, so it would be the key of another row."""
    with pytest.raises(EncodingError, match=r'Set format.decimal = "string"'):
        avro(Ids(), form("decimal", as_written=True)).key([value])
    texts = {avro(Ids(), form("decimal", as_written=True), decimal="string").key([one]) for one in (value, -value)}
    assert len(texts) == 2
    assert avro(Ids(), form("decimal")).key([value]) == avro(Ids(), form("decimal")).key([Decimal(0)])
