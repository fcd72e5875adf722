"""No value of a column that is left out or masked is anywhere: on no topic, in no error message, in no checkpoint.

Every value of such a column has a text that nothing else has. Whatever leaves the pipeline is searched for these texts, for their
bytes in hexadecimal, and for their base64.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.config.columns import ColumnsRule
from cdc.errors import CdcError, ConfigurationError, ProtocolError, SnapshotNeededError
from cdc.formats.options import FormatOptions
from cdc.protocol.constants import Key, Type
from cdc.protocol.extensions import OpaqueExtension
from cdc.stream.batches.batch import Broadcast
from tests.fakes import wire
from tests.fakes.master import Master
from tests.fakes.pipelines import frames_of
from tests.fakes.profiles import MANY
from tests.fakes.replica import Replica
from tests.fakes.shop import Sent, read
from tests.formats.oracles import Ids

FIELDS: Final = [
    {"name": "id", "type": "unsigned"},
    {"name": "city", "type": "string", "is_nullable": True},
    {"name": "email", "type": "string", "is_nullable": True},
    {"name": "phone", "type": "unsigned", "is_nullable": True},
    {"name": "balance", "type": "number", "is_nullable": True},
    {"name": "profile", "type": "any", "is_nullable": True},
    {"name": "note", "type": "string", "is_nullable": True},
    {"name": "visits", "type": "unsigned", "is_nullable": True},
]
SPACE: Final = "users"
RULES: Final = [
    ColumnsRule(spaces=SPACE, exclude=["phone", "field_.*"], hash=["email", "balance"], truncate={"note": 3}),
    ColumnsRule(spaces="user.*", mask={"profile": "***"}),
]


ALL_BUT_CITY: Final = [*RULES, ColumnsRule(spaces=SPACE, hash=["visits"])]
"""The same, and no column behind a masked one is published as it is: operations may move values there."""


class Secrets:
    """Values for the columns that are left out or masked."""

    def __init__(self, rng: random.Random, *, images: bool) -> None:
        self._rng = rng
        self._images = images
        self.texts: list[str] = []

    def text(self) -> str:
        """A value that only a masked column has. Its first characters may be published by `truncate`."""
        self.texts.append("".join(self._rng.choices("bcdfghjklmnpqrstvwxz", k=12)))
        return "abc" + self.texts[-1]

    def number(self) -> int:
        """The same, as a number."""
        number = self._rng.randrange(10**15, 10**16)
        self.texts.append(str(number))
        return number

    def value(self) -> Any:
        """The same, of any type."""
        match self._rng.randrange(8):
            case 0:
                return self.text()
            case 1:
                return {self.text(): [self.text(), {"deep": self.number()}]}
            case 2:
                return self.text().encode()
            case 3:
                return Decimal(self.number()).scaleb(-3)
            case 4:
                return self.number()
            case 5:
                return None
            case 6:
                return OpaqueExtension(99, self.text().encode())
        return [self.number(), self.text(), {"id": OpaqueExtension(98, self.text().encode())}]

    def row(self, number: int) -> list[Any]:
        """A row of the space: what isn't masked is harmless."""
        rng = self._rng
        row: list[Any] = [number, "Oslo", self.text(), self.number(), self.number(), self.value(), self.text(), 1]
        if rng.random() < 0.1:
            row[4] = Decimal(self.number()).scaleb(-2)
        if rng.random() < 0.1:
            row[2] = self.value()  # not what the format says
        row = row[: rng.randint(2, 8)] if rng.random() < 0.2 else row
        return [*row, self.text()] if len(row) == 8 and rng.random() < 0.2 else row

    def operation(self) -> list[Any]:
        """An operation of an UPDATE or UPSERT, by name, number, negative number or path."""
        rng, code = self._rng, self._rng.choice("===+-!#:&|^?")
        references = ["email", "phone", "balance", "profile", "note", 3, 4, 5, 6, 7, 9, "profile.a", "profile.a[2].b", "[6].x"]
        # With images, the last field may be one that is published.
        reference = rng.choice(references if self._images else [*references, -1, -2])
        match code:
            case "=" | "!" | "?":
                return [code, reference, self.value()]
            case "#":
                return [code, reference, rng.randint(1, 3)]
            case ":":
                return [code, reference, rng.randint(-3, 3), rng.randint(0, 3), self.text()]
        return [code, reference, self.number()]

    def found_in(self, data: bytes) -> list[str]:
        """The secrets that a reader of these bytes learns."""
        packed = data.replace(b" ", b"")
        return [text for text in self.texts if any(form in packed for form in _forms(text))]


