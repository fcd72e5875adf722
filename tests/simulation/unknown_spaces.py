"""Spaces of which a daemon can't know: the checkpoint that is left is from before them, and they are gone at the next snapshot.

A checkpoint is from before a space if it was created after the checkpoint's position, or if its form isn't stored: a snapshot's
first checkpoints have positions of their own, and no forms yet. Consumers keep what they have read of such a space, as
docs/guarantees.md says of lost checkpoints. With at_least_once this also happens if the checkpoint wasn't written yet: events are
shown before it. Nothing else is excused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cdc.positions.position import Position
from cdc.protocol.constants import Key, Type
from tests.fakes.consumer import Consumer
from tests.fakes.master import INDEX, LogRow
from tests.simulation.patches import PatchedRows
from tests.simulation.repeats import LastSeqs

_LASTS = 2
"""Length of a life that goes on."""


@dataclass
class _Loss:
    """A checkpoint that is left: its position, the snapshot that it rests on, and the spaces of which it has the forms."""

    left: dict[int, int]
    base_id: int
    stored: frozenset[int]
    until_seq: int | None = None
    """Newest seq before the snapshot that follows, once that has begun."""

    def knows(self, space_id: int, lives: Sequence[Sequence[int]]) -> bool:
        """Whether the checkpoint has a space of this number, with which a snapshot compares the next one."""
        there = ((self.left.get(origin, 0), came, went) for origin, came, *went in lives)
        return space_id in self.stored and any(came <= lsn and all(end > lsn for end in went) for lsn, came, went in there)


class UnknownSpaces:
    """The lives of all spaces, and the losses of checkpoints between them."""

    def __init__(self) -> None:
        # By space: origin and lsn of each time it came, and the lsn with which it went.
        self._lives: dict[int, list[list[int]]] = {}
        # Since the last snapshot that is complete.
        self._losses: list[_Loss] = []
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
        base_id = left.snapshot.base_id if left.snapshot is not None else 0
        self._losses.append(_Loss(dict(left.vclock), base_id, frozenset(stored)))

    def snapshot_begun(self, newest_seq: int) -> None:
        """A snapshot begins, and `newest_seq` was given last before it. What is shown from here on is known."""
        for loss in self._losses:
            loss.until_seq = newest_seq if loss.until_seq is None else loss.until_seq

    def snapshot_taken(self, number: int, base: Mapping[int, int]) -> None:
        """A snapshot is complete, and its stream begins at `base`."""
        if not self._losses or number == self._losses[-1].base_id:
            return
        for loss in self._losses:
            for space_id, lives in self._lives.items():
                if loss.knows(space_id, lives):
                    continue
                for origin, came, *went in lives:
                    is_new = came > loss.left.get(origin, 0) or space_id not in loss.stored
                    if went and is_new and went[0] <= base.get(origin, 0):
                        self._kept.append((space_id, loss.until_seq or 0))
        self._losses.clear()

    def sweep(self, consumer: Consumer | LastSeqs | PatchedRows) -> None:
        """Have a consumer do what an operator has to do."""
        for space_id, until_seq in self._kept:
            consumer.sweep(space_id, until_seq)
