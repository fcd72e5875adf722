"""The limbo: transactions that wait for CONFIRM or ROLLBACK, and what is published of them."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.errors import ProtocolError, SynchronousReplicationError
from cdc.images.overlay import Images
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.protocol.constants import Flag, Key, Type
from cdc.schema.tracker import SchemaTracker
from cdc.stream.transactions.limbo import Limbo, LimboState, is_control
from cdc.stream.transactions.transaction import Transaction
from cdc.stream.transactions.transaction_buffer import TransactionBuffer
from tests.fakes import wire
from tests.fakes.master import SERVER, SPACE
from tests.fakes.pipelines import MemorySpool, frames_of, pipeline
from tests.fakes.tuples import MemoryTuples

SYNC, ASYNC = Flag.WAIT_SYNC | Flag.WAIT_ACK, 0


class Queue:
    """A limbo of a master with flags, fed by lsns."""

    def __init__(self, memory: int = 10**9) -> None:
        self.spools: list[MemorySpool] = []
        self.waiting = TransactionBuffer(memory, lambda: MemorySpool(self.spools))
        self.limbo = Limbo(SchemaTracker(), self.waiting, (2, 11))

    def arrive(self, lsn: int, flags: int = ASYNC, *, origin: int = 1, now_us: int = 5) -> bool:
        """One transaction of one row; returns whether it waits."""
        return self.limbo.enqueue_if_waiting(transaction(lsn, flags, origin=origin), now_us)

    def say(self, kind: int, owner: int, lsn: int) -> list[int]:
        """A control row; the lsns that it releases."""
        row = transaction(1000, origin=3, kind=kind, body={Key.REPLICA_ID: owner, Key.LSN: lsn})
        return [found.lsn for found in self.limbo.apply(row)]


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
    assert (state.transaction_count, state.row_count) == (3, 3)
    assert (state.oldest_us, state.oldest_origin, state.oldest_lsn) == (7, 1, 1)
    assert state.memory_byte_count > 60


def test_confirm_releases_up_to_the_next_synchronous_one() -> None:
    queue = Queue()
    for lsn, flags in [(1, SYNC), (2, ASYNC), (3, SYNC), (4, ASYNC), (5, SYNC), (6, ASYNC)]:
        queue.arrive(lsn, flags)
    assert queue.say(Type.RAFT_CONFIRM, 1, 1) == [1, 2]
    assert queue.say(Type.RAFT_CONFIRM, 1, 2) == []
    assert queue.limbo.take_unblocked() == {}
    assert queue.say(Type.RAFT_CONFIRM, 1, 5) == [3, 4, 5, 6]
    assert queue.limbo.is_empty
    assert queue.limbo.take_unblocked() == {1: 6}
    assert queue.limbo.take_unblocked() == {}


def test_rollback_takes_the_first_synchronous_one_and_all_behind_it() -> None:
    queue = Queue()
    for lsn, flags in [(1, SYNC), (2, ASYNC), (3, SYNC), (4, ASYNC)]:
        queue.arrive(lsn, flags)
    assert queue.say(Type.RAFT_ROLLBACK, 1, 2) == []
    assert queue.limbo.state.row_count == 2
    assert queue.say(Type.RAFT_CONFIRM, 1, 1) == [1, 2]
    assert queue.limbo.take_unblocked() == {1: 4}


def test_rollback_takes_back_what_its_first_transaction_defines() -> None:
    """A space that it made synchronous is asynchronous again, for an origin that writes there next."""
    queue = Queue()
    queue.arrive(1, SYNC)
    before = queue.limbo.state
    definition = {Key.SPACE_ID: SPACE, Key.TUPLE: [512, 1, "users", "memtx", 0, {"is_sync": True}, []]}
    assert queue.limbo.enqueue_if_waiting(transaction(2, SYNC, body=definition), 5)
    assert queue.limbo.state.memory_byte_count > before.memory_byte_count
    assert queue.say(Type.RAFT_ROLLBACK, 1, 2) == []
    assert queue.limbo.state == before
    assert not queue.arrive(1, origin=2)
    assert queue.say(Type.RAFT_CONFIRM, 1, 1) == [1]


@pytest.mark.parametrize("kind", [Type.RAFT_PROMOTE, Type.RAFT_DEMOTE])
def test_promote_and_demote_confirm_and_roll_back(kind: int) -> None:
    queue = Queue()
    for lsn, flags in [(1, SYNC), (2, ASYNC), (3, SYNC), (4, ASYNC)]:
        queue.arrive(lsn, flags)
    assert queue.say(kind, 1, 2) == [1, 2]
    assert queue.limbo.is_empty
    assert queue.limbo.take_unblocked() == {1: 4}


def test_origins_wait_apart() -> None:
    queue = Queue()
    queue.arrive(1, SYNC)
    assert not queue.arrive(1, origin=2)
    assert queue.arrive(7, SYNC, origin=2)
    assert queue.say(Type.RAFT_CONFIRM, 2, 7) == [7]
    assert queue.limbo.take_unblocked() == {2: 7}
    assert queue.limbo.received == {1: 1}


def test_rows_that_only_move_the_position() -> None:
    queue = Queue()
    assert queue.limbo.advance_or_defer(1, 1)
    queue.arrive(2, SYNC)
    assert not queue.limbo.advance_or_defer(1, 3)
    assert queue.limbo.received == {1: 3}
    assert queue.say(Type.RAFT_ROLLBACK, 1, 2) == []
    assert queue.limbo.take_unblocked() == {1: 3}


def test_rollback_of_what_is_out_stops_it() -> None:
    queue = Queue()
    queue.arrive(7, SYNC)
    queue.arrive(8)
    assert queue.say(Type.RAFT_CONFIRM, 1, 7) == [7, 8]
    assert queue.say(Type.RAFT_ROLLBACK, 1, 8) == []
    with pytest.raises(SynchronousReplicationError, match=r"RAFT_ROLLBACK of everything of origin 1 from lsn 7 on arrived at 3:"):
        queue.say(Type.RAFT_ROLLBACK, 1, 7)


def test_rollback_that_comes_twice() -> None:
    """On 2.6 the leader whose quorum didn't come and the one that clears its queue both say so."""
    queue = Queue()
    queue.arrive(7, SYNC)
    assert queue.say(Type.RAFT_ROLLBACK, 1, 7) == []
    assert queue.limbo.take_unblocked() == {1: 7}
    assert queue.say(Type.RAFT_ROLLBACK, 1, 7) == []


