"""UPDATE and UPSERT on tuples: a table of cases, and what no bytes may do. Equality with a server is in tests/live."""

from __future__ import annotations

import contextlib
import gzip
import json
import struct
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import SchemaError
from cdc.protocol.extensions import Datetime, Interval, pack, unpack
from cdc.tuples.arithmetic import OperationRefusedError
from cdc.tuples.json_path import Mark, PathError, next_token
from cdc.tuples.update import NEWEST, update, upsert
from cdc.tuples.update_nodes import UndefinedError
from cdc.tuples.update_tree import FIELDS_MAX
from tests.fakes.profiles import MANY

NAMES = ("id", "name", "data", "dotted.name", "größe")
CAPTURES = Path(__file__).parents[1] / "captures"
NOT_OURS = ("type does not match", "Duplicate key", "required by space format", "part of")
"""Why a server refuses a request besides its operations: what they made doesn't fit the space."""

DEEP = [
    1,
    {},
    [],
    [
        1,
        2,
        3,
        [4, 5, 6, 7, [8, 9, [10, 11, 12], 13, 14], 15, 16, [17, 18, 19]],
        20,
        {"b": 22, "a": 21, "c": {"d": 23, "e": 24}},
        25,
    ],
]


def updated(row: Any, *operations: list[Any], base: int = 1, version: tuple[int, ...] = NEWEST) -> Any:
    return unpack(update(pack(row), pack(list(operations)), base=base, names=NAMES, version=version))


def upserted(row: Any, *operations: list[Any], base: int = 1, version: tuple[int, ...] = NEWEST) -> Any:
    return unpack(upsert(pack(row), pack(list(operations)), base=base, names=NAMES, version=version))


def raw(row: bytes, operations: bytes, types: tuple[str, ...] = ()) -> bytes:
    return update(row, operations, base=1, names=NAMES, types=types)


