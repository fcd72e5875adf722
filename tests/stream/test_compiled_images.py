"""The compiled row path with images against its specification: what comes out, what the images hold, and what the store gets.

Rows of a few keys, so that each meets what the one before it has left: pending, written, or gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc import native
from cdc.errors import CdcError
from cdc.images.overlay import Images
from cdc.images.pending import PendingChanges
from cdc.positions.vclock import VClock
from cdc.protocol.codec import FrameDecoder
from cdc.protocol.compiled_frames import CompiledFrames, frame_decoder
from cdc.protocol.constants import Flag, Key, Type
from cdc.protocol.extensions import Datetime, OpaqueExtension
from cdc.schema.fitting import FIELD_TYPES
from cdc.schema.forms import StoredSpace
from cdc.stream.batches.batch import Broadcast, Message
from cdc.stream.snapshots.snapshot import Snapshot
from tests.fakes import wire
from tests.fakes.captures import REPLICASET
from tests.fakes.pipelines import NOW_US, pipeline
from tests.fakes.profiles import MANY
from tests.fakes.tuples import MemoryTuples
from tests.stream.batches.test_compiled_rows import BEGIN, FORMATS, PATHS, USERS, Counting, requests_of, rows, spaces, wrapped

pytestmark = pytest.mark.skipif(
    native.ROW_PATH == "python", reason="this installation has no compiled row path, or doesn't run it"
)

KEYS: dict[str, list[Any]] = {
    "unsigned": [1, 2, 300, True],
    "integer": [1, -2, 2**63],
    "string": ["", "\0", "a", "\udcff", "k" * 600],
    "varbinary": [b"", b"\0", b"b"],
    "boolean": [True, False],
    "uuid": [UUID(int=1), UUID(int=2)],
    "number": [1, 1.0, 2.5, Decimal("2.5"), 2**53 + 1, Decimal(2**53 + 1), float("nan")],
    "double": [1, 1.0, -0.0, 0.1, Decimal("0.1"), 2.0**64],
    "decimal": [
        Decimal("1.5"),
        Decimal("1.50"),
        Decimal("-0.10000000000000000001"),
        Decimal("1E+2"),
        Decimal("9" * 39),
        Decimal(4 * 10**38),
    ],
    "scalar": [1, Decimal(1), "a", False, b"b", 0.5],
    "datetime": [Datetime(1), Datetime(1, 0, 60), Datetime(2, 5)],
}
VALUES = (
    st.none()
    | st.integers(-300, 70_000)
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=4)
    | st.floats()
    | st.sampled_from([OpaqueExtension(9, b"x"), [1, {"a": 2}], {"b": None}, "x" * 300, "\udcff"])
)
FIELDS = ["id", "second", "n", "s", "größe"]
TYPES = ["any"] * 20 + ["unsigned", "number", "string"] * 5 + sorted(FIELD_TYPES)


class Stream(NamedTuple):
    """A space that is there, the frames of rows in it, and the server's version."""

    stored: list[StoredSpace]
    frames: list[bytes]
    version: tuple[int, ...] = (2, 11)


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    kinds = [draw(st.sampled_from(sorted(KEYS))) for _ in range(draw(st.sampled_from([1, 1, 1, 2])))]
    paths = [draw(st.sampled_from(PATHS)) for _ in kinds]
    types = ["any" if path else kind for kind, path in zip(kinds, paths, strict=True)]
    fields = [*zip(FIELDS, types, strict=False), *((name, draw(st.sampled_from(TYPES))) for name in "ns")]
    parts = [(field, kind, path) for field, (kind, path) in enumerate(zip(kinds, paths, strict=True))]
    frames: list[bytes] = []
    lsn = BEGIN.vclock[1]
    there: set[str] = set()
    for _ in range(draw(st.integers(1, 14))):
        length = draw(st.sampled_from([0, 0, 0, 2, 5]))
        first = lsn + 1
        for place in range(max(length, 1)):
            lsn += 1
            header: dict[int, Any] = {Key.REPLICA_ID: 1, Key.LSN: lsn, Key.TIMESTAMP: 2.5}
            if length:
                header[Key.TSN] = lsn - first
                if place == length - 1:
                    header[Key.FLAGS] = Flag.COMMIT
            kind, body = draw(requests(parts, there))
            header = {Key.REQUEST_TYPE: kind, **header}
            frames.append(wire.frame(header, body))
    engine, index_type = draw(st.sampled_from([("memtx", "tree"), ("memtx", "hash"), ("vinyl", "tree"), ("vinyl", "tree")]))
    version = draw(st.sampled_from([(2, 6, 0), (2, 11), (3, 8)]))
    return Stream(spaces(fields, parts, engine, index_type), frames, version)


