"""Which values fit which types of a format, by the tables of each version of the server."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from cdc.errors import ConfigurationError
from cdc.protocol.extensions import Datetime, Interval, OpaqueExtension, pack
from cdc.schema.fitting import FIELD_TYPES, Fitting, check_types
from cdc.schema.forms import Field, KeyPart, SpaceForm

VALUES: dict[str, bytes] = {
    "unsigned": pack(1),
    "signed": pack(-1),
    "signed 1": b"\xd0\x01",
    "float": b"\xca" + struct.pack(">f", 1.5),
    "double": pack(1.5),
    "decimal": pack(Decimal(1)),
    "string": pack("x"),
    "boolean": pack(True),
    "binary": pack(b"x"),
    "uuid": pack(UUID(int=1)),
    "datetime": pack(Datetime(1, 0, 0)),
    "interval": pack(Interval(1)),
    "error": pack(OpaqueExtension(3, b"\x80")),
    "array": pack([1]),
    "map": pack({1: 2}),
}
INTEGERS = "unsigned signed signed_1"
NUMBERS = f"{INTEGERS} float double decimal"
OLD_SCALARS = f"{NUMBERS} string boolean binary"
ALL = " ".join(name.replace(" ", "_") for name in VALUES)

# field_mp_type and field_ext_type of src/box/field_def.c, from 2.6.0 on: type, versions from and before, values that fit.
TABLE: list[tuple[str, str, str, str]] = [
    ("any", "2.6.0", "", ALL),
    ("unsigned", "2.6.0", "", "unsigned"),
    ("string", "2.6.0", "", "string"),
    ("number", "2.6.0", "", NUMBERS),
    ("double", "2.6.0", "2.11.1", "double"),
    ("double", "2.11.1", "", f"{INTEGERS} float double"),
    ("integer", "2.6.0", "", INTEGERS),
    ("boolean", "2.6.0", "", "boolean"),
    ("varbinary", "2.6.0", "", "binary"),
    ("scalar", "2.6.0", "2.10.0", OLD_SCALARS),
    ("scalar", "2.10.0", "", f"{OLD_SCALARS} uuid datetime"),
    ("decimal", "2.6.0", "", "decimal"),
    ("uuid", "2.6.0", "", "uuid"),
    ("array", "2.6.0", "", "array"),
    ("map", "2.6.0", "", "map"),
    ("datetime", "2.10.0", "", "datetime"),
    ("interval", "2.10.0", "", "interval"),
    *[(f"int{bits}", "3.1.0", "", INTEGERS) for bits in (8, 16, 32, 64)],
    *[(f"uint{bits}", "3.1.0", "", "unsigned") for bits in (8, 16, 32, 64)],
    ("float32", "3.1.0", "", "float"),
    ("float64", "3.1.0", "", "double"),
    *[(f"decimal{bits}", "3.5.0", "", "decimal") for bits in (32, 64, 128, 256)],
]
VERSIONS = ["2.6.0", "2.6.1", "2.8.4", "2.10.0", "2.11.0", "2.11.1", "2.11.9", "3.0.0", "3.1.0", "3.4.2", "3.5.0", "3.8.0"]


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def fits(field: Field, value: bytes, version: str = "3.8.0") -> bool:
    form = SpaceForm(512, "s", (field,), (KeyPart(0, "", "unsigned"),))
    return Fitting(form, number(version)).fits(b"\x91" + value)


@pytest.mark.parametrize(("kind", "since", "before", "fitting"), TABLE)
def test_types(kind: str, since: str, before: str, fitting: str) -> None:
    for version in VERSIONS:
        if number(since) <= number(version) and (not before or number(version) < number(before)):
            found = [name for name, value in VALUES.items() if fits(Field("f", kind, is_nullable=False, scale=0), value, version)]
            assert found == [name.replace("_", " ") for name in fitting.split()], version


def test_each_type_is_in_the_table() -> None:
    assert {kind for kind, *_ in TABLE} == FIELD_TYPES


# Ranges: field_type_min_value, field_type_max_value.


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_sized_integers(bits: int) -> None:
    signed, unsigned = Field("f", f"int{bits}", is_nullable=False), Field("f", f"uint{bits}", is_nullable=False)
    half, whole = 1 << bits - 1, 1 << bits
    assert fits(signed, pack(half - 1))
    assert fits(signed, pack(-half))
    assert fits(unsigned, pack(whole - 1))
    assert fits(unsigned, pack(0))
    assert not fits(unsigned, pack(-1))
    assert not fits(signed, pack(half))
    assert bits == 64 or not fits(signed, pack(-half - 1))
    assert bits == 64 or not fits(unsigned, pack(whole))


# decimal_fits_fixed_point: digits in all (field_type_decimal_precision), of which `scale` stand after the point.


@pytest.mark.parametrize(("bits", "digits"), [(32, 9), (64, 18), (128, 38), (256, 76)])
def test_sized_decimals(bits: int, digits: int) -> None:
    for scale in (0, 2, digits, -3, digits + 2):
        field = Field("f", f"decimal{bits}", is_nullable=False, scale=scale)
        nines = "9" * digits
        for text, expected in (
            (f"{nines}E{-scale}", True),
            (f"-{nines}E{-scale}", True),
            (f"1{nines}E{-scale}", False),
            (f"1E{digits - scale}", False),
            (f"1E{digits - 1 - scale}", True),
            (f"1E{-scale}", True),
            (f"1E{-scale - 1}", False),
            (f"10E{-scale - 1}", True),  # zeroes behind the last digit don't count
            ("0", True),
            ("0.00000000", True),
        ):
            assert fits(field, pack(Decimal(text))) is expected, (scale, text)


def test_bytes_that_are_no_decimal() -> None:
    assert not fits(Field("f", "decimal32", is_nullable=False, scale=0), pack(OpaqueExtension(1, b"")))


# Lengths and nil.


def test_nil_and_fields_that_lack() -> None:
    fields = (
        Field("id", "unsigned", is_nullable=False),
        Field("a", "any", is_nullable=False),
        Field("n", "string", is_nullable=True),
    )
    form = SpaceForm(512, "s", fields, (KeyPart(0, "", "unsigned"),))

    def fitting(form: SpaceForm, values: list[Any], version: str = "3.8.0") -> bool:
        return Fitting(form, number(version)).fits(pack(values))

    assert fitting(form, [1, None])
    assert fitting(form, [1, None, None, "more"])
    assert not fitting(form, [1])
    assert not fitting(form, [None, 1])
    assert not fitting(form, [1, 1, 1])
    # A default allows nil, from 3.0 on, and no missing field.
    default = SpaceForm(512, "s", (*fields[:1], Field("d", "string", is_nullable=False, has_default=True)), form.key_parts)
    assert fitting(default, [1, None])
    assert not fitting(default, [1])
    assert not fitting(default, [1, 2])
    assert not fitting(default, [1, None], "2.11.9")
    # The number of fields that the space requires.
    counted = SpaceForm(512, "s", fields[:1], form.key_parts, field_count=2)
    assert fitting(counted, [1, 2])
    assert not fitting(counted, [1])
    assert not fitting(counted, [1, 2, 3])


def test_a_type_of_the_future_is_refused() -> None:
    form = SpaceForm(512, "s", (Field("at", "instant", is_nullable=True),), (KeyPart(0, "", "unsigned"),))
    with pytest.raises(ConfigurationError, match=r"the field 'at' of space 's' .* is of type 'instant'") as raised:
        check_types(form)
    assert "spaces.exclude" in raised.value.hint
    with pytest.raises(ConfigurationError):
        Fitting(form, (3, 9))
