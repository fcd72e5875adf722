"""Both ends of the protocol in memory: the program's core against a fake master of each version."""

from __future__ import annotations

import pytest

from cdc.errors import PositionError, ServerError
from cdc.protocol.failure import XlogGapError
from cdc.vclock import VClock
from tests.fakes import wire
from tests.fakes.captures import VERSIONS
from tests.fakes.master import Master, MasterConnection
from tests.fakes.replica import Replica


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
    assert "no longer has the logs" in str(replica.decision)
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
