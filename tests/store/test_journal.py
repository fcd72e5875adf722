"""After a kill in the middle of a snapshot the store is brought up to the checkpoint, exactly, or not at all."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import StateError
from cdc.images.pending import CLEAR, Change, ChangeList, unpacked
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.schema.keys import space_prefix
from cdc.store import journal as module
from cdc.store.files import DATA_FILE, journal_files, set_aside
from cdc.store.journal import Journal
from cdc.store.writer import StateWriter
from cdc.stream.batches.batch import Batch
from tests.fakes.profiles import SOME
from tests.fakes.tuples import changes_of
from tests.store.test_writer import SPACE, VERSION

PREFIX = space_prefix(512)
KEYS = st.binary(max_size=3).map(PREFIX.__add__)
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.binary(min_size=1, max_size=5)) | st.just((PREFIX, CLEAR)), max_size=6)


def at(seq: int, *, snapshot_id: int = 1, is_complete: bool = False) -> Position:
    return Position(VClock({1: 9}), seq=seq, snapshot=SnapshotState(snapshot_id, is_complete=is_complete))


def batch(position: Position, *changes: Change) -> Batch:
    return Batch([], 0, 0, 1, position, True, {512: SPACE}, [], 0.0, changes_of(changes))


def row(number: int) -> Change:
    return PREFIX + b"%03d" % number, b"\x91%d" % number


def opened(path: Path) -> StateWriter:
    return StateWriter(path, "shop", 3600)


def killed(writer: StateWriter, path: Path) -> Path:
    """The directory as a kill leaves it, now: its files are as the system has them."""
    left = path.parent / f"{path.name}-killed"
    shutil.copytree(path, left, ignore=shutil.ignore_patterns("lost"))
    writer.close()
    return left


@SOME
@given(CHANGES)
def test_changes_are_bytes_and_back(changes: list[Change]) -> None:
    assert list(unpacked(changes_of(changes).pack())) == changes
    assert ChangeList(changes).pack() == changes_of(changes).pack()


@SOME
@given(st.data(), st.lists(CHANGES, min_size=2, max_size=8))
def test_the_store_reaches_the_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, batches: list[list[Change]]
) -> None:
    """Whatever was committed, and whatever of that was stored, when the process was killed."""
    path = tmp_path_factory.mktemp("journal") / "state"
    writer = opened(path)
    writer.begin((), VERSION)
    writer._images = None  # these changes aren't made by images
    expected: dict[bytes, bytes] = {}
    positions = [at(number, is_complete=number == len(batches)) for number in range(1, len(batches) + 1)]
    committed = data.draw(st.integers(1, len(batches)))
    stored = data.draw(st.integers(0, committed))
    for number, (position, changes) in enumerate(zip(positions, batches, strict=True), 1):
        writer.submit(batch(position, *changes))
        if number <= stored:
            writer.mark_committed(position)
            writer.flush(is_forced=True)
        for key, tuple_ in changes if number <= committed else ():
            if tuple_ == CLEAR:
                expected.clear()
            elif tuple_ is None:
                expected.pop(key, None)
            else:
                expected[key] = tuple_
    left = opened(killed(writer, path))
    checkpoint = positions[committed - 1]
    assert left.catch_up(checkpoint) == (stored < committed)
    assert left.position == left.checkpoint().position == checkpoint
    assert dict(left.store.scan(512)) == expected
    assert left.checkpoint().spaces == {512: SPACE}
    left.close()


def interrupted(path: Path, count: int = 5, *, stored: int = 0) -> Path:
    """A directory as a kill left it after this many batches of a row each."""
    writer = opened(path)
    writer.begin((), VERSION)
    for number in range(1, count + 1):
        position = at(number)
        writer.submit(batch(position, row(number)))
        if number <= stored:
            writer.mark_committed(position)
            writer.flush(is_forced=True)
    return killed(writer, path)


def test_an_end_that_isnt_complete_counts_for_nothing(tmp_path: Path) -> None:
    path = interrupted(tmp_path / "state")
    (file,) = journal_files(path)
    for size in range(file.stat().st_size - 1, 0, -7):
        os.truncate(file, size)
        copy = tmp_path / f"{size}"
        shutil.copytree(path, copy)
        writer = opened(copy)
        writer.catch_up(at(5))
        rows = list(writer.store.scan(512))
        assert rows == [row(number) for number in range(1, len(rows) + 1)]
        assert len(rows) < 5
        assert (writer.position.seq if writer.position else 0) == len(rows)
        writer.close()


@pytest.mark.parametrize("writes", [0, 1, 2, 3])
def test_a_file_that_is_written_over_shows_nothing_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """Wherever a kill interrupts that."""
    writer = opened(tmp_path / "state")
    writer.begin((), VERSION)
    positions = [at(number) for number in range(1, 4)]
    for number, position in enumerate(positions, 1):
        writer.submit(batch(position, row(number), row(number + 100)))
    left = writes

    def write(descriptor: int, data: bytes, offset: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError("killed")
        os.pwrite(descriptor, data, offset)

    monkeypatch.setattr(module, "_write", write)
    monkeypatch.setattr(module, "PackedWriter", type(None))  # so that changes are written by the same function
    writer.mark_committed(positions[-1])
    with contextlib.suppress(StateError):
        writer.flush(is_forced=True)
        writer.submit(batch(at(4), row(4)))
    monkeypatch.undo()
    again = opened(killed(writer, tmp_path / "state"))
    assert again.position == positions[-1], "the store had it all"
    assert again.catch_up(at(4)) == (writes != 1 and writes != 2)
    assert again.position == (at(4) if writes == 3 else positions[-1])
    rows = [row(number) for number in (1, 2, 3, *([4] if writes == 3 else []), 101, 102, 103)]
    assert list(again.store.scan(512)) == rows
    again.close()


@pytest.mark.parametrize("checkpoint", [None, Position(seq=5), at(5, snapshot_id=2)])
def test_another_snapshots_checkpoint_is_not_led_to(tmp_path: Path, checkpoint: Position | None) -> None:
    writer = opened(interrupted(tmp_path / "state"))
    assert not writer.catch_up(checkpoint)
    assert writer.store.row_count == 0
    writer.close()


def test_what_is_between_the_store_and_the_journal_must_not_be_missing(tmp_path: Path) -> None:
    """The store was put aside, or is another one: then the journal continues something else."""
    path = interrupted(tmp_path / "state", stored=2)
    (file,) = journal_files(path)
    content = file.read_bytes()
    set_aside(path)
    assert not journal_files(path)
    file.write_bytes(content)
    writer = opened(path)
    assert not writer.catch_up(at(5))
    assert writer.store.row_count == 0
    writer.close()


def test_the_next_connection_begins_without_it(tmp_path: Path) -> None:
    path = interrupted(tmp_path / "state")
    writer = opened(path)
    writer.catch_up(at(5))
    assert journal_files(path)
    writer.begin((), VERSION)
    assert not journal_files(path)
    writer.close()


def test_an_emptied_store_has_none(tmp_path: Path) -> None:
    path = interrupted(tmp_path / "state")
    writer = opened(path)
    writer.restart()
    assert not journal_files(path)
    writer.close()


def test_the_stream_needs_none(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.begin((), VERSION)
    complete = at(1, is_complete=True)
    writer.submit(batch(complete, row(1)))
    writer.mark_committed(complete)
    writer.flush(is_forced=True)
    writer.submit(batch(at(2, is_complete=True), row(2)))
    assert list(Journal(tmp_path).read()) == []
    writer.close()


def test_the_end_of_a_snapshot_and_what_follows_it_at_once_are_in_it(tmp_path: Path) -> None:
    """A JOIN sends rows of the stream right behind the snapshot's."""
    writer = opened(tmp_path / "state")
    writer.begin((), VERSION)
    for number, is_complete in ((1, False), (2, True), (3, True)):
        writer.submit(batch(at(number, is_complete=is_complete), row(number)))
    left = opened(killed(writer, tmp_path / "state"))
    assert left.catch_up(at(3, is_complete=True))
    assert list(left.store.scan(512)) == [row(1), row(2), row(3)]
    left.close()


