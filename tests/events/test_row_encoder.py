"""Rows and keys of one form: the compiled way writes what the slow way writes, and keys are what docs/events.md says."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import CdcError, EncodingError, SchemaError
from cdc.events.json_values import encode, plain
from cdc.events.key_text import key_converter
from cdc.events.row_encoder import RowEncoder
from cdc.protocol.extensions import OpaqueExtension
from cdc.schema.forms import Field, KeyPart, SpaceForm
from tests.events.test_json_values import ANY, DATETIMES, DECIMALS, INTEGERS, INTERVALS, TEXTS
from tests.fakes.profiles import MANY

# Field types of Tarantool, and what a tuple can hold in such a field.
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "unsigned": st.integers(0, 2**64 - 1),
    "integer": INTEGERS,
    "string": TEXTS,
    "boolean": st.booleans(),
    "varbinary": st.binary(max_size=5),
    "uuid": st.uuids(),
    "number": INTEGERS | st.floats() | DECIMALS,
    "double": st.floats(),
    "decimal": DECIMALS,
    "datetime": DATETIMES,
    "interval": INTERVALS,
    "scalar": INTEGERS | st.floats() | TEXTS | DECIMALS,
    "array": st.lists(ANY, max_size=3),
    "map": st.dictionaries(TEXTS, ANY, max_size=3),
    "any": ANY,
    "int8": st.integers(-128, 127),
    "uint64": st.integers(0, 2**64 - 1),
    "float32": st.floats(width=32),
}
NAMES = st.text(min_size=1, max_size=4).filter(lambda name: name.encode("utf-8", "replace").decode() == name)


def form(fields: list[tuple[str, str]], parts: list[tuple[int, str]] | list[KeyPart] | None = None) -> SpaceForm:
    """A form from names and types; its key is its first field unless parts are given."""
    shaped = [part if isinstance(part, KeyPart) else KeyPart(part[0], part[1], "any") for part in parts or [(0, "")]]
    return SpaceForm(513, "users", tuple(Field(name, kind, is_nullable=True) for name, kind in fields), tuple(shaped))


def slowly(names: list[str], values: list[Any]) -> bytes:
    """What a dict of plain values comes to."""
    return encode({name: plain(value) for name, value in zip(names, values, strict=True)})


@st.composite
def forms_and_rows(draw: st.DrawFn) -> tuple[SpaceForm, list[Any]]:
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    kinds = [draw(st.sampled_from(sorted(VALUES))) for _ in names]
    row = [draw(st.none() | VALUES[kind]) for kind in kinds][: draw(st.integers(1, 5))]
    beyond = draw(st.lists(ANY, max_size=2)) if len(row) == len(names) else []
    return form(list(zip(names, kinds, strict=True))), [*row, *beyond]


@MANY
@given(forms_and_rows())
def test_the_fast_way_is_the_slow_way(given_: tuple[SpaceForm, list[Any]]) -> None:
    shape, row = given_
    names = [shape.field_name(place) for place in range(len(row))]
    if len(set(names)) == len(names):
        encoder = RowEncoder(shape)
        for _ in range(2):  # the second time from what was compiled
            assert encoder.rows[len(row)](row) == slowly(names, row)
        assert encoder.key_of(row) == encoder.key([row[0]]) == slowly(names[:1], row[:1])


def test_exactly_the_fields_that_the_tuple_has() -> None:
    encoder = RowEncoder(form([("id", "unsigned"), ("name", "string"), ("city", "string")]))
    assert encoder.rows[1]([1]) == b'{"id":1}'
    assert encoder.rows[2]([1, None]) == b'{"id":1,"name":null}'
    assert encoder.rows[5]([1, "a", "b", 4, 5]) == b'{"id":1,"name":"a","city":"b","field_4":4,"field_5":5}'


def test_two_fields_of_one_name_and_the_ways_past_such_a_row() -> None:
    """Another name in the format helps no row that stands in the log already."""
    with pytest.raises(EncodingError, match=r"would be called 'field_2'.*spaces\.exclude.*format\.on_error"):
        RowEncoder(form([("field_2", "unsigned")])).rows[2]([1, 2])


@pytest.mark.parametrize(
    ("fields", "parts", "row", "key"),
    [
        ([("a.b", "unsigned"), ("a", "map")], [KeyPart(0, "", "unsigned"), KeyPart(1, ".b", "unsigned")], [1, {"b": 2}], [1, 2]),
        ([("field_2", "unsigned")], [KeyPart(0, "", "unsigned"), KeyPart(1, "", "unsigned")], [1, 2], [1, 2]),
    ],
)
def test_two_parts_of_a_key_of_one_name(
    fields: list[tuple[str, str]], parts: list[KeyPart], row: list[Any], key: list[Any]
) -> None:
    """A server takes such a key, so each row is refused, as others that can't be shown, and not the space."""
    encoder = RowEncoder(replace(form(fields), key_parts=tuple(parts)))
    for write, values in ((encoder.key, key), (encoder.key_of, row), (encoder.rows[2], row)):
        with pytest.raises(EncodingError, match=r"primary key of space .* would be called '(a\.b|field_2)'.*format\.on_error"):
            write(values)


