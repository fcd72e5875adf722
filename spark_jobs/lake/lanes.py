"""Who may append to a table of events: one query for the same events at a time.

A table has a lane for each `--spaces` with which queries write to it. A query that begins claims its lane, and every other lane
whose events may be the same. All of it is in Delta's transaction numbers: a lane is an application, and a number consists of the
claim's own and the batch's. Delta accepts only higher numbers, so after a claim it accepts no batch of an earlier claim, even of
a query that was already writing it. The check and the append are one step.

This module only computes; event_table.py does the claims.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

_LANE: Final = "tarantool_cdc.events "
_BATCH_BITS: Final = 30
_CLAIMS_MAX: Final = 1 << (63 - _BATCH_BITS)
_NAMES: Final = re.compile(r"[\w-]+(?:\\\.[\w-]+)*(?:\|[\w-]+(?:\\\.[\w-]+)*)*", re.ASCII)
"""An expression of `--spaces` that only lists names: `users|orders`."""

JUMP_MAX: Final = 1 << 16
"""Claims are numbered with random distances up to this, so that two queries at once never have the same number."""


def lane(spaces: str) -> str:
    """Return the application's name for an expression of `--spaces`."""
    return f"{_LANE}{spaces}"


def claimed(spaces: str, transactions: Mapping[str, int]) -> list[str]:
    """Return the lanes that a query with this `--spaces` claims: its own, and those whose events may be the same."""
    own = lane(spaces)
    others = (name for name in transactions if name.startswith(_LANE) and name != own)
    return [*sorted(name for name in others if _may_overlap(name.removeprefix(_LANE), spaces)), own]


def next_claim(lanes: Iterable[str], transactions: Mapping[str, int], jump: int) -> int:
    """Return the number of a new claim, `jump` (from 1) above the last one of these lanes."""
    claim = max((transactions.get(name, 0) >> _BATCH_BITS for name in lanes), default=0) + jump
    if claim >= _CLAIMS_MAX:
        raise OverflowError("the table has been claimed too often")
    return claim


def number(claim: int, batch: int) -> int:
    """Return Delta's transaction number for a batch; for the claim itself with batch -1."""
    return (claim << _BATCH_BITS) + batch + 1


def highest(transactions: Mapping[str, int]) -> int:
    """Return the highest number of all lanes: a query whose `--spaces` were widened goes on in another lane."""
    return max((number for name, number in transactions.items() if name.startswith(_LANE)), default=0)


def last_batch(name: str, transactions: Mapping[str, int]) -> int:
    """Return the last batch that the lane's present claim has written; -1 if there is none yet."""
    return (transactions.get(name, 0) & ((1 << _BATCH_BITS) - 1)) - 1


def holds(claim: int, name: str, transactions: Mapping[str, int]) -> bool:
    """Return whether a claim is still the lane's last one."""
    return transactions.get(name, 0) >> _BATCH_BITS == claim


def _may_overlap(one: str, other: str) -> bool:
    """Return False only if the two expressions list different names."""
    if not (_NAMES.fullmatch(one) and _NAMES.fullmatch(other)):
        return True
    return bool(set(one.split("|")) & set(other.split("|")))
