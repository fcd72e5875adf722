"""The compiled row path against its specification: the same bytes go through both, and the same must come out.

Whatever stands in the rows: forms, values and operations at random, transactions of all lengths cut anywhere, bytes that lie.
The recorded servers go through whichever path runs in test_pipeline_captures, against golden files.
"""

from __future__ import annotations

import math
import random
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc import native
from cdc.config.columns import ColumnsRule
from cdc.errors import CdcError, ConfigurationError
from cdc.formats.options import JSON_FORMATS, FormatOptions, Registration
from cdc.images.overlay import Images
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.protocol.codec import FrameDecoder
from cdc.protocol.compiled_frames import CompiledFrameDecoder, CompiledFrames, frame_decoder
from cdc.protocol.constants import Flag, Key, Type
from cdc.protocol.extensions import Datetime, Interval, OpaqueExtension
from cdc.schema.forms import StoredSpace
from cdc.stream.batches.batch import Broadcast, Message
from cdc.stream.compiled_stream import CompiledStream
from cdc.stream.pipeline import Pipeline
from cdc.tuples.operations import steps
from tests.fakes import wire
from tests.fakes.captures import REPLICASET
from tests.fakes.master import SERVER
from tests.fakes.pipelines import NOW_US, pipeline
from tests.fakes.profiles import MANY, SOME
from tests.fakes.tuples import MemoryTuples

pytestmark = pytest.mark.skipif(
    native.ROW_PATH == "python", reason="this installation has no compiled row path, or doesn't run it"
)

BEGIN = Position(VClock({1: 10, 2: 7, 9: 3}), 40, 3, REPLICASET, SERVER, SnapshotState(1, is_complete=True))
USERS, HIDDEN, UNKNOWN = 512, 513, 700
TYPES = ["unsigned", "integer", "string", "boolean", "varbinary", "uuid", "number", "double", "decimal", "scalar", "any",
         "datetime", "map", "array", "interval", "int8", "uint64", "float32"]  # fmt: skip
NAMES = ["id", "name", "a b", 'quo"te', "back\\slash", "field_3", "field_5", "é", "\t", "", "id"]


PATHS = ["", "", "", "a", "[2].b", "a.b[1]"]


def an_id(_: Registration) -> int:
    """What a registry gives."""
    return 7


FORMATS = st.sampled_from(
    [
        *[JSON_FORMATS] * 4,
        *[FormatOptions("avro", "avro", schema_ids=an_id)] * 2,
        FormatOptions("json", "avro", schema_ids=an_id),
        FormatOptions("avro", "json", schema_ids=an_id),
        FormatOptions("avro", "avro", "decimal", "string", schema_ids=an_id),
        FormatOptions("avro", "avro", "string", schema_ids=an_id),
        FormatOptions("json", "json", source="lean"),
        FormatOptions("avro", "avro", source="lean", schema_ids=an_id),
    ]
)
"""Those that the compiled path makes."""


def spaces(
    fields: list[tuple[str, str]], parts: Sequence[tuple[Any, ...]], engine: str = "memtx", index_type: str = "tree"
) -> list[StoredSpace]:
    """`parts` of the key: each a field and its type, and the path inside the field, if there is one."""
    form = [{"name": name, "type": kind} for name, kind in fields]
    keys = [{"field": part[0], "type": part[1], "path": part[2]} if part[2:] else [*part] for part in parts]
    index = [USERS, 0, "pk", index_type, {}, keys]
    return [
        StoredSpace(USERS, [USERS, 1, "users", engine, 0, {}, form], {0: index}, 1),
        StoredSpace(HIDDEN, [HIDDEN, 1, "hidden", "memtx", 0, {}, []], {0: [HIDDEN, 0, "pk", "tree", {}, [[0, "unsigned"]]]}, 0),
    ]


PLAIN_FIELDS = [("id", "unsigned"), ("name", "string"), ("more", "any")]
PLAIN = spaces(PLAIN_FIELDS, [(0, "unsigned")])

