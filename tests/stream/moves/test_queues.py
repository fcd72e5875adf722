"""What consumers of topics that shards share see of real clusters while buckets move: the users' changes, once and in order."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise, product
from typing import Any, Final

import pytest

from cdc.protocol.constants import Type
from cdc.stream.moves.held import Held, HeldRow, Origin, unpack
from cdc.stream.moves.queues import BucketQueues, Fate
from cdc.stream.moves.records import BucketRecord, ShardRecord, Shards, Step, Verdict, bucket_key
from tests.fakes.moving import CAPTURES, Cluster, Daemon, expected, kept, meet, outcome, pieces, seen

NAMES: Final = ("a1", "b1", "c1")
CRASHES_MAX: Final = 6
BUCKET_OF_DOUBLE: Final = 20
"""In `f`: the bucket of a row whose double is an integer after its move."""
TWO_BUCKETS: Final = ("orders", 1062)
"""In `c`: a key that rows of two buckets have at the same time. Nothing orders the one's changes before the other's."""


def shards() -> Shards:
    """A fleet of two, of which this is the first, and whose daemons have seen each other."""
    found = Shards("s1", ("s1", "s2"))
    for name, other in (("s1", "s2"), ("s2", "s1")):
        found.fold(name, bucket_key(None), ShardRecord(f"{name} there", 1, {other: 1}, is_settled=True).to_json())
    return found


def cluster_of(capture: str) -> tuple[Cluster, list[Daemon]]:
    """A captured cluster, with a daemon for each shard that has read nothing yet."""
    cluster = Cluster(NAMES)
    daemons = [Daemon(cluster, name, pieces(CAPTURES / capture / name)) for name in NAMES]
    meet(daemons)
    return cluster, daemons


def run(capture: str, seed: int, *, crashes: int) -> tuple[Cluster, list[Daemon]]:
    """Three daemons read at different speeds, are killed, and have stores that lag."""
    chance = random.Random(seed)
    cluster, daemons = cluster_of(capture)
    speeds = [chance.choice((1, 1, 5, 20)) for _ in daemons]
    while not all(daemon.is_done for daemon in daemons):
        (daemon,) = chance.choices(daemons, speeds)
        daemon.read(chance.choice((1, 3, 20, 200)))
        if chance.random() < 0.7:
            daemon.hear()
        if chance.random() < 0.7:
            daemon.commit(chance.choice((1, 2, None)))
        if chance.random() < 0.3:
            daemon.flush()
        if crashes and chance.random() < 0.05:
            daemon.start()
            crashes -= 1
    come_to_rest(daemons)
    return cluster, daemons


def come_to_rest(daemons: Iterable[Daemon]) -> None:
    """Each hears what the others have to say, as long as that makes a difference."""
    for _ in range(24):
        for daemon in daemons:
            daemon.hear()
            daemon.answer()
            daemon.commit()


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(("seed", "crashes"), [(1, 0), (2, CRASHES_MAX)])
@pytest.mark.parametrize("capture", ["c", "d", "e", "i_e"])
def test_only_users_changes_in_their_order(capture: str, seed: int, crashes: int) -> None:
    cluster, daemons = run(capture, seed, crashes=crashes)
    assert [daemon.waits for daemon in daemons] == [{}, {}, {}]
    wanted, found = expected(capture), seen(cluster.events)
    if capture == "c":
        assert by_bucket(found.pop(TWO_BUCKETS)) == by_bucket(wanted.pop(TWO_BUCKETS))
    assert found == wanted
    assert kept(daemons) == rows_of(capture)
    for daemon in daemons:
        own = [event["source"]["seq"] for event in cluster.events if event["source"]["shard"] == daemon.name]
        assert own == sorted(set(own))


def rows_of(capture: str) -> list[list[Any]]:
    """What the cluster ended with."""
    return sorted((row for rows in outcome(capture).values() for row in rows), key=repr)


def by_bucket(changes: Iterable[tuple[str, Any, Any]]) -> dict[Any, list[tuple[str, Any, Any]]]:
    """The changes of one key of orders, by the bucket of its row."""
    found: dict[Any, list[tuple[str, Any, Any]]] = {}
    for change in changes:
        found.setdefault((change[2] or change[1])[1], []).append(change)
    return found


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("seed", [1])
def test_past_the_router(seed: int) -> None:
    """Consumers end with what the cluster has, also of an INSERT into a bucket that arrives, and of a dead copy brought back."""
    cluster, daemons = run("g", seed, crashes=CRASHES_MAX)
    found, wanted = seen(cluster.events), outcome("g")
    assert not {key for key in found.keys() | wanted.keys() if not _is_right(found.get(key), wanted.get(key, []))}
    assert all(daemon.shards.doubled == {13: {"a1", "c1"}} for daemon in daemons)


@pytest.mark.usefixtures("path")
def test_a_value_that_a_server_changes_on_the_way() -> None:
    """All rows of its bucket are shown once more, and of no other; they are what its owner has."""
    cluster, daemons = run("f", 1, crashes=0)
    found = seen(cluster.events)
    again = {
        key: after
        for key, changes in found.items()
        for (_, _, former), (op, _, after) in pairwise(changes)
        if op == "c" and former is not None
    }
    assert again.keys() == {(table, key) for table, key in found if (found[table, key][0][2] or [0, 0])[1] == BUCKET_OF_DOUBLE}
    assert again["orders", 1069] == [1069, 20, "double 2.0, moved", 2, 479, {"f": 1}]
    assert [daemon.moves.queues.changed_count for daemon in daemons] == [0, 0, 1]


def _is_right(changes: list[tuple[str, Any, Any]] | None, rows: list[Any]) -> bool:
    last = changes[-1][2] if changes else None
    return last in rows if last is not None else not rows


@pytest.mark.usefixtures("path")
def test_the_source_is_away() -> None:
    """Its buckets wait, and no others; then they go on."""
    cluster, daemons = cluster_of("d")
    away, *others = daemons
    for daemon in others:
        daemon.read(10_000)
        daemon.commit()
    come_to_rest(others)
    waits = {bucket: shard for daemon in others for bucket, shard in daemon.waits.items()}
    assert waits
    assert set(waits.values()) == {"a1"}
    wanted = expected("d")
    for key, changes in seen(cluster.events).items():
        assert changes == wanted[key][len(wanted[key]) - len(changes) :] or changes == wanted[key][: len(changes)]
    away.read(10_000)
    away.commit()
    come_to_rest(daemons)
    assert not any(daemon.waits for daemon in daemons)
    assert seen(cluster.events) == wanted


@pytest.mark.usefixtures("path")
def test_killed_while_rows_wait() -> None:
    """The store is of a time before them, and the checkpoint of one after them: they wait again, and are published once."""
    cluster, daemons = cluster_of("d")
    away, *others = daemons
    for daemon in others:
        daemon.read(10_000)
        daemon.commit()
        waits = daemon.waits
        daemon.start()
        daemon.read(10_000)
        daemon.hear()
        daemon.commit()
        assert daemon.waits == waits
    away.read(10_000)
    away.commit()
    come_to_rest(daemons)
    assert seen(cluster.events) == expected("d")
    assert kept(daemons) == rows_of("d")


@pytest.mark.usefixtures("path")
def test_killed_when_rows_have_gone_on() -> None:
    """The store has them as rows that wait, and Kafka has their events: the store gets the rows, and no event comes twice."""
    cluster, daemons = cluster_of("d")
    away, *others = daemons
    for daemon in others:
        daemon.read(10_000)
        daemon.commit()
        daemon.flush()
    away.read(10_000)
    away.commit()
    come_to_rest(daemons)
    for daemon in others:
        daemon.start()
    come_to_rest(daemons)
    assert seen(cluster.events) == expected("d")
    assert kept(daemons) == rows_of("d")


@pytest.mark.usefixtures("path")
@pytest.mark.one_of_these
@pytest.mark.parametrize("seed", range(4))
def test_from_any_checkpoint(seed: int) -> None:
    """The servers' snapshots are of different moments of moves: consumers end with the cluster's rows.

    If the one of the source is of a time after `sent`, and the one of the destination of a time before, what has arrived is
    the only copy. If both are of a time when they owned the bucket, both publish the rows, and the destination is right.
    """
    counts = [len(list((CAPTURES / "j" / name).glob("*.snap.gz"))) for name in NAMES]
    chance = random.Random(seed)
    for places in sorted(product(*map(range, counts)))[seed::4]:
        cluster = Cluster(NAMES)
        daemons = [Daemon(cluster, name, pieces(CAPTURES / "j" / name, place)) for name, place in zip(NAMES, places, strict=True)]
        while not all(daemon.is_done for daemon in daemons):
            daemon = chance.choice(daemons)
            daemon.read(chance.choice((3, 200)))
            daemon.hear()
            daemon.commit()
        come_to_rest(daemons)
        assert not any(daemon.waits for daemon in daemons), places
        wanted = {key: rows[0] for key, rows in outcome("j").items() if rows}
        found = {key: changes[-1][2] for key, changes in seen(cluster.events).items() if changes[-1][2] is not None}
        assert found == wanted, places


@pytest.mark.usefixtures("path")
def test_killed_before_a_snapshots_rows_are_published_once_more() -> None:
    """All of them are, though no row of their spaces has come since the start."""
    cluster = Cluster(NAMES)
    source, destination, third = daemons = [
        Daemon(cluster, name, pieces(CAPTURES / "j" / name, place)) for name, place in zip(NAMES, (0, 3, 0), strict=True)
    ]
    destination.read(10_000)
    destination.commit()
    destination.flush()
    destination.start()
    for daemon in (source, third):
        daemon.read(10_000)
        daemon.commit()
    come_to_rest(daemons)
    wanted = {key: rows[0] for key, rows in outcome("j").items() if rows}
    found = {key: changes[-1][2] for key, changes in seen(cluster.events).items() if changes[-1][2] is not None}
    assert found == wanted


@pytest.mark.usefixtures("path")
def test_a_former_version_has_recorded_nothing() -> None:
    """Then the buckets are recorded as they are at the checkpoint, and moves are hidden from there on."""
    cluster, daemons = cluster_of("e")
    for daemon in daemons:
        daemon.read(130)
        daemon.commit()
        daemon.flush()
    cluster.records.clear()
    for daemon in daemons:
        daemon.start()
    meet(daemons)
    for daemon in daemons:
        daemon.read(10_000)
        daemon.commit()
    come_to_rest(daemons)
    assert not any(daemon.waits for daemon in daemons)
    assert seen(cluster.events) == expected("e")


ORIGIN: Final = Origin(1, 5, 5, 0.0, 1, b"4", {1: 5})


def hold(
    queues: BucketQueues, space_id: int, key: bytes, kind: int, place: tuple[int, int], *, bucket: int = 7, **row: Any
) -> Held:
    """Have a row wait."""
    return queues.hold(bucket, (1, *place), HeldRow(space_id, key, kind, *place, b"frame", ORIGIN, **row))


def test_a_space_that_is_emptied() -> None:
    """Its rows wait no longer, and nothing of them is left; the other space's do."""
    queues = BucketQueues(Shards("s1", ("s1", "s2")))
    queues.step(7, Step("receiving", 1, "elsewhere"), (1, 1, 0))
    assert queues.step(7, Step("active", 1), (1, 2, 0)) is not None
    for number, space_id in enumerate((513, 514, 513)):
        hold(queues, space_id, b"key %d" % number, Type.REPLACE, (5, number))
    assert list(queues.advance(1)) == []
    assert queues.waits[7].waits_for == "s2"
    assert [held.row.key for held in queues.forget_space(513) if held.row is not None] == [b"key 0", b"key 2"]
    assert queues.waiting.row_count == 2
    assert queues.fate(Type.REPLACE, b"key 1", 9, (1, 9, 0)) == (Fate.FOLLOWS, 9)
    assert queues.fate(Type.REPLACE, b"key 0", 9, (1, 9, 0))[0] is Fate.PUBLISHED
    queues.forget_space(514)
    queues.begin({}, "here", 1)
    assert (queues.waiting.row_count, queues.waiting.byte_count, queues.waits) == (0, 0, {})


