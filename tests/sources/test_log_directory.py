"""A directory of files as one stream: the order of its files, what is missing or not whole, and files that are still written."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import CdcError, ConfigurationError, LogFileError, PositionError
from cdc.positions.vclock import VClock
from cdc.protocol.constants import Key
from cdc.protocol.failure import XlogGapError
from cdc.sources import log_stream
from cdc.sources.log_directory import LogDirectory
from cdc.sources.log_stream import LogStream
from tests.fakes import log_files
from tests.fakes.log_files import END_MARKER, block, insert, meta, rows_data
from tests.fakes.profiles import MANY


@pytest.fixture
def captured(tmp_path: Path) -> Path:
    return log_files.unpack_to(tmp_path / "captured")


def lsns(stream: LogStream) -> list[int]:
    """Of the rows up to the end, or up to where there are no more at this moment."""
    found: list[int] = []
    for frames in stream.rows():
        if frames is None:
            break
        found += [header[Key.LSN] for header in frames.headers]
    return found


def write(directory: Path, number: int, previous: int | None, *rows: int, is_closed: bool = True, **options: str) -> Path:
    """A log that begins at {1: number}."""
    path = directory / f"{number:020}.xlog"
    told = None if previous is None else f"{{1: {previous}}}"
    text = meta(vclock=f"{{1: {number}}}", previous=told, **options)
    path.write_bytes(text + b"".join(block(rows_data([insert(lsn)])) for lsn in rows) + (END_MARKER if is_closed else b""))
    return path


def test_captured_directory(captured: Path) -> None:
    directory = LogDirectory(captured)
    assert [log.signature for log in directory.chain()] == [0, 343, 344, 346]
    assert [file.signature for file in directory.snapshots()] == [344, 343, 0]
    stream = LogStream(directory, VClock())
    assert lsns(stream) == list(range(1, 338))
    assert stream.vclock == VClock({1: 337})
    assert stream.tail_bytes is None
    ballot = log_stream.ballot(directory, VClock({1: 337}))
    assert (ballot.vclock, ballot.gc_vclock) == (VClock({1: 337}), VClock())
    assert LogStream(directory, VClock({1: 334})).vclock == VClock({1: 334})
    assert lsns(LogStream(directory, VClock({1: 335}))) == [336, 337]


def test_snapshots(captured: Path) -> None:
    directory = LogDirectory(captured)
    newest, _, oldest = directory.snapshots()
    assert newest.vclock == VClock({1: 335})
    head = directory.head(newest)
    assert isinstance(head.replicaset_uuid, UUID)
    assert head.vinyl == {516: "vinyl"}
    assert directory.head(oldest).vinyl == {}
    spaces = [body[Key.SPACE_ID] for frames in directory.snapshot_rows(newest) for body in frames.bodies]
    assert {space for space in spaces if space >= 512} == {512, 515}, "neither local nor temporary rows"


def test_snapshots_that_are_not_whole(captured: Path) -> None:
    directory = LogDirectory(captured)
    newest = directory.snapshots()[0]
    newest.path.write_bytes(newest.path.read_bytes()[:-4])
    (captured / "00000000000000000999.snap.inprogress").write_bytes(b"SNAP")
    assert [file.signature for file in LogDirectory(captured).snapshots()] == [343, 0]
    with pytest.raises(LogFileError, match=r"344\.snap: the snapshot is incomplete"):
        list(directory.snapshot_rows(newest))


def test_missing_log(captured: Path) -> None:
    (captured / "00000000000000000343.xlog").unlink()
    directory = LogDirectory(captured)
    assert [log.signature for log in directory.chain()] == [344, 346]
    assert log_stream.ballot(directory).gc_vclock == VClock({1: 335})
    with pytest.raises(XlogGapError, match=r"leads to \{1: 334\}, and 00000000000000000344\.xlog, which begins at \{1: 335\}"):
        lsns(LogStream(directory, VClock()))
    (captured / "00000000000000000000.xlog").unlink()
    with pytest.raises(XlogGapError, match=r"continues from \{1: 3\}: the first begins at \{1: 335\}"):
        lsns(LogStream(directory, VClock({1: 3})))


def test_logs_that_do_not_name_the_one_before(tmp_path: Path) -> None:
    write(tmp_path, 0, None, 1, 2)
    write(tmp_path, 2, None, 3)
    assert lsns(LogStream(LogDirectory(tmp_path), VClock())) == [1, 2, 3]
    write(tmp_path, 5, None, 6)
    with pytest.raises(PositionError, match=r"leads to \{1: 3\}, and 00000000000000000005\.xlog"):
        lsns(LogStream(LogDirectory(tmp_path), VClock()))


def test_a_hole_of_lsns_at_the_end_of_a_log(tmp_path: Path) -> None:
    """As a failed write leaves it: the logs name each other, so nothing is missing."""
    write(tmp_path, 0, None, 1, 2)
    write(tmp_path, 5, 0, 6)
    stream = LogStream(LogDirectory(tmp_path), VClock())
    assert lsns(stream) == [1, 2, 6]
    assert stream.vclock == VClock({1: 6})


def test_broken_tail_in_the_middle_is_left_out(tmp_path: Path) -> None:
    torn = write(tmp_path, 0, None, 1, 2, is_closed=False)
    torn.write_bytes(torn.read_bytes()[:-1])
    write(tmp_path, 1, 0, 2, 3, is_closed=False)
    stream = LogStream(LogDirectory(tmp_path), VClock())
    assert lsns(stream) == [1, 2, 3]
    assert stream.tail_bytes == 0


@pytest.mark.parametrize("lost_bytes", [1, 4, 30])
@pytest.mark.parametrize("is_last_named", [True, False])
def test_end_of_a_log_that_is_lost(tmp_path: Path, lost_bytes: int, *, is_last_named: bool) -> None:
    """A copy that is cut, between two blocks too: what it lacks must not be passed over."""
    cut = write(tmp_path, 0, None, 1, 2, 3, is_closed=False)
    second = len(block(rows_data([insert(3)])))
    cut.write_bytes(cut.read_bytes()[: -second if lost_bytes == second else -lost_bytes])
    write(tmp_path, 3, 0 if is_last_named else None, 4)
    stream = LogStream(LogDirectory(tmp_path), VClock())
    with pytest.raises((LogFileError, PositionError), match=r"leads to \{1: 2\}.* begins at \{1: 3\}"):
        lsns(stream)


def test_rows_of_origins_that_are_left_out_lack_nowhere(tmp_path: Path) -> None:
    """They may come after the files were first looked at."""
    for number, previous, lsn in ((0, None, 1), (1, 0, 2), (2, None, 3)):
        write(tmp_path, number, previous, lsn, is_closed=False)
    stream = LogStream(LogDirectory(tmp_path), VClock(), excluded=frozenset({1}))
    assert lsns(stream) == []


def test_follows_what_is_written(tmp_path: Path) -> None:
    first = write(tmp_path, 0, None, is_closed=False)
    stream = LogStream(LogDirectory(tmp_path), VClock(), follows=True)
    rows = stream.rows()

    def come() -> list[int]:
        found: list[int] = []
        while (frames := next(rows)) is not None:
            found += [header[Key.LSN] for header in frames.headers]
        return found

    one, two, three = (block(rows_data([insert(lsn)])) for lsn in (1, 2, 3))
    assert come() == []
    begun = first.read_bytes()
    first.write_bytes(begun + one + two[:30])
    assert come() == [1]
    # The write has failed, was taken back, and another one came.
    first.write_bytes(begun + one + three)
    assert come() == [3]
    first.write_bytes(begun + one + three + END_MARKER)
    assert come() == []
    four, five = (block(rows_data([insert(lsn)])) for lsn in (4, 5))
    first.write_bytes(begun + one + three + four)
    assert come() == [4]
    first.write_bytes(begun + one + three + four + five + END_MARKER)
    write(tmp_path, 5, 0, 6, is_closed=False)
    assert come() == [5, 6]
    assert come() == []


def test_follows_from_before_the_first_log(tmp_path: Path) -> None:
    rows = LogStream(LogDirectory(tmp_path), VClock({1: 2}), follows=True).rows()
    assert next(rows) is None
    write(tmp_path, 2, None, 3)
    frames = next(rows)
    assert frames is not None
    assert len(frames) == 1


def test_refused_directories(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has no \.snap or \.xlog files"):
        log_stream.ballot(LogDirectory(tmp_path))
    with pytest.raises(ConfigurationError, match="can't be read"):
        LogDirectory(tmp_path / "nowhere").logs()
    write(tmp_path, 0, None, 1)
    write(tmp_path, 1, 0, 2, instance="aaaaaaaa-0000-4000-8000-000000000002")
    with pytest.raises(ConfigurationError, match="files of several instances"):
        LogDirectory(tmp_path).logs()
    write(tmp_path, 1, 0, 2, version="0.99")
    with pytest.raises(LogFileError, match=r"0001\.xlog: the file has format version '0\.99'"):
        LogDirectory(tmp_path).logs()
    write(tmp_path, 1, 0, 2, kind="SNAP")
    with pytest.raises(LogFileError, match="its name says otherwise"):
        LogDirectory(tmp_path).logs()


def test_a_copy_in_the_second_directory(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    for directory in (first, second):
        directory.mkdir()
        write(directory, 0, None, 1)
    with pytest.raises(ConfigurationError, match=r"have the same name, so one is a copy. Leave out the directory"):
        LogDirectory(first, second).logs()


def test_a_directory_that_is_named_twice(tmp_path: Path) -> None:
    """Its files aren't copies, and nobody is told to remove them: they may be the only ones."""
    first, link = tmp_path / "one", tmp_path / "link"
    first.mkdir()
    write(first, 0, None, 1)
    link.symlink_to(first)
    for again in (first, link, tmp_path / "one" / ".." / "one"):
        assert len(LogDirectory(first, again).logs()) == 1


