"""What a batch of a fleet adds to its table: which events, in which order, and which removals of rows between them. Pure.

A plan is kept in a file before the batch is written. So a repeated batch adds the same events under the same numbers, whatever
has been read from Kafka since.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from spark_jobs.contract.fleet_forms import FleetForms
from spark_jobs.lake.fleet_order import Stretch


@dataclass(frozen=True)
class Events:
    """Events of a shard, after a seq of its own and up to another one. The fleet's table numbers them from `base` + 1 on."""

    shard: str
    after: int
    up_to: int
    base: int
    count: int


@dataclass(frozen=True)
class Emptied:
    """Removal of a shard's rows of a space: a truncation at the seq `at`, or the sweep of a snapshot that had ended there.

    Of a sweep, `up_to` is the seq up to which rows that the snapshot didn't repeat are gone. `ts_ms` is its time.
    """

    shard: str
    space: str
    at: int
    up_to: int
    is_sweep: bool
    ts_ms: int | None = None

    @property
    def name(self) -> str:
        """The sweep's name among those that have been carried out."""
        return f"{self.shard} {self.space} {self.at} {self.up_to}"


@dataclass(frozen=True)
class Removed:
    """The events in the place of a removal: a `d` for each row that the space then had of the shard."""

    removal: Emptied
    base: int
    count: int


@dataclass
class Progress:
    """How far a fleet's table is: of each shard the last seq in it, its own last one, and the sweeps that were carried out.

    `has_waiting` says whether events that have been read wait beside the table.
    """

    marks: dict[str, int] = field(default_factory=dict)
    last: int = 0
    swept: list[str] = field(default_factory=list)
    forms: FleetForms = field(default_factory=FleetForms)
    has_waiting: bool = False

    def mark(self, shard: str) -> int:
        """Return the last seq of a shard; 0 if it has none."""
        return self.marks.get(shard, 0)

    def to_json(self) -> Any:
        """Return what must be kept."""
        kept = {"marks": self.marks, "last": self.last, "swept": self.swept, "forms": self.forms.to_json()}
        return {**kept, "has_waiting": self.has_waiting}

    @classmethod
    def from_json(cls, kept: Any) -> Progress:
        """The inverse of `to_json`."""
        forms, has_waiting = FleetForms.from_json(kept["forms"]), kept.get("has_waiting", False)
        return cls(dict(kept["marks"]), kept["last"], list(kept["swept"]), forms, has_waiting)


@dataclass(frozen=True)
class Plan:
    """What a batch adds, and how far the table was before and is after it."""

    before: Progress
    after: Progress
    steps: Sequence[Events | Removed]

    @property
    def events(self) -> list[Events]:
        """The events that the batch adds."""
        return [step for step in self.steps if isinstance(step, Events)]

    def to_json(self) -> str:
        """Return the plan as text."""
        steps = [[type(step).__name__, asdict(step)] for step in self.steps]
        return json.dumps({"before": self.before.to_json(), "after": self.after.to_json(), "steps": steps})

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The inverse of `to_json`."""
        kept = json.loads(text)
        return cls(
            Progress.from_json(kept["before"]), Progress.from_json(kept["after"]), [_step(*each) for each in kept["steps"]]
        )


def _step(kind: str, members: dict[str, Any]) -> Events | Removed:
    if kind == Events.__name__:
        return Events(**members)
    return Removed(Emptied(**members["removal"]), members["base"], members["count"])


def divided(stretches: Iterable[Stretch], removals: Sequence[Emptied], marks: Mapping[str, int]) -> Iterator[Stretch | Emptied]:
    """Yield the stretches, divided where rows are removed, with the removals between their parts.

    A truncation takes the place of its own event. Sweeps of snapshots that had ended by `marks` come first.
    """
    yield from (removal for removal in removals if removal.at <= marks.get(removal.shard, 0))
    for shard, after, up_to in stretches:
        begin = after
        for removal in sorted(removals, key=lambda one: (one.at, one.is_sweep)):
            if removal.shard == shard and after < removal.at <= up_to:
                end = removal.at if removal.is_sweep else removal.at - 1
                if end > begin:
                    yield Stretch(shard, begin, end)
                begin = removal.at
                yield removal
        if up_to > begin:
            yield Stretch(shard, begin, up_to)
