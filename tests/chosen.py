"""Of the cases of a test that are alike, each run tries one; `make soak` tries all of them.

A second way of delivery, or the same story with images and without, costs servers and minutes each time, and fails alone at most
once in a while. Such cases have the mark `one_of_these`. Which one a run tries follows from its seed, so that all processes of a
run agree, `--seed` repeats it, and many runs together try all. A case with the mark `soak` isn't among them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from zlib import crc32

import pytest

MARK = "one_of_these"


def leave_to_soak(items: Iterable[pytest.Item], seed: int | None) -> None:
    """Mark all but one of each test's cases as `soak`; without a seed, all of them, which the soak takes."""
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker(MARK) is not None and item.get_closest_marker("soak") is None:
            tests[item.nodeid.partition("[")[0]].append(item)
    for test, cases in tests.items():
        # Not the first of each test or the second of each: tests with the same cases are to try different ones.
        chosen = None if seed is None else cases[(seed + crc32(test.encode())) % len(cases)]
        for case in cases:
            if case is not chosen:
                case.add_marker("soak")
