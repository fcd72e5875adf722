"""Where a replay begins, with which snapshot, and what it refuses: the captured files, and a publisher that takes everything."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from cdc import config
from cdc.config import Config
from cdc.daemon.beginning import Beginning, Goal, RunContext
from cdc.daemon.file_source import Files, Replayer
from cdc.daemon.start import known_before
from cdc.errors import ConfigurationError, ForeignServerError, LogFileError, PositionError, SnapshotNeededError
from cdc.kafka.publisher import Publisher
from cdc.ops.request_queue import RequestQueue
from cdc.ops.status import Status
from cdc.positions.numbers import Numbers
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.sources.log_directory import LogDirectory
from cdc.stream.batches.batch import Batch, Broadcast
from cdc.stream.commits.checkpoint import Checkpoint
from tests.fakes import log_files

OTHER = UUID("bbbbbbbb-0000-4000-8000-00000000000f")


class Taken:
    """A publisher whose Kafka has everything at once."""

    has_room = True
    queued_bytes = 0

    def __init__(self) -> None:
        self.wake_fd, self._wakes = os.pipe()
        os.write(self._wakes, b"!")
        self.row_work_lock = threading.Lock()
        self.batches: list[Batch] = []
        self._new: list[Position] = []

    def newest_numbers(self) -> Numbers:
        """Nothing was ever published before."""
        return Numbers()

    def submit(self, batch: Batch) -> None:
        self.batches.append(batch)
        if batch.is_boundary:
            self._new.append(batch.position)

    def collect(self) -> list[Position]:
        found, self._new = self._new, []
        return found

    def close(self) -> None:
        os.close(self.wake_fd)
        os.close(self._wakes)

    def events(self) -> Counter[tuple[str, str]]:
        """How many there were by space and kind."""
        found: Counter[tuple[str, str]] = Counter()
        for message in (message for batch in self.batches for message in batch.messages):
            text = message.value if isinstance(message, Broadcast) else message[2]
            value: dict[str, Any] = json.loads(text or b"{}")
            if "op" in value:
                found[value["source"]["table"], value["op"]] += 1
        return found


@pytest.fixture
def taken() -> Iterator[Taken]:
    publisher = Taken()
    yield publisher
    publisher.close()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return log_files.unpack_to(tmp_path / "files")


def configured(files: Path, **sections: dict[str, Any]) -> Config:
    values: dict[str, Any] = {
        "name": "replay",
        "source": {"uris": ["127.0.0.1:1"]},
        "kafka": {"bootstrap_servers": "127.0.0.1:1", "topic_prefix": "p", "tombstones": False},
        "state": {"images": "none", "path": str(files.parent / "state")},
    }
    for name, section in sections.items():
        values.setdefault(name, {}).update(section)
    return config.parse(values, "here")


def replayer(
    taken: Taken,
    files: Path,
    checkpoint: Checkpoint | None = None,
    forced: str | None = None,
    more: Sequence[Path] = (),
    **sections: dict[str, Any],
) -> Replayer:
    checkpoint, parsed = checkpoint or Checkpoint(), configured(files, **sections)
    known = known_before(parsed, checkpoint, None, forced=forced)
    beginning = Beginning(known, checkpoint, cast(Publisher, taken), None, Goal(until_caught_up=False))
    context = RunContext(parsed, Status("replay"), threading.Event())
    return Replayer(context, beginning, LogDirectory(files, *more), follows=False)


def at(lsn: int, replicaset_uuid: UUID | None = None) -> Checkpoint:
    """A checkpoint that knows no space."""
    snapshot = SnapshotState(1, is_complete=True)
    return Checkpoint(Position(VClock({1: lsn}), seq=7, replicaset_uuid=replicaset_uuid, snapshot=snapshot))


def test_snapshots_before_a_vinyl_space_have_everything(taken: Taken, files: Path) -> None:
    assert replayer(taken, files).run()
    events = taken.events()
    assert not [kind for _, kind in events if kind == "r"]
    assert events["vinyl", "c"] == 1
    assert events["certain", "c"] == 2
    assert events["rows", "t"] == 1
    assert taken.batches[-1].position.vclock == VClock({1: 337})


def test_newest_snapshot_without_the_vinyl_space(taken: Taken, files: Path) -> None:
    assert replayer(taken, files, spaces={"exclude": ["vinyl"]}).run()
    assert taken.events() == {("rows", "r"): 2, ("certain", "r"): 2, ("rows", "c"): 1, ("rows", "u"): 1}


def test_only_a_snapshot(taken: Taken, files: Path) -> None:
    for log in files.glob("*.xlog"):
        log.unlink()
    assert replayer(taken, files, spaces={"exclude": ["vinyl"]}, snapshot={"mode": "initial_only"}).run()
    assert taken.events() == {("rows", "r"): 2, ("certain", "r"): 2}
    assert taken.batches[-1].position.vclock == VClock({1: 335})


def test_initial_only(taken: Taken, files: Path) -> None:
    assert replayer(taken, files, spaces={"exclude": ["vinyl"]}, snapshot={"mode": "initial_only"}).run()
    assert {kind for _, kind in taken.events()} == {"r"}


def test_no_snapshot_that_has_the_rows_of_vinyl(taken: Taken, files: Path) -> None:
    (files / "00000000000000000000.snap").unlink()
    with pytest.raises(PositionError, match=r"no complete .snap with all rows.*vinyl spaces \(vinyl\).*spaces\.exclude"):
        replayer(taken, files).run()
    assert not taken.batches


def test_no_snapshot(taken: Taken, files: Path) -> None:
    for snapshot in files.glob("*.snap"):
        snapshot.unlink()
    with pytest.raises(PositionError, match=r"newest \.snap into the directory"):
        replayer(taken, files).run()


def test_logs_that_do_not_lead_on_from_the_snapshot(taken: Taken, files: Path) -> None:
    (files / "00000000000000000344.xlog").unlink()
    with pytest.raises(PositionError, match=r"missing from 0+344\.snap, which is at \{1: 335\}, to 0+346\.xlog.* \{1: 337\}"):
        replayer(taken, files, spaces={"exclude": ["vinyl"]}).run()


def test_continues(taken: Taken, files: Path, tmp_path: Path) -> None:
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    for name in ("00000000000000000000.snap", "00000000000000000000.xlog", "00000000000000000343.xlog"):
        (earlier / name).write_bytes((files / name).read_bytes())
    checkpoint = Checkpoint()
    assert replayer(taken, earlier, checkpoint).run()
    assert checkpoint.position is not None
    assert checkpoint.position.vclock == VClock({1: 335})
    before = taken.events()
    assert replayer(taken, files, checkpoint).run()
    assert checkpoint.position.vclock == VClock({1: 337})
    assert taken.events() - before == {("rows", "c"): 1, ("rows", "u"): 1}


@pytest.mark.parametrize(
    ("lsn", "sections"),
    [(335, {}), (335, {"snapshot": {"mode": "always"}}), (9_999, {"source": {"on_divergence": "resnapshot"}})],
)
def test_checkpoint_of_another_replica_set(taken: Taken, files: Path, lsn: int, sections: dict[str, Any]) -> None:
    with pytest.raises(ForeignServerError, match="belongs to replica set"):
        replayer(taken, files, at(lsn, OTHER), spaces={"exclude": ["vinyl"]}, **sections).run()
    assert not taken.events()


def test_divergence(taken: Taken, files: Path) -> None:
    with pytest.raises(PositionError, match=r"files: the server lacks changes that were published: it is at \{1: 337\}"):
        replayer(taken, files, at(338)).run()
    diverging = replayer(taken, files, at(338), source={"on_divergence": "resnapshot"}, spaces={"exclude": ["vinyl"]})
    assert diverging.run()
    assert taken.events()["rows", "r"] == 2


def test_gap(taken: Taken, files: Path) -> None:
    for number in (0, 343):
        (files / f"{number:020}.xlog").unlink()
    with pytest.raises(PositionError, match=r"keeps them from \{1: 335\}, the checkpoint is at \{1: 100\}"):
        replayer(taken, files, at(100), source={"on_gap": "fail"}).run()
    assert replayer(taken, files, at(100), spaces={"exclude": ["vinyl"]}).run()
    assert taken.events()["rows", "r"] == 2


def apart(files: Path) -> Path:
    """Move the .snap files to a directory of their own, as with memtx_dir and wal_dir."""
    snapshots = files.parent / "snap"
    snapshots.mkdir()
    for path in files.glob("*.snap"):
        path.rename(snapshots / path.name)
    return snapshots


@pytest.mark.parametrize("is_first", [True, False])
def test_snapshots_and_logs_in_two_directories(taken: Taken, files: Path, is_first: bool) -> None:
    assert replayer(taken, files).run()
    wanted = taken.events()
    snapshots, again = apart(files), type(taken)()
    first, second = (snapshots, files) if is_first else (files, snapshots)
    assert replayer(again, first, more=[second]).run()
    assert again.events() == wanted


def test_snapshots_without_any_log(taken: Taken, files: Path) -> None:
    """What came after the snapshot would be missing, and nobody would know."""
    snapshots = apart(files)
    with pytest.raises(ConfigurationError, match=r"no \.xlog files, so all changes after the snapshot .*wal_dir.*initial_only"):
        replayer(taken, snapshots, spaces={"exclude": ["vinyl"]}).run()
    assert not taken.events()
    assert replayer(taken, snapshots, spaces={"exclude": ["vinyl"]}, snapshot={"mode": "initial_only"}).run()
    assert taken.events()["rows", "r"]


def test_snapshot_behind_the_checkpoint(taken: Taken, files: Path) -> None:
    with pytest.raises(PositionError, match=r"344\.snap is at \{1: 335\}, older than the checkpoint at \{1: 337}.*box\.snapshot"):
        replayer(taken, files, at(337), "only a snapshot can fill the store").run()


def test_snapshot_from_before_what_only_a_snapshot_leads_over(taken: Taken, files: Path) -> None:
    """It would be taken, and lead to the same place, again and again."""
    parsed, checkpoint = configured(files, spaces={"exclude": ["vinyl"]}), at(330)
    known = known_before(parsed, checkpoint, None, forced="renamed")
    for lsn in (336, 335):
        source = Files(RunContext(parsed, Status("replay"), threading.Event()), RequestQueue(), directories=[files])
        error = SnapshotNeededError("renamed")
        error.place = 1, lsn
        source.failed(error)
        with source.opened(Beginning(known, checkpoint, cast(Publisher, taken), None, Goal(until_caught_up=False))) as stream:
            if lsn == 335:
                assert stream.run()
                continue
            with pytest.raises(
                PositionError, match=r"\(renamed\), but .*344\.snap is at \{1: 335\}, and .* must have 1:336 in it"
            ) as raised:
                stream.run()
            assert "box.snapshot()" in raised.value.hint


def test_what_a_snapshot_must_have_counts_only_where_it_was_asked_for(taken: Taken, files: Path) -> None:
    """A later one is taken for another reason, and has to lead on from the checkpoint alone."""
    parsed = configured(files, spaces={"exclude": ["vinyl"]})
    source = Files(RunContext(parsed, Status("replay"), threading.Event()), RequestQueue(), directories=[files])
    error = SnapshotNeededError("renamed")
    error.place = 1, 336
    source.failed(error)
    checkpoint = Checkpoint()
    known = known_before(parsed, checkpoint, None)
    with source.opened(Beginning(known, checkpoint, cast(Publisher, taken), None, Goal(until_caught_up=True))) as stream:
        assert stream.run()
    assert taken.events()["rows", "r"] == 2


def test_what_is_good_before_damage_comes_out(taken: Taken, files: Path) -> None:
    path = files / "00000000000000000344.xlog"
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    one = replayer(taken, files, spaces={"exclude": ["vinyl"]})
    with pytest.raises(LogFileError, match=r"0+344\.xlog: .* at offset"):
        one.run()
    one.collect_submitted()
    assert taken.batches[-1].position.vclock == VClock({1: 336})


def test_it_waits_longer_and_longer_until_a_stream_has_begun(taken: Taken, files: Path) -> None:
    parsed, checkpoint = configured(files, spaces={"exclude": ["vinyl"]}), Checkpoint()
    source = Files(RunContext(parsed, Status("replay"), threading.Event()), RequestQueue(), directories=[files])

    def open_and_read(*, has_end: bool) -> None:
        known = known_before(parsed, checkpoint, None)
        with source.opened(Beginning(known, checkpoint, cast(Publisher, taken), None, Goal(until_caught_up=True))) as stream:
            if has_end:
                assert stream.run()

    first, second = source.next_delay(), source.next_delay()
    assert first < second
    open_and_read(has_end=False)  # a stream that has read nothing shows nothing
    assert source.next_delay() > second
    open_and_read(has_end=True)
    assert source.next_delay() == first