DATETIMES = st.builds(
    Datetime,
    st.integers(-(10**11), 10**11) | st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, 1, 999_999_999, 1_000_000_000, -1, 5000]),
    st.sampled_from([0, 60, -90, 840, -1]),
    st.sampled_from([0, 7]),
)
DECIMALS: st.SearchStrategy[Decimal] = st.decimals(allow_nan=False, allow_infinity=False).filter(
    lambda value: abs(value.as_tuple().exponent) < 60 and len(value.as_tuple().digits) < 39  # type: ignore[arg-type]
) | st.sampled_from([Decimal(4 * 10**38), Decimal("-0.7" + "0" * 38), Decimal("1" + "2" * 75)])
TEXTS = st.text(max_size=8) | st.sampled_from(['\x00\x1f"\\/\x7f\u2028', "\udcff", "é\udc80", "😀", "x" * 300])
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.integers(-200, 70_000) | st.floats() | TEXTS
    | st.binary(max_size=20) | st.uuids() | DECIMALS | DATETIMES
    | st.sampled_from([Interval(year=1), OpaqueExtension(9, b"abc"), OpaqueExtension(2, b"short"), OpaqueExtension(1, b"\xff"),
                       Decimal("1E+3"), Decimal("-0.00"), Decimal("1E-30"), math.nan, math.inf, -math.inf, -0.0, 1e22, 5e-324,
                       1e16])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(TEXTS, inner, max_size=3)
        | st.dictionaries(st.integers(-5, 300) | st.booleans() | TEXTS, inner, max_size=3)
    ),
    max_leaves=6,
)

BASES = st.sampled_from([{Key.INDEX_BASE: 1}, {Key.INDEX_BASE: 1}, {Key.INDEX_BASE: 0}, {}])
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["=", "=", "+", "-", "&", "|", "^", "!", "#", "?"]),
        st.integers(1, 6) | st.integers(-3, 300) | st.sampled_from([*NAMES, "name.a", "[2]", "none", True]),
        VALUES,
    ).map(list)
    | st.tuples(
        st.just(":"), st.sampled_from([2, "name", -1]), st.integers(-3, 3) | st.just(True), st.integers(-(2**63), 300), VALUES
    ).map(list),
    max_size=3,
)


