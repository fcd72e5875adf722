"""No batch holds much more than it should, whatever makes it: each but for its last event is under the bound.

What is left out: the schema's records, which come with the first row of a snapshot, or with the transaction that defines spaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from cdc import native
from cdc.errors import CdcError
from cdc.images.overlay import Images
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.protocol.codec import Frames
from cdc.protocol.compiled_frames import frame_decoder
from cdc.protocol.constants import Flag, Key, Type
from cdc.schema.forms import StoredSpace
from cdc.stream.batches.batch import Batch, Broadcast
from cdc.stream.catch_up import ENDLESS
from cdc.stream.pipeline import Pipeline
from tests.fakes import wire
from tests.fakes.captures import REPLICASET
from tests.fakes.master import SERVER
from tests.fakes.pipelines import NOW_US, frames_of, pipeline
from tests.fakes.tuples import MemoryTuples

BOUND = 20_000
COUNT = 300
SYNC = Flag.WAIT_SYNC | Flag.WAIT_ACK
LONG = "x" * 1000
USERS = StoredSpace(
    512,
    [512, 1, "users", "memtx", 0, {}, [{"name": "id", "type": "unsigned"}, {"name": "text", "type": "string"}]],
    {0: [512, 0, "pk", "tree", {}, [[0, "unsigned"]]]},
    1,
)
BEGIN = Position(VClock({1: 10}), 0, 1, REPLICASET, SERVER, SnapshotState(1, is_complete=True))


def row(lsn: int, kind: int, *, tsn: int | None = None, flags: int = 0) -> bytes:
    """A change of the key that is its lsn's."""
    header: dict[int, Any] = {Key.REQUEST_TYPE: kind, Key.REPLICA_ID: 1, Key.LSN: lsn, Key.TIMESTAMP: 2.0}
    if tsn is not None:
        header[Key.TSN] = lsn - tsn
    key = (lsn - 11) % COUNT
    body = {Key.KEY: [key]} if kind == Type.DELETE else {Key.TUPLE: [key, LONG]}
    return wire.frame(header | ({Key.FLAGS: flags} if flags else {}), {Key.SPACE_ID: 512, **body})


def rows(kind: int, first: int = 11, **options: Any) -> list[bytes]:
    return [row(lsn, kind, **options) for lsn in range(first, first + COUNT)]


def transaction(kind: int, first: int = 11, flags: int = 0) -> list[bytes]:
    """One of many rows."""
    last = first + COUNT - 1
    found = rows(kind, first, tsn=first)
    return [*found[:-1], row(last, kind, tsn=first, flags=flags | Flag.COMMIT)]


def confirm(lsn: int, up_to: int) -> bytes:
    header = {Key.REQUEST_TYPE: Type.RAFT_CONFIRM, Key.REPLICA_ID: 1, Key.LSN: lsn, Key.TIMESTAMP: 2.0}
    return wire.frame(header, {Key.REPLICA_ID: 1, Key.LSN: up_to})


def filled() -> Images:
    """Images of long rows, which an event has to show although the row that makes it is short."""
    tuples = MemoryTuples()
    images = Images(tuples, [space_form()])
    target = pipeline(BEGIN, [USERS], images=images, version=(2, 11))
    for batch in target.feed(frames_of(b"".join(rows(Type.INSERT))), NOW_US):
        tuples.write(batch.changes, ())
        images.written(batch.changes)
    return images


def space_form() -> Any:
    (form,) = pipeline(BEGIN, [USERS]).published_forms()
    return form


def follow(images: Images, **options: Any) -> Pipeline:
    return pipeline(
        replace(BEGIN, vclock=VClock({1: 10})), [USERS], images=images, version=(2, 11), batch_bytes_max=BOUND, **options
    )


def check(batches: Iterable[Batch]) -> list[Batch]:
    found = list(batches)
    for batch in found:
        sizes = [len(value) for message in batch.messages if (value := value_of(message)) is not None]
        assert sum(sizes) == batch.byte_count
        assert sum(sizes[:-1]) <= BOUND
    assert found[-1].is_boundary
    return found


def value_of(message: Any) -> bytes | None:
    value: bytes | None = message.value if isinstance(message, Broadcast) else message[2]
    return value


def pieces(data: list[bytes], size: int) -> Iterator[Frames]:
    decoder = frame_decoder()
    for start in range(0, len(data), size):
        yield decoder.feed(b"".join(data[start : start + size]))


@pytest.mark.parametrize("size", [1, 50, 10_000])
@pytest.mark.parametrize("memory", [500, 10**9])
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(rows(Type.DELETE), id="rows by themselves"),
        pytest.param(transaction(Type.DELETE), id="a transaction"),
        pytest.param([row(11, Type.INSERT), *transaction(Type.DELETE, 12)], id="a row and a transaction"),
        pytest.param(
            [*transaction(Type.DELETE, flags=SYNC), confirm(1000, 10 + COUNT)],
            id="a confirmed transaction",
        ),
        pytest.param(
            [row(11, Type.INSERT, flags=SYNC), *rows(Type.DELETE, 12), confirm(1000, 11)],
            id="rows behind a confirmed one",
        ),
    ],
)
def test_the_stream(data: list[bytes], memory: int, size: int) -> None:
    target = follow(filled(), transaction_bytes_max=memory)
    found = check(batch for frames in pieces(data, size) for batch in target.feed(frames, NOW_US))
    assert len(found) > 10
    seqs = [batch.event_count for batch in found]
    assert sum(seqs) == target.position.seq


