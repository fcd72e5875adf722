"""Keys that a job builds from rows are those that the daemon builds from tuples."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.events.row_encoder import RowEncoder
from cdc.protocol.extensions import Datetime
from cdc.schema.forms import Field, KeyPart, SpaceForm
from spark_jobs.contract import json_text
from spark_jobs.contract.forms import Field as FormField
from spark_jobs.contract.forms import Form
from spark_jobs.contract.patch import key_of

DECIMALS = st.decimals(-100, 100, places=2) | st.decimals(allow_nan=False, allow_infinity=False)
DOUBLES = st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0, 10.0, 1e23, 2.0**63, 2.0**64, -(2.0**63), 1e-7])
INTEGERS = st.integers(-(2**63), 2**64 - 1)
DATETIMES = st.builds(
    Datetime, st.integers(-(2**40), 2**40) | st.integers(-3, 3), st.sampled_from([0, 5]), st.integers(-720, 840)
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "unsigned": st.integers(0, 2**64 - 1),
    "number": DECIMALS | DOUBLES | INTEGERS,
    "double": DOUBLES,
    "decimal": DECIMALS,
    "datetime": DATETIMES,
    "string": st.text(max_size=3),
    "any": DOUBLES | INTEGERS | st.booleans(),
}


@pytest.mark.parametrize("kind", sorted(VALUES))
@pytest.mark.parametrize("path", ["", "in"])
@pytest.mark.parametrize("is_as_written", [False, True])
@given(data=st.data())
def test_a_key_from_a_row_is_the_daemons(kind: str, path: str, is_as_written: bool, data: st.DataObject) -> None:
    value = data.draw(VALUES[kind] if not path else VALUES["any"])
    is_as_written = is_as_written and kind in ("number", "double", "decimal", "datetime") and not path
    if is_as_written and isinstance(value, Decimal):
        value = Decimal(format(value, "f"))  # a row doesn't tell 1E+2 from 100
    part = KeyPart(0, path, "number" if path or kind == "any" else kind, is_as_written=is_as_written)
    if isinstance(value, bool):
        part = KeyPart(0, path, "scalar")
    tuple_ = [{"in": value} if path else value]
    encoder = RowEncoder(SpaceForm(513, "things", (Field("id", "map" if path else kind, is_nullable=False),), (part,)))
    form = Form(
        "things",
        513,
        1,
        0,
        ("id.in" if path else "id",),
        (FormField("id", "map" if path else kind),),
        as_written=("id",) if is_as_written else (),
    )
    row = list(json_text.parse(encoder.rows[1](tuple_).decode()).values())
    built = key_of(row, form)
    assert built is not None
    assert json_text.render(built).encode() == encoder.key_of(tuple_)


def test_what_a_row_does_not_tell() -> None:
    form = Form("things", 513, 1, 0, ("id", "field_2"), (FormField("id", "scalar"),))
    assert key_of(["10.00", "1.0"], form) == {"id": "10.00", "field_2": "1.0"}
    assert json.dumps(key_of([10.0, -0.0], form)) == '{"id": 10, "field_2": 0}'
