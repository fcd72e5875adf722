"""Transactions that wait unread: what is told of them, when they come out, and what sends them to the limbo's queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cdc import native
from cdc.errors import SynchronousReplicationError
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.protocol.codec import Frames
from cdc.protocol.constants import Flag, Key, Type
from cdc.schema.forms import StoredSpace
from cdc.stream.batches.batch import Batch
from cdc.stream.python_stream import PythonStream
from cdc.stream.transactions import held
from tests.fakes import wire
from tests.fakes.master import SERVER
from tests.fakes.pipelines import MemorySpool, frames_of, pipeline
from tests.fakes.shop import read

pytestmark = pytest.mark.skipif(
    native.ROW_PATH == "python", reason="this installation has no compiled row path, or doesn't run it"
)

SYNC, PLAIN = 600, 700
WAITS = Flag.COMMIT | Flag.WAIT_SYNC | Flag.WAIT_ACK


def space(space_id: int, *, is_sync: bool = False) -> StoredSpace:
    form = [{"name": "id", "type": "unsigned"}, {"name": "text", "type": "string"}]
    flags = {"is_sync": True} if is_sync else {}
    row = [space_id, 1, f"space {space_id}", "memtx", 0, flags, form]
    return StoredSpace(space_id, row, {0: [space_id, 0, "primary", "tree", {}, [[0, "unsigned"]]]}, 1)


def space_row(lsn: int, space_id: int, *, is_sync: bool, origin: int = 1) -> bytes:
    """An `_space` row behind what waits."""
    body = {Key.SPACE_ID: 280, Key.TUPLE: space(space_id, is_sync=is_sync).space_row}
    return frame(Type.REPLACE, lsn, body, Flag.WAIT_SYNC, origin=origin)


def frame(kind: int, lsn: int, body: dict[int, Any], flags: int = 0, *, tsn: int = 0, origin: int = 1) -> bytes:
    header = {Key.REQUEST_TYPE: kind, Key.REPLICA_ID: origin, Key.LSN: lsn, Key.TIMESTAMP: 1.5}
    more = {Key.TSN: lsn - tsn} if tsn else {}
    return wire.frame(header | more | ({Key.FLAGS: flags} if flags else {}), body)


def row(
    lsn: int, flags: int = WAITS, *, space_id: int = SYNC, tsn: int = 0, text: str = "x", has_key: bool = True, origin: int = 1
) -> bytes:
    tuple_ = [lsn, text] if has_key else []
    return frame(Type.REPLACE, lsn, {Key.SPACE_ID: space_id, Key.TUPLE: tuple_}, flags, tsn=tsn, origin=origin)


def about(kind: int, lsn: int, limit: int, *, owner: int = 1, origin: int = 1) -> bytes:
    return frame(kind, lsn, {Key.REPLICA_ID: owner, Key.LSN: limit}, origin=origin)


def confirm(lsn: int, limit: int) -> bytes:
    return about(Type.RAFT_CONFIRM, lsn, limit)


class Follower:
    """A pipeline that has seen a row of each space, and what has come out of it since."""

    def __init__(self, *, version: tuple[int, ...] = (3, 3), **options: Any) -> None:
        self.spools: list[MemorySpool] = []
        begin = Position(VClock({1: 7}), 1, 1, SERVER, SERVER, SnapshotState(1, is_complete=True))
        spaces = [space(280), space(SYNC, is_sync=True), space(PLAIN)]
        self.target = pipeline(begin, spaces, version=version, spools=self.spools, **options)
        self.feed(row(8, 0, space_id=PLAIN), row(9), confirm(10, 9))
        assert self.lsns() == [8, 9]

    def feed(self, *frames: bytes, now_us: int = 10) -> None:
        self._out = list(getattr(self, "_out", [])) + list(self.target.feed(frames_of(b"".join(frames)), now_us))

    def lsns(self) -> list[int]:
        """Of the events since the last call."""
        events = [read(message) for batch in self._out for message in batch.messages]
        self._out = []
        return [event.source["lsn"] for event in events if event.op in ("c", "u", "d")]

    @property
    def places(self) -> tuple[int, int]:
        """Of origin 1: the position, and what was received."""
        return self.target.position.vclock[1], self.target.ledger.received[1]


@pytest.fixture
def handed_back(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of rows that went by the Python path."""
    counts: list[int] = []
    original = PythonStream.feed

    def counted(self: PythonStream, frames: Frames, suffix: bytes, *, are_certain: bool = False) -> Iterator[Batch]:
        counts.append(len(frames))
        return original(self, frames, suffix, are_certain=are_certain)

    monkeypatch.setattr(PythonStream, "feed", counted)
    return counts


