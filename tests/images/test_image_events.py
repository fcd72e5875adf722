"""What each kind of row becomes with images, whether its key is there or not, and what it leaves behind."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import CdcError, ConfigurationError, EncodingError, ImageError, SchemaError
from cdc.images.image_events import ImageChanges
from cdc.images.overlay import DOUBTFUL_MAX
from cdc.positions.vclock import VClock
from cdc.protocol import layout
from cdc.protocol.codec import FrameDecoder, tuple_values
from cdc.protocol.constants import Type
from cdc.protocol.extensions import OpaqueExtension
from cdc.schema.keys import space_prefix
from tests.fakes import wire
from tests.fakes.profiles import MANY
from tests.fakes.replica import Replica
from tests.fakes.shop import USERS, Sent, Shop

HIDDEN = OpaqueExtension(9, b"x")
"""What no event can show."""
ONE = {"id": 1, "name": "one", "balance": 10}


def shop(**options: Any) -> Shop:
    """Of two users, with images."""
    return Shop(images=True, **options)


def content(events: list[Sent]) -> list[tuple[str | None, Any, Any]]:
    """Of each event: kind, before, after."""
    assert not [event for event in events if "patch" in event.value or "upsert" in event.value]
    return [(event.op, event.value["before"], event.value["after"]) for event in events]


def image(target: Shop, number: int, space_id: int = 512) -> list[Any] | None:
    """What is kept of a user."""
    images = target.replica.pipeline.images
    assert images is not None
    found = images.current(space_prefix(space_id) + number.to_bytes(8, "big"))
    return None if found is None else tuple_values(found)


# Each kind of row, where its key is and where it isn't.


def test_insert() -> None:
    target = shop()
    target.master.insert("users", 3, "three")
    assert content(target.events()) == [("c", None, {"id": 3, "name": "three"})]
    assert image(target, 3) == [3, "three"]


def test_insert_over_a_row_ends_it() -> None:
    """The server had none there."""
    target = shop()
    target.master.insert("users", 1, "ONE")
    with pytest.raises(ImageError, match="the tuple was 93 01 a3 6f 6e 65 0a"):
        target.follow()


def test_replace() -> None:
    target = shop()
    target.master.replace("users", 1, "ONE")
    target.master.replace("users", 3, "three")
    assert content(target.events()) == [("u", ONE, {"id": 1, "name": "ONE"}), ("c", None, {"id": 3, "name": "three"})]


def test_update() -> None:
    target = shop()
    target.master.update("users", [1], ["=", "name", "ONE"], ["+", 3, 5])
    assert content(target.events()) == [("u", ONE, {"id": 1, "name": "ONE", "balance": 15})]
    assert image(target, 1) == [1, "ONE", 15]


def test_upsert() -> None:
    target = shop()
    target.master.upsert("users", [1, "x", 1], ["+", 3, 5])
    target.master.upsert("users", [3, "three", 1], ["+", 3, 5])
    assert content(target.events()) == [
        ("u", ONE, {**ONE, "balance": 15}),
        ("c", None, {"id": 3, "name": "three", "balance": 1}),
    ]


@pytest.mark.parametrize("base", [0, 1])
def test_upsert_counts_fields_from_the_base(base: int) -> None:
    target = shop()
    target.master.upsert("users", [1, "x", 1], ["+", 2 + base, 5], base=base)
    assert content(target.events()) == [("u", ONE, {**ONE, "balance": 15})]


@pytest.mark.parametrize("tombstones", [True, False])
def test_delete(tombstones: bool) -> None:
    target = shop(tombstones=tombstones)
    target.master.delete("users", 1)
    event, *rest = target.follow()
    assert content([event]) == [("d", ONE, None)]
    assert rest == ([Sent("shop.users", {"id": 1}, None)] if tombstones else [])
    assert image(target, 1) is None


def test_what_finds_nothing_publishes_nothing_but_moves_the_position() -> None:
    target = shop()
    rows: list[tuple[int, dict[int, Any]]] = [
        (5, {0x10: 512, 0x20: [77]}),
        (4, {0x10: 512, 0x20: [77], 0x21: [["=", 2, "x"]], 0x15: 1}),
    ]
    for kind, body in rows:
        target.master._write(kind, body)
        assert target.follow() == []
        assert target.replica.pipeline.ledger.acknowledged != VClock(target.master.vclock), "the store hasn't got there"
        target.replica.flush()
        assert target.replica.pipeline.ledger.acknowledged == VClock(target.master.vclock)
    target.master.begin()
    target.master._write(*rows[0])
    target.master.insert("users", 3)
    target.master._write(*rows[1])
    target.master.commit()
    event = target.event()
    assert (event.source["row"], event.value["transaction"]["total_order"]) == (1, 1)


def test_upsert_that_would_change_the_key_changes_nothing() -> None:
    """The server logs it, and leaves the tuple as it is."""
    target = shop()
    target.master._write(9, {0x10: 512, 0x21: [1, "x"], 0x28: [["+", 1, 5]], 0x15: 1})
    assert target.events() == []
    assert image(target, 1) == [1, "one", 10]


def test_upsert_whose_operations_fail_changes_what_it_can() -> None:
    target = shop()
    target.master._write(9, {0x10: 512, 0x21: [1, "x"], 0x28: [["+", 2, 5], ["+", 3, 5]], 0x15: 1})
    assert content(target.events()) == [("u", ONE, {**ONE, "balance": 15})]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Type.INSERT, {0x21: [3, "three"]}),
        (Type.REPLACE, {0x21: [1, "ONE"]}),
        (Type.REPLACE, {0x21: [3, "three"]}),
        (Type.UPDATE, {0x20: [1], 0x21: [["=", 2, "ONE"], ["+", 3, 5]], 0x15: 1}),
        (Type.UPDATE, {0x20: [77], 0x21: [["=", 2, "x"]], 0x15: 1}),
        (Type.UPSERT, {0x21: [1, "x", 1], 0x28: [["+", 3, 5]], 0x15: 1}),
        (Type.UPSERT, {0x21: [3, "three", 1], 0x28: [["+", 3, 5]], 0x15: 1}),
        (Type.UPSERT, {0x21: [1, "x"], 0x28: [["+", 1, 5]], 0x15: 1}),
        (Type.UPSERT, {0x21: [1, "x"], 0x28: [["+", 2, 5], ["+", 3, 5]], 0x15: 1}),
        (Type.DELETE, {0x20: [1]}),
        (Type.DELETE, {0x20: [77]}),
    ],
)
def test_the_tuple_that_a_row_will_leave(kind: int, body: dict[int, Any]) -> None:
    """It is what the row leaves when it is carried out. Until then the images stay as they are."""
    target = shop()
    target.master.replace("users", 2, "two")
    target.events()
    target.master._write(kind, {0x10: 512, **body})
    frame = target.master.log[-1].packet(1)
    changes, images = target.replica.pipeline._context.spaces.image_changes[512], target.replica.pipeline.images
    assert images is not None
    key, before, _ = changes.place_of(kind, frame)
    after = changes.tuple_after(kind, frame, before)
    assert images.current(key) == before
    target.events()
    assert images.current(key) == after


@pytest.mark.parametrize("operations", [[["+", 2, 5]], [["=", 1, 9]]])
def test_what_cannot_be_carried_out_will_leave_the_tuple(operations: list[Any]) -> None:
    target = shop()
    target.master.replace("users", 2, "two")
    target.events()
    target.master._write(Type.UPDATE, {0x10: 512, 0x20: [1], 0x21: operations, 0x15: 1})
    frame = target.master.log[-1].packet(1)
    changes = target.replica.pipeline._context.spaces.image_changes[512]
    _, before, _ = changes.place_of(Type.UPDATE, frame)
    assert changes.tuple_after(Type.UPDATE, frame, before) == before


def test_update_that_fails_ends_it() -> None:
    """The server had another tuple there."""
    target = shop()
    target.master._write(4, {0x10: 512, 0x20: [1], 0x21: [["+", 2, 5]], 0x15: 1})
    with pytest.raises(ImageError, match="the tuple was 93 01 a3 6f 6e 65 0a"):
        target.follow()


# A row that can't be carried out, where the operator wants to go on.


def unfit(target: Shop, number: int = 1) -> None:
    """An UPDATE that the server carried out on another tuple than the one that is kept."""
    target.master._write(4, {0x10: 512, 0x20: [number], 0x21: [["+", 2, 5]], 0x15: 1})


def doubtful(target: Shop) -> int:
    images = target.replica.pipeline.images
    assert images is not None
    return len(images.doubtful)


def test_a_row_that_is_passed_over_leaves_its_key_in_doubt_until_it_is_written_whole() -> None:
    target = shop(on_image_error="dlq")
    master = target.master
    unfit(target)
    master.update("users", [1], ["+", 3, 5])
    master.upsert("users", [1, "x"], ["+", 3, 5])
    master.update("users", [2], ["+", 3, 1])
    sent = target.follow()
    letters = [message for message in sent if message.topic == "shop.dlq"]
    assert [letter.value["type"] for letter in letters] == ["UPDATE", "UPDATE", "UPSERT"]
    assert "on_image_error" in letters[0].value["error"]
    assert "box.space['users'] s:replace(s:get({1}))" in letters[0].value["error"]
    assert "an earlier row of this key" in letters[1].value["error"]
    assert content([message for message in sent if message.op]) == [
        ("u", {"id": 2, "name": "two", "balance": 20}, {"id": 2, "name": "two", "balance": 21})
    ]
    assert doubtful(target) == 1
    master.replace("users", 1, "whole", 3)
    assert content(target.events()) == [("u", ONE, {"id": 1, "name": "whole", "balance": 3})]
    assert doubtful(target) == 0
    master.update("users", [1], ["+", 3, 1])
    assert content(target.events()) == [("u", {"id": 1, "name": "whole", "balance": 3}, {"id": 1, "name": "whole", "balance": 4})]


@pytest.mark.parametrize("whole", ["delete", "truncate", "drop"])
def test_what_takes_a_row_away_ends_the_doubt(whole: str) -> None:
    target = shop(on_image_error="dlq")
    unfit(target)
    target.follow()
    assert doubtful(target) == 1
    if whole == "delete":
        target.master.delete("users", 1)
    elif whole == "truncate":
        target.master.truncate("users")
    else:
        target.master.drop_index("users", 0)
    target.follow()
    assert doubtful(target) == 0


@pytest.mark.parametrize("is_stored", [False, True], ids=["read again from before the row", "stored"])
def test_a_doubt_survives_a_crash(is_stored: bool) -> None:
    target = shop(on_image_error="dlq")
    target.replica.flush()
    unfit(target)
    target.follow()
    if is_stored:
        target.replica.flush()
    target.replica.crash()
    target.replica.connect()
    target.master.update("users", [1], ["+", 3, 5])
    target.master.update("users", [2], ["+", 3, 1])
    assert content([message for message in target.follow() if message.op]) == [
        ("u", {"id": 2, "name": "two", "balance": 20}, {"id": 2, "name": "two", "balance": 21})
    ]
    assert doubtful(target) == 1
    target.master.replace("users", 1, "whole")
    assert content(target.events()) == [("u", ONE, {"id": 1, "name": "whole"})]
    assert target.replica.topics.checkpoint().position is not None
    assert not target.replica.topics.checkpoint().position.doubtful  # type: ignore[union-attr]


def test_a_doubt_is_that_of_before_a_transaction_that_ends_it() -> None:
    target = shop(on_image_error="dlq", on_error="fail")
    unfit(target)
    target.master.update("users", [2], ["+", 3, 1])
    target.master.begin()
    target.master.replace("users", 1, "whole")
    target.master.insert("users", 3, "x", HIDDEN)
    target.master.commit()
    with pytest.raises(EncodingError):
        target.follow()
    target.replica.commit()
    position = target.replica.topics.checkpoint().position
    assert position is not None
    assert len(position.doubtful) == 1


def test_only_so_many_keys_may_be_in_doubt() -> None:
    target = shop(on_image_error="dlq")
    images = target.replica.pipeline.images
    assert images is not None
    images.doubtful = frozenset(number.to_bytes(12, "big") for number in range(DOUBTFUL_MAX))
    unfit(target)
    with pytest.raises(ImageError):
        target.follow()


# Vinyl.


def vinyl(version: str) -> Shop:
    """With a space in vinyl, `v`, that has the row [1, 5]."""
    target = Shop(version, images=True)
    target.master.create_space("v", [{"name": "id", "type": "unsigned"}, {"name": "n", "type": "unsigned"}], engine="vinyl")
    target.master.insert("v", 1, 5)
    target.follow()
    return target


def upsert_misfit(target: Shop) -> None:
    """One whose result has a negative number in an unsigned field."""
    target.master._write(9, {0x10: 513, 0x21: [1, 0], 0x28: [["-", 2, 100]], 0x15: 1})


def test_vinyl_passes_over_an_upsert_whose_result_does_not_fit_the_format() -> None:
    target = vinyl("2.11")
    upsert_misfit(target)
    assert target.events() == []
    target.master._write(9, {0x10: 513, 0x21: [1, 0], 0x28: [["+", 2, 100]], 0x15: 1})
    assert content(target.events()) == [("u", {"id": 1, "n": 5}, {"id": 1, "n": 105})]


SIZED = [
    ("int8", 127, 128),
    ("int64", 2**63 - 1, 2**63),
    ("uint8", 255, 256),
    ("uint32", 2**32 - 1, 2**32),
    ("float32", None, 0.5),  # of 8 bytes
    ("float64", 0.5, 1),
    ("decimal32", Decimal("9999999.99"), Decimal("99999999.9")),
    ("decimal256", Decimal("0.01"), Decimal("0.001")),
]


@pytest.mark.parametrize(("kind", "fitting", "unfit"), SIZED, ids=[kind for kind, *_ in SIZED])
def test_vinyl_passes_over_an_upsert_whose_result_is_out_of_a_sized_fields_range(kind: str, fitting: Any, unfit: Any) -> None:
    target = vinyl("3.3")
    field = {"name": "n", "type": kind, **({"scale": 2} if kind.startswith("decimal") else {})}
    target.master.format("v", [{"name": "id", "type": "unsigned"}, field])
    target.follow()
    target.master._write(9, {0x10: 513, 0x21: [1, 0], 0x28: [["=", 2, unfit]], 0x15: 1})
    assert target.events() == []
    if fitting is not None:
        target.master._write(9, {0x10: 513, 0x21: [1, 0], 0x28: [["=", 2, fitting]], 0x15: 1})
        assert [event.op for event in target.events()] == ["u"]
        assert image(target, 1, 513) == [1, fitting]


def test_vinyl_passes_over_an_upsert_whose_result_has_another_number_of_fields() -> None:
    target = vinyl("2.11")
    target.master.update(280, [513], ["=", 5, 2])
    target.follow()
    for operation in (["!", 2, 7], ["=", 2, 7]):
        target.master._write(9, {0x10: 513, 0x21: [1, 0], 0x28: [operation], 0x15: 1})
    assert content(target.events()) == [("u", {"id": 1, "n": 5}, {"id": 1, "n": 7})]


# A type of a version to come.


def test_a_field_of_an_unknown_type_ends_it_where_it_would_matter() -> None:
    """What an UPDATE makes of such a field isn't known; without images the daemon needn't know it."""
    future = [{"name": "id", "type": "unsigned"}, {"name": "at", "type": "instant", "is_nullable": True}]
    target, plain = shop(on_error="dlq"), Shop()
    for one in (target, plain):
        one.master.format("users", future)
        one.master.update("users", [1], ["=", 2, "x"])
    assert [event.op for event in plain.events()] == ["u"]
    with pytest.raises(ConfigurationError, match=r"the field 'at' of space 'users' .* is of type 'instant'"):
        target.follow()
    # A start meets it as soon, and not in a space that is left out.
    with pytest.raises(ConfigurationError, match="instant"):
        Replica(target.master, images=True).connect()
    Replica(target.master, images=True, exclude=["users"]).connect()


def test_vinyl_counts_on_with_an_integer_in_a_field_of_doubles() -> None:
    """As servers from 2.11.1 on take it; the one before refuses the row itself."""
    target = vinyl("2.11")
    target.master.format("v", [{"name": "id", "type": "unsigned"}, {"name": "n", "type": "double"}])
    target.master.upsert("v", [1, 0], ["+", 2, 1])
    assert content(target.events()) == [("u", {"id": 1, "n": 5}, {"id": 1, "n": 6})]


def test_vinyl_before_2_6_1_does_not_look_at_the_format_and_its_upserts_are_counted() -> None:
    target = vinyl("2.6")
    assert target.replica.pipeline.merging_upsert_count == 0
    upsert_misfit(target)
    assert content(target.events()) == [("u", {"id": 1, "n": 5}, {"id": 1, "n": -95})]
    target.master.upsert("users", [1, "x"], ["+", 3, 5])
    target.follow()
    assert target.replica.pipeline.merging_upsert_count == 1
    assert vinyl("2.11").replica.pipeline.merging_upsert_count == 0


# Several changes of one key.


@pytest.mark.parametrize("memory", [200, 10**9])
def test_each_row_of_a_transaction_sees_what_the_one_before_left(memory: int) -> None:
    target = shop(transaction_bytes_max=memory)
    master = target.master
    master.begin()
    master.update("users", [1], ["+", 3, 1])
    master.update("users", [1], ["+", 3, 1])
    master.delete("users", 1)
    master.insert("users", 1, "again")
    master.upsert("users", [1, "x"], ["=", 2, "once more"])
    master.delete("users", 1)
    master.delete("users", 1)
    master.commit()
    eleven, twelve = {**ONE, "balance": 11}, {**ONE, "balance": 12}
    again, more = {"id": 1, "name": "again"}, {"id": 1, "name": "once more"}
    events = target.events()
    assert content(events) == [
        ("u", ONE, eleven),
        ("u", eleven, twelve),
        ("d", twelve, None),
        ("c", None, again),
        ("u", again, more),
        ("d", more, None),
    ]
    assert [event.value["transaction"]["total_order"] for event in events] == [1, 2, 3, 4, 5, 6]


def test_truncation_between_changes() -> None:
    target = shop()
    target.master.replace("users", 1, "ONE")
    target.master.truncate("users")
    target.master.replace("users", 1, "new")
    target.master.delete("users", 2)
    assert [event[0] for event in content(target.events())] == ["u", "t", "c"]


def test_key_is_shown_as_the_tuple_has_it() -> None:
    """The server takes 1 and 1.0 for one key."""
    target = shop()
    target.master.create_space("numbers", [{"name": "n", "type": "number"}], [(0, "number")])
    target.master.insert("numbers", 1, "integer")
    target.master._write(5, {0x10: 513, 0x20: [1.0]})
    created, deleted = target.events()
    assert created.key == deleted.key == {"n": 1}


@pytest.mark.parametrize("written", [b"\xcc\x01", b"\xcf" + bytes(7) + b"\x01"])
def test_a_key_that_is_written_longer_than_need_be(written: bytes) -> None:
    """To the server it is another key (it compares the bytes of unsigned numbers), here the same one."""
    target = shop()
    target.replica.relay.relay()
    changes = changes_of(target)
    changes.changes[2](*framed(b"\x82\x10" + wire.pack(512) + b"\x21" + wire.pack([5, "short"])))
    long = b"\x92" + written.replace(b"\x01", b"\x05") + wire.pack("long")
    with pytest.raises(
        ImageError, match=f"space 'users' that already exists in another encoding.*: 05 exists, {long[1:-5].hex(' ')} arrived"
    ) as raised:
        changes.changes[2](*framed(b"\x82\x10" + wire.pack(512) + b"\x21" + long))
    assert "delete the row that is written in the longer form" in raised.value.hint
    assert "--rebuild-state" in raised.value.hint


def test_an_upsert_that_writes_its_key_differently_stops_it() -> None:
    """The server compares as a TREE does whether the key is the same, and then moves the row in the HASH index."""
    target = shop(on_image_error="dlq")
    for name, index in (("trees", "tree"), ("hashes", "hash")):
        target.master.create_space(name, [{"name": "n", "type": "decimal"}], [(0, "decimal")], index=index)
        target.master.insert(name, Decimal("1.0"), "x")
        target.master.upsert(name, [Decimal("1.0")], ["=", 1, Decimal(2)])
    assert [event.op for event in target.events()] == ["c", "c"]
    target.master.upsert("trees", [Decimal("1.0")], ["=", 1, Decimal(1)])
    assert [event.key for event in target.events()] == [{"n": "1"}]
    target.master.upsert("hashes", [Decimal("1.0")], ["=", 1, Decimal(1)])
    with pytest.raises(ImageError, match="an UPSERT into space 'hashes' writes its row's key differently"):
        target.follow()


# Rows that can't be shown.


@pytest.mark.parametrize("in_transaction", [True, False])
def test_row_that_is_set_aside_changes_the_image(*, in_transaction: bool) -> None:
    target = shop(on_error="dlq")
    master = target.master
    if in_transaction:
        master.begin()
    master.replace("users", 1, "one", HIDDEN)
    master.update("users", [2], ["=", 3, HIDDEN])
    master.upsert("users", [3, "three", HIDDEN])
    master.insert("users", 4, "four")
    if in_transaction:
        master.commit()
    found = target.follow()
    assert [sent.topic for sent in found if sent.topic.endswith("dlq")] == ["shop.dlq"] * 3
    assert [sent.op for sent in found if sent.op] == ["c"]
    assert image(target, 1) == [1, "one", HIDDEN]
    assert image(target, 3) is not None
    # The next change of such a row comes, with a before that can't be told: consumers may have the row from before it.
    master.replace("users", 1, "shown")
    master.delete("users", 3)
    assert content(target.events()) == [("u", None, {"id": 1, "name": "shown"}), ("d", None, None)]
    assert image(target, 3) is None
    master.replace("users", 1, "shown twice")
    assert content(target.events()) == [("u", {"id": 1, "name": "shown"}, {"id": 1, "name": "shown twice"})]


def test_row_that_can_not_be_shown_stops_it() -> None:
    target = shop()
    target.master.insert("users", 3, "three")
    target.master.insert("users", 4, "four", HIDDEN)
    target.replica.relay.relay()
    with pytest.raises(EncodingError):
        target.replica.receive()
    target.replica.commit()
    (event,) = target.news()
    assert event.key == {"id": 3}
    target.replica.flush()
    assert target.replica.tuples is not None
    assert len(list(target.replica.tuples.scan(512))) == 3, "its image belongs to no batch"


# Bytes.


@pytest.mark.parametrize("count", [1, 15, 16, 0x4C, 0x6C, 300, 70_000])
@pytest.mark.parametrize("in_transaction", [True, False])
def test_tuples_of_all_lengths_are_kept_as_they_came(count: int, *, in_transaction: bool) -> None:
    target = shop()
    target.master.create_space("wide")
    row = [7, *range(1, count)]
    if in_transaction:
        target.master.begin()
    target.master.insert("wide", *row)
    if in_transaction:
        target.master.commit()
    (event,) = target.events()
    assert len(event.value["after"]) == count
    images = target.replica.pipeline.images
    assert images is not None
    assert images.current(space_prefix(513) + (7).to_bytes(8, "big")) == wire.pack(row)


def changes_of(target: Shop) -> ImageChanges:
    """What makes the events of users."""
    images = target.replica.pipeline.images
    assert images is not None
    return ImageChanges(target.replica.pipeline._context.spaces.events_of(target.replica.pipeline.published_forms()[0]), images)


def framed(body: bytes, header: dict[int, Any] | None = None) -> tuple[dict[int, Any], bytes]:
    """A frame, and its body as the decoder gives it."""
    frame = wire.raw_frame(wire.pack(header or {0: 3, 2: 1, 3: 5, 4: 1.5}) + body)
    (decoded,) = FrameDecoder().feed(frame).bodies
    return decoded, frame


@pytest.mark.parametrize("header", [{0: 2, 3: 5}, {0: 2, 2: 1, 3: 2**40, 4: 1.5, 8: 3, 9: 1}, dict.fromkeys(range(20), 0)])
def test_a_tuple_lies_where_the_body_says(header: dict[int, Any]) -> None:
    """And not where the row, the header or another value looks like the beginning of a body."""
    changes = changes_of(shop())
    opening = "\x10" + wire.pack(512).decode(errors="surrogateescape") + "\x21"
    for row in ([1, "x"], [1, "\udc82" + opening + "\udc92\x01"], [1, {"\udc82" + opening: [1]}]):
        tuple_ = wire.pack(row)
        for body in (
            {0x10: 512, 0x21: row},
            {0x21: row, 0x10: 512},
            {0x10: 512, 0x21: row, 0x15: 1},
            {0x10: 512, 0x11: 0, 0x15: 1, 0x21: row},
            {0x10: 512, 0x2C: tuple_, 0x2D: wire.pack({0x10: 512, 0x21: row}), 0x21: row},
            {"\udc82" + opening: 1, 0x10: 512, 0x21: row, None: [], 1.5: 2, -1: 3, 300: {}},
        ):
            assert changes.tuple_of(framed(wire.pack(body), header)[1]) == (row, tuple_), body


SHORT, LONG, OTHER = "one byte", "more", "no unsigned integer"
KEY_FORMS: list[tuple[str, Callable[[int], bytes]]] = [
    (SHORT, lambda key: bytes([key])),
    (LONG, lambda key: bytes([0xCC, key])),
    (LONG, lambda key: bytes([0xCD, 0, key])),
    (LONG, lambda key: b"\xce" + key.to_bytes(4, "big")),
    (LONG, lambda key: b"\xcf" + key.to_bytes(8, "big")),
    (OTHER, lambda key: bytes([0xD0, key])),
    (OTHER, lambda key: b"\xd3" + key.to_bytes(8, "big")),
    (OTHER, lambda key: b"\xca" + struct.pack(">f", key)),
    (OTHER, lambda key: b"\xcb" + struct.pack(">d", key)),
    (OTHER, lambda key: b"\xa1" + bytes([key])),
    (OTHER, lambda key: b"\x91" + bytes([key])),
    (OTHER, lambda key: b"\x81" + bytes([key, key])),
]
TUPLES = [wire.pack(row) for row in ([1, "a"], [1, "b", 5], [3, "c"], [1, "\udc82\x10\udccd\x02\x00\x21\udc92\x01\udca0"])]
OPERATIONS = [wire.pack(operations) for operations in ([["=", 2, "x"]], [["+", 2, 1]], [["=", 1, "y"], ["=", 2, 3]])]
KEYS = [wire.pack(key) for key in ([1], [2], [77])]
BODIES: dict[int, dict[int, list[bytes]]] = {
    2: {0x21: [wire.pack(row) for row in ([3, "c"], [4, "\udc82\x10\udccd\x02\x00\x21"])]},
    3: {0x21: TUPLES},
    4: {0x20: KEYS, 0x21: OPERATIONS, 0x15: [b"\x00", b"\x01"]},
    5: {0x20: KEYS},
    9: {0x21: TUPLES, 0x28: OPERATIONS, 0x15: [b"\x00", b"\x01"]},
}
"""By type of row: what its body may have beside the space's id."""