@st.composite
def requests(draw: st.DrawFn, parts: list[tuple[int, str, str]], there: set[str]) -> tuple[int, dict[int, Any]]:
    key = [draw(st.sampled_from(KEYS[kind])) for _, kind, _ in parts]
    tuple_ = [wrapped(draw, value, path) for value, (_, _, path) in zip(key, parts, strict=True)]
    tuple_ += draw(st.lists(VALUES | st.integers(0, 9), max_size=3))
    wanted = draw(st.sampled_from([Type.INSERT, Type.REPLACE, Type.UPDATE, Type.UPDATE, Type.UPDATE, Type.UPSERT, Type.DELETE]))
    if wanted == Type.INSERT and repr(key) in there and draw(st.integers(0, 9)):
        wanted = Type.REPLACE
    (there.discard if wanted == Type.DELETE else there.add)(repr(key))
    body: dict[int, Any] = {Key.SPACE_ID: USERS, **draw(st.sampled_from([{}, {Key.INDEX_ID: 0}]))}
    operations = draw(
        st.lists(
            st.tuples(
                st.sampled_from("====+++--#!"),
                st.sampled_from([1, 2, 3, 3, 4, "n", "s", "größe", "n[1]", -1]),
                VALUES | st.integers(0, 9),
            ).map(list),
            max_size=3,
        )
    )
    base = draw(st.sampled_from([{Key.INDEX_BASE: 1}, {Key.INDEX_BASE: 1}, {}, {Key.INDEX_BASE: 0}]))
    if wanted in (Type.INSERT, Type.REPLACE):
        body = {Key.SPACE_ID: USERS, Key.TUPLE: tuple_}
    elif wanted == Type.DELETE:
        body |= {Key.KEY: key}
    elif wanted == Type.UPDATE:
        body |= base | draw(st.sampled_from([True, False]).map(lambda first: (first and {Key.KEY: key}) or {}))
        body |= {Key.TUPLE: operations, Key.KEY: key}
    else:
        body |= base | {Key.TUPLE: tuple_, Key.OPS: operations}
    return wanted, body


class Outcome(NamedTuple):
    """All that can be told from outside."""

    messages: list[Message | Broadcast]
    changes: list[tuple[bytes, bytes | None]]
    error: str
    rows: list[tuple[bytes, bytes]]
    doubtful: frozenset[bytes]
    position: object
    upsert_count: int = 0


