"""What waits, what is said about it, and what comes out."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.change import Transaction
from cdc.errors import ProtocolError, SynchronousReplicationError
from cdc.limbo import Limbo, LimboState, is_control
from cdc.protocol.constants import Flag, Key, Type
from cdc.schema import SchemaTracker
from cdc.vclock import VClock
from cdc.waiting import Waiting
from tests.fakes import wire
from tests.fakes.pipelines import MemorySpool

SYNC, ASYNC = Flag.WAIT_SYNC | Flag.WAIT_ACK, 0


class Queue:
    """A limbo of a master with flags, fed by lsns."""

    def __init__(self, memory: int = 10**9) -> None:
        self.spools: list[MemorySpool] = []
        self.waiting = Waiting(memory, lambda: MemorySpool(self.spools))
        self.limbo = Limbo(SchemaTracker(), self.waiting, (2, 11))

    def arrive(self, lsn: int, flags: int = ASYNC, *, origin: int = 1, now_us: int = 5) -> bool:
        """One transaction of one row; returns whether it waits."""
        return self.limbo.holds(transaction(lsn, flags, origin=origin), now_us)

    def say(self, kind: int, owner: int, lsn: int, *, released: dict[int, int] | None = None) -> list[int]:
        """A control row; the lsns that it releases."""
        row = transaction(1000, origin=3, kind=kind, body={Key.REPLICA_ID: owner, Key.LSN: lsn})
        return [found.lsn for found in self.limbo.apply(row, VClock(released or {}))]


def transaction(lsn: int, flags: int = 0, *, origin: int = 1, kind: int = Type.INSERT, body: Any = None) -> Transaction:
    body = {Key.SPACE_ID: 512, Key.TUPLE: [lsn]} if body is None else body
    header = {Key.REQUEST_TYPE: kind, Key.REPLICA_ID: origin, Key.LSN: lsn, Key.TIMESTAMP: 1.0}
    return Transaction(origin, lsn, lsn, 1.0, flags, [(kind, lsn, body, wire.frame(header, body))], None, 1)


def test_asynchronous_in_front_of_everything_passes() -> None:
    queue = Queue()
    assert not queue.arrive(1)
    assert not queue.arrive(2, Flag.WAIT_SYNC)
    assert queue.limbo.is_empty
    assert queue.limbo.state == LimboState()


def test_asynchronous_behind_a_synchronous_one_waits_whatever_its_flags() -> None:
    queue = Queue()
    assert [queue.arrive(1, SYNC, now_us=7), queue.arrive(2), queue.arrive(3, Flag.WAIT_SYNC, now_us=9)] == [True] * 3
    state = queue.limbo.state
    assert (state.transaction_count, state.row_count, state.oldest_us) == (3, 3, 7)
    assert state.memory_byte_count > 60


def test_confirm_releases_up_to_the_next_synchronous_one() -> None:
    queue = Queue()
    for lsn, flags in [(1, SYNC), (2, ASYNC), (3, SYNC), (4, ASYNC), (5, SYNC), (6, ASYNC)]:
        queue.arrive(lsn, flags)
    assert queue.say(Type.RAFT_CONFIRM, 1, 1) == [1, 2]
    assert queue.say(Type.RAFT_CONFIRM, 1, 2) == []
    assert queue.limbo.unpinned() == {}
    assert queue.say(Type.RAFT_CONFIRM, 1, 5) == [3, 4, 5, 6]
    assert queue.limbo.is_empty
    assert queue.limbo.unpinned() == {1: 6}
    assert queue.limbo.unpinned() == {}


def test_rollback_takes_the_first_synchronous_one_and_all_behind_it() -> None:
    queue = Queue()
    for lsn, flags in [(1, SYNC), (2, ASYNC), (3, SYNC), (4, ASYNC)]:
        queue.arrive(lsn, flags)
    assert queue.say(Type.RAFT_ROLLBACK, 1, 2) == []
    assert queue.limbo.state.row_count == 2
    assert queue.say(Type.RAFT_CONFIRM, 1, 1) == [1, 2]
    assert queue.limbo.unpinned() == {1: 4}


@pytest.mark.parametrize("kind", [Type.RAFT_PROMOTE, Type.RAFT_DEMOTE])
def test_promote_and_demote_confirm_and_roll_back(kind: int) -> None:
    queue = Queue()
    for lsn, flags in [(1, SYNC), (2, ASYNC), (3, SYNC), (4, ASYNC)]:
        queue.arrive(lsn, flags)
    assert queue.say(kind, 1, 2) == [1, 2]
    assert queue.limbo.is_empty
    assert queue.limbo.unpinned() == {1: 4}


def test_origins_wait_apart() -> None:
    queue = Queue()
    queue.arrive(1, SYNC)
    assert not queue.arrive(1, origin=2)
    assert queue.arrive(7, SYNC, origin=2)
    assert queue.say(Type.RAFT_CONFIRM, 2, 7) == [7]
    assert queue.limbo.unpinned() == {2: 7}
    assert queue.limbo.received == {1: 1}


def test_rows_that_only_move_the_position() -> None:
    queue = Queue()
    assert queue.limbo.passes(1, 1)
    queue.arrive(2, SYNC)
    assert not queue.limbo.passes(1, 3)
    assert queue.limbo.received == {1: 3}
    assert queue.say(Type.RAFT_ROLLBACK, 1, 2) == []
    assert queue.limbo.unpinned() == {1: 3}


def test_rollback_of_what_is_out_stops_it() -> None:
    queue = Queue()
    assert queue.say(Type.RAFT_ROLLBACK, 1, 8, released={1: 7}) == []
    with pytest.raises(SynchronousReplicationError, match=r"RAFT_ROLLBACK of everything of origin 1 from lsn 7 on arrived at"):
        queue.say(Type.RAFT_ROLLBACK, 1, 7, released={1: 7})


def test_rollback_of_everything_as_26_says_it() -> None:
    """An asynchronous transaction at the head of its queue has no lsn there; -1, written as an unsigned number."""
    queue = Queue()
    assert queue.say(Type.RAFT_ROLLBACK, 1, 2**64 - 1, released={1: 19}) == []
    queue.arrive(20, SYNC)
    queue.arrive(21)
    assert queue.say(Type.RAFT_ROLLBACK, 1, 2**64 - 1, released={1: 19}) == []
    assert queue.limbo.is_empty
    queue.arrive(22, SYNC)
    assert queue.say(Type.RAFT_CONFIRM, 1, 2**64 - 1) == []
    assert queue.say(Type.RAFT_CONFIRM, 1, 22) == [22]


@pytest.mark.parametrize("kind", [Type.RAFT_CONFIRM, Type.RAFT_PROMOTE, Type.RAFT_DEMOTE])
def test_control_rows_about_nothing_that_waits(kind: int) -> None:
    queue = Queue()
    queue.arrive(9, SYNC)
    assert queue.say(kind, 2, 10**9) == []
    assert queue.limbo.state.transaction_count == 1


@pytest.mark.parametrize("body", [{2: "1", 3: 1}, {2: 1, 3: -1}, {2: -1, 3: 1}, {2: 1, 3: [1]}, {2: True, 3: 1}])
def test_malformed_control_rows(body: dict[int, Any]) -> None:
    queue = Queue()
    with pytest.raises(ProtocolError, match="RAFT_CONFIRM"):
        list(queue.limbo.apply(transaction(5, kind=Type.RAFT_CONFIRM, body=body), VClock()))


def test_what_is_a_control_row() -> None:
    assert is_control(transaction(1, kind=Type.RAFT_PROMOTE, body={}))
    assert not is_control(transaction(1, kind=Type.NOP, body={}))
    assert not is_control(Transaction(1, 1, 1, 1.0, 0, [], MemorySpool(), 0, 0))


# Memory and disk.


def test_past_its_bound_it_waits_on_disk() -> None:
    queue = Queue(memory=100)
    for lsn in range(1, 31):
        assert queue.arrive(lsn, SYNC)
    state = queue.limbo.state
    assert 0 < state.memory_byte_count <= 100
    assert state.disk_byte_count > 20 * 20
    assert 1 < len(queue.spools) < 20, "transactions share a spool, and one spool isn't all of them"
    assert queue.say(Type.RAFT_CONFIRM, 1, 20) == list(range(1, 21))
    assert any(spool.is_closed for spool in queue.spools), "its space comes back while others wait"
    assert queue.say(Type.RAFT_CONFIRM, 1, 30) == list(range(21, 31))
    assert queue.waiting.memory_byte_count == queue.waiting.disk_byte_count == 0
    queue.waiting.close()
    assert all(spool.is_closed for spool in queue.spools)


def test_what_is_on_disk_comes_back_as_it_was() -> None:
    queue = Queue(memory=0)
    queue.arrive(1, SYNC)
    row = transaction(1000, origin=3, kind=Type.RAFT_CONFIRM, body={Key.REPLICA_ID: 1, Key.LSN: 1})
    (found,) = queue.limbo.apply(row, VClock())
    expected = transaction(1, SYNC)
    assert (found.rows, found.tsn, found.lsn, found.flags) == (expected.rows, 1, 1, SYNC)


def test_close_leaves_nothing_open() -> None:
    queue = Queue(memory=50)
    large = MemorySpool(queue.spools)
    large.append(b"x" * 200)
    assert queue.limbo.holds(Transaction(1, 1, 4, 1.0, SYNC, [], large, 4, 200), 5)
    for lsn in range(5, 15):
        queue.arrive(lsn)
    queue.waiting.close()
    assert all(spool.is_closed for spool in queue.spools)
    assert queue.limbo.state.disk_byte_count == 0


def test_rolled_back_from_disk() -> None:
    queue = Queue(memory=0)
    for lsn in range(1, 15):
        queue.arrive(lsn, SYNC)
    assert queue.say(Type.RAFT_ROLLBACK, 1, 1) == []
    assert queue.limbo.state == LimboState()
    queue.waiting.close()
    assert all(spool.is_closed for spool in queue.spools)
