"""Frames whose headers the compiled row path has read, and which Python decodes only when somebody asks for their columns.

Most batches of a stream have nothing but rows, and most of those the compiled path handles to the end (cdc.stream.compiled_rows);
what it hands back is cut out with `part`, and only that is decoded.
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
    """Frames that know their headers without having been decoded."""

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
        """What stands in front of each body."""
        return self._decoded().headers

    @property
    def bodies(self) -> list[Body]:
        """The bodies, decoded."""
        return self._decoded().bodies

    @property
    def ends(self) -> list[int]:
        """Where each frame ends."""
        return self._decoded().ends

    def part(self, start: int, stop: int) -> CompiledFrames:
        """The frames from `start` up to `stop` as a batch of their own."""
        return self if start == 0 and stop == len(self) else CompiledFrames(self.rows.part(start, stop))

    @staticmethod
    def joined(parts: list[CompiledFrames]) -> CompiledFrames:
        """Frames that came one behind the other, one part at least."""
        rows = parts[0].rows.of(b"".join([part.data for part in parts]))
        assert rows is not None, "whole frames behind whole frames are whole"
        return CompiledFrames(rows)


class CompiledFrameDecoder(FrameDecoder):
    """A FrameDecoder that leaves frames undecoded. What is odd goes the other one's way, which says what is wrong with it."""

    def __init__(self, reader: native.FrameReader, frame_bytes_max: int) -> None:
        super().__init__(frame_bytes_max)
        self._reader = reader

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the frame that isn't whole yet."""
        return self._reader.buffered_bytes

    def feed(self, data: bytes) -> Frames:
        """Take what the socket gave, in pieces of any size; return the frames that are whole now, perhaps none.

        Raises ProtocolError as the other does, but for bodies that nobody asks for.
        """
        rows = self._reader.feed(data)
        if rows is None:
            return super().feed(self._reader.rest)
        frames = CompiledFrames(rows)
        if rows.is_odd:
            return Frames(frames.headers, frames.bodies, frames.data, frames.ends)
        return frames


def frames_of_log(data: bytes, block_ends: list[int]) -> tuple[CompiledFrames, int] | None:
    """The rows of a log file's blocks that are whole, as frames, and how many bytes they have of these.

    None if there are none, if something isn't as it should be, or where the Python path runs, which then takes them.
    """
    found = _rows.of_log(data, block_ends) if _rows is not None else None
    return (CompiledFrames(found[0]), found[1]) if found is not None and found[1] else None


def frame_decoder(frame_bytes_max: int = FRAME_BYTES_MAX) -> FrameDecoder:
    """The decoder of a stream, for the row path that runs."""
    return (
        FrameDecoder(frame_bytes_max)
        if _new_reader is None
        else CompiledFrameDecoder(_new_reader(frame_bytes_max), frame_bytes_max)
    )