def outcome(stream: Stream, decoder: FrameDecoder, *, size: int, writes: int, is_python: bool, **options: Any) -> Outcome:
    """`writes`: after so many batches those that have come are written."""
    store = MemoryTuples()
    images = Images(store, version=stream.version)
    if is_python:
        images._pending = PendingChanges()
    target = pipeline(BEGIN, stream.stored, version=stream.version, images=images, **options)
    data = b"".join(stream.frames)
    messages: list[Message | Broadcast] = []
    changes: list[tuple[bytes, bytes | None]] = []
    waiting = []
    error = ""
    try:
        for start in range(0, len(data), size):
            frames = decoder.feed(data[start : start + size])
            if not len(frames):
                continue
            for batch in target.feed(frames, NOW_US):
                messages += batch.messages
                changes += batch.changes
                waiting.append(batch.changes)
                if len(waiting) > writes:
                    for one in waiting:
                        store.write(one, ())
                        images.written(one)
                    waiting.clear()
    except CdcError as caught:
        error = f"{type(caught).__name__}: {caught}"
        # What is pending behind an error is of no moment.
        return Outcome(messages, [], error, [], frozenset(), None)
    found = list(images.scan(USERS))
    for one in waiting:
        store.write(one, ())
        images.written(one)
    assert list(images.scan(USERS)) == found == sorted(store.rows.items())
    return Outcome(messages, changes, error, found, images.doubtful, target.position, target.merging_upsert_count)


@MANY
@given(
    stream=streams(),
    size=st.integers(1, 3000),
    writes=st.sampled_from([0, 2, 1000]),
    tombstones=st.booleans(),
    bytes_max=st.sampled_from([1, 1500, 1 << 20]),
    on_error=st.sampled_from(["dlq", "fail"]),
    on_image_error=st.sampled_from(["dlq", "dlq", "fail"]),
    formats=FORMATS,
)
def test_both_paths_do_the_same(stream: Stream, size: int, writes: int, bytes_max: int, **options: Any) -> None:
    options["batch_bytes_max"] = bytes_max
    python = outcome(stream, FrameDecoder(), size=size, writes=writes, is_python=True, **options)
    compiled = outcome(stream, frame_decoder(), size=size, writes=writes, is_python=False, **options)
    if python.error:
        # How far it came before the row at fault is the path's own matter: the next connection begins at the checkpoint.
        assert compiled.error == python.error
        assert compiled.messages[: len(python.messages)] == python.messages[: len(compiled.messages)]
    else:
        assert compiled == python


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Type.UPDATE, {Key.KEY: [1], Key.OPS: 1, Key.TUPLE: [["=", 1, "y"]]}),  # operations of an UPSERT that are no array
        (Type.REPLACE, {Key.KEY: 7, Key.TUPLE: [1, "y"]}),  # a key that is no array
        (Type.UPDATE, {Key.KEY: [1000]}),  # no operations, for a key without a row
    ],
)
def test_a_request_that_no_server_accepts_ends_both_paths(kind: int, body: dict[int, Any]) -> None:
    stored = spaces([("id", "unsigned"), ("name", "string")], [(0, "unsigned")])
    refused = requests_of(1, 1, kind, lambda _: {Key.SPACE_ID: USERS, **body}, first=211)
    stream = Stream(stored, [*rows(200, 1), *refused])
    python = outcome(stream, FrameDecoder(), size=1 << 20, writes=0, is_python=True)
    compiled = outcome(stream, frame_decoder(), size=1 << 20, writes=0, is_python=False)
    assert "malformed body" in python.error
    assert (compiled.error, compiled.messages) == (python.error, python.messages)


class LargeTuples(MemoryTuples):
    """Has a tuple of 600,000 bytes under each key."""

    def __init__(self) -> None:
        super().__init__()
        self.get_count = 0

    @property
    def get(self) -> Callable[[bytes], bytes | None]:
        """A key's tuple."""
        return self._get

    def _get(self, key: bytes) -> bytes:
        self.get_count += 1
        return b"\x92" + wire.pack(int.from_bytes(key[4:])) + wire.pack("x" * 600_000)