@pytest.mark.parametrize("kind", [Type.RAFT_PROMOTE, Type.RAFT_DEMOTE])
def test_another_owner_undoes_what_nobody_owns(kind: int) -> None:
    """The log of a leader that came back, whose last transactions others have undone long ago."""
    queue = Queue()
    queue.arrive(45, SYNC)
    queue.arrive(46)
    assert queue.say(kind, 2, 7) == []
    assert queue.limbo.is_empty
    assert queue.limbo.take_unblocked() == {1: 46}


def test_rollback_of_everything_as_26_says_it() -> None:
    """An asynchronous transaction at the head of its queue has no lsn there; -1, written as an unsigned number."""
    queue = Queue()
    assert queue.say(Type.RAFT_ROLLBACK, 1, 2**64 - 1) == []
    queue.arrive(20, SYNC)
    queue.arrive(21)
    assert queue.say(Type.RAFT_ROLLBACK, 1, 2**64 - 1) == []
    assert queue.limbo.is_empty
    queue.arrive(22, SYNC)
    assert queue.say(Type.RAFT_CONFIRM, 1, 2**64 - 1) == []
    assert queue.say(Type.RAFT_CONFIRM, 1, 22) == [22]


def test_confirmation_of_nothing_that_waits() -> None:
    queue = Queue()
    queue.arrive(9, SYNC)
    assert queue.say(Type.RAFT_CONFIRM, 2, 10**9) == []
    assert queue.limbo.state.transaction_count == 1


@pytest.mark.parametrize("body", [{2: "1", 3: 1}, {2: 1, 3: -1}, {2: -1, 3: 1}, {2: 1, 3: [1]}, {2: True, 3: 1}])
def test_malformed_control_rows(body: dict[int, Any]) -> None:
    queue = Queue()
    with pytest.raises(ProtocolError, match="RAFT_CONFIRM"):
        list(queue.limbo.apply(transaction(5, kind=Type.RAFT_CONFIRM, body=body)))