def _forms(text: str) -> Iterator[bytes]:
    data = text.encode()
    yield data
    for shown in (data, int(text).to_bytes(8, "big") if text.isdigit() else data):
        yield shown.hex().encode()
        for shift in range(3):
            # Whole groups of base64 alone are the same whatever stands around them.
            part = shown[shift : shift + (len(shown) - shift) // 3 * 3]
            yield base64.b64encode(part)


def change(master: Master, secrets: Secrets, rng: random.Random) -> None:
    """One change that a client may make."""
    number = rng.randint(1, 6)
    is_there = [row for row in master.contents(SPACE) if row[0] == number]
    match rng.randrange(9):
        case 0 | 1:
            (master.replace if is_there else master.insert)(SPACE, *secrets.row(number))
        case 2:
            master.replace(SPACE, *secrets.row(number))
        case 3 | 4 if is_there:
            operations = [secrets.operation() for _ in range(rng.randint(1, 2))]
            master._write(Type.UPDATE, {Key.SPACE_ID: 512, Key.KEY: [number], Key.TUPLE: operations, Key.INDEX_BASE: 1})
        case 5:
            operations = [secrets.operation() for _ in range(rng.randint(1, 2))]
            row = secrets.row(number)
            master._write(Type.UPSERT, {Key.SPACE_ID: 512, Key.TUPLE: row, Key.OPS: operations, Key.INDEX_BASE: 1})
        case 6:
            master.delete(SPACE, number)
        case 7 if rng.random() < 0.3:
            broken: list[dict[int, Any]] = [
                {Key.SPACE_ID: 512, Key.TUPLE: []},
                {Key.SPACE_ID: 512, Key.TUPLE: {secrets.text(): 1}},
                {Key.SPACE_ID: 512, Key.KEY: [secrets.text()]},
                {Key.SPACE_ID: 999, Key.TUPLE: [1, secrets.text()]},
                {Key.SPACE_ID: secrets.text(), Key.TUPLE: [1]},
                {Key.SPACE_ID: [512], Key.TUPLE: [1, secrets.text()]},
            ]
            master._write(rng.choice([Type.INSERT, Type.REPLACE]), rng.choice(broken))
        case 8 if rng.random() < 0.2:
            fields = list(FIELDS)
            rng.shuffle(fields[1:])
            master.format(SPACE, [*fields[:7], *fields[7:][: rng.randint(0, 1)]])


def sent(replica: Replica) -> Iterator[bytes]:
    """Everything that has left the pipeline."""
    for message in [*replica.news(), *replica.waiting()]:
        if isinstance(message, Broadcast):
            yield message.value
        else:
            yield from (part for part in message[1:] if part is not None)
    for key, value in replica.topics._records.items():
        yield key
        yield value or b""


FORMATS: Final = [
    FormatOptions("json", "json"),
    FormatOptions("json_schema", "json_schema"),
    FormatOptions("avro", "avro"),
    FormatOptions("json", "avro"),
    FormatOptions("protobuf", "protobuf"),
    FormatOptions("json_schema_registry", "json_schema_registry"),
    FormatOptions("avro", "avro", source="lean"),
    *(FormatOptions("json", value, envelope="flat") for value in ("json", "json_schema", "avro", "protobuf")),
]


def live_through(
    secrets: Secrets, rng: random.Random, *, engine: str = "memtx", **options: Any
) -> tuple[Master, Replica, CdcError | None]:
    """Follow a master through changes of all kinds; return the error that ended it, if any."""
    master = Master("2.11")
    master.create_space(SPACE, FIELDS, engine=engine)
    for number in range(1, rng.randint(1, 5)):
        master.insert(SPACE, *secrets.row(number))
    replica = Replica(master, cut=_pieces(rng), **options)
    try:
        replica.connect()
        for _ in range(rng.randint(1, 30)):
            change(master, secrets, rng)
            replica.relay.relay()
            replica.receive()
            if rng.random() < 0.5:
                replica.commit()
            if rng.random() < 0.1:
                replica.crash()
                master.gc_vclock = master.vclock if rng.random() < 0.3 else {}
                replica.connect()
    except CdcError as error:
        return master, replica, error
    return master, replica, None


@given(
    seed=st.integers(0, 2**32),
    images=st.booleans(),
    policy=st.sampled_from(["fail", "dlq"]),
    formats=st.sampled_from(FORMATS),
    engine=st.sampled_from(["memtx", "vinyl"]),
)
@MANY
def test_no_masked_value_is_anywhere(seed: int, images: bool, policy: Any, formats: FormatOptions, engine: str) -> None:
    rng = random.Random(seed)
    secrets = Secrets(rng, images=images)
    master, replica, error = live_through(
        secrets,
        rng,
        engine=engine,
        images=images,
        column_rules=ALL_BUT_CITY,
        salt=b"0123456789abcdef",
        on_error=policy,
        on_image_error=policy,
        formats=replace(formats, schema_ids=Ids()),
    )
    errors = [] if error is None else [f"{error} {error.message} {error.hint}".encode()]
    everything = [*sent(replica), *errors]
    for data in everything:
        assert not secrets.found_in(data), data
    # By a plain checksum, a short value could be guessed.
    for row in master.log:
        checksum = b"%d" % crc32(wire.pack(row.body))
        assert not [data for data in everything if checksum in data]


@given(
    seed=st.integers(0, 2**32),
    images=st.booleans(),
    formats=st.sampled_from(FORMATS),
    engine=st.sampled_from(["memtx", "vinyl"]),
)
@MANY
def test_no_value_is_in_the_sentence_of_an_error(seed: int, images: bool, formats: FormatOptions, engine: str) -> None:
    """That is what anyone may see, also where no rules conceal anything; the log has the values."""
    rng = random.Random(seed)
    secrets = Secrets(rng, images=images)
    _, _, error = live_through(secrets, rng, engine=engine, images=images, formats=replace(formats, schema_ids=Ids()))
    if error is not None:
        assert not secrets.found_in(error.public.encode()), error.public
        assert not secrets.found_in(f"{error.message} {error.hint}".encode())
        assert error.message in str(error)
        assert error.detail in str(error)


def _pieces(rng: random.Random) -> Callable[[bytes], Iterator[bytes]]:
    def cut(data: bytes) -> Iterator[bytes]:
        while data:
            size = rng.randint(1, 400)
            yield data[:size]
            data = data[size:]

    return cut


def test_the_search_finds_what_it_should() -> None:
    secrets = Secrets(random.Random(1), images=True)
    text, number = secrets.text().encode(), secrets.number()
    packed = number.to_bytes(8, "big")
    for data in [text, b"body " + text.hex(" ").encode(), b'{"body":"' + base64.b64encode(b"x" + text) + b'"}']:
        assert secrets.found_in(data) == [text.decode()[3:]]
    for data in [b"%d" % number, base64.b64encode(b"ab" + packed + b"cd"), b"cf " + packed.hex(" ").encode()]:
        assert secrets.found_in(data) == [str(number)]
    assert not secrets.found_in(b"abc")


def test_frames_that_cant_be_read() -> None:
    """Nobody knows whose rows these are, so whoever shows such an error leaves out what it quotes."""
    for payload in [b"\x81\x00\x02\x82\x10\xcd\x02\x00\x21\x92\x01\xa6secret\xc1", b"\x01\xa6secret\x03", b"\xa6secret" * 3]:
        with pytest.raises(ProtocolError) as caught:
            frames_of(wire.raw_frame(payload)).bodies  # noqa: B018 - the compiled path decodes them only now
        error = caught.value
        assert b"secret".hex(" ") in str(error)
        error.conceal()
        assert b"secret".hex(" ") not in f"{error} {error!r} {error.args}"
        assert "columns.rules" in str(error)


# What is published instead.


def life(*, images: bool, on_error: str = "fail", rules: Sequence[ColumnsRule] = RULES, **options: Any) -> tuple[Master, Replica]:
    master = Master("2.11")
    master.create_space(SPACE, FIELDS)
    master.insert(SPACE, 1, "Oslo", "a@b", 47, 5, {"x": 1}, "a long note", 1)
    master.create_space("others", [*FIELDS[:3], FIELDS[5]])
    master.insert("others", 1, "Oslo", "a@b")
    replica = Replica(
        master, images=images, column_rules=rules, salt=b"0123456789abcdef", on_error=on_error, on_image_error=on_error, **options
    )
    replica.connect()
    replica.commit()
    return master, replica


def news(replica: Replica) -> list[Sent]:
    replica.relay.relay()
    replica.receive()
    replica.commit()
    return list(map(read, replica.news()))


def events(found: list[Sent], topic: str = "shop.users") -> list[Sent]:
    return [one for one in found if one.topic == topic and one.op is not None]


def test_rows_and_schema_records() -> None:
    master, replica = life(images=True)
    first = news(replica)
    (row,) = events(first)
    assert list(row.value["after"]) == ["id", "city", "email", "balance", "profile", "note", "visits"]
    assert row.value["after"]["profile"] == "***"
    assert row.value["after"]["note"] == "a l"
    assert len(row.value["after"]["email"]) == 64
    (other,) = events(first, "shop.others")
    assert other.value["after"] == {"id": 1, "city": "Oslo", "email": "a@b"}
    record = next(one for one in first if one.topic == "shop.schema" and one.value["source"]["table"] == SPACE)
    columns = record.value["tableChanges"][0]["table"]["columns"]
    assert [(column["name"], column["typeName"]) for column in columns] == [
        ("id", "unsigned"),
        ("city", "string"),
        ("email", "string"),
        ("balance", "string"),
        ("profile", "string"),
        ("note", "string"),
        ("visits", "unsigned"),
    ]
    master.update(SPACE, [1], ["=", "phone", 48])
    (update,) = events(news(replica))
    assert update.op == "u"
    assert update.value["before"] == update.value["after"] == row.value["after"]
    master.delete(SPACE, 1)
    (deletion,) = events(news(replica))
    assert deletion.value["before"] == row.value["after"]


def test_a_patch() -> None:
    master, replica = life(images=False)
    news(replica)
    master.update(SPACE, [1], ["=", "phone", 48], ["+", "visits", 1], ["=", "profile", 3])
    (update,) = events(news(replica))
    assert update.value["patch"] == [
        {"op": "+", "field": "visits", "value": 1},
        {"op": "=", "field": "profile", "value": "***"},
    ]


def test_a_dead_letter_has_no_body() -> None:
    master, replica = life(images=False, on_error="dlq")
    news(replica)
    master.update(SPACE, [1], ["=", -1, 5])
    master.replace("others", 2, "Oslo", "a@b", OpaqueExtension(99, b"x"))
    letters = [one.value for one in news(replica) if one.topic == "shop.dlq"]
    assert [letter["space_id"] for letter in letters] == [512, 513]
    assert letters[0]["body"] is None
    assert "columns.rules" in letters[0]["error"]
    assert letters[1]["body"]


@pytest.mark.parametrize("is_behind", [False, True])
def test_other_rules_make_another_form(is_behind: bool) -> None:
    """Also if the state store is behind what is published at the start."""
    master, replica = life(images=True)
    first = news(replica)
    version = events(first)[0].source["schema_version"]
    replica.flush()
    if is_behind:
        master.replace("others", 9, "Rome")
        news(replica)
    replica.crash()
    replica._options["column_rules"] = [ColumnsRule(spaces=SPACE, exclude=["email"])]
    replica.connect()
    master.replace(SPACE, 2, "Rome")
    found = news(replica)
    (record,) = [one for one in found if one.topic == "shop.schema"]
    assert record.value["tableChanges"][0]["type"] == "ALTER"
    # Consumers drop what they have, and get all rows by the new rules.
    assert [(one.op, one.key and one.key["id"]) for one in events(found)] == [("t", None), ("r", 1), ("r", 2)]
    assert {one.source["schema_version"] for one in events(found)} == {record.value["source"]["schema_version"]}
    assert record.value["source"]["schema_version"] > version
    assert not [one for one in found if one.topic == "shop.others"]
    # And the next start makes no other one.
    replica.flush()
    replica.crash()
    replica.connect()
    master.replace(SPACE, 3, "Rome")
    assert [one.topic for one in news(replica)] == ["shop.users"]


def test_other_rules_at_a_snapshot_that_is_compared() -> None:
    master, replica = life(images=True)
    news(replica)
    replica.flush()
    replica.crash()
    replica._options["salt"] = b"another salt of its"
    master.insert(SPACE, 2, "Rome")
    master.gc_vclock = master.vclock
    replica.connect()
    assert replica.plan is not None
    assert replica.plan.snapshot is not None
    assert [(one.op, one.key and one.key["id"]) for one in events(news(replica))] == [("t", None), ("r", 1), ("r", 2)]


def test_other_rules_without_images() -> None:
    master, replica = life(images=False)
    news(replica)
    replica.crash()
    replica._options["column_rules"] = [*RULES, ColumnsRule(spaces=SPACE, exclude=["city"])]
    replica.connect()
    master.insert(SPACE, 2, "Rome")
    replica.relay.relay()
    with pytest.raises(SnapshotNeededError, match="other rules for columns apply to space 'users'"):
        replica.receive()
    replica.crash()
    replica.forced_snapshot = "the test"
    replica.connect()
    found = events(news(replica))
    assert [(one.op, one.key["id"]) for one in found] == [("r", 1), ("r", 2)]
    assert all("city" not in one.value["after"] for one in found)


def test_the_key_is_refused_at_the_start_and_at_ddl() -> None:
    with pytest.raises(ConfigurationError, match="in the primary key of space 'users'"):
        life(images=True, rules=[ColumnsRule(spaces=SPACE, exclude=["id"])])
    master, replica = life(images=True, rules=[ColumnsRule(spaces="new.*", exclude=["email"])])
    master.create_space("new", FIELDS, [[2, "string"]])
    replica.relay.relay()
    with pytest.raises(ConfigurationError, match="'email', which is in the primary key of space 'new'"):
        replica.receive()


@pytest.mark.parametrize("images", [True, False])
def test_ddl_does_not_publish_a_column_by_making_it_a_key(images: bool) -> None:
    """`include` needn't name the key's columns, but one that is left out doesn't become public by DDL."""
    master, replica = life(images=images, rules=[ColumnsRule(spaces=SPACE, include=["city"])])
    news(replica)
    master.alter_key(SPACE, [[0, "unsigned"], [2, "string"]])
    master.replace(SPACE, 2, "Rome", "c@d")
    replica.relay.relay()
    with pytest.raises(ConfigurationError, match="the column 'email' of space 'users' is in its primary key now"):
        replica.receive()
    replica.commit()
    assert not [data for data in sent(replica) if b"c@d" in data or b"a@b" in data]
    replica.crash()
    replica._options["column_rules"] = [ColumnsRule(spaces=SPACE, include=["city", "email"])]
    replica.forced_snapshot = None if images else "other rules"
    replica.connect()
    assert [one.key for one in events(news(replica))][-1] == {"id": 2, "email": "c@d"}


@pytest.mark.parametrize("images", [True, False])
def test_avro_and_connect_have_the_published_types(images: bool) -> None:
    ids = Ids()
    master, replica = life(images=images, formats=FormatOptions("avro", "avro", schema_ids=ids))
    rows = [ids.read(one[2]) for one in replica.news() if not isinstance(one, Broadcast) and one[0] == "shop.users"]
    assert rows[0]["after"] | {"email": "", "balance": ""} == {
        "id": 1,
        "city": "Oslo",
        "email": "",
        "balance": "",
        "profile": "***",
        "note": "a l",
        "visits": 1,
    }
    master.delete(SPACE, 1)
    replica.relay.relay()
    replica.receive()
    replica.commit()
    deletion = next(one for one in replica.news() if not isinstance(one, Broadcast) and one[0] == "shop.users")
    before = ids.read(deletion[2])["before"]
    assert before["id"] == 1
    assert before == rows[0]["after"] if images else before["note"] is None
    assert "phone" not in json.dumps([wanted.text for wanted in ids.schemas if wanted.subject.startswith("shop.users")])


@pytest.mark.parametrize("value", ["avro", "protobuf"])
def test_names_of_columns_that_are_left_out_are_nobodys(value: Any) -> None:
    """Not in a schema, so they may be the cleaned name of another column, or that of a field past the format."""
    master, ids = Master("2.11"), Ids()
    names = ("a-b", "a_b", "field_6", "x")
    master.create_space(SPACE, [FIELDS[0], *({"name": name, "type": "any", "is_nullable": True} for name in names)])
    rules = [ColumnsRule(spaces=SPACE, exclude=["a-b", "field_6"])]
    replica = Replica(
        master, images=True, column_rules=rules, formats=FormatOptions(value, value, schema_ids=ids), on_error="dlq"
    )
    replica.connect()
    for number in (1, 2):
        master.insert(SPACE, number, "secret", "b", "secret", "x", "secret", "seventh")
    replica.relay.relay()
    replica.receive()
    replica.commit()
    found = [ids.read(one[2])["after"] for one in replica.news() if not isinstance(one, Broadcast) and one[0] == "shop.users"]
    row = {"a_b": '"b"', "x": '"x"', "field_7": '"seventh"'}
    assert found == [{"id": number} | row for number in (1, 2)]


def test_a_schema_gets_the_published_ones_of_the_fields_past_the_format() -> None:
    ids = Ids()
    rules = [ColumnsRule(spaces=SPACE, exclude=["phone", "field_9"], hash=["field_11"])]
    master, replica = life(images=True, rules=rules, formats=FormatOptions("avro", "avro", schema_ids=ids))
    replica.news()
    master.replace(SPACE, 2, "Rome", None, 49, None, None, None, None, "ninth", "tenth", "eleventh")
    replica.relay.relay()
    replica.receive()
    replica.commit()
    (found,) = [ids.read(one[2]) for one in replica.news() if not isinstance(one, Broadcast) and one[0] == "shop.users"]
    assert found["after"].keys() & {"phone", "field_9", "field_10", "field_11"} == {"field_10", "field_11"}
    assert json.loads(found["after"]["field_10"]) == "tenth"
    assert "eleventh" not in str(found)
