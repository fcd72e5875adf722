"""Where to go on: the decision at each connect, from what we know and what the server says.

The server's ballot tells how far it is (`vclock`) and from where it can still be followed (`gc_vclock`). Against our position
P, by component:

    gc_vclock ≤ P ≤ vclock     go on from P
    gc_vclock ≰ P              a gap: logs that lead from P are gone; on a quiet 2.6 master SUBSCRIBE would not even say so
    P ≰ vclock                 divergence: the server lacks changes that we have published (an old backup, a lost failover);
                               every version accepts such a SUBSCRIBE without a word

With images, there are two positions: the checkpoint K in Kafka, and S ≤ K, at which the store has the tuples. What lies
between them is read again, for the store alone.

Origins that are left out (`source.exclude_origins`) say nothing about either: the server doesn't send their rows, so P stays
where it was in their components. A server is told, at SUBSCRIBE and in ACKs, that they are as far as it is itself: it would
look for its logs from there, and keep them.

The server may also belong to another replica set; a ballot doesn't say, so that is looked at once more when it answers
SUBSCRIBE.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal
from uuid import UUID

from cdc.errors import PositionError
from cdc.position import Position
from cdc.protocol.ballot import Ballot
from cdc.vclock import VClock

SnapshotMode = Literal["initial", "always", "never", "initial_only", "when_needed"]
Policy = Literal["fail", "resnapshot"]


@dataclass(frozen=True, slots=True)
class Continue:
    """Subscribe from the checkpoint."""


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Read the contents first. `publish` is false where only the schema is wanted from them."""

    reason: str
    publish: bool = True


def forced(by_stream: str | None, by_store: str | None, *, mode: SnapshotMode) -> TakeSnapshot | None:
    """The snapshot that the stream or the state store needs, for the reasons given, whatever the server says.

    What the stream couldn't lead to has to come out all the same.
    """
    if by_stream is not None:
        return TakeSnapshot(by_stream)
    return TakeSnapshot(by_store, publish=mode != "never") if by_store is not None else None


def snapshot_due(position: Position | None, *, mode: SnapshotMode, is_first_connect: bool) -> TakeSnapshot | None:
    """The snapshot that is to be taken whatever the server says, if there is one."""
    if position is None or position.snapshot is None:
        if mode == "never":
            return TakeSnapshot("snapshot.mode is never: only the schema is read", publish=False)
        return TakeSnapshot("there is no checkpoint")
    if not position.snapshot.is_complete:
        return TakeSnapshot("the last snapshot was interrupted", publish=mode != "never")
    if mode == "always" and is_first_connect:
        return TakeSnapshot("snapshot.mode is always")
    return None


def lost_history(published: VClock, ballot: Ballot, ignored: frozenset[int] = frozenset()) -> str:
    """What was published and the server lacks, by component; empty if it has everything."""
    behind = ballot.vclock.lacking(published)
    parts = [f"origin {o}: server {theirs}, published {ours}" for o, (theirs, ours) in behind.items() if o not in ignored]
    return "; ".join(parts)


def missing_logs(needed: VClock, ballot: Ballot, ignored: frozenset[int] = frozenset()) -> str:
    """From where logs are needed that the server no longer has, by component; empty if it has them all."""
    missing = needed.lacking(ballot.gc_vclock)
    parts = [f"origin {o}: needed from {ours}, kept from {theirs}" for o, (ours, theirs) in missing.items() if o not in ignored]
    return "; ".join(parts)


def fails_on_gap(on_gap: Policy, mode: SnapshotMode) -> bool:
    """Whether the policy is to stop."""
    return on_gap == "fail" and mode != "when_needed"


DIVERGENCE_HINT: Final = (
    "If it was restored from a backup and its contents are what you want, set source.on_divergence = "
    '"resnapshot"; otherwise name a member of the replica set that has them.'
)
GAP_HINT: Final = 'source.on_gap = "resnapshot" starts again from a snapshot.'