@pytest.mark.parametrize("length", [1, 2, 40])
def test_of_large_tuples_only_a_few_are_fetched_at_once(length: int) -> None:
    stored = spaces([("id", "unsigned"), ("name", "string")], [(0, "unsigned")])
    data = b"".join(
        requests_of(40, length, Type.DELETE, lambda place: {Key.SPACE_ID: USERS, Key.KEY: [place * 7 % 40]}, first=11)
    )
    found = []
    for decoder in (FrameDecoder(), frame_decoder()):
        store = LargeTuples()
        target = pipeline(BEGIN, stored, version=(2, 11), images=Images(store, version=(2, 11)))
        messages: list[Message | Broadcast] = []
        fetched_ahead = 0
        for batch in target.feed(decoder.feed(data), NOW_US):
            messages += batch.messages
            gone_count = sum(isinstance(message, tuple) and message[2] is None for message in messages)
            fetched_ahead = max(fetched_ahead, store.get_count - gone_count)
        assert gone_count == 40
        assert fetched_ahead < 20
        found.append(messages)
    assert found[0] == found[1]


# Snapshots.


@st.composite
def snapshots(draw: st.DrawFn) -> list[bytes]:
    """The rows of two spaces, mostly in the order of their keys, and of a third that isn't published."""
    frames = [wire.frame({0: Type.INSERT}, {Key.SPACE_ID: 272, Key.TUPLE: ["cluster", str(REPLICASET)]})]
    stored = []
    for space_id, name in ((USERS, "users"), (USERS + 1, "hidden"), (USERS + 2, "others")):
        kind = draw(st.sampled_from(sorted(KEYS)))
        stored.append((space_id, kind))
        form = [{"name": "id", "type": kind}, {"name": "n", "type": "any"}]
        frames.append(wire.frame({0: 2}, {Key.SPACE_ID: 280, Key.TUPLE: [space_id, 1, name, "memtx", 0, {}, form]}))
        frames.append(wire.frame({0: 2}, {Key.SPACE_ID: 288, Key.TUPLE: [space_id, 0, "pk", "tree", {}, [[0, kind]]]}))
    for space_id, kind in stored:
        count = draw(st.integers(0, 12))
        if kind == "unsigned" and draw(st.booleans()):
            keys: list[Any] = list(range(count))
        else:
            keys = [draw(st.sampled_from(KEYS[kind])) for _ in range(count)]
        for key in keys:
            frames.append(wire.frame({0: 2, 3: len(frames)}, {Key.SPACE_ID: space_id, Key.TUPLE: [key, draw(VALUES)]}))
    return frames


def shown(frames: list[bytes], decoder: FrameDecoder, *, size: int, has_images: bool, is_python: bool, **options: Any) -> Outcome:
    """What a snapshot comes to. `size`: of the pieces in which it is read, 0 for each of `frames` by itself."""
    store = MemoryTuples()
    images = Images(store, version=(2, 11)) if has_images else None
    if is_python and images is not None:
        images._pending = PendingChanges()
    target = pipeline(version=(2, 11), images=images, exclude=["hidden"], **options)
    messages: list[Message | Broadcast] = []
    changes: list[tuple[bytes, bytes | None]] = []
    data = b"".join(frames)
    batches = [target.begin_snapshot(VClock({1: 100}), NOW_US)]
    error = ""
    pieces = [data[start : start + size] for start in range(0, len(data), size)] if size else frames
    try:
        for piece in pieces:
            for batch in target.feed_snapshot(decoder.feed(piece), NOW_US):
                batches.append(batch)
                messages += batch.messages
                changes += batch.changes
                store.write(batch.changes, ())
                if images is not None:
                    images.written(batch.changes)
        for batch in target.end_snapshot(NOW_US):
            messages += batch.messages
    except CdcError as caught:
        error = f"{type(caught).__name__}: {caught}"
        return Outcome(messages, [], error, [], frozenset(), None)
    count = sum(batch.row_count for batch in batches), sum(batch.event_count for batch in batches)
    return Outcome(messages, changes, error, sorted(store.rows.items()), frozenset(), (target.position, count))


