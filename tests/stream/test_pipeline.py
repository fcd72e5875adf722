"""Events, one kind of change at a time: what each row becomes, what is counted, and what is refused."""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgpack
import pytest

from cdc.errors import CdcError, ConfigurationError, EncodingError, ProtocolError, SchemaError, SynchronousReplicationError
from cdc.positions.numbers import Numbers
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.protocol.constants import Type
from cdc.protocol.extensions import Datetime, OpaqueExtension
from cdc.stream.batches.batch import Batch
from cdc.stream.transactions.limbo import LimboState
from tests.fakes import wire
from tests.fakes.master import REPLICASET, SERVER, Master
from tests.fakes.pipelines import NOW_US, MemorySpool, frames_of, messages, pipeline
from tests.fakes.replica import Replica
from tests.fakes.shop import USERS, Sent, Shop, read


def after(event: Sent) -> Any:
    """What the event says of the row, without where it came from."""
    return {name: part for name, part in event.value.items() if name not in ("source", "transaction", "ts_ms", "ts_us", "ts_ns")}


# One row of the table of operations each.


def test_insert() -> None:
    shop = Shop()
    shop.master.insert("users", 3, "three", 30)
    event = shop.event()
    assert after(event) == {"op": "c", "before": None, "after": {"id": 3, "name": "three", "balance": 30}}
    assert (event.topic, event.key) == ("shop.users", {"id": 3})


def test_replace() -> None:
    shop = Shop()
    shop.master.replace("users", 1, "ONE")
    assert after(shop.event()) == {"op": "u", "before": None, "after": {"id": 1, "name": "ONE"}}


def test_update() -> None:
    shop = Shop()
    shop.master.update("users", [1], ["=", "name", "ONE"], ["+", 3, 5])
    event = shop.event()
    patch = [{"op": "=", "field": "name", "value": "ONE"}, {"op": "+", "field": "balance", "value": 5}]
    assert after(event) == {"op": "u", "before": None, "after": None, "patch": patch}
    assert list(event.value)[:4] == ["op", "before", "after", "patch"]
    assert event.key == {"id": 1}


def test_upsert() -> None:
    shop = Shop()
    shop.master.upsert("users", [1, "one", 1], ["+", 3, 5])
    event = shop.event()
    patch, row = [{"op": "+", "field": "balance", "value": 5}], {"id": 1, "name": "one", "balance": 1}
    assert after(event) == {"op": "u", "before": None, "after": None, "patch": patch, "upsert": row}
    assert list(event.value)[:5] == ["op", "before", "after", "patch", "upsert"]


def test_upsert_of_vinyl_counts_fields_from_zero() -> None:
    shop = Shop()
    shop.master.upsert("users", [1, "one", 1], ["+", 2, 5], base=0)
    assert shop.event().value["patch"] == [{"op": "+", "field": "balance", "value": 5}]


@pytest.mark.parametrize("tombstones", [True, False])
def test_delete(tombstones: bool) -> None:
    shop = Shop(tombstones=tombstones)
    shop.master.delete("users", 1)
    event, *rest = shop.follow()
    assert after(event) == {"op": "d", "before": None, "after": None}
    assert rest == ([Sent("shop.users", {"id": 1}, None)] if tombstones else [])


def test_truncate_and_drop() -> None:
    shop = Shop()
    shop.master.truncate("users")
    event = shop.event()
    assert event.is_broadcast
    assert after(event) == {"op": "t", "before": None, "after": None}
    assert event.topic == "shop.users"
    shop.master.drop("users")
    event, record = shop.follow()
    assert (event.op, event.is_broadcast) == ("t", True)
    assert record.key == {"space_id": 512, "schema_version": 1, "dropped": True}
    assert record.value["tableChanges"] == [{"type": "DROP", "id": '"users"', "table": None}]


def test_nop_publishes_nothing_but_counts() -> None:
    shop = Shop()
    shop.master.nop()
    assert shop.follow() == []
    assert shop.replica.pipeline.ledger.acknowledged == VClock(shop.master.vclock)
    shop.master.begin()
    shop.master.nop()
    shop.master.insert("users", 3)
    shop.master.commit()
    event = shop.event()
    assert event.source["row"] == 1
    assert event.value["transaction"]["total_order"] == 1


# Transactions.


def test_a_transaction_of_two_spaces() -> None:
    shop = Shop()
    shop.master.create_space("other", USERS)
    shop.follow()
    shop.master.begin()
    for space, number in (("users", 3), ("other", 1), ("users", 4)):
        shop.master.insert(space, number)
    shop.master.commit()
    lsn = shop.master.vclock[1]
    *events, begin, end = shop.follow()
    assert [event.value["transaction"] for event in events] == [
        {"id": f"1:{lsn - 2}", "total_order": 1, "data_collection_order": 1},
        {"id": f"1:{lsn - 2}", "total_order": 2, "data_collection_order": 1},
        {"id": f"1:{lsn - 2}", "total_order": 3, "data_collection_order": 2},
    ]
    assert [event.source["row"] for event in events] == [0, 1, 2]
    assert [event.source["lsn"] for event in events] == [lsn - 2, lsn - 1, lsn]
    assert {event.source["tsn"] for event in events} == {lsn - 2}
    assert [event.source["vclock"] for event in events] == [{"1": lsn}] * 3
    assert (begin.topic, begin.key, begin.value["status"]) == ("shop.transaction", {"id": f"1:{lsn - 2}"}, "BEGIN")
    assert end.value["event_count"] == 3
    assert end.value["data_collections"] == [
        {"data_collection": "users", "event_count": 2},
        {"data_collection": "other", "event_count": 1},
    ]


