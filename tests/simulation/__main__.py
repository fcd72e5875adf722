"""python -m tests.simulation --seeds N [--first SEED]."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.simulation.world import run_seed


def main() -> int:
    """Run seeds; print the first failure's transcript."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=1)
    given = parser.parse_args()
    began = time.process_time()
    walked: Counter[str] = Counter()
    steps = seconds = events = lives = 0.0
    for seed in range(given.first, given.first + given.seeds):
        result = run_seed(seed)
        walked += result.walked
        steps, seconds = steps + result.step_count, seconds + result.seconds
        events, lives = events + result.event_count, lives + result.life_count
        if result.failure is not None:
            print("\n".join(result.trace))
            traceback.print_exception(result.failure)
            print(f"seed {seed} fails: {result.failure}")
            return 1
    took = time.process_time() - began
    print(
        f"{given.seeds} seeds, {steps:.0f} steps ({steps / took:.0f} a second), {lives:.0f} lives, {events:.0f} events, "
        f"{seconds / 3600:.2f} hours of simulated time, {took:.1f} s of CPU"
    )
    for what, count in sorted(walked.items()):
        print(f"{count:8} {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
