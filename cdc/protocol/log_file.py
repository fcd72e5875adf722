"""Decoder of Tarantool's .snap and .xlog files: their bytes become rows, in the same columns as rows from a connection.

    XLOG\\n0.13\\nVersion: 2.6.0-…\\nInstance: …\\nVClock: {1: 334}\\nPrevVClock: {}\\n\\n      the text header
    d5ba0bab │ 1b 00 ce7137d4c0 a7 00… │ rows                                          an uncompressed block
    d5ba0bba │ cd05a6 00 ce36c736e2 a5 00… │ rows                                      a block compressed with zstd
    d510aded                                                                           the end marker of a closed file

A block's header has 19 bytes: magic, length of the data, an unused checksum (0), the CRC-32C of the data as stored in the
file, padding. Tarantool's CRC-32C begins at 0 and isn't inverted. To verify a header, the decoder builds it again from the
length and the data; if any bit differs, the file is damaged. A row is a header map and a body map without a preceding length.
A NOP has no body, which only its type shows.

A file ends in one of three ways, which the decoder must distinguish:

    … block, end marker                    closed
    … block, the beginning of a block      open: it is being written, or its writer died; an incomplete block was never promised
    … anything else                        damaged: wrong bits, foreign bytes, or a header whose length spans good blocks

Out of scope: the files' names, and the meaning of the rows.

Sources: src/box/xlog.c (xlog_meta_parse, xlog_fixheader_decode, xlog_tx_write_plain, xlog_tx_write_zstd, xlog_cursor_next_tx),
xrow.c (xrow_header_decode), lib/core/crc32.c; and the files of a live 2.6.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain
from typing import Final
from uuid import UUID

import google_crc32c
import msgpack
import zstandard

from cdc.errors import LogFileError, ProtocolError
from cdc.positions.vclock import VClock
from cdc.protocol import layout
from cdc.protocol.codec import FRAME_BYTES_MAX, Body, FrameDecoder, Frames, Header, unpacker
from cdc.protocol.compiled_frames import frames_of_log
from cdc.protocol.constants import Key, Type

PLAIN: Final = b"\xd5\xba\x0b\xab"
COMPRESSED: Final = b"\xd5\xba\x0b\xba"
END_MARKER: Final = b"\xd5\x10\xad\xed"
BLOCK_HEADER_BYTES: Final = 19
META_BYTES_MAX: Final = 4096
"""Upper bound of a text header's length, in bytes. Tarantool's own bound is 1024 bytes plus a vclock."""
ROWS_BYTES: Final = 64 * 1024
"""Approximate size of a decoded batch of rows, in bytes: about a thousand small rows, which still fit a processor's cache."""

_READABLE_KINDS: Final = ("SNAP", "XLOG")
_VINYL_KINDS: Final = ("VYLOG", "RUN", "INDEX")
_READABLE_VERSIONS: Final = ("0.12", "0.13")
_PADDING_CLEARED_SINCE: Final = (1, 7, 5)
"""Writers before this version left arbitrary bytes in the padding."""
_NUMBERS: Final = re.compile(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})")
_CRC_START: Final = 0xFFFFFFFF
_PADDINGS: Final = (b"", *(bytes([0xA0 + size - 1]) + bytes(size - 1) for size in range(1, BLOCK_HEADER_BYTES)))
_NOP: Final = Type.NOP
_REQUEST_TYPE: Final = Key.REQUEST_TYPE
_ALL_DICTS: Final = {dict}
_LENGTH_BYTES: Final = 5
_SHORT_MAX: Final = 4096

_encode_uint16: Final = struct.Struct(">BH").pack
_encode_uint32: Final = struct.Struct(">BI").pack
_uint16_at: Final[Callable[..., tuple[int]]] = struct.Struct(">H").unpack_from
_uint32_at: Final[Callable[..., tuple[int]]] = struct.Struct(">I").unpack_from
_LENGTHS: Final = [_encode_uint32(0xCE, size) for size in range(_SHORT_MAX)]

