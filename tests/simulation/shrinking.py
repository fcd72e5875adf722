"""A shorter history of the same failure: fewer faults, then fewer rounds of work."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.faults import Fault
from tests.simulation.world import Result, run_seed


def shrunk(failed: Result, runs_max: int = 100) -> Result:
    """Return the shortest failing run that was found within so many runs."""
    best, left = failed, runs_max

    def fails(faults: Sequence[Fault], rounds: int) -> bool:
        nonlocal best, left
        if not left or rounds < 1:
            return False
        left -= 1
        result = run_seed(failed.seed, faults=list(faults), rounds=rounds)
        if result.failure is None or type(result.failure) is not type(failed.failure):
            return False
        best = result
        return True

    while fails(best.faults, best.rounds // 2):
        pass
    is_shorter = True
    while is_shorter:
        is_shorter = any(
            fails([*best.faults[:place], *best.faults[place + 1 :]], best.rounds) for place in range(len(best.faults))
        )
    while fails(best.faults, best.rounds - 1):
        pass
    return best