def test_what_is_confirmed_later_comes_out_then(handed_back: list[int]) -> None:
    follower = Follower()
    handed_back.clear()
    follower.feed(row(11), row(12), confirm(13, 11), row(14, Flag.WAIT_SYNC, space_id=PLAIN), row(15, tsn=15, flags=0), now_us=20)
    assert (follower.lsns(), follower.places) == ([11], (11, 14)), "the last row is only the beginning of a transaction"
    follower.feed(row(16, tsn=15), now_us=30)
    state = follower.target.limbo
    assert (state.transaction_count, state.row_count) == (3, 4)
    assert (state.oldest_origin, state.oldest_lsn, state.oldest_us) == (1, 12, 20)
    assert follower.places == (11, 16)
    follower.feed(confirm(17, 12), now_us=40)
    state = follower.target.limbo
    assert (follower.lsns(), follower.places) == ([12, 14], (14, 17)), "a CONFIRM that leaves something isn't passed over"
    assert (state.transaction_count, state.row_count, state.oldest_lsn, state.oldest_us) == (1, 2, 16, 30)
    follower.feed(row(18, 0, space_id=PLAIN), confirm(19, 16), row(20))
    assert (follower.lsns(), follower.places) == ([15, 16, 18], (19, 20))
    assert not handed_back


def test_without_flags_the_spaces_decide(handed_back: list[int]) -> None:
    follower = Follower(version=(2, 6))
    handed_back.clear()
    follower.feed(row(11, 0), row(12, 0, space_id=PLAIN), row(13, 0))
    assert (follower.lsns(), follower.target.limbo.transaction_count) == ([], 3)
    follower.feed(confirm(14, 11), confirm(15, 13))
    assert (follower.lsns(), follower.places) == ([11, 12, 13], (15, 15))
    assert not handed_back


def test_rollback_drops_what_is_held_and_not_what_was_confirmed() -> None:
    follower = Follower()
    follower.feed(row(11), row(12), row(13, Flag.WAIT_SYNC, space_id=PLAIN))
    follower.feed(confirm(14, 11), about(Type.RAFT_ROLLBACK, 15, 12), row(16, 0, space_id=PLAIN))
    assert (follower.lsns(), follower.places, follower.target.limbo.transaction_count) == ([11, 16], (16, 16), 0)
    follower.feed(row(17), confirm(18, 17))
    with pytest.raises(SynchronousReplicationError, match="1:17 was already confirmed"):
        follower.feed(about(Type.RAFT_ROLLBACK, 19, 17))


def test_the_position_passes_what_was_rolled_back_before_it_was_held() -> None:
    follower = Follower()
    follower.feed(row(11), row(12))
    follower.feed(about(Type.RAFT_ROLLBACK, 13, 12))
    assert follower.places == (10, 13)
    follower.feed(row(1, 0, origin=2, space_id=PLAIN))
    follower.feed(about(Type.RAFT_PROMOTE, 2, 11, origin=2))
    assert (follower.lsns(), follower.places) == ([1, 11], (13, 13))


def test_what_made_it_wait_is_not_asked_again() -> None:
    """Another origin makes a space synchronous, of which an asynchronous transaction already waits."""
    follower = Follower()
    follower.feed(row(11), row(12, Flag.COMMIT | Flag.WAIT_SYNC, space_id=PLAIN))
    follower.feed(space_row(1, PLAIN, is_sync=True, origin=2))
    follower.feed(row(2, 0, origin=2), row(3, 0, origin=2, space_id=PLAIN, text="x" * 200))
    follower.feed(row(13))
    assert follower.target.limbo.transaction_count == 5
    follower.feed(about(Type.RAFT_CONFIRM, 4, 3, owner=2, origin=2))
    follower.feed(row(14))
    follower.feed(row(5, 0, origin=2, space_id=PLAIN))
    follower.feed(confirm(15, 11))
    assert follower.lsns() == [2, 3, 11, 12]


