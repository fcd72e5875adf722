"""A snapshot that is compared with the rows of one before it, which was complete or interrupted: on both row paths the same comes
out, and it makes consumers equal to the master.

The compiled path goes through the store and the snapshot at once, so what matters are orders: of the keys, of spaces, and rows
that only one side has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc import native
from cdc.errors import ConfigurationError
from cdc.images import comparison
from cdc.images.overlay import Images
from cdc.images.pending import PendingChanges
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.protocol.codec import FrameDecoder
from cdc.protocol.compiled_frames import frame_decoder
from cdc.protocol.constants import Key, Type
from cdc.schema.forms import StoredSpace
from cdc.schema.tracker import published_forms
from cdc.stream.batches.batch import Batch, Broadcast, Message
from cdc.stream.pipeline import Pipeline
from cdc.stream.snapshots.snapshot import Snapshot
from tests.fakes import wire
from tests.fakes.captures import REPLICASET
from tests.fakes.pipelines import NOW_US, pipeline
from tests.fakes.profiles import MANY
from tests.fakes.tuples import MemoryTuples
from tests.stream.batches.test_compiled_rows import USERS
from tests.stream.test_compiled_images import KEYS

pytestmark = pytest.mark.skipif(
    native.ROW_PATH == "python", reason="this installation has no compiled row path, or doesn't run it"
)

NAMES = {USERS: "users", USERS + 1: "hidden", USERS + 2: "others", USERS + 3: "more"}
Rows = dict[int, list[list[Any]]]


class Two(NamedTuple):
    """Two snapshots of the same spaces, as frames; how many of the first one's frames come before it is interrupted."""

    first: list[bytes]
    second: list[bytes]
    interrupted_at: int


def system_frames(kinds: dict[int, str], index_types: dict[int, str]) -> list[bytes]:
    bodies: list[dict[int, Any]] = [{Key.SPACE_ID: 272, Key.TUPLE: ["cluster", str(REPLICASET)]}]
    for space_id, kind in kinds.items():
        form = [{"name": "id", "type": kind}, {"name": "n", "type": "any"}]
        bodies.append({Key.SPACE_ID: 280, Key.TUPLE: [space_id, 1, NAMES[space_id], "memtx", 0, {}, form]})
    for space_id, kind in kinds.items():
        bodies.append({Key.SPACE_ID: 288, Key.TUPLE: [space_id, 0, "pk", index_types[space_id], {}, [[0, kind]]]})
    return [wire.frame({0: Type.INSERT}, body) for body in bodies]


def row_frames(space_id: int, rows: list[list[Any]]) -> list[bytes]:
    return [wire.frame({0: Type.INSERT}, {Key.SPACE_ID: space_id, Key.TUPLE: row}) for row in rows]


@st.composite
def twos(draw: st.DrawFn) -> Two:
    kinds = {space_id: draw(st.sampled_from(["unsigned", "unsigned", "string", *sorted(KEYS)])) for space_id in NAMES}
    index_types = {space_id: draw(st.sampled_from(["tree", "tree", "hash"])) for space_id in NAMES}
    system = system_frames(kinds, index_types)
    snapshots = []
    for _ in range(2):
        frames = list(system)
        for space_id, kind in kinds.items():
            keys: list[Any] = list(range(20)) if kind == "unsigned" else KEYS[kind]
            chosen = draw(st.lists(st.sampled_from(keys), unique_by=repr, max_size=20))
            if kind == "unsigned" and draw(st.integers(0, 3)):
                chosen.sort()
            frames += row_frames(space_id, [[key, draw(st.integers(0, 2))] for key in chosen])
        snapshots.append(frames)
    first, second = snapshots
    return Two(first, second, draw(st.one_of(st.just(len(first)), st.integers(0, len(first)))))


