"""Frames whose headers the compiled row path has read: those that Python decodes, and its words for what is odd."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest

from cdc import native
from cdc.errors import CdcError
from cdc.protocol import log_file
from cdc.protocol.codec import FrameDecoder
from cdc.protocol.compiled_frames import CompiledFrames, frame_decoder, frames_of_log
from cdc.protocol.constants import Key
from tests.fakes import captures, wire

pytestmark = pytest.mark.skipif(native.ROW_PATH == "python", reason=native.REASON)


def rows(count: int) -> list[bytes]:
    """Single rows."""
    header = {Key.REQUEST_TYPE: 2, Key.REPLICA_ID: 1, Key.TIMESTAMP: 2.0}
    return [wire.frame({**header, Key.LSN: 11 + place}, {Key.SPACE_ID: 512, Key.TUPLE: [place]}) for place in range(count)]


@pytest.mark.parametrize("version", captures.VERSIONS)
def test_rows_of_a_file_are_those_that_python_reads(version: str) -> None:
    packets = [packet for packet in captures.packets(captures.load(version, "subscribe").stream()) if packet.kind != 0]
    blocks = [packet.data[5:] for packet in packets]
    data = b"".join(blocks)
    ends = list(accumulate(map(len, blocks)))
    headers, bodies, found_ends = log_file._decoded(data)
    python = log_file._frames(headers, bodies, data, found_ends)
    compiled = frames_of_log(data, ends)
    assert compiled is not None
    frames, end = compiled
    assert end == len(data)
    assert (frames.data, frames.headers, frames.ends) == (python.data, python.headers, python.ends)
    assert repr(frames.bodies) == repr(python.bodies)  # a NaN is like no other
    last = {header[Key.REPLICA_ID]: header[Key.LSN] for header in headers}
    assert dict(frames.rows.lsns() or []) == last
    # Cut anywhere, what is whole comes; a block that ends within a row is left to Python, which says so.
    for cut in random.Random(1).sample(range(len(data)), 50):
        part = frames_of_log(data[:cut], [])
        whole = max((end for end in ends if end <= cut), default=0)
        assert (part[1] if part is not None else 0) == whole
        assert (frames_of_log(data, [cut]) is None) == (cut not in ends and cut > 0)


def test_frames_are_decoded_only_where_somebody_looks() -> None:
    frames = frame_decoder().feed(b"".join(rows(3)))
    python = FrameDecoder().feed(b"".join(rows(3)))
    assert isinstance(frames, CompiledFrames)
    assert frames._columns is None
    for one, other in ((frames, python), (frames.part(1, 3), python.part(1, 3)), (frames.part(2, 2), python.part(2, 2))):
        assert (one.headers, one.bodies, one.data, one.ends, len(one), one.raws()) == (
            other.headers, other.bodies, other.data, other.ends, len(other), other.raws()
        )  # fmt: skip
    assert frames.raw(1) == python.raw(1)


@pytest.mark.parametrize(
    "data",
    [
        b"\xcd\x00\x00\x00\x00",
        b"\xce\xff\xff\xff\xff",
        wire.raw_frame(b""),
        wire.raw_frame(b"\x93\x01\x02\x03"),
        wire.raw_frame(b"\x81\x00\x02\x91\x01"),
        wire.raw_frame(b"\x81\x00\x02\x81\x10\xc1"),
        wire.raw_frame(b"\x81\x00\x02\x81\x10"),
        wire.frame({Key.REQUEST_TYPE: 2}, {}) + b"\xcd\x00\x00\x00\x00",
    ],
)
def test_what_is_odd_is_refused_in_the_same_words(data: bytes) -> None:
    said = []
    for decoder in (FrameDecoder(1000), frame_decoder(1000)):
        with pytest.raises(CdcError) as caught:
            decoder.feed(data)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_a_packet_among_rows_is_seen() -> None:
    heartbeat = wire.frame({Key.REQUEST_TYPE: 0, Key.REPLICA_ID: 1, Key.TIMESTAMP: 1.0})
    frames = frame_decoder().feed(b"".join(rows(1)) + heartbeat)
    assert isinstance(frames, CompiledFrames)
    assert not frames.rows.has_only_rows
    assert [header[Key.REQUEST_TYPE] for header in frames.headers] == [2, 0]
