"""Seeds of the simulation."""

from __future__ import annotations

from tests.simulation.world import run_seed

SEED_COUNT = 20


def test_seeds() -> None:
    for seed in range(1, SEED_COUNT + 1):
        result = run_seed(seed)
        assert result.failure is None, "\n".join([*result.trace, f"seed {seed}: {result.failure}"])


def test_a_seed_is_the_same_again() -> None:
    first, second = run_seed(7), run_seed(7)
    assert first.life_count > 1, "a seed with a kill shows more"
    assert (first.digest, first.step_count, first.trace) == (second.digest, second.step_count, second.trace)