class Side:
    """A daemon with one of the row paths, through its connections."""

    def __init__(self, *, is_python: bool, writes: int = 0, **options: Any) -> None:
        """`writes`: after so many batches those that have come are written."""
        self._is_python = is_python
        self._writes = writes
        self._options = options
        self.store = MemoryTuples()
        self.messages: list[Message | Broadcast] = []
        self.events: list[int] = []
        self._position = Position()
        self._spaces: dict[int, StoredSpace] = {}

    def connect(self) -> tuple[Pipeline, Callable[[Batch], None]]:
        """A pipeline, and what takes its batches."""
        images = Images(self.store, published_forms(self._spaces.values()), (2, 11))
        if self._is_python:
            images._pending = PendingChanges()
        target = pipeline(
            self._position, self._spaces.values(), version=(2, 11), images=images, exclude=["hidden"], **self._options
        )
        waiting: list[Any] = []

        def take(batch: Batch) -> None:
            self.messages += batch.messages
            self._position = batch.position
            for space_id, space in batch.stored.items():
                if space is None:
                    self._spaces.pop(space_id, None)
                else:
                    self._spaces[space_id] = space
            waiting.append(batch.changes)
            if len(waiting) > self._writes or target.position.snapshot is None:
                for changes in waiting:
                    self.store.write(changes, ())
                    images.written(changes)
                waiting.clear()

        self._waiting = waiting
        return target, take

    def snapshot(self, frames: list[bytes], size: int, *, is_whole: bool) -> None:
        """Take a snapshot, or begin one, which a kill interrupts: then the store is brought up to the checkpoint."""
        target, take = self.connect()
        take(target.begin_snapshot(VClock({1: 100}), NOW_US))
        decoder = FrameDecoder() if self._is_python else frame_decoder()
        data = b"".join(frames)
        for start in range(0, len(data), size):
            for batch in target.feed_snapshot(decoder.feed(data[start : start + size]), NOW_US):
                take(batch)
        if is_whole:
            for batch in target.end_snapshot(NOW_US):
                take(batch)
        for changes in self._waiting:
            self.store.write(changes, ())

    def consumers(self, *unwanted: str) -> dict[str, dict[bytes, Any]]:
        """The rows that consumers have, by topic and key; but for topics whose rows they don't get from the first snapshot."""
        found: dict[str, dict[bytes, Any]] = {}
        for message in self.messages:
            if isinstance(message, Broadcast):
                found.pop(message.topic, None)
                continue
            topic, key, value = message
            if value is None or key is None or topic in ("shop.schema", "shop.snapshot", *unwanted):
                continue
            event = msgspec.json.decode(value)
            if event["op"] == "d":
                assert found[topic].pop(key) == event["before"]
            else:
                rows = found.setdefault(topic, {})
                assert event["before"] in (None, rows.get(key))
                rows[key] = event["after"]
        return {topic: rows for topic, rows in found.items() if rows}

    def events_of(self) -> set[str]:
        """The topics that have events."""
        topics = {message.topic if isinstance(message, Broadcast) else message[0] for message in self.messages}
        return topics - {"shop.schema", "shop.snapshot"}


def state(side: Side) -> tuple[Any, ...]:
    return side.messages, sorted(side.store.rows.items()), side._position, side._spaces


@MANY
@given(
    two=twos(),
    size=st.integers(1, 2000),
    writes=st.sampled_from([0, 2, 1000]),
    bytes_max=st.sampled_from([1, 1500, 1 << 20]),
    ahead=st.sampled_from([1, 2, 3, 1024]),
    runs_max=st.sampled_from([0, 1, 2, 100_000]),
)
def test_both_paths_compare_alike(two: Two, size: int, writes: int, bytes_max: int, ahead: int, runs_max: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "ROWS_AHEAD", ahead)
        patch.setattr(comparison, "RUNS_MAX", runs_max)
        python, compiled = (Side(is_python=is_python, writes=writes, batch_bytes_max=bytes_max) for is_python in (True, False))
        for side in (python, compiled):
            side.snapshot(two.first[: two.interrupted_at], size, is_whole=two.interrupted_at == len(two.first))
            side.snapshot(two.second, size, is_whole=True)
        assert state(compiled) == state(python)
        fresh = Side(is_python=True)
        fresh.snapshot(two.second, size, is_whole=True)
        assert compiled.consumers() == fresh.consumers()
        assert sorted(compiled.store.rows) == sorted(fresh.store.rows)


