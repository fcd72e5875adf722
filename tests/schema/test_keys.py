"""Keys as bytes: equal for equal keys, and in the order of the values. A live test compares with a server."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import SchemaError, UnkeyableError
from cdc.protocol.extensions import Datetime
from cdc.schema.forms import KeyPart, SpaceForm
from cdc.schema.keys import KEY_BYTES_MAX, KeyCodec, space_prefix
from tests.fakes.profiles import examples


def codec(*parts: str | KeyPart, space_id: int = 513) -> KeyCodec:
    """Of a space whose key has these parts, from its first field on."""
    key = tuple(part if isinstance(part, KeyPart) else KeyPart(place, "", part) for place, part in enumerate(parts))
    return KeyCodec(SpaceForm(space_id, "things", (), key))


INTEGERS = st.integers(-(2**63), 2**64 - 1) | st.sampled_from([0, 2**53, 2**53 + 1, 2**63, 2**64 - 1, -(2**63)])
TEXTS = st.text("\0\1aé\udc80\udcff", max_size=6)
SHORT_DECIMALS = st.builds(
    lambda digits, scale: Decimal(digits).scaleb(scale), st.integers(-(10**15), 10**15), st.integers(-10, 3)
)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
DATETIMES = st.builds(Datetime, st.integers(-(2**40), 2**40), st.integers(0, 999_999_999), st.integers(-720, 840))


def compare_exactly(one: Any, other: Any) -> int:
    """Less, equal or greater; for pairs that Python compares exactly."""
    return int(one > other) - int(one < other)


def compare_bytes(one: bytes, other: bytes) -> int:
    return compare_exactly(one, other)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("unsigned", st.integers(0, 2**64 - 1)),
        ("integer", INTEGERS),
        ("number", INTEGERS | st.floats(allow_nan=False)),
        ("number", INTEGERS | DECIMALS),
        ("double", st.floats(allow_nan=False)),
        ("decimal", DECIMALS),
        ("varbinary", st.binary(max_size=8)),
        ("boolean", st.booleans()),
        ("uuid", st.uuids()),
    ],
)
def test_order_is_that_of_the_values(kind: str, values: st.SearchStrategy[Any]) -> None:
    keys = codec(kind)

    @given(values, values)
    def check(one: Any, other: Any) -> None:
        expected = compare_exactly(one.bytes, other.bytes) if isinstance(one, UUID) else compare_exactly(one, other)
        assert compare_bytes(keys.of_tuple([one, "rest"]), keys.of_key([other])) == expected

    check()


@given(TEXTS, TEXTS)
def test_strings_are_their_bytes(one: str, other: str) -> None:
    keys = codec("string")
    expected = compare_exactly(one.encode(errors="surrogateescape"), other.encode(errors="surrogateescape"))
    assert compare_bytes(keys.of_tuple([one]), keys.of_key([other])) == expected


@given(DATETIMES, DATETIMES)
def test_an_offset_does_not_count(one: Datetime, other: Datetime) -> None:
    keys = codec("datetime")
    expected = compare_exactly((one.seconds, one.nanosecond), (other.seconds, other.nanosecond))
    assert compare_bytes(keys.of_tuple([one]), keys.of_tuple([other])) == expected


SEVERAL = st.tuples(TEXTS, SHORT_DECIMALS | INTEGERS, st.binary(max_size=3), TEXTS)


@given(SEVERAL, SEVERAL)
def test_parts_count_from_the_first(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    keys = codec("string", "number", "varbinary", "string")

    def as_bytes(values: tuple[Any, ...]) -> list[Any]:
        return [value.encode(errors="surrogateescape") if isinstance(value, str) else value for value in values]

    assert compare_bytes(keys.of_tuple(one), keys.of_tuple(other)) == compare_exactly(as_bytes(one), as_bytes(other))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_is_the_decimal_of_its_fifteen_digits(value: float) -> None:
    """As far as these lead back to it, and it is no integer: the server compares the two so."""
    keys = codec("number")
    shown = Decimal(f"{value:.15g}")
    same = keys.of_key([value]) == keys.of_key([shown])
    assert same == (float(shown) == value and (not value.is_integer() or abs(value) >= 2**64 or shown == Decimal(value)))


@pytest.mark.parametrize(
    "group",
    [
        [1, 1.0, Decimal(1), Decimal("1.00"), Decimal("10E-1")],
        [0, 0.0, -0.0, Decimal(0), Decimal("0.00"), Decimal("-0")],
        [0.1, Decimal("0.1"), Decimal("0.100")],
        [2**64 - 1, Decimal(2**64 - 1)],
        [-(2**63), float(-(2**63)), Decimal(-(2**63))],
        [1e23, Decimal("1E23")],
    ],
)
@pytest.mark.parametrize("kind", ["number", "scalar"])
def test_equal_numbers_are_one_key(kind: str, group: list[Any]) -> None:
    assert len({codec(kind).of_key([value]) for value in group}) == 1


def test_numbers_that_are_near_each_other_are_not() -> None:
    values: list[Any] = [
        struct.unpack(">d", bytes.fromhex("7ff4000000000000"))[0],  # signalling
        math.nan,
        -math.inf,
        Decimal("-1E400"),
        -1e308,
        Decimal("-1E-400"),
        0,
        Decimal("1E-400"),
        5e-324,
        0.3,
        Decimal("0.30000000000000001"),
        0.1 + 0.2,
        2**53,
        2**53 + 1,
        2**53 + 2,
        2**64 - 1,
        float(2**64),
        Decimal("1E400"),
        math.inf,
    ]
    keys = [codec("number").of_key([value]) for value in values]
    assert keys == sorted(set(keys))


def test_scalars_are_ordered_by_class_first() -> None:
    values = [False, True, -1, 1.5, "", "z", b"", b"a", UUID(int=0), Datetime(0)]
    single = [codec("scalar").of_key([value]) for value in values]
    double = [codec("scalar", "scalar").of_key([value, 1]) for value in values]
    assert single == sorted(set(single))
    assert double == sorted(set(double))


PARTS: dict[str, st.SearchStrategy[Any]] = {
    "unsigned": st.integers(0, 2**64 - 1),
    "integer": INTEGERS,
    "number": INTEGERS | st.floats() | DECIMALS,
    "double": st.floats(),
    "decimal": DECIMALS,
    "string": TEXTS,
    "varbinary": st.binary(max_size=3),
    "boolean": st.booleans(),
    "uuid": st.uuids(),
    "datetime": DATETIMES,
    "scalar": INTEGERS | st.floats() | DECIMALS | TEXTS | st.binary(max_size=3) | st.booleans() | st.uuids() | DATETIMES,
}
"""By a part's type: values that it may have."""


