"""Transactions whose last row isn't relayed: before 2.8.4, those that end by emptying a temporary or local space.

The row of another transaction ends them, or a heartbeat, as a relay of these versions sends it only when all has been sent.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cdc.protocol.constants import Type
from tests.fakes.pipelines import MemorySpool
from tests.fakes.replica import INSTANCE, Replica
from tests.fakes.shop import USERS, Sent, Shop, read


def ids(sent: list[Sent]) -> list[int]:
    """The keys of the events."""
    return [item.key["id"] for item in sent if item.op is not None and item.key and "id" in item.key]


def insert(shop: Shop, *numbers: int) -> None:
    """One transaction that ends unseen."""
    shop.master.begin()
    for number in numbers:
        shop.master.insert("users", number, "x" * 30)
    shop.master.commit_unseen()


def heartbeat(shop: Shop) -> list[Sent]:
    """What the daemon publishes upon one."""
    shop.replica.relay.heartbeat()
    shop.replica.receive()
    shop.replica.commit()
    return shop.news()


def is_catching_up(shop: Shop) -> bool:
    """Whether the store isn't at the checkpoint yet."""
    return shop.replica.pipeline.is_catching_up


def open_bytes(replica: Replica) -> int:
    """Size of the transaction whose end hasn't arrived."""
    return replica.pipeline.open_byte_count


SIZES = pytest.mark.parametrize("transaction_bytes_max", [100, 1 << 20], ids=["on disk", "in memory"])
"""A transaction's bytes beyond which it is on disk."""


@SIZES
@pytest.mark.parametrize("images", [True, False], ids=["images", "no images"])
def test_the_next_transaction_ends_it(transaction_bytes_max: int, images: bool) -> None:
    shop = Shop("2.6", transaction_bytes_max=transaction_bytes_max, images=images)
    insert(shop, 3, 4)
    assert shop.follow() == []
    position = shop.replica.pipeline.position
    assert dict(position.vclock.items()) == {1: shop.master.vclock[1] - 2}
    insert(shop, 5)
    assert ids(shop.follow()) == [3, 4]
    shop.master.insert("users", 6)
    found = shop.events()
    assert ids(found) == [5, 6]
    assert dict(shop.replica.pipeline.position.vclock.items()) == shop.master.vclock
    assert [item.value["transaction"]["id"] for item in found] == [f"1:{shop.master.vclock[1] - 1}", f"1:{shop.master.vclock[1]}"]


@SIZES
@pytest.mark.parametrize("images", [True, False], ids=["images", "no images"])
def test_a_heartbeat_ends_it(transaction_bytes_max: int, images: bool) -> None:
    spools: list[MemorySpool] = []
    shop = Shop("2.6", transaction_bytes_max=transaction_bytes_max, images=images, spools=spools)
    insert(shop, 3, 4, 5)
    assert shop.follow() == []
    assert ids(heartbeat(shop)) == [3, 4, 5]
    assert shop.replica.pipeline.open_byte_count == 0
    assert dict(shop.replica.pipeline.ledger.acknowledged.items()) == shop.master.vclock or images
    assert heartbeat(shop) == []
    assert bool(spools) == (transaction_bytes_max == 100)
    assert all(spool.is_closed for spool in spools)
    shop.master.insert("users", 6)
    assert ids(shop.follow()) == [6]


def test_other_origins_end_each_others() -> None:
    shop = Shop("2.6")
    for origin in (2, 1, 2):
        shop.master.origin = origin
        insert(shop, 10 * origin + shop.master.vclock.get(origin, 0), 10 * origin + shop.master.vclock.get(origin, 0) + 5)
    assert len(ids(shop.follow())) == 4
    assert len(ids(heartbeat(shop))) == 2
    assert dict(shop.replica.pipeline.position.vclock.items()) == shop.master.vclock


def test_a_row_at_a_time() -> None:
    def cut(data: bytes) -> Iterator[bytes]:
        return (data[start : start + 7] for start in range(0, len(data), 7))

    shop = Shop("2.6", cut=cut)
    insert(shop, 3, 4)
    insert(shop, 5, 6)
    assert ids(shop.follow()) == [3, 4]
    assert ids(heartbeat(shop)) == [5, 6]