def test_a_key_that_arrives_after_its_space_was_emptied() -> None:
    """Nothing before that concerns it: it has been published where it comes from."""
    queues = BucketQueues(Shards("s1", ("s1", "s2")))
    queues.step(7, Step("receiving", 1, "elsewhere"), (1, 1, 0))
    for number, space_id in enumerate((514, 513)):
        hold(queues, space_id, b"key %d" % space_id, Type.REPLACE, (5, number))
    queues.forget_space(513)
    hold(queues, 513, b"key 513", Type.INSERT, (6, 0))
    queues.step(7, Step("garbage", 1), (1, 7, 0))
    fates = [(one.row.key, fate) for one, fate in queues.advance(1) if isinstance(one, Held) and one.row is not None]
    assert fates == [(b"key 514", Fate.LOST), (b"key 513", Fate.SILENT)]


def test_what_waits_is_the_same_from_the_store() -> None:
    queues = BucketQueues(Shards("s1", ("s1", "s2")))
    queues.step(7, Step("sending", 1, "elsewhere"), (1, 1, 0))
    held = [
        hold(queues, 513, b"key", Type.REPLACE, (5, 0)),
        queues.step(7, Step("active", 1), (1, 6, 0)),
    ]
    again = BucketQueues(Shards("s1", ("s1", "s2")))
    again.records = dict(queues.records)
    for each in held:
        assert each is not None
        assert unpack(each.pack()) == each
        again.append(unpack(each.pack()))
    assert again.waiting.byte_count == queues.waiting.byte_count
    again.end_past()
    found: list[tuple[object, bool]] = [(fate, one.row is not None) for one, fate in again.advance(1) if isinstance(one, Held)]
    assert found == [(Fate.PUBLISHED, True), (Fate.PUBLISHED, False)]
    assert not again.are_moving