def numbers(side: Side) -> list[tuple[str, int]]:
    """Of the events: their operations and ids."""
    found = []
    for message in side.messages:
        if not isinstance(message, Broadcast) and message[0] == "shop.users" and message[2] is not None:
            event = msgspec.json.decode(message[2])
            found.append((event["op"], (event["after"] or event["before"])["id"]))
    return found


def users(*rows: tuple[int, int]) -> list[bytes]:
    system = system_frames({USERS: "unsigned"}, {USERS: "tree"})
    return [*system, *row_frames(USERS, [[*row] for row in rows])]


@pytest.mark.parametrize("is_python", [False, True])
def test_an_interrupted_snapshot_goes_on_where_it_stopped(is_python: bool) -> None:
    """Rows that consumers have aren't published again; those that have changed or gone meanwhile are."""
    side = Side(is_python=is_python)
    rows = [(number, 0) for number in range(100)]
    side.snapshot(users(*rows[:60]), 1 << 20, is_whole=False)
    assert numbers(side) == [("r", number) for number in range(60)]
    side.messages.clear()
    rows[10] = (10, 1)
    del rows[20]
    side.snapshot(users(*rows), 1 << 20, is_whole=True)
    assert numbers(side) == [("u", 10), *(("r", number) for number in range(60, 100)), ("d", 20)]


def test_rows_that_are_known_or_new_are_not_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a snapshot that is resumed is as slow as the Python path."""
    seen: list[Any] = []
    rows_of = Snapshot._rows

    def counted(self: Snapshot, found: Any) -> Any:
        these = list(found)
        seen.extend(these)
        return rows_of(self, these)

    side = Side(is_python=False)
    rows = [(number, 0) for number in range(4000)]
    side.snapshot(users(*rows[:2500]), 30_000, is_whole=False)
    monkeypatch.setattr(Snapshot, "_rows", counted)
    del rows[1000:1010]
    side.snapshot(users(*rows), 30_000, is_whole=True)
    assert len(side.store.rows) == 3990
    assert 0 < len(seen) < 60


@MANY
@given(two=twos(), size=st.integers(1, 2000), writes=st.sampled_from([0, 2, 1000]), bytes_max=st.sampled_from([1, 1500, 1 << 20]))
def test_rows_that_arent_wanted_become_images_alike(two: Two, size: int, writes: int, bytes_max: int) -> None:
    """Of spaces that snapshot.spaces doesn't name; also if the first snapshot is interrupted."""
    sides = [
        Side(is_python=is_python, writes=writes, batch_bytes_max=bytes_max, snapshot_spaces=["users"])
        for is_python in (True, False)
    ]
    for side in sides:
        side.snapshot(two.first[: two.interrupted_at], size, is_whole=two.interrupted_at == len(two.first))
        if two.interrupted_at == len(two.first):
            assert side.events_of() <= {"shop.users"}
        side.snapshot(two.second, size, is_whole=True)
    python, compiled = sides
    assert state(compiled) == state(python)
    fresh = Side(is_python=True)
    fresh.snapshot(two.second, size, is_whole=True)
    assert sorted(compiled.store.rows) == sorted(fresh.store.rows)
    unwanted = "shop.others", "shop.more"
    assert compiled.consumers(*unwanted) == fresh.consumers(*unwanted)


def records(side: Side, topic: str) -> list[dict[str, Any]]:
    values = [message[2] for message in side.messages if not isinstance(message, Broadcast) and message[0] == topic]
    return [msgspec.json.decode(value) for value in values if value is not None]


@pytest.mark.parametrize("is_python", [False, True])
def test_of_spaces_that_arent_named_only_changes_are_published(is_python: bool) -> None:
    """COMPLETED doesn't name them: consumers would sweep their rows. The next snapshot publishes what has changed."""
    side = Side(is_python=is_python, snapshot_spaces=["others"])
    rows = [(number, 0) for number in range(50)]
    side.snapshot(users(*rows), 1 << 20, is_whole=True)
    assert numbers(side) == []
    assert len(side.store.rows) == 50
    started, completed = records(side, "shop.snapshot")
    assert (started["status"], completed["status"], completed["spaces"]) == ("STARTED", "COMPLETED", [])
    assert side._position.snapshot is not None
    assert side._position.snapshot.row_count == 50
    side.snapshot(users((0, 1), *rows[1:49], (77, 7)), 1 << 20, is_whole=True)
    assert numbers(side) == [("u", 0), ("c", 77), ("d", 49)]
    assert [space["space"] for space in records(side, "shop.snapshot")[-1]["spaces"]] == ["users"]


