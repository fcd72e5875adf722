"""Decides how a connection begins: one function maps everything that is known to everything that has to be done.

    checkpoint K, state store S, ballot, configuration ──▶ plan ─┬─▶ resume from K
    newly published spaces, an earlier stream's reports          ├─▶ bring the store from S up to K, and resume from there
                                                                 ├─▶ a snapshot, compared with the store's rows or with nothing
                                                                 ├─▶ PositionError: the policy is to stop
                                                                 └─▶ StateForeignError: a slip would publish all rows again

K is the position up to which consumers have the events. With images there is also S ≤ K, the position of the state store's
rows. The rows between S and K are read again, for the store alone. A snapshot is compared with the store's rows, so these must
be the rows that consumers have: either the store is exactly at K, or it is emptied.

The choice of a member uses the same decision before there is a ballot (`needed`), so the chosen member can be followed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from cdc.errors import PositionError, StateError
from cdc.positions.numbers import Numbers
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.protocol.ballot import Ballot
from cdc.upstream import resume
from cdc.upstream.resume import Policy, SnapshotMode
from cdc.upstream.selection import Needed

CAUGHT_UP_SECONDS: Final = 10.0
"""Time, in seconds, for which catching up counts as done: a busy master is ahead again at the next connection."""


@dataclass(frozen=True, slots=True)
class Known:
    """Facts known before a connection begins.

    - `checkpoint`: None before the first snapshot.
    - `store`: position of the state store, None while it is empty. Used only if the daemon `has_store`.
    - `newly_published`: names of spaces that the checkpoint knows as not published and that the configuration publishes.
    - `forced`: why a snapshot has to be taken, as found by an earlier stream or by the choice of this member.
    - `wants_id`: the daemon is to be registered in the replica set.
    - `is_store_ours`: False if a daemon with another state directory wrote the checkpoint last, so that the store may be an old
      copy, and no order says to continue with it.
    - `store_name`: name of the store in messages.
    - `choice`: the number of what the configuration lets the first snapshot publish.
    - `given`: the highest numbers that consumers may have seen, by all that remembers them.
    - `thrown_back`: why the checkpoint isn't the newest one, None if it is (cdc.upstream.witnesses).
    """

    checkpoint: Position | None = None
    has_store: bool = False
    store: Position | None = None
    newly_published: tuple[str, ...] = ()
    forced: str | None = None
    is_first_connect: bool = False
    mode: SnapshotMode = "initial"
    on_gap: Policy = "resnapshot"
    on_divergence: Policy = "fail"
    ignored: frozenset[int] = frozenset()
    wants_id: bool = False
    is_store_ours: bool = True
    store_name: str = "in state.path"
    choice: int = 0
    given: Numbers = field(default_factory=Numbers)
    thrown_back: str | None = None


class StateForeignError(StateError):
    """The state store isn't the one that the checkpoint was written with, and can't be brought up to it."""


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Read the contents first. If `publish` is false, only the schema is taken from them."""

    reason: str
    publish: bool = True


class FollowAs(Enum):
    """The daemon's role in the replica set while it follows the stream."""

    ANONYMOUS = "anonymous"
    BEHIND = "anonymous until all that the master had is durable; the next connection asks for an id"
    NEW_MEMBER = "registered, once an id has been asked for"
    MEMBER = "registered"


@dataclass(frozen=True, slots=True)
class StartPlan:
    """What to do at the start of a connection, in this order.

    - `clears_store`: why the state store has to be emptied, if so.
    - `position`: where the rows begin.
    - `snapshot`: the snapshot to take before them, if any.
    - `catch_up_to`: rows up to this position are already published, and only change the state store.
    - `wants_id`: JOIN provides the snapshot, and the daemon follows the stream as a member.
    - `given`: the snapshot's numbers must be above these.
    """

    position: Position
    snapshot: TakeSnapshot | None = None
    catch_up_to: Position | None = None
    clears_store: str | None = None
    wants_id: bool = False
    ignored: frozenset[int] = frozenset()
    given: Numbers = field(default_factory=Numbers)

    def follow_as(self, *, has_id: bool, vclock: VClock, master: VClock, seconds_since_caught_up: float) -> FollowAs:
        """Return the role to follow in from `vclock`. The master was at `master`; `has_id`: the master knows an id for the
        daemon.

        A daemon that has no id yet and is behind follows anonymously first. A master from 3.3 on keeps logs for an anonymous
        replica, too, and the end of a REGISTER moves the start of these logs to the master's own position. The logs from
        `vclock` up to there, which the daemon has yet to read and to make durable, might then be deleted at any time.
        """
        if not self.wants_id:
            return FollowAs.ANONYMOUS
        if has_id:
            return FollowAs.MEMBER
        if seconds_since_caught_up > CAUGHT_UP_SECONDS and not vclock.covers(resume.target(master, self.ignored)):
            return FollowAs.BEHIND
        return FollowAs.NEW_MEMBER


