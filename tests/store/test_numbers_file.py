"""The file of the given numbers: what is in it at each moment, and that its loss stops nobody."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cdc.positions.numbers import Kept, Numbers
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.store.numbers_file import FILE, RESERVED_SEQS, NumbersFile, read


def at(seq: int) -> Position:
    return Position(VClock({1: seq}), seq, 3, snapshot=SnapshotState(2, is_complete=True))


@pytest.fixture
def file(tmp_path: Path) -> NumbersFile:
    return NumbersFile(tmp_path / "state", "shop", "shop")


def kept(file: NumbersFile) -> Kept:
    """What the next process finds."""
    return read(file._path.parent, "shop", "shop")


def test_seqs_are_reserved_before_they_are_given_and_synced_at_the_end(
    file: NumbersFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    assert kept(file) == Kept()
    file.reserve(1)
    assert kept(file).reserved_seq == RESERVED_SEQS + 1
    file.reserve(RESERVED_SEQS + 1)
    assert kept(file).reserved_seq == RESERVED_SEQS + 1
    file.reserve(RESERVED_SEQS + 2)
    assert kept(file).reserved_seq == 2 * RESERVED_SEQS + 2
    again = NumbersFile(file._path.parent, "shop", "shop")
    again.reserve(5)  # the checkpoint was at 4: what the killed process had reserved stays
    assert kept(again).reserved_seq == 2 * RESERVED_SEQS + 2
    assert not synced, "the row path doesn't wait for the disk"
    again.close(at(9))
    assert len(synced) == 1


@pytest.mark.parametrize("name", ["n" * 600, "магазин" * 12])
def test_names_that_fill_a_sector(tmp_path: Path, name: str) -> None:
    """The content becomes shorter, and the end of the former one stays behind it."""
    file = NumbersFile(tmp_path / "state", name, "shop")
    file.reserve(1)
    file.close(at(9))
    assert read(tmp_path / "state", name, "shop") == file.kept == Kept(Numbers(9, 2, 3), 9)


@pytest.mark.parametrize("is_closed", [False, True])
def test_at_least_once_delivery_stays_recorded_until_its_events_are_passed(
    file: NumbersFile, monkeypatch: pytest.MonkeyPatch, *, is_closed: bool
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    file.begin("a", "at_least_once")
    again = NumbersFile(file._path.parent, "shop", "shop")
    again.begin("b", "exactly_once", ahead_until=9)
    again.reserve(5)
    again.record(at(8))
    assert again.may_be_passed
    assert (kept(file).delivery, kept(file).cluster_id) == ("at_least_once", "b")
    now[0] += 2
    if is_closed:
        again.close(at(9))
    else:
        again.record(at(9))
    assert again.kept == kept(file)
    assert kept(file).delivery == "exactly_once"


def test_committed_numbers_are_recorded_now_and_then(file: NumbersFile, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    file.record(None)
    assert not file._path.exists()
    file.record(at(7))
    assert kept(file).committed == Numbers(7, 2, 3)
    file.record(at(8))
    assert kept(file).committed.seq == 7
    now[0] += 1
    file.record(at(9))
    assert kept(file).committed.seq == 9
    now[0] += 1
    file.record(at(4))
    assert kept(file).committed.seq == 9, "Kafka was thrown back, and the file isn't"
    assert file._path.stat().st_size == 512
    assert file._path.stat().st_mode & 0o077 == 0


def test_an_orderly_stop_leaves_nothing_reserved(file: NumbersFile) -> None:
    file.reserve(1)
    file.begin("a cluster", "exactly_once")
    file.close(at(180))
    assert kept(file) == Kept(Numbers(180, 2, 3), 180, "a cluster", "exactly_once")


def test_the_cluster_and_the_delivery_are_those_of_the_last_run(file: NumbersFile) -> None:
    file.begin("a cluster", "at_least_once")
    file.begin(None, "exactly_once")
    assert (kept(file).cluster_id, kept(file).delivery) == ("a cluster", "exactly_once")
    file.begin("another", "exactly_once")
    assert kept(file).cluster_id == "another"


def test_a_file_that_is_removed_comes_back(file: NumbersFile) -> None:
    file.record(at(7))
    file._path.unlink()
    file.reserve(8)
    assert kept(file) == Kept(Numbers(7, 2, 3), RESERVED_SEQS + 8)


def test_a_directory_that_can_not_be_used_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with capture_logs() as said:
        file = NumbersFile(tmp_path / "state", "shop", "shop")
        file.reserve(1)
        file.close(at(5))
    (line,) = said
    assert line["event"].startswith("the highest numbers can't be kept in state.path")
    assert line["path"] == str(tmp_path / "state" / FILE)
    assert file.kept.committed.seq == 5, "the process itself remembers them"
