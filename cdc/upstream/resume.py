"""What a position asks of a server: comparing where we are with what the server has and still keeps.

The server's ballot tells how far it is (`vclock`) and from where it can still be followed (`gc_vclock`). Against our position
P, by component:

    gc_vclock ≤ P ≤ vclock     it can be followed from P
    gc_vclock ≰ P              a gap: logs that lead from P are gone; on a quiet 2.6 master SUBSCRIBE would not even say so
    P ≰ vclock                 divergence: the server lacks changes that we have published (an old backup, a lost failover);
                               every version accepts such a SUBSCRIBE without a word

Origins that are left out (`source.exclude_origins`) say nothing about either: the server doesn't send their rows, so P stays
where it was in their components. A server is told, at SUBSCRIBE and in ACKs, that they are as far as it is itself: it would
look for its logs from there, and keep them.

The server may also belong to another replica set; a ballot doesn't say, so that is looked at once more when it answers
SUBSCRIBE. What follows from all of this for a connection is decided in cdc.upstream.start.
"""

from __future__ import annotations

from typing import Final, Literal
from uuid import UUID

from cdc.errors import PositionError
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.protocol.ballot import Ballot

SnapshotMode = Literal["initial", "always", "never", "initial_only", "when_needed"]
Policy = Literal["fail", "resnapshot"]


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


def vclock_for_upstream(vclock: VClock, master: VClock, ignored: frozenset[int]) -> VClock:
    """The position to tell a master that was at `master`: as far as itself in the origins whose rows it doesn't send."""
    if not ignored:
        return vclock
    return VClock({**vclock, **{origin: max(vclock[origin], master[origin]) for origin in ignored}})


def target(master: VClock, ignored: frozenset[int]) -> VClock:
    """What will have been followed once everything up to `master` has come."""
    return VClock({origin: lsn for origin, lsn in master.items() if origin not in ignored})


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
