"""Decides whether the checkpoint is the newest one, and how far numbers were given, from everything that remembers them.

    checkpoint K ──────────────┐
    state store S              │   K is the highest: resume from K, and go on counting from there
    file of numbers            ├─▶ another one is higher: Kafka has lost the newest checkpoints. A snapshot is compared with
    commits of this process    │     nothing, and its rows get numbers above all that was given
    the topics' last events    ┤   nothing is known: the first start
    other daemons' checkpoints ┘

The other ones never pass K as long as Kafka keeps what it has committed: they are written after the commit. (With at_least_once
delivery, events may be newer than the checkpoint; then the topics don't count.) A daemon of another name that has owned the
prefix since may have published more, too. The consequences are the same: nobody knows which rows consumers have from it.

When Kafka has lost checkpoints, it may have lost events of any topic too, which consumers may have read before. Nobody knows
which rows they have. Therefore all rows are published again, as `r`, and `sweep_seq` tells which of the consumers' rows are gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cdc.positions.numbers import Kept, Numbers
from cdc.positions.position import Position

_OTHERS: Final = "a daemon of another name has published events under this prefix"


@dataclass(frozen=True, slots=True)
class Witnesses:
    """What remembers given numbers besides the checkpoint.

    `process` is the last commit that this process knows of; `others` are the numbers of daemons of other names.
    """

    store: Position | None = None
    kept: Kept = field(default_factory=Kept)
    process: Position | None = None
    topics: Numbers = field(default_factory=Numbers)
    others: Numbers = field(default_factory=Numbers)

    def highest(self) -> tuple[str, Numbers]:
        """Return the witness with the highest seq, in words, and its numbers."""
        found = {
            _OTHERS: self.others,  # before the topics, which have its events
            "the topics have events": self.topics,
            "this process has committed events": Numbers.of(self.process),
            "the state store has rows": Numbers.of(self.store),
            "the file numbers in state.path counts events": self.kept.committed,
        }
        return max(found.items(), key=lambda witness: witness[1].seq)

    def thrown_back(self, checkpoint: Position | None) -> str | None:
        """Return why the checkpoint can't be the newest one, or None."""
        what, numbers = self.highest()
        seq = checkpoint.seq if checkpoint is not None else 0
        if numbers.seq <= seq:
            return None
        if checkpoint is None or checkpoint.snapshot is None:
            return f"there is no checkpoint, but {what} up to seq {numbers.seq}"
        if what == _OTHERS:
            return f"the checkpoint is at seq {seq}, but {what} up to seq {numbers.seq}"
        return f"Kafka has lost the newest checkpoints: the last one left is at seq {seq}, and {what} up to seq {numbers.seq}"

    def given(self, checkpoint: Position | None) -> Numbers:
        """Return the highest numbers that consumers may have seen.

        If the checkpoint isn't the newest one, all numbers count that were reserved, as events up to there may have been lost.
        Not so if the topics have all that the file had recorded, a second before at most: their newest event is the last one.
        """
        known = Numbers.of(checkpoint) | Numbers.of(self.store) | self.kept.committed | Numbers.of(self.process)
        known |= self.topics | self.others
        if self.thrown_back(checkpoint) is None or 0 < self.topics.seq >= self.kept.committed.seq:
            return known
        return known | Numbers(seq=self.kept.reserved_seq)