@pytest.mark.parametrize(
    ("row", "operations", "result"),
    [
        pytest.param([1, 2], [["=", 2, "new"]], [1, "new"], id="set"),
        pytest.param([1, 2], [["=", -1, "new"]], [1, "new"], id="set from the end"),
        pytest.param([1, 2], [["=", 3, "new"]], [1, 2, "new"], id="set behind the end"),
        pytest.param([1, 2], [["=", 5, "new"]], [1, 2, None, None, "new"], id="set far behind the end"),
        pytest.param([1, 2], [["!", 5, "new"]], [1, 2, None, None, "new"], id="insert far behind the end"),
        pytest.param([1, 2], [["!", 1, "new"]], ["new", 1, 2], id="insert first"),
        pytest.param([1, 2], [["!", -1, "new"]], [1, 2, "new"], id="insert at the end"),
        pytest.param([1, 2], [["!", -3, "new"]], ["new", 1, 2], id="insert first from the end"),
        pytest.param([1, 2, 3], [["#", 1, 1], ["=", 1, "new"]], ["new", 3], id="fields move up for what follows"),
        pytest.param([1, 2, 3], [["!", 1, 0], ["+", 2, 5]], [0, 6, 2, 3], id="fields move down for what follows"),
        pytest.param([1, 2, 3], [["#", 2, 100]], [1], id="delete more than there is"),
        pytest.param([1, 2, 3], [["#", 4, 1]], [1, 2, 3], id="delete behind the end"),
        pytest.param([1, 2, 3], [["#", -2, 1]], [1, 3], id="delete from the end"),
        pytest.param([1, "x"], [["=", "name", "y"]], [1, "y"], id="by name"),
        pytest.param([1, "x", 2, 3, 4], [["+", "größe", 1], ["+", "dotted.name", 1]], [1, "x", 2, 4, 5], id="by names"),
        pytest.param([1, "x", {"a": {"b": [1, 2]}}], [["+", "data.a.b[2]", 1]], [1, "x", {"a": {"b": [1, 3]}}], id="by path"),
        pytest.param([1, "x", {"größe": 1}], [["+", "data.größe", 1]], [1, "x", {"größe": 2}], id="by a path of letters"),
        pytest.param([1, "x", {"a b": 1}], [["+", '["data"]["a b"]', 1]], [1, "x", {"a b": 2}], id="by a quoted path"),
        pytest.param([1, "x", {}], [["=", "data.a", 1]], [1, "x", {"a": 1}], id="a new key"),
        pytest.param([1, "x", {5: 1}], [["+", "data[5]", 1]], [1, "x", {5: 2}], id="an integer key"),
        pytest.param([1, "x", [1, 2, 3]], [["#", "data[2]", 7]], [1, "x", [1]], id="delete in an array"),
        pytest.param([1, "x", [1]], [["=", "data[2]", 2]], [1, "x", [1, 2]], id="set behind an array"),
        pytest.param([1, "x", [1]], [["!", "data[1]", 2]], [1, "x", [2, 1]], id="insert into an array"),
        pytest.param([0b0110], [["&", 1, 0b1100]], [0b0100], id="and"),
        pytest.param([0b0110], [["|", 1, 0b1100]], [0b1110], id="or"),
        pytest.param([0b0110], [["^", 1, 2**63]], [2**63 + 6], id="xor"),
        pytest.param([-1], [["+", 1, 2**64 - 1]], [2**64 - 2], id="unsigned plus negative"),
        pytest.param([1], [["-", 1, 2**63]], [1 - 2**63], id="less than zero"),
        pytest.param(["abcdef"], [[":", 1, 2, 2, "XYZ"]], ["aXYZdef"], id="splice"),
        pytest.param(["abcdef"], [[":", 1, -1, 0, "!"]], ["abcdef!"], id="splice at the end"),
        pytest.param(["abcdef"], [[":", 1, -3, 1, "!"]], ["abcd!f"], id="splice before the end"),
        pytest.param(["abcdef"], [[":", 1, 1, -2, ""]], ["ef"], id="splice up to the end"),
        pytest.param(["abcdef"], [[":", 1, 3, -100, "!"]], ["ab!cdef"], id="splice up to before its beginning"),
        pytest.param(["abcdef"], [[":", 1, 100, 5, "!"]], ["abcdef!"], id="splice behind the end"),
        pytest.param([b"abc"], [[":", 1, 2, 1, b"\xff"]], [b"a\xffc"], id="splice binary"),
        pytest.param([Decimal("1.1")], [["+", 1, 0.25]], [Decimal("1.35")], id="decimal and double"),
        pytest.param([5], [["-", 1, Decimal("0.50")]], [Decimal("4.50")], id="integer and decimal"),
        # Of test/box/update.result.
        pytest.param([7, 1, 11], [["+", 2, 2], ["+", 2, 3], ["-", 2, 7]], [7, -1, 11], id="sums of sums"),
        pytest.param([7, {"a": 1}, 11], [["+", "[2].a", 2], ["+", "[2].a", 3]], [7, {"a": 6}, 11], id="sums of sums in a map"),
        pytest.param([7, {"b": 1}], [["=", "[2].b", 2], ["+", "[2].b", 2]], [7, {"b": 4}], id="a sum of what was set"),
        pytest.param(
            [7, {"b": 1}], [["=", "[2].b", {"x": 2}], ["+", "[2].b.x", 2]], [7, {"b": {"x": 4}}], id="inside of what was set"
        ),
        pytest.param(
            [7, {"a": {"b": {"c": {"d": 2}}}}, 11],
            [["+", "[2].a.b.c.d", 2], ["=", "[2].a.b.c", 7]],
            [7, {"a": {"b": {"c": 7}}}, 11],
            id="over what was computed",
        ),
        pytest.param(
            [7, "aa11bbb222zzzzz", 11],
            [[":", 2, 3, 2, "!"], [":", 2, 7, 3, "^"], [":", 2, 2, 10, "+"]],
            [7, "a+z", 11],
            id="three splices",
        ),
        pytest.param(
            DEEP,
            [["=", "[2].key1", {"key11": 1}], ["=", "[2].key1.key12", {"key21": 2}], ["=", "[2].key1.key12.key22", 3]],
            [1, {"key1": {"key12": {"key22": 3, "key21": 2}, "key11": 1}}, *DEEP[2:]],
            id="inside of what was inserted",
        ),
        pytest.param(
            DEEP,
            [["=", "[3][1]", [1000]], ["=", "[3][1][2]", [2000, 3000]], ["=", "[3][1][2][3]", [4000]]],
            [1, {}, [[1000, [2000, 3000, [4000]]]], DEEP[3]],
            id="inside of what was inserted into an array",
        ),
        pytest.param(
            DEEP,
            [["=", "[4][6].c.d", 2300], ["=", "[4][6].c.e", 2400], ["#", "[4][6].c.x", 1], ["+", "[4][6].a", 1]],
            [1, {}, [], [*DEEP[3][:5], {"b": 22, "a": 22, "c": {"d": 2300, "e": 2400}}, 25]],  # type: ignore[index]
            id="paths that part twice",
        ),
    ],
)
def test_results(row: Any, operations: list[Any], result: Any) -> None:
    assert updated(row, *operations) == result
    assert upserted(row, *operations) == result


