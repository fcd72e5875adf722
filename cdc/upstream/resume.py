"""Requirements of a position on a server: compares the daemon's position with what the server has and still keeps.

The server's ballot reports its own position (`vclock`) and the oldest position from which it can be followed (`gc_vclock`). The
daemon's position P compares with these by component:

    gc_vclock ≤ P ≤ vclock     the server can be followed from P
    gc_vclock ≰ P              a gap: the logs after P are gone; on a quiet 2.6 master SUBSCRIBE would not even report that
    P ≰ vclock                 divergence: the server lacks changes that we have published (an old backup, a lost failover);
                               every version accepts such a SUBSCRIBE without an error

Excluded origins (`source.exclude_origins`) count in neither comparison: the server doesn't send their rows, so P doesn't
advance in their components. At SUBSCRIBE and in ACKs, the daemon reports the server's own position in these components:
otherwise the server would look for its logs from P on, and keep them.

All this compares positions of one replica set. A server may belong to another one: somebody else has its address by now, or
source.uris is wrong. A ballot doesn't contain the replica set, so every server is asked for it (cdc.sources.replica_set), and
`check_replicaset` comes before any comparison and any policy. cdc.upstream.start decides what follows for a connection.
"""

from __future__ import annotations

from typing import Final, Literal
from uuid import UUID

from cdc.errors import ForeignServerError, PositionError
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.protocol.ballot import Ballot

SnapshotMode = Literal["initial", "always", "never", "initial_only", "snapshot_only", "when_needed"]
WITHOUT_STREAM: Final = frozenset({"initial_only", "snapshot_only"})
"""Modes in which the daemon stops after the snapshot."""
Policy = Literal["fail", "resnapshot"]


def lost_history(published: VClock, ballot: Ballot, ignored: frozenset[int] = frozenset()) -> str:
    """Return a text about the published changes that the server lacks, by component; empty if it has everything."""
    behind = ballot.vclock.lacking(published)
    parts = [f"origin {o}: server {theirs}, published {ours}" for o, (theirs, ours) in behind.items() if o not in ignored]
    return "; ".join(parts)


def missing_logs(needed: VClock, ballot: Ballot, ignored: frozenset[int] = frozenset()) -> str:
    """Return a text about the needed logs that the server no longer has, by component; empty if it has them all."""
    missing = needed.lacking(ballot.gc_vclock)
    parts = [f"origin {o}: needed from {ours}, kept from {theirs}" for o, (ours, theirs) in missing.items() if o not in ignored]
    return "; ".join(parts)


def fails_on_gap(on_gap: Policy, mode: SnapshotMode) -> bool:
    """Return whether a gap must stop the daemon."""
    return on_gap == "fail" and mode != "when_needed"


DIVERGENCE_HINT: Final = (
    "If it was restored from a backup and its contents are what you want, set source.on_divergence = "
    '"resnapshot"; otherwise name a member of the replica set that has them.'
)
GAP_HINT: Final = 'source.on_gap = "resnapshot" starts again from a snapshot.'


def vclock_for_upstream(vclock: VClock, master: VClock, ignored: frozenset[int]) -> VClock:
    """Return the position to report to a master at `master`: its own position in the origins whose rows it doesn't send."""
    if not ignored:
        return vclock
    return VClock({**vclock, **{origin: max(vclock[origin], master[origin]) for origin in ignored}})


def target(master: VClock, ignored: frozenset[int]) -> VClock:
    """Return the position to expect after everything up to `master` has been received."""
    return VClock({origin: lsn for origin, lsn in master.items() if origin not in ignored})


def check_replicaset_of_store(kafka: Position, store: Position) -> None:
    """Raise PositionError if the store belongs to another replica set than the checkpoint."""
    if store.replicaset_uuid != kafka.replicaset_uuid and None not in (store.replicaset_uuid, kafka.replicaset_uuid):
        raise PositionError(
            f"the state store has rows of replica set {store.replicaset_uuid}, the checkpoint is of {kafka.replicaset_uuid}",
            "Give this daemon a state.path of its own, or remove the directory images in it and start once with --rebuild-state.",
        )


def foreign(ours: UUID | None, theirs: UUID | None) -> ForeignServerError | None:
    """Return the error of a server whose replica set isn't the checkpoint's. An unknown one (None) isn't compared."""
    if theirs == ours or None in (ours, theirs):
        return None
    return ForeignServerError(
        f"the server belongs to replica set {theirs}, the checkpoint to {ours}, so nothing of the server is used",
        "Check source.uris; another replica set needs another name, and another kafka.topic_prefix.",
    )


def check_replicaset(position: Position | None, theirs: UUID | None) -> None:
    """Compare a server's replica set with the checkpoint's. Raises ForeignServerError."""
    error = foreign(position.replicaset_uuid if position is not None else None, theirs)
    if error is not None:
        raise error