def test_what_is_a_control_row() -> None:
    assert is_control(transaction(1, kind=Type.RAFT_PROMOTE, body={}))
    assert not is_control(transaction(1, kind=Type.NOP, body={}))
    assert not is_control(Transaction(1, 1, 1, 1.0, 0, [], MemorySpool(), 0, 0))


# Memory and disk.


def test_past_its_bound_it_waits_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.stream.transactions.transaction_buffer.SPOOL_BYTES", 400)
    queue = Queue(memory=2_000)
    for lsn in range(1, 31):
        assert queue.arrive(lsn, SYNC)
    state = queue.limbo.state
    assert 0 < state.memory_byte_count <= 2_000
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
    (found,) = queue.limbo.apply(row)
    expected = transaction(1, SYNC)
    assert (found.rows, found.tsn, found.lsn, found.flags) == (expected.rows, 1, 1, SYNC)


def test_close_leaves_nothing_open() -> None:
    queue = Queue(memory=50)
    large = MemorySpool(queue.spools)
    large.append(b"x" * 200)
    assert queue.limbo.enqueue_if_waiting(Transaction(1, 1, 4, 1.0, SYNC, [], large, 4, 200), 5)
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


# While what is out already is read again, for the images alone.


def at(vclock: dict[int, int]) -> Position:
    return Position(VClock(vclock), replicaset_uuid=SERVER, server_uuid=SERVER, snapshot=SnapshotState(1, is_complete=True))


def row(origin: int, lsn: int, flags: int = 0, kind: int = Type.NOP, **body: int) -> bytes:
    header = {Key.REQUEST_TYPE: kind, Key.REPLICA_ID: origin, Key.LSN: lsn, Key.TIMESTAMP: 1.0}
    return wire.frame(
        header | ({Key.FLAGS: flags} if flags else {}), {Key.REPLICA_ID: body["owner"], Key.LSN: body["up_to"]} if body else {}
    )


CONFIRM = row(1, 51, kind=Type.RAFT_CONFIRM, owner=1, up_to=50)
PROMOTE = row(2, 10, kind=Type.RAFT_PROMOTE, owner=1, up_to=50)


@pytest.mark.parametrize(
    ("rows", "end"),
    [
        ([row(1, 50), row(3, 7), row(1, 51)], {1: 51, 2: 9, 3: 7}),
        ([row(1, 50, SYNC), CONFIRM, row(3, 7)], {1: 51, 2: 9, 3: 7}),
        ([row(1, 50, SYNC), PROMOTE, row(3, 7), row(3, 8)], {1: 50, 2: 10, 3: 8}),
        ([row(1, 50), row(1, 51, SYNC), row(1, 52), PROMOTE, row(3, 7), row(2, 11)], {1: 52, 2: 11, 3: 7}),
        ([row(1, 50, SYNC), row(3, 7)], {1: 49, 2: 9, 3: 7}),
    ],
)
def test_what_is_not_out_yet_waits_for_what_is_and_then_for_its_quorum(rows: list[bytes], end: dict[int, int]) -> None:
    """Another member's log has origin 1 far ahead of origin 3, of which a row is still to be seen."""
    images = Images(MemoryTuples(), version=(2, 11))
    target = pipeline(at({1: 44, 2: 9, 3: 6}), version=(2, 11), images=images, catch_up_to=at({1: 49, 2: 9, 3: 7}))
    for part in [row(1, lsn) for lsn in range(45, 50)] + rows:
        for _ in target.feed(frames_of(part), 1):
            pass
    assert not target.is_catching_up
    assert target.position.vclock == VClock(end)


def test_what_is_out_is_decided_by_what_is_not() -> None:
    """A commit fell between two transactions that one CONFIRM released."""
    images = Images(MemoryTuples(), version=(2, 11))
    target = pipeline(at({1: 44}), version=(2, 11), images=images, catch_up_to=at({1: 46}))
    for part in [row(1, 45, SYNC), row(1, 46), row(1, 47, SYNC), row(1, 48, kind=Type.RAFT_CONFIRM, owner=1, up_to=45)]:
        for _ in target.feed(frames_of(part), 1):
            pass
    assert not target.is_catching_up
    assert target.position.vclock == VClock({1: 46})
    assert target.limbo.transaction_count == 1
