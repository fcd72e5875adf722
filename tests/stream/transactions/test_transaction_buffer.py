"""Lines of transactions: what is taken is what was put, in order, wherever it waited, and nothing of it stays."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest

from cdc.protocol.constants import Flag, Key, Type
from cdc.store.spool import FileSpool
from cdc.stream.transactions.transaction import Transaction
from cdc.stream.transactions.transaction_buffer import ENTRY_BYTES, TransactionBuffer, TransactionQueue
from tests.fakes import wire
from tests.fakes.pipelines import MemorySpool


def transaction(lsn: int, *, text: str = "x", spool: MemorySpool | None = None) -> Transaction:
    """One row, in memory, or in a spool of its own."""
    body = {Key.SPACE_ID: 512, Key.TUPLE: [lsn, text]}
    frame = wire.frame({Key.REQUEST_TYPE: Type.INSERT, Key.REPLICA_ID: 1, Key.LSN: lsn, Key.TIMESTAMP: 1.5}, body)
    if spool is None:
        return Transaction(1, lsn - 1, lsn, 1.5, Flag.COMMIT, [(Type.INSERT, lsn, body, frame)], None, 1)
    spool.append(frame)
    return Transaction(1, lsn - 1, lsn, 1.5, Flag.COMMIT, [], spool, 1, len(frame))


def frames(taken: Transaction) -> bytes:
    """The rows of one that was taken, as they came in."""
    if taken.spool is None:
        return b"".join(frame for _, _, _, frame in taken.rows)
    found = b"".join(taken.spool.chunks())
    taken.spool.close()
    return found


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a few transactions, and large transactions of some hundred bytes."""
    monkeypatch.setattr("cdc.stream.transactions.transaction_buffer.SPOOL_BYTES", 700)
    monkeypatch.setattr("cdc.stream.transactions.transaction_buffer.SMALL_BYTES", 200)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(60))
def test_a_line_is_a_queue_that_is_cut_from_behind(seed: int) -> None:
    rng, spools = random.Random(seed), list[MemorySpool]()
    waiting = TransactionBuffer(rng.choice([0, 3 * ENTRY_BYTES, 10**9]), lambda: MemorySpool(spools, 50))
    lines: list[TransactionQueue] = [waiting.new_queue(), waiting.new_queue()]
    expected: list[list[tuple[int, bool, bytes]]] = [[], []]
    lsn = 1
    for _ in range(300):
        place = rng.randrange(2)
        line, waits = lines[place], expected[place]
        match rng.choice(["put", "put", "put", "take", "take", "drop"]):
            case "put":
                lsn += 1
                own = MemorySpool(spools) if rng.random() < 0.1 else None
                is_synchronous = rng.random() < 0.4
                one = transaction(lsn, text="long " * rng.choice([1, 1, 100]), spool=own)
                whole = b"".join(own.chunks()) if own is not None else one.rows[0][3]
                line.put(one, is_synchronous=is_synchronous, received_us=7)
                waits.append((lsn, is_synchronous, whole))
            case "take" if waits:
                head = line.head
                assert head is not None
                assert (head.lsn, head.is_synchronous, head.received_us) == (*waits[0][:2], 7)
                taken = line.take()
                assert (taken.lsn, frames(taken)) == (waits[0][0], waits.pop(0)[2])
                assert (taken.replica_id, taken.tsn, taken.timestamp, taken.flags, taken.row_count) == (
                    1,
                    taken.lsn - 1,
                    1.5,
                    1,
                    1,
                )
            case "drop" if rng.random() < 0.3:
                limit = rng.randint(lsn - 10, lsn + 1)
                first = next((at for at, (one_lsn, is_sync, _) in enumerate(waits) if is_sync and one_lsn >= limit), None)
                found = line.drop_from(limit)
                assert found == (None if first is None else waits[first][0])
                del waits[first if first is not None else len(waits) :]
            case _:
                pass
        assert [line.count for line in lines] == [line.row_count for line in lines] == [len(waits) for waits in expected]
        assert (lines[0].head is None) == (not lines[0]) == (not expected[0])
    for line, waits in zip(lines, expected, strict=True):
        while waits:
            assert frames(line.take()) == waits.pop(0)[2]
    assert waiting.memory_byte_count == waiting.disk_byte_count == 0
    assert all(spool.is_closed for spool in spools), "its space comes back"


@pytest.mark.usefixtures("small")
def test_a_large_one_that_waits_again_keeps_its_file() -> None:
    """It goes from one line into another, while the first one is emptied."""
    spools = list[MemorySpool]()
    waiting = TransactionBuffer(0, lambda: MemorySpool(spools))
    first, second = waiting.new_queue(), waiting.new_queue()
    first.put(transaction(1, text="large " * 100))
    first.put(transaction(2))
    large = first.take()
    assert large.spool is not None
    second.put(large)
    first.take()
    assert not any(spool.is_closed for spool in spools)
    assert b"large large" in frames(second.take())
    assert all(spool.is_closed for spool in spools)


@pytest.mark.usefixtures("small")
def test_close_leaves_nothing_open() -> None:
    spools = list[MemorySpool]()
    waiting = TransactionBuffer(2 * ENTRY_BYTES, lambda: MemorySpool(spools))
    line = waiting.new_queue()
    for lsn in range(1, 40):
        line.put(transaction(lsn, spool=MemorySpool(spools) if lsn % 7 == 0 else None))
    waiting.close()
    assert waiting.memory_byte_count == waiting.disk_byte_count == line.count == 0
    assert all(spool.is_closed for spool in spools)


def test_what_waits_on_disk_costs_no_memory(tmp_path: Path) -> None:
    """Beside what a file's buffers take."""
    count, bound = 5_000, 50 * ENTRY_BYTES
    waiting = TransactionBuffer(bound, lambda: FileSpool(tmp_path))
    line = waiting.new_queue()
    line.put(transaction(1))
    tracemalloc.start()
    try:
        for lsn in range(2, count):
            line.put(transaction(lsn), is_synchronous=lsn % 2 == 0)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert waiting.memory_byte_count <= bound
    assert grown < bound + 400_000, f"{grown / count:.0f} bytes for each"
    assert line.drop_from(count // 2) == count // 2
    assert [line.take().lsn for _ in range(line.count)] == list(range(1, count // 2))
    waiting.close()
