"""What was measured decides, whether a failure is repeated; and a repetition is told, and may fail as well."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.starvation import INTERVAL_SECONDS, Sample, Watch, stood_still

pytest_plugins = ["pytester"]

_TICKS = 200
"""Of two processors in a second."""


def _samples(*stolen: int) -> list[Sample]:
    return [Sample(second, second + 1.0, _TICKS, ticks) for second, ticks in zip(itertools.count(), stolen, strict=False)]


def test_a_machine_that_runs() -> None:
    assert stood_still([]) is None
    assert stood_still(_samples(*[0] * 60)) is None
    assert stood_still(_samples(*[200] * 4, *[0] * 60, *[200] * 4)) is None, "some seconds are no matter"
    assert stood_still(_samples(*[99] * 60)) is None


def test_processors_that_the_host_keeps() -> None:
    seconds = _samples(*[0] * 30, *[110] * 10, *[0] * 30)
    assert stood_still(seconds) == "the host kept 55% of the processors' time for 10 s"


def test_a_machine_that_was_stopped() -> None:
    """It has no ticks of that time."""
    before, after = _samples(0, 0)
    stopped = Sample(1.0, 13.5 + INTERVAL_SECONDS, _TICKS, 0)
    assert stood_still([before, stopped, after]) == "nothing ran for 12.5 s"


def test_the_processors_are_measured() -> None:
    assert 0 <= Watch().share() < 1


FAILS_ONCE = """
    import pytest

    @pytest.fixture(scope="session", params=["first"])
    def runs(request):
        return []

    @pytest.fixture(scope="module")
    def server(runs):
        runs.append("server")
        assert runs != ["server"], "it isn't up"

    def test_setup(server):
        pass

    def test_once(runs):
        runs.append("test")
        assert runs.count("test") == 2

    def test_always():
        assert False, "each time"
"""
PLUGIN = """
    from tests import starvation

    starvation.stood_still = lambda samples: {reason!r}
    starvation.PATIENCE_SECONDS = 1.0

    def pytest_configure(config):
        config.pluginmanager.register(starvation)
"""


@pytest.fixture(autouse=True)
def tests_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


def test_a_failure_is_repeated_where_the_machine_stood_still(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(PLUGIN.format(reason="nothing ran for 12.5 s"))
    pytester.makepyfile(FAILS_ONCE)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["run twice, as the machine stood still the first time: *test_once* (nothing ran for 12.5 s)"],
    )
    assert result.stdout.str().count("run twice") == 3


def test_a_failure_is_a_failure_where_the_machine_ran(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(PLUGIN.format(reason=None))
    pytester.makepyfile(FAILS_ONCE)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=2, errors=1)
    assert "run twice" not in result.stdout.str()