def of_type(kind: str) -> st.SearchStrategy[Any]:
    """Mostly what such a field has."""
    fitting: st.SearchStrategy[Any] = {
        "unsigned": st.integers(0, 2**64 - 1), "integer": st.integers(-(2**63), 2**63), "string": TEXTS,
        "boolean": st.booleans(), "varbinary": st.binary(max_size=9), "uuid": st.uuids(), "number": st.integers(0, 99) | DECIMALS,
        "double": st.floats(), "decimal": DECIMALS, "datetime": DATETIMES, "int8": st.integers(-128, 127),
        "uint64": st.integers(0, 9),
    }.get(kind, VALUES)  # fmt: skip
    return st.integers(0, 9).flatmap(lambda number: fitting if number else VALUES)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[StoredSpace], list[bytes]]:
    """Spaces, and the frames of rows in them."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5))
    fields = [(name, draw(st.sampled_from(TYPES))) for name in names]
    numbers = draw(st.lists(st.integers(0, len(fields) - 1), min_size=1, max_size=2, unique=True))
    parts = [(number, fields[number][1], draw(st.sampled_from(PATHS))) for number in numbers]
    for number, _, path in parts:
        if path:
            fields[number] = (fields[number][0], "any")
    of_part = {number: (kind, path) for number, kind, path in parts}
    index_type = draw(st.sampled_from(["tree", "tree", "hash"]))
    engine = draw(st.sampled_from(["memtx", "vinyl"])) if index_type == "tree" else "memtx"
    lsns = {1: 10, 2: 7}
    frames: list[bytes] = []
    for _ in range(draw(st.integers(1, 12))):
        origin = draw(st.sampled_from([1, 1, 1, 2]))
        length = draw(st.sampled_from([0, 0, 1, 2, 5]))
        has_end = draw(st.sampled_from([True, True, True, False]))  # before 2.8.4, its last row may be one that isn't relayed
        first = lsns[origin] + 1
        for place in range(max(length, 1)):
            lsns[origin] += 1
            header: dict[int, Any] = {
                Key.REQUEST_TYPE: draw(st.sampled_from([2, 2, 2, 3, 3, 5, 5, 4, 9, 12])),
                Key.REPLICA_ID: origin,
                Key.LSN: lsns[origin],
                Key.TIMESTAMP: draw(st.sampled_from([1.5, 1_732_180_000.123456, 0.0, 7])),
            }
            if length:
                header[Key.TSN] = lsns[origin] - first
                if has_end and place == length - 1:
                    header[Key.FLAGS] = Flag.COMMIT
            kinds = [of_part.get(number, (kind, "")) for number, (_, kind) in enumerate(fields)]
            tuple_ = [wrapped(draw, draw(of_type(kind)), path) for kind, path in kinds][: draw(st.sampled_from([9, 9, 9, 1, 2]))]
            tuple_ += draw(st.lists(VALUES, max_size=2)) if draw(st.integers(0, 5)) == 0 else []
            frames.append(wire.frame(header, body_of(draw, header[Key.REQUEST_TYPE], tuple_, parts)))
    return spaces(fields, parts, engine, index_type), frames


def wrapped(draw: st.DrawFn, value: Any, path: str) -> Any:
    """A value inside which this one is at the path, mostly."""
    for step in reversed(steps(path)):
        if not draw(st.integers(0, 30)):
            return draw(VALUES)
        if isinstance(step, int):
            value = [draw(SCALARS) for _ in range(step)] + [value] + draw(st.sampled_from([[], [1]]))
        else:
            others: list[list[tuple[Any, Any]]] = [[], [("z", 1)], [(5, [])], [(b"a", 2)]]
            pairs = [(step, value), *draw(st.sampled_from(others))]
            value = dict(draw(st.permutations(pairs)))
    return value


def at_path(value: Any, path: str) -> Any:
    """The value at a path, or another."""
    for step in steps(path):
        try:
            value = value[step]
        except (TypeError, LookupError):
            return 5
    return value


def body_of(draw: st.DrawFn, kind: int, tuple_: list[Any], parts: list[tuple[int, str, str]]) -> dict[int, Any]:
    if kind == Type.NOP:
        return {}
    body: dict[int, Any] = {Key.SPACE_ID: draw(st.sampled_from([USERS] * 12 + [HIDDEN, HIDDEN, UNKNOWN]))}
    key = [at_path(tuple_[field], path) for field, _, path in parts if field < len(tuple_)]
    if kind in (Type.INSERT, Type.REPLACE):
        return body | {Key.TUPLE: tuple_}
    if kind == Type.DELETE:
        return body | draw(st.sampled_from([{}, {Key.INDEX_ID: 0}, {Key.INDEX_ID: 1}])) | {Key.KEY: key}
    if kind == Type.UPDATE:
        return body | draw(BASES) | {Key.KEY: key, Key.TUPLE: draw(OPERATIONS)}
    return body | draw(BASES) | {Key.TUPLE: tuple_, Key.OPS: draw(OPERATIONS)}


def outcome(
    stored: list[StoredSpace], pieces: Iterable[bytes], decoder: FrameDecoder, **options: Any
) -> tuple[list[Message | Broadcast], str, Any]:
    """The messages, the error that ended it, and where it stands then."""
    images = Images(MemoryTuples(), version=(2, 11)) if options.pop("has_images", False) else None
    try:
        target = pipeline(BEGIN, stored, exclude=["hidden"], **{"version": (2, 11), "images": images, **options})
    except ConfigurationError as refused:  # two names become one in Avro
        return [], str(refused), None
    found: list[Message | Broadcast] = []
    row_count = event_count = 0
    error = ""
    try:
        for piece in pieces:
            frames = decoder.feed(piece)
            if not len(frames):
                continue
            for batch in target.feed(frames, NOW_US):
                found += batch.messages
                row_count += batch.row_count
                event_count += batch.event_count
        for batch in target.heartbeat(NOW_US):
            found += batch.messages
            row_count += batch.row_count
            event_count += batch.event_count
    except CdcError as caught:
        error = f"{type(caught).__name__}: {caught}"
        # How far it came before the one at fault is the path's own matter, as the next connection goes on from the checkpoint.
        return found, error, None
    at_end = target.position, target.open_byte_count, row_count, event_count, target.ledger.received, target.merging_upsert_count
    return found, error, at_end


def compare(stored: list[StoredSpace], pieces: list[bytes], *, may_differ: bool = False, **options: Any) -> None:
    """`may_differ`: the errors, as of two in one feed the Python path tells that of a header, the compiled one the first."""
    python = outcome(stored, pieces, FrameDecoder(), **options)
    decoder = frame_decoder()
    assert isinstance(decoder, CompiledFrameDecoder)
    compiled = outcome(stored, pieces, decoder, **options)
    if may_differ and python[1] and compiled[1]:
        return
    assert compiled[1:] == python[1:]
    if python[1]:
        # The Python path looks at all headers of a feed before it handles the first row.
        assert compiled[0][: len(python[0])] == python[0]
    else:
        assert compiled[0] == python[0]


@MANY
@given(
    stream=streams(),
    size=st.integers(1, 4000),
    tombstones=st.booleans(),
    topic=st.sampled_from(["none", "multi", "all"]),
    bytes_max=st.sampled_from([1, 1500, 1 << 20]),
    version=st.sampled_from([(2, 6, 0), (2, 8, 3), (2, 11)]),
    on_error=st.sampled_from(["dlq", "dlq", "fail"]),
    formats=FORMATS,
)
def test_both_paths_write_the_same_bytes(
    stream: tuple[list[StoredSpace], list[bytes]], size: int, topic: str, bytes_max: int, **options: Any
) -> None:
    stored, frames = stream
    data = b"".join(frames)
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    compare(stored, pieces, transaction_topic=topic, batch_bytes_max=bytes_max, **options)


@MANY
@given(
    stream=streams(),
    size=st.integers(1, 4000),
    has_images=st.booleans(),
    treatments=st.lists(st.sampled_from(["", "", "exclude", "hash", "truncate", "mask"]), min_size=9, max_size=9),
    past=st.sampled_from([[], ["field_.*"], ["field_5"]]),
    count=st.integers(0, 5),
)
def test_both_paths_obey_the_rules_for_columns(
    stream: tuple[list[StoredSpace], list[bytes]], size: int, has_images: bool, treatments: list[str], past: list[str], count: int
) -> None:
    stored, frames = stream
    in_key = {part["field"] if isinstance(part, dict) else part[0] for part in stored[0].index_rows[0][5]}
    names = [field["name"] for field in stored[0].space_row[6]]
    keys = {names[place] if place < len(names) else f"field_{place + 1}" for place in in_key}
    by_kind: dict[str, list[str]] = {kind: [] for kind in treatments}
    for name, kind in zip(dict.fromkeys(names), treatments, strict=False):
        if name not in keys:
            by_kind[kind].append(re.escape(name))
    is_told = past or any(by_kind[kind] for kind in by_kind if kind)
    rule: dict[str, Any] = {
        "include": [*map(re.escape, names), *past] if past else [],
        "exclude": by_kind.get("exclude", []),
        "hash": by_kind.get("hash", []),
        "truncate": dict.fromkeys(by_kind.get("truncate", []), count),
        "mask": dict.fromkeys(by_kind.get("mask", []), '"*"'),
    }
    rules = [ColumnsRule(spaces="users", **rule)] if is_told else []
    data = b"".join(frames)
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    compare(
        stored,
        pieces,
        column_rules=rules,
        salt=b"0123456789abcdef",
        on_error="dlq",
        on_image_error="dlq",
        has_images=has_images,
    )


@SOME
@given(stream=streams(), seed=st.integers(0, 2**32 - 1), size=st.integers(20, 4000))
def test_both_paths_bear_bytes_that_lie(stream: tuple[list[StoredSpace], list[bytes]], seed: int, size: int) -> None:
    stored, frames = stream
    rng = random.Random(seed)
    data = bytearray(b"".join(frames))
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(len(data))] = rng.choice([0x00, 0x80, 0x90, 0xC0, 0xC1, 0xCE, 0xDF, 0xFF, rng.randrange(256)])
    pieces = [bytes(data[start : start + size]) for start in range(0, len(data), size)]
    compare(stored, pieces, may_differ=True, on_error="dlq")


def requests_of(count: int, length: int, kind: int, body: Callable[[int], Any], *, first: int) -> list[bytes]:
    """Requests in transactions of a length, `body` giving that of each."""
    found = []
    for place in range(count):
        header: dict[int, Any] = {Key.REQUEST_TYPE: kind, Key.REPLICA_ID: 1, Key.LSN: first + place, Key.TIMESTAMP: 2.0}
        if length > 1:
            header[Key.TSN] = place % length
            if place % length == length - 1:
                header[Key.FLAGS] = Flag.COMMIT
        found.append(wire.frame(header, body(place)))
    return found


def rows(count: int, length: int, *, kind: int = Type.INSERT, first: int = 11, space_id: int = USERS) -> list[bytes]:
    """Rows in transactions of a length."""
    return requests_of(count, length, kind, lambda place: {Key.SPACE_ID: space_id, Key.TUPLE: [place, "x" * 50]}, first=first)


class Counting:
    """A compiled row path that counts what it has handled."""

    def __init__(self, target: Pipeline) -> None:
        assert isinstance(target._stream, CompiledStream)
        self._path: Any = target._stream._path
        self.row_count = self.call_count = 0
        target._stream._path = self  # type: ignore[assignment]  # it stands in for it

    def run(self, rows: native.Rows, at: int, *others: Any) -> native.Run:
        found: native.Run = self._path.run(rows, at, *others)
        self.row_count += found.at - at
        self.call_count += 1
        return found


@pytest.mark.parametrize("length", [1, 2, 40])
@pytest.mark.parametrize("size", [500, 5000, 1 << 20])
@pytest.mark.parametrize("formats", [JSON_FORMATS, FormatOptions("avro", "avro", schema_ids=an_id)], ids=["json", "avro"])
def test_the_compiled_path_takes_what_it_can(length: int, size: int, formats: FormatOptions) -> None:
    """Else the comparisons above say nothing."""
    data = b"".join(rows(400, length))
    target = pipeline(BEGIN, PLAIN, version=(2, 11), formats=formats)
    counting = Counting(target)
    decoder = frame_decoder()
    count = 0
    for start in range(0, len(data), size):
        frames = decoder.feed(data[start : start + size])
        assert isinstance(frames, CompiledFrames)
        count += sum(batch.row_count for batch in target.feed(frames, NOW_US))
    assert count == 400
    # The first transaction has the schema settled, and its space compiled.
    assert counting.row_count == 400 - length
    assert target.open_byte_count == 0


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (Type.UPDATE, {Key.KEY: [5], Key.TUPLE: [["=", "name", "a"], ["+", 3, 1.5], ["#", -1, 1], [":", 2, 1, -1, "b"]]}),
        (Type.UPSERT, {Key.TUPLE: [5, "a"], Key.OPS: [["=", 2, "b"]]}),
    ],
)
@pytest.mark.parametrize("engine", ["memtx", "vinyl"])
@pytest.mark.parametrize("version", [(2, 6, 0), (2, 11)])
def test_operations_are_not_handed_back(kind: int, more: dict[int, Any], engine: str, version: tuple[int, ...]) -> None:
    frames = requests_of(300, 1, kind, lambda _: {Key.SPACE_ID: USERS, Key.INDEX_BASE: 1, **more}, first=11)
    target = pipeline(BEGIN, spaces(PLAIN_FIELDS, [(0, "unsigned")], engine), version=version)
    counting = Counting(target)
    batches = list(target.feed(frame_decoder().feed(b"".join(frames)), NOW_US))
    assert (sum(batch.row_count for batch in batches), counting.row_count) == (300, 299)
    is_merged = engine == "vinyl" and kind == Type.UPSERT and version == (2, 6, 0)
    assert target.merging_upsert_count == (300 if is_merged else 0)


COMMON_KEYS: dict[str, tuple[str, Callable[[int], Any]]] = {
    "uuid": ("tree", lambda number: UUID(int=number)),
    "datetime": ("hash", lambda number: Datetime(number, 0, 60)),
    "string": ("tree", str),
    "decimal": ("tree", lambda number: Decimal(number) / 100),
    "number": ("hash", lambda number: Decimal(number) / 100),
    "double": ("tree", lambda number: number / 2),
    "scalar": ("tree", lambda number: number.to_bytes(2)),
}


@pytest.mark.parametrize("formats", [JSON_FORMATS, FormatOptions("avro", "avro", schema_ids=an_id)], ids=["json", "avro"])
@pytest.mark.parametrize("has_images", [True, False])
@pytest.mark.parametrize("path", ["", "a.b"])
@pytest.mark.parametrize("kind", COMMON_KEYS)
def test_common_keys_are_not_handed_back(kind: str, path: str, formats: FormatOptions, *, has_images: bool) -> None:
    index_type, key = COMMON_KEYS[kind]

    def body(place: int) -> dict[int, Any]:
        return {Key.SPACE_ID: USERS, Key.TUPLE: [{"a": {"b": key(place)}} if path else key(place), 1]}

    frames = requests_of(300, 1, Type.INSERT, body, first=11)
    stored = spaces([("id", "any" if path else kind), ("n", "any")], [(0, kind, path)], "memtx", index_type)
    images = Images(MemoryTuples(), version=(2, 11)) if has_images else None
    target = pipeline(BEGIN, stored, version=(2, 11), images=images, formats=formats)
    counting = Counting(target)
    batches = list(target.feed(frame_decoder().feed(b"".join(frames)), NOW_US))
    assert (sum(batch.row_count for batch in batches), counting.row_count) == (300, 299)


def test_a_row_of_another_kind_is_handed_back_alone() -> None:
    header = {Key.REQUEST_TYPE: Type.UPDATE, Key.REPLICA_ID: 1, Key.LSN: 211, Key.TIMESTAMP: 2.0}
    update = wire.frame(header, {Key.SPACE_ID: USERS, Key.KEY: [5], Key.TUPLE: [["=", "more.a", "a"]]})
    target = pipeline(BEGIN, PLAIN, version=(2, 11))
    counting = Counting(target)
    batches = list(target.feed(frame_decoder().feed(b"".join([*rows(200, 1), update, *rows(200, 1, first=212)])), NOW_US))
    assert (sum(batch.row_count for batch in batches), counting.row_count) == (401, 399)
    assert sum(batch.native_row_count for batch in batches) == 399


def test_where_the_compiled_path_gets_nowhere_it_is_asked_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each transaction would cost a call of it."""
    monkeypatch.setattr("cdc.stream.compiled_stream.HANDED_BACK_MAX", 1024)  # conftest.py has set 1
    header = {Key.REQUEST_TYPE: Type.UPDATE, Key.REPLICA_ID: 1, Key.TIMESTAMP: 2.0}
    body = {Key.SPACE_ID: USERS, Key.KEY: [5], Key.TUPLE: [["=", "more.a", "a"]]}
    data = b"".join(wire.frame({**header, Key.LSN: 11 + place}, body) for place in range(1000))
    target = pipeline(BEGIN, PLAIN, version=(2, 11))
    counting = Counting(target)
    assert sum(batch.row_count for batch in target.feed(frame_decoder().feed(data), NOW_US)) == 1000
    assert (counting.row_count, counting.call_count) == (0, 9)


