"""Store keys and UPDATEs of the compiled row path, against the Python ones: the same, or left to them."""

from __future__ import annotations

import contextlib
import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import SchemaError
from cdc.protocol.codec import tuple_values
from cdc.protocol.extensions import Datetime, OpaqueExtension, pack
from cdc.schema.forms import WRITTEN_DIFFERENTLY, KeyPart, SpaceForm
from cdc.schema.keys import KeyCodec, compiled_part
from cdc.tuples.update import update, upsert
from tests.fakes.profiles import MANY, examples

compiled: Any = pytest.importorskip("cdc._native", reason="it wasn't built")

CAPTURES = Path(__file__).parents[1] / "captures"
KINDS = ["unsigned", "integer", "number", "double", "decimal", "string", "varbinary", "boolean", "uuid", "datetime", "scalar"]
PATHS = ["", "", "", "a", "[1]", "[2].a"]
NAMES = ("id", "name", "data", "dotted.name", "größe")
TYPES = ("any", "double", "float32", "number", "any")

integers = st.integers(-(2**63), 2**64 - 1) | st.sampled_from([0, 1, 2**53 + 1, 2**63, 2**64 - 1, -(2**63)])
scalars = (
    integers
    | st.floats()
    | st.floats(width=32)
    | st.sampled_from([0.1, 0.1 + 0.2, -0.0, 1e16, 2.0**64, 2.0**63])
    | st.text("\0\1aé\udc80", max_size=5)
    | st.text("x", min_size=500, max_size=520)
    | st.binary(max_size=5)
    | st.booleans()
    | st.none()
    | st.uuids()
    | st.builds(Datetime, st.integers(-(2**40), 2**40), st.integers(0, 999_999_999), st.integers(-720, 840))
    | st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-1000, max_value=1000)
    | st.builds(
        lambda digits, scale: Decimal((digits < 0, tuple(map(int, str(abs(digits)))), -scale)),
        st.integers(-(10**39), 10**39),
        st.integers(-3, 40),
    )
    | st.integers(2**53 - 9, 2**64 + 9).map(Decimal)
    | st.floats(1e-20, 1e20).map(lambda value: Decimal(repr(value)))
    | st.sampled_from([Decimal("0.1"), Decimal("0.10000000000000001"), Decimal("-0.00"), Decimal("0.30000000000000004")])
    | st.builds(OpaqueExtension, st.sampled_from([2, 4, 9]), st.binary(max_size=3))
)


maps = st.dictionaries(st.sampled_from(["a", "b", 1]), scalars, max_size=2)
nested: st.SearchStrategy[Any] = scalars | st.lists(scalars, max_size=3) | maps
nested |= st.lists(nested, max_size=2) | st.dictionaries(st.just("a"), nested)


def compiled_keys(parts: tuple[KeyPart, ...]) -> Any:
    return compiled.StoreKeys.compile(513, [compiled_part(part) for part in parts])


@given(kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3), data=st.data())
@examples(600)
def test_keys_are_the_same(kinds: list[str], data: st.DataObject) -> None:
    is_hash, has_paths = data.draw(st.booleans()), data.draw(st.booleans())
    parts = tuple(
        KeyPart(
            data.draw(st.integers(0, 3)),
            data.draw(st.sampled_from(PATHS)) if has_paths else "",
            kind,
            is_as_written=is_hash and kind in WRITTEN_DIFFERENTLY,
        )
        for kind in kinds
    )
    keys = compiled_keys(parts)
    codec = KeyCodec(SpaceForm(513, "things", (), parts))
    raw = pack(data.draw(st.lists(nested if has_paths else scalars, max_size=5)))
    if data.draw(st.booleans()):
        # Anything may come, and none of it may be read past its end.
        place = data.draw(st.integers(0, len(raw)))
        raw = raw[:place] + data.draw(st.binary(max_size=2)) + raw[place + data.draw(st.integers(0, 2)) :]
    for ours, of in ((keys.of_tuple(raw), codec.of_tuple), (keys.of_key(raw), codec.of_key)):
        if ours is not None:
            with contextlib.suppress(ValueError):  # what is no tuple further on is the row path's business
                assert ours == of(tuple_values(raw))