@pytest.mark.parametrize("kind", sorted(PARTS))
@examples(25)
@given(data=st.data())
def test_a_key_is_more_than_the_space(kind: str, data: st.DataObject) -> None:
    """The prefix alone stands for all rows of a space, and for none of another."""
    kinds = [kind, *data.draw(st.lists(st.sampled_from(sorted(PARTS)), max_size=1))]
    space_id = data.draw(st.sampled_from([0, 1, 512, 513, 2**31]))
    key = codec(*kinds, space_id=space_id).of_key([data.draw(PARTS[kind]) for kind in kinds])
    assert key.startswith(space_prefix(space_id))
    assert len(key) > len(space_prefix(space_id))


def test_a_text_of_zeroes_is_longer_than_it_says() -> None:
    zeroes = ["\0" * length for length in (0, 1, 2, 505, 506, 507, 600)]
    for kind, values in (("string", zeroes), ("varbinary", [text.encode() for text in zeroes])):
        made = [codec(kind).of_key([value]) for value in values]
        assert len(set(made)) == len(made)
        assert made[:3] == [space_prefix(513) + b"\0", space_prefix(513) + b"\0\0", space_prefix(513) + b"\0\0\0"]
        assert made == [codec(kind).of_tuple([value]) for value in values]


def test_spaces_lie_apart() -> None:
    assert codec("string", space_id=512).of_key(["\udcff" * 20]) < codec("string", space_id=513).of_key([""])
    assert codec("string", space_id=513).of_key(["a"]).startswith(space_prefix(513))


