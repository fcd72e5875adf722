"""Pipelines with the tests' defaults, and what comes out of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final
from uuid import UUID

from cdc.images.overlay import Images
from cdc.positions.position import Position
from cdc.protocol.codec import Frames
from cdc.protocol.compiled_frames import frame_decoder
from cdc.protocol.session import Event, Heartbeat, Joined, SnapshotFinished, SnapshotRows, SnapshotStarted, StreamRows
from cdc.schema.forms import StoredSpace
from cdc.stream.batches.batch import Batch, Broadcast, Message
from cdc.stream.batches.options import PipelineOptions, Surroundings
from cdc.stream.pipeline import Pipeline
from tests.fakes.master import SERVER

NOW_US: Final = 1_732_180_000_123_456
PREFIX: Final = "shop"


class MemorySpool:
    """A spool that counts what it is asked."""

    opened: list[MemorySpool]

    def __init__(self, log: list[MemorySpool] | None = None, chunk_bytes: int = 1000) -> None:
        self._data = bytearray()
        self._chunk_bytes = chunk_bytes
        self.is_closed = False
        if log is not None:
            log.append(self)

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        assert not self.is_closed
        self._data += data

    def chunks(self) -> Iterator[bytes]:
        """All bytes again."""
        return self.part(0, len(self._data))

    def part(self, start: int, stop: int) -> Iterator[bytes]:
        """A part of the bytes again."""
        for place in range(start, stop, self._chunk_bytes):
            assert not self.is_closed
            yield bytes(self._data[place : min(stop, place + self._chunk_bytes)])

    def close(self) -> None:
        """Forget the bytes."""
        self.is_closed = True


def options(**changed: Any) -> PipelineOptions:
    """The defaults, with changes."""
    return PipelineOptions(**{"prefix": PREFIX, "include": [".*"], "exclude": [], **changed})


def pipeline(
    position: Position | None = None,
    stored: Iterable[StoredSpace] = (),
    *,
    server_uuid: UUID = SERVER,
    version: tuple[int, ...] = (2, 6),
    spools: list[MemorySpool] | None = None,
    chunk_bytes: int = 1000,
    images: Images | None = None,
    catch_up_to: Position | None = None,
    **changed: Any,
) -> Pipeline:
    """A pipeline at this position."""
    return Pipeline(
        Surroundings(options(**changed), server_uuid, version, lambda: MemorySpool(spools, chunk_bytes)),
        position or Position(),
        list(stored),
        images=images,
        catch_up_to=catch_up_to,
    )


def take(target: Pipeline, events: Iterable[Event], now_us: int = NOW_US, *, publish: bool = True) -> Iterator[Batch]:
    """What the follower does with events, batch by batch."""
    for event in events:
        match event:
            case SnapshotStarted(vclock):
                yield target.begin_snapshot(vclock, now_us, publish=publish)
            case SnapshotRows(frames):
                yield from target.feed_snapshot(frames, now_us)
            case SnapshotFinished():
                yield from target.end_snapshot(now_us)
            case StreamRows(frames):
                yield from target.feed(frames, now_us)
            case Heartbeat():
                yield from target.heartbeat(now_us)
            case Joined():
                target.discard_open()
            case _:
                pass


def frames_of(data: bytes) -> Frames:
    """Whole frames, decoded."""
    decoder = frame_decoder()
    frames = decoder.feed(data)
    assert not decoder.buffered_bytes
    return frames


def messages(batches: Iterable[Batch]) -> list[Message | Broadcast]:
    """All messages in order."""
    return [message for batch in batches for message in batch.messages]


class Store:
    """What the checkpoint topic holds after some batches: the position and the schema at the last boundary."""

    def __init__(self, position: Position | None = None, spaces: dict[int, StoredSpace] | None = None) -> None:
        self.position = position or Position()
        self.spaces: dict[int, StoredSpace] = dict(spaces or {})

    def take(self, batch: Batch) -> None:
        """A batch has become durable."""
        for space_id, space in batch.stored.items():
            if space is None:
                self.spaces.pop(space_id, None)
            else:
                self.spaces[space_id] = space
        if batch.is_boundary:
            self.position = batch.position
