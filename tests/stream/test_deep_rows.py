"""Rows that are nested more deeply than libraries and Python's own recursion go: Tarantool takes them up to a tuple's size.

Wherever such a row comes, it either is shown or is refused by one sentence, whatever it is in whichever space; what is around
it isn't touched.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from cdc.errors import EncodingError
from cdc.images.overlay import Images
from cdc.positions.vclock import VClock
from cdc.protocol.codec import tuple_values
from cdc.protocol.constants import Flag, Type
from cdc.schema.keys import space_prefix
from cdc.stream.batches.batch import Batch
from cdc.stream.pipeline import Pipeline
from cdc.stream.snapshots.orders import Execute, Received
from tests.fakes import wire
from tests.fakes.master import Master
from tests.fakes.pipelines import NOW_US, Store, frames_of, pipeline
from tests.fakes.shop import USERS, Sent, read
from tests.fakes.tuples import MemoryTuples

DEPTHS = [100, 200, 500, 700, 990, 1021, 1022, 1023, 1200, 20_000]
USERS_ID, HIDDEN_ID = 512, 513
SYNC = Flag.COMMIT | Flag.WAIT_SYNC | Flag.WAIT_ACK


def deep(depth: int) -> bytes:
    """A value of arrays and maps in turn."""
    return b"\x91\x81\xa1a" * (depth // 2) + b"\x91" * (depth % 2) + b"\x05"


def body(space_id: int, **parts: bytes) -> bytes:
    """Of a row; the parts by name, encoded."""
    keys = {"key": 0x20, "tuple": 0x21, "ops": 0x28, "base": 0x15}
    return wire.pack({0x10: space_id}).replace(b"\x81", bytes([0x81 + len(parts)]), 1) + b"".join(
        bytes([keys[name]]) + value for name, value in parts.items()
    )


def rows(depth: int) -> list[tuple[int, bytes]]:
    """Every kind of row with a deep value, or to a tuple that has one; between them ordinary ones."""
    value = deep(depth)
    set_it = b"\x91\x93\xa1=\x04" + value
    return [
        (Type.INSERT, body(HIDDEN_ID, tuple=b"\x92\x01" + value)),
        (Type.INSERT, body(USERS_ID, tuple=b"\x94\x0a\xa1x\x01" + value)),
        (Type.INSERT, body(USERS_ID, tuple=b"\x92\x0b\xa1y")),
        (Type.UPDATE, body(USERS_ID, key=b"\x91\x0a", tuple=b"\x91\x93\xa1=\x03\x02", base=b"\x01")),
        (Type.UPDATE, body(USERS_ID, key=b"\x91\x0b", tuple=b"\x92\x93\xa1=\x03\x02" + set_it[1:], base=b"\x01")),
        (Type.UPSERT, body(USERS_ID, tuple=b"\x92\x0b\xa1z", ops=set_it, base=b"\x01")),
        (Type.UPSERT, body(USERS_ID, tuple=b"\x94\x0c\xa1z\x01" + value, ops=set_it, base=b"\x01")),
        (Type.REPLACE, body(USERS_ID, tuple=b"\x94\x0a\xa1x\x01" + value)),
        (Type.REPLACE, body(USERS_ID, tuple=b"\x92\x0a\xa1x")),
        (Type.DELETE, body(HIDDEN_ID, key=b"\x91\x01")),
        (Type.DELETE, body(USERS_ID, key=b"\x91\x0b")),
        (Type.REPLACE, body(HIDDEN_ID, tuple=b"\x92\x01" + value)),
        (Type.INSERT, body(USERS_ID, tuple=b"\x92\x0d\xa1w")),
    ]


def packets(bodies: list[tuple[int, bytes]], first: int, *, flags: int | None = None) -> bytes:
    """As single rows; with flags as one transaction that ends with them."""
    found = []
    for number, (kind, content) in enumerate(bodies):
        header = {0: kind, 1: 2, 2: 1, 3: first + number, 4: 1.7e9}
        if flags is not None:
            header[8] = number
            if number == len(bodies) - 1:
                header[9] = flags
        found.append(wire.raw_frame(wire.pack(header) + content))
    return b"".join(found)


class Fed:
    """A pipeline behind a snapshot of two spaces, of which one isn't published."""

    def __init__(self, *, has_images: bool, on_error: str = "dlq", transaction_bytes_max: int = 1 << 20) -> None:
        self.tuples = MemoryTuples()
        self.images = Images(self.tuples, (), (2, 11)) if has_images else None
        self.target: Pipeline = pipeline(
            version=(2, 11),
            images=self.images,
            exclude=["hidden"],
            on_error=on_error,
            transaction_bytes_max=transaction_bytes_max,
        )
        self.store = Store()
        master = Master()
        master.create_space("users", USERS)
        master.create_space("hidden", USERS)
        self.target.begin_snapshot(VClock({1: 100}), NOW_US)
        data = b"".join(wire.frame({0: 2}, row) for row in master.snapshot())
        self.taken(self.target.feed_snapshot(frames_of(data), NOW_US))
        self.taken(self.target.end_snapshot(NOW_US))

    def taken(self, batches: Iterator[Batch] | list[Batch]) -> list[Sent]:
        found: list[Sent] = []
        for batch in batches:
            self.store.take(batch)
            self.tuples.write(batch.changes, ())
            if self.images is not None:
                self.images.written(batch.changes)
            found += map(read, batch.messages)
        return [sent for sent in found if sent.topic in ("shop.users", "shop.dlq")]

    def feed(self, data: bytes) -> list[Sent]:
        return self.taken(self.target.feed(frames_of(data), NOW_US))

    def feed_in_pieces(self, data: bytes, cut: int) -> list[Sent]:
        """The frames that begin before the cut, and then the others."""
        frames = frames_of(data)
        middle = sum(end <= cut for end in frames.ends)
        sent: list[Sent] = []
        for part in (frames.part(0, middle), frames.part(middle, len(frames))):
            sent += self.taken(self.target.feed(part, NOW_US))
        return sent

    def snapshot(self, schema: bytes, bodies: list[tuple[int, bytes]]) -> list[Sent]:
        """Another snapshot, which holds these rows."""
        sent = self.taken([self.target.begin_snapshot(VClock({1: 200}), NOW_US)])
        data = schema + b"".join(wire.raw_frame(wire.pack({0: kind}) + content) for kind, content in bodies)
        sent += self.taken(self.target.feed_snapshot(frames_of(data), NOW_US))
        return sent + self.taken(self.target.end_snapshot(NOW_US))

    def image(self, number: int) -> bytes | None:
        assert self.images is not None
        return self.images.current(space_prefix(USERS_ID) + number.to_bytes(8, "big"))


