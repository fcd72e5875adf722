"""Rules for columns: what of a row is published, under which names and types, and which rules are refused."""

from __future__ import annotations

import hmac
import json
import re
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from cdc.config.columns import ColumnsRule
from cdc.errors import ConfigurationError, EncodingError
from cdc.events.columns import ColumnRules, plan_of
from cdc.events.row_encoder import RowEncoder
from cdc.protocol.extensions import OpaqueExtension
from cdc.schema.forms import SpaceForm
from tests.events.test_row_encoder import form

SALT = b"0123456789abcdef"
USERS = form([("id", "unsigned"), ("name", "string"), ("age", "unsigned"), ("data", "map"), ("note", "string")])
ROW = [7, "Ann", 41, {"a": 1}, "a long note"]


def rules(*given: dict[str, Any]) -> ColumnRules:
    return ColumnRules([ColumnsRule(**{"spaces": "users", **rule}) for rule in given], SALT)


def row(found: ColumnRules, values: list[Any], of: SpaceForm = USERS) -> Any:
    return json.loads(RowEncoder(found.shown(of)).rows[len(values)](values))


def hashed(data: bytes) -> str:
    return hmac.new(SALT, data, "sha256").hexdigest()


@pytest.mark.parametrize(
    ("rule", "shown"),
    [
        ({"exclude": ["name", "da.*"]}, {"id": 7, "age": 41, "note": "a long note"}),
        ({"include": ["name"]}, {"id": 7, "name": "Ann"}),
        ({"include": ["n.*"], "exclude": ["name"]}, {"id": 7, "note": "a long note"}),
        ({"hash": ["name"], "include": ["name"]}, {"id": 7, "name": hashed(b"Ann")}),
        ({"hash": ["age"], "include": ["age"]}, {"id": 7, "age": hashed(b"41")}),
        ({"hash": ["data"], "include": ["data"]}, {"id": 7, "data": hashed(b'{"a":1}')}),
        ({"truncate": {"note|age": 4}, "include": ["note", "age"]}, {"id": 7, "age": "41", "note": "a lo"}),
        ({"mask": {"name|data": "***"}, "exclude": ["age", "note"]}, {"id": 7, "name": "***", "data": "***"}),
    ],
    ids=str,
)
def test_what_is_published_of_a_row(rule: dict[str, Any], shown: dict[str, Any]) -> None:
    assert row(rules(rule), ROW) == shown


def test_types_are_those_of_the_published_values() -> None:
    shown = rules({"exclude": ["name"], "hash": ["age"], "truncate": {"data": 3}}).shown(USERS)
    assert [(field.name, field.type) for field in shown.fields] == [
        ("id", "unsigned"),
        ("age", "string"),
        ("data", "string"),
        ("note", "string"),
    ]


def test_keys_are_found_behind_columns_that_are_left_out() -> None:
    of = form([("a", "string"), ("b", "integer"), ("c", "any")], [(2, ""), (1, "")])
    shown = rules({"exclude": ["a"]}).shown(of)
    encoder = RowEncoder(shown)
    assert [part.field for part in shown.key_parts] == [1, 0]
    assert encoder.key_of(["x", 1, 2]) == encoder.key([2, 1]) == b'{"c":2,"b":1}'
    assert json.loads(encoder.rows[3](["x", 1, 2])) == {"b": 1, "c": 2}


def test_a_key_behind_the_format() -> None:
    of = form([("a", "string"), ("b", "string")], [(3, "")])
    shown = rules({"include": ["b"]}).shown(of)
    encoder = RowEncoder(shown)
    assert encoder.key_of(["x", "y", "z", 4, 5]) == b'{"field_4":4}'
    assert json.loads(encoder.rows[5](["x", "y", "z", 4, 5])) == {"b": "y", "field_4": 4}
    assert shown.part_name(0) == "field_4"


def test_short_rows_have_what_they_have() -> None:
    found = rules({"exclude": ["name"], "mask": {"age": "x"}})
    assert row(found, [7]) == {"id": 7}
    assert row(found, [7, "Ann"]) == {"id": 7}
    assert row(found, [7, "Ann", None]) == {"id": 7, "age": "x"}