@pytest.mark.parametrize(
    ("row", "operations", "result"),
    [
        ([1, 2], [["=", 1, 5]], [1, 5]),
        ([1, "x", {"a": 1}], [["+", "data.a", 1], [":", 1, 0, 1, "y"]], [1, "y", {"a": 2}]),
        ([1, [5, 6]], [["+", "[2][2]", 1]], [1, [5, 7]]),
    ],
)
def test_numbers_from_zero_but_paths_from_one(row: Any, operations: list[Any], result: Any) -> None:
    assert updated(row, *operations, base=0) == result


@pytest.mark.parametrize(
    ("left", "code", "right", "result"),
    [
        ("ca3fc00000", "+", "ca3fc00000", "ca40400000"),
        ("cb3ff8000000000000", "+", "ca3fc00000", "ca40400000"),
        ("cb3fb999999999999a", "+", "00", "cb3fb999999999999a"),
        ("cb7fefffffffffffff", "-", "cb7fefffffffffffff", "ca00000000"),
        ("ca7f800000", "+", "01", "cb7ff0000000000000"),
        ("d3fffffffffffffffe", "+", "01", "ff"),
        ("cf0000000000000001", "+", "7f", "cc80"),
        ("01", "-", "cd0100", "d1ff01"),
    ],
)
def test_types_of_results(left: str, code: str, right: str, result: str) -> None:
    operations = b"\x91\x93\xa1" + code.encode() + b"\x01" + bytes.fromhex(right)
    assert raw(b"\x91" + bytes.fromhex(left), operations).hex() == "91" + result


def test_a_fields_type_decides_about_width() -> None:
    double, single = b"\xcb" + struct.pack(">d", 1.5), b"\xca" + struct.pack(">f", 1.5)
    add = pack([["+", 1, 1]])
    assert raw(b"\x91" + double, add, ("double",)) == b"\x91\xcb" + struct.pack(">d", 2.5)
    assert raw(b"\x91" + double, add, ("number",)) == b"\x91\xca" + struct.pack(">f", 2.5)
    assert raw(b"\x91" + single, pack([["+", 1, 0.1]]), ("float32",)) == b"\x91\xca" + struct.pack(">f", 1.6)
    assert raw(b"\x91" + b"\xcb" + struct.pack(">d", 1e300), pack([["+", 1, 1e300]]), ("float32",))[:2] == b"\x91\xca"


def test_decimals_round_to_what_the_version_has() -> None:
    row, add = [Decimal("12345678901234567890123456789012345678")], ["+", 1, Decimal("0.5")]
    assert updated(row, add, version=(3, 4)) == [Decimal("12345678901234567890123456789012345679")]
    assert updated(row, add, version=(3, 5)) == [Decimal("12345678901234567890123456789012345678.5")]
    assert updated([Decimal(9)], ["+", 1, 0.1 + 0.2]) == [Decimal("9.3")]
    with pytest.raises(OperationRefusedError):
        updated([Decimal("9" * 38)], ["+", 1, 1], version=(2, 6))
    with pytest.raises(OperationRefusedError):
        updated([Decimal(1)], ["+", 1, float("nan")])


def test_untouched_fields_and_set_values_keep_their_bytes() -> None:
    odd = [
        b"\xcd\x00\x05",
        b"\xca\x7f\xc0\x00\x01",
        b"\xd9\x02\xff\xfe",
        b"\xc7\x01\x63\x00",
        b"\xde\x00\x01\xa1a\xdc\x00\x01\x01",
    ]
    row = b"\x96" + b"".join(odd) + b"\x01"
    for code in (b"+", b"&", b"="):
        for last in (b"\x06", b"\xff"):
            new = raw(row, b"\x91\x93\xa1" + code + last + b"\xce\x00\x00\x00\x01")
            assert new[: len(row) - 1] == row[:-1]
            assert new[len(row) - 1 :] == {b"+": b"\x02", b"&": b"\x01", b"=": b"\xce\x00\x00\x00\x01"}[code]