def test_a_time_when_it_got_nowhere_is_forgotten() -> None:
    header = {Key.REQUEST_TYPE: Type.UPDATE, Key.REPLICA_ID: 1, Key.TIMESTAMP: 2.0}
    body = {Key.SPACE_ID: USERS, Key.KEY: [5], Key.TUPLE: [["=", "more.a", "a"]]}
    parts = [wire.frame({**header, Key.LSN: 11 + place}, body) for place in range(5000)]
    lsn = 5011
    for _ in range(10):
        parts += [*rows(200, 1, first=lsn), wire.frame({**header, Key.LSN: lsn + 200}, body)]
        lsn += 201
    target = pipeline(BEGIN, PLAIN, version=(2, 11))
    counting = Counting(target)
    assert sum(batch.row_count for batch in target.feed(frame_decoder().feed(b"".join(parts)), NOW_US)) == 7010
    assert counting.row_count > 1000, "rows of the usual kind go the Python way"


def test_an_unfinished_transaction_is_kept_and_counted() -> None:
    frames = rows(40, 40)
    target = pipeline(BEGIN, PLAIN, version=(2, 11))
    decoder = frame_decoder()
    assert not list(target.feed(decoder.feed(b"".join(frames[:30])), NOW_US))
    assert target.open_byte_count == sum(map(len, frames[:30]))
    assert not list(target.feed(decoder.feed(b"".join(frames[30:39])), NOW_US))
    assert target.open_byte_count == sum(map(len, frames[:39]))
    (batch,) = target.feed(decoder.feed(frames[39]), NOW_US)
    assert (batch.row_count, target.open_byte_count) == (40, 0)


