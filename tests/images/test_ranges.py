"""DELETE_RANGE: one row of the log deletes many, and each has its event."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.config.columns import ColumnsRule
from cdc.config.routing import RoutingRuleSection
from cdc.errors import EncodingError, ProtocolError, SchemaError, UnsupportedRowError
from cdc.formats.options import FormatOptions
from cdc.images.overlay import Images
from cdc.images.ranges import KeyRange
from cdc.positions.vclock import VClock
from cdc.protocol.codec import body_values, tuple_values
from cdc.protocol.constants import Key, Type
from cdc.protocol.extensions import Datetime, pack
from cdc.protocol.session import StreamRows
from cdc.schema.forms import Field, KeyPart, SpaceForm
from cdc.schema.keys import KEY_BYTES_MAX
from cdc.stream.batches.batch import Broadcast
from tests.fakes import wire
from tests.fakes.master import INDEX, SPACE, Master
from tests.fakes.pipelines import NOW_US, frames_of, messages, pipeline
from tests.fakes.profiles import FEW, MANY
from tests.fakes.replica import Replica
from tests.fakes.shop import USERS, Sent, Shop, read
from tests.fakes.tuples import MemoryTuples
from tests.fakes.workload import Workload
from tests.formats.oracles import Ids

BYTES_OF_EVENT = 600


def shop(count: int = 6, **options: Any) -> Shop:
    """Of so many users, with images; all of them are published."""
    target = Shop(images=True, **options)
    target.master.begin()
    for number in range(3, count + 1):
        target.master.insert("users", number, f"user {number}", number * 10)
    target.master.commit()
    target.follow()
    target.replica.flush()
    return target


def ids(events: Sequence[Sent]) -> list[tuple[str | None, Any]]:
    return [(event.op, event.key["id"]) for event in events]


# The events.


@pytest.mark.parametrize("tombstones", [True, False])
def test_each_deleted_row_has_an_event_with_its_image(tombstones: bool) -> None:
    target = shop(tombstones=tombstones, transaction_topic="all")
    target.master.delete_range("users", [2], [5])
    found = [sent for sent in target.follow() if sent.topic == "shop.users"]
    events = [sent for sent in found if sent.op is not None]
    assert [(sent.op, sent.key["id"], sent.value["before"], sent.value["after"]) for sent in events] == [
        ("d", 2, {"id": 2, "name": "two", "balance": 20}, None),
        ("d", 3, {"id": 3, "name": "user 3", "balance": 30}, None),
        ("d", 4, {"id": 4, "name": "user 4", "balance": 40}, None),
    ]
    assert len(found) == (6 if tombstones else 3)
    lsn = target.master.vclock[1]
    assert {(sent.source["lsn"], sent.source["tsn"], sent.source["row"]) for sent in events} == {(lsn, lsn, 0)}
    seqs = [sent.source["seq"] for sent in events]
    assert seqs == list(range(seqs[0], seqs[0] + 3))
    orders = [(sent.value["transaction"]["total_order"], sent.value["transaction"]["data_collection_order"]) for sent in events]
    assert orders == [(1, 1), (2, 2), (3, 3)]


def test_begin_and_end_records_count_them() -> None:
    target = shop(transaction_topic="all")
    target.master.delete_range("users", [2], [5])
    *_, end = [sent for sent in target.follow() if sent.topic == "shop.transaction"]
    assert end.value["event_count"] == 3
    assert end.value["data_collections"] == [{"data_collection": "users", "event_count": 3}]


@pytest.mark.parametrize(
    ("begin", "end", "gone"),
    [
        ([], [], [1, 2, 3, 4, 5, 6]),
        ([], [3], [1, 2]),
        ([5], [], [5, 6]),
        ([3], [4], [3]),
        ([0], [1], []),
        ([7], [], []),
        ([6], [10**12], [6]),
    ],
)
def test_limits(begin: list[Any], end: list[Any], gone: list[int]) -> None:
    target = shop()
    target.master.delete_range("users", begin, end)
    assert ids(target.events()) == [("d", number) for number in gone]
    assert target.replica.pipeline.position.vclock == VClock(target.master.vclock)


@pytest.mark.parametrize("memory", [200, 10**9])
@pytest.mark.parametrize("batch", [1, 10**6])
def test_within_a_transaction_it_sees_what_came_before(memory: int, batch: int) -> None:
    target = shop(transaction_bytes_max=memory, batch_bytes_max=batch)
    master = target.master
    master.begin()
    master.insert("users", 7, "seven")
    master.delete("users", 2)
    master.delete_range("users", [1], [4])
    master.insert("users", 1, "again")
    master.delete_range("users", [1], [2])
    master.delete_range("users", [7])
    master.commit()
    master.insert("users", 2, "later")
    events = target.events()
    assert ids(events) == [("c", 7), ("d", 2), ("d", 1), ("d", 3), ("c", 1), ("d", 1), ("d", 7), ("c", 2)]
    assert [event.source["row"] for event in events] == [0, 1, 2, 2, 3, 4, 5, 0]
    assert [event.value["transaction"]["total_order"] for event in events] == [1, 2, 3, 4, 5, 6, 7, 1]


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_in_a_synchronous_transaction_it_waits_for_its_quorum(is_confirmed: bool) -> None:
    target = shop()
    master = target.master
    lsn = master.vclock[1] + 1
    master.begin()
    master.delete_range("users", [1], [3])
    master.commit(is_sync=True)
    assert target.events() == []
    if is_confirmed:
        master.synchro(Type.RAFT_CONFIRM, 1, lsn)
        assert ids(target.events()) == [("d", 1), ("d", 2)]
    else:
        master.synchro(Type.RAFT_ROLLBACK, 1, lsn)
        assert target.events() == []
        master.delete("users", 1)
        assert [event.value["before"]["name"] for event in target.events()] == ["one"]


def test_in_a_synchronous_space_before_there_were_flags() -> None:
    master = Master("2.6")
    master.create_space("users", USERS, flags={"is_sync": True})
    replica = Replica(master, images=True)
    replica.connect()
    master.insert("users", 1, "one")
    master.synchro(Type.RAFT_CONFIRM, 1, master.vclock[1])
    master.delete_range("users")
    replica.relay.relay()
    replica.receive()
    replica.commit()
    assert [sent.op for sent in map(read, replica.news()) if sent.op] == ["c"]
    master.synchro(Type.RAFT_CONFIRM, 1, master.vclock[1])
    replica.relay.relay()
    replica.receive()
    replica.commit()
    assert [sent.op for sent in map(read, replica.news()) if sent.op] == ["d"]


@pytest.mark.parametrize("images", [True, False])
def test_a_space_that_is_not_followed_moves_the_position_alone(images: bool) -> None:
    target = Shop(images=images, exclude=["hidden"])
    target.master.create_space("hidden")
    target.master.insert("hidden", 1)
    target.master.delete_range("hidden", [1])
    target.master.delete_range("hidden", [2], [3])
    assert target.events() == []
    assert target.replica.pipeline.position.vclock == VClock(target.master.vclock)


def test_keys_of_several_parts() -> None:
    master = Master()
    master.create_space("lines", ["order", "name", "n"], [(0, "unsigned"), (1, "string")])
    for order, name in [(7, "a"), (7, "b"), (7, "c"), (8, "a"), (9, "a")]:
        master.insert("lines", order, name)
    replica = Replica(master, images=True)
    replica.connect()
    replica.news()
    steps: list[tuple[list[Any], list[Any], list[Any]]] = [
        ([7, "b"], [8], [(7, "b"), (7, "c")]),
        ([8], [9, "a"], [(8, "a")]),
        ([], [7, "b"], [(7, "a")]),
        ([9], [9, "b"], [(9, "a")]),
    ]
    for begin, end, gone in steps:
        master.delete_range("lines", begin, end)
        replica.relay.relay()
        replica.receive()
        replica.commit()
        keys = [tuple(sent.key.values()) for sent in map(read, replica.news()) if sent.op == "d"]
        assert keys == gone


def test_rules_for_rows_choose_among_them() -> None:
    target = shop(routing_rules=[RoutingRuleSection(spaces=".*", where="row.balance > 35")])
    target.master.delete_range("users", [2], [6])
    assert ids(target.events()) == [("d", 4), ("d", 5)]


def test_masked_columns_stay_masked() -> None:
    target = shop(column_rules=[ColumnsRule(spaces=".*", exclude=["name"])])
    target.master.delete_range("users", [2], [4])
    assert [event.value["before"] for event in target.events()] == [{"id": 2, "balance": 20}, {"id": 3, "balance": 30}]


def test_in_avro() -> None:
    master = Master()
    master.create_space("users", USERS)
    for number in range(1, 5):
        master.insert("users", number, "x", 1)
    replica = Replica(master, images=True, formats=FormatOptions("avro", "avro", schema_ids=Ids()))
    replica.connect()
    replica.news()
    master.delete_range("users", [1], [3])
    replica.relay.relay()
    replica.receive()
    replica.commit()
    found = [message for message in replica.news() if not isinstance(message, Broadcast) and message[0] == "shop.users"]
    assert [message[2] is None for message in found] == [False, True, False, True]


def test_a_row_longer_than_the_schema_has_fields() -> None:
    """The encoder is replaced in the middle of the range: a new start knows nothing of the longer rows."""
    master = Master()
    master.create_space("users", USERS)
    for number in range(1, 6):
        master.insert("users", number, "x", 1, *["more"] * (number % 3))
    replica = Replica(master, images=True, formats=FormatOptions("json_schema", "json_schema"), batch_bytes_max=1)
    replica.connect()
    replica.flush()
    replica.crash()
    replica.connect()
    replica.news()
    master.delete_range("users")
    replica.relay.relay()
    replica.receive()
    replica.commit()
    found = [message for message in replica.news() if not isinstance(message, Broadcast) and message[0] == "shop.users"]
    events = [json.loads(value)["payload"] for _, _, value in found if value is not None]
    assert [(event["op"], event["before"]["id"]) for event in events] == [("d", number) for number in range(1, 6)]
    assert "field_5" in events[-1]["before"]


# Many.


def test_many_rows_come_in_batches_that_are_not_larger_than_others() -> None:
    count, size = 3_000, 20_000
    target = shop(count, batch_bytes_max=size)
    target.master.delete_range("users")
    target.replica.relay.relay()
    target.replica.receive()
    batches = target.replica.unsettled
    assert all(batch.byte_count <= size + BYTES_OF_EVENT for batch in batches)
    assert len(batches) > count * 200 // size
    assert [batch.is_boundary for batch in batches] == [False] * (len(batches) - 1) + [True]
    assert sum(batch.event_count for batch in batches) == count
    assert ids([sent for sent in map(read, messages(batches)) if sent.op]) == [("d", number) for number in range(1, count + 1)]


def test_rows_are_read_as_their_events_are_taken() -> None:
    """However many there are, only a batch of them is in memory as events."""
    target = shop(500, batch_bytes_max=2_000)
    images = target.replica.pipeline.images
    assert images is not None
    target.master.delete_range("users")
    target.replica.relay.relay()
    data = target.replica.relay.data_to_send()
    (rows,) = target.replica.session.receive_data(data)
    assert isinstance(rows, StreamRows)
    before = images.change_count
    batches = target.replica.pipeline.feed(rows.frames, 1)
    next(batches)
    assert images.change_count - before < 20


@pytest.mark.parametrize("size", [1, 900, 10**6])
@pytest.mark.parametrize("is_in_transaction", [True, False])
def test_after_a_crash_in_the_middle_the_same_events_come_again(size: int, is_in_transaction: bool) -> None:
    def deleted(target: Shop) -> None:
        if is_in_transaction:
            target.master.begin()
            target.master.insert("users", 100, "a hundred")
        target.master.delete_range("users", [3], [40])
        if is_in_transaction:
            target.master.delete("users", 100)
            target.master.commit()

    steady, target = shop(50), shop(50, batch_bytes_max=size)
    deleted(steady)
    deleted(target)
    target.replica.relay.relay()
    target.replica.receive()
    assert size > 900 or len(target.replica.unsettled) > 1
    target.replica.crash()  # nothing of it is committed: a commit inside of it is an error of the fake
    target.replica.connect()
    assert target.events() == steady.events()


def test_rows_behind_the_published_position_change_the_images_alone() -> None:
    target = shop(50, batch_bytes_max=900)
    target.master.delete_range("users", [1], [40])
    assert len(target.events()) == 39
    target.replica.crash()  # the store doesn't have it
    target.replica.connect()
    assert target.replica.pipeline.is_catching_up
    target.master.delete_range("users", [], [45])
    assert ids(target.events()) == [("d", number) for number in range(40, 45)]


@FEW
@given(seed=st.integers(0, 2**32 - 1))
def test_a_life_with_crashes_publishes_what_an_undisturbed_one_does(seed: int) -> None:
    rng = random.Random(seed)
    master = Master(rng.choice(["2.11", "3.3"]))
    work = Workload(master, rng, ranges=True)
    work.run(15)
    options: dict[str, Any] = {"transaction_bytes_max": rng.choice([200, 10**9]), "batch_bytes_max": rng.choice([1, 1500, 10**6])}
    replica = Replica(master, images=True, on_error="dlq", on_image_error="dlq", **options)
    steady = Replica(master, images=True, on_error="dlq", on_image_error="dlq")
    for each in (steady, replica):
        each.connect()
        each.commit()
        each.flush()
    for _ in range(12):
        work.run(rng.randint(1, 5))
        replica.relay.relay(rng.choice([1, 3, None]))
        replica.receive()
        if rng.random() < 0.5:
            replica.commit(rng.choice([1, 2, None]))
        if rng.random() < 0.3:
            replica.flush()
        if rng.random() < 0.3:
            replica.crash()
            replica.connect()
    for each in (replica, steady):
        each.relay.relay()
        each.relay.heartbeat()
        each.receive()
        each.commit()
        each.flush()
    assert replica.topics.committed == steady.topics.committed
    assert replica.tuples is not None
    assert steady.tuples is not None
    assert replica.tuples.rows == steady.tuples.rows


# What can't be published.


@pytest.mark.parametrize("options", [{}, {"has_source_images": True}], ids=["none", "source"])
def test_without_images_it_stops_by_name(options: dict[str, Any]) -> None:
    target = Shop(**options)
    target.master.delete_range("users", [1])
    with pytest.raises(EncodingError, match=r"DELETE_RANGE of space 'users'.*nobody knows.*row 1:\d+ \(DELETE_RANGE\).*always"):
        target.events()


def test_a_key_with_a_collation_has_no_images() -> None:
    master = Master()
    master.create_space("words", ["word"], [{"field": 0, "type": "string", "collation": 2}])
    master.insert("words", "a")
    replica = Replica(master, images=True)
    replica.connect()
    master.delete_range("words", ["a"])
    replica.relay.relay()
    with pytest.raises(EncodingError, match="DELETE_RANGE of space 'words'"):
        replica.receive()


def test_without_images_the_dead_letter_topic_may_have_it() -> None:
    target = Shop(on_error="dlq")
    target.master.delete_range("users", [1], [2])
    target.master.insert("users", 3)
    letter, event = target.follow()
    assert (letter.topic, letter.value["type"], event.op) == ("shop.dlq", "DELETE_RANGE", "c")


def test_the_snapshot_that_the_error_asks_for_leaves_it_behind() -> None:
    target = Shop()
    target.master.delete_range("users", [1], [2])
    with pytest.raises(EncodingError):
        target.events()
    target.replica.crash()
    target.replica.forced_snapshot = "the operator wants it"
    target.replica.connect()
    assert ids([sent for sent in target.news() if sent.op]) == [("r", 2)]
    target.master.insert("users", 3)
    assert ids(target.events()) == [("c", 3)]


@pytest.mark.parametrize("where", [None, [RoutingRuleSection(spaces=".*", where="row.id > 0")]])
@pytest.mark.parametrize("images", [True, False])
@pytest.mark.parametrize("on_error", ["fail", "dlq"])
def test_arrow_stops_with_the_spaces_name(where: Any, images: bool, on_error: str) -> None:
    target = Shop(images=images, on_error=on_error, **({"routing_rules": where} if where else {}))
    target.master._write(Type.INSERT_ARROW, {Key.SPACE_ID: 512, Key.ARROW: b"columns"})
    with pytest.raises(UnsupportedRowError, match=r"INSERT_ARROW into space 'users'.*row 1:\d+ \(INSERT_ARROW\).*spaces.exclude"):
        target.events()


def test_arrow_in_a_space_that_is_not_followed_is_passed_over() -> None:
    target = Shop(images=True, exclude=["columns"])
    number = target.master.create_space("columns")
    target.master._write(Type.INSERT_ARROW, {Key.SPACE_ID: number, Key.ARROW: b"columns"})
    target.master.insert("users", 3)
    assert ids(target.events()) == [("c", 3)]


@pytest.mark.parametrize("exclude", [[], ["columns"]])
@pytest.mark.parametrize("place", [0, 1], ids=["first", "after others"])
@pytest.mark.parametrize("images", [True, False])
def test_arrow_in_a_snapshot(exclude: list[str], place: int, images: bool) -> None:
    """It stops with the space's name, or is passed over where the space isn't followed."""
    master = Master()
    number = master.create_space("columns", space_id=600)
    if place:
        master.insert("columns", 1)
    rows = [wire.frame({Key.REQUEST_TYPE: Type.INSERT}, body) for body in master.snapshot()]
    rows.append(wire.frame({Key.REQUEST_TYPE: Type.INSERT_ARROW}, {Key.SPACE_ID: number, Key.ARROW: b"columns"}))
    target = pipeline(images=Images(MemoryTuples()) if images else None, exclude=exclude)
    target.begin_snapshot(VClock(master.vclock), NOW_US)
    feed = target.feed_snapshot(frames_of(b"".join(rows)), NOW_US)
    if exclude:
        list(feed)
        return
    with pytest.raises(UnsupportedRowError, match=r"INSERT_ARROW into space 'columns'.*spaces.exclude"):
        list(feed)


@pytest.mark.parametrize("body", [{}, {Key.BEGIN_KEY: [1]}, {Key.BEGIN_KEY: 1, Key.END_KEY: [2]}])
def test_a_malformed_one_is_refused(body: dict[int, Any]) -> None:
    target = Shop(images=True)
    target.master._write(Type.DELETE_RANGE, {Key.SPACE_ID: 512, **body})
    with pytest.raises(ProtocolError, match=r"row 1:\d+ \(DELETE_RANGE\) has a malformed body"):
        target.events()


@pytest.mark.parametrize("begin", [[1, 2], ["one"]])
def test_keys_that_the_space_can_not_have_are_refused(begin: list[Any]) -> None:
    target = Shop(images=True)
    target.master._write(Type.DELETE_RANGE, {Key.SPACE_ID: 512, Key.BEGIN_KEY: begin, Key.END_KEY: []})
    with pytest.raises(SchemaError, match="space 'users'"):
        target.events()


def test_a_hash_has_no_ranges() -> None:
    master = Master()
    master.create_space("numbers", ["n"], [(0, "number")], index="hash")
    replica = Replica(master, images=True)
    replica.connect()
    master._write(Type.DELETE_RANGE, {Key.SPACE_ID: master.id_of("numbers"), Key.BEGIN_KEY: [1], Key.END_KEY: []})
    replica.relay.relay()
    with pytest.raises(SchemaError, match="'numbers', whose primary key is a HASH index"):
        replica.receive()


@pytest.mark.parametrize("space_id", [SPACE, INDEX])
def test_the_schema_has_no_ranges(space_id: int) -> None:
    target = Shop(images=True)
    target.master._write(Type.DELETE_RANGE, {Key.SPACE_ID: space_id, Key.BEGIN_KEY: [512], Key.END_KEY: []})
    with pytest.raises(SchemaError, match="a row of type 18 in a system space"):
        target.events()


# Which keys are in the range.

LONG = "k" * 600
VALUES: dict[str, list[Any]] = {
    "unsigned": [0, 1, 255, 256, 2**64 - 1],
    "integer": [-(2**63), -1, 0, 1, 2**63],
    "string": ["", "\0", "\0\0", "a", "a\0", "ab", LONG, LONG + "a", LONG + "b", LONG[:500] + "z"],
    "varbinary": [b"", b"\0", b"a", b"\xff", b"\xff\xff"],
    "boolean": [False, True],
    "uuid": [UUID(int=1), UUID(int=1 << 64), UUID(int=1 << 127)],
    "number": [-(2**63), -1.5, Decimal("-0.1"), 0, 0.5, Decimal("0.75"), 2**53, 2**53 + 1, 1e300],
    "datetime": [Datetime(-5), Datetime(0), Datetime(0, 1), Datetime(5)],
}


def ordered(value: Any) -> Any:
    """Something that Python compares as the server compares the value."""
    if isinstance(value, Datetime):
        return value.seconds, value.nanosecond
    return value.encode() if isinstance(value, str) else value


@MANY
@given(
    kinds=st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3),
    descending=st.lists(st.booleans(), min_size=3, max_size=3),
    lengths=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    is_pending=st.booleans(),
    rng=st.randoms(use_true_random=False),
)
def test_the_rows_are_those_that_the_server_deletes(
    kinds: list[str], descending: list[bool], lengths: tuple[int, int], is_pending: bool, rng: random.Random
) -> None:
    """Compared part by part, with Python's own comparisons of the values."""
    parts = tuple(
        KeyPart(len(kinds) - place, "", kind, 0, False, desc)
        for place, (kind, desc) in enumerate(zip(kinds, descending, strict=False))
    )
    form = SpaceForm(512, "s", (Field("first", "any", True),), parts)
    tuples = MemoryTuples()
    images = Images(tuples)
    codec = images.codec(form)
    every = [list(key) for key in itertools.product(*(VALUES[kind] for kind in kinds))]
    keys = rng.sample(every, min(len(every), 40))
    rows = {codec.of_key(key): ["x", *reversed(key)] for key in keys}
    for number, (key, row) in enumerate(rows.items()):
        if is_pending and number % 3:
            images.put(key, pack(row))
        else:
            tuples.rows[key] = pack(row)
    begin, end = (rng.choice(every)[: min(length, len(kinds))] for length in lengths)

    def order(one: Sequence[Any], other: Sequence[Any]) -> int:
        for part, left, right in zip(parts, map(ordered, one), map(ordered, other), strict=False):
            if left != right:
                return -1 if (left < right) is not part.is_descending else 1
        return 0

    expected = [key for key in keys if order(key, begin) >= 0 and (not end or order(key, end) < 0)]
    found = []
    for body, frame in KeyRange(form, images, begin, end).deletes():
        values = body_values(frame)
        assert body == {Key.SPACE_ID: tuple_values(b"\x91" + values[Key.SPACE_ID])[0]}
        found.append(tuple_values(values[Key.KEY]))
        images.delete(codec.of_key(found[-1]))
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    stored = [codec.of_key(key) for key in found]
    assert stored == sorted(stored)
    assert all(images.current(codec.of_key(key)) is None for key in found)


