"""Topics of spaces that were deleted, and what makes up for that: kept until consumers can have the rows again, or needn't.

    a topic is missing ─▶ LostTopic, in the checkpoint topic ─▶ told by status, page, metrics and doctor, across all restarts
                              │ every space's rows published whole since then, or an operator's word (`Covered`)
                              └─▶ a tombstone in its place

What a consumer hadn't read yet is gone for it: a row that is published again shows what it is now, without earlier changes. Which
rows count is decided by `seq`: the loss knows the last one that was committed before it was noticed, and rows that are
published whole know the last one before their first.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from cdc.stream.batches.covered import Covered


@dataclass(frozen=True, slots=True)
class LostTopic:
    """A space's topic that was deleted.

    - `spaces`: the names of the spaces whose rows were there; empty if they aren't known.
    - `seq`: the last one that was committed before the loss was noticed.
    - `noticed_ts_ms`: when that was, in milliseconds since the epoch.
    - `shown`: those of the spaces whose rows have all been published since.
    """

    topic: str
    spaces: tuple[str, ...]
    seq: int
    noticed_ts_ms: int
    shown: frozenset[str] = frozenset()

    def after(self, covered: Covered) -> LostTopic | None:
        """Return what is left of the loss after this; None if nothing is."""
        if covered.topic != self.topic:
            return self
        if covered.space is None:
            return None
        if covered.since_seq < self.seq:
            return self
        shown = self.shown | {covered.space}
        return replace(self, shown=shown) if set(self.spaces) - shown else None

    @property
    def left(self) -> list[str]:
        """Names of the spaces whose rows haven't been published again; of unknown ones, what the topic's name says."""
        return sorted(set(self.spaces) - self.shown) or [self.topic.rpartition(".")[2]]

    @property
    def sentence(self) -> str:
        """What is lost, for operators."""
        moment = datetime.fromtimestamp(self.noticed_ts_ms / 1000, UTC).isoformat(timespec="seconds")
        return (
            f"the topic {self.topic} was deleted (noticed at {moment}): consumers that hadn't read all of it lack changes of "
            f"{', '.join(self.left)}, and new ones lack rows"
        )

    @property
    def remedy(self) -> str:
        """What an operator can do."""
        return (
            f"`tarantool-cdc snapshot --config FILE {shlex.join(self.left)}` publishes the rows again, and ends this message; "
            'without images, a start with snapshot.mode = "always" does. If no consumer needs them: `tarantool-cdc topics '
            f"--config FILE --acknowledge {shlex.quote(self.topic)}`."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the record's value, and the part of /status."""
        return {
            "lost_topic": self.topic,
            "spaces": list(self.spaces),
            "seq": self.seq,
            "noticed_ts_ms": self.noticed_ts_ms,
            "shown": sorted(self.shown),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LostTopic:
        """Read a record's value. Raises KeyError, TypeError or ValueError for another one."""
        return cls(value["lost_topic"], tuple(value["spaces"]), value["seq"], value["noticed_ts_ms"], frozenset(value["shown"]))


def after_all(found: Mapping[str, LostTopic], covered: Iterable[Covered]) -> dict[str, LostTopic | None]:
    """Return the losses, by topic, that are others after this: None for one that is over."""
    changed: dict[str, LostTopic | None] = {}
    for each in covered:
        former = changed.get(each.topic, found.get(each.topic))
        if former is not None and (rest := former.after(each)) != former:
            changed[each.topic] = rest
    return changed


def sentence_of(found: Sequence[LostTopic]) -> str | None:
    """Return one sentence about all losses, for operators; None if there are none."""
    if not found:
        return None
    first, others = found[0], len(found) - 1
    rest = f"; so were {others} other topics" if others > 1 else "; so was 1 other topic" if others else ""
    return f"{first.sentence}{rest}"