def decide(
    position: Position | None,
    ballot: Ballot,
    *,
    mode: SnapshotMode,
    on_gap: Policy,
    on_divergence: Policy,
    is_first_connect: bool,
    store: Position | None = None,
    ignored: frozenset[int] = frozenset(),
) -> Continue | TakeSnapshot:
    """What to do with this server, where the stream has to be read from `store`'s position if there is one.

    Origins in `ignored` are left out. Raises PositionError where the policy is to fail.
    """
    due = snapshot_due(position, mode=mode, is_first_connect=is_first_connect)
    if due is not None:
        return due
    assert position is not None
    report = lost_history(position.vclock, ballot, ignored)
    if report:
        if on_divergence == "fail":
            raise PositionError(
                f"the server lacks changes that were published: it is at {ballot.vclock}, the checkpoint at {position.vclock} "
                f"({report})",
                DIVERGENCE_HINT,
            )
        return TakeSnapshot(f"the server lacks changes that were published ({report})")
    report = missing_logs((store or position).vclock, ballot, ignored)
    if report:
        if fails_on_gap(on_gap, mode):
            raise PositionError(
                f"the server no longer has the logs after the checkpoint: it keeps them from {ballot.gc_vclock}, "
                f"the checkpoint is at {position.vclock} ({report})",
                GAP_HINT,
            )
        return TakeSnapshot(f"the server no longer has the logs after the checkpoint ({report})")
    return Continue()


def vclock_for_upstream(vclock: VClock, master: VClock, ignored: frozenset[int]) -> VClock:
    """The position to tell a master that was at `master`: as far as itself in the origins whose rows it doesn't send."""
    if not ignored:
        return vclock
    return VClock({**vclock, **{origin: max(vclock[origin], master[origin]) for origin in ignored}})


CAUGHT_UP_SECONDS: Final = 10.0
"""For so long what was caught up with counts as that: a busy master is ahead again at the next connection."""


def is_behind(position: VClock, master: VClock, ignored: frozenset[int], seconds_since_caught_up: float) -> bool:
    """Whether a daemon that is to be registered has to follow anonymously first.

    A master from 3.3 on keeps logs for an anonymous replica too, and the end of a REGISTER moves what it keeps to where it is
    itself: logs that lead there from `position`, which the daemon has yet to read and to make durable, may go any time.
    """
    return seconds_since_caught_up > CAUGHT_UP_SECONDS and not position.covers(target(master, ignored))


def target(master: VClock, ignored: frozenset[int]) -> VClock:
    """What will have been followed once everything up to `master` has come."""
    return VClock({origin: lsn for origin, lsn in master.items() if origin not in ignored})


@dataclass(frozen=True, slots=True)
class StartPlan:
    """How checkpoint and store go together.

    `is_store_good`: its contents are those of some position, else it has to be emptied. `catches_up`: begin at the store's
    position, and publish from the checkpoint on. `reason`: a snapshot has to fill the store.
    """

    is_store_good: bool = True
    catches_up: bool = False
    reason: str | None = None


def reconcile(kafka: Position | None, store: Position | None) -> StartPlan:
    """Where to begin, given the positions of the checkpoint and of the store. Raises PositionError."""
    if kafka is None or kafka.snapshot is None:
        return StartPlan(is_store_good=store is None)
    if store is None or store.snapshot is None:
        # Rows that it may have all the same are none of this daemon's.
        return StartPlan(is_store_good=False, reason="there is nothing in the state store")
    check_replicaset_of_store(kafka, store)
    if not (kafka.snapshot.is_complete and store.snapshot.is_complete and store.snapshot.base_id == kafka.snapshot.base_id):
        # A snapshot comes, and has to be compared with what consumers have: that is what was there at the checkpoint.
        if (store.vclock, store.seq, store.snapshot) == (kafka.vclock, kafka.seq, kafka.snapshot):
            return StartPlan()
        return StartPlan(is_store_good=False, reason="the state store lacks the end of the last snapshot")
    if store.vclock == kafka.vclock:
        return StartPlan()
    if kafka.vclock.covers(store.vclock):
        return StartPlan(catches_up=True)
    return StartPlan(is_store_good=False, reason=f"the state store is at {store.vclock}, the checkpoint at {kafka.vclock}")


def check_replicaset_of_store(kafka: Position, store: Position) -> None:
    """Raises PositionError if the store belongs to another replica set than the checkpoint."""
    if store.replicaset_uuid != kafka.replicaset_uuid and None not in (store.replicaset_uuid, kafka.replicaset_uuid):
        raise PositionError(
            f"the state store has rows of replica set {store.replicaset_uuid}, the checkpoint is of {kafka.replicaset_uuid}",
            "Give this daemon a state.path of its own, or remove the directory images in it and start once with --rebuild-state.",
        )


def check_replicaset(position: Position, theirs: UUID | None) -> None:
    """Compare the replica set of the answer to SUBSCRIBE with the checkpoint's. Raises PositionError."""
    if theirs is not None and position.replicaset_uuid is not None and theirs != position.replicaset_uuid:
        raise PositionError(
            f"the server belongs to replica set {theirs}, the checkpoint to {position.replicaset_uuid}",
            "Check source.uris; another replica set needs another name, and another kafka.topic_prefix.",
        )
