"""What operators are told about buckets that move, in topics that all shards write: what waits, and what is lost or doubled.

The module reads no clock: its caller passes the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cdc.stream.moves.lost import LostChange
from cdc.stream.moves.queues import BucketQueues, Wait

STRANGERS_REMEDY: Final = (
    "Give that shard its replica set's name (box.info.replicaset.name) in the fleet's file: "
    "fleet.shards.<shard>.replicaset_name. Restart the daemons, and order a snapshot of the sharded spaces if rows have moved."
)
NAMED_MAX: Final = 20
"""Number of buckets that are named."""


@dataclass(frozen=True, slots=True)
class BucketsState:
    """The buckets that wait, the oldest first; how much waits; changes lost with copies; buckets that two shards own."""

    waits: tuple[Wait, ...] = ()
    waiting_count: int = 0
    row_count: int = 0
    byte_count: int = 0
    lost_count: int = 0
    lost: tuple[LostChange, ...] = ()
    doubled: Mapping[int, list[str]] = field(default_factory=dict)
    awaits: tuple[str, ...] = ()
    """The shards whose daemons have to begin, or to see others begin, before this one's rows are sure to be right."""
    arrived_unseen: int = 0
    """Number of buckets that have arrived while the daemon didn't follow."""
    changed_count: int = 0
    """Number of buckets that have arrived with other rows than they had before."""
    is_full: bool = False
    """Whether so much waits that the stream isn't read any more."""
    strangers: tuple[str, ...] = ()
    """Names of replica sets in `_bucket` that no shard has."""
    is_overdue: bool = False
    """Whether the first bucket has been waiting for longer than source.bucket_alert_ms."""

    @classmethod
    def of(
        cls,
        queues: BucketQueues,
        doubled: Mapping[int, list[str]],
        *,
        is_full: bool,
        overdue_us: int,
        lost_before: int,
        changed_before: int = 0,
    ) -> BucketsState:
        """Return the present state. A bucket is overdue that has been waiting since `overdue_us` or longer. `lost_before` and
        `changed_before` are the counts of earlier connections.
        """
        waits = sorted(queues.waits.values(), key=lambda wait: wait.since_us)
        return cls(
            tuple(waits[:NAMED_MAX]),
            len(waits),
            queues.waiting.row_count,
            queues.waiting.byte_count,
            lost_before + queues.lost.count,
            tuple(queues.lost.last),
            doubled,
            tuple(queues.beginnings.awaits),
            queues.beginnings.record.arrived_unseen,
            changed_before + queues.changed_count,
            is_full,
            tuple(sorted(queues.strangers)[:NAMED_MAX]),
            bool(waits) and waits[0].since_us <= overdue_us,
        )

    def oldest_seconds(self, now_us: int) -> float:
        """Return how long the first bucket has been waiting; 0 if none waits."""
        return max(0.0, (now_us - self.waits[0].since_us) / 1e6) if self.waits else 0.0

    def sentence(self, now_us: int) -> str | None:
        """Return what the bucket that has waited longest waits for; None if none waits."""
        if not self.waits:
            return None
        wait = self.waits[0]
        more = f", and {self.waiting_count - 1} more buckets wait" if self.waiting_count > 1 else ""
        whom = (
            f"the daemon of the shard {wait.waits_for!r}, which hasn't published yet what users did there before the move"
            if wait.waits_for is not None
            else "the outcome of the bucket's move, as clients wrote past the router"
        )
        full = "; so much waits that this daemon reads nothing until then" if self.is_full else ""
        return f"bucket {wait.bucket_id} has been waiting for {self.oldest_seconds(now_us):.0f} s for {whom}{more}{full}"

    @property
    def strangers_sentence(self) -> str | None:
        """Return what is wrong with names of replica sets; None if nothing is."""
        if not self.strangers:
            return None
        named = ", ".join(map(repr, self.strangers))
        return (
            f"vshard calls replica sets by name here, and no shard has the name {named}: what moves from or to there may be "
            "published in the wrong order, and once more"
        )

    def to_json(self, now_us: int) -> dict[str, Any]:
        """Return the state as /status shows it."""
        return {
            "waiting": self.waiting_count,
            "waiting_rows": self.row_count,
            "waiting_bytes": self.byte_count,
            "oldest_seconds": round(self.oldest_seconds(now_us), 3),
            "message": self.sentence(now_us),
            "waits": [
                {
                    "bucket_id": wait.bucket_id,
                    "waits_for": wait.waits_for,
                    "seconds": round(max(0.0, (now_us - wait.since_us) / 1e6), 3),
                }
                for wait in self.waits
            ],
            "strangers": list(self.strangers),
            "awaits": list(self.awaits),
            "arrived_unseen": self.arrived_unseen,
            "changed": self.changed_count,
            "lost_changes": self.lost_count,
            "lost": [
                {"bucket_id": one.bucket_id, "state": one.status, "space_id": one.space_id, "key": one.key.hex()}
                for one in self.lost
            ],
            "doubled": {str(bucket_id): names for bucket_id, names in sorted(self.doubled.items())[:NAMED_MAX]},
        }
