"""How much hypothesis tries: numbers of examples that keep the suite short, and blobs that bring a failure back."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_COMMON = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)

FEW = settings(_COMMON, max_examples=12)
"""For examples that each go through a whole captured stream."""

SOME = settings(_COMMON, max_examples=40)
"""For examples of some milliseconds."""

MANY = settings(_COMMON, max_examples=200)
"""For examples of microseconds."""
