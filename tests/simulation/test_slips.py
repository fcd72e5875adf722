"""Each deliberate bug is found."""

from __future__ import annotations

import pytest

from tests.simulation.slips import SLIPS, Slip, seeds_until_found

GROUPS = 5
"""A run tries this many of the bugs: they show that the world sees what it is to see, and say nothing of the product."""


@pytest.mark.parametrize(
    "slip",
    [
        pytest.param(slip, id=slip.name, marks=pytest.mark.one_of_these(f"bug {number % GROUPS}"))
        for number, slip in enumerate(SLIPS)
    ],
)
def test_a_bug_is_found(slip: Slip) -> None:
    found = seeds_until_found(slip)
    assert found is not None, f"{slip.name} isn't found within {slip.seed_count} seeds"
    print(f"{slip.name}: {found[0]} seeds, {found[1]}")
