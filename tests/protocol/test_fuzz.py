"""Hostile servers: captured streams with bytes changed, lost and added, and frames of nonsense.

Nothing but CdcError may leave the session or the pipeline behind it, whatever arrives, and no buffer may grow past its bound.
Tried are the forms that the decoder checks last: rows whose every field, key and length can be wrong.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import CdcError
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.protocol.constants import Type
from cdc.protocol.session import Heartbeat, Registered, Selected, Session, StreamRows
from cdc.protocol.states import State
from cdc.stream.pipeline import Pipeline
from tests.fakes import captures, wire
from tests.fakes.captures import VERSIONS
from tests.fakes.master import Master
from tests.fakes.pipelines import NOW_US, Store, frames_of, pipeline, take
from tests.fakes.profiles import SOME, examples
from tests.fakes.replica import Replica

LIMIT: Final = 1024 * 1024


def said(error: CdcError) -> None:
    """An error of ours has a sentence."""
    assert str(error)


SEEDS = st.integers(0, 2**32 - 1)


@functools.cache
def recorded(version: str) -> tuple[bytes, bytes, bytes]:
    """Greeting and answers of a snapshot, then the stream up to the large tuples."""
    snapshot, stream = captures.load(version, "fetch_snapshot"), captures.load(version, "subscribe")
    auth, contents = snapshot.exchanges()
    rows = stream.stream("txn-big") + stream.stream("big-tuple")[len(stream.stream("local-space")) :]
    return auth.answer, contents.answer, rows


@functools.cache
def recorded_member(version: str) -> tuple[bytes, bytes, bytes]:
    """The same of a registered replica: JOIN, then its stream."""
    auth, contents = captures.load(version, "join").exchanges()
    return auth.answer, contents.answer, captures.load(version, "subscribe_registered").stream()


def mutated(data: bytes, rng: random.Random, count: int) -> bytes:
    """Some bytes changed, lost, added or doubled; often in a place that the lengths still fit."""
    changed = bytearray(data)
    for _ in range(count):
        place = rng.randrange(len(changed) + 1)
        if place == len(changed):
            changed.append(rng.randrange(256))
            continue
        match rng.randrange(6):
            case 0 | 1 | 2:
                changed[place] = rng.randrange(256)
            case 3:
                changed[place] ^= 1 << rng.randrange(8)
            case 4:
                del changed[place : place + rng.randint(1, 9)]
            case _:
                changed[place:place] = rng.randbytes(rng.randint(1, 9))
    return bytes(changed)


def hostile(version: str, rng: random.Random, change: Callable[[bytes], bytes], at: int, *, is_member: bool = False) -> None:
    """A connection whose answer number `at` is changed; returns if all is well or a CdcError says that it isn't."""
    capture = captures.load(version, "join" if is_member else "fetch_snapshot")
    answers = [capture.greeting, *(recorded_member(version) if is_member else recorded(version))]
    answers[at] = change(answers[at])
    session, target = Session(captures.SERVER, frame_bytes_max=LIMIT), pipeline(on_error=rng.choice(["fail", "dlq"]))
    requests: list[Callable[[], None]] = [
        lambda: session.authenticate("cdc", "s3cret"),
        session.join if is_member else session.fetch_snapshot,
        lambda: session.subscribe(captures.REPLICASET, VClock({1: 145}), is_anonymous=not is_member),
    ]
    try:
        for answer, request in zip(answers, [*requests, None], strict=True):
            cut = captures.pieces(rng.choice([1, 50, 5000]) for _ in range(200))
            for piece in cut(answer):
                for _ in take(target, session.receive_data(piece)):
                    pass
                assert session._decoder.buffered_bytes <= LIMIT + 5
            if request is not None:
                try:
                    request()
                except RuntimeError:
                    return  # the changed answer has ended in the middle: the follower would wait for the rest
    except CdcError as error:
        said(error)


@examples(60)
@pytest.mark.parametrize("version", VERSIONS)
@given(seed=SEEDS)
def test_changed_bytes(version: str, seed: int) -> None:
    rng = random.Random(seed)
    hostile(version, rng, lambda data: mutated(data, rng, rng.choice([1, 1, 2, 5, 40])), rng.choice([0, 1, 2, 2, 3, 3, 3]))


@examples(60)
@pytest.mark.parametrize("version", VERSIONS)
@given(seed=SEEDS)
def test_changed_bytes_of_a_registered_replica(version: str, seed: int) -> None:
    rng = random.Random(seed)
    at = rng.choice([2, 2, 2, 3, 3])
    hostile(version, rng, lambda data: mutated(data, rng, rng.choice([1, 1, 2, 5, 40])), at, is_member=True)