def test_the_first_row_that_waits_at_a_checkpoint() -> None:
    """Those before it are published, and those behind it wait, too, whatever the state at the checkpoint."""
    queues = BucketQueues(Shards("s1", ("s1", "s2")))
    queues.records[7] = BucketRecord("active", 2, head=(1, 5, 1))
    queues.is_past = True
    places = ((1, 5, 0), (2, 5, 1), (1, 5, 1))
    assert [queues.fate(Type.UPDATE, b"key", 7, place)[0] for place in places] == [Fate.PUBLISHED, Fate.PUBLISHED, Fate.WAITS]
    hold(queues, 513, b"key", Type.UPDATE, (5, 1))
    assert queues.fate(Type.UPDATE, b"other key", 7, (1, 6, 0)) == (Fate.WAITS, 7)
    assert queues.step(7, Step("readonly", 2), (1, 7, 0)) is not None


def released(queues: BucketQueues) -> list[tuple[int, object]]:
    """The lsns of what goes on, with its fate."""
    return [(held.place[1], fate) for held, fate in queues.advance(1) if isinstance(held, Held)]


@pytest.mark.parametrize(("kind", "status"), [(Type.INSERT, "receiving"), (Type.DELETE, "garbage")])
def test_a_row_behind_others_of_its_key_has_the_fate_of_its_own_bucket(kind: int, status: str) -> None:
    """The bucket's next state waits for it, whatever is ahead of the row."""
    queues = BucketQueues(Shards("s1", ("s1", "s2")))
    queues.step(7, Step("sending", 1, "elsewhere"), (1, 1, 0))
    queues.step(8, Step(status, 1, "elsewhere"), (1, 2, 0))
    hold(queues, 513, b"key", Type.REPLACE, (5, 0), bucket_after=8)
    found, bucket = queues.fate(kind, b"key", 8, (1, 6, 0))
    assert (found, bucket) == (Fate.FOLLOWS, 8)
    hold(queues, 513, b"key", kind, (6, 0), bucket=8, is_follower=True)
    assert queues.step(8, Step("garbage", 1), (1, 7, 0)) is not None
    assert released(queues) == []
    assert queues.waits.keys() == {7, 8}
    queues.step(7, Step("active", 1), (1, 8, 0))
    assert released(queues) == [(5, Fate.PUBLISHED), (6, Fate.SILENT), (8, Fate.PUBLISHED), (7, Fate.PUBLISHED)]
    assert (queues.waits, queues.waiting.row_count, queues.waiting.byte_count) == ({}, 0, 0)