@pytest.mark.parametrize(("wanted", "singles", "longer"), [("none", 0, 0), ("multi", 0, 2), ("all", 2, 2)])
def test_transaction_topic(wanted: str, singles: int, longer: int) -> None:
    shop = Shop(transaction_topic=wanted)
    shop.master.insert("users", 3)
    assert len([sent for sent in shop.follow() if sent.topic == "shop.transaction"]) == singles
    shop.master.begin()
    shop.master.insert("users", 4)
    shop.master.insert("users", 5)
    shop.master.commit()
    assert len([sent for sent in shop.follow() if sent.topic == "shop.transaction"]) == longer


def test_a_transaction_of_many_rows_counts_past_the_prepared_numbers() -> None:
    shop = Shop()
    shop.master.begin()
    for number in range(5000):
        shop.master.replace("users", number)
    shop.master.commit()
    events = shop.events()
    assert [event.value["transaction"]["total_order"] for event in events] == list(range(1, 5001))
    assert [event.source["row"] for event in events] == list(range(5000))


def test_sequence_is_by_origin() -> None:
    shop = Shop()
    own = shop.master.vclock[1]
    for origin in (1, 2, 1, 2):
        shop.master.origin = origin
        shop.master.replace("users", 1)
    sequences = [event.source["sequence"] for event in shop.events()]
    assert sequences == [f'["{own}","{own + 1}"]', '["0","1"]', f'["{own + 1}","{own + 2}"]', '["1","2"]']


# Schema in the stream.


def test_rows_are_decoded_by_the_schema_at_their_place() -> None:
    """All of it arrives in one piece: the later schema is known before the first row is looked at by anyone."""
    shop = Shop()
    shop.master.insert("users", 3, "three", 30)
    shop.master.format("users", [{"name": "number"}, {"name": "title"}])
    shop.master.insert("users", 4, "four", 40)
    shop.master.update("users", [4], ["=", "title", "FOUR"])
    shop.master.rename("users", "people")
    shop.master.insert("people", 5)
    shop.master.drop("people")
    shop.master.create_space("people", ["k"], [(0, "string")])
    shop.master.insert("people", "x")
    found = shop.follow()
    events = [sent for sent in found if sent.op]
    assert [(event.topic, event.op, event.key, event.source["schema_version"]) for event in events] == [
        ("shop.users", "c", {"id": 3}, 1),
        ("shop.users", "c", {"number": 4}, 2),
        ("shop.users", "u", {"number": 4}, 2),
        ("shop.people", "c", {"number": 5}, 3),
        ("shop.people", "t", None, 3),
        ("shop.people", "c", {"k": "x"}, 4),
    ]
    assert events[1].value["after"] == {"number": 4, "title": "four", "field_3": 40}
    kinds = [sent.value["tableChanges"][0]["type"] for sent in found if sent.topic == "shop.schema"]
    assert kinds == ["ALTER", "ALTER", "DROP", "CREATE"]


def test_a_space_and_its_first_rows_in_one_transaction() -> None:
    shop = Shop()
    shop.master.begin()
    shop.master.create_space("fresh", USERS)
    shop.master.insert("fresh", 1)
    shop.master.format("fresh", USERS[:1])
    shop.master.insert("fresh", 2, "x")
    shop.master.drop("fresh")
    shop.master.commit()
    found = [sent for sent in shop.follow() if sent.topic != "shop.transaction"]
    assert [(sent.topic, sent.op) for sent in found] == [
        ("shop.schema", None),
        ("shop.fresh", "c"),
        ("shop.schema", None),
        ("shop.fresh", "c"),
        ("shop.fresh", "t"),
        ("shop.schema", None),
    ]
    assert found[3].value["after"] == {"id": 2, "field_2": "x"}


def test_a_truncation_in_the_transaction_that_creates_the_space() -> None:
    shop = Shop()
    shop.master.begin()
    shop.master.create_space("fresh", USERS)
    shop.master.truncate("fresh")
    shop.master.commit()
    record, event = shop.follow()
    assert (record.topic, event.op) == ("shop.schema", "t")
    assert record.key == {"space_id": 513, "schema_version": event.source["schema_version"]}


def test_two_spaces_swap_their_names_in_one_transaction() -> None:
    """The usual way to put a rebuilt space in the place of the old one."""
    shop = Shop()
    shop.master.create_space("rebuilt", USERS)
    shop.follow()
    shop.master.begin()
    shop.master.rename("users", "old")
    shop.master.rename("rebuilt", "users")
    shop.master.commit()
    shop.master.begin()
    shop.master.rename("users", "tmp")
    shop.master.rename("old", "users")
    shop.master.rename("tmp", "old")
    shop.master.commit()
    shop.master.insert("users", 3)
    event = [sent for sent in shop.follow() if sent.op][-1]
    assert (event.topic, event.source["space_id"]) == ("shop.users", 512)