def test_order_of_a_maps_keys_is_the_servers() -> None:
    def keys(*operations: list[Any]) -> list[str]:
        return list(updated([{"a": 1, "b": 2, "c": 3}], *operations)[0])

    assert keys(["+", "[1].b", 1]) == ["a", "b", "c"]
    assert keys(["=", "[1].d", 1]) == ["d", "a", "b", "c"]
    assert keys(["+", "[1].b", 1], ["+", "[1].c", 1]) == ["c", "b", "a"]
    assert keys(["+", "[1].c", 1], ["=", "[1].d", 1], ["#", "[1].a", 1]) == ["d", "c", "b"]


REFUSED = [
    ([1, "x"], ["+", 2, 1]),
    ([1, None], ["+", 2, 1]),
    ([2**64 - 1], ["+", 1, 1]),
    ([-(2**63)], ["-", 1, 1]),
    ([-1], ["&", 1, 1]),
    ([1.5], ["|", 1, 1]),
    ([1], [":", 1, 1, 1, ""]),
    (["abc"], [":", 1, -5, 0, ""]),
    ([1, 2], ["+", 3, 1]),
    ([1, 2], ["=", -3, 1]),
    ([1, 2], ["!", -4, 1]),
    ([1, 2], ["#", -3, 1]),
    ([1, 2], ["=", "[2].a", 1]),
    ([1, {"a": 1}], ["!", "[2].a", 1]),
    ([1, {"a": 1}], ["#", "[2].b", 1]),
    ([1, {"a": 1}], ["#", "[2].a", 2]),
    ([1, {"a": 1}], ["=", "[2].b.c", 1]),
    ([1, {"a": 1}], ["=", "[2][3]", 1]),
    ([1, [1]], ["=", "[2][3]", 1]),
    ([1, [1]], ["=", "[2].a", 1]),
    ([1, [1]], ["=", "[2][*]", 1]),
    ([1, [1]], ["=", "[2][1", 1]),
    ([1, [1]], ["=", "[2]a", 1]),
    ([Datetime(0)], ["+", 1, 1]),
]
"""What doesn't fit a tuple."""


@pytest.mark.parametrize(("row", "operation"), REFUSED)
def test_what_an_upsert_goes_on_without(row: Any, operation: list[Any]) -> None:
    with pytest.raises(OperationRefusedError, match=r"the operation .*can't be carried out"):
        updated(row, operation)
    assert upserted(row, operation) == row
    assert upserted(row, operation, ["=", 1, 77])[0] == 77


@pytest.mark.parametrize(
    "operation",
    [
        ["*", 1, 1],
        ["==", 1, 1],
        [1, 1, 1],
        [],
        ["="],
        ["=", 1],
        ["=", 1, 1, 1],
        [":", 1, 1],
        7,
        ["=", 0, 1],
        ["=", 2**31, 1],
        ["=", 1.5, 1],
        ["=", None, 1],
        ["=", "unknown", 1],
        ["=", "", 1],
        ["=", "[*]", 1],
        ["=", "[0]", 1],
        ["=", " data", 1],
        ["+", 1, "1"],
        ["+", 1, Interval(day=1)],
        ["&", 1, -1],
        ["#", 1, 0],
        ["#", 1, -1],
        ["#", 1, 2**32],
        [":", 1, 0, 1, "x"],
        [":", 1, "x", 1, "x"],
        [":", 1, 1, 1, 1],
    ],
)
def test_what_is_refused_with_the_whole_request(operation: Any) -> None:
    row = [1, "x", {"a": 1}, 4, 5]
    for carry_out in (updated, upserted):
        with pytest.raises(SchemaError, match="the operation") as caught:
            carry_out(row, ["=", 2, "y"], operation)
        assert not isinstance(caught.value, OperationRefusedError)


def test_all_that_servers_answered() -> None:
    """3,000 requests, carried out by 2.6.0, 2.11.5 and 3.8.0. Where one of them ended itself, no rule follows."""
    equal: Counter[str] = Counter()
    wrong = []
    with gzip.open(CAPTURES / "updates.jsonl.gz", "rt") as lines:
        cases = [json.loads(line) for line in lines]
    for case in cases:
        row, operations = bytes.fromhex(case["row"]), bytes.fromhex(case["operations"])
        carry_out = update if case["request"] == "UPDATE" else upsert
        for text, answer in case["after"].items():
            ours: bytes | str
            try:
                ours = carry_out(
                    row,
                    operations,
                    base=case["base"],
                    names=("id", "map", "n", "s"),
                    types=("unsigned", "any", "any", "any"),
                    version=tuple(map(int, text.split("."))),
                )
            except SchemaError as error:
                ours = str(error)
            if isinstance(answer, str):
                if isinstance(ours, bytes) and case["request"] == "UPSERT" and unpack(ours)[:1] != unpack(row)[:1]:
                    ours = row  # the primary key is the caller's business
                if ours != bytes.fromhex(answer):
                    wrong.append((text, case, ours))
                equal[text] += 1
            elif "refused" in answer and isinstance(ours, bytes) and not any(why in answer["refused"] for why in NOT_OURS):
                wrong.append((text, case, ours))
    assert not wrong, wrong[:3]
    assert equal == {"2.6.0": 2018, "2.11.5": 2102, "3.8.0": 2124}


