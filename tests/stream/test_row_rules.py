"""Rules for rows: a consumer that folds the events has the rows for which the expression is true, whatever happens."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.config.columns import ColumnsRule
from cdc.config.routing import RoutingRuleSection
from cdc.errors import ConfigurationError, EncodingError, SnapshotNeededError
from cdc.formats.options import FormatOptions
from cdc.kafka.murmur2 import partition_of
from cdc.positions.vclock import VClock
from cdc.stream.batches.batch import Addressed, Broadcast
from cdc.stream.snapshots.orders import Execute, Received
from tests.fakes.master import Master
from tests.fakes.pipelines import NOW_US
from tests.fakes.profiles import SOME
from tests.fakes.replica import Replica
from tests.fakes.shop import USERS, Sent, Shop, read
from tests.formats.oracles import Ids

Row = Sequence[Any]
Rule = tuple[str, Callable[[Row], bool]]


def _balance(row: Row) -> Any:
    return row[2] if len(row) > 2 else None


RULES: Final[list[Rule]] = [
    ("row.name == 'a'", lambda row: row[1] == "a"),
    ("row.balance != null && row.balance > 3", lambda row: _balance(row) is not None and _balance(row) > 3),
    ("row.balance == null || row.name != 'b'", lambda row: _balance(row) is None or row[1] != "b"),
    ("row.id in [1, 3, 5]", lambda row: row[0] in (1, 3, 5)),
    ("false", lambda _: False),
    ("true", lambda _: True),
]
OF_KEY: Final = RULES[3:]


PARTITIONS: Final = 5
HEADERS: Final = ["op", "space", "seq", "lsn"]


def rules(where: str, *, is_shared: bool = False, partition_by: Sequence[str] = ()) -> list[RoutingRuleSection]:
    return [RoutingRuleSection(spaces=".*", where=where, topic="all" if is_shared else None, partition_by=list(partition_by))]


def news(replica: Replica) -> list[tuple[Sent, Addressed | None]]:
    """What was committed since the last call, with headers and what decides the partition."""
    at = replica._seen
    return [(read(message), replica.topics.addressed.get(number)) for number, message in enumerate(replica.news(), at)]


class Consumer:
    """What somebody has who folds the events of the topics: the rows by space and key."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, Any], dict[str, Any]] = {}
        self._seqs: dict[tuple[int, Any], int] = {}
        self._tombstone: tuple[str, Any] | None = None
        self._partitions: dict[tuple[int, Any], int] = {}
        self._deleted_from: int | None = None

    def take(self, found: list[tuple[Sent, Addressed | None]]) -> None:
        for one, addressed in found:
            if addressed is not None:
                self._address(one, addressed)
            if one.topic == "shop.snapshot" and one.value["status"] == "COMPLETED":
                for space in one.value["spaces"]:
                    self._sweep(space["space_id"], space["sweep_seq"])
            if self._tombstone is not None:
                assert ((one.topic, one.key), one.value) == (self._tombstone, None), "a tombstone follows each d"
                self._tombstone = None
            elif one.op is not None:
                self._event(one)

    def _event(self, one: Sent) -> None:
        space_id, value = one.source["space_id"], one.value
        if one.op == "t":
            self.rows = {place: row for place, row in self.rows.items() if place[0] != space_id}
            return
        place = space_id, tuple(one.key.items())
        self._seqs[place] = one.source["seq"]
        assert value["before"] == (self.rows.get(place) if one.op in ("u", "d") else None), one
        assert one.op != "c" or place not in self.rows
        if one.op == "d":
            del self.rows[place]
            self._tombstone = one.topic, one.key
        else:
            self.rows[place] = value["after"]

    def _address(self, one: Sent, addressed: Addressed) -> None:
        """Of each key, all events since it was created come in one partition, and a tombstone where its deletion was."""
        partition = partition_of(addressed.key if addressed.place is None else addressed.place, PARTITIONS)
        if one.value is None:
            assert partition == self._deleted_from
            return
        place = one.source["space_id"], tuple(one.key.items())
        if one.op == "d":
            self._deleted_from = self._partitions.pop(place)
            assert partition == self._deleted_from
        else:
            assert one.op in ("r", "c") or self._partitions[place] == partition, one
            self._partitions[place] = partition
        if addressed.headers is not None and one.op is not None:
            expected = {"op": one.op, "space": one.source["table"], "seq": str(one.source["seq"]), "lsn": str(one.source["lsn"])}
            if one.source["lsn"] is None:
                del expected["lsn"]
            assert {name: value.decode() for name, value in addressed.headers} == expected

    def _sweep(self, space_id: int, seq: int) -> None:
        for place in [place for place in self.rows if place[0] == space_id and self._seqs[place] <= seq]:
            del self.rows[place]

    def contents(self) -> list[tuple[int, list[Any]]]:
        """The rows, with the ids of their spaces."""
        return sorted((space_id, list(row.values())) for (space_id, _), row in self.rows.items())


