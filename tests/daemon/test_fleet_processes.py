"""Which of a fleet's processes run: what is started again and when, what ends the fleet, and with which sentence."""

from __future__ import annotations

import signal

import pytest

from cdc.daemon.fleet_processes import DELAY_MAX_SECONDS, STEADY_SECONDS, Failure, FleetProcesses, Measure, Phase

WRONG = Failure("kafka.topic_prefix belongs to another", is_configuration=True, needs_operator=True)
MISSING = Failure("there is no state store", needs_operator=True)
AWAY = Failure("Kafka doesn't answer")


def running(*, until_caught_up: bool = False, watchdog_seconds: float | None = None) -> FleetProcesses:
    """Two, just started."""
    processes = FleetProcesses(["s1", "s2"], until_caught_up=until_caught_up, watchdog_seconds=watchdog_seconds)
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


@pytest.mark.parametrize("status", [-signal.SIGTERM, -signal.SIGINT, 130])
def test_stop_of_one_that_is_being_loaded(status: int) -> None:
    """A terminal's Ctrl-C goes to all processes."""
    processes = running()
    processes.stop()
    for name in processes.running:
        processes.ended(name, status, None, 1)
    assert processes.is_over()
    assert list(processes.problems()) == []


def test_one_that_is_stopped_by_others_starts_again() -> None:
    """An operator, or what guards the machine's memory, has sent SIGTERM to one process. No status 0 is a goal here."""
    processes = running()
    delay = processes.ended("s1", 0, None, 1)
    assert delay is not None
    assert processes.shards["s1"].error is not None
    assert "SIGTERM" in processes.shards["s1"].error
    assert processes.due(1 + delay) == ["s1"]


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


def looked(processes: FleetProcesses, begin: int, seconds: int, *well: str) -> list[tuple[int, str, Measure]]:
    """What is to be done in so many seconds, in each of which these daemons tell that they are well."""
    found = []
    for now in range(begin, begin + seconds):
        for name in well:
            processes.heard(name, None)
        found += [(now, *each) for each in processes.look(now)]
    return found


def test_one_that_is_frozen_is_killed_and_starts_again() -> None:
    processes = running(watchdog_seconds=60)
    assert looked(processes, 0, 1000, "s1", "s2") == []
    assert looked(processes, 1000, 70, "s2") == [(1003, "s1", Measure.TELL), (1058, "s1", Measure.KILL)]
    delay = processes.ended("s1", -9, None, 1070)
    assert delay is not None
    assert processes.shards["s1"].error == "it was killed by the fleet's watchdog, as it had answered nothing for 71 s"
    processes.started("s1", 1071)
    assert looked(processes, 1071, 3, "s2") == [], "the former one's silence isn't its own"
    processes.heard("s1", None)
    processes.ended("s1", -9, None, 1080)
    assert processes.shards["s1"].error == "it was killed by signal 9", "by another"


def test_one_that_says_itself_that_it_cannot_go_on() -> None:
    processes = running(watchdog_seconds=60)
    found = []
    for now in range(100):
        processes.heard("s1", "its thread is stuck")
        processes.heard("s2", None)
        found += [(now, *each) for each in processes.look(now)]
    assert found == [(5, "s1", Measure.TELL), (60, "s1", Measure.KILL)]
    processes.ended("s1", -9, None, 100)
    assert str(processes.shards["s1"].error).endswith("answered nothing for 99 s: its thread is stuck")


def test_one_that_goes_on_in_time() -> None:
    processes = running(watchdog_seconds=60)
    assert looked(processes, 0, 59, "s2") == [(5, "s1", Measure.TELL)]
    assert looked(processes, 59, 20, "s1", "s2") == []
    assert looked(processes, 79, 10, "s2") == [(82, "s1", Measure.TELL)], "a new silence is told anew"


def test_a_machine_that_was_suspended() -> None:
    """The daemons didn't run either: nobody is killed for that time."""
    processes = running(watchdog_seconds=60)
    looked(processes, 0, 10, "s1", "s2")
    assert processes.look(5000) == []
    assert looked(processes, 5001, 20, "s1", "s2") == []


def test_without_a_watchdog() -> None:
    processes = running()
    assert [what for *_, what in looked(processes, 0, 5000, "s2")] == [Measure.TELL]


def test_one_that_is_frozen_while_the_fleet_stops() -> None:
    """SIGTERM doesn't reach it: without the watchdog, the fleet's process would never end."""
    processes = running(watchdog_seconds=60)
    looked(processes, 0, 1, "s1", "s2")
    processes.stop()
    processes.ended("s2", 0, None, 1)
    assert [what for *_, what in looked(processes, 1, 60)] == [Measure.TELL, Measure.KILL]
    processes.ended("s1", -9, None, 61)
    assert [name for name, _ in processes.problems()] == ["s1"]


def test_one_that_ends_slowly_is_no_failure_if_it_is_asked_where_its_threads_are() -> None:
    """An interpreter that ends heeds no signal any more, and takes some seconds where much else runs."""
    processes = running(watchdog_seconds=60)
    looked(processes, 0, 1, "s1", "s2")
    processes.stop()
    processes.ended("s2", 0, None, 1)
    assert [what for *_, what in looked(processes, 1, 7)] == [Measure.TELL]
    processes.ended("s1", -signal.SIGUSR2, None, 7)
    assert processes.is_over()
    assert not [*processes.problems()]
