"""Which values fit which types of a format."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from cdc.protocol.extensions import Datetime, Interval
from cdc.schema.fitting import fits
from cdc.schema.forms import Field, KeyPart, SpaceForm

VALUES: dict[str, Any] = {
    "positive": 1,
    "negative": -1,
    "double": 1.5,
    "decimal": Decimal(1),
    "string": "x",
    "boolean": True,
    "binary": b"x",
    "uuid": UUID(int=1),
    "datetime": Datetime(1, 0, 0),
    "interval": Interval(1),
    "array": [1],
    "map": {1: 2},
}


@pytest.mark.parametrize(
    ("kind", "fitting"),
    [
        ("unsigned", "positive"),
        ("integer", "positive negative"),
        ("number", "positive negative double decimal"),
        ("double", "double"),
        ("decimal", "decimal"),
        ("string", "string"),
        ("str", "string"),
        ("boolean", "boolean"),
        ("varbinary", "binary"),
        ("uuid", "uuid"),
        ("datetime", "datetime"),
        ("interval", "interval"),
        ("array", "array"),
        ("map", "map"),
        ("scalar", "positive negative double decimal string boolean binary uuid datetime"),
        ("any", " ".join(VALUES)),
        ("*", " ".join(VALUES)),
        ("of the future", " ".join(VALUES)),
    ],
)
def test_types(kind: str, fitting: str) -> None:
    form = SpaceForm(512, "s", (Field("f", kind, is_nullable=False),), (KeyPart(0, "", kind),))
    assert [name for name, value in VALUES.items() if fits(form, [value], (2, 6, 1))] == fitting.split()


@pytest.mark.parametrize(
    ("version", "integers_fit"), [((2, 6, 1), False), ((2, 11, 0), False), ((2, 11, 1), True), ((3, 0), True)]
)
def test_integers_in_a_field_of_doubles(version: tuple[int, ...], *, integers_fit: bool) -> None:
    form = SpaceForm(512, "s", (Field("f", "double", is_nullable=False),), (KeyPart(0, "", "unsigned"),))
    assert fits(form, [1], version) is fits(form, [-1], version) is integers_fit
    assert fits(form, [1.0], version)
    assert not fits(form, [Decimal(1)], version)


def test_nil_and_fields_that_lack() -> None:
    fields = (
        Field("id", "unsigned", is_nullable=False),
        Field("a", "any", is_nullable=False),
        Field("n", "string", is_nullable=True),
    )
    form = SpaceForm(512, "s", fields, (KeyPart(0, "", "unsigned"),))
    assert fits(form, [1, None], (3, 9))
    assert fits(form, [1, None, None, "more"], (3, 9))
    assert not fits(form, [1], (3, 9))
    assert not fits(form, [None, 1], (3, 9))
    assert not fits(form, [1, 1, 1], (3, 9))
    assert fits(SpaceForm(512, "s", (Field("f", "*", is_nullable=False),), form.key_parts), [None], (3, 9))
