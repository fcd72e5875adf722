"""Seeds of the simulation."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.simulation.edges import all_edges
from tests.simulation.faults import KINDS, Fault, Steering
from tests.simulation.shrinking import shrunk
from tests.simulation.slips import SLIPS
from tests.simulation.world import run_seed

PARTS: Final = 8
"""Tests that share the seeds, so that several processes do."""
SEEDS: Final = 200


def run(first: int, count: int) -> Steering:
    """Run seeds; none may fail."""
    steering = Steering()
    for seed in range(first, first + count):
        result = run_seed(seed)
        assert result.failure is None, "\n".join([*result.trace, f"seed {seed}: {result.failure}"])
        steering.learn(result.walked, [fault.kind for fault in result.faults])
    return steering


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds(part: int, seed: int, pytestconfig: pytest.Config) -> None:
    """Of fewer than all, other ones in each run."""
    own, count = SEEDS // PARTS, pytestconfig.getoption("seeds") // PARTS
    run(1 + part * own + seed % (own // count) * count, count)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_ten_thousand_seeds() -> None:
    walked = run(1, 10_000).walked
    assert all(walked[f"fault: {kind}"] > 100 for kind in KINDS)
    assert len(all_edges() & walked.keys()) > 0.7 * len(all_edges())


def test_a_seed_is_the_same_again() -> None:
    faults = [Fault(0.3, "kill", 0.1), Fault(0.5, "answers lost", 1.0), Fault(0.8, "power off", 0.1)]
    first, second = (run_seed(7, faults=faults, rounds=40) for _ in range(2))
    assert first.life_count == 3
    assert (first.digest, first.step_count, first.trace) == (second.digest, second.step_count, second.trace)


def test_a_seed_is_played_again_by_its_plan() -> None:
    first = next(result for seed in range(1, 50) if len((result := run_seed(seed)).faults) > 2)
    second = run_seed(first.seed, faults=list(first.faults), rounds=first.rounds)
    assert (first.digest, first.step_count, first.trace) == (second.digest, second.step_count, second.trace)


def test_a_failure_is_shrunk() -> None:
    slip = next(slip for slip in SLIPS if slip.name == "an ACK too early")
    faults = [Fault(0.3, "network slow", 0.1), Fault(0.5, "clock jumps", 1.0)]
    with slip.put_in():
        failed = run_seed(8, faults=faults, rounds=20)
        least = shrunk(failed)
    assert failed.failure is not None
    assert least.failure is not None
    assert not least.faults
    assert least.rounds < failed.rounds


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_passes_alone(kind: str) -> None:
    result = run_seed(11, faults=[Fault(0.4, kind, 0.7)], rounds=30)
    assert result.failure is None, "\n".join([*result.trace, str(result.failure)])
    assert result.walked[f"fault: {kind}"] == 1


def test_a_take_over_without_transactions_awaits_the_end_of_the_former_daemon() -> None:
    faults = [Fault(2.6, "messages slow", 20.0), Fault(2.8, "take-over", 1.0)]
    result = run_seed(3, lambda world: world.deliver(is_exact=False), faults=faults, rounds=30)
    assert result.failure is None, "\n".join([*result.trace, str(result.failure)])
    lines = "\n".join(result.trace)
    assert lines.index("waiting until the daemon that had") < lines.index("ends: ") < lines.rindex("chosen name=shop")


def test_a_take_over_whose_claim_is_not_readable_yet_is_not_undone() -> None:
    faults = [Fault(0.899, "markers left out", 15.0), Fault(0.939, "take-over", 1.0), Fault(1.481, "kafka away", 13.0)]
    result = run_seed(26, lambda world: setattr(world, "pair", None), faults=faults, rounds=10)
    lines = "\n".join(result.trace)
    assert result.failure is None, f"{lines}\n{result.failure}"
    assert "daemon 1/main            ends: another daemon" in lines


def test_a_take_over_that_begins_again_awaits_it_too() -> None:
    faults = [Fault(0.6, "messages slow", 20.0), Fault(0.8, "take-over", 1.0), Fault(1.2, "kill", 0.1)]
    result = run_seed(7, lambda world: world.deliver(is_exact=False), faults=faults, rounds=60)
    assert result.failure is None, "\n".join([*result.trace, str(result.failure)])
    assert result.life_count == 3


def _faults(*faults: tuple[float, str, float]) -> dict[str, Any]:
    return {"faults": [Fault(*one) for one in faults]}


FOUND: Final[dict[str, tuple[int, int, dict[str, Any]]]] = {
    "a position before what waits": (304267, 16, _faults((0.4744, "history rewritten", 0.0006), (0.8512, "disk full", 8.1498))),
    "a row seen again": (84, 19, _faults((0.1053, "history rewritten", 0.1648), (0.6383, "history rewritten", 13.5484))),
    "two standbys started at once": (36, 40, _faults()),
    "two standbys without a store": (2441, 12, _faults((0.2431, "disk full", 9.7425))),
    "a standby's disk that was full": (2564, 16, _faults((0.4977, "disk full", 0.4436))),
    "records of a commit that hangs": (
        502066,
        10,
        _faults(
            (0.0939, "snapshot requested", 0.0157),
            (0.3237, "markers left out", 7.6229),
            (1.6492, "take-over begins again", 1.6419),
        ),
    ),
    "a space left out once the store is behind": (
        702416,
        5,
        _faults((0.2398, "kill", 5.8601), (0.4437, "spaces left out", 13.3573)),
    ),
    "a machine that stops soon after its daemon's start": (74, 10, _faults((0.2775, "power off", 4.5388))),
    "an empty standby, and an old checkpoint": (
        501,
        5,
        _faults((0.1639, "kafka away", 5.93), (0.7144, "configuration changed", 0.2)),
    ),
    "a position put back where leaders move": (
        2072,
        1,
        _faults((0.2668, "leaders move", 11.5336), (0.7789, "position put back", 3.5727)),
    ),
}
"""Seeds, rounds and faults that have found something wrong in the product, and failed before it was mended."""


def test_what_was_sent_over_a_connection_that_is_over_may_come_last() -> None:
    faults = [Fault(0.1637, "network slow", 0.195), Fault(0.3037, "connections live on", 0.0256)]
    result = run_seed(4584, faults=faults, rounds=5)
    assert result.failure is None, "\n".join([*result.trace, str(result.failure)])


@pytest.mark.parametrize(
    ("seed", "rounds", "faults"),
    [
        (6886, 29, [Fault(0.5917, "spaces left out", 6.3963)]),
        (
            1203374,
            40,
            [
                *(Fault(0.22, "messages slow", 0.2566), Fault(0.5575, "kill", 2.7764), Fault(0.8557, "spaces left out", 0.2485)),
                *(Fault(1.2038, "member away", 3.5438), Fault(1.2334, "network slow", 0.6332), Fault(1.4017, "kill", 0.0482)),
                Fault(1.5343, "disk full", 4.3396),
            ],
        ),
    ],
)
def test_a_space_that_was_left_out_may_be_another_one_when_a_snapshot_publishes_it(
    seed: int, rounds: int, faults: list[Fault]
) -> None:
    """Also where the rows of one partition are read before those of another that were sent before them."""
    result = run_seed(seed, faults=faults, rounds=rounds)
    assert result.failure is None, "\n".join([*result.trace, str(result.failure)])


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_stays_mended(name: str) -> None:
    seed, rounds, faults = FOUND[name]
    result = run_seed(seed, rounds=rounds, **faults)
    assert result.failure is None, "\n".join([*result.trace, f"seed {seed}: {result.failure}"])