def test_only_the_rows_of_the_range_are_read() -> None:
    form = SpaceForm(512, "s", (), (KeyPart(0, "", "string"),))
    tuples = MemoryTuples()
    images = Images(tuples)
    codec = images.codec(form)
    for number in range(1000):
        tuples.rows[codec.of_key([f"{number:04}"])] = pack([f"{number:04}"])
    with mock.patch.object(tuples, "scan", side_effect=tuples.scan) as scan:
        rows = KeyRange(form, images, ["0500"], ["0510"]).deletes()
        next(rows)
    (_, after), _ = scan.call_args
    assert codec.of_key(["0499"]) < after < codec.of_key(["0500"])
    assert len(list(rows)) == 9


def test_the_first_row_of_a_long_key_is_found() -> None:
    form = SpaceForm(512, "s", (), (KeyPart(0, "", "string"),))
    tuples = MemoryTuples()
    images = Images(tuples)
    codec = images.codec(form)
    keys = [LONG + letter for letter in "abcdef"]
    for key in keys:
        stored = codec.of_key([key])
        assert len(stored) == KEY_BYTES_MAX
        tuples.rows[stored] = pack([key])
    deletes = KeyRange(form, images, [keys[1]], [keys[4]]).deletes()
    assert sorted(tuple_values(body_values(frame)[Key.KEY])[0] for _, frame in deletes) == keys[1:4]


