"""Random updates of a store of so many rows: from the stream's bytes to finished messages with both images, and into the store.

No server and no Kafka is in it: filling a master with ten million rows would take longer than everything else together. What is
left is what the size of a store bears on, in the daemon's own modules: the pipeline over the store, and the store's writer.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgpack

from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.protocol.compiled_frames import frame_decoder
from cdc.protocol.constants import Flag, Key, Type
from cdc.schema.forms import StoredSpace
from cdc.schema.keys import KeyCodec
from cdc.schema.tracker import published_forms
from cdc.sources.connection import RECEIVE_BYTES
from cdc.store.spool import FileSpool
from cdc.store.writer import StateWriter
from cdc.stream.batches.options import PipelineOptions, Surroundings
from cdc.stream.pipeline import Pipeline

_NAME: Final = "bench"
_SPACE_ID: Final = 512
_VERSION: Final = (2, 6, 0)
_SERVER: Final = UUID(int=1)
_ROWS_PER_TRANSACTION: Final = 500
_AT_ONCE: Final = 16_000
"""So many changes the daemon writes into the store at once when there is much to do (cdc.store.writer)."""
_FORM: Final = [{"name": "id", "type": "unsigned"}, {"name": "name", "type": "string"}, {"name": "value", "type": "unsigned"}]
_SPACE: Final = StoredSpace(
    _SPACE_ID,
    [_SPACE_ID, 1, "bench", "memtx", 0, {}, _FORM],
    {0: [_SPACE_ID, 0, "primary", "tree", {}, [[0, "unsigned"]]]},
    1,
)
_BEGIN: Final = Position(VClock({1: 1}), 1, 1, _SERVER, _SERVER, SnapshotState(1, is_complete=True))


@dataclass(frozen=True)
class Updated:
    """What the updates took, and how large the store's file was in the end."""

    seconds: float
    cpu_seconds: float
    file_bytes: int


def update_stored(directory: Path, stored_rows: int, rows: int) -> Updated:
    """Fill a store in `directory` with `stored_rows`, update `rows` random ones of them, and remove it.

    Raises RuntimeError if the events or the rows aren't as many as they should be.
    """
    writer = StateWriter(directory, _NAME, 0.5)
    try:
        _fill(writer, stored_rows)
        return _update(writer, directory, stored_rows, rows)
    finally:
        writer.store.destroy()


def _fill(writer: StateWriter, rows: int) -> None:
    """Rows of (unsigned, string of 16 characters, unsigned) in the order of their keys, as a snapshot has them."""
    (form,) = published_forms([_SPACE])
    key_of, pack = KeyCodec(form).of_tuple, msgpack.Packer().pack
    for first in range(1, rows + 1, _AT_ONCE):
        tuples = ([number, f"{number:016x}", 1] for number in range(first, min(first + _AT_ONCE, rows + 1)))
        writer.store.write([(key_of(tuple_), pack(tuple_)) for tuple_ in tuples], ())


def _update(writer: StateWriter, directory: Path, stored_rows: int, rows: int) -> Updated:
    pipeline = Pipeline(
        Surroundings(PipelineOptions(prefix=_NAME, include=[".*"], exclude=[]), _SERVER, _VERSION, lambda: FileSpool(directory)),
        _BEGIN,
        [_SPACE],
        images=writer.begin(published_forms([_SPACE]), _VERSION),
    )
    decoder, rng = frame_decoder(), random.Random(stored_rows)
    seconds = cpu_seconds = 0.0
    updated_count = event_count = 0
    # What finds the store and the processor's caches cold isn't measured: the first tenth.
    warm_up_rows = rows // 10 // _AT_ONCE * _AT_ONCE
    while updated_count < warm_up_rows + rows:
        data = _requests(rng, stored_rows, 2 + updated_count)
        updated_count += _AT_ONCE
        began, cpu_began = time.perf_counter(), time.thread_time()
        for start in range(0, len(data), RECEIVE_BYTES):
            for batch in pipeline.feed(decoder.feed(data[start : start + RECEIVE_BYTES]), time.time_ns() // 1000):
                event_count += batch.event_count
                writer.submit(batch)
                writer.mark_committed(batch.position)
        writer.flush(is_forced=True)
        if updated_count > warm_up_rows:
            seconds += time.perf_counter() - began
            cpu_seconds += time.thread_time() - cpu_began
    share = rows / (updated_count - warm_up_rows)
    # Transactions have an event each beside their rows'.
    if event_count < updated_count or writer.store.row_count != stored_rows:
        raise RuntimeError(f"{event_count:,} events of {updated_count:,} updates; {writer.store.row_count:,} rows are stored")
    return Updated(seconds * share, cpu_seconds * share, writer.size_bytes)


def _requests(rng: random.Random, stored_rows: int, lsn: int) -> bytes:
    """So many updates of random rows as are written at once, as a master sends them, from `lsn` on."""
    pack = msgpack.Packer().pack
    frames: list[bytes] = []
    for number in range(_AT_ONCE):
        place = number % _ROWS_PER_TRANSACTION
        header: dict[int, Any] = {Key.REQUEST_TYPE: Type.UPDATE, Key.REPLICA_ID: 1, Key.LSN: lsn + number, Key.TIMESTAMP: 2.5}
        header[Key.TSN] = place
        if place == _ROWS_PER_TRANSACTION - 1:
            header[Key.FLAGS] = Flag.COMMIT
        body = {Key.SPACE_ID: _SPACE_ID, Key.INDEX_BASE: 1, Key.TUPLE: [["+", 3, 1]], Key.KEY: [rng.randint(1, stored_rows)]}
        payload = pack(header) + pack(body)
        frames.append(b"\xce" + len(payload).to_bytes(4) + payload)
    return b"".join(frames)