class _Store(Enum):
    """Usability of the state store's rows."""

    ABSENT = "there is none"
    LEVEL = "they are what consumers have"
    BEHIND = "the stream leads from them to what consumers have"
    USELESS = "they are neither"


def needed(known: Known) -> Needed:
    """Return what a member must have to be followed. Raises PositionError if the store belongs to another replica set."""
    store, _ = _compare(known)
    published = known.checkpoint.vclock if known.checkpoint is not None else VClock()
    if known.thrown_back is not None and known.store is not None and known.store.vclock.covers(published):
        published = known.store.vclock  # consumers have had the events up to there
    return Needed(
        published=published,
        logs_from=known.store.vclock if store is _Store.BEHIND and known.store is not None else published,
        takes_snapshot=_snapshot_anyway(known) is not None,
        ignored=known.ignored,
        replicaset_uuid=known.checkpoint.replicaset_uuid if known.checkpoint is not None else None,
    )


def plan(known: Known, ballot: Ballot) -> StartPlan:
    """Return what to do with the server that has this ballot.

    Raises StateForeignError, and PositionError if the policy is to fail.
    """
    check_store(known)
    store, useless_because = _compare(known)
    begins_at_store = store is _Store.BEHIND
    snapshot = _snapshot_anyway(known)
    if snapshot is None:
        assert known.checkpoint is not None
        snapshot = _snapshot_for(known, ballot, known.store if begins_at_store else None)
    at_checkpoint = StartPlan(
        known.checkpoint or Position(), snapshot, wants_id=known.wants_id, ignored=known.ignored, given=known.given
    )
    state = known.checkpoint.snapshot if known.checkpoint is not None else None
    if snapshot is not None and snapshot.publish and store is _Store.LEVEL and state is not None and state.is_silent:
        store, useless_because = _Store.USELESS, "the state store has rows of a snapshot that wasn't published"
    if store is _Store.LEVEL and state is not None and state.is_first and not state.is_complete and state.choice != known.choice:
        # What consumers have of the rows that it has read isn't what they would have now.
        store = _Store.USELESS
        useless_because = "the first snapshot was interrupted, and snapshot.spaces or snapshot.filters aren't what they were then"
    if snapshot is not None and store in (_Store.BEHIND, _Store.USELESS):
        _check_is_ours(known, useless_because or snapshot.reason)
        return replace(at_checkpoint, clears_store=useless_because or snapshot.reason)
    if begins_at_store and known.store is not None:
        return replace(at_checkpoint, position=known.store, catch_up_to=at_checkpoint.position)
    return at_checkpoint


def check_store(known: Known) -> None:
    """Raise StateForeignError if the need for it is clear before there is a ballot. Raises PositionError as `needed` does."""
    store, reason = _compare(known)
    if store is _Store.USELESS and reason is not None:
        _check_is_ours(known, reason)


def makes_ours(known: Known) -> bool:
    """Return whether the store is this daemon's own after a start from here that wasn't refused, whosever it was.

    It has the rows that consumers have then, or is emptied. One that is behind has to be read up to the checkpoint first.
    """
    store, _ = _compare(known)
    return store is not _Store.BEHIND


def _check_is_ours(known: Known, reason: str) -> None:
    """Raise StateForeignError rather than empty a foreign store: a snapshot couldn't tell then which rows consumers have."""
    checkpoint = known.checkpoint
    if known.is_store_ours or checkpoint is None or checkpoint.snapshot is None or known.mode == "never":
        return
    where = f"it is at {known.store.vclock}" if known.store is not None else "it is empty"
    is_told = str(checkpoint.vclock) in reason or (known.store is not None and known.store.vclock == checkpoint.vclock)
    raise StateForeignError(
        f"the state store {known.store_name} (state.path) isn't the one that the checkpoint was written with, "
        "or is an older copy of it: "
        f"{reason if is_told else f'{where}, the checkpoint is at {checkpoint.vclock} ({reason})'}. "
        "With this store, all rows would be published again",
        "In state.path name the directory of the daemon that runs, or ran last. If it is lost, start once with --rebuild-state.",
    )