def test_a_row_in_a_queue_waits_for_the_earlier_rows_of_its_key() -> None:
    queues = BucketQueues(shards())
    for bucket in (7, 8):
        queues.step(bucket, Step("sending", 1, "elsewhere"), (1, bucket - 6, 0))
    hold(queues, 513, b"key", Type.REPLACE, (5, 0), bucket_after=8)
    hold(queues, 513, b"key", Type.REPLACE, (6, 0), bucket=8)
    queues.step(8, Step("active", 1), (1, 7, 0))
    assert released(queues) == []
    queues.step(7, Step("sent", 1, "elsewhere"), (1, 8, 0))
    assert released(queues) == [(5, Fate.LOST), (8, Fate.PUBLISHED), (6, Fate.PUBLISHED), (7, Fate.PUBLISHED)]


def test_what_one_row_of_the_log_stands_for_goes_on_together() -> None:
    """Its place says which of it waits at a checkpoint. So none goes on before all can, and no batch ends in between."""
    queues = BucketQueues(Shards("s1", ("s1", "s2")))
    for bucket in (7, 8):
        queues.step(bucket, Step("sending", 1, "elsewhere"), (1, bucket - 6, 0))
    hold(queues, 513, b"key", Type.REPLACE, (5, 0), bucket_after=8)
    for key in (b"another", b"key"):
        hold(queues, 513, key, Type.DELETE, (6, 0), bucket=8)
    queues.step(8, Step("active", 1), (1, 7, 0))
    assert released(queues) == []
    queues.step(7, Step("active", 1), (1, 8, 0))
    settled = [(held.place[1], queues.is_settled) for held, _ in queues.advance(1) if isinstance(held, Held)]
    assert settled == [(5, True), (8, True), (6, False), (6, True), (7, True)]