def test_damage_names_file_and_offset(tmp_path: Path) -> None:
    path = write(tmp_path, 0, None, 1, 2, 3)
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogFileError, match=r"0000\.xlog: .*, at offset \d+\. Restore the file from a backup") as caught:
        lsns(LogStream(LogDirectory(tmp_path), VClock()))
    assert str(caught.value).count(str(path)) == 1


HEADERS = st.dictionaries(
    st.sampled_from([2, 3, 4, 7, 8, 9]),
    st.none()
    | st.integers(-3, 40)
    | st.integers(-(2**63), 2**64 - 1)
    | st.lists(st.booleans(), max_size=1)
    | st.text(max_size=2),
)


@given(
    headers=st.lists(HEADERS, max_size=4), kinds=st.lists(st.sampled_from([2, 12, 30, [2], None, "x"]), min_size=4, max_size=4)
)
@MANY
def test_rows_of_nonsense(tmp_path: Path, headers: list[dict[int, Any]], kinds: list[Any]) -> None:
    rows = [({0: kind, **header}, None if kind == 12 else {0x10: 280}) for kind, header in zip(kinds, headers, strict=False)]
    for kind, extension in (("SNAP", "snap"), ("XLOG", "xlog")):
        (tmp_path / f"{0:020}.{extension}").write_bytes(meta(kind=kind) + block(rows_data(rows)) + END_MARKER)
    directory = LogDirectory(tmp_path)
    for read in (lambda: directory.head(directory.snapshots()[0]), lambda: log_stream.ballot(directory, VClock({1: 1}))):
        with contextlib.suppress(CdcError):
            read()