def test_a_new_space_takes_the_name_of_one_that_is_dropped_behind_it() -> None:
    shop = Shop()
    shop.master.create_space("rebuilt", USERS)
    shop.follow()
    shop.master.begin()
    shop.master.update(280, [shop.master.id_of("rebuilt")], ["=", 2, 1])
    old, new = shop.master.id_of("users"), shop.master.id_of("rebuilt")
    shop.master.drop(old)
    shop.master.rename(new, "users")
    shop.master.commit()
    shop.master.insert("users", 3)
    event = [sent for sent in shop.follow() if sent.op][-1]
    assert (event.topic, event.source["space_id"]) == ("shop.users", new)


def test_two_spaces_of_one_topic_are_refused() -> None:
    shop = Shop()
    shop.master.create_space("a b", USERS)
    shop.master.create_space("a/b", USERS)
    with pytest.raises(ConfigurationError, match=r"would share 'shop\.a_b'"):
        shop.follow()


def test_filter() -> None:
    shop = Shop(include=["users", "o.*"], exclude=["other"])
    for name in ("other", "often"):
        shop.master.create_space(name, USERS)
        shop.master.insert(name, 1)
    assert {sent.topic for sent in shop.follow()} == {"shop.schema", "shop.often"}
    shop.master.truncate("other")
    shop.master.drop("other")
    assert shop.follow() == []
    assert shop.replica.pipeline.ledger.acknowledged == VClock(shop.master.vclock)


def test_a_space_that_is_left_out_leaves_no_rows_to_the_next_one_of_its_number() -> None:
    shop = Shop(images=True)
    number = shop.master.create_space("things", USERS)
    shop.master.insert("things", 1, "one")
    shop.follow()
    shop.replica.flush()
    shop.replica.crash()
    shop.replica._options["exclude"] = ["things"]
    shop.replica.connect()
    shop.follow()
    shop.master.drop("things")
    shop.master.create_space("others", USERS, space_id=number)
    shop.master.replace("others", 1, "another")
    shop.master.delete("others", 1)
    assert [(sent.topic, sent.op, sent.value["before"]) for sent in shop.events()] == [
        ("shop.others", "c", None),
        ("shop.others", "d", {"id": 1, "name": "another"}),
    ]


@pytest.mark.parametrize("flags", [{"group_id": 1}, {"temporary": True}, {"type": "data-temporary"}])
def test_spaces_that_are_not_replicated(flags: dict[str, Any]) -> None:
    shop = Shop()
    shop.master.create_space("local", USERS, flags=flags)
    assert shop.follow() == []
    assert "local" not in [form.name for form in shop.replica.pipeline.published_forms()]


def test_system_spaces_that_are_named() -> None:
    shop = Shop(include=["_space", "_sequence", "users"])
    found = {sent.topic for sent in shop.snapshot}
    assert {"shop._space", "shop.users"} <= found
    shop.master.create_sequence(5, "numbers")
    event = shop.event()
    assert (event.topic, event.value["after"]["name"]) == ("shop._sequence", "numbers")


def test_sequence_in_the_snapshot() -> None:
    """Its rows come before the rows of `_index` that say what they look like."""
    master = Master()
    master.create_sequence(5, "numbers")
    master.create_space("users", USERS)
    replica = Replica(master, include=[".*", "_sequence"])
    replica.connect()
    (row,) = [sent for sent in map(read, replica.news()) if sent.op == "r"]
    assert (row.topic, row.value["after"]["name"]) == ("shop._sequence", "numbers")


# What stops it.


def test_row_of_a_space_that_does_not_exist() -> None:
    shop = Shop()
    shop.master.insert("users", 3)
    with pytest.raises(SchemaError, match=r"space 999, which doesn't exist.*row 1:\d+ \(INSERT\): body 82 10 cd 03 e7"):
        _feed(shop, {0x10: 999, 0x21: [1]})


def _feed(shop: Shop, *bodies: dict[int, Any], kind: int = Type.INSERT) -> list[Batch]:
    """Rows behind what the master has, as single transactions."""
    first = shop.master.vclock[1] + 1
    data = b"".join(wire.frame({0: kind, 1: 2, 2: 1, 3: lsn, 4: 1.7e9}, row) for lsn, row in enumerate(bodies, first))
    return list(shop.replica.pipeline.feed(frames_of(data), NOW_US))


BAD: list[tuple[int, dict[int, Any]]] = [
    (Type.INSERT, {0x10: 512}),
    (Type.INSERT, {0x10: 512, 0x21: None}),
    (Type.INSERT, {0x10: 512, 0x21: []}),
    (Type.INSERT, {0x21: [1]}),
    (Type.INSERT, {0x10: None, 0x21: [1]}),
    (Type.INSERT, {0x10: [512], 0x21: [1]}),
    (Type.INSERT, {0x10: "512", 0x21: [1]}),
    (Type.DELETE, {0x10: 512}),
    (Type.DELETE, {0x10: 512, 0x20: []}),
    (Type.DELETE, {0x10: 512, 0x20: [1, 2]}),
    (Type.UPDATE, {0x10: 512, 0x20: [1]}),
    (Type.UPDATE, {0x10: 512, 0x20: [1], 0x21: [["?", 1, 2]]}),
    (Type.UPDATE, {0x10: 512, 0x20: [1], 0x21: [["=", 1, 2]], 0x15: "1"}),
    (Type.UPSERT, {0x10: 512, 0x21: [1]}),
    (Type.UPSERT, {0x10: 512, 0x28: []}),
]