def test_a_new_owner_decides_about_what_is_held() -> None:
    follower = Follower()
    follower.feed(row(11), row(12))
    follower.feed(about(Type.RAFT_PROMOTE, 1, 11, origin=2), row(2, origin=2), confirm(13, 12))
    assert (follower.lsns(), follower.target.limbo.oldest_origin) == ([11], 2)
    follower.feed(about(Type.RAFT_CONFIRM, 3, 2, owner=2, origin=2))
    assert follower.lsns() == [2]
    assert follower.target.position.vclock == VClock({1: 13, 2: 3})


def test_a_change_of_schema_waits_behind_what_is_held_since_when_that_came(handed_back: list[int]) -> None:
    follower = Follower()
    follower.feed(row(11), now_us=20)
    handed_back.clear()
    follower.feed(space_row(12, PLAIN, is_sync=True), row(13, space_id=PLAIN, flags=0), now_us=30)
    state = follower.target.limbo
    assert (state.transaction_count, state.oldest_lsn, state.oldest_us) == (3, 11, 20)
    follower.feed(row(14, Flag.WAIT_SYNC, space_id=SYNC), now_us=40)
    follower.feed(confirm(15, 11))
    assert follower.lsns() == [11], "since 12, the other space is synchronous"
    follower.feed(confirm(16, 13), confirm(17, 14), row(18), confirm(19, 18), row(20), confirm(21, 20))
    assert (follower.lsns(), follower.places) == ([13, 14, 18, 20], (21, 21))
    assert handed_back[0] == 1
    handed_back.clear()
    follower.feed(row(22, space_id=PLAIN, flags=0), confirm(23, 22), row(24))
    follower.feed(confirm(25, 24))
    assert (follower.lsns(), handed_back) == ([22, 24], [])


def test_what_is_too_large_waits_in_queues_on_disk(handed_back: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "BYTES_MAX", 1 << 16)
    follower = Follower()
    handed_back.clear()
    lsn = 11
    while not handed_back:
        assert follower.target.limbo.memory_byte_count <= 1 << 16
        follower.feed(*(row(lsn + number, text="x" * 400) for number in range(20)))
        lsn += 20
    assert sum(handed_back) == lsn - 11 == follower.target.limbo.transaction_count
    follower.feed(confirm(lsn, lsn - 5))
    assert (follower.lsns(), follower.target.limbo.transaction_count) == (list(range(11, lsn - 4)), 4)
    follower.feed(row(lsn + 1), confirm(lsn + 2, lsn - 1), row(lsn + 3))
    handed_back.clear()
    follower.feed(confirm(lsn + 4, lsn + 3), row(lsn + 5), confirm(lsn + 6, lsn + 5))
    assert (follower.lsns(), handed_back) == ([*range(lsn - 4, lsn), lsn + 1, lsn + 3, lsn + 5], []), "little waits: held again"


def test_a_spooled_transaction_waits_behind_what_is_held() -> None:
    follower = Follower(transaction_bytes_max=5_000)
    follower.feed(row(11))
    last = 12 + 200
    for lsn in range(12, last + 1):
        follower.feed(row(lsn, tsn=12, flags=WAITS if lsn == last else 0, text="x" * 100))
    assert follower.spools
    assert (follower.target.limbo.transaction_count, follower.places) == (2, (10, last))
    follower.feed(confirm(last + 1, 11))
    assert follower.lsns() == [11]
    follower.feed(row(last + 2), confirm(last + 3, last), confirm(last + 4, last + 2))
    assert (follower.lsns(), follower.places) == ([*range(12, last + 1), last + 2], (last + 4, last + 4))
    assert all(spool.is_closed for spool in follower.spools)