def change(master: Master, rng: random.Random, name: str) -> None:
    """One change that a client may make."""
    key = rng.randint(1, 6)
    row = [key, rng.choice(["a", "b", "c"]), rng.choice([None, 1, 5, 2.5])][: rng.choice([2, 3, 3])]
    is_there = any(one[0] == key for one in master.contents(name))
    match rng.randrange(10):
        case 0 | 1 if not is_there:
            master.insert(name, *row)
        case 2 | 3:
            master.replace(name, *row)
        case 4 | 5 if is_there:
            master.update(name, [key], ["=", 2, rng.choice(["a", "b"])], ["=", 3, rng.choice([None, 0, 7])])
        case 6:
            master.upsert(name, row, ["=", 2, rng.choice("abc")])
        case 7 | 8 if is_there:
            master.delete(name, key)
        case 9 if rng.random() < 0.2:
            master.truncate(name)


def expected(master: Master, chooses: Callable[[Row], bool], names: Sequence[str]) -> list[tuple[int, list[Any]]]:
    return sorted((master.id_of(name), list(row)) for name in names for row in master.contents(name) if chooses(row))


def life(rng: random.Random, *, images: bool) -> None:
    """Some changes, transactions, restarts, gaps and other rules."""
    master, names = Master("2.11"), ["users", "orders"]
    for name in names:
        master.create_space(name, USERS)
    for _ in range(rng.randrange(8)):
        change(master, rng, rng.choice(names))
    where, chooses = rng.choice(RULES)
    is_shared = rng.random() < 0.3
    partition_by: Sequence[str] = rng.choice([(), ("name",), ("balance", "name"), ("id",)])
    headers = rng.choice([(), HEADERS])
    # Either of the state store, or of the log's own rows.
    master.writes_images = not images
    replica = Replica(
        master,
        images=images,
        has_source_images=not images,
        routing_rules=rules(where, is_shared=is_shared, partition_by=partition_by),
        headers=headers,
    )
    replica.connect()
    consumer = Consumer()

    def follow() -> None:
        replica.relay.relay()
        replica.receive()
        replica.commit()
        consumer.take(news(replica))

    def again() -> None:
        replica.crash()
        replica._options["routing_rules"] = rules(where, is_shared=is_shared, partition_by=partition_by)
        replica.connect()

    for _ in range(rng.randint(5, 25)):
        match rng.randrange(13):
            case 0:
                follow()
                assert consumer.contents() == expected(master, chooses, names)
            case 1:
                again()
            case 2 if images:
                follow()
                replica.flush()
            case 3:
                follow()
                replica.crash()
                change(master, rng, rng.choice(names))
                master.gc_vclock = master.vclock
                again()
            case 4 if images:
                follow()
                where, chooses = rng.choice(RULES)
                again()
                change(master, rng, "users")
                master.replace("orders", 1, "a", 4)
            case 5:
                master.begin()
                master.replace("users", 6, "b", 5)
                for _ in range(rng.randint(1, 4)):
                    change(master, rng, rng.choice(names))
                master.commit()
            case 6:
                # Only a part of what is under way arrives, also of rows that are published again.
                replica.relay.relay()
                replica.receive()
                replica.commit(rng.randint(1, 3))
                consumer.take(news(replica))
                if images and rng.random() < 0.5:
                    replica.flush()
                again()
            case 7 if images:
                follow()
                batch, _ = replica.pipeline.take_order(Received(Execute("asked", tuple(names), exact=True)), NOW_US)
                if batch is not None:
                    replica.submit(batch)
                if replica.pipeline.position.requests.open:
                    replica.submit(replica.pipeline.backfill(NOW_US)[0])
            case _:
                change(master, rng, rng.choice(names))
    master.replace("users", 1, "a", 4)
    follow()
    assert consumer.contents() == expected(master, chooses, names)


@pytest.mark.parametrize("images", [True, False])
@SOME
@given(seed=st.integers(0, 2**32))
def test_a_consumer_has_the_rows_that_the_rule_chooses(images: bool, seed: int) -> None:
    life(random.Random(seed), images=images)


