"""`tarantool-cdc decode`: prints a captured connection, or one of Tarantool's own files, as JSON lines.

A capture contains the bytes of one side of a connection: the server's side begins with its greeting, the client's doesn't. A
.snap or .xlog begins with its text header. Both may be gzip files. The command interprets only the names of keys and types, so
it can show a stream that the daemon refuses.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, cast

from msgpack import Timestamp

from cdc.errors import ConfigurationError, EncodingError, ProtocolError
from cdc.events.json_values import encode, plain
from cdc.protocol.codec import FrameDecoder, Frames, body_of
from cdc.protocol.constants import KEY_NAMES, TYPE_NAMES, Key, Type
from cdc.protocol.extensions import DeepValue, OpaqueExtension
from cdc.protocol.greeting import GREETING_BYTES, parse_greeting
from cdc.protocol.log_file import LogFileDecoder
from cdc.sources.log_directory import name_file_in_errors

_GZIP_MAGIC: Final = b"\x1f\x8b"
_FILE_MAGIC: Final = (b"SNAP\n", b"XLOG\n", b"VYLOG\n", b"RUN\n", b"INDEX\n")
_CHUNK_BYTES: Final = 256 * 1024


def decode_file(path: Path) -> Iterator[str]:
    """Yield the file's packets or rows as JSON objects, one a line. Raises ConfigurationError, ProtocolError or LogFileError."""
    try:
        with _opened(path) as stream:
            beginning = stream.read(GREETING_BYTES)
            if beginning.startswith(_FILE_MAGIC):
                with name_file_in_errors(path):
                    yield from _log_lines(beginning, stream)
            else:
                yield from _capture_lines(beginning, stream, path)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigurationError(f"{path} can't be read: {error}") from error


def _opened(path: Path) -> IO[bytes]:
    stream = path.open("rb")
    magic = stream.read(len(_GZIP_MAGIC))
    if magic != _GZIP_MAGIC:
        stream.seek(0)
        return stream
    stream.close()
    return cast(IO[bytes], gzip.open(path))


def _chunks(beginning: bytes, stream: IO[bytes]) -> Iterator[bytes]:
    while beginning:
        yield beginning
        beginning = stream.read(_CHUNK_BYTES)


def _capture_lines(beginning: bytes, stream: IO[bytes], path: Path) -> Iterator[str]:
    if beginning.startswith(b"Tarantool "):
        greeting = parse_greeting(beginning)
        yield encode({"greeting": {"version": greeting.version_text, "uuid": str(greeting.uuid)}}).decode()
        beginning = stream.read(_CHUNK_BYTES)
    decoder = FrameDecoder()
    for chunk in _chunks(beginning, stream):
        yield from _lines(decoder.feed(chunk))
    if decoder.buffered_bytes:
        raise ProtocolError(f"{path} ends within a packet: its last {decoder.buffered_bytes} bytes are the beginning of one")


def _log_lines(beginning: bytes, stream: IO[bytes]) -> Iterator[str]:
    decoder = LogFileDecoder()
    is_introduced = False
    for chunk in _chunks(beginning, stream):
        for frames in decoder.feed(chunk):
            if not is_introduced:
                is_introduced = True
                yield _introduction(decoder)
            yield from _lines(frames)
    decoder.end()
    if not is_introduced:
        yield _introduction(decoder)
    if not decoder.is_closed:
        yield encode({"tail": {"offset": decoder.offset, "bytes": decoder.tail_bytes, "closed": False}}).decode()


def _introduction(decoder: LogFileDecoder) -> str:
    assert decoder.meta is not None
    return encode({"file": {"kind": decoder.meta.kind, "format": decoder.meta.format_version, **decoder.meta.values}}).decode()


def _lines(frames: Frames) -> Iterator[str]:
    for header, body, frame in zip(frames.headers, frames.bodies, frames.raws(), strict=True):
        kind = header.get(Key.REQUEST_TYPE)
        packet: dict[str, Any] = {"type": _type_name(kind)}
        packet |= {_key_name(key): _shown(value) for key, value in header.items() if key != Key.REQUEST_TYPE}
        # The body is an object of its own: a DELETE's replica id, in the header, and a CONFIRM's body share keys.
        try:
            packet["body"] = {_key_name(key): _shown(value) for key, value in body.items()}
            line = encode(packet)
        except RecursionError:
            packet["body"] = {"nested_too_deeply": body_of(frame).hex()}
            line = encode(packet)
        yield line.decode()


def _type_name(kind: Any) -> str:
    if type(kind) is int and kind & Type.ERROR:
        return f"ERROR {kind & (Type.ERROR - 1)}"
    return TYPE_NAMES.get(kind, f"unknown {kind!r}") if isinstance(kind, int) else f"unknown {kind!r}"


def _key_name(key: Any) -> str:
    return KEY_NAMES.get(key, str(key)).lower() if isinstance(key, int) else repr(key)


def _shown(value: Any) -> Any:
    """Return a value in the form of the events. Values that events refuse have a form here, too."""
    try:
        return plain(value)
    except EncodingError:
        if isinstance(value, list):
            return [_shown(item) for item in value]
        if isinstance(value, dict):
            return {str(key): _shown(item) for key, item in value.items()}
        if isinstance(value, OpaqueExtension):
            return {"extension": value.code, "hex": value.data.hex()}
        if isinstance(value, DeepValue):
            return {"nested_too_deeply": value.data.hex()}
        if isinstance(value, Timestamp):
            return {"extension": -1, "hex": value.to_bytes().hex()}
        return repr(value)