@examples(60)
@pytest.mark.parametrize("request_", [Type.REGISTER, Type.SELECT, Type.DELETE])
@given(seed=SEEDS)
def test_changed_answers(request_: int, seed: int) -> None:
    """REGISTER, as 2.6 answered it, and what asks for our id."""
    rng = random.Random(seed)
    session = Session(captures.SERVER, frame_bytes_max=LIMIT)
    session.receive_data(captures.load("2.6", "register").greeting)
    answer = wire.frame({0: 0, 1: 1, 5: 90}, {0x30: [[2, str(captures.SERVER)]]})
    match request_:
        case Type.REGISTER:
            session.register(VClock({1: 150}))
            answer = captures.load("2.6", "register").stream()
        case Type.SELECT:
            session.select(320, 1, [str(captures.SERVER)])
        case _:
            session.delete(320, 0, [2])
    try:
        for piece in captures.pieces(rng.choice([1, 5, 50]) for _ in range(200))(mutated(answer, rng, rng.choice([1, 1, 2, 5]))):
            for event in session.receive_data(piece):
                assert isinstance(event, StreamRows | Registered | Selected | Heartbeat)
    except CdcError as error:
        said(error)
    assert session.state in (State.REGISTERING, State.SELECTING, State.DELETING, State.READY, State.CLOSED)


@examples(60)
@pytest.mark.parametrize("version", VERSIONS)
@given(seed=SEEDS)
def test_raft_rows_anywhere_in_the_stream(version: str, seed: int) -> None:
    """Wherever they come, the rows are the same and in the same order, and the term is the highest."""
    rng = random.Random(seed)
    rows = [packet.data for packet in captures.packets(captures.load(version, "subscribe").stream("types"))[1:]]
    terms = [rng.randrange(1, 1000) for _ in range(rng.randrange(1, 8))]
    mixed = list(rows)
    for term in terms:
        mixed.insert(rng.randrange(len(mixed) + 1), wire.frame({0: Type.RAFT, 7: 1}, {0: term, 2: 1, 3: {1: 5}}))
    found = []
    for data in (b"".join(rows), b"".join(mixed)):
        session = streaming()
        cut = captures.pieces(rng.choice([1, 50, 5000]) for _ in range(200))
        events = [event for piece in cut(data) for event in session.receive_data(piece)]
        found.append(b"".join(event.frames.data for event in events if isinstance(event, StreamRows)))
    assert found[0] == found[1] != b""
    assert session.term == max(terms)


@SOME
@pytest.mark.parametrize("version", VERSIONS)
@given(seed=SEEDS)
def test_random_bytes_at_the_end(version: str, seed: int) -> None:
    rng = random.Random(seed)
    hostile(version, rng, lambda data: data + rng.randbytes(rng.randint(1, 200)), rng.randrange(4))


# Rows in which any value may stand in any place.

ODD: Final[list[Any]] = [
    None,
    True,
    0,
    1,
    -1,
    31,
    32,
    512,
    513,
    2**63,
    2**64 - 1,
    -(2**63),
    0.0,
    -1.5,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "x",
    "name",
    "\udcff",
    b"",
    b"\xff",
    [],
    [1],
    [1, 2, 3],
    [[]],
    [1, "x", "y", 1.5],
    {},
    {1: 2},
    {"a": [1]},
    {"name": "x", "type": "unsigned"},
    [["=", 1, 2]],
    [["=", "name", 2], ["+", 2, 1], ["#", 2, 1], [":", 2, 1, 1, "x"], ["!", -1, None]],
    [["=", "[1", 2]],
    [[":", 1]],
    [280, 1, "name", "memtx", 0, {}, [{"name": "id", "type": "unsigned"}]],
    [513, 1, "\udcff", "memtx", 0, {}, []],
    [513, 1, 5, "memtx", 0, {}, []],
    [513, 1, "users", "memtx", 0, {"is_sync": 1, "group_id": []}, [{"name": "\udcff"}]],
    [513, 1, "users", "memtx", 0, [], [{"name": "id", "type": "\udcff"}]],
    [513, 1, "users", "memtx", 0, {}, ["id", ["b", "string"], {"name": "id"}]],
    ["513", 1, "users", "memtx", 0, {}, []],
    [[513], 1, "users", "memtx", 0, {}, []],
    [513, 0, "pk", "tree", {}, [{"field": 0, "type": "unsigned", "path": 5}]],
    [513, 0, "pk", "tree", {}, [{"field": 0, "type": "unsigned", "path": "[*].a"}]],
    [513, 0, "pk", "tree", {}, [{"field": -1, "type": "unsigned", "path": "\udcff"}]],
    [513, 0, "pk", "tree", {}, [[2**63, "unsigned"], [0, "\udcff"]]],
    [513, 0, "pk", "tree", {}, []],
    ["replicaset_uuid", "x"],
    ["replicaset_uuid", 5],
    ["cluster", None],
]


def odd(rng: random.Random) -> Any:
    return rng.choice(ODD)