@pytest.mark.parametrize(
    ("version", "after"),
    [((2, 6, 0), 2), ((2, 10, 2), 2), ((2, 10, 5), 2), ((2, 11, 5), 2), ((3, 0, 0), 7), ((3, 8, 0), 7)],
)
def test_a_field_that_was_computed_is_set_again_from_3_on(version: tuple[int, ...], after: int) -> None:
    assert upserted([{"k": 1}], ["+", "[1].k", 1], ["=", "[1].k", 7], version=version) == [{"k": after}]


def test_several_operations_at_one_path_before_2_10_5() -> None:
    old, between = (2, 6), (2, 10, 3)
    new_key = ["=", "[1].new", 5]
    for again in (["=", "[1].new", 6], ["+", "[1].new", 1], ["#", "[1].new", 1]):
        assert upserted([{"a": 1}, 2], new_key, again, version=old) == [{"new": 5, "a": 1}, 2]
    # It is looked for behind the map: what stands there is no container, or none that the step fits.
    for behind in (2, [1], "text"):
        assert upserted([{"a": 1}, behind], new_key, ["=", "[1].new.b", 6], version=old) == [{"new": 5, "a": 1}, behind]
    assert upserted([{"a": 1}], new_key, ["=", "[1].new", 6], version=between) == [{"new": 6, "a": 1}]
    # A place in what was set is refused; a key ends the server.
    assert upserted([{"a": 1}], ["=", 1, {"b": 2}], ["=", "[1][1]", 3], version=old) == [{"b": 2}]
    with pytest.raises(UndefinedError):
        upserted([{"a": 1}], ["=", 1, {"b": 2}], ["=", "[1].b", 3], version=between)
    assert upserted([{"a": 1}], ["=", 1, {"b": 2}], ["=", "[1].b", 3], version=(2, 10, 5)) == [{"b": 2}]


def test_a_sum_that_overflows_stays_from_3_on() -> None:
    steps = ["+", 1, 1], ["+", 1, 5], ["-", 1, 5]
    assert upserted([2**64 - 3], *steps, version=(2, 11)) == [2**64 - 2]
    assert upserted([2**64 - 3], *steps) == [2**64 - 2]
    assert upserted([2**64 - 3], *steps[:2]) == [3]
    assert upserted([2**64 - 3], *steps[:2], ["|", 1, 8]) == [3]


def test_older_versions_refuse_more() -> None:
    twice = ["+", 1, 1], ["+", 1, 2]
    assert upserted([1], *twice, version=(2, 11)) == [2]
    assert upserted([1], *twice, version=(3, 0)) == [4]
    assert upserted([1], ["=", 3, 1], version=(2, 7)) == [1]
    assert upserted([1], ["=", 2, 1], version=(2, 7)) == [1, 1]
    assert upserted([1, 2], ["#", 3, 1], version=(2, 7)) == [1, 2]
    assert upserted([b"abc"], [":", 1, 1, 1, "x"], version=(3, 1)) == [b"abc"]
    assert upserted([{"a": 1}], ["+", "[1].a", 1], ["+", "[1].a", 1], version=(2, 6)) == [{"a": 2}]
    assert upserted([{"a": 1}], ["=", "[1].a", 5], ["+", "[1].a", 1], version=(2, 11)) == [{"a": 5}]


def test_what_no_server_defines_is_loud() -> None:
    with pytest.raises(SchemaError, match="overflow"):
        upserted([2**64 - 3], ["+", 1, 1], ["+", 1, 0x90])
    with pytest.raises(UndefinedError):
        upserted([{5: 1}], ["#", "[1][5]", 1])
    with pytest.raises(UndefinedError):
        upserted([{}], ["=", "[1].a", {}], ["=", "[1].a.b", 1], version=(2, 6))
    with pytest.raises(UndefinedError):
        upserted(["abc"], [":", 1, -(2**31), 0, ""])
    with pytest.raises(SchemaError, match="too long"):
        upserted([1], ["=", FIELDS_MAX + 2, 1])


