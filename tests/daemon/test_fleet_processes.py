"""Which of a fleet's processes run: what is started again and when, what ends the fleet, and with which sentence."""

from __future__ import annotations

import pytest

from cdc.daemon.fleet_processes import DELAY_MAX_SECONDS, STEADY_SECONDS, Failure, FleetProcesses, Phase

WRONG = Failure("kafka.topic_prefix belongs to another", is_configuration=True, needs_operator=True)
MISSING = Failure("there is no state store", needs_operator=True)
AWAY = Failure("Kafka doesn't answer")


def running(*, until_caught_up: bool = False) -> FleetProcesses:
    """Two, just started."""
    processes = FleetProcesses(["s1", "s2"], until_caught_up=until_caught_up)
    for name in processes.due(0):
        processes.started(name, 0)
    assert processes.running == ["s1", "s2"]
    return processes


def test_one_that_is_killed_starts_again_and_the_other_goes_on() -> None:
    processes = running()
    delay = processes.ended("s1", -9, None, 10)
    assert delay is not None
    assert processes.shards["s1"].error == "it was killed by signal 9"
    assert processes.running == ["s2"]
    assert processes.due(10) == []
    assert processes.wait_seconds(10) == delay
    assert processes.due(10 + delay) == ["s1"]
    processes.started("s1", 10 + delay)
    assert (processes.shards["s1"].restarts, processes.shards["s2"].restarts) == (1, 0)
    assert processes.wait_seconds(11) is None
    assert not processes.is_over()


@pytest.mark.parametrize("failure", [None, MISSING, AWAY], ids=["crash", "operator", "passes"])
def test_back_off(failure: Failure | None) -> None:
    processes, now = running(), 0.0
    delays = []
    for _ in range(10):
        now += 1
        delay = processes.ended("s1", 1, failure, now)
        assert delay is not None
        delays.append(delay)
        now += delay
        processes.started("s1", now)
    assert delays == sorted(delays)
    assert delays[0] < 1
    assert delays[-1] == DELAY_MAX_SECONDS
    now += STEADY_SECONDS
    assert processes.ended("s1", 1, failure, now) == delays[0]


@pytest.mark.parametrize(("failure", "until_caught_up"), [(WRONG, False), (WRONG, True), (MISSING, True)])
def test_what_ends_all(failure: Failure, until_caught_up: bool) -> None:
    processes = running(until_caught_up=until_caught_up)
    assert processes.ended("s2", 1, failure, 1) is None
    assert processes.is_stopping
    assert not processes.is_over()
    assert processes.ended("s1", 0, None, 2) is None
    assert processes.is_over()
    assert list(processes.problems()) == [("s2", failure.sentence)]
    assert processes.due(1000) == []


def test_all_have_caught_up() -> None:
    processes = running(until_caught_up=True)
    processes.ended("s1", 0, None, 1)
    assert not processes.is_over()
    delay = processes.ended("s2", -9, None, 2)
    assert delay is not None
    assert not processes.is_over()
    processes.started("s2", 2 + delay)
    processes.ended("s2", 0, None, 9)
    assert processes.is_over()
    assert list(processes.problems()) == []
    assert {shard.phase for shard in processes.shards.values()} == {Phase.DONE}


def test_stop() -> None:
    """What ends badly while the fleet stops is told, and not started again; one in its back-off isn't started any more."""
    processes = running()
    processes.ended("s1", -9, None, 1)
    processes.stop()
    assert processes.due(1000) == []
    assert processes.wait_seconds(1) is None
    assert not processes.is_over()
    processes.ended("s2", 1, AWAY, 2)
    assert processes.is_over()
    assert list(processes.problems()) == [("s2", AWAY.sentence)]


def test_stop_of_one_that_is_being_loaded() -> None:
    processes = running()
    processes.stop()
    for name in processes.running:
        processes.ended(name, -15, None, 1)
    assert processes.is_over()
    assert list(processes.problems()) == []


def test_one_that_has_caught_up_is_needed_again() -> None:
    """Rows of a bucket wait in the other for what has come to its server since."""
    processes = running(until_caught_up=True)
    processes.ended("s1", 0, None, 1)
    assert processes.due(1) == []
    processes.need("s1", 2)
    processes.need("s2", 2)
    processes.need("s3", 2)
    assert processes.due(2) == ["s1"]
    assert not processes.is_over()
    processes.started("s1", 2)
    for name in ("s1", "s2"):
        processes.ended(name, 0, None, 3)
    assert processes.is_over()
    on = running()
    on.stop()
    on.ended("s1", 0, None, 1)
    on.need("s1", 2)
    assert on.due(2) == []
