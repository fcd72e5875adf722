"""Operations of UPDATE and UPSERT: what a reference means under a format."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.errors import SchemaError
from cdc.tuples.operations import Operation, normalise, steps

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
    ],
)
def test_steps(path: str, expected: list[int | str]) -> None:
    assert steps(path) == expected


@pytest.mark.parametrize(
    "path", ["[", "[]", "[0]", ".a[0]", "[a]", ".a[", ".a]", "..", ". a", '["a]', ".0", "[ 1 ]", "[*]", "[1].a[*]"]
)
def test_paths_that_cannot_be_read(path: str) -> None:
    with pytest.raises(SchemaError, match="can't be read"):
        steps(path)
