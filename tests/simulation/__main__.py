"""python -m tests.simulation: run seeds, print what was walked, and shrink what fails."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path

from tests.simulation.edges import all_edges
from tests.simulation.faults import Fault, Steering
from tests.simulation.shrinking import shrunk
from tests.simulation.world import Result, run_seed


def options() -> argparse.ArgumentParser:
    """What may be asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds")
    parser.add_argument("--first", type=int, default=1, help="the first one")
    parser.add_argument("--hours", type=float, help="end after so much time, whatever is left")
    parser.add_argument("--steer", action="store_true", help="draw the faults more often that lead where few seeds have been")
    parser.add_argument("--replay", help="one run, as a failure prints it")
    return parser


def main() -> int:
    """Run what was asked for; the status is 1 if a seed fails."""
    given = options().parse_args()
    if given.replay is not None:
        plan = json.loads(given.replay)
        result = run_seed(plan["seed"], faults=[Fault(**fault) for fault in plan["faults"]], rounds=plan["rounds"])
        print("\n".join(result.trace))
        print(result.failure or "it passes")
        return int(result.failure is not None)
    return _run(given.first, given.seeds, given.hours, is_steered=given.steer)


def _run(first: int, count: int, hours: float | None, *, is_steered: bool) -> int:
    began, cpu_began = time.monotonic(), time.process_time()
    steering = Steering()
    results, totals = 0, [0.0] * 4
    for seed in range(first, first + count):
        if hours is not None and time.monotonic() > began + hours * 3600:
            break
        result = run_seed(seed, weights=steering.weights() if is_steered else None)
        steering.learn(result.walked, [fault.kind for fault in result.faults])
        results += 1
        more = result.step_count, result.seconds, result.event_count, result.life_count
        totals = [total + one for total, one in zip(totals, more, strict=True)]
        if result.failure is not None:
            _tell(result)
            return 1
    took = time.process_time() - cpu_began
    steps, seconds, events, lives = totals
    print(
        f"{results} seeds: {lives:.0f} processes of the daemon, {events:.0f} events, {seconds / 3600:.2f} simulated hours, "
        f"{steps:.0f} steps, {steps / took:.0f} a second; {took:.0f} s of CPU, {time.monotonic() - began:.0f} s"
    )
    for what, times in sorted(steering.walked.items()):
        print(f"{times:8} {what}")
    for what in sorted(all_edges() - steering.walked.keys()):
        print(f"   never {what}")
    return 0


def _tell(failed: Result) -> None:
    """Print a failure, after looking for a shorter history of it."""
    print(f"seed {failed.seed} fails: {failed.failure}; looking for a shorter history", flush=True)
    least = shrunk(failed)
    print("\n".join(least.trace))
    traceback.print_exception(least.failure, file=sys.stdout)
    plan = {"seed": least.seed, "rounds": least.rounds, "faults": [asdict(fault) for fault in least.faults]}
    print(f"{len(failed.faults)} faults and {failed.rounds} rounds became {len(least.faults)} and {least.rounds}")
    print(f"python -m {Path(__file__).parent.parent.name}.simulation --replay '{json.dumps(plan)}'")


if __name__ == "__main__":
    sys.exit(main())