@pytest.mark.parametrize("count", [1, 2, 40, 200])
def test_fields_behind_the_format_keep_the_names_of_their_places(count: int) -> None:
    more = [f"m{number}" for number in range(count)]
    expected = {f"field_{6 + number}": value for number, value in enumerate(more)}
    assert row(rules({"include": ["field_.*"]}), [*ROW, *more]) == {"id": 7, **expected}
    assert row(rules({"exclude": ["name|age|data|note"]}), [*ROW, *more]) == {"id": 7, **expected}


def test_fields_behind_the_format_obey_patterns_too() -> None:
    more = list(range(6, 60))
    assert row(rules({"include": ["name"]}), [*ROW, *more]) == {"id": 7, "name": "Ann"}
    encoder = RowEncoder(rules({"include": ["field_(8|50)"]}).shown(USERS))
    for length, shown in [(7, {}), (8, {"field_8": 8}), (49, {"field_8": 8}), (50, {"field_8": 8, "field_50": 50})]:
        values = [*ROW, *more][:length]
        assert json.loads(encoder.rows[length](values)) == {"id": 7, **shown}


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ("ÄÖ", "ÄÖ".encode()),
        ("\udcff", b"\xff"),
        (b"\xff\x00", b"\xff\x00"),
        (Decimal("1.50"), b"1.50"),
        (True, b"true"),
        (-0.5, b"-0.5"),
        ([1, "x"], b'[1,"x"]'),
    ],
)
def test_what_is_hashed(value: Any, data: bytes) -> None:
    of = form([("id", "unsigned"), ("v", "any")])
    assert row(rules({"hash": ["v"]}), [1, value], of) == {"id": 1, "v": hashed(data)}


def test_nothing_has_no_hash() -> None:
    of = form([("id", "unsigned"), ("v", "any"), ("w", "any")])
    assert row(rules({"hash": ["v"], "truncate": {"w": 5}}), [1, None, None], of) == {"id": 1, "v": None, "w": None}


@pytest.mark.parametrize(
    ("value", "shown"), [("äöüß", "äö"), ("😀😀😀", "😀😀"), ("a", "a"), ("", ""), (12345, "12"), (b"abc", "YW")]
)
def test_characters_are_cut_and_not_bytes(value: Any, shown: str) -> None:
    of = form([("id", "unsigned"), ("v", "any")])
    assert row(rules({"truncate": {"v": 2}}), [1, value], of) == {"id": 1, "v": shown}


@pytest.mark.parametrize("rule", [{"hash": ["v"]}, {"truncate": {"v": 2}}])
def test_errors_name_the_column_and_not_its_value(rule: dict[str, Any]) -> None:
    of = form([("id", "unsigned"), ("v", "any")])
    encoder = RowEncoder(rules(rule).shown(of))
    with pytest.raises(EncodingError) as caught:
        encoder.rows[2]([1, {"secret": OpaqueExtension(99, b"secret")}])
    assert "the masked column 'v'" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "73 65" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_an_error_about_another_column_has_no_value_that_is_left_out() -> None:
    encoder = RowEncoder(rules({"exclude": ["name"], "hash": ["note"]}).shown(USERS))
    with pytest.raises(EncodingError) as caught:
        encoder.rows[5]([7, "secret", 41, OpaqueExtension(99, b""), "secret too"])
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("operations", "patch"),
    [
        ([["=", "name", "Eve"]], []),
        ([["+", "age", 1]], [{"op": "=", "field": "age", "value": None}]),
        ([["=", "age", 42]], [{"op": "=", "field": "age", "value": hashed(b"42")}]),
        ([["=", "note", "another note"]], [{"op": "=", "field": "note", "value": "anot"}]),
        ([[":", "note", 1, 2, "x"]], [{"op": "=", "field": "note", "value": None}]),
        ([["=", "data", {"b": 2}]], [{"op": "=", "field": "data", "value": "***"}]),
        ([["=", "data.a", 2]], []),
        ([["!", "data.x", 2], ["#", "data.a", 1]], []),
    ],
    ids=str,
)
def test_operations(operations: list[Any], patch: list[Any]) -> None:
    found = rules({"exclude": ["name"], "hash": ["age"], "truncate": {"note": 4}, "mask": {"data": "***"}})
    assert json.loads(RowEncoder(found.shown(USERS)).patch(operations, 1)) == patch