@SOME
@given(st.integers(0, 2**32))
def test_the_same_without_images_by_the_key_alone(seed: int) -> None:
    rng = random.Random(seed)
    master = Master("2.11")
    master.create_space("users", USERS)
    where, chooses = rng.choice(OF_KEY)
    replica = Replica(master, routing_rules=rules(where))
    replica.connect()
    found: list[Sent] = []
    for _ in range(20):
        change(master, rng, "users")
        if rng.random() < 0.2:
            replica.crash()
            replica.connect()
        replica.relay.relay()
        replica.receive()
        replica.commit()
        found += [read(message) for message in replica.news()]
    keys = [one.key["id"] for one in found if one.op in ("c", "u", "d", "r")]
    assert all(chooses([key]) for key in keys)
    assert {row[0] for row in master.contents("users") if chooses(row)} <= set(keys)
    seqs = [one.source["seq"] for one in found if one.op is not None]
    assert seqs == list(range(1, len(seqs) + 1)), "rows that aren't published take no number"


def shop(where: str, **options: Any) -> Shop:
    return Shop(images=True, routing_rules=rules(where), **options)


def content(events: list[Sent]) -> list[tuple[str | None, Any, Any]]:
    return [(one.op, one.value["before"], one.value["after"]) for one in events]


def test_rows_enter_stay_and_leave() -> None:
    target = shop("row.balance > 15")
    assert [(one.op, one.key) for one in target.snapshot if one.op is not None] == [("r", {"id": 2})]
    completed = next(one for one in target.snapshot if one.topic == "shop.snapshot" and one.value["status"] == "COMPLETED")
    assert completed.value["spaces"][0]["rows"] == 1
    one, two = {"id": 1, "name": "one"}, {"id": 2, "name": "two"}
    target.master.update("users", [1], ["=", 3, 11])
    assert target.follow() == []
    target.master.update("users", [1], ["=", 3, 16])
    assert content(target.events()) == [("c", None, one | {"balance": 16})]
    target.master.update("users", [1], ["=", 3, 17])
    assert content(target.events()) == [("u", one | {"balance": 16}, one | {"balance": 17})]
    target.master.replace("users", 1, "one", 3)
    found = target.follow()
    assert content(found[:1]) == [("d", one | {"balance": 17}, None)]
    assert (found[1].key, found[1].value) == ({"id": 1}, None), "with a tombstone"
    target.master.delete("users", 1)
    assert target.follow() == []
    target.master.delete("users", 2)
    assert content([one for one in target.follow() if one.op]) == [("d", two | {"balance": 20}, None)]


def test_a_row_that_moves_to_another_partition() -> None:
    target = Shop(images=True, routing_rules=[RoutingRuleSection(spaces="users", partition_by=["name"])])
    target.master.update("users", [1], ["=", 3, 11])
    target.master.update("users", [1], ["=", 2, "other"])
    target.master.delete("users", 1)
    target.replica.relay.relay()
    target.replica.receive()
    target.replica.commit()
    found = [(one.op, addressed and addressed.place) for one, addressed in news(target.replica) if one.topic == "shop.users"]
    assert found == [
        ("u", b'"one"'),
        ("d", b'"one"'),
        (None, b'"one"'),
        ("c", b'"other"'),
        ("d", b'"other"'),
        (None, b'"other"'),
    ]


def test_headers_of_all_kinds_of_events() -> None:
    target = Shop(images=True, headers=["op", "lsn"])
    target.master.insert("users", 3, "three", 3)
    target.master.delete("users", 3)
    target.master.truncate("users")
    target.replica.relay.relay()
    target.replica.receive()
    parts = [part for batch in target.replica.unsettled for part in batch.parts]
    lsn = target.master.vclock[1]
    assert [part.headers for part in parts if isinstance(part, Addressed | Broadcast)] == [
        [("op", b"c"), ("lsn", b"%d" % (lsn - 2))],
        [("op", b"d"), ("lsn", b"%d" % (lsn - 1))],
        [("op", b"d"), ("lsn", b"%d" % (lsn - 1))],
        [("op", b"t"), ("lsn", b"%d" % lsn)],
    ]