def test_it_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long snapshot only what the store may lack is kept."""
    monkeypatch.setattr(module, "FILE_BYTES_MAX", 2_000)
    writer = opened(tmp_path / "state")
    writer.begin((), VERSION)
    sizes, positions = [], []
    for number in range(1, 101):
        positions.append(at(number))
        writer.submit(batch(positions[-1], row(number)))
        if number > 10:
            writer.mark_committed(positions[number - 11])
            writer.flush(is_forced=True)
        sizes.append(sum(file.stat().st_size for file in journal_files(tmp_path / "state")))
    assert max(sizes[50:]) < 12 * sizes[0] + 2 * 2_000
    left = opened(killed(writer, tmp_path / "state"))
    assert left.catch_up(at(97))
    assert list(left.store.scan(512)) == [row(number) for number in range(1, 98)]
    left.close()


def test_a_journal_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "nowhere")
    with pytest.raises(StateError):
        journal.append(-1, 1, (), changes_of([row(1)]))


def test_its_files_are_private(tmp_path: Path) -> None:
    path = interrupted(tmp_path / "state")
    (file,) = journal_files(path)
    assert file.stat().st_mode & 0o777 == (path / DATA_FILE).stat().st_mode & 0o777 == 0o600


def test_a_damaged_entry_ends_it(tmp_path: Path) -> None:
    """Wherever it is damaged: the entries before it count, and nothing is raised, which each later start would raise again."""
    path = interrupted(tmp_path / "state", count=3)
    (file,) = journal_files(path)
    content, rng, found = file.read_bytes(), random.Random(5), []
    for place in range(0, len(content), 13):
        damaged = bytearray(content)
        end = place + rng.choice([1, 9])
        damaged[place:end] = bytes(each ^ rng.randrange(1, 256) for each in damaged[place:end])
        file.write_bytes(damaged)
        copy = tmp_path / f"{place}"
        shutil.copytree(path, copy)
        writer = opened(copy)
        writer.catch_up(at(3))
        found.append(writer.position.seq if writer.position else 0)
        if found[-1] < 3:
            assert list(writer.store.scan(512)) == [row(number) for number in range(1, found[-1] + 1)]
        writer.close()
    # Nobody sees that in a row's own bytes, as in the store.
    assert found.count(3) < len(found) / 10
    assert {0, 1, 2} <= set(found)
