"""Tarantool's own files, written from their description: text header, blocks with their checksums, end marker.

The checksum is computed bit by bit, so that the reader's library is tested against something else.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import zstandard

from tests.fakes import wire

DIRECTORY: Final = Path(__file__).resolve().parent.parent / "captures" / "files" / "2.6"
END_MARKER: Final = bytes.fromhex("d510aded")
INSTANCE: Final = "aaaaaaaa-0000-4000-8000-000000000001"

_POLYNOMIAL: Final = 0x82F63B78
Row = tuple[Mapping[int, Any], Mapping[int, Any] | None]


def captured() -> dict[str, bytes]:
    """The files that a live 2.6.0 wrote, by name; tests/captures/files/scenario.lua says what is in them."""
    return {path.stem: gzip.decompress(path.read_bytes()) for path in sorted(DIRECTORY.glob("*.gz"))}


def unpack_to(directory: Path) -> Path:
    """Put the captured files into a directory."""
    directory.mkdir(exist_ok=True)
    for name, data in captured().items():
        (directory / name).write_bytes(data)
    return directory


def checksum(data: bytes) -> int:
    """CRC-32C, begun at 0 and not inverted."""
    value = 0
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value


def meta(
    *,
    kind: str = "XLOG",
    version: str = "0.13",
    vclock: str = "{}",
    previous: str | None = None,
    writer: str = "2.6.0-0-g47aa4e01e",
    instance: str = INSTANCE,
) -> bytes:
    """A text header."""
    lines = [kind, version, f"Version: {writer}", f"Instance: {instance}", f"VClock: {vclock}"]
    if previous is not None:
        lines.append(f"PrevVClock: {previous}")
    return ("\n".join(lines) + "\n\n").encode()


def rows_data(rows: Iterable[Row]) -> bytes:
    """Rows as they stand in a block."""
    return b"".join(wire.pack(header) + (b"" if body is None else wire.pack(body)) for header, body in rows)


def block(data: bytes, *, compressed: bool = False, padding: int = 0) -> bytes:
    """A block around any data; `padding` is the byte that fills its header."""
    magic = bytes.fromhex("d5ba0bba" if compressed else "d5ba0bab")
    if compressed:
        data = zstandard.ZstdCompressor(level=3, write_content_size=False).compress(data)
    header = magic + wire.pack(len(data)) + wire.pack(0) + wire.pack(checksum(data))
    missing = 19 - len(header)
    if missing:
        header += bytes([0xA0 + missing - 1]) + bytes([padding]) * (missing - 1)
    return header + data


def insert(lsn: int, *values: Any, space_id: int = 512, **header: int) -> Row:
    """A row of origin 1; `tsn` and `flags` as the header gives them."""
    keys = {"replica_id": 2, "group_id": 7, "tsn": 8, "flags": 9}
    fields = {0: 2, 2: 1, 3: lsn, 4: 1.5, **{keys[name]: value for name, value in header.items()}}
    return {key: value for key, value in fields.items() if (key, value) != (2, 0)}, {0x10: space_id, 0x21: list(values)}


NOP: Final = 12


def nop(lsn: int) -> Row:
    """A row without a body."""
    return {0: NOP, 2: 1, 3: lsn, 4: 1.5}, None