def test_fields_that_decide_a_partition_are_checked() -> None:
    with pytest.raises(ConfigurationError, match=r"partition_by = \['city'\]: the space 'users' has no field 'city'"):
        Shop(images=True, routing_rules=[RoutingRuleSection(spaces="users", partition_by=["city"])])
    with pytest.raises(ConfigurationError, match="reads 'name' of space 'users', and without images"):
        Shop(routing_rules=[RoutingRuleSection(spaces="users", partition_by=["name"])])
    found = Shop(routing_rules=[RoutingRuleSection(spaces="users", partition_by=["id"])])
    assert {addressed.place for addressed in found.replica.topics.addressed.values()} == {b"1", b"2"}


def test_positions_move_without_events() -> None:
    target = shop("false")
    for number in range(10, 15):
        target.master.insert("users", number, "x", 1)
    assert target.follow() == []
    target.replica.flush()
    assert target.replica.pipeline.ledger.acknowledged == VClock(target.master.vclock)
    position = target.replica.topics.checkpoint().position
    assert position is not None
    assert position.vclock == VClock(target.master.vclock)


def test_a_rule_sees_columns_that_are_masked() -> None:
    target = shop("row.name == 'one'", column_rules=[ColumnsRule(spaces=".*", exclude=["name"])])
    assert [one.value["after"] for one in target.snapshot if one.op is not None] == [{"id": 1, "balance": 10}]


@pytest.mark.parametrize("on_error", ["fail", "dlq"])
def test_a_row_for_which_the_expression_fails(on_error: Any) -> None:
    target = shop("row.balance > 5", on_error=on_error)
    target.master.update("users", [1], ["=", 3, None])
    target.replica.relay.relay()
    if on_error == "fail":
        with pytest.raises(EncodingError, match=r"the expression fails for a row of space 'users'.*No matching overloads"):
            target.replica.receive()
        return
    target.replica.receive()
    target.replica.commit()
    (letter,) = target.news()
    assert letter.topic == "shop.dlq"
    # Consumers still have the row from before, so they are told when it is gone.
    target.master.delete("users", 1)
    assert [(one.op, one.key) for one in target.events()] == [("d", {"id": 1})]


def test_what_is_refused_at_the_start_and_at_ddl() -> None:
    with pytest.raises(
        ConfigurationError, match=r"where = \"row.nam == 'x'\".*space 'users' the expression reads the field 'nam'"
    ):
        shop("row.nam == 'x'")
    target = shop("row.name == 'one'")
    target.master.format("users", [{"name": "id", "type": "unsigned"}, {"name": "title", "type": "string"}])
    target.master.insert("users", 3, "x")
    target.replica.relay.relay()
    with pytest.raises(ConfigurationError, match=r"the field 'name', which the space doesn't have.*'title'"):
        target.replica.receive()


def test_without_images_only_the_key_may_be_read() -> None:
    with pytest.raises(ConfigurationError, match="it reads 'name' of space 'users', and without images") as caught:
        Shop(routing_rules=rules("row.name == 'x' && row.id > 1"))
    assert 'state.images = "full"' in caught.value.hint
    found = Shop(routing_rules=rules("row.id > 1"))
    assert [one.key for one in found.snapshot if one.op is not None] == [{"id": 2}]


@pytest.mark.parametrize(
    ("part", "row"),
    [((0, "decimal"), {}), ((0, "number"), {}), ((0, "scalar"), {}), ((0, "string", 1), {}), ((0, "number"), {"index": "hash"})],
)
def test_without_images_equal_keys_must_have_one_notation(part: tuple[Any, ...], row: dict[str, Any]) -> None:
    """Otherwise a change of the row may be in another partition than the row, or not be chosen while the row was."""
    master = Master("2.11")
    shape: Any = {"field": part[0], "type": part[1], "collation": part[2]} if len(part) > 2 else part
    master.create_space("users", [{"name": "id", "type": part[1]}], [shape], **row)
    for rule in (rules("row.id == '1.5'"), rules("", partition_by=["id"])):
        replica = Replica(master, routing_rules=rule)
        with pytest.raises(ConfigurationError, match="it reads 'id' of space 'users', and without images") as caught:
            replica.connect()
        assert "written in the same way" in caught.value.hint
    replica = Replica(master, images=True, routing_rules=rules("row.id == '1.5'"))
    if part[-1] != 1:
        replica.connect()


def test_another_rule_without_images_takes_a_snapshot() -> None:
    target = Shop(routing_rules=rules("row.id > 1"))
    target.replica.crash()
    target.replica._options["routing_rules"] = rules("row.id < 2")
    target.replica.connect()
    target.master.insert("users", 3, "x")
    target.replica.relay.relay()
    with pytest.raises(SnapshotNeededError, match="other rules for topics and rows"):
        target.replica.receive()