def test_a_form_that_only_turns_the_order_around_is_the_same() -> None:
    """So the rows aren't published again."""
    form = SpaceForm(512, "s", (), (KeyPart(0, "", "unsigned"),))
    assert replace(form, key_parts=(KeyPart(0, "", "unsigned", is_descending=True),)) == form


@pytest.mark.parametrize("batch", [1, 10**6])
def test_a_descending_index_deletes_from_above(batch: int) -> None:
    master = Master()
    master.create_space("users", USERS, [{"field": 0, "type": "unsigned", "sort_order": "desc"}])
    for number in range(1, 7):
        master.insert("users", number)
    replica = Replica(master, images=True, batch_bytes_max=batch)
    replica.connect()
    replica.news()
    master._write(Type.DELETE_RANGE, {Key.SPACE_ID: 512, Key.BEGIN_KEY: [5], Key.END_KEY: [2]})
    replica.relay.relay()
    replica.receive()
    replica.commit()
    assert ids([sent for sent in map(read, replica.news()) if sent.op]) == [("d", 3), ("d", 4), ("d", 5)]


def test_while_a_transaction_gives_the_space_another_key_nothing_is_said_of_its_rows() -> None:
    """All of them are published again under the new key, after it."""
    target = shop()
    master = target.master
    master.begin()
    master.alter_key("users", [(1, "string")])
    master.delete_range("users", ["two"], ["user 4"])
    master.commit()
    events = target.events()
    assert [event.op for event in events] == ["t", "r", "r", "r", "r"]
    assert {event.key["name"] for event in events[1:]} == {"one", "user 4", "user 5", "user 6"}