@pytest.mark.parametrize(("kind", "row"), BAD, ids=[f"{kind} {row}" for kind, row in BAD])
@pytest.mark.parametrize("on_error", ["fail", "dlq"])
def test_rows_that_are_not_what_their_type_promises(kind: int, row: dict[int, Any], on_error: str) -> None:
    """They show the row in hex; and what came before them comes out."""
    shop = Shop(on_error=on_error)
    first = shop.master.vclock[1] + 1
    data = b"".join(
        wire.frame({0: each, 2: 1, 3: lsn, 4: 1.7e9}, body)
        for lsn, each, body in ((first, Type.INSERT, {0x10: 512, 0x21: [7]}), (first + 1, kind, row))
    )
    batches: list[Batch] = []
    caught: CdcError | None = None
    try:
        for batch in shop.replica.pipeline.feed(frames_of(data), NOW_US):
            batches.append(batch)
    except CdcError as error:
        caught = error
    found = [read(message) for message in messages(batches)]
    assert found[0].key == {"id": 7}
    assert batches[-1].is_boundary
    assert batches[-1].position.seq == 3
    if caught is None:
        assert on_error == "dlq"
        assert [sent.topic for sent in found] == ["shop.users", "shop.dlq"]
        assert batches[-1].position.vclock[1] == first + 1
    else:
        assert isinstance(caught, ProtocolError | SchemaError | EncodingError)
        assert wire.pack(row).hex(" ") in str(caught)
        assert len(found) == 1
        assert batches[-1].position.vclock[1] == first


def test_a_row_that_cannot_be_shown_stops_it() -> None:
    shop = Shop()
    with pytest.raises(
        EncodingError, match=r"type 9 .*row 1:\d+ \(INSERT\) of space 'users'.*body 82 10 cd 02 00 21 93 03 c0 d4 09 78"
    ):
        _feed(shop, {0x10: 512, 0x21: [3, None, OpaqueExtension(9, b"x")]})


def test_or_goes_to_the_dead_letters() -> None:
    shop = Shop(on_error="dlq")
    row = {0x10: 512, 0x21: [3, "\udcff", OpaqueExtension(9, b"x")]}
    (batch,) = _feed(shop, {0x10: 512, 0x21: [7]}, row, {0x10: 512, 0x21: [8]})
    first, letter, second = map(read, batch.messages)
    lsn = shop.master.vclock[1] + 2
    assert (first.source["seq"], second.source["seq"]) == (3, 4), "a dead letter takes no seq"
    assert (letter.topic, letter.key) == ("shop.dlq", {"replica_id": 1, "lsn": lsn})
    assert letter.value["type"] == "INSERT"
    assert letter.value["space_id"] == 512
    assert letter.value["tsn"] == lsn
    assert "extension type 9" in letter.value["error"]
    body = base64.b64decode(letter.value["body"])
    assert body == wire.pack(row)
    assert msgpack.unpackb(body, strict_map_key=False, unicode_errors="surrogateescape")[0x21][0] == 3
    assert batch.event_count == 2
    assert batch.byte_count == _size(batch)


def test_a_dead_letter_in_a_transaction_counts_as_a_row_and_not_as_an_event() -> None:
    shop = Shop(on_error="dlq")
    shop.master.begin()
    for number, value in ((3, 1), (4, OpaqueExtension(9, b"x")), (5, 1)):
        shop.master.insert("users", number, "x", value)
    shop.master.commit()
    shop.replica.relay.relay()
    shop.replica.receive()
    (batch,) = shop.replica.unsettled
    first, letter, second, _, end = map(read, batch.messages)
    assert letter.topic == "shop.dlq"
    assert [event.source["row"] for event in (first, second)] == [0, 2]
    assert [event.value["transaction"]["total_order"] for event in (first, second)] == [1, 2]
    assert end.value["event_count"] == 2
    assert batch.byte_count == _size(batch)


def test_a_dead_letter_holds_the_row_byte_for_byte() -> None:
    """With decimals and uuids beside the value that can't be shown: from the letter the row can be done again."""
    shop = Shop(on_error="dlq")
    row = {0x10: 512, 0x21: [3, "x", Decimal("1.50"), UUID(int=1), Datetime(5), OpaqueExtension(9, b"x")]}
    (batch,) = _feed(shop, row)
    (letter,) = map(read, batch.messages)
    assert base64.b64decode(letter.value["body"]) == wire.pack(row)


