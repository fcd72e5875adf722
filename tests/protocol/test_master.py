"""Both ends of the protocol in memory: the program's core against a fake master of each version."""

from __future__ import annotations

import json

import pytest

from cdc.errors import PositionError, Remedy, ServerError
from cdc.positions.vclock import VClock
from cdc.protocol.failure import XlogGapError
from cdc.protocol.system_spaces import CLUSTER_SPACE
from cdc.stream.batches.batch import Broadcast, Message
from tests.fakes import wire
from tests.fakes.captures import VERSIONS
from tests.fakes.master import Master, MasterConnection
from tests.fakes.replica import INSTANCE, Replica


def shop(version: str) -> Master:
    """A master with a space of two rows."""
    master = Master(version)
    master.create_space("users", [{"name": "id", "type": "unsigned"}, {"name": "name", "type": "string"}])
    master.insert("users", 1, "one")
    master.insert("users", 2, "two")
    return master


def following(version: str) -> tuple[Master, Replica]:
    master = shop(version)
    replica = Replica(master)
    replica.connect()
    return master, replica


@pytest.mark.parametrize("version", VERSIONS)
def test_from_greeting_to_acknowledgement(version: str) -> None:
    master, replica = following(version)
    assert replica.pipeline.position.vclock == VClock(master.vclock)
    master.replace("users", 1, "ONE")
    replica.relay.relay()
    replica.receive()
    replica.acknowledge()
    before = master.vclock[1] - 1
    assert replica.relay.acks[-1].vclock == {1: before}, "not durable yet"
    assert replica.commit()
    replica.acknowledge()
    ack = replica.relay.acks[-1]
    assert ack.vclock == master.vclock
    if version == "2.6":
        assert (ack.term, ack.vclock_sync, ack.timestamp) == (None, None, None)
    else:
        assert (ack.term, ack.vclock_sync) == (1, 1)
        replica.relay.heartbeat()
        replica.receive()
        replica.acknowledge()
        assert replica.relay.acks[-1].vclock_sync == 2


@pytest.mark.parametrize("version", VERSIONS)
def test_wrong_password(version: str) -> None:
    with pytest.raises(ServerError, match="Incorrect password"):
        Replica(shop(version), login=("cdc", "guess")).connect()


@pytest.mark.parametrize("version", VERSIONS)
def test_unknown_user(version: str) -> None:
    with pytest.raises(ServerError):
        Replica(shop(version), login=("nobody", "secret")).connect()


@pytest.mark.parametrize("version", VERSIONS)
def test_gap_that_the_ballot_shows(version: str) -> None:
    master, replica = following(version)
    replica.crash()
    master.insert("users", 3, "three")
    master.gc_vclock = master.vclock
    refusing = Replica(master, on_gap="fail")
    refusing.topics = replica.topics
    with pytest.raises(PositionError, match="no longer has the logs"):
        refusing.connect()
    replica.connect()
    assert "no longer has the logs" in str(replica.snapshot)
    assert replica.pipeline.position.vclock == VClock(master.vclock)


@pytest.mark.parametrize("version", VERSIONS)
def test_gap_that_shows_only_in_the_stream(version: str) -> None:
    """2.6 reports it under the number of any Lua error."""
    _, replica = following(version)
    code = 32 if version == "2.6" else 219
    replica.relay.fail(code, "Missing .xlog file between LSN 4 {1: 4} and 9 {1: 9}", "XlogGapError")
    with pytest.raises(XlogGapError, match=r"Missing \.xlog file"):
        replica.receive()


@pytest.mark.parametrize("version", VERSIONS)
def test_master_that_lost_history(version: str) -> None:
    master, replica = following(version)
    master.insert("users", 3, "three")
    replica.relay.relay()
    replica.receive()
    replica.commit()
    replica.crash()
    restored = shop(version)
    behind = Replica(restored)
    behind.topics = replica.topics
    with pytest.raises(PositionError, match="lacks changes that were published"):
        behind.connect()


@pytest.mark.parametrize("version", VERSIONS)
def test_other_replica_set(version: str) -> None:
    """2.6 accepts the SUBSCRIBE, so its answer has to be looked at; later versions refuse it themselves."""
    master, replica = following(version)
    replica.crash()
    master.replicaset_uuid = type(master.replicaset_uuid)(int=1)
    with pytest.raises(PositionError if version == "2.6" else ServerError, match=r"replica set|Replica set"):
        replica.connect()


# A registered replica.


@pytest.mark.parametrize("version", VERSIONS)
def test_joining_while_others_write(version: str) -> None:
    """What is written while the contents are sent comes behind them, once, and the stream goes on from there."""
    master = shop(version)
    master.during_join = lambda: master.insert("users", 3, "three")
    replica = Replica(master, registered=True)
    replica.connect()
    assert master.members()[INSTANCE] == 2
    assert replica.pipeline.position.vclock == VClock(master.vclock)
    assert replica.session.term == (0 if version == "2.6" else 1)
    changed = users_of(replica.news())
    assert changed == ["r", "r", "c"]
    master.during_join = None
    master.insert("users", 4, "four")
    replica.relay.relay()
    replica.receive()
    replica.commit()
    assert users_of(replica.news()) == ["c"]