@pytest.mark.parametrize(
    ("kinds", "values"),
    [
        (["unsigned"], [7]),
        (["integer"], [-7]),
        (["string"], ["seven"]),
        (["unsigned", "string"], [7, "\0"]),
        (["number", "double"], [7, 0.5]),
        (["uuid", "boolean", "varbinary"], [UUID(int=7), True, b"\0\1"]),
        (["scalar", "datetime"], ["x", Datetime(-5, 3)]),
        (["decimal", "decimal"], [Decimal("1.50"), Decimal("0.12345678901234567890")]),
        (["number", "scalar"], [2**53 + 1, Decimal("-1E-20")]),
    ],
)
@pytest.mark.parametrize("is_hash", [True, False])
def test_the_common_keys_are_not_left_to_python(kinds: list[str], values: list[Any], *, is_hash: bool) -> None:
    parts = tuple(
        KeyPart(field, "", kind, is_as_written=is_hash and kind in WRITTEN_DIFFERENTLY) for field, kind in enumerate(kinds)
    )
    keys = compiled_keys(parts)
    codec = KeyCodec(SpaceForm(513, "things", (), parts))
    assert keys.of_tuple(pack(values)) == codec.of_tuple(values) == keys.of_key(pack(values))


def test_keys_at_paths_are_not_left_to_python() -> None:
    parts = (KeyPart(1, "a[2]", "decimal"), KeyPart(1, "b", "string"))
    row = [0, {"b": "x", "a": [1, Decimal("2.50")]}]
    codec = KeyCodec(SpaceForm(513, "things", (), parts))
    assert compiled_keys(parts).of_tuple(pack(row)) == codec.of_tuple(row)


def test_captured_requests_come_to_the_same() -> None:
    """Those that it takes."""
    with gzip.open(CAPTURES / "updates.jsonl.gz", "rt") as lines:
        cases = [json.loads(line) for line in lines]
    names = ("id", "map", "n", "s")
    types = ("unsigned", "any", "any", "any")
    fields = [(name.encode(), kind) for name, kind in zip(names, types, strict=True)]
    taken = 0
    for case in cases:
        row, operations = bytes.fromhex(case["row"]), bytes.fromhex(case["operations"])
        ours = compiled.updated(row, operations, case["base"], fields)
        if ours is None:
            continue
        taken += 1
        for version in ((2, 6), (2, 11, 5), (3, 8)):
            for carry_out in (update, upsert):
                assert ours == carry_out(row, operations, base=case["base"], names=names, types=types, version=version)
    assert taken > 250


decimals = st.builds(
    lambda digits, scale: Decimal(digits).scaleb(-scale), st.integers(-(10**15), 10**15), st.integers(0, 20)
) | st.sampled_from(
    [Decimal("-0.00"), Decimal("1E+3"), Decimal("9" * 38), Decimal(4 * 10**38), Decimal("1E-37"), Decimal(0), Decimal("1E-38")]
)
values = (
    st.integers(-(2**63), 2**64 - 1)
    | st.integers(-200, 200)
    | st.text(max_size=5)
    | st.floats()
    | st.floats(width=32)
    | st.none()
    | decimals
    | st.binary(max_size=3)
)
references = st.integers(-4, 6) | st.sampled_from(["name", "größe", "data.a", "dotted.name", "unknown", ""])
operations = st.lists(
    st.tuples(st.sampled_from("=+-=+-&|^!#"), references, values).map(list)
    | st.tuples(st.just(":"), references, st.integers(-4, 7), st.integers(-4, 7), st.text(max_size=3)).map(list),
    max_size=3,
)


@given(row=st.lists(values, max_size=20), changes=operations, base=st.sampled_from([0, 1]), data=st.data())
@MANY
def test_updates_come_to_the_same(row: list[Any], changes: list[Any], base: int, data: st.DataObject) -> None:
    raw, wanted = pack(row), pack(changes)
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(wanted)))
        wanted = wanted[:place] + data.draw(st.binary(max_size=2)) + wanted[place + 1 :]
    ours = compiled.updated(raw, wanted, base, [(name.encode(), kind) for name, kind in zip(NAMES, TYPES, strict=True)])
    if ours is not None:
        for version in ((2, 6), (2, 11, 5), (3, 8)):
            for carry_out in (update, upsert):
                assert ours == carry_out(raw, wanted, base=base, names=NAMES, types=TYPES, version=version)


def test_what_the_server_refuses_is_left_to_python() -> None:
    with pytest.raises(SchemaError):
        update(pack([1]), pack([["+", 2, 1]]), base=1, names=NAMES)
    assert compiled.updated(pack([1]), pack([["+", 2, 1]]), 1, []) is None