DAMAGE_HINT: Final = (
    "Restore the file from a backup, or start again from a directory whose newest .snap was written after the damage."
)


@dataclass(frozen=True, slots=True)
class FileMeta:
    """A file's text header.

    `vclock` is the position at which a log begins, or the position that a snapshot holds. `previous_vclock` is the position at
    which the previous log begins, None if the header lacks it. `values` holds all lines unchanged, including those that this
    program doesn't use.
    """

    kind: str
    format_version: str
    vclock: VClock
    previous_vclock: VClock | None
    instance_uuid: UUID | None
    values: dict[str, str] = field(default_factory=dict)

    @property
    def is_snapshot(self) -> bool:
        """Whether the file is a .snap."""
        return self.kind == "SNAP"

    @property
    def writer_version(self) -> tuple[int, int, int] | None:
        """The version of the server that wrote the file, None if the header lacks it."""
        match = _NUMBERS.match(self.values.get("Version", ""))
        return (int(match[1]), int(match[2]), int(match[3])) if match else None


def parse_meta(data: bytes) -> tuple[FileMeta, int] | None:
    """Parse the text header at the beginning of a file; return it and its length in bytes, or None if more data is needed.

    Raises LogFileError for a file of another kind or version.
    """
    kind, _, _ = data[:16].partition(b"\n")
    _check_kind(kind, is_whole=b"\n" in data[:16] or len(data) >= 16)
    end = data.find(b"\n\n", 0, META_BYTES_MAX)
    if end < 0:
        if len(data) >= META_BYTES_MAX:
            raise LogFileError(f"the text header doesn't end within {META_BYTES_MAX} bytes", offset=0, hint=DAMAGE_HINT)
        return None
    lines = data[:end].decode("utf-8", "replace").split("\n")
    version = lines[1] if len(lines) > 1 else ""
    if version not in _READABLE_VERSIONS:
        raise LogFileError(
            f"the file has format version {version!r:.40}",
            offset=0,
            hint=f"This program reads {' and '.join(_READABLE_VERSIONS)}, which Tarantool has written since 1.6.",
        )
    values: dict[str, str] = {}
    for line in lines[2:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise LogFileError(f"the text header has a line without a value: {line!r:.100}", offset=0, hint=DAMAGE_HINT)
        values[name] = value.strip(" \t")
    try:
        instance = values.get("Instance", values.get("Server"))
        previous = values.get("PrevVClock")
        meta = FileMeta(
            lines[0],
            version,
            VClock.parse(values.get("VClock", "{}")),
            None if previous is None else VClock.parse(previous),
            None if instance is None else UUID(instance),
            values,
        )
    except ValueError as error:
        raise LogFileError(f"the text header can't be understood: {error}", offset=0, hint=DAMAGE_HINT) from error
    return meta, end + 2


def _check_kind(kind: bytes, *, is_whole: bool) -> None:
    text = kind.decode("latin-1")
    if text in _VINYL_KINDS and is_whole:
        raise LogFileError(
            f"the file is one of vinyl's own files ({text}), which contain no changes to read",
            offset=0,
            hint="Changes of vinyl spaces are in .xlog files, like all others; their rows are not in .snap files.",
        )
    if text in _READABLE_KINDS if is_whole else any(name.startswith(text) for name in (*_READABLE_KINDS, *_VINYL_KINDS)):
        return
    raise LogFileError(
        f"the file begins with {text!r:.40}, not as a .snap or .xlog does", offset=0, hint="Name a .snap or .xlog file."
    )


class LogFileDecoder:
    """Decoder of one file. Holds at most one block as stored in the file (twice while splitting it), and a batch of rows."""

    def __init__(self, *, block_bytes_max: int = FRAME_BYTES_MAX) -> None:
        """`block_bytes_max` is the maximum size of a block as stored in the file, and of a single row, in bytes."""
        self._bytes_max = block_bytes_max
        self._buffer = bytearray()
        # Number of bytes that the buffer must hold before it can contain another block.
        self._needed = 0
        self._zstd = zstandard.ZstdDecompressor()
        self._is_padding_free = False
        self.meta: FileMeta | None = None
        """The text header, None until it was read."""
        self.offset = 0
        """Offset in the file of the end of the last block whose rows were returned."""
        self.is_closed = False
        """Whether the end marker was read."""

    @property
    def tail_bytes(self) -> int:
        """Number of bytes after the last complete block; 0 once the end marker was read."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[Frames]:
        """Add the file's next bytes, in pieces of any size; yield the rows that are now complete.

        Exhaust the iterator before the next call. If the file is damaged, the iterator first yields the rows before the damage,
        then raises LogFileError. After an error the decoder is unusable.
        """
        self._buffer += data
        if self.is_closed and data:
            raise _damage("there are bytes after the end marker", self.offset + len(END_MARKER))
        if self.meta is None:
            found = parse_meta(bytes(self._buffer[:META_BYTES_MAX]))
            if found is None:
                return
            self.meta, self.offset = found
            version = self.meta.writer_version
            self._is_padding_free = version is None or version < _PADDING_CLEARED_SINCE
            del self._buffer[: self.offset]
        if len(self._buffer) >= self._needed:
            yield from self._rows()

    def end(self) -> None:
        """Check the tail once the file has no more bytes.

        Raises LogFileError unless the tail is one that an interrupted writer leaves.
        """
        if self.meta is None:
            raise _damage("the file ends within its text header", 0)
        tail = bytes(self._buffer)
        if len(tail) < len(PLAIN):
            if not any(magic.startswith(tail) for magic in (PLAIN, COMPRESSED, END_MARKER)):
                raise _damage(f"the file ends with {tail.hex(' ')}, which begins no block", self.offset)
            return
        claim = "the length in the header of a block exceeds the file"
        if tail.endswith(END_MARKER):
            raise _damage(f"{claim}, which has its end marker", self.offset)
        for magic in (PLAIN, COMPRESSED):
            place = tail.find(magic, 1)
            while place >= 0:
                if self._is_block(tail, place):
                    raise _damage(f"{claim}, but another block begins at offset {self.offset + place}", self.offset)
                place = tail.find(magic, place + 1)

    def rewind(self) -> int:
        """Discard the buffered tail, which its writer may still change; return the offset from which to read again."""
        self._buffer.clear()
        self._needed = 0
        self.is_closed = False
        return self.offset

    def _rows(self) -> Iterator[Frames]:
        """Yield the rows of the complete blocks in the buffer.

        Small blocks are decoded together, because a master with little load writes a block for each row.
        """
        data, start, first_offset = bytes(self._buffer), 0, self.offset
        self._buffer.clear()
        run: list[tuple[int, bytes]] = []
        run_bytes = 0
        fault: LogFileError | None = None
        more: Iterator[bytes] | None = None
        while True:
            taken_bytes, start = _take_plain(data, start, first_offset, run)
            run_bytes += taken_bytes
            self.offset = offset = first_offset + start
            try:
                size, payload = self._next_block(data, start)
                if payload is None:
                    self._needed = 0 if self.is_closed else size
                    start += size if self.is_closed else 0
                    break
                if data.startswith(COMPRESSED, start):
                    payload, more = self._decompressed(payload)
                elif len(payload) > ROWS_BYTES:
                    payload, more = b"", _pieces(payload)
            except _Fault as error:
                fault = _damage(str(error), offset)  # raised after the rows before it were yielded
                break
            if more is None:
                run.append((offset, payload))
                run_bytes += len(payload)
            if run and (run_bytes >= ROWS_BYTES or more is not None):
                yield from _rows_of_run(run)
                run, run_bytes = [], 0
            if more is not None:
                yield from _rows_of_large(chain((payload,), more), offset, self._bytes_max)
                more = None
            start += size
        if run:
            yield from _rows_of_run(run)
        if fault is not None:
            raise fault
        self._buffer += data[start:]

    def _next_block(self, data: bytes, start: int) -> tuple[int, bytes | None]:
        """Do as `_block_at`, and accept the end marker, after which no bytes may follow."""
        if not self.is_closed and data.startswith(END_MARKER, start):
            self.is_closed = True
            if start + len(END_MARKER) == len(data):
                return len(END_MARKER), None
        if self.is_closed:
            raise _Fault("there are bytes after the end marker")
        return self._block_at(data, start)

    def _decompressed(self, payload: bytes) -> tuple[bytes, Iterator[bytes] | None]:
        """Decompress a block; return its first ROWS_BYTES bytes and, if it may be longer, an iterator over the rest.

        Raises _Fault if the first part can't be decompressed.
        """
        reader = self._zstd.stream_reader(payload, read_across_frames=True)
        try:
            first = reader.read(ROWS_BYTES)
        except zstandard.ZstdError as error:
            raise _Fault(f"a block can't be decompressed ({error})") from error
        return first, iter(partial(reader.read, ROWS_BYTES), b"") if len(first) == ROWS_BYTES else None

    def _block_at(self, data: bytearray | bytes, start: int) -> tuple[int, bytes | None]:
        """Return the size of the block at `start` including its header, and its contents (None if the block is incomplete).

        If even the size is unknown, it is the number of bytes needed to find it. Raises _Fault if no block begins at `start`, or
        if the block is damaged.
        """
        available = len(data) - start
        if available < len(PLAIN):
            return len(PLAIN), None
        magic = bytes(data[start : start + len(PLAIN)])
        if magic not in (PLAIN, COMPRESSED):
            raise _Fault(f"no block begins with {magic.hex(' ')}")
        if available < BLOCK_HEADER_BYTES:
            return BLOCK_HEADER_BYTES, None
        length = _uint_at(data, start + len(PLAIN))
        if length > self._bytes_max:
            raise _Fault(f"the header of a block names {length} bytes, more than source.frame_bytes_max ({self._bytes_max})")
        size = BLOCK_HEADER_BYTES + length
        if available < size:
            return size, None
        payload = bytes(memoryview(data)[start + BLOCK_HEADER_BYTES : start + size])
        header = data[start : start + BLOCK_HEADER_BYTES]
        expected = _block_header(magic, length, google_crc32c.extend(_CRC_START, payload) ^ _CRC_START)
        if header != expected and not (self._is_padding_free and _differ_in_padding(header, expected)):
            raise _Fault("the header of a block doesn't fit its data (a checksum, the length or the padding is wrong)")
        return size, payload

    def _is_block(self, data: bytes, start: int) -> bool:
        try:
            return self._block_at(data, start)[1] is not None
        except _Fault:
            return False


class _Fault(Exception):  # noqa: N818 - becomes an error once its place is known
    """A description of damage; the caller adds its offset."""


def _damage(what: str, offset: int) -> LogFileError:
    return LogFileError(what, offset=offset, hint=DAMAGE_HINT)


# Headers of blocks.


def _uint_at(data: bytearray | bytes, place: int) -> int:
    """Decode a MessagePack unsigned integer of at most 32 bits. Raises _Fault."""
    match first := data[place]:
        case 0xCC:
            return data[place + 1]
        case 0xCD:
            return _uint16_at(data, place + 1)[0]
        case 0xCE:
            return _uint32_at(data, place + 1)[0]
        case _ if first < 0x80:
            return first
    raise _Fault("the length in the header of a block is malformed")


def _uint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    if value <= 0xFF:
        return bytes((0xCC, value))
    return _encode_uint16(0xCD, value) if value <= 0xFFFF else _encode_uint32(0xCE, value)


def _block_header(magic: bytes, length: int, checksum: int) -> bytes:
    """Return the block header that Tarantool writes for this length and checksum."""
    numbers = b"%b%b\0%b" % (magic, _uint(length), _uint(checksum))
    return numbers + _PADDINGS[BLOCK_HEADER_BYTES - len(numbers)]


_SMALL: Final = [
    (b"%b%b\0\xce" % (PLAIN, _uint(size)), _PADDINGS[BLOCK_HEADER_BYTES - 10 - len(_uint(size))]) for size in range(256)
]
"""Bytes before and after the checksum in the header of a small plain block, by the block's length."""
_checksum_bytes: Final = struct.Struct(">I").pack


def _take_plain(data: bytes, start: int, first_offset: int, run: list[tuple[int, bytes]]) -> tuple[int, int]:
    """Append the small plain blocks from `start` on, each with its offset, to `run`; stop at the first other block.

    Returns the total size of the blocks' contents in bytes, and the end of the last block. A log of single-row transactions
    consists of such blocks, so this is a hot path. `first_offset` is the offset of `data` in the file.
    """
    extend = google_crc32c.extend
    byte_count = 0
    last = len(data) - BLOCK_HEADER_BYTES
    while start <= last and byte_count < ROWS_BYTES:
        length = data[start + 4]
        if length >= 0x80:
            length = data[start + 5]  # if the block is longer or malformed, its header won't match below
        begin = start + BLOCK_HEADER_BYTES
        payload = data[begin : begin + length]
        before, behind = _SMALL[length]
        checksum = extend(_CRC_START, payload) ^ _CRC_START
        if data[start:begin] != before + _checksum_bytes(checksum) + behind:
            break
        run.append((first_offset + start, payload))
        byte_count += length
        start = begin + length
    return byte_count, start


def _differ_in_padding(header: bytearray | bytes, expected: bytes) -> bool:
    """Return whether two headers differ only in the padding's content; the padding's length is a part of the header."""
    padding = max(expected.rstrip(b"\0")[-1] - 0xA0, 0)
    kept = BLOCK_HEADER_BYTES - padding
    return header[:kept] == expected[:kept]


def _pieces(payload: bytes) -> Iterator[bytes]:
    return (payload[at : at + ROWS_BYTES] for at in range(0, len(payload), ROWS_BYTES))


# Rows.


def _rows_of_run(run: list[tuple[int, bytes]]) -> Iterator[Frames]:
    """Yield the rows of small blocks, given with their offsets."""
    data = b"".join([block for _, block in run])
    block_ends = list(accumulate(len(block) for _, block in run if block))
    compiled = frames_of_log(data, block_ends)
    if compiled is not None and compiled[1] == len(data):
        yield compiled[0]
        return
    try:
        headers, bodies, ends = _decoded(data)
        if (ends[-1] if ends else 0) == len(data) and set(ends).issuperset(block_ends):
            yield _frames(headers, bodies, data, ends)
            return
    except _NOT_ROWS:
        pass  # decoding block by block finds the malformed one
    for offset, block in run:
        frames, rest = _rows_singly(block, offset)
        if rest:
            raise _damage("a block ends within a row", offset)
        yield frames


def _rows_of_large(pieces: Iterator[bytes], offset: int, bytes_max: int) -> Iterator[Frames]:
    """Yield the rows of one block, given in pieces whose boundaries may split rows."""
    parts: list[bytes] = []
    size = wanted = 0
    try:
        for piece in pieces:
            parts.append(piece)
            size += len(piece)
            if size < wanted:
                continue  # a long row: the data must double in size before the next attempt
            frames, rest = _whole_rows(b"".join(parts), offset)
            wanted = 0 if len(frames) else 2 * len(rest)
            if len(rest) > bytes_max:
                raise _damage(f"a row has more than {bytes_max} bytes (source.frame_bytes_max)", offset)
            parts, size = [rest], len(rest)
            if len(frames):
                yield frames
    except zstandard.ZstdError as error:
        raise _damage(f"a block can't be decompressed ({error})", offset) from error
    rest = b"".join(parts)
    while rest:
        # The compiled path stops before a row in an uncommon encoding; the next call leaves that row to the Python path.
        frames, rest = _whole_rows(rest, offset)
        if not len(frames):
            raise _damage("a block ends within a row", offset)
        yield frames


def _whole_rows(data: bytes, offset: int) -> tuple[Frames, bytes]:
    """Return the complete rows at the beginning of `data`, and the remaining bytes."""
    compiled = frames_of_log(data, [])
    if compiled is not None:
        return compiled[0], data[compiled[1] :]
    try:
        headers, bodies, ends = _decoded(data)
    except _NOT_ROWS:
        return _rows_singly(data, offset)
    return _frames(headers, bodies, data, ends), data[ends[-1] if ends else 0 :]


_NOT_ROWS: Final = (LookupError, ValueError, TypeError, OverflowError, msgpack.UnpackException, ProtocolError)
"""Exceptions of the fast path for rows that it can't decode: invalid bytes, unhashable keys, a header that isn't a map."""


def _decoded(data: bytes) -> tuple[list[Header], list[Body], list[int]]:
    """Return headers, bodies and ends of the complete rows in `data`. This is the hot path."""
    headers: list[Header] = []
    bodies: list[Body] = []
    ends: list[int] = []
    decoder = unpacker(data)
    unpack, tell = decoder.unpack, decoder.tell
    add_header, add_body, add_end = headers.append, bodies.append, ends.append
    try:
        for header in decoder:
            body = {} if header[_REQUEST_TYPE] == _NOP else unpack()
            add_header(header)
            add_body(body)
            add_end(tell())
    except msgpack.OutOfData:
        pass  # the last row's body is incomplete
    if not set(map(type, headers)) <= _ALL_DICTS >= set(map(type, bodies)):
        raise ValueError("a row isn't two maps")
    return headers, bodies, ends


def _frames(headers: list[Header], bodies: list[Body], data: bytes, ends: list[int]) -> Frames:
    """Return the rows as a connection would deliver them: with a length before each row."""
    return Frames(headers, bodies, _on_the_wire(data, ends), [end + _LENGTH_BYTES * count for count, end in enumerate(ends, 1)])


def _on_the_wire(data: bytes, ends: list[int]) -> bytes:
    parts: list[bytes] = []
    add = parts.append
    start = 0
    for end in ends:
        size = end - start
        add(_LENGTHS[size] if size < _SHORT_MAX else _encode_uint32(0xCE, size))
        add(data[start:end])
        start = end
    return b"".join(parts)


def _rows_singly(data: bytes, offset: int) -> tuple[Frames, bytes]:
    """Do as `_whole_rows`, for rows that the fast path can't decode. Raises LogFileError if the data contain no valid row."""
    ends: list[int] = []
    end = 0
    try:
        while end < len(data):
            behind = layout.end_of(data, end)
            (header,) = FrameDecoder().feed(_on_the_wire(data[end:behind], [behind - end])).headers
            end = behind if header[_REQUEST_TYPE] == _NOP else layout.end_of(data, behind)
            ends.append(end)
    except (layout.NothingError, KeyError, ProtocolError) as error:
        raise _damage(f"a block contains data that isn't a row ({error})", offset) from error
    except IndexError:
        pass  # the last row is incomplete
    end = ends[-1] if ends else 0
    try:
        frames = FrameDecoder().feed(_on_the_wire(data, ends))
    except ProtocolError as error:
        raise _damage(f"a block contains data that isn't a row ({error.message})", offset) from error
    return frames, data[end:]