@pytest.mark.parametrize("code", [9, -2, -128])
def test_extensions_of_any_number_are_refused_in_words(code: int) -> None:
    row = {0x10: 512, 0x21: [3, "x"]}
    data = wire.pack(row)[:-2] + b"\xc7\x01" + code.to_bytes(1, signed=True) + b"x"
    for on_error, error in (("fail", EncodingError), ("dlq", None)):
        shop = Shop(on_error=on_error)
        head = wire.pack({0: 2, 2: 1, 3: shop.master.vclock[1] + 1, 4: 1.7e9})
        body = data.replace(b"\x92\x03", b"\x93\x03\xc0")
        frames = frames_of(wire.raw_frame(head + body))
        if error is not None:
            with pytest.raises(error, match=f"extension type {code} "):
                list(shop.replica.pipeline.feed(frames, NOW_US))
        else:
            (letter,) = map(read, messages(shop.replica.pipeline.feed(frames, NOW_US)))
            assert letter.topic == "shop.dlq"


def test_dead_letters_of_a_snapshot() -> None:
    target = pipeline(on_error="dlq")
    target.begin_snapshot(VClock({1: 5}), NOW_US)
    master = Master()
    master.create_space("users", USERS)
    bodies = [*master.snapshot(), {0x10: 512, 0x21: [1, "x", OpaqueExtension(9, b"x")]}, {0x10: 512, 0x21: [2]}]
    (batch,) = target.feed_snapshot(frames_of(b"".join(wire.frame({0: 2}, body) for body in bodies)), NOW_US)
    *_, letter, row = map(read, batch.messages)
    assert (letter.topic, letter.value["space_id"]) == ("shop.dlq", 512)
    assert (row.op, row.source["seq"]) == ("r", 1)


def test_a_transaction_is_never_published_in_part() -> None:
    """Its last row can't be shown: none of it comes out, all before it does."""
    shop = Shop()
    shop.master.insert("users", 3)
    shop.master.begin()
    shop.master.insert("users", 4)
    shop.master.insert("users", 5, "x", OpaqueExtension(9, b"x"))
    shop.master.commit()
    shop.master.insert("users", 6)
    shop.replica.relay.relay()
    with pytest.raises(EncodingError):
        shop.replica.receive()
    assert [read(message).key for message in shop.replica.waiting()] == [{"id": 3}]


def test_a_transaction_that_fails_late_takes_no_seq() -> None:
    """It had come as far as a space that was not looked at before, which brings the counters up to date."""
    shop = Shop()
    shop.master.create_space("fresh", USERS)
    shop.follow()
    shop.master.insert("users", 3)
    shop.master.begin()
    shop.master.insert("users", 4)
    shop.master.insert("fresh", 1)
    shop.master.insert("users", 5, "x", OpaqueExtension(9, b"x"))
    shop.master.commit()
    shop.replica.relay.relay()
    with pytest.raises(EncodingError):
        shop.replica.receive()
    (batch,) = shop.replica.unsettled
    assert (batch.position.seq, batch.event_count, batch.row_count) == (3, 1, 1)
    assert batch.position.vclock == VClock({1: shop.master.vclock[1] - 3})


@pytest.mark.parametrize("version", ["2.11", "3.3"])
def test_a_synchronous_row_by_itself_waits(version: str) -> None:
    """Of a space that the short way knows: it has to look at the flags as well."""
    shop = Shop(version)
    shop.master.insert("users", 3)
    shop.master.insert("users", 4)
    shop.master.begin()
    shop.master.insert("users", 5)
    shop.master.commit(is_sync=True)
    shop.master.insert("users", 6)
    assert [sent.key for sent in shop.events()] == [{"id": 3}, {"id": 4}]
    assert shop.replica.pipeline.limbo.transaction_count == 2
    lsn = shop.master.vclock[1] - 1
    assert shop.replica.pipeline.position.vclock == VClock({1: lsn - 1})
    assert shop.replica.pipeline.ledger.received == VClock({1: lsn + 1})
    shop.master.synchro(Type.RAFT_CONFIRM, 1, lsn)
    assert [sent.key for sent in shop.events()] == [{"id": 5}, {"id": 6}]
    assert shop.replica.pipeline.limbo == LimboState()
    assert shop.replica.pipeline.ledger.acknowledged == VClock(shop.master.vclock)


def test_flagged_as_waiting_behind_nothing() -> None:
    """It was written while the confirmation of the last synchronous one was on its way."""
    shop = Shop()
    shop.master.begin()
    shop.master.insert("users", 3)
    shop.master.commit(waits=True)
    assert [sent.key for sent in shop.events()] == [{"id": 3}]


@pytest.mark.parametrize("version", ["2.11", "3.3"])
@pytest.mark.parametrize("ends", ["confirmed", "rolled back", "never"])
@pytest.mark.parametrize("memory", [100, 10**9], ids=["on disk", "in memory"])
def test_synchronous_transactions_wait(version: str, ends: str, memory: int) -> None:
    """However long they are: those that wait on disk for their end wait there for their confirmation too."""
    spools: list[MemorySpool] = []
    shop = Shop(version, transaction_bytes_max=memory, spools=spools)
    shop.master.insert("users", 3)
    shop.master.begin()
    for number in range(4, 14):
        shop.master.insert("users", number)
    shop.master.commit(is_sync=True)
    lsn = shop.master.vclock[1]
    shop.replica.relay.relay(4)
    shop.replica.receive()
    assert [sent.key for sent in shop.events()] == [{"id": 3}]
    if ends == "confirmed":
        shop.master.synchro(Type.RAFT_CONFIRM, 1, lsn)
        assert [sent.key for sent in shop.events()] == [{"id": number} for number in range(4, 14)]
    elif ends == "rolled back":
        shop.master.synchro(Type.RAFT_ROLLBACK, 1, lsn)
        assert shop.events() == []
        assert shop.replica.pipeline.ledger.acknowledged == VClock(shop.master.vclock)
    else:
        shop.replica.crash()
    assert all(spool.is_closed for spool in spools)
    assert bool(spools) == (memory == 100)