@pytest.mark.parametrize(
    "operation",
    [
        ["=", 6, "secret"],
        ["=", -1, "secret"],
        ["!", 2, "secret"],
        ["#", 1, 1],
        ["!", "note", "secret"],
        [":", -2, 1, 1, "secret"],
    ],
    ids=str,
)
def test_operations_that_might_show_a_value_are_refused(operation: list[Any]) -> None:
    encoder = RowEncoder(rules({"exclude": ["note"]}).shown(USERS))
    with pytest.raises(EncodingError, match=r'state\.images = "full"') as caught:
        encoder.patch([operation], 1)
    assert "secret" not in str(caught.value)


def test_an_operation_far_behind_the_format_costs_nothing() -> None:
    encoder = RowEncoder(rules({"hash": [".*note", "field_9"]}).shown(USERS))
    with pytest.raises(EncodingError, match="far behind the format"):
        encoder.patch([["=", 2_000_000_000, 1]], 1)
    only_format = RowEncoder(rules({"hash": ["note"]}).shown(USERS))
    assert json.loads(only_format.patch([["=", 2_000_000_000, 1]], 1))[0]["field"] == "field_2000000000"


@pytest.mark.parametrize("rule", [{"exclude": ["id"]}, {"hash": ["i."]}, {"truncate": {".*": 2}}, {"mask": {"id": ""}}], ids=str)
def test_the_primary_key_is_published(rule: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="'id', which is in the primary key of space 'users'"):
        rules(rule).shown(USERS)


def test_a_field_with_a_part_of_the_key_is_in_the_key() -> None:
    with pytest.raises(ConfigurationError, match="'data', which is in the primary key"):
        rules({"hash": ["data"]}).shown(form([("id", "unsigned"), ("data", "map")], [(1, "user.id")]))


@pytest.mark.parametrize(
    "given",
    [
        [{"exclude": ["name"], "hash": ["na.*"]}],
        [{"exclude": ["name"]}, {"mask": {"name": "x"}}],
        [{"truncate": {"name": 2, "n.me": 3}}],
    ],
    ids=str,
)
def test_rules_that_contradict_each_other(given: list[dict[str, Any]]) -> None:
    with pytest.raises(ConfigurationError, match="of the column 'name' of space 'users'"):
        rules(*given).shown(USERS)


def test_rules_that_agree() -> None:
    assert row(rules({"exclude": ["name"]}, {"exclude": ["n.me|note|data"]}), ROW) == {"id": 7, "age": 41}
    assert row(rules({"include": ["name", "age"]}, {"include": ["age", "note"]}), ROW) == {"id": 7, "age": 41}


def test_spaces_without_rules_keep_their_form() -> None:
    other = replace(USERS, name="others")
    found = rules({"hash": ["name"]})
    assert found.shown(other) is other
    assert found.mark(other) == ""
    assert not found.conceals(other)
    assert found.conceals(USERS)
    assert found.conceals(None)
    assert not ColumnRules().conceals(None)
    assert plan_of(other) is None


def test_rules_without_effect_on_a_form_change_nothing() -> None:
    assert rules({"hash": ["email"]}).shown(USERS) is USERS


def test_the_mark_of_a_form_changes_with_its_rules() -> None:
    given: list[dict[str, Any]] = [{"hash": ["name"]}, {"exclude": ["name"]}, {"mask": {"name": "x"}}]
    marks = {rules(rule).mark(USERS) for rule in given}
    assert len(marks) == 3


def test_what_has_no_effect_is_told() -> None:
    found = list(rules({"spaces": "user", "hash": ["name"]}, {"exclude": ["nam", "note"]}).without_effect([USERS]))
    assert len(found) == 2
    assert re.search(r"spaces = 'user' \(number 1\) matches no published space", found[0])
    assert re.search(r"'nam' matches no column of users", found[1])
