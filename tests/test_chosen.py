"""Of the tests that are alike each run tries one, and the soak all."""

from __future__ import annotations

import pytest

from tests.chosen import MARK, leave_to_soak

pytest_plugins = ["pytester"]

CASES = """
    import pytest

    @pytest.mark.one_of_these
    @pytest.mark.parametrize("number", range(3))
    def test_alike(number):
        pass

    @pytest.mark.parametrize("name", [
        "always",
        pytest.param("one", marks=pytest.mark.one_of_these),
        pytest.param("other", marks=pytest.mark.one_of_these),
        pytest.param("long", marks=[pytest.mark.one_of_these, pytest.mark.soak]),
    ])
    def test_in_part(name):
        pass

    @pytest.mark.one_of_these("stories")
    @pytest.mark.parametrize("number", range(2))
    def test_story(number):
        pass

    @pytest.mark.one_of_these("stories")
    def test_another_story():
        pass
"""

LONG_AND_SHORT = """
    import pytest

    @pytest.mark.one_of_these("two", seconds=100)
    def test_long_of_two():
        pass

    @pytest.mark.one_of_these("two")
    def test_short_of_two():
        pass

    @pytest.mark.one_of_these("three")
    @pytest.mark.parametrize("number", range(2))
    def test_short_of_three(number):
        pass

    @pytest.mark.one_of_these("three", seconds=100)
    def test_long_of_three():
        pass
"""


def tried(pytester: pytest.Pytester, seed: int | None, cases: str = CASES) -> set[str]:
    """The cases that aren't left to the soak."""
    pytester.makeini(f"[pytest]\nmarkers =\n  {MARK}\n  soak\n")
    items = pytester.getitems(cases)
    leave_to_soak(items, seed)
    return {item.name for item in items if item.get_closest_marker("soak") is None}


def test_one_case_is_tried_and_each_has_its_turn(pytester: pytest.Pytester) -> None:
    runs = [tried(pytester, seed) for seed in range(6)]
    assert all(len(run) == 4 and "test_in_part[always]" in run for run in runs)
    assert set().union(*runs) == {
        *(f"test_alike[{number}]" for number in range(3)),
        *(f"test_in_part[{name}]" for name in ("always", "one", "other")),
        *("test_story[0]", "test_story[1]", "test_another_story"),
    }


def test_a_seed_chooses_the_same_again(pytester: pytest.Pytester) -> None:
    assert tried(pytester, 2**31 + 5) == tried(pytester, 2**31 + 5)


def test_no_run_has_all_that_takes_long(pytester: pytest.Pytester) -> None:
    runs = [tried(pytester, seed, LONG_AND_SHORT) for seed in range(12)]
    assert not [run for run in runs if run == {"test_long_of_two", "test_long_of_three"}]
    assert set().union(*runs) == {
        *("test_long_of_two", "test_short_of_two", "test_long_of_three"),
        *("test_short_of_three[0]", "test_short_of_three[1]"),
    }


def test_the_soak_takes_all(pytester: pytest.Pytester) -> None:
    assert tried(pytester, None) == {"test_in_part[always]"}


def test_the_mark_is_one_that_pytest_knows(pytestconfig: pytest.Config) -> None:
    assert any(line.startswith(f"{MARK}:") for line in pytestconfig.getini("markers"))
