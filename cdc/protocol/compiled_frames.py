"""Frames whose headers the compiled row path has read, and which Python decodes only when their columns are accessed.

Most batches of a stream contain only rows, and the compiled path processes most rows completely
(stream/batches/compiled_rows.py). The rows that the compiled path hands back are extracted with `part`, and Python decodes only
those.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

from cdc import native
from cdc.protocol.codec import FRAME_BYTES_MAX, LENGTH_BYTES, Body, FrameDecoder, Frames, Header, decoded

_rows: Final[type[native.Rows] | None] = native.choose("Rows", None)
_new_reader: Final[Callable[[int], native.FrameReader] | None] = native.choose("FrameReader", None)


class CompiledFrames(Frames):
    """Frames whose headers are known, and which are decoded on the first access to their columns."""

    __slots__ = ("_columns", "rows")

    def __init__(self, rows: native.Rows) -> None:
        super().__init__([], [], rows.data, [])
        self.rows = rows
        self._columns: Frames | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def _decoded(self) -> Frames:
        if self._columns is None:
            ends = self.rows.ends
            lengths = [end - start - LENGTH_BYTES for start, end in pairwise([0, *ends])]
            self._columns = decoded(self.data, lengths, ends) if ends else Frames([], [], b"", [])
        return self._columns

    @property
    def headers(self) -> list[Header]:
        """The decoded headers."""
        return self._decoded().headers

    @property
    def bodies(self) -> list[Body]:
        """The decoded bodies."""
        return self._decoded().bodies

    @property
    def ends(self) -> list[int]:
        """The offset in `data` at which each frame ends."""
        return self._decoded().ends

    def part(self, start: int, stop: int) -> CompiledFrames:
        """Return the frames from `start` (inclusive) to `stop` (exclusive) as a separate batch."""
        return self if start == 0 and stop == len(self) else CompiledFrames(self.rows.part(start, stop))

    @staticmethod
    def of(data: bytes) -> CompiledFrames | None:
        """Return complete frames; None if one of them is odd, or if the compiled path isn't in use."""
        rows = _rows.of(data) if _rows is not None else None
        return CompiledFrames(rows) if rows is not None and not rows.is_odd else None

    @staticmethod
    def joined(parts: list[CompiledFrames]) -> CompiledFrames:
        """Join consecutive batches of frames into one; `parts` must not be empty."""
        rows = parts[0].rows.of(b"".join([part.data for part in parts]))
        assert rows is not None, "complete frames after complete frames are complete"
        return CompiledFrames(rows)


class CompiledFrameDecoder(FrameDecoder):
    """A FrameDecoder that leaves frames undecoded. Odd frames go through FrameDecoder, which reports what is wrong with them."""

    def __init__(self, reader: native.FrameReader, frame_bytes_max: int) -> None:
        super().__init__(frame_bytes_max)
        self._reader = reader

    @property
    def buffered_bytes(self) -> int:
        """Number of buffered bytes of the incomplete frame."""
        return self._reader.buffered_bytes

    def feed(self, data: bytes) -> Frames:
        """Add received bytes, in pieces of any size; return the frames that are now complete, possibly none.

        Raises ProtocolError as `FrameDecoder.feed` does, except for errors in bodies that are never accessed.
        """
        rows = self._reader.feed(data)
        if rows is None:
            return super().feed(self._reader.rest)
        frames = CompiledFrames(rows)
        if rows.is_odd:
            return Frames(frames.headers, frames.bodies, frames.data, frames.ends)
        return frames


def frames_of_log(data: bytes, block_ends: list[int]) -> tuple[CompiledFrames, int] | None:
    """Return the complete rows of a log file's blocks, as frames, and the number of bytes of the blocks that they occupy.

    Returns None if there are no complete rows, if a row is malformed, or if the compiled path isn't in use. In these cases the
    Python path must decode the blocks.
    """
    found = _rows.of_log(data, block_ends) if _rows is not None else None
    return (CompiledFrames(found[0]), found[1]) if found is not None and found[1] else None


def frame_decoder(frame_bytes_max: int = FRAME_BYTES_MAX) -> FrameDecoder:
    """Return a decoder for a stream, for the row path in use (compiled or Python)."""
    return (
        FrameDecoder(frame_bytes_max)
        if _new_reader is None
        else CompiledFrameDecoder(_new_reader(frame_bytes_max), frame_bytes_max)
    )