@pytest.mark.parametrize("version", VERSIONS)
def test_logs_stay_for_a_registered_replica_until_it_acknowledges(version: str) -> None:
    master = shop(version)
    replica = Replica(master, registered=True, on_gap="fail")
    replica.connect()
    replica.crash()
    for number in range(10, 15):
        master.insert("users", number, "x")
    master.collect_garbage()
    replica.connect()
    assert replica.snapshot is None
    replica.relay.relay()
    replica.receive()
    replica.acknowledge()
    master.collect_garbage()
    assert master.gc_vclock != master.vclock
    replica.commit()
    replica.acknowledge()
    master.collect_garbage()
    assert master.gc_vclock == master.vclock
    if version != "2.6":
        assert replica.relay.acks[-1].term == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_anonymous_replica_becomes_a_registered_one(version: str) -> None:
    """With changes in between, which it follows anonymously first: the end of REGISTER ends the keeping of their logs."""
    master, replica = following(version)
    replica.acknowledge()
    replica.news()
    replica.crash()
    master.insert("users", 3, "three")
    master.delete("users", 1)

    def collect_garbage() -> None:
        # All log files but the one that REGISTER's own row is in.
        assert master.consumers[INSTANCE] == master.vclock
        master.gc_vclock = {**master.vclock, 1: master.vclock[1] - 1}

    master.after_register = collect_garbage
    member = Replica(master, registered=True, on_gap="fail")
    member.topics = replica.topics
    member.connect()
    member.relay.relay()
    member.receive()
    if version == "3.3":
        master.collect_garbage()
        assert master.gc_vclock != master.vclock, "what isn't durable yet is kept for the anonymous replica"
    # Whatever ends this connection, a start of the master among it: until it has caught up, the next one is as this one was.
    member.crash()
    member.connect()
    assert INSTANCE not in master.members()
    member.relay.relay()
    member.receive()
    member.commit()
    member.acknowledge()
    assert member.pipeline.ledger.acknowledged.covers(VClock(master.vclock))
    member.crash()
    member.has_caught_up = True
    member.connect()
    assert INSTANCE in master.members()
    assert member.snapshot is None
    master.insert("users", 4, "four")
    member.relay.relay()
    member.receive()
    member.commit()
    assert member.pipeline.position.vclock == VClock(master.vclock)
    ops = users_of(member.topics.committed)
    assert ops == ["r", "r", "c", "d", None, "c"]


@pytest.mark.parametrize("version", VERSIONS)
def test_terms_that_come_between_rows(version: str) -> None:
    master = shop(version)
    replica = Replica(master, registered=True)
    replica.connect()
    replica.news()
    for term in (7, 9):
        master.insert("users", term, "x")
        replica.relay.relay()
        master.term = term
        replica.relay.raft()
    replica.receive()
    replica.commit()
    assert users_of(replica.news()) == ["c", "c"]
    assert replica.session.term == 9
    replica.acknowledge()


@pytest.mark.parametrize("version", VERSIONS)
def test_read_only_master_gives_no_id(version: str) -> None:
    master = shop(version)
    master.is_read_only = True
    with pytest.raises(ServerError, match="add the replica set's leader") as caught:
        Replica(master, registered=True).connect()
    assert caught.value.remedy is Remedy.WAIT
    assert INSTANCE not in master.members()
    master.is_read_only = False
    replica = Replica(master, registered=True)
    replica.connect()
    replica.crash()
    master.is_read_only = True
    replica.connect()  # it has its id
    replica.forced_snapshot = "for this test"
    replica.connect()
    assert list(master.members().values()) == [1, 2]


@pytest.mark.parametrize("version", VERSIONS)
def test_no_right_to_be_registered(version: str) -> None:
    master = shop(version)
    master.may_write_cluster = False
    with pytest.raises(ServerError, match="'replication'"):
        Replica(master, registered=True).connect()


@pytest.mark.parametrize("version", VERSIONS)
def test_id_that_was_taken_away(version: str) -> None:
    """It asks for another one as soon as it has caught up."""
    master = shop(version)
    replica = Replica(master, registered=True)
    replica.connect()
    replica.crash()
    master.delete(CLUSTER_SPACE, 2)
    replica.connect()
    replica.relay.relay()
    replica.receive()
    replica.commit()
    replica.connect()
    assert replica.snapshot is None
    assert master.members()[INSTANCE] == 2


def test_registered_replica_that_says_it_is_anonymous() -> None:
    for version in ("2.11", "3.3"):
        master = shop(version)
        replica = Replica(master, registered=True)
        replica.connect()
        replica.crash()
        anonymous = Replica(master)
        anonymous.topics = replica.topics
        with pytest.raises(ServerError, match="tarantool-cdc unregister"):
            anonymous.connect()


def users_of(messages: list[Message | Broadcast]) -> list[str | None]:
    """What the events of the space say has happened; None for a tombstone."""
    values = [value for topic, _, value in (each for each in messages if isinstance(each, tuple)) if topic == "shop.users"]
    return [None if value is None else str(json.loads(value)["op"]) for value in values]


def test_the_master_notices_a_bad_replica() -> None:
    """The checks of the fake can fail."""
    _, replica = following("2.11")
    connection = replica.relay
    for vclock, term in (({1: 10**6}, 0), ({0: 1}, 0), ({}, 99)):
        with pytest.raises(AssertionError):
            connection.receive_data(wire.frame({0: 0, 2: 0}, {0x26: vclock, 0x53: term}))
    with pytest.raises(AssertionError, match="on a connection that streams"):
        connection.receive_data(wire.frame({0: 68, 1: 99}))


def test_fetch_snapshot_needs_its_body_from_3_on() -> None:
    for version in VERSIONS:
        connection = MasterConnection(Master(version))
        connection._user = "cdc"
        connection.receive_data(wire.frame({0: 69, 1: 1}))
        assert connection.is_closed == (version == "3.3")