def check(fed: Fed, sent: list[Sent], bodies: list[tuple[int, bytes]]) -> None:
    """Each row of `users` is an event or a letter that has it byte for byte; what comes last is shown."""
    letters = [one for one in sent if one.topic == "shop.dlq"]
    events = [one for one in sent if one.op is not None]
    wanted = [content for _, content in bodies if content.startswith(b"\x10\xcd\x02\x00", 1)]
    assert {base64.b64decode(letter.value["body"]) for letter in letters} <= set(wanted)
    assert len(events) + len(letters) == len(wanted)
    for letter in letters:
        assert letter.value["space_id"] == USERS_ID
        assert "nested too deeply to be written as JSON" in letter.value["error"]
        assert len(letter.value["error"]) < 2000
    assert {"id": 13} in [event.key for event in events]
    if fed.images is not None:
        value = b"\x94\x0c\xa1z\x01"
        found = fed.image(12)
        assert found is not None
        assert found.startswith(value)
        assert [fed.image(number) for number in (10, 11, 13)] == [b"\x92\x0a\xa1x", None, b"\x92\x0d\xa1w"]


@pytest.mark.parametrize("has_images", [True, False], ids=["images", "none"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_rows_of_the_stream(depth: int, has_images: bool) -> None:
    fed = Fed(has_images=has_images)
    bodies = rows(depth)
    sent = fed.feed(packets(bodies, 101))
    check(fed, sent, bodies)
    assert fed.target.position.vclock == VClock({1: 100 + len(bodies)})
    assert (depth <= 200) == (not [one for one in sent if one.topic == "shop.dlq"])


@pytest.mark.parametrize("has_images", [True, False], ids=["images", "none"])
@pytest.mark.parametrize("depth", [500, 1021, 20_000])
@pytest.mark.parametrize("place", ["memory", "disk", "limbo", "limbo on disk"])
def test_rows_of_one_transaction(depth: int, has_images: bool, place: str) -> None:
    """Also when it waits for its end or for its quorum, and is decoded again behind that."""
    fed = Fed(has_images=has_images, transaction_bytes_max=1024 if "disk" in place else 1 << 30)
    bodies = rows(depth)
    data = packets(bodies, 101, flags=SYNC if "limbo" in place else 1)
    half = len(packets(bodies[:6], 101, flags=None)) + 2 * 6
    sent = fed.feed_in_pieces(data, half)
    last = 100 + len(bodies)
    if "limbo" in place:
        assert sent == []
        sent = fed.feed(wire.frame({0: Type.RAFT_CONFIRM, 1: 2, 2: 1, 3: last + 1, 4: 1.7e9}, {2: 1, 3: last}))
        last += 1
    check(fed, sent, bodies)
    assert fed.target.position.vclock == VClock({1: last})


@pytest.mark.parametrize("depth", [500, 1021, 20_000])
@pytest.mark.parametrize("has_images", [True, False], ids=["images", "none"])
def test_where_the_operator_chose_no_dead_letters(depth: int, has_images: bool) -> None:
    """The rows before it come out, and the error names the row."""
    fed = Fed(has_images=has_images, on_error="fail")
    good = (Type.INSERT, body(USERS_ID, tuple=b"\x92\x0d\xa1w"))
    bodies = [good, *rows(depth)[:2]]
    found = []
    with pytest.raises(
        EncodingError, match=r"nested too deep.*row 1:103 \(INSERT\) of space.*.*body 82 10 cd 02 00 21 94 0a.*dlq"
    ):
        found += fed.feed(packets(bodies, 101))


@pytest.mark.parametrize("depth", [500, 1021, 20_000])
@pytest.mark.parametrize("has_images", [True, False], ids=["images", "none"])
def test_rows_of_a_snapshot(depth: int, has_images: bool) -> None:
    """As they come, as they are compared, and as they are missed."""
    fed = Fed(has_images=has_images)
    value = deep(depth)
    master = Master()
    master.create_space("users", USERS)
    master.create_space("hidden", USERS)
    schema = b"".join(wire.frame({0: 2}, row) for row in master.snapshot())
    first = [
        (Type.INSERT, body(USERS_ID, tuple=b"\x94\x0a\xa1x\x01" + value)),
        (Type.INSERT, body(USERS_ID, tuple=b"\x92\x0d\xa1w")),
        (Type.INSERT, body(USERS_ID, tuple=b"\x94\x0e\xa1v\x01" + value)),
    ]
    hidden = (Type.INSERT, body(HIDDEN_ID, tuple=b"\x92\x01" + value))
    sent = fed.snapshot(schema, [*first, hidden])
    assert [(one.op, one.key) for one in sent if one.op] == [("c" if has_images else "r", {"id": 13})]
    assert [base64.b64decode(one.value["body"]) for one in sent if one.topic == "shop.dlq"] == [first[0][1], first[2][1]]
    if not has_images:
        return
    second = [(Type.INSERT, body(USERS_ID, tuple=b"\x92\x0a\xa1x")), hidden]
    sent = fed.snapshot(schema, second)
    gone = [("d", {"id": 13}), ("d", {"id": 14})]
    assert [(one.op, one.key) for one in sent if one.op] == [("u", {"id": 10}), *gone]
    assert not [one for one in sent if one.topic == "shop.dlq"]
    assert fed.image(10) == b"\x92\x0a\xa1x"
    assert [fed.image(number) for number in (13, 14)] == [None, None]


@pytest.mark.parametrize("depth", [500, 1021, 20_000])
def test_rows_that_are_asked_for_again(depth: int) -> None:
    fed = Fed(has_images=True)
    kept = b"\x94\x0a\xa1x\x01" + deep(depth)
    fed.feed(packets([(Type.INSERT, body(USERS_ID, tuple=kept)), (Type.INSERT, body(USERS_ID, tuple=b"\x92\x0d\xa1w"))], 101))
    asked, _ = fed.target.take_order(Received(Execute("a", ("users",), exact=True)), NOW_US)
    assert asked is not None
    sent = fed.taken([asked])
    while fed.target.position.requests.open:
        sent += fed.taken([fed.target.backfill(NOW_US)[0]])
    letter, event = sent
    assert base64.b64decode(letter.value["body"]) == body(USERS_ID, tuple=kept)
    assert (event.op, event.key) == ("r", {"id": 13})


@pytest.mark.parametrize("depth", DEPTHS)
def test_system_rows(depth: int) -> None:
    """What a format holds beside names and types may be as deep; the checkpoint keeps the rest."""
    fed = Fed(has_images=False)
    field = b"\x83\xa4name\xa2id\xa4type\xa8unsigned\xa4more" + deep(depth)
    row = b"\x97\xcd\x02\x02\x01\xa3new\xa5memtx\x00\x80\x91" + field
    index = wire.pack([514, 0, "pk", "tree", {"unique": True}, [{"field": 0, "type": "unsigned"}]])
    bodies = [
        (Type.INSERT, body(280, tuple=row)),
        (Type.INSERT, body(288, tuple=index)),
        (Type.INSERT, body(514, tuple=b"\x91\x07")),
        (Type.UPDATE, body(280, key=b"\x91\xcd\x02\x02", tuple=b"\x91\x93\xa1=\x02\xa5newer", base=b"\x00")),
        (Type.INSERT, body(514, tuple=b"\x91\x08")),
    ]
    fed.feed(packets(bodies[:3], 101))
    again = pipeline(fed.store.position, fed.store.spaces.values(), version=(2, 11))
    sent = [read(message) for batch in again.feed(frames_of(packets(bodies[3:], 104)), NOW_US) for message in batch.messages]
    assert [(one.topic, one.key) for one in sent if one.op] == [("shop.newer", {"id": 8})]


def test_a_key_inside_of_a_deep_document() -> None:
    """The key's own path isn't deep."""
    value = tuple_values(b"\x92\x01\x82\xa1k\x07\xa1d" + deep(20_000))[1]
    assert value["k"] == 7
