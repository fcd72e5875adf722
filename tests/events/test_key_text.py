"""A key has one text: equal texts for equal keys of the store, which a live test compares with a server, and for no others."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.events.row_encoder import RowEncoder
from cdc.protocol.extensions import Datetime
from cdc.schema.forms import Field, KeyPart, SpaceForm
from cdc.schema.keys import KeyCodec
from tests.fakes import wire
from tests.fakes.profiles import MANY

NANS: list[float] = [
    struct.unpack(">d", bytes.fromhex(bits))[0] for bits in ("7ff8000000000000", "fff8000000000000", "7ff4000000000000")
]
SIGNALLING = NANS[2]
WRITTEN_DIFFERENTLY = {"number", "scalar", "double", "float64", "decimal", "decimal128", "datetime"}
NUMBERS: list[Any] = [
    *(0, 0.0, -0.0, Decimal("-0"), Decimal("0.00"), 1, 10, -10, Decimal("10.00"), Decimal("1E+1"), 2.5, Decimal("2.50")),
    *(2**53, 2**53 + 1, 2**63, 2**63 + 1, 2**64 - 1, Decimal(2**64), 2.0**64, -(2**63), -(2.0**63), Decimal(-(2**63) - 1)),
    *(0.1, 0.3, 0.1 + 0.2, Decimal("0.3"), Decimal("0.30000000000000001"), Decimal("0.30000000000000004"), 1e22, 1e23),
    *(Decimal("1E23"), 5e-324, Decimal("5E-324"), 1e300, Decimal("1E-400"), Decimal("1E400"), -(2.0**63) * 1.5),
    *(math.inf, -math.inf, math.nan, SIGNALLING, 999999999999999.9, Decimal("999999999999999.9")),
]


def writings(value: Any) -> list[Any]:
    """A number as other types have it, which may be the same number or the one beside it."""
    if type(value) is float and not math.isfinite(value):
        return [value]
    exact = Decimal(value)
    sign, digits, exponent = exact.as_tuple()
    assert isinstance(exponent, int)
    found: list[Any] = [exact, Decimal((sign, (*digits, 0, 0), exponent - 2)), exact + 1, -exact]
    if math.isfinite(double := float(exact)):
        found += [double, math.nextafter(double, 0), Decimal(f"{double:.15g}"), Decimal(repr(double))]
    if -(2**63) <= exact < 2**64:
        found.append(int(exact))
    return found


ANY_NUMBER = st.sampled_from(NUMBERS) | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.decimals(-1000, 1000, places=2)
DECIMALS = st.sampled_from([Decimal(value) for value in NUMBERS if math.isfinite(value)]) | st.decimals(-9, 9, places=1)
DOUBLES = st.sampled_from([value for value in NUMBERS if type(value) is float]) | st.floats()
TEXTS = st.sampled_from(["", "a", "\udcff", "/w==", "NaN", "1", "\0", "é", "e\u0301", str(UUID(int=1)), "1970-01-01T00:00:00Z"])
DATETIMES = st.builds(
    Datetime, st.integers(-2, 2), st.sampled_from([0, 1, 10]), st.sampled_from([0, 180, -60]), st.sampled_from([0, 947])
)
BINARIES = st.sampled_from([b"", b"\0", b"\xff", b"a"])
UUIDS = st.sampled_from([UUID(int=0), UUID(int=1)])
BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("unsigned", "uint64"), st.sampled_from([0, 1, 2**53 + 1, 2**64 - 1])),
    **dict.fromkeys(("integer", "int8"), st.sampled_from([0, 1, -1, -(2**63), 2**64 - 1])),
    "string": TEXTS,
    "number": ANY_NUMBER,
    **dict.fromkeys(("double", "float64"), DOUBLES | st.sampled_from([0, 1, 10, 2**53, 2**53 + 1])),
    **dict.fromkeys(("decimal", "decimal128"), DECIMALS),
    "varbinary": BINARIES,
    "boolean": st.booleans(),
    "uuid": UUIDS,
    "datetime": DATETIMES,
    "scalar": ANY_NUMBER | TEXTS | DATETIMES | BINARIES | UUIDS | st.booleans(),
}
NUMERIC = {"number", "scalar", "double", "float64", "decimal", "decimal128"}


def form(parts: Sequence[KeyPart]) -> SpaceForm:
    return SpaceForm(513, "things", tuple(Field(f"f{place}", "any", is_nullable=True) for place in range(4)), tuple(parts))


def another(data: st.DataObject, kind: str, value: Any) -> Any:
    """Another value of the type, often one that is equal."""
    allowed = (
        [Decimal] if kind.startswith("decimal") else [float, int] if kind in ("double", "float64") else [float, int, Decimal]
    )
    if kind in NUMERIC and type(value) in (int, float, Decimal) and data.draw(st.integers(0, 3)):
        return data.draw(st.sampled_from([value, *(other for other in writings(value) if type(other) in allowed)]))
    return data.draw(BY_TYPE[kind])


@MANY
@given(st.data())
def test_texts_are_equal_where_keys_are(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(BY_TYPE)), min_size=1, max_size=3))
    shape = form([KeyPart(place, ".in[1]" if place == 1 else "", kind) for place, kind in enumerate(kinds)])
    codec, encoder = KeyCodec(shape), RowEncoder(shape)
    one = [data.draw(BY_TYPE[kind]) for kind in kinds]
    other = [another(data, kind, value) for kind, value in zip(kinds, one, strict=True)]

    def nested(values: list[Any]) -> list[Any]:
        return [{"in": [value]} if place == 1 else value for place, value in enumerate(values)]

    is_one_key = codec.of_key(one) == codec.of_key(other)
    texts = [encoder.key(one), encoder.key(other), encoder.key_of(nested(one)), encoder.key_of(nested(other))]
    assert texts[:2] == texts[2:], "a row's key is its DELETE's"
    assert (texts[0] == texts[1]) == is_one_key, texts
    assert json.loads(texts[0]), "it is JSON"


def hashed(value: Any) -> Any:
    """What a HASH index of a server tells a value from others by: whole doubles as integers, all else by its bytes."""
    if type(value) in (int, float) and math.isfinite(value) and value == int(value) and -(2**63) <= value < 2**64:
        return int(value)
    return wire.pack(value)


@MANY
@given(st.data())
def test_in_a_hash_index_keys_are_what_was_written(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(BY_TYPE)), min_size=1, max_size=3))
    parts = [KeyPart(place, ".in[1]" if place == 1 else "", kind) for place, kind in enumerate(kinds)]
    shape = form([replace(part, is_as_written=part.type in WRITTEN_DIFFERENTLY) for part in parts])
    codec, encoder = KeyCodec(shape), RowEncoder(shape)
    one = [data.draw(BY_TYPE[kind]) for kind in kinds]
    other = [another(data, kind, value) for kind, value in zip(kinds, one, strict=True)]
    is_one_key = [hashed(value) for value in one] == [hashed(value) for value in other]
    assert (codec.of_key(one) == codec.of_key(other)) == is_one_key
    assert (encoder.key(one) == encoder.key(other)) == is_one_key, (encoder.key(one), encoder.key(other))


@pytest.mark.parametrize("kind", sorted(NUMERIC))
def test_all_pairs_of_numbers_as_written(kind: str) -> None:
    values = [other for value in NUMBERS for other in [value, *writings(value)]]
    if kind.startswith("decimal"):
        values = [value for value in values if type(value) is Decimal]
    values += [*NANS, *(Decimal(text) for text in ("100", "1E+2", "1.0E+2", "10E+1", "-0", "0", "0.0", "0E+1"))]
    shape = form([KeyPart(0, "", kind, is_as_written=True)])
    codec, encoder = KeyCodec(shape), RowEncoder(shape)
    triples = {(codec.of_key([value]), encoder.key([value]), hashed(value)) for value in values}
    assert len(triples) == len({key for key, *_ in triples}) == len({text for _, text, _ in triples})
    assert len(triples) == len({written for *_, written in triples}) > 20


@pytest.mark.parametrize("kind", ["number", "scalar"])
def test_all_pairs_of_numbers(kind: str) -> None:
    values = [other for value in NUMBERS for other in [value, *writings(value)]]
    shape = form([KeyPart(0, "", kind)])
    codec, encoder = KeyCodec(shape), RowEncoder(shape)
    pairs = {(codec.of_key([value]), encoder.key([value])) for value in values}
    assert len(pairs) == len({key for key, _ in pairs}) == len({text for _, text in pairs})


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        ("number", [10, 10.0, Decimal(10), Decimal("10.00"), Decimal("1E1")], b"10"),
        ("number", [0, 0.0, -0.0, Decimal("-0.00")], b"0"),
        ("number", [0.1, Decimal("0.1"), Decimal("0.100")], b"0.1"),
        ("number", [2**64 - 1, Decimal(2**64 - 1)], b"18446744073709551615"),
        ("number", [2.0**64], b"1.8446744073709552e19"),
        ("number", [Decimal(2**64), Decimal(2**64).scaleb(1).scaleb(-1)], b'"18446744073709551616"'),
        ("number", [1e23, Decimal("1E23")], b"1e23"),
        ("number", [Decimal("0.30000000000000001"), Decimal("0.300000000000000010")], b'"0.30000000000000001"'),
        ("number", [math.nan], b'"NaN"'),
        ("number", [SIGNALLING], b'"sNaN"'),
        ("number", [-math.inf], b'"-Infinity"'),
        ("decimal", [Decimal(10), Decimal("10.00"), Decimal("1E1")], b'"10"'),
        ("decimal", [Decimal(0), Decimal("-0.000")], b'"0"'),
        ("decimal", [Decimal("-0.10")], b'"-0.1"'),
        ("double", [10.0, 10], b"10.0"),
        ("double", [0.0, -0.0, 0], b"0.0"),
        ("double", [2**53 + 1], b"9007199254740993"),
        ("datetime", [Datetime(0), Datetime(0, 0, 180), Datetime(0, 0, 180, 947)], b'"1970-01-01T00:00:00Z"'),
        ("datetime", [Datetime(0, 5, -60), Datetime(0, 5)], b'"1970-01-01T00:00:00.000000005Z"'),
        ("string", ["a"], b'"a"'),
        ("string", ["/w=="], b'"/w=="'),
        ("string", ["\udcff"], b'{"string":"/w=="}'),
        ("varbinary", [b"\xff"], b'"/w=="'),
        ("scalar", ["10"], b'"10"'),
        ("scalar", [10, 10.0, Decimal("10.0")], b"10"),
        ("scalar", [True], b"true"),
        ("scalar", [b"\xff"], b'{"varbinary":"/w=="}'),
        ("scalar", ["\udcff"], b'{"string":"/w=="}'),
        ("scalar", [UUID(int=1)], b'{"uuid":"00000000-0000-0000-0000-000000000001"}'),
        ("scalar", [Datetime(0), Datetime(0, 0, 60)], b'{"datetime":"1970-01-01T00:00:00Z"}'),
        ("scalar", [Decimal("0.30000000000000001")], b'{"decimal":"0.30000000000000001"}'),
        ("scalar", [math.nan], b'{"double":"NaN"}'),
    ],
)
def test_the_text(kind: str, values: list[Any], text: bytes) -> None:
    encoder = RowEncoder(form([KeyPart(0, "", kind)]))
    for value in values:
        assert encoder.key([value]) == encoder.key_of([value, "rest"]) == b'{"f0":%b}' % text


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("number", 10, b"10"),
        ("number", 10.0, b"10"),
        ("number", -0.0, b"0"),
        ("number", 0.1, b"0.1"),
        ("number", Decimal(10), b'"10"'),
        ("number", Decimal("10.00"), b'"10.00"'),
        ("number", Decimal("0.1"), b'"0.1"'),
        ("number", Decimal("1E+2"), b'"1E+2"'),
        ("number", math.nan, b'"NaN"'),
        ("number", NANS[1], b'"NaN(fff8000000000000)"'),
        ("number", -math.inf, b'"-Infinity"'),
        ("double", 10.0, b"10.0"),
        ("double", -0.0, b"0.0"),
        ("double", SIGNALLING, b'"NaN(7ff4000000000000)"'),
        ("double", Decimal("1.0"), b'"1.0"'),
        ("decimal", Decimal("10.00"), b'"10.00"'),
        ("decimal", Decimal("-0.000"), b'"-0.000"'),
        ("datetime", Datetime(0, 0, 180), b'"1970-01-01T03:00:00+03:00"'),
        ("datetime", Datetime(0, 5, 180, 947), b'"1970-01-01T03:00:00.000000005+03:00[947]"'),
        ("scalar", "10", b'"10"'),
        ("scalar", 10.0, b"10"),
        ("scalar", Decimal("10.0"), b'{"decimal":"10.0"}'),
        ("scalar", NANS[1], b'{"double":"NaN(fff8000000000000)"}'),
        ("scalar", Datetime(0, 0, 60), b'{"datetime":"1970-01-01T01:00:00+01:00"}'),
        ("scalar", b"\xff", b'{"varbinary":"/w=="}'),
    ],
)
def test_the_text_as_written(kind: str, value: Any, text: bytes) -> None:
    encoder = RowEncoder(form([KeyPart(0, "", kind, is_as_written=True)]))
    assert encoder.key([value]) == encoder.key_of([value, "rest"]) == b'{"f0":%b}' % text


def test_a_collation_changes_no_text() -> None:
    encoder = RowEncoder(form([KeyPart(0, "", "string", 2)]))
    assert [encoder.key([text]) for text in ("a", "A")] == [b'{"f0":"a"}', b'{"f0":"A"}']


def test_the_row_keeps_what_was_written() -> None:
    encoder = RowEncoder(form([KeyPart(0, "", "number")]))
    assert encoder.rows[1]([Decimal("10.00")]) == b'{"f0":"10.00"}'
    assert encoder.rows[1]([10.0]) == b'{"f0":10.0}'
