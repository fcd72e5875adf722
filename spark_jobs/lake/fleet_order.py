"""The one order of the events of all shards of a fleet, in topics that the shards share. Pure.

`source.seq` orders the events of one shard. Between two shards there is only one order that matters, that of a key whose bucket
has moved from one to the other, and its partition has it: the former owner's daemon has committed its last change of the key
before the next owner's daemon writes its first (docs/fleet.md). The order of a partition as a whole is no use. Transactions of
two daemons overlap there, and two partitions may contradict each other.

    s1    seq 1 2 3 4 5 6 7                    ├ 5: k=1 ┤ moves ┤
    s2    seq 1 2 3                                             ├ 3: k=2 ┤     a handoff: 3 of s2 comes after 5 of s1

    fleet     s1: 1 to 5    s2: 1 to 3    s1: 6 to 7         stretches, each of whole source transactions of one shard

A removal of a shard's rows, as by a TRUNCATE, is another side of such a handoff: it also concerns rows that have come unseen, and
so it comes after all that their former owners have published of them.

So the job takes of each shard what is complete (watermark.py), and puts the shards' stretches one after another, so that each
handoff has its former side before it. There always is such an order: along it, each event was committed before the next was
written. If the former side isn't complete yet, as another partition is read more slowly, the next owner's events wait, from the
transaction of the handoff on. Nothing else of any shard waits for another.

The numbers of the fleet's table count along this order. They have no gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple


class Handoff(NamedTuple):
    """Two changes of one key, next to each other, by different shards."""

    shard: str
    seq: int
    former_shard: str
    former_seq: int


class Stretch(NamedTuple):
    """Events of a shard: those after a seq, and up to another one."""

    shard: str
    after: int
    up_to: int


def stretches(
    done: Mapping[str, int], goals: Mapping[str, int], handoffs: Iterable[Handoff], end: Callable[[str, int], int]
) -> list[Stretch]:
    """Return the stretches by which the shards get from `done` to their `goals`, or as far as handoffs allow.

    `end` returns the last end of a shard's source transaction at or before a seq. A transaction is divided only where two of
    different shards would have to wait for each other, as their parts were published alternately.
    """
    reached = dict(done)
    waiting: dict[str, list[Handoff]] = {shard: [] for shard in goals}
    for handoff in sorted(handoffs, key=lambda one: one.seq):
        if handoff.shard in waiting:
            waiting[handoff.shard].append(handoff)
    found: list[Stretch] = []
    divides = False
    while True:
        before = len(found)
        for shard in sorted(goals):
            blocking = _blocking(waiting[shard], reached, goals[shard])
            up_to = goals[shard]
            if blocking is not None:
                is_complete = blocking.former_seq <= goals.get(blocking.former_shard, -1)
                up_to = blocking.seq - 1 if divides and is_complete else end(shard, blocking.seq - 1)
            if up_to > reached[shard]:
                found.append(Stretch(shard, reached[shard], up_to))
                reached[shard] = up_to
                divides = False
        if len(found) == before:
            if divides:
                return found
            divides = True


def _blocking(handoffs: Iterable[Handoff], reached: Mapping[str, int], goal: int) -> Handoff | None:
    """Return a shard's first handoff up to the goal whose former side hasn't been reached."""
    for handoff in handoffs:
        if handoff.seq > goal:
            return None
        if handoff.former_seq > reached.get(handoff.former_shard, handoff.former_seq):
            return handoff
    return None