def test_a_row_that_only_python_handles_comes_out_in_its_place(handed_back: list[int]) -> None:
    """It has no key, so it goes to the dead letters."""
    follower = Follower(on_error="dlq")
    handed_back.clear()
    follower.feed(row(11), row(12, has_key=False), row(13))
    follower.feed(confirm(14, 12), row(15), confirm(16, 13))
    assert (follower.lsns(), follower.places) == ([11, 13], (13, 16))
    follower.feed(confirm(17, 15))
    assert (follower.lsns(), follower.places) == ([15], (17, 17))
    assert len(handed_back) == 1, "what comes later doesn't go by that path"


def test_a_transaction_that_a_heartbeat_ended_waits_in_its_queue() -> None:
    follower = Follower(version=(2, 6))
    follower.feed(row(11, 0), row(12, tsn=12, flags=0))
    assert not list(follower.target.heartbeat(10))
    assert follower.target.limbo.transaction_count == 2
    follower.feed(row(14, 0, space_id=PLAIN), row(15, 0, space_id=PLAIN))
    follower.feed(confirm(16, 11))
    assert follower.lsns() == [11]
    follower.feed(confirm(17, 12), row(18, 0), confirm(19, 18))
    assert (follower.lsns(), follower.places) == ([12, 14, 15, 18], (19, 19))


def test_of_two_spaces_in_one_body_the_last_counts() -> None:
    """A client may send a key of the body twice, and the server logs what came."""
    follower = Follower(version=(2, 6))
    body = b"\x83" + wire.pack({Key.SPACE_ID: PLAIN, Key.TUPLE: [12, "x"]})[1:] + wire.pack({Key.SPACE_ID: SYNC})[1:]
    header = {Key.REQUEST_TYPE: Type.REPLACE, Key.REPLICA_ID: 1, Key.LSN: 12, Key.TIMESTAMP: 1.5}
    follower.feed(row(11, 0), wire.raw_frame(wire.pack(header) + body))
    follower.feed(confirm(13, 11))
    assert (follower.lsns(), follower.places) == ([11], (11, 13))
    follower.feed(about(Type.RAFT_ROLLBACK, 14, 12))
    assert (follower.lsns(), follower.places) == ([], (14, 14))


def unseen(*lsns: int) -> list[bytes]:
    """A transaction whose last row isn't relayed."""
    return [row(lsn, 0, space_id=PLAIN, tsn=lsns[0]) for lsn in lsns]


@pytest.mark.parametrize(
    ("arrivals", "lsns"),
    [
        ([row(11, 0), *unseen(12, 13), row(14, 0), confirm(15, 11)], [11, 12, 13, 14]),
        ([row(11, 0), *unseen(12, 13), row(14, 0), row(15, 0, tsn=15)], [11, 12, 13, 14, 15]),
        ([row(11, 0), *unseen(12, 13), row(15, 0, tsn=15)], [11, 12, 13, 15]),
        ([row(11, 0), *unseen(12, 13), row(1, 0, space_id=PLAIN, origin=2)], [1, 11, 12, 13]),
        ([row(11, 0), confirm(12, 11), *unseen(13, 14), row(1, 0, space_id=PLAIN, origin=2)], [11, 13, 14, 1]),
    ],
    ids=["before a CONFIRM", "in the middle", "before an open one", "before another origin's", "certain at once"],
)
def test_a_transaction_is_not_parted_from_the_row_that_ends_it(arrivals: list[bytes], lsns: list[int]) -> None:
    follower = Follower(version=(2, 6))
    follower.feed(*arrivals)
    follower.feed(row(16, Flag.COMMIT, tsn=15) if lsns[-1] == 15 else row(16, 0))
    follower.feed(confirm(17, 11), confirm(18, 16), row(19, 0, space_id=PLAIN))
    assert (follower.lsns(), follower.places) == ([*lsns, 16, 19], (19, 19))


def test_what_was_received_before_is_not_held_again() -> None:
    follower = Follower()
    follower.feed(row(11), row(12))
    follower.feed(row(11), row(12), confirm(13, 12))
    assert (follower.lsns(), follower.places) == ([11, 12], (13, 13))
    follower.feed(row(12), row(14), confirm(15, 14))
    assert follower.lsns() == [14]
