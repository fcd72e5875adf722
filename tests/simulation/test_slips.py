"""Each deliberate bug is found."""

from __future__ import annotations

import pytest

from tests.simulation.slips import SLIPS, Slip, seeds_until_found


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip.name)
def test_a_bug_is_found(slip: Slip) -> None:
    found = seeds_until_found(slip)
    assert found is not None, f"{slip.name} isn't found within {slip.seed_count} seeds"
    print(f"{slip.name}: {found[0]} seeds, {found[1]}")
