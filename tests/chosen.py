"""Of tests that are alike, each run tries one; `make soak` tries all of them.

A second way of delivery, or the same story with images and without, costs servers and minutes each time, and fails alone at most
once in a while. Such cases of a test have the mark `one_of_these`. So have tests that tell different stories of one mechanism,
with its name: `one_of_these("watch")`. The few that take far longer than all others have one name together, whatever they are
about, so that no run is much longer than the next: one that drew several took minutes more. What alone would catch that the
daemon loses, doubles or disorders events isn't among them: the simulation and the tests with kills and failovers are tried by
each run.

Which one a run tries follows from its seed, so that all processes of a run agree, `--seed` repeats it, and many runs together try
all. A case with the mark `soak` isn't among them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from zlib import crc32

import pytest

MARK = "one_of_these"


def leave_to_soak(items: Iterable[pytest.Item], seed: int | None) -> None:
    """Mark all but one of each test's cases, and of each name's tests, as `soak`; without a seed, all, which the soak takes."""
    alike: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker(MARK)
        if mark is not None and item.get_closest_marker("soak") is None:
            (name,) = mark.args or (item.nodeid.partition("[")[0],)
            alike[name].append(item)
    for name, those in alike.items():
        # Not the first of each test or the second of each: tests with the same cases are to try different ones.
        chosen = None if seed is None else those[(seed + crc32(name.encode())) % len(those)]
        for item in those:
            if item is not chosen:
                item.add_marker("soak")
