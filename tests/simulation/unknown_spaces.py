"""Spaces of which a daemon can't know: the checkpoint that is left is from before them, and they are gone at the next snapshot.

A checkpoint is from before a space if it was created after the checkpoint's position, or if its form isn't stored: a snapshot's
first checkpoints have positions of their own, and no forms yet. Consumers keep what they have read of such a space, as
docs/guarantees.md says of lost checkpoints. With at_least_once this also happens if the checkpoint wasn't written yet: events are
shown before it. Nothing else is excused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cdc.positions.position import Position
from cdc.protocol.constants import Key, Type
from tests.fakes.consumer import Consumer
from tests.fakes.master import INDEX, LogRow
from tests.simulation.patches import PatchedRows
from tests.simulation.repeats import LastSeqs

_LASTS = 2
"""Length of a life that goes on."""


class UnknownSpaces:
    """The lives of all spaces, and the losses of checkpoints between them."""

    def __init__(self) -> None:
        # By space: origin and lsn of each time it came, and the lsn with which it went.
        self._lives: dict[int, list[list[int]]] = {}
        self._left: Mapping[int, int] | None = None
        self._left_id = self._until_seq = 0
        self._stored: frozenset[int] = frozenset()
        # Spaces whose rows consumers keep, each with the last seq that was given before the snapshot.
        self._kept: list[tuple[int, int]] = []

    def take(self, row: LogRow) -> None:
        """Learn of a row that is certain."""
        if row.body.get(Key.SPACE_ID) != INDEX:
            return
        if row.kind == Type.INSERT and row.body[Key.TUPLE][1] == 0:
            self._lives.setdefault(row.body[Key.TUPLE][0], []).append([row.origin, row.lsn])
        elif row.kind == Type.DELETE and row.body[Key.KEY][1] == 0:
            self._lives[row.body[Key.KEY][0]][-1].append(row.lsn)

    def rewritten(self, there: Mapping[int, int]) -> None:
        """The history is another one. `there` are the spaces that there are now, with the lsns up to which they came."""
        for space_id, lives in self._lives.items():
            if len(lives[-1]) == _LASTS and space_id not in there:
                lives[-1].append(0)  # where no log has it any more
        for space_id, lsn in there.items():
            lives = self._lives.setdefault(space_id, [])
            if not lives or len(lives[-1]) > _LASTS:
                lives.append([1, lives[-1][1] if lives else lsn])

    def checkpoint_lost(self, left: Position, stored: Collection[int]) -> None:
        """A daemon will begin at the checkpoint `left`, and knows the spaces `stored`."""
        self._stored = frozenset(stored) if self._left is None else self._stored & frozenset(stored)
        former = self._left if self._left is not None else left.vclock
        self._left = {origin: min(lsn, former.get(origin, 0)) for origin, lsn in left.vclock.items()}
        self._left_id = left.snapshot.base_id if left.snapshot is not None else 0

    def snapshot_begun(self, newest_seq: int) -> None:
        """A snapshot begins, and `newest_seq` was given last before it."""
        self._until_seq = newest_seq

    def snapshot_taken(self, number: int, base: Mapping[int, int]) -> None:
        """A snapshot is complete, and its stream begins at `base`."""
        if self._left is None or number == self._left_id:
            return
        for space_id, lives in self._lives.items():
            if self._is_known(space_id):
                continue
            for origin, came, *went in lives:
                is_new = came > self._left.get(origin, 0) or space_id not in self._stored
                if went and is_new and went[0] <= base.get(origin, 0):
                    self._kept.append((space_id, self._until_seq))
        self._left = None

    def _is_known(self, space_id: int) -> bool:
        """Whether the checkpoint that is left has a space of this number, with which a snapshot compares the next one."""
        left = self._left or {}
        lives = self._lives[space_id] if space_id in self._stored else ()
        return any(
            came <= left.get(origin, 0) and all(lsn > left.get(origin, 0) for lsn in went) for origin, came, *went in lives
        )

    def sweep(self, consumer: Consumer | LastSeqs | PatchedRows) -> None:
        """Have a consumer do what an operator has to do."""
        for space_id, until_seq in self._kept:
            consumer.sweep(space_id, until_seq)