def test_a_silent_snapshot_isnt_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of spaces that aren't named, as of all spaces if `snapshot.mode` is never."""
    seen: list[Any] = []
    rows_of = Snapshot._rows

    def counted(self: Snapshot, found: Any) -> Any:
        these = list(found)
        seen.extend(these)
        return rows_of(self, these)

    monkeypatch.setattr(Snapshot, "_rows", counted)
    side = Side(is_python=False, snapshot_spaces=[])
    side.snapshot(users(*((number, 0) for number in range(4000))), 30_000, is_whole=True)
    assert len(side.store.rows) == 4000
    assert 0 < len(seen) < 60


@pytest.mark.parametrize("is_python", [False, True])
def test_without_images_rows_that_arent_wanted_are_passed_over(is_python: bool) -> None:
    target = pipeline(version=(2, 11), snapshot_spaces=["others"])
    decoder = FrameDecoder() if is_python else frame_decoder()
    batches = [target.begin_snapshot(VClock({1: 100}), NOW_US)]
    batches += target.feed_snapshot(decoder.feed(b"".join(users(*((number, 0) for number in range(100))))), NOW_US)
    batches += target.end_snapshot(NOW_US)
    assert sum(batch.event_count for batch in batches) == 0


EVEN = [("us.*", "row.id % 2 == 0")]


@pytest.mark.parametrize("is_python", [False, True])
def test_of_rows_that_arent_chosen_only_changes_are_published(is_python: bool) -> None:
    """All of them become images. The second snapshot is no first one, and publishes what has changed."""
    side = Side(is_python=is_python, snapshot_filters=EVEN)
    rows = [(number, 0) for number in range(50)]
    side.snapshot(users(*rows), 300, is_whole=True)
    assert numbers(side) == [("r", number) for number in range(0, 50, 2)]
    assert len(side.store.rows) == 50
    assert [space["space"] for space in records(side, "shop.snapshot")[-1]["spaces"]] == [], "all rows of a space that is named"
    side.snapshot(users((0, 1), (1, 1), *rows[2:49], (77, 7)), 1 << 20, is_whole=True)
    assert numbers(side)[25:] == [("u", 0), ("u", 1), ("c", 77), ("d", 49)]


@pytest.mark.parametrize("is_python", [False, True])
def test_chosen_rows_of_an_interrupted_first_snapshot(is_python: bool) -> None:
    side = Side(is_python=is_python, snapshot_filters=EVEN)
    rows = [(number, 0) for number in range(100)]
    side.snapshot(users(*rows[:60]), 300, is_whole=False)
    side.snapshot(users(*rows), 300, is_whole=True)
    assert numbers(side) == [("r", number) for number in range(0, 100, 2)]
    assert len(side.store.rows) == 100


@pytest.mark.parametrize("is_python", [False, True])
def test_without_images_rows_that_arent_chosen_are_passed_over(is_python: bool) -> None:
    target = pipeline(version=(2, 11), snapshot_filters=EVEN)
    decoder = FrameDecoder() if is_python else frame_decoder()
    batches = [target.begin_snapshot(VClock({1: 100}), NOW_US)]
    batches += target.feed_snapshot(decoder.feed(b"".join(users(*((number, 0) for number in range(100))))), NOW_US)
    batches += target.end_snapshot(NOW_US)
    assert sum(batch.event_count for batch in batches) == 50


def test_a_filter_that_doesnt_fit_the_space_ends_the_snapshot() -> None:
    side = Side(is_python=False, snapshot_filters=[("users", "row.nothing == 1")])
    with pytest.raises(ConfigurationError, match=r"snapshot\.filters.*'nothing'"):
        side.snapshot(users((1, 1)), 1 << 20, is_whole=True)