def test_without_a_format() -> None:
    encoder = RowEncoder(form([]))
    assert encoder.rows[2]([1, "x"]) == b'{"field_1":1,"field_2":"x"}'
    assert encoder.key([1]) == b'{"field_1":1}'


@pytest.mark.parametrize("name", ['quote"', "back\\slash", "tab\t", "ноль", "a b", "__class__", "class", "1", "\u2028"])
def test_names_that_json_or_python_could_stumble_over(name: str) -> None:
    encoder = RowEncoder(form([(name, "unsigned"), ("other", "string")]))
    assert json.loads(encoder.rows[2]([7, "x"])) == {name: 7, "other": "x"}
    assert json.loads(encoder.key([7])) == {name: 7}
    assert json.loads(encoder.patch([["=", 1, 2]], 1))[0]["field"] == name


def test_two_fields_of_one_name_are_refused() -> None:
    encoder = RowEncoder(form([("id", "unsigned"), ("field_3", "string")]))
    assert encoder.rows[2]([1, "x"]) == b'{"id":1,"field_3":"x"}'
    with pytest.raises(EncodingError, match="called 'field_3'"):
        encoder.rows[3]([1, "x", "y"])


def test_tuples_of_any_length_take_no_memory_for_good() -> None:
    """Without a format they may be lists in disguise."""
    encoder = RowEncoder(form([("id", "unsigned")]))
    for length in [*range(1, 200), 5000, 20_000]:
        row = list(range(length))
        assert encoder.rows[length](row) == slowly([encoder.form.field_name(place) for place in range(length)], row)
    assert len(encoder.rows) < 50


@pytest.mark.parametrize(("kind", "value"), [("unsigned", 7), ("any", 1.5)])
def test_a_wide_format_takes_memory_once(kind: str, value: Any) -> None:
    """Not once for each length that its tuples have."""
    width, name = 400, "a_name_of_twenty_four_{:03}"
    encoder = RowEncoder(form([(name.format(place), kind) for place in range(width)]))
    rows = [[value] * length for length in range(1, width + 40)]
    assert encoder.rows[1](rows[0])
    tracemalloc.start()
    try:
        written = sum(len(encoder.rows[len(row)](row)) for row in rows)
        # Threads that earlier tests have left may take memory, too.
        own = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(inclusive=True, filename_pattern="*/cdc/events/*")])
    finally:
        tracemalloc.stop()
    assert written > 2_000_000
    assert sum(trace.size for trace in own.traces) < 1_500_000
    for length in (1, 7, 8, 9, 200, 399, 400, 401, 432, 433):
        names = [encoder.form.field_name(place) for place in range(length)]
        assert encoder.rows[length](rows[length - 1]) == slowly(names, rows[length - 1])


def test_fields_of_one_name_that_a_tuple_does_not_reach() -> None:
    encoder = RowEncoder(form([("id", "unsigned"), ("field_9", "string"), ("c", "any")]))
    for length in range(1, 9):
        row = [1, "x", {2: 3}, *range(length)][:length]
        assert encoder.rows[length](row) == slowly([encoder.form.field_name(place) for place in range(length)], row)
    with pytest.raises(EncodingError, match="called 'field_9'"):
        encoder.rows[9]([1, "x", 3, 4, 5, 6, 7, 8, 9])


# Keys.


def test_parts_in_the_order_of_the_index() -> None:
    encoder = RowEncoder(form([("a", "string"), ("b", "integer"), ("c", "any")], [(1, ""), (0, "")]))
    assert encoder.key([-5, "x"]) == b'{"b":-5,"a":"x"}'
    assert encoder.key_of(["x", -5, {}]) == b'{"b":-5,"a":"x"}'


@pytest.mark.parametrize(
    ("path", "name", "inside"),
    [
        (".user.id", "data.user.id", {"user": {"id": 7}}),
        ("user.id", "data.user.id", {"user": {"id": 7}}),
        ("[2]", "data[2]", [0, 7]),
        (".list[1].id", "data.list[1].id", {"list": [{"id": 7}]}),
        ('["a b"]', 'data["a b"]', {"a b": 7}),
    ],
)
def test_part_inside_a_field(path: str, name: str, inside: Any) -> None:
    shape = form([("id", "unsigned"), ("data", "any")], [(1, path), (0, "")])
    assert shape.part_name(0) == name
    encoder = RowEncoder(shape)
    assert json.loads(encoder.key_of([1, inside])) == {name: 7, "id": 1}
    assert json.loads(encoder.key([7, 1])) == {name: 7, "id": 1}


KEY_TYPES = ["unsigned", "integer", "string", "varbinary", "uuid", "boolean", "number", "double", "decimal", "datetime", "scalar"]


