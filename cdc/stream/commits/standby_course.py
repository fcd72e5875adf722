"""Decides how a standby's state store gets to the rows that consumers have, from a member's answer.

    checkpoint K, store S, logs  ──▶ WAIT     K is in the middle of a snapshot: what consumers have isn't a moment of the log
                                 ──▶ FOLLOW   S ≤ K, and the member has the logs from S on
                                 ──▶ FILL     from the member's contents

The store equals the fold of the log up to a checkpoint. So a standby reads the log itself, and Kafka only for how far: the topics
have no bytes of rows, and reading them back would cost as much as the log. It fills its store from a member's contents as of V,
and follows from there. The store counts once it is at a checkpoint exactly: then it has the checkpoint's numbers and forms, too.
"""

from __future__ import annotations

from enum import Enum

from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.stream.commits.checkpoint import Checkpoint


class Course(Enum):
    """What the standby does next for its store."""

    WAIT = "wait for the end of the snapshot that is being published"
    FOLLOW = "follow the log from the store's position on"
    FILL = "fill the store from a member's contents"


def is_whole(kafka: Position | None) -> bool:
    """Return whether what consumers have at this checkpoint is a moment of the log."""
    return kafka is not None and kafka.snapshot is not None and kafka.snapshot.is_complete


def is_behind(kafka: Position | None, store: Position | None) -> bool:
    """Return whether the log leads from the store's rows to those at the checkpoint, or they are the same."""
    if kafka is None or store is None or kafka.snapshot is None or store.snapshot is None:
        return False
    has_same_base = kafka.snapshot.is_complete and store.snapshot.is_complete and kafka.snapshot.base_id == store.snapshot.base_id
    return has_same_base and kafka.replicaset_uuid == store.replicaset_uuid and kafka.vclock.covers(store.vclock)


def course(kafka: Position | None, store: Position | None, kept_from: VClock) -> Course:
    """Return what to do with the member that keeps its logs from this position on."""
    if not is_whole(kafka):
        return Course.WAIT
    if store is None or not is_behind(kafka, store) or not store.vclock.covers(kept_from):
        return Course.FILL
    return Course.FOLLOW


def aligned(store: Checkpoint, kafka: Checkpoint) -> Checkpoint | None:
    """Return what the store's position and forms have to become, now that its rows are those at Kafka's checkpoint.

    Returns None if they aren't, or if nothing has to change. A store that was filled has forms under versions of its own, and
    doesn't count before this. One that was followed has Kafka's versions, unless a form was changed and changed back while the
    store was between two checkpoints.
    """
    here, there = store.position, kafka.position
    if here is None or there is None or not is_whole(there) or there.rekeyed or here.vclock != there.vclock:
        return None
    if has_other_rows(here, there):
        return None
    versions = {space_id: space.schema_version for space_id, space in store.spaces.items()}
    has_same_forms = versions == {space_id: space.schema_version for space_id, space in kafka.spaces.items()}
    if has_same_forms and is_behind(there, here) and here.schema_version == there.schema_version:
        return None
    return Checkpoint(there, dict(kafka.spaces))


def has_other_rows(store: Position, kafka: Position) -> bool:
    """Return whether the rows of a store at Kafka's checkpoint aren't those that consumers have.

    A store that was filled has the server's rows of the doubtful keys, and consumers have those from before the rows that
    couldn't be applied. The next event of such a key would have another `before`, or be missing. A store that was followed has
    what consumers have.
    """
    return bool(kafka.doubtful) and not is_behind(kafka, store)