def test_more_operations_than_a_server_takes() -> None:
    assert updated([0], *[["+", 1, 1]] * 4000) == [4000]
    with pytest.raises(SchemaError, match="4000"):
        updated([0], *[["+", 1, 1]] * 4001)


def test_depth_is_an_error_not_a_crash() -> None:
    assert raw(b"\x91" * 500 + b"\x01", pack([["=", "[1]" * 498, 5]])) == b"\x91" * 498 + b"\x05"
    # Each operation goes into what the one before it has inserted, so that the server's tree gets a level by each.
    with pytest.raises(SchemaError, match="nested too deeply"):
        updated([[0]], *[["=", "[1]" + "[2]" * depth, [0]] for depth in range(1, 1000)])


@pytest.mark.parametrize(
    ("path", "tokens"),
    [
        ("", []),
        ("a", [b"a"]),
        (".a", [b"a"]),
        ("_1", [b"_1"]),
        ("größe[1]", ["größe".encode(), 0]),
        ("""[12]["x.y"]['"'][*]""", [11, b"x.y", b'"', Mark.ANY]),
    ],
)
def test_paths(path: str, tokens: list[Any]) -> None:
    found: list[Any] = []
    offset = 0
    while True:
        token, offset = next_token(path.encode(), offset)
        if token is Mark.END:
            break
        found.append(token)
    assert found == tokens


@pytest.mark.parametrize(
    "path",
    [b"1", b".", b".1", b"[", b"[]", b"[0]", b"[1", b"[99999999999999]", b'[""]', b'["a]', b"[-1]", b"\xff", b"[' \xff']", b" a"],
)
def test_paths_that_are_none(path: bytes) -> None:
    with pytest.raises(PathError):
        next_token(path, 0)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**20), max_value=10**20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", 1, 2]), inner, max_size=3),
    max_leaves=6,
)
references = st.integers(-5, 6) | st.sampled_from(
    ["name", "data.a", "data.a.b", "data[1]", "[2][1]", "[2].a", "[2].b", "[2].a[1]", "[2][*]", "[2]."]
)
operations = st.lists(
    st.tuples(st.sampled_from("=+-&|^!#"), references, values | st.integers(0, 3)).map(list)
    | st.tuples(st.just(":"), references, st.integers(-4, 4), st.integers(-4, 4), st.text(max_size=3)).map(list),
    max_size=6,
)
versions = st.sampled_from([(2, 6), (2, 8), (2, 10, 3), (2, 10, 5), (2, 11), (3, 0), (3, 2), NEWEST])


@given(row=st.lists(values, max_size=6), changes=operations, base=st.sampled_from([0, 1]), version=versions)
@MANY
def test_a_result_is_a_tuple_or_a_schema_error(row: list[Any], changes: list[Any], base: int, version: tuple[int, ...]) -> None:
    for carry_out in (update, upsert):
        try:
            result = carry_out(pack(row), pack(changes), base=base, names=NAMES, version=version)
        except SchemaError:
            continue
        assert isinstance(msgpack.unpackb(result, strict_map_key=False, unicode_errors="surrogateescape"), list)


@given(row=st.lists(values, max_size=6), changes=operations, base=st.sampled_from([0, 1]))
@MANY
def test_an_upsert_that_skips_nothing_is_an_update(row: list[Any], changes: list[Any], base: int) -> None:
    try:
        result = update(pack(row), pack(changes), base=base, names=NAMES)
    except SchemaError:
        return
    assert upsert(pack(row), pack(changes), base=base, names=NAMES) == result


@given(
    row=st.lists(values, max_size=4).map(pack) | st.binary(max_size=30),
    changes=operations.map(pack) | st.binary(max_size=30),
    data=st.data(),
)
@MANY
def test_no_bytes_make_another_error(row: bytes, changes: bytes, data: st.DataObject) -> None:
    if row and data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(row) - 1))
        row = row[:place] + data.draw(st.binary(max_size=2)) + row[place + 1 :]
    if changes and data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(changes) - 1))
        changes = changes[:place] + data.draw(st.binary(max_size=2)) + changes[place + 1 :]
    for carry_out in (update, upsert):
        with contextlib.suppress(SchemaError):
            carry_out(row, changes, base=1, names=NAMES)