def test_what_an_unfinished_transaction_has_is_not_read_again_with_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows may come one by one."""
    read: list[int] = []
    joined = CompiledFrames.joined

    def counted(parts: list[CompiledFrames]) -> CompiledFrames:
        read.append(sum(len(part.data) for part in parts))
        return joined(parts)

    monkeypatch.setattr(CompiledFrames, "joined", staticmethod(counted))
    frames = rows(300, 100)
    target = pipeline(BEGIN, PLAIN, version=(2, 11))
    decoder = frame_decoder()
    assert sum(batch.row_count for frame in frames for batch in target.feed(decoder.feed(frame), NOW_US)) == 300
    assert 0 < sum(read) <= sum(map(len, frames))


@pytest.mark.parametrize(
    "then", [rows(1, 1, first=12), rows(2, 2, first=12), rows(2, 2, first=11)[1:], rows(3, 3, first=11)[1:2]]
)
def test_what_comes_behind_an_unfinished_transaction_is_looked_at_at_once(then: list[bytes]) -> None:
    for more in ([], rows(2, 2, first=13)):
        compare(PLAIN, [rows(3, 3)[0], *then, *more])


def test_past_a_bound_an_unfinished_transaction_goes_the_python_way() -> None:
    """To its spool, if it is larger still."""
    frames, spools = rows(400, 200), list[Any]()
    target = pipeline(BEGIN, PLAIN, version=(2, 11), transaction_bytes_max=3000, spools=spools)
    decoder = frame_decoder()
    batches = [batch for frame in frames for batch in target.feed(decoder.feed(frame), NOW_US)]
    assert sum(batch.row_count for batch in batches) == 400
    assert len(spools) == 2
    assert all(spool.is_closed for spool in spools)


def test_numbers_are_written_as_json_encoder_writes_them() -> None:
    rng = random.Random(5)
    values: list[Any] = [struct.unpack(">d", rng.randbytes(8))[0] for _ in range(3000)]
    values += [float(f"{rng.random():.{digits}f}e{exponent}") for digits in (1, 5, 17) for exponent in range(-30, 30)]
    values += [msgpack.unpackb(b"\xca" + rng.randbytes(4)) for _ in range(200)] + [UUID(int=5), Decimal("0.1")]
    stored = spaces([("id", "unsigned"), ("values", "array")], [(0, "unsigned")])
    frame = wire.frame(
        {Key.REQUEST_TYPE: 2, Key.REPLICA_ID: 1, Key.LSN: 12, Key.TIMESTAMP: 2.0},
        {Key.SPACE_ID: USERS, Key.TUPLE: [1, values]},
    )
    compare(stored, [rows(1, 1)[0] + frame])
