"""Extension types against bytes written by an independent encoder, and against bytes that are none of them."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.protocol.extensions import Datetime, ErrorValue, Extension, Interval, OpaqueExtension, decode_extension
from tests.fakes import wire
from tests.fakes.profiles import MANY


def through(value: Extension) -> Extension:
    """Through the wire and back."""
    packed = msgpack.unpackb(wire.pack(value))
    return decode_extension(packed.code, packed.data)


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ("02 01 23 4c", "12.34"),  # an even number of digits, filled up with a zero
        ("00 0c", "0"),
        ("03 0c", "0.000"),
        ("09 12 34 56 78 90 12 34 56 78 90 12 34 56 78 9d", "-12345678901234567890.123456789"),
        ("fe 1a", "1E+2"),
        ("00 5b", "-5"),
        ("00 5e", "5"),
        ("d1 ff 00 1c", "1E+256"),
    ],
)
def test_decimals(payload: str, text: str) -> None:
    value = decode_extension(1, bytes.fromhex(payload))
    assert isinstance(value, Decimal)
    assert str(value) == text


@pytest.mark.parametrize("payload", ["", "00", "00 00", "00 a5 5c", "c0 5c", "a0 5c", "00 55", "cd ff ff 5c"])
def test_bytes_that_are_no_decimal(payload: str) -> None:
    data = bytes.fromhex(payload)
    assert decode_extension(1, data) == OpaqueExtension(1, data)


@MANY
@given(st.decimals(allow_nan=False, allow_infinity=False).filter(lambda value: len(value.as_tuple().digits) <= 76))
def test_decimals_come_back_with_their_scale(value: Decimal) -> None:
    if abs(int(value.as_tuple().exponent)) <= 10_000:
        assert through(value).as_tuple() == value.as_tuple()  # type: ignore[union-attr]


@MANY
@given(st.uuids())
def test_uuids(value: UUID) -> None:
    assert through(value) == value


@MANY
@given(
    st.builds(
        Datetime,
        st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 999_999_999),
        st.integers(-720, 840),
        st.integers(0, 1000),
    )
)
def test_datetimes(value: Datetime) -> None:
    assert through(value) == value


PARTS = st.integers(-(2**31), 2**31)


@MANY
@given(st.builds(Interval, *[PARTS] * 8, st.sampled_from(["none", "last"])))
def test_intervals(value: Interval) -> None:
    assert through(value) == value


def test_interval_without_parts() -> None:
    """Tarantool leaves out what is zero, and so an adjustment of kind "excess", which is number 0."""
    assert decode_extension(6, b"\x00") == Interval(adjust="excess")
    assert decode_extension(6, bytes([1, 8, 1])) == Interval()


def test_errors() -> None:
    stack: tuple[dict[int, object], ...] = ({0: "ClientError", 3: "newest", 5: 7}, {3: "oldest"})
    assert through(ErrorValue(stack)) == ErrorValue(stack)


@pytest.mark.parametrize("code", [0, 5, 7, 8, 9, 127, -1, -128])
def test_unknown_extensions_stay_as_they_are(code: int) -> None:
    assert decode_extension(code, b"abc") == OpaqueExtension(code, b"abc")


@MANY
@given(code=st.integers(0, 10), data=st.binary(max_size=40))
def test_any_bytes_are_either_read_or_kept(code: int, data: bytes) -> None:
    value = decode_extension(code, data)
    assert not isinstance(value, OpaqueExtension) or value == OpaqueExtension(code, data)
