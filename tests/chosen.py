"""Of tests that are alike, each run tries one; `make soak` tries all of them.

A second way of delivery, or the same story with images and without, costs servers and minutes each time, and fails alone at most
once in a while. Such cases of a test have the mark `one_of_these`. So have tests that tell different stories of one mechanism,
with its name: `one_of_these("watch")`. The few that take far longer than all others have one name together, whatever they are
about. `seconds` says what takes longer than 30 in a full run, without the start of a Spark session, so that a draw can be of the
usual length: without that, some took minutes more than others. What alone would catch that the daemon loses, doubles or disorders
events isn't among them: the simulation and the tests with kills and failovers are tried by each run.

Which one a run tries follows from its seed, so that all processes of a run agree, `--seed` repeats it, and many runs together try
all. A case with the mark `soak` isn't among them.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

import pytest

MARK = "one_of_these"
_SECONDS = 20
"""What a case takes in a full run if its mark doesn't say."""
_DRAWS = 3
"""With more, what takes long would have its turn too seldom: with three, half as often as the others at the least."""


def leave_to_soak(items: Iterable[pytest.Item], seed: int | None) -> None:
    """Mark all but one of each test's cases, and of each name's tests, as `soak`; without a seed, all, which the soak takes."""
    alike: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker(MARK)
        if mark is not None and item.get_closest_marker("soak") is None:
            (name,) = mark.args or (item.nodeid.partition("[")[0],)
            alike[name].append(item)
    chosen = [] if seed is None else _drawn(alike, seed)
    for item in itertools.chain.from_iterable(alike.values()):
        if item not in chosen:
            item.add_marker("soak")


def _drawn(alike: Mapping[str, Sequence[pytest.Item]], seed: int) -> list[pytest.Item]:
    """One of each name's: of some draws by the seed the one that takes the most usual time, the first if several do."""
    usual = sum(sum(map(_seconds, those)) / len(those) for those in alike.values())
    # Not the first of each test or the second of each: tests with the same cases are to try different ones.
    draws = [
        [those[crc32(f"{seed} {number} {name}".encode()) % len(those)] for name, those in alike.items()]
        for number in range(_DRAWS)
    ]
    return min(draws, key=lambda draw: abs(sum(map(_seconds, draw)) - usual))


def _seconds(item: pytest.Item) -> int:
    mark = item.get_closest_marker(MARK)
    assert mark is not None
    told: int = mark.kwargs.get("seconds", _SECONDS)
    return told