@pytest.mark.parametrize("memory", [100, 10**9], ids=["on disk", "in memory"])
def test_synchronous_space_of_a_26(memory: int) -> None:
    """It sets no flags: the space tells, whether it is published or not."""
    shop = Shop("2.6", exclude=["syn"], transaction_bytes_max=memory)
    shop.master.create_space("syn", USERS, flags={"is_sync": True})
    shop.follow()
    shop.master.begin()
    for number in range(10):
        shop.master.insert("users", 10 + number)
    shop.master.insert("syn", 1)
    shop.master.commit()
    lsn = shop.master.vclock[1]
    shop.replica.relay.relay(3)
    shop.replica.receive()
    assert shop.events() == []
    shop.master.synchro(Type.RAFT_CONFIRM, 1, lsn)
    assert [sent.key for sent in shop.events()] == [{"id": 10 + number} for number in range(10)]


def test_space_that_becomes_synchronous_behind_what_waits() -> None:
    """The DDL waits itself, and makes what is behind it wait for a confirmation of its own."""
    shop = Shop("2.6")
    shop.master.create_space("syn", USERS, flags={"is_sync": True})
    shop.follow()
    shop.master.insert("syn", 1)
    first = shop.master.vclock[1]
    space_id = shop.master.id_of("users")
    shop.master.update(280, [space_id], ["=", 6, {"is_sync": True}])
    shop.master.insert("users", 3)
    second = shop.master.vclock[1]
    assert shop.events() == []
    shop.master.synchro(Type.RAFT_CONFIRM, 1, first)
    assert [sent.key for sent in shop.events()] == [{"id": 1}]
    shop.master.synchro(Type.RAFT_CONFIRM, 1, second)
    assert [sent.key for sent in shop.events()] == [{"id": 3}]


def test_logs_of_26_served_by_a_later_version() -> None:
    """They have no flags: the space tells as it did when they were written."""
    shop = Shop("2.11")
    shop.master.create_space("syn", USERS, flags={"is_sync": True})
    shop.master.insert("syn", 1)
    lsn = shop.master.vclock[1]
    assert shop.events() == []
    shop.master.synchro(Type.RAFT_ROLLBACK, 1, lsn)
    assert shop.events() == []
    assert shop.replica.pipeline.limbo == LimboState()


def test_transaction_that_makes_its_space_synchronous() -> None:
    shop = Shop("2.6")
    space_id = shop.master.id_of("users")
    shop.master.begin()
    shop.master.update(280, [space_id], ["=", 6, {"is_sync": True}])
    shop.master.insert("users", 3)
    shop.master.commit()
    lsn = shop.master.vclock[1]
    assert shop.events() == []
    shop.master.synchro(Type.RAFT_CONFIRM, 1, lsn)
    assert [sent.key for sent in shop.events()] == [{"id": 3}]


def test_released_in_batches_of_a_bounded_size() -> None:
    shop = Shop(transaction_bytes_max=1_000, batch_bytes_max=2_000)
    shop.master.begin()
    shop.master.insert("users", 3)
    shop.master.commit(is_sync=True)
    lsn = shop.master.vclock[1]
    for number in range(4, 54):
        shop.master.insert("users", number)
    shop.follow()
    assert shop.replica.pipeline.limbo.disk_byte_count > 0
    shop.master.synchro(Type.RAFT_CONFIRM, 1, lsn)
    shop.replica.relay.relay()
    shop.replica.receive()
    batches = shop.replica.unsettled
    assert len(batches) > 5
    assert all(batch.byte_count < 3_000 and batch.is_boundary for batch in batches)
    assert sum(batch.event_count for batch in batches) == 51
    assert shop.replica.pipeline.limbo == LimboState()


def test_rollback_stops_it_and_the_other_control_rows_do_not() -> None:
    shop = Shop()
    shop.master.synchro(Type.RAFT_PROMOTE, 0, 0, term=2)
    shop.master.synchro(Type.RAFT_CONFIRM, 1, 5)
    assert shop.follow() == []
    assert shop.replica.pipeline.ledger.acknowledged == VClock(shop.master.vclock)
    shop.master.begin()
    shop.master.insert("users", 3)
    shop.master.commit(is_sync=True)
    lsn = shop.master.vclock[1]
    shop.master.synchro(Type.RAFT_CONFIRM, 1, lsn)
    shop.master.synchro(Type.RAFT_ROLLBACK, 1, lsn)
    with pytest.raises(
        SynchronousReplicationError, match=f"RAFT_ROLLBACK of everything of origin 1 from lsn {lsn} on arrived at"
    ):
        shop.follow()


# Spooled transactions.


