"""How far the events are complete: which of them may be processed now, and which must wait for older ones. Pure.

A batch reads all partitions side by side, and one may be far ahead of another. The events of a row are usually on one partition.
But those of a renamed space are on two topics, and a topic that gets another partition moves keys to it. Patches must be applied
in the order of `seq`. So an event waits until every partition has been read up to that event.

Within a partition `seq` ascends. A partition without unread records has all events up to the newest one that has been read from
any partition, because the daemon writes its Kafka transactions one after another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

_NONE = -1

Partition = tuple[str, int]
"""Topic and number of a partition."""


@dataclass(frozen=True)
class Order:
    """State after a batch.

    All events up to `complete` have been processed, those up to `newest` have been read, and `known` has for each partition the
    seq up to which it has been read.
    """

    complete: int = _NONE
    newest: int = _NONE
    known: Mapping[Partition, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Assert the order: what hasn't been read can't be complete."""
        assert self.complete <= self.newest, f"{self.complete} is complete, beyond all events, which end at {self.newest}"

    def after(self, found: Mapping[Partition, int], read_up_to: Mapping[Partition, int], ends: Mapping[Partition, int]) -> Order:
        """Return the state after another batch.

        `found` has the highest seq that the batch has of each partition, `read_up_to` the offsets at which the batch ends, and
        `ends` the offsets at which the partitions ended after it was read; records of open transactions count.
        """
        newest = max(self.newest, *found.values(), _NONE)
        known = {
            place: newest if read_up_to.get(place, 0) >= end else max(self.known.get(place, _NONE), found.get(place, _NONE))
            for place, end in ends.items()
        }
        return Order(max(self.complete, min(known.values(), default=newest)), newest, known)

    def to_json(self, before: Order) -> str:
        """Return the state as text, with what was complete before the batch."""
        known = [[*place, seq] for place, seq in sorted(self.known.items())]
        return json.dumps({"before": before.complete, "complete": self.complete, "newest": self.newest, "known": known})

    @classmethod
    def from_json(cls, text: str) -> tuple[Order, int]:
        """Return the state that `to_json` wrote, and what was complete before."""
        members = json.loads(text)
        known = {(topic, partition): seq for topic, partition, seq in members["known"]}
        return cls(members["complete"], members["newest"], known), members["before"]
