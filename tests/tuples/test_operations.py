"""Operations of UPDATE and UPSERT: what a reference means under a format, and what they do to system rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import SchemaError
from cdc.tuples.operations import Operation, apply_plainly, normalise, steps
from tests.fakes.profiles import MANY

NAMES = ("id", "name", "data", "dotted.name", "7")


def resolved(operation: list[Any], base: int = 1) -> Operation:
    (found,) = normalise([operation], base=base, names=NAMES)
    return found


@pytest.mark.parametrize(
    ("reference", "base", "field", "path"),
    [
        (1, 1, 0, ""),
        (1, 0, 1, ""),
        (0, 0, 0, ""),
        (9, 1, 8, ""),
        (-1, 1, -1, ""),
        (-1, 0, -1, ""),
        ("name", 1, 1, ""),
        ("name", 0, 1, ""),
        ("7", 1, 4, ""),
        ("dotted.name", 1, 3, ""),
        ("data.a.b[2]", 1, 2, ".a.b[2]"),
        ("data[1]", 0, 2, "[1]"),
        ("[3].a", 1, 2, ".a"),
        ("[3].a", 0, 2, ".a"),
        ('["name"]', 1, 1, ""),
        ("['name'].x", 1, 1, ".x"),
        ("[ 3 ][1]", 1, 2, "[1]"),
    ],
)
def test_references(reference: int | str, base: int, field: int, path: str) -> None:
    assert resolved(["=", reference, 5], base) == Operation("=", field, path, 5)


@pytest.mark.parametrize("code", list("=+-&|^!#"))
def test_codes(code: str) -> None:
    assert resolved([code, 2, "x"]) == Operation(code, 1, "", "x")


@pytest.mark.parametrize(
    ("base", "position", "expected"),
    [(1, 1, 1), (1, 3, 3), (0, 0, 1), (0, 2, 3), (1, -1, -1), (0, -3, -3)],
)
def test_splices_count_from_one(base: int, position: int, expected: int) -> None:
    assert resolved([":", 3, position, 2, "xyz"], base).argument == (expected, 2, "xyz")


@pytest.mark.parametrize(
    "operation",
    [
        None,
        "=",
        [],
        ["="],
        ["=", 1],
        ["=", 1, 2, 3],
        ["?", 1, 2],
        ["=", 1.5, 2],
        ["=", None, 2],
        [5, 1, 2],
        [":", 1, 2],
        [":", 1, 1, 1],
        [":", 1, "1", 1, "x"],
        [":", 1, 1, None, "x"],
        ["=", 0, 1],
        ["=", "[0].a", 1],
        ["=", "missing", 1],
        ["=", "", 1],
        ["=", "]", 1],
        ["=", '["missing"].a', 1],
    ],
)
def test_what_no_server_writes(operation: Any) -> None:
    with pytest.raises(SchemaError):
        normalise([operation], base=1, names=NAMES)


@pytest.mark.parametrize("operations", [None, "x", 5, {}, {"=": 1}])
def test_operations_that_are_no_array(operations: object) -> None:
    with pytest.raises(SchemaError, match="should be an array"):
        normalise(operations, base=1, names=NAMES)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", []),
        (".a", ["a"]),
        ("a.b", ["a", "b"]),
        (".a.b[2]", ["a", "b", 1]),
        ("[1][2]", [0, 1]),
        ('["a b"].c', ["a b", "c"]),
        ("['x']", ["x"]),
        (".ключ", ["ключ"]),
        (".0", ["0"]),
    ],
)
def test_steps(path: str, expected: list[int | str]) -> None:
    assert steps(path) == expected


@pytest.mark.parametrize("path", ["[", "[]", "[0]", ".a[0]", "[a]", ".a[", ".a]", "..", ". a", '["a]'])
def test_paths_that_cannot_be_read(path: str) -> None:
    with pytest.raises(SchemaError, match="can't be read"):
        steps(path)


def applied(row: list[Any], *operations: list[Any]) -> list[Any]:
    return apply_plainly(row, normalise(list(operations), base=1, names=NAMES))


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([["=", 1, "x"]], ["x", 2, {"a": [1, 2]}]),
        ([["=", -1, "x"]], [1, 2, "x"]),
        ([["=", 4, "x"]], [1, 2, {"a": [1, 2]}, "x"]),
        ([["!", 1, "x"]], ["x", 1, 2, {"a": [1, 2]}]),
        ([["!", 4, "x"]], [1, 2, {"a": [1, 2]}, "x"]),
        ([["!", -1, "x"]], [1, 2, {"a": [1, 2]}, "x"]),
        ([["!", -2, "x"]], [1, 2, "x", {"a": [1, 2]}]),
        ([["#", 2, 1]], [1, {"a": [1, 2]}]),
        ([["#", 1, 9]], []),
        ([["#", -1, 1]], [1, 2]),
        ([["=", "data.b", 5]], [1, 2, {"a": [1, 2], "b": 5}]),
        ([["=", "data.a[1]", 5]], [1, 2, {"a": [5, 2]}]),
        ([["!", "data.a[1]", 0]], [1, 2, {"a": [0, 1, 2]}]),
        ([["!", "data.b", 0]], [1, 2, {"a": [1, 2], "b": 0}]),
        ([["#", "data.a", 1]], [1, 2, {}]),
        ([["#", "data.a[1]", 2]], [1, 2, {"a": []}]),
        ([["#", 1, 1], ["=", 1, "second"]], ["second", {"a": [1, 2]}]),
    ],
)
def test_applied(operations: list[list[Any]], expected: list[Any]) -> None:
    row = [1, 2, {"a": [1, 2]}]
    assert applied(row, *operations) == expected
    assert row == [1, 2, {"a": [1, 2]}], "the row itself stays as it was"


@pytest.mark.parametrize(
    "operation",
    [
        ["+", 1, 1],
        ["-", 1, 1],
        ["&", 1, 1],
        [":", 2, 1, 1, "x"],
        ["=", 9, 1],
        ["=", -9, 1],
        ["!", 9, 1],
        ["=", "data.a[9]", 1],
        ["=", "data.x.y", 1],
        ["#", "data.x", 1],
        ["#", 1, "x"],
        ["=", "name.a", 1],
    ],
)
def test_operations_that_ddl_does_not_make(operation: list[Any]) -> None:
    with pytest.raises(SchemaError):
        applied([1, 2, {"a": [1, 2]}], operation)


@MANY
@given(
    row=st.lists(st.integers(), min_size=1, max_size=6),
    changes=st.lists(st.tuples(st.sampled_from("=!#"), st.integers(-6, 6).filter(bool), st.integers(1, 3)), max_size=4),
)
def test_against_python_lists(row: list[int], changes: list[tuple[str, int, int]]) -> None:
    """The model speaks in slices of a list; where it has nothing to say, the operation must be refused."""
    expected: list[int] | None = list(row)
    for code, reference, argument in changes:
        assert expected is not None
        size = len(expected)
        place = reference - 1 if reference > 0 else size + reference + (code == "!")
        if not 0 <= place <= size or (code == "#" and place == size):
            expected = None
            break
        match code:
            case "=":
                expected[place : place + 1] = [argument]
            case "!":
                expected[place:place] = [argument]
            case _:
                expected[place : place + argument] = []
    operations = normalise([list(change) for change in changes], base=1, names=())
    if expected is None:
        with pytest.raises(SchemaError):
            apply_plainly(list(row), operations)
    else:
        assert apply_plainly(list(row), operations) == expected
