"""Expressions over rows: what they see of a row, which mistakes are found when they are compiled, and that they always end."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from cdc.errors import ConfigurationError, EncodingError
from cdc.events import row_filter
from cdc.events.row_filter import RowFilter
from cdc.protocol.extensions import Datetime, OpaqueExtension
from cdc.schema.forms import SpaceForm
from tests.events.test_row_encoder import form

_FIELDS = [
    ("id", "unsigned"),
    ("status", "string"),
    ("total", "number"),
    ("data", "any"),
    ("is_paid", "boolean"),
    ("odd name", "string"),
]


def orders(*nullable: str) -> SpaceForm:
    found = form(_FIELDS)
    return replace(found, fields=tuple(replace(field, is_nullable=field.name in nullable) for field in found.fields))


ORDERS = orders()


def chosen(expression: str, *values: Any, of: SpaceForm = ORDERS) -> bool:
    return RowFilter(expression, of, "the rule")(values)


def row(**given: Any) -> list[Any]:
    values = {"id": 1, "status": "new", "total": 1, "data": {"a": [1, 2]}, "is_paid": False, "odd name": ""} | given
    return list(values.values())


@pytest.mark.parametrize(
    ("expression", "given", "expected"),
    [
        ("row.status != 'draft'", {"status": "new"}, True),
        ("row.status != 'draft'", {"status": "draft"}, False),
        ("row.id > 5", {"id": 2**64 - 1}, True),
        ("row.id > 5", {"id": 5}, False),
        ("row.total >= 1.5", {"total": 2}, True),
        ("double(row.total) >= 1.5", {"total": Decimal("1.50")}, True),
        ("row.data == null", {"data": None}, True),
        ("row.data.a[1] == 2 && has(row.data.a) && !has(row.data.b)", {}, True),
        ("row.data == b'\\xff'", {"data": b"\xff"}, True),
        ("row.data == '/w=='", {"data": b"\xff".decode("utf-8", "surrogateescape")}, True),
        ("row.data == '00000000-0000-0000-0000-000000000001'", {"data": UUID(int=1)}, True),
        ("row.data[0] == '00000000-0000-0000-0000-000000000001'", {"data": [UUID(int=1)]}, True),
        ("timestamp(row.data) < timestamp('2024-01-01T00:00:00Z')", {"data": Datetime(0, 5, 180, 0)}, True),
        ("row.data != row.data", {"data": float("nan")}, True),
        ("row.is_paid", {"is_paid": True}, True),
        ("row.is_paid || row.status in ['new', 'open']", {}, True),
        ("row.`odd name`.startsWith('x') || row.id == 1", {"odd name": "y"}, True),
    ],
    ids=str,
)
def test_an_expression_says_of_a_row_whether_it_is_chosen(expression: str, given: dict[str, Any], *, expected: bool) -> None:
    assert chosen(expression, *row(**given)) is expected


def test_a_field_that_a_tuple_omits_is_null() -> None:
    of = orders("data", "is_paid", "odd name")
    assert chosen("row.is_paid == null && row.`odd name` == null", 1, "new", 2, of=of)


def test_fields_past_the_format_have_the_names_of_their_places() -> None:
    assert chosen("row.field_8 == 'x' && row.field_9 == null", *row(), "", "x")


def test_fields_whose_names_no_expression_can_have_are_named_by_their_places() -> None:
    of = form([("id", "unsigned"), ("имя", "string"), ("it's", "string"), ("ok", "string")])
    assert chosen("row.field_2 == 'x' && row.field_3 == 'y'", 1, "x", "y", "z", of=of)
    with pytest.raises(ConfigurationError) as caught:
        RowFilter("row.`имя` == 'x'", of, "the rule")
    assert "row.field_N" in caught.value.hint


def test_a_field_with_a_dot_beside_one_with_its_beginning() -> None:
    of = orders()
    of = replace(of, fields=(*of.fields[:3], replace(of.fields[3], name="total.sum"), *of.fields[4:]))
    of = replace(of, fields=(*of.fields[:2], replace(of.fields[2], type="any"), *of.fields[3:]))
    assert chosen("row.total.sum == 8", 1, "new", {"sum": 7}, 8, of=of)
    assert chosen("row.total.sum == 8 && row.total.min == 7", 1, "new", {"min": 7}, 8, of=of)


def test_an_apostrophe_in_a_comment() -> None:
    assert chosen("row.id == 1 // it's the first\n && row.status == 'new' // isn't it", *row())


def test_fields_that_are_read() -> None:
    found = RowFilter("row.status == 'is_paid' && row.data.id == 1", ORDERS, "the rule")
    assert found.places == frozenset({1, 3})


NAMES = [*"abcdefghij", *(f"f{number}" for number in range(300))]


@pytest.mark.parametrize(
    ("expression", "read"),
    [
        ("row.a == 1", ["a"]),
        ("||".join(f"row.{name} == 1" for name in NAMES[:70]), NAMES[:70]),
        (f"row.a == 1 || '{' '.join(NAMES[:250])}' == ''", ["a"]),
        (f"row.a == 1 || row. // {' '.join(NAMES[:5])}\n b == 2", ["a", "b"]),
        # Here the text misleads, and more than a few names are too many to be tried.
        (f"row.a == 1 || row. // {' '.join(NAMES[:250])}\n b == 2", NAMES[:250]),
    ],
)
def test_few_attempts_find_the_fields_that_are_read(monkeypatch: pytest.MonkeyPatch, expression: str, read: list[str]) -> None:
    """Whoever may ask for rows may send any expression, and all rows wait until it is compiled."""
    attempts = []
    compiled = row_filter._compiled

    def count(*arguments: Any) -> Any:
        attempts.append(arguments)
        return compiled(*arguments)

    monkeypatch.setattr(row_filter, "_compiled", count)
    found = RowFilter(expression, form([(name, "any") for name in NAMES]), "the rule")
    assert found.places == {NAMES.index(name) for name in read}
    assert len(attempts) <= 12


@pytest.mark.parametrize(
    ("expression", "problem", "remedy"),
    [
        ("row.statu == 'x'", "reads the field 'statu', which the space doesn't have", "It has 'id', 'status'"),
        ("row.field_2 == 'x'", "reads the field 'field_2'", "It has 'id'"),
        ("row.status = 'x'", "can't be used", "expression in CEL"),
        ("row.status > 3", "no matching overload", "expression in CEL"),
        ("status == 'x'", "undeclared reference", "row.NAME"),
        ("row.status == null", "no matching overload", "nullable"),
        ("row.status", "is of type string, not true or false", "Compare it"),
        ("row.id + 1 > 3 ? 1 : 2", "is of type int", "Compare it"),
        ("has(row.is_paid)", "asks for has(row.is_paid)", "Write row.is_paid != null"),
        ("", "can't be used", "expression in CEL"),
        ("(" * 100 + "true" + ")" * 100, "can't be used", "expression in CEL"),
    ],
)
def test_a_mistake_is_found_before_the_first_row(expression: str, problem: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RowFilter(expression, ORDERS, "routing.rules, the rule for spaces = 'orders'")
    assert "the rule for spaces = 'orders'" in caught.value.message
    assert "space 'users'" in caught.value.message
    assert problem in caught.value.message
    assert remedy in caught.value.hint


@pytest.mark.parametrize(
    ("expression", "given"),
    [
        ("row.total > 3", {"total": None}),
        ("row.data.b == 1", {}),
        ("row.data", {"data": 1}),
        ("row.id / 0 == 1", {}),
        ("row.data == 1", {"data": OpaqueExtension(9, b"")}),
        ("row.data.all(a, row.data.all(b, row.data.all(c, true)))", {"data": list(range(300))}),
    ],
)
def test_an_expression_may_fail_for_a_row(expression: str, given: dict[str, Any]) -> None:
    found = RowFilter(expression, orders("total"), "the rule")
    with pytest.raises(EncodingError):
        found(row(**given))


def test_a_failure_says_which_values_are_texts() -> None:
    found = RowFilter("row.total > 3", ORDERS, "the rule")
    with pytest.raises(EncodingError, match=r"Decimals, UUIDs and points in time are texts, which double\("):
        found(row(total=Decimal("1.50")))


def test_a_failure_does_not_quote_a_row_whose_columns_are_masked() -> None:
    values = row(data="a secret(")
    for columns, is_told in (("", True), ("[]", False)):
        found = RowFilter("row.status.matches(row.data)", replace(ORDERS, columns=columns), "the rule")
        with pytest.raises(EncodingError) as caught:
            found(values)
        assert ("a secret" in str(caught.value)) is is_told


def test_regular_expressions_take_linear_time() -> None:
    assert not chosen("row.status.matches('^(a+)+$')", *row(status="a" * 5_000 + "b"))


def test_without_the_library_an_expression_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cel_expr_python", None)
    with pytest.raises(ConfigurationError, match="cel-expr-python") as caught:
        RowFilter("row.id > 3", ORDERS, "the rule")
    assert "tarantool-cdc[filter]" in caught.value.hint


def test_the_library_is_imported_with_the_first_expression() -> None:
    """A daemon without expressions needn't have it."""
    program = "import sys, cdc.cli, cdc.daemon.supervisor, cdc.events.row_filter; assert 'cel_expr_python' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
