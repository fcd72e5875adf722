"""Operations of UPDATE and UPSERT on JSON values."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.events.row_encoder import RowEncoder
from cdc.protocol.extensions import unpack
from cdc.schema.forms import Field as FormField
from cdc.schema.forms import KeyPart, SpaceForm
from spark_jobs.contract import json_text
from spark_jobs.contract.forms import Field, Form
from spark_jobs.contract.patch import PatchError, key_of, update, upsert, version_of
from spark_jobs.contract.row_texts import Fold

pytestmark = pytest.mark.spark

CAPTURED_FIELDS = (("id", "unsigned"), ("map", "any"), ("n", "any"), ("s", "any"))

FORM = Form(
    space="users",
    space_id=512,
    schema_version=1,
    seq=0,
    key=("id",),
    fields=tuple(
        Field(name, kind)
        for name, kind in (("id", "unsigned"), ("name", "string"), ("balance", "number"), ("data", "any"), ("blob", "varbinary"))
    ),
)


def operation(code: str, field: str | int, value: Any = None, **more: Any) -> dict[str, Any]:
    return {"op": code, "field": field, **({} if code == "#" else {"value": value}), **more}


def splice(field: str | int, position: int, length: int, value: str, **more: Any) -> dict[str, Any]:
    return operation(":", field, value, position=position, length=length, **more)


@pytest.mark.parametrize(
    ("row", "patch", "after"),
    [
        # Places.
        ([1, "a"], [operation("=", "name", "b")], [1, "b"]),
        ([1, "a"], [operation("=", -1, "b")], [1, "b"]),
        ([1, "a"], [operation("=", "balance", 5)], [1, "a", 5]),
        ([1], [operation("=", "balance", 5)], [1, None, 5]),
        ([1, "a"], [operation("=", "field_7", 7)], [1, "a", None, None, None, None, 7]),
        ([1, "a", 3], [operation("!", "name", "b")], [1, "b", "a", 3]),
        ([1, "a"], [operation("!", -1, "b")], [1, "a", "b"]),
        ([1, "a"], [operation("!", -2, "b")], [1, "b", "a"]),
        ([1, "a"], [operation("!", "field_4", 4)], [1, "a", None, 4]),
        ([1, 2, 3, 4], [operation("#", "name", count=2)], [1, 4]),
        ([1, 2, 3, 4], [operation("#", -1, count=9)], [1, 2, 3]),
        ([1, 2], [operation("#", "field_9", count=1)], [1, 2]),
        ([1, 2, 3], [operation("#", "name", count=1), operation("=", "name", "x")], [1, "x"]),
        # Sums.
        ([1, "a", 5], [operation("+", "balance", 3), operation("-", "balance", 10)], [1, "a", -2]),
        ([1, "a", 2**64 - 2], [operation("+", "balance", 1)], [1, "a", 2**64 - 1]),
        ([1, "a", 5], [operation("+", "balance", 0.5)], [1, "a", 5.5]),
        ([1, "a", 0.5], [operation("-", "balance", 1)], [1, "a", -0.5]),
        ([1, "a", "1.50"], [operation("+", "balance", "2.250")], [1, "a", "3.750"]),
        ([1, "a", "1.50"], [operation("-", "balance", 2)], [1, "a", "-0.50"]),
        ([1, "a", 1], [operation("+", "balance", "0.1")], [1, "a", "1.1"]),
        ([1, "a", "1"], [operation("+", "balance", 0.1)], [1, "a", "1.1"]),
        (
            [1, "a", "-12345678901234567890.123456789"],
            [operation("-", "balance", "0.000000001")],
            [1, "a", "-12345678901234567890.123456790"],
        ),
        ([1, "a", "Infinity"], [operation("+", "balance", 1)], [1, "a", float("inf")]),
        # Bits.
        ([1, "a", 12], [operation("&", "balance", 10)], [1, "a", 8]),
        ([1, "a", 12], [operation("|", "balance", 3)], [1, "a", 15]),
        ([1, "a", 2**64 - 1], [operation("^", "balance", 1)], [1, "a", 2**64 - 2]),
        # Splices, in bytes.
        ([1, "abcdef"], [splice("name", 2, 3, "XYZ")], [1, "aXYZef"]),
        ([1, "abcdef"], [splice("name", 100, 3, "!")], [1, "abcdef!"]),
        ([1, "abcdef"], [splice("name", -1, 3, "!")], [1, "abcdef!"]),
        ([1, "abcdef"], [splice("name", -2, 1, "!")], [1, "abcde!"]),
        ([1, "abcdef"], [splice("name", -7, 1, "!")], [1, "!bcdef"]),
        ([1, "abcdef"], [splice("name", 2, -2, "!")], [1, "a!ef"]),
        ([1, "abcdef"], [splice("name", 2, -100, "!")], [1, "a!bcdef"]),
        ([1, "äöü"], [splice("name", 3, 2, "o")], [1, "äoü"]),
        ([1, "ä"], [splice("name", 1, 1, "")], [1, "pA=="]),
        ([1, "", 0, 0, "AAEC"], [splice("blob", 2, 1, "/w==")], [1, "", 0, 0, "AP8C"]),
        # Inside of fields.
        ([1, "", 0, {"a": {"b": [1, 2]}}], [operation("=", "data", 42, path=".a.b[2]")], [1, "", 0, {"a": {"b": [1, 42]}}]),
        ([1, "", 0, {"a": {"b": [1]}}], [operation("=", "data", 2, path=".a.b[2]")], [1, "", 0, {"a": {"b": [1, 2]}}]),
        ([1, "", 0, {"a": [1, 2]}], [operation("!", "data", 0, path=".a[1]")], [1, "", 0, {"a": [0, 1, 2]}]),
        ([1, "", 0, {"a": [1, 2]}], [operation("#", "data", path=".a[1]", count=5)], [1, "", 0, {"a": []}]),
        ([1, "", 0, {"a": 1, "b": 2}], [operation("#", "data", path=".a", count=1)], [1, "", 0, {"b": 2}]),
        ([1, "", 0, {}], [operation("!", "data", 1, path='["c d"]')], [1, "", 0, {"c d": 1}]),
        ([1, "", 0, {"x": 1}], [operation("+", "data", 2, path="['x']")], [1, "", 0, {"x": 3}]),
        ([1, "", 0, {"x": "ab"}], [splice("data", 1, 1, "", path=".x")], [1, "", 0, {"x": "b"}]),
        ([1, [[1], [2]]], [operation("=", -1, 3, path="[2][1]")], [1, [[1], [3]]]),
    ],
)
def test_an_operation_gives_what_the_server_gives(row: list[Any], patch: list[dict[str, Any]], after: list[Any]) -> None:
    before = [*row]
    result = update(row, patch, FORM)
    assert result == after
    assert [type(value) for value in result] == [type(value) for value in after]
    assert row == before


@pytest.mark.parametrize(
    ("row", "patch"),
    [
        ([1, "a"], operation("+", "name", 1)),
        ([1, "a", True], operation("+", "balance", 1)),
        ([1, "a", 2**64 - 1], operation("+", "balance", 1)),
        ([1, "a", -1], operation("|", "balance", 1)),
        ([1, "a", 1.5], operation("&", "balance", 1)),
        ([1, 5], splice("name", 1, 1, "")),
        ([1, "abc"], splice("name", -5, 1, "")),
        ([1, "a"], operation("+", "balance", 1)),
        ([1, "a"], operation("=", -3, 1)),
        ([1, "a"], operation("=", "unknown", 1)),
        ([1, "", 0, {"a": 1}], operation("!", "data", 1, path=".a")),
        ([1, "", 0, {"a": 1}], operation("=", "data", 1, path=".b.c")),
        ([1, "", 0, {"a": 1}], operation("=", "data", 1, path="[1]")),
        ([1, "", 0, [1]], operation("=", "data", 1, path="[3]")),
        ([1, "", 0, {"a": 1, "b": 2}], operation("#", "data", path=".a", count=2)),
        ([1, "", 0, "text"], operation("+", "data", 1)),
    ],
)
def test_an_operation_that_the_server_refuses_is_an_error(row: list[Any], patch: dict[str, Any]) -> None:
    with pytest.raises(PatchError):
        update(row, [patch], FORM)


def test_an_upsert_passes_over_operations_that_fail() -> None:
    patch = [operation("+", "name", 1), operation("+", "balance", 1), operation("=", "data", 1, path=".no.where")]
    assert upsert([1, "a", 1], patch, FORM) == [1, "a", 2]


def test_an_upsert_that_would_change_the_key_changes_nothing() -> None:
    assert upsert([1, "a", 1], [operation("+", "balance", 1), operation("=", "id", 2)], FORM) == [1, "a", 1]


CAPTURED = Form("m", 512, 1, 0, ("id",), tuple(Field(n, k) for n, k in CAPTURED_FIELDS))
ENCODER = RowEncoder(
    SpaceForm(512, "m", tuple(FormField(n, k, n != "id") for n, k in CAPTURED_FIELDS), (KeyPart(0, "", "unsigned"),))
)


def values(row: Any) -> list[Any]:
    """A row as a job has it."""
    return list(json_text.parse(ENCODER.rows[len(row)](row).decode()).values())


def test_all_that_servers_answered() -> None:
    """The same 3,000 requests as in tests/tuples/test_update.py, as events tell them."""
    equal: Counter[str] = Counter()
    wrong = []
    path = Path(__file__).parents[2] / "captures" / "updates.jsonl.gz"
    with gzip.open(path, "rt") as lines:
        cases = [json.loads(line) for line in lines]
    for case in cases:
        operations = unpack(bytes.fromhex(case["operations"]))
        request = [*unpack(bytes.fromhex(case["row"])), *(value for operation in operations for value in operation)]
        if ":" in request and "Decimal(" in repr(request):
            continue  # as JSON a decimal is a text, and would be spliced
        if any(operation[0] in "=#" and operation[1] == "map[2]" for operation in operations):
            continue  # what such a server does to an integer key is not what it says
        patch = json_text.parse(ENCODER.patch(operations, case["base"]).decode())
        row = values(unpack(bytes.fromhex(case["row"])))
        carry_out = update if case["request"] == "UPDATE" else upsert
        for text, answer in case["after"].items():
            if not isinstance(answer, str):
                continue
            after = values(unpack(bytes.fromhex(answer)))
            try:
                ours: Any = carry_out(row, patch, CAPTURED, version_of(text))
            except PatchError as error:
                ours = str(error)
            equal[text] += ours == after
            if ours != after:
                wrong.append((text, case["request"], row, patch, after, ours))
    assert not wrong, f"{len(wrong)}: {wrong[:5]}"
    assert min(equal.values()) > 1900, equal


@pytest.mark.parametrize(
    ("patch", "old", "between", "new"),
    [
        # Twice at one path: passed over, but for a value that was added, and from 3.0 on carried out.
        ([("+", ".k", 1), ("=", ".k", 7)], {"k": 2}, {"k": 2}, {"k": 7}),
        ([("+", ".k", 1), ("+", ".k", 1)], {"k": 2}, {"k": 2}, {"k": 3}),
        ([("=", ".new", 5), ("=", ".new", 6)], {"k": 1, "new": 5}, {"k": 1, "new": 6}, {"k": 1, "new": 6}),
        ([("=", ".new", {}), ("=", ".new.a", 6)], {"k": 1, "new": {}}, {"k": 1, "new": {"a": 6}}, {"k": 1, "new": {"a": 6}}),
        ([("=", ".k", {}), ("=", ".k.a", 6)], {"k": {}}, {"k": {}}, {"k": {"a": 6}}),
        # A place beside a key, and a key that begins like another.
        ([("+", ".k", 1), ("=", "[1]", 6)], {"k": 2}, {"k": 2}, {"k": 2}),
        (
            [("=", ".n", {"a": 1, "b": 2}), ("+", ".n.a", 1), ("+", ".n.b", 1)],
            {"k": 1, "n": {"a": 1, "b": 2}},
            *[{"k": 1, "n": {"a": 2, "b": 3}}] * 2,
        ),
    ],
)
def test_an_upsert_follows_the_masters_version(patch: list[Any], old: Any, between: Any, new: Any) -> None:
    operations = [operation(code, "data", value, path=path) for code, path, value in patch]
    for version, after in {(2, 6, 0): old, (2, 11, 5): between, (3, 0, 0): new, version_of(None): new}.items():
        assert upsert([1, "", 0, {"k": 1}], operations, FORM, version) == [1, "", 0, after]


def test_the_rows_of_current_follow_it_too() -> None:
    """Each patch by the version that its event names; the newest where it names none, as before events did."""
    patch = json.dumps([operation("+", "data", 1, path=".k"), operation("=", "data", 7, path=".k")])
    row, added = '{"id":1,"name":"","balance":0,"data":{"k":1}}', '{"id":1}'
    fold = Fold(FORM, {(512, 1): FORM}, skips_missing=False)
    found = {}
    for version in ("2.6.0", "2.11.5", "3.8.0", None):
        named = {"space_id": 512, "schema_version": 1, "seq": 5, "server_version": version}
        after = fold('{"id":1}', row, [{**named, "patch": patch, "upsert": added}])
        assert after is not None
        found[version] = json.loads(after)["data"]
    assert found == {"2.6.0": {"k": 2}, "2.11.5": {"k": 2}, "3.8.0": {"k": 7}, None: {"k": 7}}


def test_places_and_numbers_follow_the_masters_version() -> None:
    behind = [operation("=", "field_7", 1)]
    assert upsert([1], behind, FORM, (2, 6)) == [1]
    assert upsert([1], behind, FORM, (2, 8)) == [1, None, None, None, None, None, 1]
    long = [operation("+", "balance", "0.5")]
    assert (
        update([1, "", "12345678901234567890123456789012345678"], long, FORM, (3, 4))[2]
        == "12345678901234567890123456789012345679"
    )
    assert update([1, "", "12345678901234567890123456789012345678"], long, FORM)[2] == "12345678901234567890123456789012345678.5"
    assert upsert([1, "", "9" * 38], [operation("+", "balance", 1)], FORM, (2, 6))[2] == "9" * 38
    assert update([1, "", "9" * 38], [operation("+", "balance", 1)], FORM)[2] == "1" + "0" * 38


def test_an_integer_key_of_a_map_is_found() -> None:
    row = [1, "", 0, {"5": 1, "a": 2}]
    assert update(row, [operation("+", "data", 1, path="[5]")], FORM) == [1, "", 0, {"5": 2, "a": 2}]
    assert update(row, [operation("=", "data", "x", path="[5]")], FORM) == [1, "", 0, {"5": "x", "a": 2}]
    with pytest.raises(PatchError):
        update(row, [operation("=", "data", "x", path="[6]")], FORM)


def test_keys_reach_into_fields() -> None:
    form = Form("s", 1, 1, 0, ("data.user.id", "id"), FORM.fields)
    assert key_of([7, "", 0, {"user": {"id": "x"}}], form) == {"data.user.id": "x", "id": 7}
    assert key_of([7, "", 0, {}], form) is None


OPERATIONS = st.one_of(
    st.builds(operation, st.sampled_from("=!"), st.sampled_from(["name", "balance", "field_6", -1]), st.integers(0, 9)),
    st.builds(operation, st.sampled_from("+-&|^"), st.just("balance"), st.integers(0, 9)),
    st.builds(
        lambda field, count: operation("#", field, count=count), st.sampled_from(["balance", "field_7", -1]), st.integers(1, 3)
    ),
)


@given(st.lists(st.lists(OPERATIONS, max_size=3), max_size=6), st.integers(0, 6))
def test_where_a_sequence_of_upserts_is_cut_makes_no_difference(patches: list[list[dict[str, Any]]], cut: int) -> None:
    def after(row: list[Any], some: list[list[dict[str, Any]]]) -> list[Any]:
        for patch in some:
            row = upsert(row, patch, FORM)
        return row

    start = [1, "a", 5]
    assert after(after(start, patches[:cut]), patches[cut:]) == after(start, patches)