@MANY
@given(
    frames=snapshots(),
    size=st.integers(1, 3000),
    bytes_max=st.sampled_from([1, 1500, 1 << 20]),
    on_error=st.sampled_from(["dlq", "dlq", "fail"]),
    has_images=st.booleans(),
    formats=FORMATS,
)
def test_both_paths_show_a_snapshot_alike(frames: list[bytes], bytes_max: int, **options: Any) -> None:
    options["batch_bytes_max"] = bytes_max
    python = shown(frames, FrameDecoder(), is_python=True, **options)
    compiled = shown(frames, frame_decoder(), is_python=False, **options)
    assert compiled == python


def schema_frames(name: str = "users") -> list[bytes]:
    """What a snapshot begins with: one space of numbers."""
    bodies: list[dict[int, Any]] = [
        {Key.SPACE_ID: 272, Key.TUPLE: ["cluster", str(REPLICASET)]},
        {Key.SPACE_ID: 280, Key.TUPLE: [320, 1, "_cluster", "memtx", 0, {}, []]},
        {Key.SPACE_ID: 280, Key.TUPLE: [USERS, 1, name, "memtx", 0, {}, []]},
        {Key.SPACE_ID: 288, Key.TUPLE: [320, 0, "pk", "tree", {}, [[0, "unsigned"]]]},
        {Key.SPACE_ID: 288, Key.TUPLE: [USERS, 0, "pk", "tree", {}, [[0, "unsigned"]]]},
        {Key.SPACE_ID: 320, Key.TUPLE: [1, "one"]},
    ]
    return [wire.frame({0: 2}, body) for body in bodies]


def user(number: int, value: str = "x") -> bytes:
    """A user's row."""
    return wire.frame({0: 2}, {Key.SPACE_ID: USERS, Key.TUPLE: [number, value]})


ROWS = [user(number) for number in range(0, 1000, 2)]
# The first rows of what is read at once always go the Python way.
AGAIN = b"".join([*map(user, range(1, 41, 2)), user(1000, "z"), user(1000, "z")])
OTHERWISE: dict[str, bytes] = {
    "a body in another order": wire.frame({0: 2}, {Key.TUPLE: [1000, "y"], Key.SPACE_ID: USERS}),
    "a space named twice": wire.raw_frame(wire.pack({0: 2}) + b"\x83\x10\x05\x21\x92\xcd\x03\xe8\xa1y\x10" + wire.pack(USERS)),
    "a key of the body written long": wire.raw_frame(
        wire.pack({0: 2}) + b"\x82\x10" + wire.pack(USERS) + b"\xcc\x21\x92\xcd\x03\xe8\xa1y"
    ),
    "before the schema was whole": b"".join(
        [*map(user, range(2000)), wire.frame({0: 2}, {Key.SPACE_ID: 320, Key.TUPLE: [1, "another"]})]
    ),
}


@pytest.mark.parametrize("name", sorted(OTHERWISE))
def test_a_key_of_a_snapshot_that_the_compiled_path_has_not_seen_is_known_again(name: str) -> None:
    """It asks for what is there only where a key may have come before."""
    frames = [b"".join([*schema_frames(), *(ROWS if name.startswith("a") else [])]), OTHERWISE[name], AGAIN]
    options: dict[str, Any] = {"size": 0, "has_images": True, "include": [".*", "_cluster"]}
    python = shown(frames, FrameDecoder(), is_python=True, **options)
    assert not python.error
    assert shown(frames, frame_decoder(), is_python=False, **options) == python


