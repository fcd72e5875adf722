"""The type table of docs/events.md: what we write, read by a JSON parser, against a reference that knows only the table."""

from __future__ import annotations

import base64
import json
import math
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdc.errors import EncodingError
from cdc.events.json_values import encode, plain
from cdc.protocol.codec import MapPairs
from cdc.protocol.extensions import Datetime, ErrorValue, Interval, OpaqueExtension
from tests.fakes.profiles import MANY


def written(value: Any) -> Any:
    """Through our encoder and Python's parser."""
    return json.loads(encode(plain(value)))


# The reference.


def reference(value: Any) -> Any:
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case str():
            data = value.encode("utf-8", "surrogateescape")
            try:
                return data.decode()
            except UnicodeDecodeError:
                return base64.b64encode(data).decode()
        case bytes():
            return base64.b64encode(value).decode()
        case MapPairs():
            return reference_map(list(value))
        case list():
            return [reference(item) for item in value]
        case dict():
            return reference_map(list(value.items()))
        case Decimal():
            return reference_decimal(value)
        case UUID():
            text = value.hex
            return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
        case Datetime():
            return reference_datetime(value)
        case Interval():
            return reference_interval(value)
    raise AssertionError(f"{value!r} is not in the table")


def reference_map(pairs: list[tuple[Any, Any]]) -> Any:
    texts = []
    for key, _ in pairs:
        shown = reference(key)
        texts.append(shown if isinstance(shown, str) else json.dumps(shown, separators=(",", ":"), ensure_ascii=False))
    if len(set(texts)) < len(pairs):
        return [[reference(key), reference(item)] for key, item in pairs]
    return {text: reference(item) for text, (_, item) in zip(texts, pairs, strict=True)}


def reference_decimal(value: Decimal) -> str:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)) + "0" * max(0, exponent)
    if exponent < 0:
        text = text.rjust(1 - exponent, "0")
        text = f"{text[:exponent]}.{text[exponent:]}"
    elif int(text) == 0:
        text = "0"
    return "-" * sign + text


def reference_datetime(value: Datetime) -> str:
    """Days to a date by the proleptic Gregorian calendar, without Python's datetime and its bounds."""
    days, seconds = divmod(value.seconds + 60 * value.offset_minutes, 86_400)
    shifted = days + 719_468
    era, day_of_era = divmod(shifted, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_index = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_index + 2) // 5 + 1
    month = month_index + 3 if month_index < 10 else month_index - 9
    year = year_of_era + era * 400 + (month <= 2)
    shown = f"{year:04d}" if 0 <= year <= 9999 else f"{'-' if year < 0 else '+'}{abs(year):06d}"
    fraction = f".{value.nanosecond:09d}" if value.nanosecond else ""
    hours, minutes = divmod(abs(value.offset_minutes), 60)
    zone = "Z" if not value.offset_minutes else f"{'-' if value.offset_minutes < 0 else '+'}{hours:02d}:{minutes:02d}"
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{shown}-{month:02d}-{day:02d}T{clock}{fraction}{zone}"


def reference_interval(value: Interval) -> Any:
    names = ("year", "month", "week", "day", "hour", "minute", "second", "nanosecond")
    parts = {name: getattr(value, name) for name in names}
    if value.adjust != "none":
        return {name: part for name, part in parts.items() if part} | {"adjust": value.adjust}
    date = "".join(f"{parts[name]}{name[0].upper()}" for name in names[:4] if parts[name])
    time = "".join(f"{parts[name]}{name[0].upper()}" for name in names[4:6] if parts[name])
    total = Decimal(value.second) + Decimal(value.nanosecond) / 10**9
    if total:
        time += (f"{total:.9f}" if total % 1 else f"{total:.0f}") + "S"
    return f"P{date}" + (f"T{time}" if time else "") if date or time else "PT0S"


# Any value.

TEXTS = st.text(max_size=6) | st.binary(max_size=6).map(lambda data: data.decode("utf-8", "surrogateescape"))
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=None).filter(
    lambda item: abs(int(item.as_tuple().exponent)) < 60
)
DATETIMES = st.builds(
    Datetime,
    st.integers(-(2**45), 2**45) | st.integers(-(10**11), 3 * 10**11),
    st.just(0) | st.integers(0, 999_999_999),
    st.just(0) | st.integers(-720, 840),
    st.integers(0, 500),
)
PARTS = st.just(0) | st.integers(-(2**31), 2**31)
INTERVALS = st.builds(Interval, *[PARTS] * 8, st.sampled_from(["none", "none", "last", "excess"]))
INTEGERS = st.integers(-(2**63), 2**64 - 1)
EXTENSIONS = DECIMALS | st.uuids() | DATETIMES | INTERVALS
SCALARS = st.none() | st.booleans() | INTEGERS | st.floats() | TEXTS | st.binary(max_size=6) | EXTENSIONS
KEYS = (
    TEXTS
    | st.integers(-3, 3)
    | st.booleans()
    | st.none()
    | st.sampled_from(["1", "true", "null", "-1"])
    | st.binary(max_size=3)
    | st.uuids()
)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=2) | KEYS, inner), max_size=3).map(MapPairs)
    return st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4) | pairs


ANY = st.recursive(SCALARS, _nested, max_leaves=8)


