"""Rows of a stream that are held back until the checkpoint covers them.

    stream       1:41 1:42 │ 1:43 2:7 1:44 │ …
    checkpoint   {1: 43}
    let go       1:41 1:42 │ 1:43            the rest waits for {1: 44, 2: 7}

What is let go is always a beginning of the stream. A checkpoint stands between source transactions, so what a checkpoint covers
ends there too, unless the first daemon follows another member, which sends the rows of several origins in another order: then a
row that isn't covered holds back those behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from cdc.positions.vclock import VClock
from cdc.protocol.codec import Frames
from cdc.protocol.compiled_frames import CompiledFrames
from cdc.protocol.constants import Key


class HeldBack:
    """Rows in the order of the stream."""

    def __init__(self) -> None:
        self._waiting: deque[Frames] = deque()
        self.byte_count = 0
        """Size of the rows that wait, in bytes."""

    def put(self, frames: Frames) -> None:
        """Add the next rows of the stream."""
        self._waiting.append(frames)
        self.byte_count += len(frames.data)

    def take(self, checkpoint: VClock) -> Iterator[Frames]:
        """Yield the rows that the checkpoint covers, up to the first one that it doesn't."""
        while self._waiting:
            frames = self._waiting.popleft()
            self.byte_count -= len(frames.data)
            count = len(frames)
            covered = count if _covers_all(checkpoint, frames) else _count_covered(checkpoint, frames)
            if covered:
                yield frames.part(0, covered)
            if covered < count:
                rest = frames.part(covered, count)
                self._waiting.appendleft(rest)
                self.byte_count += len(rest.data)
                return


def _covers_all(checkpoint: VClock, frames: Frames) -> bool:
    """Return whether every row is covered, without decoding them; False if that can't be told so."""
    lsns = frames.rows.lsns() if isinstance(frames, CompiledFrames) else None
    return lsns is not None and all(_covers(checkpoint, origin, lsn) for origin, lsn in lsns)


def _count_covered(checkpoint: VClock, frames: Frames) -> int:
    headers = frames.headers
    each = (_covers(checkpoint, header.get(Key.REPLICA_ID, 0), header.get(Key.LSN, 0)) for header in headers)
    return next((index for index, is_covered in enumerate(each) if not is_covered), len(headers))


def _covers(checkpoint: VClock, origin: int, lsn: int) -> bool:
    # Origin 0 is a member's own: no checkpoint has it.
    return not origin or lsn <= checkpoint[origin]
