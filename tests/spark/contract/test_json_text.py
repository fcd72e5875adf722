"""Texts of numbers and strings survive reading and writing."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.events.json_values import encode
from spark_jobs.contract.json_text import parse, render

pytestmark = pytest.mark.spark

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize(
    "text",
    [
        "18446744073709551615",
        "-9223372036854775808",
        "-0.0",
        "1e300",
        "0.1000",
        "5e-324",
        '"é€𝄞"',
        '"\\"\\\\\\b\\f\\n\\r\\t\\u0000\\u001f\x7f"',
        '{"b":1,"a":[1.50,null,true,false,{}],"":[]}',
    ],
)
def test_texts_come_back_to_the_byte(text: str) -> None:
    assert render(parse(text)) == text


@given(VALUES)
def test_what_is_written_reads_as_the_same(value: Any) -> None:
    text = render(value)
    assert json.loads(text) == value
    assert render(parse(text)) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1e300, "1e300"),
        (1e-7, "1e-7"),
        (-1.5e-5, "-0.000015"),
        (9.999e-6, "9.999e-6"),
        (6.0, "6.0"),
        (math.nan, '"NaN"'),
        (math.inf, '"Infinity"'),
        (-math.inf, '"-Infinity"'),
    ],
)
def test_computed_floats_are_written_as_the_contract_has_them(number: float, text: str) -> None:
    assert render(number) == text


@given(st.floats(allow_nan=False, allow_infinity=False) | st.floats(1e-6, 1e-3))
def test_computed_floats_are_written_as_the_daemon_writes_them(number: float) -> None:
    """A key that is built from a row must be the daemon's to the byte."""
    assert render(number).encode() == encode(number)