FORMATS: Final = [
    FormatOptions(),
    FormatOptions(source="lean"),
    FormatOptions(envelope="flat"),
    FormatOptions("json", "json_schema"),
    FormatOptions("json", "json_schema", envelope="flat"),
    FormatOptions("avro", "avro", schema_ids=Ids()),
    FormatOptions("json", "avro", source="lean", schema_ids=Ids()),
    FormatOptions("json", "avro", envelope="flat", schema_ids=Ids()),
    FormatOptions("json", "protobuf", schema_ids=Ids()),
    FormatOptions("json", "protobuf", envelope="flat", schema_ids=Ids()),
    FormatOptions("json", "json_schema_registry", schema_ids=Ids()),
]


@pytest.mark.parametrize("formats", FORMATS, ids=lambda one: f"{one.value}-{one.envelope}-{one.source}")
def test_headers_and_tombstones_in_all_formats(formats: FormatOptions) -> None:
    """A row that leaves is a deletion, however deletions begin in a format."""
    master = Master("2.11")
    master.create_space("users", USERS)
    master.insert("users", 1, "a", 5)
    where = [RoutingRuleSection(spaces="users", where="row.balance > 3", partition_by=["name"])]
    replica = Replica(master, images=True, headers=["op"], routing_rules=where, formats=formats)
    replica.connect()
    master.update("users", [1], ["=", 3, 6])
    master.update("users", [1], ["=", 2, "b"])
    master.update("users", [1], ["=", 3, 1])
    master.insert("users", 2, "a", 5)
    master.delete("users", 2)
    master.truncate("users")
    replica.relay.relay()
    replica.receive()
    replica.commit()
    found = [(dict(one.headers or ())["op"], one.value is None) for one in replica.topics.addressed.values()]
    no, yes = False, True
    assert found == [
        *((b"r", no), (b"u", no)),
        *((b"d", no), (b"d", yes), (b"c", no)),
        *((b"d", no), (b"d", yes)),
        *((b"c", no), (b"d", no), (b"d", yes)),
    ]


def behind(target: Shop) -> list[Sent]:
    """Have the daemon start with a store from before what it has published, and then follow."""
    target.follow()
    target.replica.crash()
    target.replica.connect()
    target.master.nop()
    return target.follow()


def test_a_start_behind_names_that_were_swapped() -> None:
    """The store is as of a time when the names, and so the topics, were others."""
    target = Shop(images=True, routing_rules=[RoutingRuleSection(spaces="(users)", topic="{1}")])
    target.master.create_space("others", USERS)
    target.follow()
    target.replica.flush()
    target.master.begin()
    for one, other in (("users", "temporary"), ("others", "users"), ("temporary", "others")):
        target.master.rename(one, other)
    target.master.commit()
    assert behind(target) == []
    target.master.insert("users", 1, "new", 1)
    target.master.delete("others", 2)
    assert [(one.op, one.topic, one.key["id"]) for one in target.events()] == [
        ("c", "shop.users", 1),
        ("d", "shop.others", 2),
    ]


def test_a_start_behind_spaces_that_share_a_topic() -> None:
    target = Shop(images=True, routing_rules=[RoutingRuleSection(spaces="a.b", topic="all")])
    target.replica.flush()
    for name in ("a b", "a_b"):
        target.master.create_space(name, USERS)
        target.master.insert(name, 1, "x")
    assert behind(target) == []
    target.master.delete("a b", 1)
    assert [(one.op, one.topic) for one in target.events()] == [("d", "shop.all")]


def test_a_start_behind_fields_that_an_expression_does_not_fit() -> None:
    target = Shop(images=True, routing_rules=[RoutingRuleSection(spaces="users", where="row.name == 'one'")])
    target.replica.flush()
    target.master.rename("users", "others")
    target.master.format("others", [{"name": "id", "type": "unsigned"}, {"name": "title", "type": "string"}])
    assert behind(target) == []
    target.master.delete("others", 1)
    assert content(target.events()) == [("d", {"id": 1, "title": "one", "field_3": 10}, None)]


def test_a_start_behind_a_row_that_is_neither_chosen_nor_encodable() -> None:
    target = shop("row.id < 5")
    target.replica.flush()
    target.master.insert("users", 7, "x", msgpack.ExtType(99, b"\0"))
    assert behind(target) == []
    target.master.replace("users", 4, "y")
    assert [one.op for one in target.events()] == ["c"]