@pytest.mark.parametrize("version", ["2.11", "3.3"])
def test_heartbeats_within_a_transaction_do_not_end_it(version: str) -> None:
    """Relays from 2.8.4 on send them also while they read a log, between any two rows."""
    shop = Shop(version)
    shop.master.begin()
    for number in (3, 4, 5):
        shop.master.insert("users", number)
    shop.master.commit()
    for _ in range(2):
        shop.replica.relay.relay(1)
        assert heartbeat(shop) == []
    assert ids(shop.follow()) == [3, 4, 5]


@SIZES
@pytest.mark.parametrize("images", [True, False], ids=["images", "no images"])
def test_a_transaction_that_is_open_when_its_connection_ends_is_read_again(transaction_bytes_max: int, images: bool) -> None:
    shop = Shop("2.6", transaction_bytes_max=transaction_bytes_max, images=images)

    def restart() -> None:
        if images:
            shop.replica.flush()
        shop.replica.crash()
        shop.replica.connect()

    shop.master.begin()
    for number in (3, 4, 5):
        shop.master.insert("users", number)
    shop.master.commit()
    insert(shop, 6, 7)
    shop.replica.relay.relay(2)
    shop.replica.receive()
    restart()
    shop.replica.relay.relay(2 + 2)
    shop.replica.receive()
    shop.replica.commit()
    assert ids(shop.news()) == [3, 4, 5]
    restart()
    assert ids(shop.follow()) == []
    assert ids(heartbeat(shop)) == [6, 7]
    restart()
    shop.master.insert("users", 8)
    assert ids(shop.follow()) == [8]


def test_the_store_is_brought_up_to_a_checkpoint_behind_it() -> None:
    shop = Shop("2.6", images=True)
    shop.replica.flush()
    insert(shop, 3, 4)
    shop.follow()
    assert ids(heartbeat(shop)) == [3, 4]
    shop.replica.crash()
    shop.replica.connect()
    assert is_catching_up(shop)
    assert shop.follow() == []
    assert heartbeat(shop) == []
    assert not is_catching_up(shop)
    shop.master.update("users", [3], ["=", "name", "three"])
    event = shop.event()
    assert (event.value["before"]["name"], event.value["after"]["name"]) == ("x" * 30, "three")


def test_what_is_open_at_the_end_of_a_join_comes_again() -> None:
    shop = Shop("2.6")
    shop.master.enroll(INSTANCE)  # so the JOIN itself writes nothing, and the transaction is the last
    shop.master.during_join = lambda: insert(shop, 3, 4)
    replica = Replica(shop.master, registered=True)
    replica.connect()
    assert open_bytes(replica) == 0
    replica.relay.relay()
    replica.receive()
    assert open_bytes(replica) > 0
    replica.relay.heartbeat()
    replica.receive()
    replica.commit()
    assert ids([sent for sent in map(read, replica.news()) if sent.op == "c"]) == [3, 4]


@SIZES
@pytest.mark.parametrize("ends", ["rolled back", "confirmed with the next"])
def test_a_synchronous_one(ends: str, transaction_bytes_max: int) -> None:
    """Its master waits for the confirmation of the local row's lsn, and rolls back "from" there."""
    shop = Shop("2.6", transaction_bytes_max=transaction_bytes_max)
    shop.master.create_space("money", USERS, flags={"is_sync": True})
    shop.follow()
    shop.master.begin()
    shop.master.insert("users", 3)
    shop.master.insert("money", 4)
    shop.master.commit_unseen()
    shop.follow()
    assert heartbeat(shop) == []
    assert shop.replica.pipeline.limbo.transaction_count == 1
    if ends == "rolled back":
        shop.master.synchro(Type.RAFT_ROLLBACK, 1, 1)
        assert ids(shop.follow()) == []
        shop.master.insert("users", 5)
        assert ids(shop.follow()) == [5]
    else:
        shop.master.insert("money", 5)
        shop.master.synchro(Type.RAFT_CONFIRM, 1, shop.master.vclock[1])
        assert ids(shop.follow()) == [3, 4, 5]
    assert dict(shop.replica.pipeline.position.vclock.items()) == shop.master.vclock
