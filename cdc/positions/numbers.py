"""The numbers that consumers compare, and what is remembered of them outside of Kafka.

A number that was given once must never be given again: consumers that order by `seq` would ignore the second event, and those
that look up a form by its version, or a snapshot by its number, would find the first one. The checkpoint has the highest numbers,
but Kafka may lose its last records, or everything.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field, replace
from typing import Any

from cdc.positions.position import Position, SnapshotState


@dataclass(frozen=True, slots=True)
class Numbers:
    """The highest numbers that were given. `a | b` has the higher of each."""

    seq: int = 0
    snapshot_id: int = 0
    schema_version: int = 0

    @classmethod
    def of(cls, position: Position | None) -> Numbers:
        """Return the numbers at a position."""
        if position is None:
            return cls()
        return cls(position.seq, position.snapshot.snapshot_id if position.snapshot is not None else 0, position.schema_version)

    def applied_to(self, position: Position) -> Position:
        """Return the position with at least these numbers, so that the next ones are above them."""
        own = self | Numbers.of(position)
        snapshot = position.snapshot
        if own.snapshot_id and snapshot is None:
            # Nothing is known of this snapshot but its number.
            snapshot = SnapshotState(own.snapshot_id, is_complete=False)
        elif snapshot is not None:
            snapshot = replace(snapshot, snapshot_id=own.snapshot_id)
        return replace(position, seq=own.seq, schema_version=own.schema_version, snapshot=snapshot)

    def __or__(self, other: Numbers) -> Numbers:
        return Numbers(
            max(self.seq, other.seq),
            max(self.snapshot_id, other.snapshot_id),
            max(self.schema_version, other.schema_version),
        )


@dataclass(frozen=True, slots=True)
class Kept:
    """What a daemon keeps on its own disk of its numbers and its Kafka.

    - `committed`: numbers that were committed in Kafka; they may be a second old.
    - `reserved_seq`: no event has a higher seq, committed or not. After an orderly stop it is the last seq.
    - `cluster_id`: Kafka's own id of the cluster, None if unknown.
    - `delivery`: the daemon's kafka.delivery. After a change it stays at_least_once as long as events may be newer than the
      checkpoint.
    """

    committed: Numbers = field(default_factory=Numbers)
    reserved_seq: int = 0
    cluster_id: str | None = None
    delivery: str | None = None

    def encode(self, name: str, prefix: str) -> bytes:
        """Return the content of the file, for a daemon and its kafka.topic_prefix."""
        content = {
            "name": name,
            "topic_prefix": prefix,
            "seq": self.committed.seq,
            "snapshot_id": self.committed.snapshot_id,
            "schema_version": self.committed.schema_version,
            "reserved_seq": self.reserved_seq,
            "cluster_id": self.cluster_id,
            "delivery": self.delivery,
        }
        return json.dumps(content).encode()

    @classmethod
    def decode(cls, content: bytes, name: str, prefix: str) -> Kept:
        """Read the content of the file. That of another daemon or prefix, and unreadable content, says nothing."""
        with contextlib.suppress(ValueError, KeyError, TypeError):
            # Where the names fill a sector, the end of a longer content may follow.
            found: dict[str, Any] = json.loads(content.partition(b"\n")[0])
            if (found["name"], found["topic_prefix"]) == (name, prefix):
                committed = Numbers(int(found["seq"]), int(found["snapshot_id"]), int(found["schema_version"]))
                return cls(committed, int(found["reserved_seq"]), found["cluster_id"], found["delivery"])
        return cls()