@MANY
@given(st.data())
@pytest.mark.parametrize("version", ["2.6", "2.11"])
def test_a_body_means_what_it_means_to_the_server(version: str, data: st.DataObject) -> None:
    """Whatever keys the client has put into it, how often and in which form: as if it had sent just what the server has read."""
    kind = data.draw(st.sampled_from(sorted(BODIES)))
    values = {0x10: [wire.pack(512)], **BODIES[kind]}
    pairs = [(key, data.draw(st.sampled_from(values[key])), KEY_FORMS[0]) for key in values]
    strange = st.tuples(st.sampled_from([*values, 0x11, 0x2C]), st.sampled_from(range(3)), st.sampled_from(KEY_FORMS))
    for key, number, form in data.draw(st.lists(strange, max_size=3)):
        choices = values.get(key, [b"\x00", wire.pack({0x10: 513, 0x21: [1]}), wire.pack("x")])
        pairs.append((key, choices[number % len(choices)], form))
    pairs = data.draw(st.permutations(pairs))
    counted = {SHORT, LONG} if version == "2.11" else {SHORT}
    read = {key: value for key, value, (length, _) in pairs if length in counted}
    plain = wire.pack({key: msgpack.unpackb(read[key], unicode_errors="surrogateescape") for key in values if key in read})
    crafted = layout.map_header(len(pairs)) + b"".join(form(key) + value for key, value, (_, form) in pairs)
    outcomes = []
    for body in (plain, crafted):
        target = shop(version=version)
        changes = changes_of(target)
        try:
            told: Any = changes.changes[kind](*framed(body, {0: kind, 2: 1, 3: 5, 4: 1.5}))
        except CdcError as error:
            told = str(error)
        outcomes.append((told, image(target, 1), image(target, 3), image(target, 4)))
    assert outcomes[0] == outcomes[1]


def test_a_row_that_looks_like_one_of_another_space_is_refused() -> None:
    """Up to 2.8 the server doesn't see the second id."""
    changes = changes_of(shop(version="2.6"))
    body = b"\x83\x10" + wire.pack(513) + b"\x21" + wire.pack([1, "x"]) + b"\xcc\x10" + wire.pack(512)
    with pytest.raises(SchemaError, match="a row of space 513 is made to look like one of space 512"):
        changes.changes[3](*framed(body))


def test_fields_that_the_format_names_later() -> None:
    target = shop()
    target.master.update("users", [1], ["!", 4, "four"])
    assert target.event().value["after"] == {**ONE, "field_4": "four"}
    target.master.format("users", [*USERS, {"name": "more", "type": "any"}])
    target.master.update("users", [1], ["=", "more", 4])
    (event,) = target.events()
    assert (event.value["before"], event.value["after"]) == ({**ONE, "more": "four"}, {**ONE, "more": 4})