def test_a_large_transaction_comes_in_pieces_that_are_no_boundaries() -> None:
    spools: list[MemorySpool] = []
    shop = Shop(transaction_bytes_max=500, spools=spools, chunk_bytes=300)
    shop.master.insert("users", 3)
    shop.master.begin()
    for number in range(40):
        shop.master.insert("users", 100 + number, "x" * 20)
    shop.master.commit()
    shop.master.insert("users", 4)
    shop.replica.relay.relay(20)
    shop.replica.receive()
    shop.replica.relay.relay()
    shop.replica.receive()
    batches = shop.replica.unsettled
    # What came before it, its pieces, its end, what came after it.
    boundaries = [batch.is_boundary for batch in batches]
    assert boundaries[0] is True
    assert boundaries[-2:] == [True, True]
    assert not any(boundaries[1:-2])
    assert len(boundaries) > 10
    for batch in batches[1:-2]:
        assert batch.position == batches[0].position, "a position within a transaction can't be committed"
    events = [sent for sent in map(read, messages(batches)) if sent.op]
    assert [event.source["seq"] for event in events] == list(range(3, 45))
    assert [event.value["transaction"]["total_order"] for event in events[1:-1]] == list(range(1, 41))
    assert [spool.is_closed for spool in spools] == [True]


def test_a_large_transaction_that_is_known_already_is_dropped() -> None:
    spools: list[MemorySpool] = []
    shop = Shop(transaction_bytes_max=100, spools=spools)
    shop.master.begin()
    for number in range(10):
        shop.master.insert("users", 100 + number)
    shop.master.commit()
    rows = b"".join(row.packet(2) for row in shop.master.log if row.lsn > shop.master.vclock[1] - 10)
    frames = frames_of(rows)
    target = shop.replica.pipeline
    for _ in range(2):
        batches = [batch for part in (frames.part(0, 5), frames.part(5, 10)) for batch in target.feed(part, NOW_US)]
    assert batches == []
    assert [spool.is_closed for spool in spools] == [True, True]


def test_close_ends_the_spool() -> None:
    spools: list[MemorySpool] = []
    shop = Shop(transaction_bytes_max=100, spools=spools)
    shop.master.begin()
    for number in range(10):
        shop.master.insert("users", 100 + number)
    shop.master.commit()
    shop.replica.relay.relay(8)
    shop.replica.receive()
    assert shop.replica.pipeline.open_byte_count > 100
    shop.replica.crash()
    assert [spool.is_closed for spool in spools] == [True]


# Counting.


def _size(batch: Batch) -> int:
    return sum(len(message[2] or b"") if isinstance(message, tuple) else len(message.value) for message in batch.messages)


def test_what_a_batch_counts() -> None:
    shop = Shop()
    shop.master.nop()
    shop.master.insert("users", 3)
    shop.master.delete("users", 3)
    shop.master.truncate("users")
    shop.replica.relay.relay()
    shop.replica.receive()
    (batch,) = shop.replica.unsettled
    assert batch.byte_count == _size(batch)
    assert (batch.event_count, batch.row_count) == (3, 4)
    assert batch.timestamp == shop.master.log[-1].timestamp
    assert batch.position.vclock == VClock(shop.master.vclock)


def test_what_the_batches_of_a_snapshot_count() -> None:
    """By bytes too, dead letters and control records included: the queue's bound rests on it."""
    master = Master()
    for name in ("a", "b"):
        master.create_space(name, USERS)
        for number in range(5):
            master.insert(name, number, "x", OpaqueExtension(9, b"x") if number == 2 else 5)
    replica = Replica(master, on_error="dlq")
    counted = []

    class Topics(type(replica.topics)):  # type: ignore[misc]
        def commit(self, batches: list[Batch]) -> None:
            counted.extend(batches)
            super().commit(batches)

    replica.topics = Topics()
    replica.connect()
    events = [read(message) for message in replica.news()]
    assert sum(batch.event_count for batch in counted) == len([sent for sent in events if sent.op]) == 8
    for batch in counted:
        assert batch.byte_count == _size(batch)


def test_topics_are_announced_once() -> None:
    shop = Shop()
    shop.master.create_space("other", USERS)
    shop.master.insert("other", 1)
    shop.replica.relay.relay()
    shop.replica.receive()
    (batch,) = shop.replica.unsettled
    assert sorted(batch.topics) == ["shop.other"]
    shop.follow()
    shop.master.insert("other", 2)
    shop.replica.relay.relay()
    shop.replica.receive()
    (batch,) = shop.replica.unsettled
    assert batch.topics == []


# Snapshots.


def test_a_second_snapshot_tells_what_is_different() -> None:
    master = Master()
    for name in ("same", "gone", "altered"):
        master.create_space(name, USERS)
        master.insert(name, 1)
    replica = Replica(master)
    replica.connect()
    replica.crash()
    replica.news()
    master.drop("gone")
    master.format("altered", USERS[:1])
    master.create_space("new", USERS, space_id=700)
    master.gc_vclock = master.vclock
    replica.connect()
    found = [read(message) for message in replica.news()]
    schema = [
        (sent.value["tableChanges"][0]["type"], sent.value["tableChanges"][0]["id"])
        for sent in found
        if sent.topic == "shop.schema"
    ]
    assert sorted(schema) == [("ALTER", '"altered"'), ("CREATE", '"new"'), ("DROP", '"gone"')]
    (emptied,) = [sent for sent in found if sent.op == "t"]
    assert (emptied.topic, emptied.is_broadcast, emptied.source["snapshot"]) == ("shop.gone", True, "true")
    rows = [(sent.topic, sent.source["snapshot_id"]) for sent in found if sent.op == "r"]
    assert rows == [("shop.same", "2"), ("shop.altered", "2")]
    seqs = [sent.source["seq"] for sent in found if sent.op]
    assert seqs == list(range(4, 4 + len(seqs)))
    statuses = [sent.value for sent in found if sent.topic == "shop.snapshot"]
    assert [(value["status"], value["snapshot_id"]) for value in statuses] == [("STARTED", "2"), ("COMPLETED", "2")]


