"""Positions as vectors: reading, writing, and the order between them, which is not a total one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import ProtocolError
from cdc.positions.vclock import VClock
from tests.fakes.profiles import MANY

COMPONENTS = st.dictionaries(st.integers(0, 31), st.integers(0, 2**64 - 1), max_size=5)
VCLOCKS = COMPONENTS.map(VClock)
ORIGINS = st.integers(1, 31)


@MANY
@given(VCLOCKS)
def test_every_form_is_read_back(vclock: VClock) -> None:
    assert VClock.parse(str(vclock)) == vclock
    assert VClock.from_json(vclock.to_json()) == vclock
    assert VClock.from_wire(dict(vclock)) == vclock
    assert repr(vclock) == f"VClock({vclock})"


@MANY
@given(COMPONENTS)
def test_own_changes_and_zeros_mean_nothing(components: dict[int, int]) -> None:
    vclock = VClock(components)
    told = {origin: lsn for origin, lsn in components.items() if origin and lsn}
    assert dict(vclock) == told
    assert list(vclock) == sorted(told)
    assert len(vclock) == len(told)
    assert 0 not in vclock
    assert vclock == VClock(told)
    assert hash(vclock) == hash(VClock(told))
    assert all(vclock[origin] == told.get(origin, 0) for origin in range(40))


@pytest.mark.parametrize(
    ("text", "components"),
    [
        ("{}", {}),
        ("{ }", {}),
        ("{1: 42}", {1: 42}),
        (" {1: 42, 2: 7}\n", {1: 42, 2: 7}),
        ("{2:7,1:42}", {1: 42, 2: 7}),
        ("{0: 5, 1: 0}", {}),
    ],
)
def test_parse(text: str, components: dict[int, int]) -> None:
    assert VClock.parse(text) == VClock(components)


@pytest.mark.parametrize(
    "text", ["", "1: 42", "{1: }", "{1: 42,}", "{1: 42 2: 7}", "{a: 1}", "{1: -1}", "{32: 1}", "{1:1}}", "[1]"]
)
def test_parse_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"vclock"):
        VClock.parse(text)


@pytest.mark.parametrize(
    "value", [None, [], 5, "{1: 2}", {1: "2"}, {"1": 2}, {1: 2.0}, {1: True}, {True: 1}, {1: -1}, {-1: 1}, {32: 1}]
)
def test_the_wire_is_not_trusted(value: object) -> None:
    with pytest.raises(ProtocolError, match="vclock"):
        VClock.from_wire(value)


@MANY
@given(VCLOCKS, VCLOCKS)
def test_covers_is_a_partial_order(one: VClock, other: VClock) -> None:
    assert one.covers(one)
    assert one.covers(VClock())
    assert (one.covers(other) and other.covers(one)) == (one == other)
    assert one.covers(other) == all(one[origin] >= other[origin] for origin in range(32))


@MANY
@given(VCLOCKS, VCLOCKS, VCLOCKS)
def test_covers_is_transitive(one: VClock, other: VClock, third: VClock) -> None:
    assert not (one.covers(other) and other.covers(third)) or one.covers(third)


@MANY
@given(VCLOCKS, VCLOCKS)
def test_lacking_is_what_covers_misses(one: VClock, other: VClock) -> None:
    lacking = one.lacking(other)
    assert (not lacking) == one.covers(other)
    for origin, (own, theirs) in lacking.items():
        assert (own, theirs) == (one[origin], other[origin])
        assert own < theirs
    grown = one
    for origin, (_, theirs) in lacking.items():
        grown = VClock({**grown, origin: theirs})
    assert grown.covers(other)


@pytest.mark.parametrize(("origin", "lsn"), [(32, 1), (-1, 1), (1, -1)])
def test_out_of_range(origin: int, lsn: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        VClock({origin: lsn})


def test_other_types_are_never_equal() -> None:
    assert VClock({1: 2}) != {1: 2}
    assert VClock() != 0
