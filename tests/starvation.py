"""A test that fails while the machine doesn't run is run once more.

On a virtual machine the host may take the processors away for seconds or minutes, and sessions and deadlines of real servers run
on. What fails then says nothing of the code. So the time that was taken is measured beside the tests, and a failure is repeated
if, and only if, the machine was seen to stand still while the test ran. The end of the report names what was repeated and why,
and how much was taken in all. What fails in a second run has failed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from _pytest.runner import runtestprotocol
from _pytest.terminal import TerminalReporter

INTERVAL_SECONDS: Final = 1.0
LATE_SECONDS: Final = 3.0
"""A thread that wakes so much later than it wanted to says that nothing ran."""
WINDOW_SECONDS: Final = 10.0
STOLEN_SHARE: Final = 0.5
"""Of all processors' time, over such a window."""
RUNS_SHARE: Final = 0.1
"""With less than that stolen the machine runs again."""
PATIENCE_SECONDS: Final = 120.0
_KEPT: Final = 3600
_STAT: Final = Path("/proc/stat")
_PROPERTY: Final = "repeated"
_WATCH: Final = pytest.StashKey["Watch"]()
_IS_REPEATED: Final = pytest.StashKey[bool]()


@dataclass(frozen=True, slots=True)
class Sample:
    """An interval of the measurement. Seconds of the monotonic clock, and ticks of all processors."""

    began: float
    ended: float
    ticks: int
    stolen_ticks: int


def stood_still(samples: list[Sample]) -> str | None:
    """How the machine stood still in these intervals, which follow one another; None if it ran."""
    for sample in samples:
        late = sample.ended - sample.began - INTERVAL_SECONDS
        if late >= LATE_SECONDS:
            return f"nothing ran for {late:.1f} s"
    for sample in samples:
        window = [other for other in samples if sample.ended - WINDOW_SECONDS < other.ended <= sample.ended]
        seconds = sample.ended - window[0].began
        stolen = _share(window)
        if seconds >= WINDOW_SECONDS and stolen >= STOLEN_SHARE:
            return f"the host kept {stolen:.0%} of the processors' time for {seconds:.0f} s"
    return None


def _share(samples: list[Sample]) -> float:
    return sum(sample.stolen_ticks for sample in samples) / max(1, sum(sample.ticks for sample in samples))


class Watch:
    """Measures in a thread of its own, as long as the process lives."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=_KEPT)
        self._begun = _ticks()
        threading.Thread(target=self._measure, name="starvation", daemon=True).start()

    def since(self, began: float) -> list[Sample]:
        """The intervals that have ended since a moment of the monotonic clock."""
        return [sample for sample in list(self._samples) if sample.ended > began]

    def await_running(self) -> None:
        """Wait until the machine has run for a window's time, or for PATIENCE_SECONDS."""
        began = time.monotonic()
        while time.monotonic() < began + PATIENCE_SECONDS:
            time.sleep(INTERVAL_SECONDS)
            window = self.since(max(began, time.monotonic() - WINDOW_SECONDS))
            is_long = time.monotonic() >= began + WINDOW_SECONDS
            if is_long and stood_still(window) is None and _share(window) < RUNS_SHARE:
                return

    def share(self) -> float:
        """What the host has kept of the processors' time since the start."""
        ticks, stolen = _ticks()
        return (stolen - self._begun[1]) / max(1, ticks - self._begun[0])

    def _measure(self) -> None:
        began, (ticks, stolen) = time.monotonic(), self._begun
        while True:
            time.sleep(INTERVAL_SECONDS)
            ended, (ticks_now, stolen_now) = time.monotonic(), _ticks()
            self._samples.append(Sample(began, ended, ticks_now - ticks, stolen_now - stolen))
            began, ticks, stolen = ended, ticks_now, stolen_now


def _ticks() -> tuple[int, int]:
    """The processors' time in all, and what the host has kept of it; nothing where the system doesn't tell."""
    if not _STAT.exists():
        return 0, 0
    # user, nice, system, idle, iowait, irq, softirq, steal; what follows is counted in the first two already (proc(5)).
    times = [int(number) for number in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    return sum(times), times[7]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_WATCH] = Watch()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if item.stash.get(_IS_REPEATED, False):
        return None
    began = time.monotonic()
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if any(report.failed for report in reports):
        reason = stood_still(item.config.stash[_WATCH].since(began))
        if reason is not None:
            item.user_properties.append((_PROPERTY, reason))
            item.stash[_IS_REPEATED] = True
            _forget_failed_fixtures(item)
            # The time-out of the first run doesn't bound the second one, which has its own.
            item.ihook.pytest_timeout_cancel_timer(item=item)
            item.config.stash[_WATCH].await_running()
            item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
            return True
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _forget_failed_fixtures(item: pytest.Item) -> None:
    """pytest keeps what the setting up of a shared fixture raised, and would raise it again."""
    assert isinstance(item, pytest.Function)
    item._initrequest()
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        for definition in definitions:
            if definition.cached_result is not None and definition.cached_result[2] is not None:
                definition.finish(item._request)  # type: ignore[arg-type]  # it uses what all requests have


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    share = config.stash[_WATCH].share()
    if share >= 0.01:
        terminalreporter.write_line(f"the host kept {share:.0%} of the processors' time for others")
    repeated = {
        report.nodeid: value
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
        for name, value in report.user_properties
        if name == _PROPERTY
    }
    for nodeid, reason in repeated.items():
        terminalreporter.write_line(f"run twice, as the machine stood still the first time: {nodeid} ({reason})")