def test_replica_sets_that_are_called_by_name() -> None:
    """A shard may have another name than its replica set; a name that nobody has is told."""
    shards = Shards("s1", ("s1", "s2", "s3"), {"s1": "s1", "s2": "storage-2", "s3": "s3"})
    for name, uuid in (("s1", "1"), ("s2", "2"), ("s3", "3")):
        shards.fold(name, bucket_key(None), b'{"replicaset_uuid":"%b"}' % (uuid * 8).encode())
    shards.fold("s3", bucket_key(5), BucketRecord("sent", first=1, sent={"storage-2": 1}).to_json())
    arrival = BucketRecord("receiving", 2, "storage-2")
    assert shards.verdict(5, arrival, "11111111") == Verdict("s2", asks=True), "it may have had the bucket after s3"
    shards.fold("s2", bucket_key(5), BucketRecord("sent", 2, "s1", first=1).to_json())
    assert shards.verdict(5, arrival, "11111111") == Verdict(None, is_recorded=True)
    old = BucketRecord("receiving", peer="storage-2", aligned={"storage-2": (0, 0)})
    shards.fold("s2", bucket_key(5), BucketRecord("sent", sent={"s1": 1}).to_json())
    assert shards.verdict(5, old, "11111111") == Verdict(None, is_recorded=True)
    uuid = "aaaaaaaa-000a-4000-8000-000000000000"
    assert [peer for peer in (None, uuid, "22222222", "s1", "storage-2", "s2") if shards.is_stranger(peer)] == ["s2"]
    queues = BucketQueues(shards)
    queues.step(6, Step("sending", 1, "elsewhere"), (1, 1, 0))
    queues.step(6, Step("sent", 1, "s3"), (1, 2, 0))
    assert queues.strangers == {"elsewhere"}


def test_fates() -> None:
    queues = BucketQueues(shards())
    for bucket, status in enumerate(("active", "receiving", "sending", "sent", "garbage"), 1):
        queues.step(bucket, Step(status, 1, "elsewhere"), (1, bucket, 0))
    kinds = (Type.INSERT, Type.REPLACE, Type.DELETE)
    published, silent, lost, waits = Fate.PUBLISHED, Fate.SILENT, Fate.LOST, Fate.WAITS
    found = [[queues.fate(kind, b"key", bucket, (1, 10, 0))[0] for kind in kinds] for bucket in range(1, 7)]
    assert found == [
        [published] * 3,
        [silent, waits, waits],
        [waits] * 3,
        [lost] * 3,
        [lost, lost, silent],
        [published] * 3,
    ]
