"""`tarantool-cdc decode`: what stands in a captured connection, as JSON lines.

A capture is the bytes of one side of a connection, plain or gzip: the server's begins with its greeting, the client's
doesn't. Nothing is interpreted beyond the names of keys and types, so a stream that the daemon refuses can be looked at.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from cdc.errors import ConfigurationError, EncodingError, ProtocolError
from cdc.json_values import encode, plain
from cdc.protocol.codec import FrameDecoder, Frames
from cdc.protocol.constants import KEY_NAMES, TYPE_NAMES, Key, Type
from cdc.protocol.extensions import OpaqueExtension
from cdc.protocol.greeting import GREETING_BYTES, parse_greeting

_GZIP_MAGIC: Final = b"\x1f\x8b"
_FILE_MAGIC: Final = (b"SNAP\n", b"XLOG\n", b"VYLOG\n", b"RUN\n", b"INDEX\n")
_CHUNK_BYTES: Final = 256 * 1024


def decode_file(path: Path) -> Iterator[str]:
    """The capture's packets as JSON objects, one a line. Raises ConfigurationError or ProtocolError."""
    try:
        data = path.read_bytes()
        if data.startswith(_GZIP_MAGIC):
            data = gzip.decompress(data)
    except (OSError, EOFError, gzip.BadGzipFile) as error:
        raise ConfigurationError(f"{path} can't be read: {error}") from error
    if data.startswith(_FILE_MAGIC):
        raise ConfigurationError(
            f"{path} is one of Tarantool's own files, which this version can't read",
            "Give it the bytes of one side of a connection, as tcpflow or Wireshark save them.",
        )
    if data.startswith(b"Tarantool "):
        greeting = parse_greeting(data[:GREETING_BYTES])
        yield encode({"greeting": {"version": greeting.version_text, "uuid": str(greeting.uuid)}}).decode()
        data = data[GREETING_BYTES:]
    decoder = FrameDecoder()
    for start in range(0, len(data), _CHUNK_BYTES):
        yield from _lines(decoder.feed(data[start : start + _CHUNK_BYTES]))
    if decoder.buffered_bytes:
        raise ProtocolError(f"{path} ends within a packet: its last {decoder.buffered_bytes} bytes are the beginning of one")


def _lines(frames: Frames) -> Iterator[str]:
    for header, body in zip(frames.headers, frames.bodies, strict=True):
        kind = header.get(Key.REQUEST_TYPE)
        packet: dict[str, Any] = {"type": _type_name(kind)}
        packet |= {_key_name(key): _shown(value) for key, value in header.items() if key != Key.REQUEST_TYPE}
        # A DELETE's replica id and a CONFIRM's body share keys: the body stands apart.
        packet["body"] = {_key_name(key): _shown(value) for key, value in body.items()}
        yield encode(packet).decode()


def _type_name(kind: Any) -> str:
    if type(kind) is int and kind & Type.ERROR:
        return f"ERROR {kind & (Type.ERROR - 1)}"
    return TYPE_NAMES.get(kind, f"unknown {kind!r}") if isinstance(kind, int) else f"unknown {kind!r}"


def _key_name(key: Any) -> str:
    return KEY_NAMES.get(key, str(key)).lower() if isinstance(key, int) else repr(key)


def _shown(value: Any) -> Any:
    """A value in the form of the events; here even what events refuse has one."""
    try:
        return plain(value)
    except EncodingError:
        if isinstance(value, list):
            return [_shown(item) for item in value]
        if isinstance(value, dict):
            return {str(key): _shown(item) for key, item in value.items()}
        if isinstance(value, OpaqueExtension):
            return {"extension": value.code, "hex": value.data.hex()}
        return repr(value)
