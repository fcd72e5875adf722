"""`decode`: captured connections and Tarantool's own files as JSON lines, plain or gzip, whole or not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from cdc.decode import decode_file
from cdc.errors import CdcError, ConfigurationError, LogFileError, ProtocolError
from tests.fakes import captures, log_files

NAME = "00000000000000000000.xlog"


def decoded(path: Path) -> list[Any]:
    return [json.loads(line) for line in decode_file(path)]


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("name", log_files.captured())
def test_files(tmp_path: Path, name: str, packs: bool) -> None:
    data = log_files.captured()[name]
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if packs else data)
    first, *rows = decoded(path)
    assert first["file"]["kind"] == name[-4:].upper()
    assert first["file"]["Version"].startswith("2.6.0")
    assert all("body" in row for row in rows)


def test_rows_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(log_files.captured()[NAME])
    rows = decoded(path)
    assert len(rows) == 344
    assert rows[2] == {
        "type": "INSERT",
        "replica_id": 1,
        "lsn": 2,
        "timestamp": rows[2]["timestamp"],
        "body": {"space_id": 280, "tuple": [512, 1, "rows", "memtx", 0, {}, []]},
    }
    assert {row["type"] for row in rows[1:]} == {"INSERT", "UPDATE", "UPSERT", "NOP", "RAFT_CONFIRM"}


def test_broken_tail(tmp_path: Path) -> None:
    data = log_files.captured()[NAME]
    path = tmp_path / NAME
    path.write_bytes(data[:-5])
    *_, last = decoded(path)
    assert last["tail"]["closed"] is False
    assert last["tail"]["offset"] + last["tail"]["bytes"] == len(data) - 5
    path.write_bytes(data[: data.index(b"\n\n") + 2])
    assert [next(iter(line)) for line in decoded(path)] == ["file", "tail"]


def test_damage_comes_after_what_is_good(tmp_path: Path) -> None:
    data = bytearray(log_files.captured()[NAME])
    data[2_000] ^= 1
    path = tmp_path / NAME
    path.write_bytes(data)
    lines = decode_file(path)
    assert "file" in json.loads(next(lines))
    with pytest.raises(LogFileError, match=rf"{NAME}: .*, at offset \d+"):
        list(lines)


def test_captured_connections(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    data = captures.DIRECTORY.joinpath("2.6", "control.s2c.bin.gz").read_bytes()
    path.write_bytes(data)
    first, *rest = decoded(path)
    assert first["greeting"]["version"].startswith("2.6.0")
    assert rest
    path.write_bytes(gzip.decompress(data)[:-1])
    with pytest.raises(ProtocolError, match="ends within a packet"):
        decoded(path)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", None),
        (b"VYLOG\n0.13\n\n", LogFileError),
        (b"XLOG\n0.13\n", LogFileError),
        (b"no packet", ProtocolError),
        (gzip.compress(log_files.captured()[NAME])[:-9], ConfigurationError),
        (b"\x1f\x8b damaged", ConfigurationError),
    ],
)
def test_refused(tmp_path: Path, data: bytes, kind: type[CdcError] | None) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    if kind is None:
        assert decoded(path) == []
        return
    with pytest.raises(kind):
        decoded(path)
