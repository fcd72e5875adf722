"""How much hypothesis tries: numbers of examples for whole runs and for short ones, and blobs that bring a failure back.

A run spends a share of the numbers that stand with the tests (`--budget`): all of it in the long drills, some of it whenever
somebody has changed a line. Each test keeps at least a few examples.
"""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, settings

EXAMPLES_MIN: Final = 5

_COMMON: Final = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
_share = 1.0


def spend(share: float) -> None:
    """From now on `examples` gives this share of what is asked for. To be called before the tests are imported."""
    global _share, FEW, SOME, MANY
    _share = share
    FEW, SOME, MANY = examples(12), examples(40), examples(200)
    # A test that says nothing has what hypothesis tries by itself, but no deadline: on a busy machine any example takes 200 ms.
    settings.register_profile("tests", examples(100))
    settings.load_profile("tests")


def examples(count: int, *, steps: int = 0) -> settings:
    """Settings for this many examples of a whole run; `steps` of a state machine, if it is one."""
    tried = max(min(count, EXAMPLES_MIN), round(count * _share))
    return settings(_COMMON, max_examples=tried, stateful_step_count=steps) if steps else settings(_COMMON, max_examples=tried)


FEW = examples(12)
"""For examples that each go through a whole captured stream."""

SOME = examples(40)
"""For examples of some milliseconds."""

MANY = examples(200)
"""For examples of microseconds."""