def odd_row(rng: random.Random, lsn: int) -> bytes:
    """A row that is right but for some of its fields."""
    space = rng.choice([280, 280, 288, 288, 330, 272, 513, 513, 513, 514, 999])
    kind = rng.choice([2, 3, 4, 5, 9, 12, 30, 31, 40, 41])
    header: dict[Any, Any] = {0: kind, 1: 2, 2: 1, 3: lsn, 4: 1_700_000_000.5}
    body: dict[Any, Any] = {0x10: space, 0x20: [513, 0][: 1 + (space == 288)], 0x21: [513, 0, "x", "y"], 0x28: [], 0x15: 1}
    if kind in (2, 3) and space in (280, 288):
        body[0x21] = rng.choice([item for item in ODD if isinstance(item, list) and len(item) > 4])
    if kind == 4:
        body[0x21] = [["=", rng.choice([1, 2, 3, 6, 7, "name"]), odd(rng)]]
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        part = rng.choice([header, header, body, body, body])
        place = rng.choice(list(part))
        if rng.random() < 0.2:
            del part[place]
        else:
            part[place] = odd(rng)
    if rng.random() < 0.3:
        header |= {8: rng.choice([0, 0, 1, odd(rng)]), 9: rng.choice([1, 1, 7, odd(rng)])}
    return wire.frame(header, body)


@functools.cache
def known_schema() -> Store:
    master = Master("2.11")
    fields = [{"name": "id", "type": "unsigned"}, {"name": "name", "type": "string"}]
    assert master.create_space("marker", fields) == 512
    master.create_space("users", [*fields, {"name": "m", "type": "any"}])
    master.create_space("data", [], [{"field": 0, "type": "unsigned", "path": "a"}])
    replica = Replica(master)
    replica.connect()
    stored = replica.topics.checkpoint()
    return Store(stored.position, stored.spaces)


def streaming() -> Session:
    """A session that follows a stream already."""
    session = Session(captures.SERVER)
    session._state = State.STREAMING
    return session


def fed(target: Pipeline, data: bytes) -> None:
    """Hand rows over as the follower does."""
    try:
        for batch in take(target, streaming().receive_data(data)):
            for _, key, value in (message for message in batch.messages if isinstance(message, tuple)):
                assert key is None or isinstance(key, bytes)
                assert value is None or isinstance(value, bytes)
    except CdcError as error:
        said(error)


@examples(600)
@given(seed=SEEDS)
def test_odd_rows_of_the_stream(seed: int) -> None:
    rng = random.Random(seed)
    store = known_schema()
    position = store.position
    target = pipeline(
        position,
        store.spaces.values(),
        on_error=rng.choice(["fail", "dlq"]),
        transaction_topic=rng.choice(["none", "multi", "all"]),
        include=rng.choice([[".*"], ["_.*", ".*"], ["users"]]),
    )
    first = position.vclock[1] + 1
    rows = b"".join(odd_row(rng, lsn) for lsn in range(first, first + rng.randint(1, 5)))
    fed(target, rows)


@examples(300)
@given(seed=SEEDS)
def test_odd_rows_of_a_snapshot(seed: int) -> None:
    rng = random.Random(seed)
    target = pipeline(Position(), include=rng.choice([[".*"], ["_.*", ".*"]]), on_error=rng.choice(["fail", "dlq"]))
    target.begin_snapshot(VClock({1: 5}), NOW_US)
    good = [wire.frame({0: 2}, body) for body in Master("3.3").snapshot()]
    wrong = [odd_row(rng, lsn) for lsn in range(1, 4)]
    rows = good + wrong if rng.random() < 0.5 else wrong + good
    try:
        list(target.feed_snapshot(frames_of(b"".join(rows)), NOW_US))
        list(target.end_snapshot(NOW_US))
    except CdcError as error:
        said(error)


@SOME
@given(depth=st.integers(1, 1020), kind=st.sampled_from([2, 3, 4, 9]), space=st.sampled_from([513, 280]))
def test_deep_values(depth: int, kind: int, space: int) -> None:
    """Deeper than Python's own recursion goes."""
    deep = b"\x91" * depth + b"\xc0"
    store = known_schema()
    lsn = store.position.vclock[1] + 1
    content = b"\x97\xcd\x02\x01\x01\xa5users\xa5memtx\x00\x81\xa1x" + deep + b"\x90" if space == 280 else b"\x93\x01\xa1x" + deep
    if kind == 4:
        content = b"\x91\x93\xa1=" + (b"\x06" if space == 280 else b"\x03") + deep
    body = b"\x85" + wire.pack(0x10) + wire.pack(space) + b"\x20\x91\xcd\x02\x01\x15\x01\x28\x91\x93\xa1=\x03\xc0\x21" + content
    data = wire.raw_frame(wire.pack({0: kind, 2: 1, 3: lsn, 4: 1.7e9}) + body)
    for on_error in ("fail", "dlq"):
        fed(pipeline(store.position, store.spaces.values(), on_error=on_error), data)
