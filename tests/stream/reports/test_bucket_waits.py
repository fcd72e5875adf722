"""What operators are told about buckets that wait."""

from __future__ import annotations

from cdc.commands.status import bucket_lines
from cdc.ops.status import Status
from cdc.ops.troubles import current
from cdc.protocol.constants import Type
from cdc.stream.moves.held import HeldRow, Origin
from cdc.stream.moves.queues import BucketQueues
from cdc.stream.moves.records import Shards, Step
from cdc.stream.reports.bucket_waits import BucketsState


def state_of(queues: BucketQueues, *, overdue_us: int = 0, is_full: bool = False) -> BucketsState:
    return BucketsState.of(queues, {3: ["s1", "s2"]}, is_full=is_full, overdue_us=overdue_us, lost_before=2)


def test_nothing_waits() -> None:
    state = state_of(BucketQueues(Shards("s1", ("s1", "s2"))))
    assert (state.sentence(5), state.oldest_seconds(5), state.is_overdue, state.lost_count) == (None, 0.0, False, 2)
    assert bucket_lines(state.to_json(5))[-1] == ("two owners", "bucket 3 belongs to the shards s1, s2")


def test_for_whom_and_how_long() -> None:
    queues = BucketQueues(Shards("s1", ("s1", "s2")))
    for bucket in (7, 8):
        queues.step(bucket, Step("receiving", 1, "elsewhere"), (1, bucket, 0))
        queues.step(bucket, Step("active", 1), (1, 10 + bucket, 0))
        assert list(queues.advance(bucket * 1_000_000)) == []
    queues.step(9, Step("sending", 1, "elsewhere"), (1, 30, 0))
    queues.hold(9, (1, 31, 0), HeldRow(513, b"key", Type.REPLACE, 31, 0, b"frame", Origin(1, 31, 31, 0.0, 1, b"30", {1: 31})))
    assert list(queues.advance(9_000_000)) == []
    state = state_of(queues, overdue_us=7_000_000, is_full=True)
    assert state.sentence(17_000_000) == (
        "bucket 7 has been waiting for 10 s for the daemon of the shard 's2', which hasn't published yet what users did there "
        "before the move, and 2 more buckets wait; so much waits that this daemon reads nothing until then"
    )
    assert state.is_overdue
    assert not state_of(queues, overdue_us=6_999_999).is_overdue
    shown = state.to_json(17_000_000)
    assert [(wait["bucket_id"], wait["waits_for"], wait["seconds"]) for wait in shown["waits"]] == [
        (7, "s2", 10.0),
        (8, "s2", 9.0),
        (9, None, 8.0),
    ]
    status = Status("shop.s1", buckets=state)
    assert "bucket 7 has been waiting" in (status.shown_error or "")
    assert status.shards_waited_for() == {"s2"}


def test_a_replica_set_whose_name_no_shard_has() -> None:
    """Which rows came from where can't be told then: operators are, with the key of the configuration."""
    queues = BucketQueues(Shards("s1", ("s1", "s2")))
    queues.step(7, Step("sending", 1, "s2"), (1, 1, 0))
    assert state_of(queues).strangers_sentence is None
    queues.step(8, Step("sending", 1, "storage-2"), (1, 2, 0))
    state = state_of(queues)
    status = Status("shop.s1", buckets=state)
    assert "no shard has the name 'storage-2'" in str(status.shown_error)
    (trouble,) = current(status)
    assert (trouble.loses_rows, "fleet.shards.<shard>.replicaset_name" in trouble.remedy) == (True, True)
    assert ("no shard", "has the replica set's name that `_bucket` has: storage-2") in bucket_lines(state.to_json(5))
