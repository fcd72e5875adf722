"""Who owns the prefix of a fleet, and whose topics its daemons may write to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from cdc.config import KafkaSection
from cdc.config.shard import Shard
from cdc.errors import PublishError
from cdc.kafka import fleet_claim, readers_view
from cdc.kafka.clients import KafkaClients
from cdc.kafka.publisher import Publisher
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.stream.batches.batch import Batch
from cdc.stream.commits.checkpoint import Writer, owner_record
from cdc.stream.commits.ownership import PrefixTakenError
from tests.fakes.kafka import Cluster, clients
from tests.kafka.test_lost_topics import until_it_ends
from tests.kafka.test_publisher import MODES, Mode, config_of
from tests.live.waiting import wait_for

CLAIM = "shop.checkpoint"
Start = Callable[..., Publisher]


def shard_of(mode: Mode, name: str = "s1", *, fleet: str = "shop", is_shared: bool = True) -> KafkaSection:
    return config_of(mode).of_shard(Shard(name, fleet, "shop", ("s1", "s2"), is_shared))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(readers_view, "MARKERS_SECONDS", 0.1)
    return Cluster()


@pytest.fixture
def start(cluster: Cluster) -> Iterator[Start]:
    """Starts publishers, and stops them."""
    publishers: list[Publisher] = []

    def make(config: KafkaSection, name: str = "shop.s1", *, takes_prefix: bool = False) -> Publisher:
        publisher = Publisher(name, config, Writer("writer", has_store=False), clients(cluster))
        publisher.start(takes_prefix=takes_prefix)
        publishers.append(publisher)
        return publisher

    yield make
    for publisher in publishers:
        publisher.stop(20)


def claims(cluster: Cluster) -> list[str]:
    return [json.loads(value)["owner"] for topic, _, _, value in cluster.records if topic == CLAIM and value is not None]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_shared", [True, False])
def test_all_daemons_make_one_claim(cluster: Cluster, start: Start, mode: Mode, is_shared: bool) -> None:
    for name in ("s1", "s2", "s1"):
        start(shard_of(mode, name, is_shared=is_shared), f"shop.{name}")
    assert len(claims(cluster)) == 1
    assert cluster.partitions[CLAIM] == 1
    assert {f"shop.{name}.checkpoint" for name in ("s1", "s2")} <= cluster.partitions.keys()


@pytest.mark.parametrize("mode", MODES)
def test_somebody_else_has_the_prefix(cluster: Cluster, start: Start, mode: Mode) -> None:
    start(shard_of(mode))
    with pytest.raises(PrefixTakenError, match=r"'shop' belongs to the fleet shop, whose shards share their topics, and this is"):
        start(shard_of(mode, is_shared=False))
    with pytest.raises(PrefixTakenError, match="and this is the fleet other, whose shards share"):
        start(shard_of(mode, "s3", fleet="other"), "other.s3")
    with pytest.raises(PrefixTakenError, match=r"'shop' belongs to the fleet shop, .* with 'alone' beside it"):
        start(config_of(mode), "alone")
    made: KafkaClients = clients(cluster)
    with pytest.raises(PrefixTakenError, match=r"fleet\.topics was changed, correct it"):
        fleet_claim.check(shard_of(mode, is_shared=False), made)
    fleet_claim.check(shard_of(mode), made)
    start(shard_of(mode, is_shared=False), takes_prefix=True)
    fleet_claim.check(shard_of(mode, is_shared=False), made)


@pytest.mark.parametrize("mode", MODES)
def test_a_daemon_has_the_prefix(start: Start, mode: Mode) -> None:
    start(config_of(mode), "shop")
    with pytest.raises(PrefixTakenError, match="'shop' belongs to the daemon 'shop', and this is the fleet shop"):
        start(shard_of(mode))


def test_another_claim_came_first(cluster: Cluster, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is withdrawn: both had found the prefix free."""
    begin = fleet_claim.FleetClaim.begin

    def begin_too_late(*arguments: object, **options: bool) -> bool:
        found = begin(*arguments, **options)  # type: ignore[arg-type]
        cluster.records.append((CLAIM, 0, *owner_record("fleet first", 1)))
        return found

    monkeypatch.setattr(fleet_claim.FleetClaim, "begin", begin_too_late)
    with pytest.raises(PrefixTakenError, match="belongs to the fleet first"):
        start(shard_of("exactly_once"))
    assert cluster.records[-1][3] is None
    assert b"shop" in (cluster.records[-1][2] or b"")


def row(number: int, topic: str) -> Batch:
    position = Position(VClock({1: number}), number)
    return Batch([(topic, b"key", event("s1", number))], 10, 1, 1, position, True, {}, [topic], 1.0)


def event(shard: str | None, seq: int) -> bytes:
    return json.dumps({"source": {"name": "shop", **({"shard": shard} if shard else {}), "seq": seq}}).encode()


@pytest.mark.parametrize("mode", MODES)
def test_topics_of_the_other_shards(cluster: Cluster, start: Start, mode: Mode) -> None:
    """They are written to as well, but not those with events of a daemon without a fleet."""
    cluster.partitions |= {"shop.users": 1, "shop.old": 1}
    cluster.records += [("shop.users", 0, b"key", event("s2", 5)), ("shop.old", 0, b"key", event(None, 7))]
    publisher = start(shard_of(mode))
    assert publisher.newest_numbers().seq == 0, "those of other shards aren't its own"
    publisher.submit(row(1, "shop.users"))
    publisher.submit(row(2, "shop.old"))
    with pytest.raises(PublishError, match=r"the topic shop\.old exists, and its records are of the daemon with .*'shop'"):
        until_it_ends(publisher.collect)


@pytest.mark.parametrize("was_committed", [True, False])
def test_what_hangs_behind_the_other_shards_events(cluster: Cluster, start: Start, *, was_committed: bool) -> None:
    """The checkpoint hangs: an event in any other partition tells that it was committed, whatever others have written since."""
    publisher = start(shard_of("exactly_once"))
    cluster.leave_out["shop.s1.checkpoint"] = 1
    if not was_committed:
        cluster.leave_out["shop.users"] = 1
    publisher.submit(row(1, "shop.users"))
    wait_for("the commit", publisher.collect)
    cluster.records += [("shop.users", 0, b"key", event("s2", number)) for number in range(100)]
    again = Publisher("shop.s1", shard_of("exactly_once"), Writer("writer", has_store=False), clients(cluster))
    stored = again.start()
    again.stop(20)
    assert (stored.position.seq if stored.position else None) == (1 if was_committed else 0)


def test_newest_numbers_are_the_shards_own(cluster: Cluster, start: Start) -> None:
    cluster.partitions["shop.users"] = 1
    cluster.records += [("shop.users", 0, b"key", event("s1", 3)), ("shop.users", 0, b"key", event("s2", 9))]
    assert start(shard_of("exactly_once")).newest_numbers().seq == 3
