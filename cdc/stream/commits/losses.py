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
from dataclasses import dataclass, field, replace
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
    - `shards`: the fleet's shards that write the topic, this daemon's first; empty without a fleet. Not part of the record.
    """

    topic: str
    spaces: tuple[str, ...]
    seq: int
    noticed_ts_ms: int
    shown: frozenset[str] = frozenset()
    shards: tuple[str, ...] = field(default=(), compare=False)

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
            f"{_command('snapshot', self.left, self.shards)} publishes the rows again, and ends this message; "
            'without images, a start with snapshot.mode = "always" does. If no consumer needs them: '
            f"{_command('topics', ['--acknowledge', self.topic], self.shards)}."
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


def snapshot_remedy(spaces: Sequence[str], shards: Sequence[str]) -> str:
    """Return the command that publishes the rows of some spaces again, for a topic that lost them and that these shards write."""
    return f"{_command('snapshot', spaces, shards)} sends its rows again"


def _command(name: str, arguments: Sequence[str], shards: Sequence[str]) -> str:
    """Return a command as it is typed for the first of these shards, and that the others need it, too."""
    shard = ["--shard", shards[0]] if shards else []
    others = f" (and the same for each other shard: {', '.join(shards[1:])})" if len(shards) > 1 else ""
    return f"`tarantool-cdc {name} --config FILE {shlex.join([*shard, *arguments])}`{others}"


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