@MANY
@given(st.data())
def test_the_key_of_a_row_is_the_key_of_its_delete(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=4))
    row = [data.draw(VALUES[kind]) for kind in kinds]
    places = data.draw(st.permutations(range(len(kinds))))[: data.draw(st.integers(1, len(kinds)))]
    shape = form(
        [(f"f{place}", kind) for place, kind in enumerate(kinds)], [KeyPart(place, "", kinds[place]) for place in places]
    )
    encoder = RowEncoder(shape)
    key = [row[place] for place in places]
    canonical = {f"f{part.field}": key_converter(part)[0](row[part.field]) for part in shape.key_parts}
    assert encoder.key_of(row) == encoder.key(key) == encode(canonical)


@pytest.mark.parametrize("kinds", [["unsigned"], ["unsigned", "string"], ["scalar"]])
@pytest.mark.parametrize("key", [[], [1, "a", 2], None, 5, "x"])
def test_keys_that_do_not_fit(kinds: list[str], key: Any) -> None:
    encoder = RowEncoder(
        form([(f"f{place}", kind) for place, kind in enumerate(kinds)], [KeyPart(p, "", k) for p, k in enumerate(kinds)])
    )
    if key == "x" and len(kinds) == 1:
        return  # a text of one letter can't be told from an array of one
    with pytest.raises((CdcError, TypeError, IndexError)):
        encoder.key(key)


# Patches.


@pytest.mark.parametrize(
    ("operation", "shown"),
    [
        (["=", "name", "x"], {"op": "=", "field": "name", "value": "x"}),
        (["+", 3, 5], {"op": "+", "field": "balance", "value": 5}),
        (["-", 3, Decimal("0.50")], {"op": "-", "field": "balance", "value": "0.50"}),
        (["&", 3, 5], {"op": "&", "field": "balance", "value": 5}),
        (["|", 3, 5], {"op": "|", "field": "balance", "value": 5}),
        (["^", 3, 5], {"op": "^", "field": "balance", "value": 5}),
        (["!", 4, "Oslo"], {"op": "!", "field": "data", "value": "Oslo"}),
        (["#", 6, 2], {"op": "#", "field": "field_6", "count": 2}),
        ([":", "name", 2, 3, "XYZ"], {"op": ":", "field": "name", "position": 2, "length": 3, "value": "XYZ"}),
        ([":", "name", -2, 3, b"\xff"], {"op": ":", "field": "name", "position": -2, "length": 3, "value": "/w=="}),
        (["=", -1, 9], {"op": "=", "field": -1, "value": 9}),
        (["=", "data.a.b[2]", 42], {"op": "=", "field": "data", "path": ".a.b[2]", "value": 42}),
        (["=", "[4].a", None], {"op": "=", "field": "data", "path": ".a", "value": None}),
        (["=", "[4][1]", float("nan")], {"op": "=", "field": "data", "path": "[1]", "value": "NaN"}),
        (["=", 4, {1: 2}], {"op": "=", "field": "data", "value": {"1": 2}}),
    ],
)
def test_patch(operation: list[Any], shown: dict[str, Any]) -> None:
    encoder = RowEncoder(form([("id", "unsigned"), ("name", "string"), ("balance", "number"), ("data", "any")]))
    (found,) = json.loads(encoder.patch([operation], 1))
    assert list(found.items()) == list(shown.items())


def test_operations_keep_their_order() -> None:
    encoder = RowEncoder(form([("id", "unsigned")]))
    shown = json.loads(encoder.patch([["=", 2, 1], ["#", 2, 1], ["!", 2, 0]], 1))
    assert [item["op"] for item in shown] == ["=", "#", "!"]


def _deep(depth: int) -> Any:
    value: Any = None
    for _ in range(depth):
        value = [value]
    return value


ENCODERS: list[Callable[[RowEncoder, Any], bytes]] = [
    lambda encoder, value: encoder.rows[2]([1, value]),
    lambda encoder, value: encoder.key([value]),
    lambda encoder, value: encoder.key_of([value]),
    lambda encoder, value: encoder.patch([["=", 2, value]], 1),
]


@pytest.mark.parametrize("write", ENCODERS)
@pytest.mark.parametrize(
    "value", [OpaqueExtension(9, b"x"), [OpaqueExtension(9, b"x")], _deep(900)], ids=["unknown", "inside", "deep"]
)
def test_values_that_cannot_be_shown(write: Callable[[RowEncoder, Any], bytes], value: Any) -> None:
    encoder = RowEncoder(form([("id", "any"), ("v", "any")]))
    with pytest.raises(EncodingError):
        write(encoder, value)


@pytest.mark.parametrize("reference", ["missing", "v[", "v.a["])
def test_patch_of_a_field_that_is_not_there(reference: str) -> None:
    with pytest.raises(SchemaError):
        RowEncoder(form([("id", "any"), ("v", "any")])).patch([["=", reference, 1]], 1)
