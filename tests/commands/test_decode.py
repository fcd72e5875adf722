"""`decode`: captured connections and Tarantool's own files as JSON lines, plain or gzip, whole or not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from cdc.commands.decode import decode_file
from cdc.errors import CdcError, ConfigurationError, LogFileError, ProtocolError
from tests.fakes import captures, log_files, wire
from tests.fakes.log_files import END_MARKER, block, insert, meta, nop, rows_data

NAME = "00000000000000000000.xlog"


def decoded(path: Path) -> list[Any]:
    return [json.loads(line) for line in decode_file(path)]


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("name", log_files.captured())
def test_files(tmp_path: Path, name: str, packs: bool) -> None:
    data = log_files.captured()[name]
    path = tmp_path / name
    path.write_bytes(gzip.compress(data, mtime=0) if packs else data)
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
        (gzip.compress(log_files.captured()[NAME], mtime=0)[:-9], ConfigurationError),
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


@pytest.mark.parametrize("depth", [600, 1021, 1500, 100_000])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_row_that_is_nested_deeply(tmp_path: Path, depth: int, compressed: bool) -> None:
    """It is shown as its bytes, from a capture as from a file; the rows around it as ever."""
    body = b"\x82\x10\xcd\x02\x00\x21\x92\x07" + b"\x91" * depth + b"\x05"
    row = wire.pack({0: 2, 2: 1, 3: 8, 4: 1.5}) + body
    before, behind = rows_data([insert(7, 1, "a")]), rows_data([insert(9, 2, "b"), nop(10)])
    log = meta() + block(before + row + behind, compressed=compressed) + END_MARKER
    capture = b"".join(wire.raw_frame(data) for data in (before, row, rows_data([insert(9, 2, "b")]), rows_data([nop(10)])))
    for data in (log, capture):
        path = tmp_path / "file"
        path.write_bytes(data)
        first, deep, second, third = [line for line in decoded(path) if "type" in line]
        assert (first["body"]["tuple"], second["body"]["tuple"], third["type"]) == ([1, "a"], [2, "b"], "NOP")
        assert (deep["type"], deep["lsn"]) == ("INSERT", 8)
        if depth <= 1021:
            assert deep["body"] == {"nested_too_deeply": body.hex()}
            continue
        assert (deep["body"]["space_id"], deep["body"]["tuple"][0]) == (512, 7)
        text = json.dumps(deep["body"]["tuple"][1])
        assert text.count("[") == 63
        rest = b"\x91" * (depth - 63) + b"\x05"
        assert json.dumps({"nested_too_deeply": rest.hex()}) in text


def test_an_extension_of_messagepack_itself(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(wire.raw_frame(wire.pack({0: 2}) + b"\x81\x21\x92\xd6\xff\x00\x00\x00\x05\xd4\xff\x07"))
    (line,) = decoded(path)
    assert line["body"]["tuple"] == [{"extension": -1, "hex": "00000005"}, {"extension": -1, "hex": "07"}]