def _compare(known: Known) -> tuple[_Store, str | None]:
    """Return how the store's rows relate to the rows that consumers have; if useless, with the reason. Raises PositionError."""
    kafka, store = known.checkpoint, known.store
    if not known.has_store:
        return _Store.ABSENT, None
    if kafka is None or kafka.snapshot is None:
        if store is None:
            return _Store.LEVEL, None
        return _Store.USELESS, known.thrown_back or "there is no checkpoint, so what the state store has was never published"
    if store is None or store.snapshot is None:
        # If it has rows all the same, they aren't this daemon's.
        return _Store.USELESS, "there is nothing in the state store"
    resume.check_replicaset_of_store(kafka, store)
    if known.thrown_back is not None:
        # Consumers may have events that neither the checkpoint nor the store knows of.
        return _Store.USELESS, known.thrown_back
    if not (kafka.snapshot.is_complete and store.snapshot.is_complete and store.snapshot.base_id == kafka.snapshot.base_id):
        # A snapshot will be taken, and has to be compared with the rows that consumers have: those at the checkpoint.
        if (store.vclock, store.seq, store.snapshot) == (kafka.vclock, kafka.seq, kafka.snapshot):
            return _Store.LEVEL, None
        # Or those at the store, if the interrupted snapshot had published nothing but its beginning.
        says_the_same = (store.seq, store.schema_version, store.rekeyed) == (kafka.seq, kafka.schema_version, kafka.rekeyed)
        # Not if it was compared with nothing, and this is another daemon's store: consumers would sweep the rows that it skips.
        keeps_rows = kafka.snapshot.sweep_seq in (0, store.snapshot.sweep_seq)
        if says_the_same and keeps_rows and not kafka.snapshot.is_complete and kafka.vclock.covers(store.vclock):
            return _Store.LEVEL, None
        return _Store.USELESS, "the state store lacks the end of the last snapshot"
    if store.vclock == kafka.vclock:
        return _Store.LEVEL, None
    if kafka.vclock.covers(store.vclock):
        return _Store.BEHIND, None
    return _Store.USELESS, f"the state store is at {store.vclock}, the checkpoint at {kafka.vclock}"


def _snapshot_anyway(known: Known) -> TakeSnapshot | None:
    """Return the snapshot that has to be taken whatever the server's ballot contains, or None."""
    position, mode = known.checkpoint, known.mode
    if known.forced is not None:
        # Changes that the stream couldn't bring must be published, in any mode.
        return TakeSnapshot(known.forced)
    if known.thrown_back is not None:
        # So must changes that Kafka may have lost.
        return TakeSnapshot(known.thrown_back)
    if position is None or position.snapshot is None:
        if mode == "never":
            return TakeSnapshot("snapshot.mode is never: only the schema is read", publish=False)
        return TakeSnapshot("there is no checkpoint")
    store, reason = _compare(known)
    if store is not _Store.USELESS:
        if known.has_store and known.newly_published:
            reason = f"newly published: {', '.join(known.newly_published)}"
        elif not known.has_store and position.rekeyed:
            reason = "rows were being published again from the state store, which isn't there any more"
    if reason is None and not position.snapshot.is_complete:
        reason = "the last snapshot was interrupted"
    if reason is not None:
        # Consumers know the changes up to the checkpoint, so later changes must be published too, in any mode.
        return TakeSnapshot(reason, publish=mode != "never" or not position.snapshot.is_silent)
    if mode in ("always", "snapshot_only") and known.is_first_connect:
        return TakeSnapshot(f"snapshot.mode is {mode}")
    return None


def _snapshot_for(known: Known, ballot: Ballot, store: Position | None) -> TakeSnapshot | None:
    """Return the snapshot that the ballot requires, or None. `store` is where the stream would begin, if not at the checkpoint.

    Raises PositionError if the policy is to fail.
    """
    position = known.checkpoint
    assert position is not None
    report = resume.lost_history(position.vclock, ballot, known.ignored)
    if report:
        if known.on_divergence == "fail":
            raise PositionError(
                f"the server lacks changes that were published: it is at {ballot.vclock}, the checkpoint at {position.vclock} "
                f"({report})",
                resume.DIVERGENCE_HINT,
            )
        return TakeSnapshot(f"the server lacks changes that were published ({report})")
    report = resume.missing_logs((store or position).vclock, ballot, known.ignored)
    if not report:
        return None
    after = "the state store's position" if store is not None else "the checkpoint"
    if resume.fails_on_gap(known.on_gap, known.mode):
        at = f"the state store is at {store.vclock}, " if store is not None else ""
        raise PositionError(
            f"the server no longer has the logs after {after}: it keeps them from {ballot.gc_vclock}, "
            f"{at}the checkpoint is at {position.vclock} ({report})",
            resume.GAP_HINT,
        )
    return TakeSnapshot(f"the server no longer has the logs after {after} ({report})")
