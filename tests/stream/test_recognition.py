"""The rows at which a stream resumes: requested again, compared, and not published twice."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any
from uuid import UUID
from zlib import crc32

import pytest

from cdc.config.columns import ColumnsRule
from cdc.errors import OtherHistoryError
from cdc.events.columns import ColumnRules
from cdc.positions.last_row import LastRow
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.protocol.codec import Frames
from cdc.protocol.compiled_frames import frame_decoder
from cdc.protocol.constants import Type
from cdc.stream.recognition import RECENT_BYTES_MAX, Checksum, RecentFrames, Recognition
from tests.fakes import wire
from tests.fakes.interleavings import LimboWorkload
from tests.fakes.pipelines import NOW_US, pipeline
from tests.fakes.replica import Replica
from tests.fakes.synchronous import SynchronousMaster

SERVER, ANOTHER = UUID(int=1), UUID(int=2)
NONE: frozenset[int] = frozenset()


def row(
    lsn: int, value: str = "x", *, origin: int = 1, at: float = 5.5, kind: int = Type.INSERT, sync: int = 3, **more: Any
) -> bytes:
    header = {0: kind, 1: sync, 2: origin, 3: lsn, 4: at, **{int(key[1:]): each for key, each in more.items()}}
    return wire.frame(header, {0x10: 512, 0x21: [lsn, value]} if kind != Type.NOP else {})


def frames(*rows: bytes) -> Frames:
    return frame_decoder().feed(b"".join(rows))


def noted(*rows: bytes, checksum: Checksum = crc32) -> LastRow:
    (found,) = RecentFrames().at_position(frames(*rows), Position(), {1: 42, 2: 7}, checksum)
    return found


def at(vclock: dict[int, int], *rows: LastRow) -> Position:
    return Position(VClock(vclock), server_uuid=SERVER, last_rows=rows)


def resumed(position: Position, gc: dict[int, int] | None = None, server: UUID = SERVER) -> Recognition:
    return Recognition.of_resumed(position, server, VClock(gc or {}), NONE)


def waits(watch: Recognition) -> bool:
    return watch.is_waiting


def lsns(parts: list[Frames]) -> list[int]:
    return [header[3] for part in parts for header in part.headers]


def test_the_last_row_of_some_frames() -> None:
    assert not RecentFrames().at_position(frames(), Position(), {1: 42}, crc32)
    found = noted(row(41), row(42, "y", x1=9))
    assert (found.replica_id, found.lsn, found.timestamp, found.kind) == (1, 42, 5.5, Type.INSERT)
    assert found == noted(row(42, "y", x1=1)), "another connection sends other headers"
    assert found.checksum != noted(row(42, "z")).checksum
    assert LastRow.from_json(found.to_json()) == found


def found_lsns(recent: RecentFrames, received: Frames, reached: int, position: Position | None = None) -> list[int]:
    return [found.lsn for found in recent.at_position(received, position or Position(), {1: reached}, crc32)]


def test_the_row_at_a_position_before_what_waits() -> None:
    recent = RecentFrames()
    assert found_lsns(recent, frames(row(41), row(42), row(43), row(44)), 42) == [42]
    assert not found_lsns(recent, frames(row(45)), 42, at({1: 42}, noted(row(42)))), "it has been noted"
    assert found_lsns(recent, frames(row(46), row(9, origin=2), row(47)), 44) == [44], "it came with earlier frames"
    assert found_lsns(recent, frames(row(48)), 46) == [46], "between two of its rows is one of another origin"
    assert found_lsns(recent, frames(row(49)), 49) == [49]
    assert not found_lsns(recent, frames(row(50)), 48), "nothing waited, so nothing was kept"


def test_no_more_than_some_frames_are_kept() -> None:
    recent, half = RecentFrames(), "x" * (RECENT_BYTES_MAX // 2)
    assert not found_lsns(recent, frames(row(42), row(43, half)), 41)
    assert not found_lsns(recent, frames(row(44), row(45, half)), 41)
    assert not found_lsns(recent, frames(row(46)), 42)
    assert found_lsns(recent, frames(row(47)), 44) == [44]


def test_the_position_of_a_stream_has_its_row_whatever_waits() -> None:
    for seed in range(8):
        master, rng = SynchronousMaster(), random.Random(seed)
        workload = LimboWorkload(master, rng, 1)
        replica = Replica(master)
        replica.connect()
        for _ in range(30):
            workload.run(rng.randint(1, 5))
            replica.relay.relay(rng.choice([1, 3, None]))
            replica.receive()
            position = replica.pipeline.position
            lsn = position.vclock[1]
            assert [row.lsn for row in position.last_rows] == ([lsn] if lsn > replica.relay._since[1] else [])


def test_a_row_that_was_seen_again_gives_way_to_those_behind_it() -> None:
    core = pipeline(at({1: 42}), server_uuid=SERVER)
    rows = {lsn: row(lsn, kind=Type.NOP) for lsn in (42, 43)}
    list(core.feed(frames(rows[43]), NOW_US))
    assert core.recognize([noted(rows[42])]) is None
    assert [row.lsn for row in core.position.last_rows] == [43]
    assert core.recognize([replace(noted(rows[42]), lsn=43, timestamp=9.0)]) is not None


def test_the_row_is_seen_again_and_not_passed_on() -> None:
    watch = resumed(at({1: 42, 2: 7}, noted(row(42))))
    assert watch.subscribe_from == VClock({1: 41, 2: 6})
    assert waits(watch)
    assert watch.acknowledgeable(VClock({1: 42, 2: 7, 3: 1})) == VClock({1: 41, 2: 6, 3: 1})
    # The end of a transaction of several rows comes alone.
    assert lsns(watch.look(frames(row(42, x8=2, x9=1), row(43), row(7, origin=2), row(8, origin=2)))) == [43, 8]
    assert not waits(watch)
    assert watch.acknowledgeable(VClock({1: 43})) == VClock({1: 43})
    assert [found.lsn for found in watch.found.values()] == [42, 7]
    assert lsns(watch.look(frames(row(44)))) == [44]
    assert watch.look(frames(row(45)))[0].raw(0) == row(45)


def test_another_row_under_its_lsn() -> None:
    for theirs in (row(42, "another", at=9.0), row(42, at=9.0, kind=Type.REPLACE)):
        with pytest.raises(OtherHistoryError, match=r"its row 1:42, written at 1970-01-01T00:00:09.*on_divergence"):
            resumed(at({1: 42}, noted(row(42)))).look(frames(theirs, row(43)))


def test_checksums_of_two_kinds_are_not_compared() -> None:
    secret, other_secret = (ColumnRules([ColumnsRule(spaces="x", exclude=["y"])], salt * 16).checksum for salt in (b"a", b"b"))
    without = ColumnRules([ColumnsRule(spaces="x", exclude=["y"])]).checksum
    other = row(42, "another", at=9.0)
    pairs: list[tuple[Checksum, Checksum]] = [(crc32, secret), (secret, crc32), (secret, other_secret)]
    for ours, theirs in [*pairs, (without, without), (without, crc32)]:
        watch = resumed(at({1: 42}, noted(row(42), checksum=ours)))
        watch.checksum = theirs
        assert lsns(watch.look(frames(other, row(43)))) == [43]
    watch = resumed(at({1: 42}, noted(row(42), checksum=secret)))
    watch.checksum = secret
    with pytest.raises(OtherHistoryError):
        watch.look(frames(other, row(43)))
    assert lsns(resumed(at({1: 42}, noted(row(42), checksum=secret))).look(frames(row(42, at=9.0), row(43)))) == [43]


@pytest.mark.parametrize(
    "theirs",
    [row(42, at=9.0), row(42, at=9.0, kind=Type.NOP)],
    ids=["written anew by a member that had lost it", "a NOP that a member made of it"],
)
def test_rows_that_are_no_other_history(theirs: bytes) -> None:
    assert lsns(resumed(at({1: 42}, noted(row(42)))).look(frames(theirs, row(43)))) == [43]


def test_what_is_not_compared() -> None:
    other = row(42, "another", at=9.0)
    ours = noted(row(42))
    for watch in (
        resumed(at({1: 42})),  # a checkpoint of an older version, or of a snapshot
        resumed(at({1: 42}, replace(ours, lsn=40))),
        resumed(at({1: 42}, ours), server=ANOTHER),
    ):
        assert lsns(watch.look(frames(other, row(43)))) == [43]
        assert watch.found[1].timestamp == 9.0, "it is known from now on"
    gone = resumed(at({1: 42}, ours), gc={1: 42})
    assert gone.subscribe_from == VClock({1: 42})
    assert not waits(gone)
    excluded = Recognition.of_resumed(at({1: 42}, ours), SERVER, VClock(), frozenset({1}))
    assert excluded.subscribe_from == VClock({1: 42})


def test_a_row_that_does_not_come() -> None:
    watch = resumed(at({1: 42}, noted(row(42))))
    watch.heartbeat()
    assert waits(watch)
    watch.heartbeat()
    assert not waits(watch)
    assert lsns(watch.look(frames(row(44)))) == [44]
    assert watch.acknowledgeable(VClock({1: 44})) == VClock({1: 44})
    assert not watch.found


def test_on_the_way_to_the_checkpoint() -> None:
    """The store is behind: the rows up to the checkpoint come anyway, and are needed."""
    position = at({1: 42}, noted(row(42)))
    watch = Recognition.on_the_way(VClock({1: 40}), position, SERVER)
    assert watch.subscribe_from == VClock({1: 40})
    assert watch.acknowledgeable(VClock({1: 40})) == VClock({1: 40})
    assert lsns(watch.look(frames(row(41)))) == [41]
    assert lsns(watch.look(frames(row(42), row(43)))) == [42, 43]
    watch = Recognition.on_the_way(VClock({1: 40}), position, SERVER)
    with pytest.raises(OtherHistoryError):
        watch.look(frames(row(41), row(42, "another", at=9.0)))