def same(found: Any, expected: Any) -> bool:
    """Equal, with types: true is not 1, and -0.0 is not 0."""
    if type(found) is not type(expected):
        return False
    if isinstance(found, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(found, dict):
        return list(found) == list(expected) and all(same(found[key], expected[key]) for key in found)
    return repr(found) == repr(expected)


@MANY
@given(ANY)
@example({1: "a", "1": "b"})
@example({True: 1, "true": 2, None: 3})
@example(float("nan"))
@example([2**53 + 1, -(2**63), 2**64 - 1, -0.0, 5e-324, 1.7976931348623157e308])
def test_any_value(value: Any) -> None:
    assert same(written(value), reference(value))


@MANY
@given(ANY)
def test_the_outcome_is_utf8_and_one_line(value: Any) -> None:
    data = encode(plain(value))
    assert b"\n" not in data
    data.decode()


# The table, row by row.

TABLE: list[tuple[Any, str]] = [
    (None, "null"),
    (True, "true"),
    (False, "false"),
    (0, "0"),
    (18446744073709551615, "18446744073709551615"),
    (-9223372036854775808, "-9223372036854775808"),
    (1.25, "1.25"),
    (float("nan"), '"NaN"'),
    (float("inf"), '"Infinity"'),
    (float("-inf"), '"-Infinity"'),
    ("text", '"text"'),
    ('"\\\n\x00', '"\\"\\\\\\n\\u0000"'),
    ("\udcff\udcfe\x00", '"//4A"'),
    (b"\x00\x01\xff", '"AAH/"'),
    ([1, [2, []]], "[1,[2,[]]]"),
    ({"a": 1, "ж": "ю"}, '{"a":1,"ж":"ю"}'),
    ({1: 2}, '{"1":2}'),
    ({None: 1}, '{"null":1}'),
    ({1: "a", "1": "b"}, '[[1,"a"],["1","b"]]'),
    ({b"\xff": 1}, '{"/w==":1}'),
    ({UUID(int=1): 1}, '{"00000000-0000-0000-0000-000000000001":1}'),
    ({Decimal("1.50"): 1}, '{"1.50":1}'),
    (MapPairs([([1, 2], 1), ({"a": 1}, 2)]), '{"[1,2]":1,"{\\"a\\":1}":2}'),
    (Decimal("0.000"), '"0.000"'),
    (Decimal("-12345678901234567890.123456789"), '"-12345678901234567890.123456789"'),
    (Decimal("1E+3"), '"1000"'),
    (Decimal("1E-9"), '"0.000000001"'),
    (UUID("64d22e4d-ac92-4a23-899a-e59f34af5479"), '"64d22e4d-ac92-4a23-899a-e59f34af5479"'),
    (Datetime(1_709_240_398, 123_456_789, 180), '"2024-02-29T23:59:58.123456789+03:00"'),
    (Datetime(0), '"1970-01-01T00:00:00Z"'),
    (Datetime(-2, 500_000_000), '"1969-12-31T23:59:58.500000000Z"'),
    (Datetime(0, 0, -90), '"1969-12-31T22:30:00-01:30"'),
    (Datetime(-62_198_755_200), '"-000001-01-01T00:00:00Z"'),
    (Datetime(-62_167_219_200), '"0000-01-01T00:00:00Z"'),
    (Datetime(253_402_300_800), '"+010000-01-01T00:00:00Z"'),
    (Interval(1, -2, 0, 3, 4, 5, 6, 7), '"P1Y-2M3DT4H5M6.000000007S"'),
    (Interval(), '"PT0S"'),
    (Interval(week=2), '"P2W"'),
    (Interval(second=1, nanosecond=-1), '"PT0.999999999S"'),
    (Interval(second=-1, nanosecond=1), '"PT-0.999999999S"'),
    (Interval(nanosecond=-5), '"PT-0.000000005S"'),
    (Interval(month=1, adjust="last"), '{"month":1,"adjust":"last"}'),
    (
        ErrorValue(({0: "ClientError", 1: "box.cc", 2: 9, 3: "no", 4: 0, 5: 7, 6: {"x": 1}},)),
        '{"type":"ClientError","code":7,"message":"no","fields":{"x":1}}',
    ),
    (ErrorValue(({3: "new"}, {0: "T", 3: "old"})), '{"message":"new","previous":[{"type":"T","message":"old"}]}'),
]


@pytest.mark.parametrize(("value", "text"), TABLE, ids=[repr(value)[:60] for value, _ in TABLE])
def test_table(value: Any, text: str) -> None:
    assert encode(plain(value)).decode() == text


@pytest.mark.parametrize("code", [5, 7, 8, 99, -1])
@pytest.mark.parametrize(
    "around", [lambda item: item, lambda item: [item], lambda item: {"a": [item]}, lambda item: MapPairs([(item, 1)])]
)
def test_what_has_no_place_in_the_table_is_refused(code: int, around: Any) -> None:
    with pytest.raises(EncodingError, match=rf"extension type {code} .*ab cd.*dlq"):
        plain(around(OpaqueExtension(code, b"\xab\xcd")))


def test_other_types_of_python_are_refused() -> None:
    with pytest.raises(EncodingError, match="Python type set"):
        plain({1, 2})
