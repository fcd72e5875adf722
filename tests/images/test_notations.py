"""Vinyl's equal keys in several notations: what is certain, what is doubtful, and how the doubt ends."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from cdc.errors import ImageError
from cdc.images.doubts import lua_text, lua_value
from cdc.images.image_events import ImageChanges
from cdc.images.notations import notation_of
from cdc.protocol.codec import FrameDecoder
from cdc.protocol.extensions import Datetime, pack
from cdc.schema.forms import KeyPart, SpaceForm
from tests.fakes import wire
from tests.fakes.shop import Sent, Shop

OLD: tuple[int, ...] = (2, 6)
NEW: tuple[int, ...] = (3, 8)


def space(*parts: KeyPart, is_vinyl: bool = True) -> SpaceForm:
    return SpaceForm(512, "s", (), parts, is_vinyl=is_vinyl)


def number(sign: str, value: float) -> bytes:
    """A float of 4 bytes, or of 8."""
    return {"f": b"\xca", "d": b"\xcb"}[sign] + struct.pack(f">{sign}", value)


# Which notations find each other.


@pytest.mark.parametrize(
    ("one", "other", "old", "new"),
    [
        (pack(2), pack(2), True, True),
        (pack(2), number("d", 2.0), True, True),
        (pack(0), number("d", -0.0), True, True),
        (pack(-3), number("f", -3.0), True, True),
        (number("d", 2.0**64), number("f", 2.0**64), False, True),
        (pack(2), b"\xcc\x02", False, True),
        (pack(2), b"\xd3" + bytes(7) + b"\x02", False, True),
        (number("d", 0.5), number("f", 0.5), False, True),
        (pack(2), pack(Decimal(2)), False, False),
        (number("d", 2.5), pack(Decimal("2.5")), False, False),
        (pack(Decimal("-1.5")), pack(Decimal("-1.50")), False, False),
        (pack(Datetime(5, 0, 60)), pack(Datetime(5)), False, False),
        (pack("abc"), b"\xd9\x03abc", True, True),
        (pack(b"a"), b"\xc5\x00\x01a", False, False),
        (pack(UUID(int=1)), b"\xc7\x10\x02" + UUID(int=1).bytes, False, False),
    ],
)
def test_what_the_filter_takes_for_one_key(one: bytes, other: bytes, old: bool, new: bool) -> None:
    for version, expected in ((OLD, old), ((2, 11, 5), old), ((3, 3, 1), old), ((2, 11, 6), new), ((3, 2, 2), new), (NEW, new)):
        notation = notation_of(space(KeyPart(0, "", "scalar")), version)
        assert notation is not None
        asked, stored = notation.parts_of_key(b"\x91" + one), notation.parts_of_tuple(b"\x92" + other + b"\x01")
        assert notation.is_same(asked, stored) is expected, version


def test_only_vinyl_and_only_types_whose_values_have_several() -> None:
    assert notation_of(space(KeyPart(0, "", "number"), is_vinyl=False), OLD) is None
    assert notation_of(space(KeyPart(0, "", "string"), KeyPart(1, "", "boolean")), OLD) is None
    assert notation_of(space(KeyPart(0, "", "string"), KeyPart(1, "", "integer")), OLD) is not None
    assert space(KeyPart(0, "", "string"), KeyPart(1, "", "datetime")).has_notations
    assert not space(KeyPart(0, "", "string"), KeyPart(1, "", "integer")).has_notations
    assert not space(KeyPart(0, "", "decimal"), is_vinyl=False).has_notations


def test_parts_in_any_order_and_inside_fields() -> None:
    row = [1, Decimal("1.0"), {"a": [0, Decimal("2.0")], "b": 4}, "x"]
    fields = notation_of(space(KeyPart(3, "", "string"), KeyPart(1, "", "decimal")), OLD)
    assert fields is not None
    assert fields.parts_of_tuple(pack(row)) == [pack("x"), pack(Decimal("1.0"))]
    paths = notation_of(space(KeyPart(2, "a[2]", "decimal"), KeyPart(2, "b", "unsigned"), KeyPart(1, "", "decimal")), OLD)
    assert paths is not None
    assert paths.parts_of_tuple(pack(row)) == [pack(Decimal("2.0")), pack(4), pack(Decimal("1.0"))]


# What requests become.


def shop(kind: str, key: Any, version: str = "2.11", engine: str = "vinyl", **options: Any) -> Shop:
    """With a space `v` that has one row under this key."""
    target = Shop(version, images=True, on_image_error="dlq", **options)
    target.master.create_space("v", [{"name": "k", "type": kind}, {"name": "v", "type": "any"}], [(0, kind)], engine=engine)
    target.master.insert("v", key, "old")
    target.follow()
    return target


def ask(target: Shop, request: str, key: Any) -> None:
    """A request, logged as the server logs it whether it has found a row or not."""
    match request:
        case "update":
            target.master._write(4, {0x10: 513, 0x20: [key], 0x21: [["=", 2, "new"]], 0x15: 1})
        case "delete":
            target.master._write(5, {0x10: 513, 0x20: [key]})
        case "upsert":
            target.master._write(9, {0x10: 513, 0x21: [key, "up"], 0x28: [["=", 2, "new"]], 0x15: 1})
        case _:
            target.master._write({"insert": 2, "replace": 3}[request], {0x10: 513, 0x21: [key, "new"]})


def framed(body: bytes) -> tuple[dict[int, Any], bytes]:
    """A frame, and its body as the decoder gives it."""
    frame = wire.raw_frame(wire.pack({0: 3, 2: 1, 3: 9, 4: 1.5}) + body)
    (decoded,) = FrameDecoder().feed(frame).bodies
    return decoded, frame


def content(sent: list[Sent]) -> list[tuple[str | None, Any]]:
    return [(event.op, event.value["after"] and event.value["after"]["v"]) for event in sent if event.op]


def letters(sent: list[Sent]) -> list[str]:
    return [message.value["error"] for message in sent if message.topic == "shop.dlq"]


NOTATIONS = [
    ("decimal", Decimal("-1.5"), Decimal("-1.50")),
    ("number", 2, Decimal(2)),
    ("scalar", Decimal("2.5"), 2.5),
    ("datetime", Datetime(1000, 5), Datetime(1000, 5, 180)),
]
KINDS = [kind for kind, *_ in NOTATIONS]


@pytest.mark.parametrize(("kind", "one", "other"), NOTATIONS, ids=KINDS)
@pytest.mark.parametrize("request_", ["update", "delete", "upsert"])
@pytest.mark.parametrize("engine", ["vinyl", "memtx"])
def test_a_request_in_another_notation(kind: str, one: Any, other: Any, request_: str, engine: str) -> None:
    target = shop(kind, one, engine=engine)
    ask(target, request_, other)
    sent = target.follow()
    if engine == "memtx":
        assert content(sent) == [("d", None) if request_ == "delete" else ("u", "new")]
        return
    assert content(sent) == []
    (letter,) = letters(sent)
    assert letter.startswith(
        f"a{'' if request_ == 'delete' else 'n'} {request_.upper()} of vinyl space 'v' writes its key in another way than the "
    )
    assert f"{lua_value(other)} (bytes {pack(other).hex(' ')})" in letter
    assert f"{lua_value(one)} (bytes {pack(one).hex(' ')})" in letter
    assert "only the server knows whether this request found the row" in letter
    # Until the row arrives whole, nothing of this key is certain.
    ask(target, "update", one)
    assert len(letters(target.follow())) == 1
    ask(target, "replace", other)
    assert content(target.follow()) == [("u", "new")]
    ask(target, "delete", other)
    assert content(target.follow()) == [("d", None)]


@pytest.mark.parametrize(("kind", "one", "other"), NOTATIONS, ids=KINDS)
def test_what_is_certain_stays_so(kind: str, one: Any, other: Any) -> None:
    target = shop(kind, one)
    for request_ in ("update", "upsert"):
        ask(target, request_, one)
        assert content(target.follow()) == [("u", "new")]
    ask(target, "replace", other)
    assert content(target.follow()) == [("u", "new")]
    ask(target, "update", other)
    assert content(target.follow()) == [("u", "new")]
    ask(target, "update", one)
    assert len(letters(target.follow())) == 1


def test_a_whole_double_is_the_integer() -> None:
    target = shop("number", 2)
    ask(target, "update", 2.0)
    assert content(target.follow()) == [("u", "new")]
    ask(target, "delete", 2.0)
    assert content(target.follow()) == [("d", None)]


@pytest.mark.parametrize("is_stored", [False, True])
def test_an_insert_that_did_not_find_the_row(*, is_stored: bool) -> None:
    """The server shows the inserted row; the same comes out whether the store has the former one already."""
    target = shop("decimal", Decimal("1.5"))
    if is_stored:
        target.replica.flush()
    ask(target, "insert", Decimal("1.50"))
    (event,) = target.events()
    assert (event.op, event.key, event.value["before"], event.value["after"]) == (
        "c",
        {"k": "1.5"},
        None,
        {"k": "1.50", "v": "new"},
    )
    ask(target, "insert", Decimal("1.50"))
    with pytest.raises(ImageError, match="an INSERT of a key that already exists"):
        target.follow()


@pytest.mark.parametrize(("kind", "key", "long"), [("integer", 0, b"\xcc\x00"), ("varbinary", b"a", b"\xc5\x00\x01a")])
def test_an_insert_with_a_longer_encoding(kind: str, key: Any, long: bytes) -> None:
    """Vinyl compares these types by value too: it has no second row, and the remedy finds the row in either encoding."""
    target = shop(kind, key)
    images = target.replica.pipeline.images
    assert images is not None
    (form,) = [form for form in target.replica.pipeline.published_forms() if form.name == "v"]
    changes = ImageChanges(target.replica.pipeline._context.spaces.events_of(form), images)
    changes.changes[2](*framed(b"\x82\x10" + pack(513) + b"\x21\x92" + long + pack("new")))
    with pytest.raises(ImageError, match=f"bytes {long.hex(' ')}") as raised:
        changes.changes[5](*framed(b"\x82\x10" + pack(513) + b"\x20" + pack([key])))
    assert "iterator = 'REQ'" in raised.value.detail


def test_an_insert_ends_a_doubt() -> None:
    """The request that is in doubt was a DELETE, which found the row after all."""
    target = shop("decimal", Decimal("1.5"))
    ask(target, "delete", Decimal("1.50"))
    ask(target, "insert", Decimal("1.5"))
    sent = target.follow()
    assert len(letters(sent)) == 1
    (event,) = [message for message in sent if message.op]
    assert (event.op, event.value["before"]) == ("u", {"k": "1.5", "v": "old"})
    ask(target, "update", Decimal("1.5"))
    assert content(target.follow()) == [("u", "new")]


def test_by_default_it_stops_and_names_both_remedies() -> None:
    target = Shop("2.6", images=True)
    target.master.create_space("v", [{"name": "k", "type": "decimal"}], [(0, "decimal")], engine="vinyl")
    target.master.insert("v", Decimal("-1.5"))
    ask(target, "update", Decimal("-1.50"))
    with pytest.raises(ImageError, match="writes its key in another way") as raised:
        target.follow()
    assert 'format.on_image_error = "dlq"' in raised.value.hint
    key = "{require('decimal').new('-1.5')}"
    assert (
        f"box.atomic(function() local s = box.space['v'] local t = s:select({key}, {{iterator = 'REQ'}})[1] "
        f"if t then s:replace(t) else s:delete({key}) end end)"
    ) in raised.value.detail


# Results without their key, or with another one.


@pytest.mark.parametrize("engine", ["vinyl", "memtx"])
@pytest.mark.parametrize("operation", [["=", 1, 7], ["#", 1, 1], ["=", 1, "no number"]])
def test_an_update_never_changes_its_key(engine: str, operation: list[Any]) -> None:
    """The server refuses one that found the row, and logs one that found none."""
    target = shop("unsigned", 1, engine=engine)
    target.master._write(4, {0x10: 513, 0x20: [1], 0x21: [operation, ["=", 2, "new"]], 0x15: 1})
    sent = target.follow()
    assert content(sent) == []
    (letter,) = letters(sent)
    assert letter.startswith("the UPDATE would change the row's primary key, which the server refuses")
    # In vinyl the row may be gone, and only there a DELETE of nothing is logged, which ends the doubt.
    assert ("if t then s:replace(t) else s:delete({1}) end" in letter) == (engine == "vinyl")
    ask(target, "update", 1)
    assert "an earlier row of this key" in letters(target.follow())[0]


@pytest.mark.parametrize(
    ("version", "engine", "is_doubtful"), [("2.6", "vinyl", True), ("2.11", "vinyl", False), ("2.11", "memtx", True)]
)
def test_an_upsert_whose_result_has_no_key(version: str, engine: str, is_doubtful: bool) -> None:
    """Vinyl ignores it since 2.6.1."""
    target = shop("unsigned", 1, version=version, engine=engine)
    target.master._write(9, {0x10: 513, 0x21: [1, "up"], 0x28: [["=", 1, "no number"]], 0x15: 1})
    sent = target.follow()
    assert content(sent) == []
    assert [letter.startswith("the UPSERT would leave the row without its primary key") for letter in letters(sent)] == (
        [True] if is_doubtful else []
    )


# What is told to an operator.


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (7, "7"),
        (-(2**60), f"-{2**60}LL"),
        (2**64 - 1, f"{2**64 - 1}ULL"),
        (True, "true"),
        (2.5, "2.5"),
        (float("nan"), "…"),
        ("a'b", "'a\\'b'"),
        (Decimal("1E+2"), "require('decimal').new('1E+2')"),
        (UUID(int=1), "require('uuid').fromstr('00000000-0000-0000-0000-000000000001')"),
        (Datetime(0, 5, 60), "require('datetime').new{timestamp = 3600, nsec = 5, tzoffset = 60}"),
        (b"x", "…"),
    ],
)
def test_values_in_lua(value: Any, shown: str) -> None:
    assert lua_value(value) == shown


def test_text_in_lua() -> None:
    check: Callable[[str], str] = lua_text
    assert check("a'\\\n\udcff") == "'a\\'\\\\\\n\\255'", "as the server's console reads it"