@pytest.mark.parametrize("parts", [["string"], ["varbinary"], ["unsigned", "string"]])
def test_long_keys_stay_different(parts: list[str]) -> None:
    keys = codec(*parts)
    head: list[Any] = [1] * (len(parts) - 1)
    made = []
    for length in (470, 490, 495, 498, 500, 504, 505, 506, 507, 508, 600, 5000):
        for end in "ab":
            value: Any = "x" * length + end
            made.append(keys.of_key([*head, value.encode() if parts[-1] == "varbinary" else value]))
    assert len(set(made)) == len(made)
    assert max(map(len, made)) == KEY_BYTES_MAX
    assert all(key.startswith(space_prefix(513)) for key in made)
    assert keys.of_key([*head, b"x" * 5000 if parts[-1] == "varbinary" else "x" * 5000]) < keys.of_key(
        [*head, b"y" if parts[-1] == "varbinary" else "y"]
    )


def test_parts_inside_a_field() -> None:
    keys = codec(KeyPart(1, ".user[2].id", "unsigned"), KeyPart(0, "", "string"))
    assert keys.of_tuple(["a", {"user": [0, {"id": 7}]}]) == keys.of_key([7, "a"])
    single = codec(KeyPart(0, ".id", "unsigned"))
    assert single.of_tuple([{"id": 7}]) == single.of_key([7]) == codec("unsigned").of_key([7])
    with pytest.raises(SchemaError, match="no primary key"):
        keys.of_tuple(["a", {"user": []}])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("unsigned", -1),
        ("unsigned", 2**64),
        ("unsigned", "1"),
        ("unsigned", None),
        ("integer", -(2**63) - 1),
        ("integer", 1.0),
        ("number", "1"),
        ("number", True),
        ("string", b"a"),
        ("string", 5),
        ("varbinary", "a"),
        ("boolean", 1),
        ("uuid", "a"),
        ("datetime", 1),
        ("scalar", None),
        ("scalar", [1]),
    ],
)
def test_values_that_no_key_has(kind: str, value: Any) -> None:
    for keys, values in ((codec(kind), [value]), (codec(kind, "unsigned"), [value, 1])):
        for make in (keys.of_tuple, keys.of_key):
            with pytest.raises(SchemaError, match="space 'things'"):
                make(values)


@pytest.mark.parametrize("kind", ["unsigned", "number", "string", "scalar", "datetime", "decimal"])
def test_a_value_that_is_nested_too_deeply_for_a_sentence(kind: str) -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    for parts in ([kind], [kind, "unsigned"]):
        key = codec(*parts)
        for make in (key.of_tuple, key.of_key):
            with pytest.raises(SchemaError) as caught:
                make([deep, 1][: len(parts)])
            assert len(str(caught.value)) < 1000
    with pytest.raises(SchemaError, match="no primary key"):
        codec(KeyPart(3, "", kind)).of_tuple([deep])


def test_keys_that_are_too_short() -> None:
    for kind in ("unsigned", "string", "uuid"):
        with pytest.raises(SchemaError, match="no primary key"):
            codec(kind).of_tuple([])
        with pytest.raises(SchemaError, match="has 1 parts, not 0"):
            codec(kind).of_key([])


@pytest.mark.parametrize("kind", ["array", "map", "any", "interval", "new"])
def test_types_that_have_no_order(kind: str) -> None:
    with pytest.raises(UnkeyableError, match=f"part 2 of the primary key of space 'things' is of type '{kind}'"):
        codec("unsigned", kind)


@pytest.mark.parametrize(("kind", "full"), [("", "unsigned"), ("n", "unsigned"), ("st", "string")])
def test_a_shortened_type_is_to_be_written_in_full(kind: str, full: str) -> None:
    with pytest.raises(UnkeyableError, match=f"part 1 .* has the type's name shortened to {kind!r}") as raised:
        codec(kind)
    assert f"with the type {full!r}" in raised.value.hint


def test_collations() -> None:
    for kind in ("string", "scalar"):
        for collation in (1, 2, 277):
            with pytest.raises(
                UnkeyableError, match=f"part 1 of the primary key of space 'things' has the collation {collation}"
            ):
                codec(KeyPart(0, "", kind, collation))
        assert codec(KeyPart(0, "", kind, 3)).of_key(["é"]) == codec(kind).of_key(["é"])
    codec(KeyPart(0, "", "unsigned", 2))