def test_a_space_took_the_name_of_one_that_a_second_snapshot_lacks() -> None:
    master = Master()
    master.create_space("users", USERS)
    replica = Replica(master)
    replica.connect()
    replica.crash()
    replica.news()
    master.drop("users")
    master.create_space("users", USERS, space_id=700)
    master.insert("users", 1)
    master.gc_vclock = master.vclock
    replica.connect()
    found = [(sent.topic, sent.op, sent.source["space_id"]) for sent in map(read, replica.news()) if sent.op]
    assert found == [("shop.users", "t", 512), ("shop.users", "r", 700)]


def test_without_publishing_only_the_schema_is_read() -> None:
    target = pipeline()
    master = Master()
    master.create_space("users", USERS)
    master.insert("users", 1)
    target.begin_snapshot(VClock(master.vclock), NOW_US, publish=False)
    frames = frames_of(b"".join(wire.frame({0: 2}, body) for body in master.snapshot()))
    found = [read(message) for message in messages(target.feed_snapshot(frames, NOW_US))]
    assert [sent.topic for sent in found] == ["shop.schema"]
    assert [form.name for form in target.published_forms()] == ["users"]
    (batch,) = target.end_snapshot(NOW_US)
    assert batch.position.seq == 0


def test_snapshot_that_does_not_tell_its_replica_set() -> None:
    target = pipeline()
    target.begin_snapshot(VClock(), NOW_US)
    with pytest.raises(ProtocolError, match="which replica set"):
        list(target.end_snapshot(NOW_US))


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ({0: Type.REPLACE}, {0x10: 512, 0x21: [1]}),
        ({0: Type.INSERT}, {0x10: 512}),
        ({0: Type.INSERT}, {0x10: "512", 0x21: [1]}),
        ({0: Type.INSERT}, {0x10: {}, 0x21: [1]}),
        ({0: Type.INSERT}, {0x10: 280, 0x21: 5}),
    ],
)
def test_rows_of_a_snapshot_that_cannot_be_read(header: dict[int, Any], row: dict[int, Any]) -> None:
    target = pipeline()
    target.begin_snapshot(VClock(), NOW_US)
    with pytest.raises(ProtocolError, match="row of the snapshot"):
        list(target.feed_snapshot(frames_of(wire.frame(header, row)), NOW_US))


def test_a_snapshot_begins_a_new_ledger() -> None:
    """Of another history, perhaps: its position need not be ahead of the old one."""
    shop = Shop()
    target = shop.replica.pipeline
    batch = target.begin_snapshot(VClock({2: 1}), NOW_US)
    assert batch.position.vclock == VClock({2: 1})
    assert batch.position.seq == 2
    assert batch.position.snapshot is not None
    assert not batch.position.snapshot.is_complete
    assert batch.position.snapshot.snapshot_id == 2


def test_a_snapshot_that_has_begun_is_of_the_replica_set_that_was_followed() -> None:
    """A process that finds this position must not take the rows of another one."""
    target = Shop().replica.pipeline
    assert target.begin_snapshot(VClock({1: 5}), NOW_US).position.replicaset_uuid == REPLICASET
    with pytest.raises(ProtocolError, match="which replica set"):
        list(target.end_snapshot(NOW_US))


@pytest.mark.parametrize("is_first", [True, False])
def test_a_snapshot_goes_on_after_the_numbers_that_were_given(*, is_first: bool) -> None:
    """Kafka has lost the newest checkpoints, or all that it had: no number comes a second time."""
    position = None if is_first else Position(VClock({1: 5}), 20, 1, SERVER, SERVER, SnapshotState(1, is_complete=True))
    target, master = pipeline(position), Master()
    master.create_space("users", USERS)
    master.insert("users", 1)
    batch = target.begin_snapshot(VClock(master.vclock), NOW_US, after=Numbers(180, 7, 4))
    assert Numbers.of(batch.position) == Numbers(180, 8, 4), "what a process finds that is killed now"
    frames = frames_of(b"".join(wire.frame({0: 2}, body) for body in master.snapshot()))
    sent = [read(message) for message in messages([batch, *target.feed_snapshot(frames, NOW_US)])]
    (event,) = [one.source for one in sent if one.op]
    assert (event["seq"], event["snapshot_id"], event["schema_version"]) == (181, "8", 5)
    (*_, last) = target.end_snapshot(NOW_US)
    (completed,) = [read(message).value for message in messages([last])]
    assert (completed["snapshot_id"], completed["spaces"][0]["sweep_seq"]) == ("8", 180)
    assert Numbers.of(last.position) == Numbers(181, 8, 5)