def test_what_is_in_front_of_a_large_transaction_ends_at_a_boundary() -> None:
    target = follow(filled())
    found = check(target.feed(frames_of(b"".join([row(11, Type.INSERT), *transaction(Type.DELETE, 12)])), NOW_US))
    assert (found[0].is_boundary, found[0].event_count, found[0].position.vclock) == (True, 1, VClock({1: 11}))
    assert {batch.is_boundary for batch in found[1:-1]} == {False}
    assert {batch.position.vclock for batch in found[1:-1]} == {VClock({1: 11})}
    assert found[-1].position.vclock == VClock({1: 11 + COUNT})
    assert [len(batch.changes) for batch in found] == [batch.event_count for batch in found], "each has its own changes"


def test_what_is_in_front_of_a_large_transaction_that_fails_comes_out() -> None:
    target = follow(filled())
    malformed = wire.frame({0: Type.INSERT, 2: 1, 3: 10 + COUNT, 4: 2.0, 8: COUNT - 2}, {16: 512, 33: []})
    data = [row(11, Type.INSERT), *transaction(Type.DELETE, 12)[:-2], malformed, row(11 + COUNT, Type.DELETE, tsn=12, flags=1)]
    found = list[Batch]()
    with pytest.raises(CdcError, match=f"row 1:{10 + COUNT}"):
        found.extend(target.feed(frames_of(b"".join(data)), NOW_US))
    assert (found[0].is_boundary, found[0].event_count) == (True, 1)
    assert not any(batch.is_boundary for batch in found[1:])


@pytest.mark.parametrize("memory", [500, 10**9])
def test_what_is_read_again_for_the_images(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its events are out: a batch of it has changes alone, and not many more than it should."""
    monkeypatch.setattr("cdc.stream.catch_up.CHANGES_MAX", 20)
    first = [row(11, Type.INSERT, flags=SYNC), *rows(Type.DELETE, 12)]
    data = [*first, confirm(1000, 11), *rows(Type.INSERT, 1001)]
    out = replace(BEGIN, vclock=VClock({1: 1100}))
    target = follow(filled(), transaction_bytes_max=memory, catch_up_to=out)
    found = [batch for frames in pieces(data, 10_000) for batch in target.feed(frames, NOW_US)]
    caught_up = [batch for batch in found if batch.is_catch_up]
    assert max(len(batch.changes) for batch in caught_up) <= 21
    assert sum(len(batch.changes) for batch in caught_up) == 1 + COUNT + 100
    check(batch for batch in found if not batch.is_catch_up)


@pytest.mark.skipif(native.ROW_PATH == "python", reason=native.REASON)
def test_what_a_standby_reads_is_counted_by_its_path() -> None:
    target = follow(filled(), catch_up_to=replace(BEGIN, vclock=ENDLESS))
    found = [batch for frames in pieces(rows(Type.DELETE), 1000) for batch in target.feed(frames, NOW_US)]
    assert sum(batch.row_count for batch in found) == COUNT
    assert sum(batch.native_row_count for batch in found) > COUNT / 2


def test_what_is_read_again_is_bounded_by_its_size_too() -> None:
    """A CONFIRM releases much at once, for the images alone."""
    data = [row(11, Type.INSERT, flags=SYNC), *rows(Type.INSERT, 12)[:-1], confirm(1000, 11)]
    images = Images(MemoryTuples(), [space_form()])
    target = follow(images, catch_up_to=replace(BEGIN, vclock=VClock({1: 1000})))
    found = list(target.feed(frames_of(b"".join(data)), NOW_US))
    assert all(batch.is_catch_up for batch in found)
    sizes = [sum(len(key) + len(tuple_ or b"") for key, tuple_ in batch.changes) for batch in found]
    assert sum(sizes) > COUNT * len(LONG)
    assert max(sizes) < BOUND + 2 * len(LONG)


@pytest.mark.parametrize("what", ["lacks all", "has all otherwise"])
def test_a_snapshot(what: str) -> None:
    target = follow(filled())
    bodies: list[dict[int, Any]] = [
        {16: 272, 33: ["cluster", str(REPLICASET)]},
        {16: 280, 33: USERS.space_row},
        {16: 288, 33: USERS.index_rows[0]},
    ]
    if what == "has all otherwise":
        bodies += [{16: 512, 33: [number, "short"]} for number in range(COUNT)]
    frames = frames_of(b"".join(wire.frame({0: 2, 1: 1}, body) for body in bodies))
    target.begin_snapshot(VClock({1: 400}), NOW_US)
    found = check([*target.feed_snapshot(frames, NOW_US), *target.end_snapshot(NOW_US)])
    assert sum(batch.event_count for batch in found) == COUNT
    assert len(found) > 10
    assert target.position.vclock == VClock({1: 400})
