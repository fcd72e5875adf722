"""Transactions of NOPs alone, which a master lets past its limbo although they carry WAIT_ACK: no CONFIRM ever follows.

`tests/captures/3.8` has what live servers sent: `nop_sync` where a trigger had turned the only row of a synchronous transaction
into a NOP, `nop_failover` where a member relays an old leader's unconfirmed transaction as a NOP, behind the PROMOTE.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.protocol.codec import Frames
from cdc.protocol.constants import Flag, Key, Type
from cdc.protocol.system_spaces import SYSTEM_SPACE_MAX
from cdc.schema.forms import StoredSpace
from cdc.schema.tracker import SchemaTracker
from cdc.stream.transactions.limbo import Limbo
from cdc.stream.transactions.transaction import Transaction
from cdc.stream.transactions.transaction_buffer import TransactionBuffer
from tests.fakes import captures, wire
from tests.fakes.master import SERVER
from tests.fakes.pipelines import NOW_US, MemorySpool, Store, frames_of, messages, pipeline, take
from tests.fakes.shop import Sent, read

DIRECTORY = captures.DIRECTORY / "3.8"
BOTH = Flag.WAIT_SYNC | Flag.WAIT_ACK


def recorded(name: str) -> tuple[Frames, dict[str, Any]]:
    """The rows of one SUBSCRIBE's answer, and what is known of the server."""
    data = gzip.decompress((DIRECTORY / f"{name}.s2c.bin.gz").read_bytes())
    rows = [packet.data for packet in captures.packets(data) if packet.kind != Type.OK]
    return frames_of(b"".join(rows)), json.loads((DIRECTORY / f"{name}.json").read_text())


def system_spaces() -> list[StoredSpace]:
    """Those that every server has."""
    store = Store()
    for batch in take(pipeline(), captures.play(captures.load("3.3", "fetch_snapshot"), captures.whole).events):
        store.take(batch)
    return [space for space in store.spaces.values() if space.space_id <= SYSTEM_SPACE_MAX]


def vclock(found: dict[str, int]) -> VClock:
    return VClock({int(origin): lsn for origin, lsn in found.items() if origin != "0"})


@pytest.mark.parametrize(("name", "start"), [("nop_sync", {1: 6}), ("nop_failover", {1: 11})])
@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("memory", [1, 10**9])
def test_a_recorded_stream_comes_out_to_its_last_row(name: str, start: dict[int, int], size: int, memory: int) -> None:
    """`start` is where the server had its users, and no space of its own."""
    frames, known = recorded(name)
    begin = Position(
        VClock(start),
        replicaset_uuid=captures.REPLICASET,
        server_uuid=SERVER,
        snapshot=SnapshotState(1, is_complete=True),
    )
    target = pipeline(begin, system_spaces(), version=(3, 8), transaction_bytes_max=memory)
    sent = list[Sent]()
    for first in range(0, len(frames), size):
        found = messages(target.feed(frames.part(first, min(len(frames), first + size)), NOW_US))
        sent += [event for event in map(read, found) if event.op]
    assert target.position.vclock == vclock(known["end_vclock"])
    assert target.limbo.transaction_count == 0
    for space, rows in known["final"].items():
        of_space = [event for event in sent if event.source["table"] == space]
        events = [(event.source["replica_id"], event.source["lsn"]) for event in of_space]
        logged = [
            (header[Key.REPLICA_ID], header[Key.LSN])
            for header, body in zip(frames.headers, frames.bodies, strict=True)
            if body.get(Key.SPACE_ID) == 512
        ]
        assert events == logged, "each row once, in the log's order"
        contents = {tuple(event.key.values()): list(event.value["after"].values()) for event in of_space}
        assert sorted(contents.values()) == rows


class Queue:
    """A limbo of a 3.8 that is told transactions."""

    def __init__(self) -> None:
        self.limbo = Limbo(SchemaTracker(), TransactionBuffer(10**9, MemorySpool), (3, 8))

    def arrive(self, lsn: int, flags: int, *kinds: int, is_on_disk: bool = False) -> bool:
        """One transaction; returns whether it waits."""
        rows: list[tuple[int, int, dict[Any, Any], bytes]] = []
        for place, kind in enumerate(kinds):
            body: dict[Any, Any] = {} if kind == Type.NOP else {Key.SPACE_ID: 512, Key.TUPLE: [lsn]}
            header = {Key.REQUEST_TYPE: kind, Key.REPLICA_ID: 1, Key.LSN: lsn + place, Key.TIMESTAMP: 1.0}
            rows.append((kind, lsn + place, body, wire.frame(header, body)))
        spool = None
        if is_on_disk:
            spool = MemorySpool()
            spool.append(b"".join(frame for _, _, _, frame in rows))
            rows = []
        return self.limbo.enqueue_if_waiting(Transaction(1, lsn, lsn, 1.0, flags, rows, spool, len(kinds)), 5)

    def say(self, kind: int, lsn: int) -> list[int]:
        """A control row; the lsns that it releases."""
        body = {Key.REPLICA_ID: 1, Key.LSN: lsn}
        control = Transaction(3, 1000, 1000, 1.0, 0, [(kind, 1000, body, b"")], None, 1)
        return [found.lsn for found in self.limbo.apply(control)]


@pytest.mark.parametrize("is_on_disk", [False, True])
@pytest.mark.parametrize("flags", [Flag.WAIT_ACK, Flag.WAIT_ACK | Flag.COMMIT])
def test_nops_alone_pass(flags: int, is_on_disk: bool) -> None:
    queue = Queue()
    assert not queue.arrive(1, flags, Type.NOP, Type.NOP, is_on_disk=is_on_disk)
    assert queue.limbo.is_empty
    assert not queue.arrive(3, 0, Type.INSERT)


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_row_among_nops_waits(is_on_disk: bool) -> None:
    queue = Queue()
    assert queue.arrive(1, BOTH | Flag.COMMIT, Type.NOP, Type.REPLACE, Type.NOP, is_on_disk=is_on_disk)
    assert queue.say(Type.RAFT_CONFIRM, 1) == [1]


def test_nops_that_waited_at_their_master_wait() -> None:
    """A row of a local space was a part of it, which isn't relayed: WAIT_SYNC says that it is in the limbo."""
    queue = Queue()
    assert queue.arrive(1, BOTH, Type.NOP)
    assert queue.arrive(2, Flag.WAIT_SYNC, Type.INSERT)
    assert queue.say(Type.RAFT_ROLLBACK, 1) == []
    assert queue.limbo.is_empty


def test_nops_behind_what_waits_keep_nobody_waiting() -> None:
    """The position of their origin can't move past the head; what is decided in front of them decides them."""
    queue = Queue()
    assert queue.arrive(1, BOTH, Type.INSERT)
    assert queue.arrive(2, Flag.WAIT_ACK, Type.NOP)
    assert queue.arrive(3, Flag.WAIT_SYNC, Type.INSERT)
    assert queue.arrive(4, BOTH, Type.INSERT)
    assert queue.say(Type.RAFT_CONFIRM, 1) == [1, 2, 3]
    assert queue.arrive(5, Flag.WAIT_ACK, Type.NOP)
    assert queue.say(Type.RAFT_ROLLBACK, 4) == []
    assert queue.limbo.is_empty
    assert queue.limbo.take_unblocked() == {1: 5}