def test_a_snapshots_rows_are_not_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the comparison says nothing."""
    seen: list[Any] = []
    rows_of = Snapshot._rows

    def counted(self: Snapshot, found: Iterable[Any]) -> Iterator[None]:
        these = list(found)
        seen.extend(these)
        return rows_of(self, these)

    monkeypatch.setattr(Snapshot, "_rows", counted)
    frames = [
        wire.frame({0: 2}, body)
        for body in (
            {Key.SPACE_ID: 272, Key.TUPLE: ["cluster", str(REPLICASET)]},
            {Key.SPACE_ID: 280, Key.TUPLE: [USERS, 1, "users", "memtx", 0, {}, []]},
            {Key.SPACE_ID: 288, Key.TUPLE: [USERS, 0, "pk", "tree", {}, [[0, "unsigned"]]]},
            *({Key.SPACE_ID: USERS, Key.TUPLE: [number, "x"]} for number in range(2000)),
        )
    ]
    found = shown(frames, frame_decoder(), size=30_000, has_images=True, is_python=False)
    assert len(found.rows) == 2000
    assert 0 < len(seen) < 40


@pytest.mark.parametrize("version", [(2, 6, 0), (2, 11)])
def test_upserts_of_vinyl_are_not_handed_back(version: tuple[int, ...]) -> None:
    def body(place: int) -> dict[int, Any]:
        operation = ["-", 2, 100] if place % 3 == 0 else ["+", 2, 1]
        return {Key.SPACE_ID: USERS, Key.INDEX_BASE: 1, Key.TUPLE: [place % 50, 5], Key.OPS: [operation]}

    stored = spaces([("id", "unsigned"), ("n", "unsigned")], [(0, "unsigned")], "vinyl")
    stream = Stream(stored, requests_of(300, 1, Type.UPSERT, body, first=11), version)
    images = Images(MemoryTuples(), version=version)
    target = pipeline(BEGIN, stored, version=version, images=images)
    counting = Counting(target)
    for _ in target.feed(frame_decoder().feed(b"".join(stream.frames)), NOW_US):
        pass
    assert counting.row_count == 299
    python = outcome(stream, FrameDecoder(), size=1 << 20, writes=0, is_python=True)
    compiled = outcome(stream, frame_decoder(), size=1 << 20, writes=0, is_python=False)
    assert compiled == python
    # From 2.6.1 on, the server ignores an UPSERT whose result is no longer unsigned.
    count = sum(isinstance(message, tuple) and message[0] == "shop.users" for message in python.messages)
    assert count == (300 if version == (2, 6, 0) else 217)
    assert python.upsert_count == (300 if version == (2, 6, 0) else 0)


@pytest.mark.parametrize("length", [1, 50])
@pytest.mark.parametrize("is_written", [True, False])
def test_what_is_common_is_not_handed_back(length: int, *, is_written: bool) -> None:
    """Else the comparison says nothing."""
    stored = spaces([("id", "unsigned"), ("name", "string"), ("n", "any")], [(0, "unsigned")])
    store = MemoryTuples()
    images = Images(store, version=(2, 11))
    target = pipeline(BEGIN, stored, version=(2, 11), images=images)
    counting = Counting(target)
    steps = [
        rows(400, length),
        requests_of(
            400,
            length,
            Type.UPDATE,
            lambda place: {
                Key.SPACE_ID: USERS,
                Key.INDEX_BASE: 1,
                Key.KEY: [place],
                Key.TUPLE: [["=", "name", f"n{place}"]],
            },
            first=411,
        ),
        rows(400, length, kind=Type.REPLACE, first=811),
        requests_of(400, length, Type.DELETE, lambda place: {Key.SPACE_ID: USERS, Key.KEY: [place]}, first=1211),
    ]
    decoder = frame_decoder()
    found = []
    for step in steps:
        frames = decoder.feed(b"".join(step))
        assert isinstance(frames, CompiledFrames)
        for batch in target.feed(frames, NOW_US):
            found += [message for message in batch.messages if isinstance(message, tuple) and message[0] == "shop.users"]
            if is_written:
                store.write(batch.changes, ())
                images.written(batch.changes)
    assert counting.row_count >= 1600 - 2 * length
    values = [value for _, _, value in found if value is not None]
    assert [value[:8] for value in values[::400]] == [b'{"op":"c', b'{"op":"u', b'{"op":"u', b'{"op":"d']
    assert b'"before":{"id":7,"name":"n7"},"after":{"id":7,"name":"xxx' in values[807]
    assert list(images.scan(USERS)) == []
