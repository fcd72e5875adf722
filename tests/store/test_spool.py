"""Large transactions on disk (the spool), and a full disk."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from cdc.errors import ConfigurationError
from cdc.store import spool
from cdc.store.spool import FileSpool


def test_what_was_added_comes_again_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "CHUNK_BYTES", 4)
    kept = FileSpool(tmp_path / "new" / "folder")
    kept.append(b"01234")
    first = kept.part(0, 8)
    assert next(first) == b"0123"
    kept.append(b"56789")
    assert list(kept.part(3, 6)) == [b"345"]
    assert list(first) == [b"4567"]
    assert list(kept.chunks()) == [b"0123", b"4567", b"89"]
    kept.close()


def test_a_folder_that_can_not_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"can't be put on disk: .*file'.*state\.path a directory with room"):
        FileSpool(tmp_path / "file")


def added_and_read(kept: FileSpool, byte_count: int) -> bytes:
    kept.append(bytes(byte_count))
    return next(kept.chunks())


@pytest.mark.parametrize("byte_count", [10, 1_000_000])
def test_a_full_disk_is_told_of_when_it_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, byte_count: int) -> None:
    """A few bytes stay in memory until something else is done with the file."""
    full = FileSpool(tmp_path)
    with open("/dev/full", "r+b", buffering=0) as raw:
        monkeypatch.setattr(full, "_file", io.BufferedRandom(raw))
        with pytest.raises(ConfigurationError, match=r"can't be put on disk: .*No space left.*room"):
            added_and_read(full, byte_count)


def test_what_a_full_disk_did_not_take_can_be_discarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the disk was raised before; another one behind it would hide it."""
    full = FileSpool(tmp_path)
    with open("/dev/full", "r+b", buffering=0) as raw:
        file = io.BufferedRandom(raw)
        monkeypatch.setattr(full, "_file", file)
        full.append(b"too much")
        full.close()
        assert file.closed
        full.close()
