"""Where events go by the rules for topics: names, shared topics, other rules after a restart, and what is refused."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from cdc import native
from cdc.config.routing import RoutingRuleSection
from cdc.errors import ConfigurationError, RequestError, SnapshotNeededError
from cdc.formats.options import FormatOptions
from cdc.stream.batches.batch import Broadcast
from cdc.stream.snapshots.orders import Execute, Received
from tests.fakes.master import Master
from tests.fakes.pipelines import NOW_US
from tests.fakes.replica import Replica
from tests.fakes.shop import USERS, Sent, read
from tests.formats.oracles import Ids

SHARED: Final = [RoutingRuleSection(spaces="orders_.*", topic="orders")]
NAME: Final = "__dbz__physicalTableIdentifier"


def life(rules: list[RoutingRuleSection], *, images: bool = True, **options: Any) -> tuple[Master, Replica]:
    """A master with three spaces of one row each, and a replica that has taken its snapshot."""
    master = Master("2.11")
    for name in ("users", "orders_a", "orders_b"):
        master.create_space(name, USERS)
        master.insert(name, 1, "one", 10)
    replica = Replica(master, images=images, routing_rules=rules, **options)
    replica.connect()
    return master, replica


def news(replica: Replica) -> list[Sent]:
    """What comes out next."""
    if replica.connection is not None:
        replica.relay.relay()
        replica.receive()
        replica.commit()
    return [read(message) for message in replica.news()]


def events(found: list[Sent]) -> list[tuple[str, str | None, Any, str]]:
    """Of the events: topic, operation, key and space."""
    return [(one.topic, one.op, one.key, one.source["table"]) for one in found if one.op is not None]


def again(replica: Replica, **options: Any) -> None:
    """Start the daemon again with other options."""
    if replica.tuples is not None:
        replica.flush()
    replica.crash()
    replica._options.update(options)
    replica.connect()


@pytest.mark.parametrize("images", [True, False])
def test_spaces_of_a_shared_topic_have_their_names_in_the_keys(images: bool) -> None:
    master, replica = life(SHARED, images=images)
    assert events(news(replica)) == [
        ("shop.users", "r", {"id": 1}, "users"),
        ("shop.orders", "r", {NAME: "orders_a", "id": 1}, "orders_a"),
        ("shop.orders", "r", {NAME: "orders_b", "id": 1}, "orders_b"),
    ]
    master.update("orders_a", [1], ["=", 2, "new"])
    master.replace("orders_b", 2, "two", 2)
    master.delete("orders_a", 1)
    master.truncate("orders_b")
    found = news(replica)
    assert events(found) == [
        ("shop.orders", "u", {NAME: "orders_a", "id": 1}, "orders_a"),
        ("shop.orders", "c" if images else "u", {NAME: "orders_b", "id": 2}, "orders_b"),
        ("shop.orders", "d", {NAME: "orders_a", "id": 1}, "orders_a"),
        ("shop.orders", "t", None, "orders_b"),
    ]
    assert [one.key for one in found if one.value is None] == [{NAME: "orders_a", "id": 1}]
    assert list(found[0].key) == [NAME, "id"], "the name comes first"


def test_spaces_with_rules_take_the_compiled_path() -> None:
    if native.ROW_PATH != "native":
        pytest.skip("there is none here")
    for rules in (SHARED, [RoutingRuleSection(spaces="orders_(.*)", topic="{1}-orders")]):
        master, replica = life(rules)
        master.insert("orders_a", 5, "five", 5)
        news(replica)
        master.begin()
        for number in range(10, 30):
            master.insert("orders_a", number, "x", 1)
        master.commit()
        replica.relay.relay()
        replica.receive()
        assert sum(batch.native_row_count for batch in replica.unsettled) == 20


def test_topics_by_groups_and_template() -> None:
    rules = [RoutingRuleSection(spaces="orders_(.)", topic="v2.{1}.{space}")]
    _, replica = life(rules, topic_template="all.{space}")
    found = news(replica)
    assert events(found) == [
        ("shop.all.users", "r", {"id": 1}, "users"),
        ("shop.v2.a.orders_a", "r", {"id": 1}, "orders_a"),
        ("shop.v2.b.orders_b", "r", {"id": 1}, "orders_b"),
    ]
    records = [one.value["tableChanges"][0] for one in found if one.topic == "shop.schema"]
    assert [(one["id"], one["topic"]) for one in records] == [
        ('"users"', "all.users"),
        ('"orders_a"', "v2.a.orders_a"),
        ('"orders_b"', "v2.b.orders_b"),
    ]


def test_without_rules_nothing_says_so() -> None:
    _, replica = life([])
    records = [one.value["tableChanges"][0] for one in news(replica) if one.topic == "shop.schema"]
    assert len(records) == 3
    assert not [one for one in records if "topic" in one]
    assert all(not space.routing.to_json() for space in replica.topics.checkpoint().spaces.values())


def test_avro_keys_say_whose_they_are() -> None:
    ids = Ids()
    formats = FormatOptions("avro", "avro", subject="topic_record", schema_ids=ids)
    master, replica = life(SHARED, formats=formats)
    master.insert("orders_a", 2, "two", 2)
    replica.relay.relay()
    replica.receive()
    replica.commit()
    found = [one for one in replica.news() if not isinstance(one, Broadcast) and one[0] == "shop.orders"]
    assert [ids.read(one[1]) for one in found] == [
        {NAME: "orders_a", "id": 1},
        {NAME: "orders_b", "id": 1},
        {NAME: "orders_a", "id": 2},
    ]


@pytest.mark.parametrize("key", ["json_schema", "protobuf", "json_schema_registry"])
def test_keys_of_other_formats_say_whose_they_are(key: Any) -> None:
    ids = Ids()
    _, replica = life(SHARED, formats=FormatOptions(key, "json", subject="topic_record", schema_ids=ids))
    found = [one for one in replica.news() if not isinstance(one, Broadcast) and one[0] == "shop.orders"]
    keys = [json.loads(one[1] or b"")["payload"] if key == "json_schema" else ids.read(one[1]) for one in found]
    assert [(one[NAME], int(one["id"])) for one in keys] == [("orders_a", 1), ("orders_b", 1)]


@pytest.mark.parametrize("is_behind", [False, True])
def test_another_rule_moves_the_rows(is_behind: bool) -> None:
    """Also if the state store is behind what is published at the start."""
    master, replica = life([])
    news(replica)
    if is_behind:
        replica.flush()
        master.insert("users", 9, "nine", 9)
        news(replica)
        replica.crash()
        replica._options.update(routing_rules=SHARED)
        replica.connect()
    else:
        again(replica, routing_rules=SHARED)
    master.insert("users", 2, "two", 2)
    assert events(news(replica)) == [
        ("shop.orders_a", "t", None, "orders_a"),
        ("shop.orders_b", "t", None, "orders_b"),
        ("shop.orders", "t", None, "orders_a"),
        ("shop.orders", "t", None, "orders_b"),
        ("shop.users", "c", {"id": 2}, "users"),
        ("shop.orders", "r", {NAME: "orders_a", "id": 1}, "orders_a"),
        ("shop.orders", "r", {NAME: "orders_b", "id": 1}, "orders_b"),
    ]
    # Once.
    again(replica)
    master.insert("users", 3, "three", 3)
    assert events(news(replica)) == [("shop.users", "c", {"id": 3}, "users")]


def test_another_rule_in_a_snapshot() -> None:
    master, replica = life(SHARED)
    news(replica)
    master.gc_vclock = master.vclock
    replica.flush()
    master.insert("orders_b", 2, "two", 2)
    master.gc_vclock = master.vclock
    again(replica, routing_rules=[RoutingRuleSection(spaces="orders_a", topic="a"), *SHARED])
    assert replica.snapshot is not None
    assert events(news(replica)) == [
        ("shop.orders", "t", None, "orders_a"),
        ("shop.a", "t", None, "orders_a"),
        ("shop.a", "r", {NAME: "orders_a", "id": 1}, "orders_a"),
        ("shop.orders", "c", {NAME: "orders_b", "id": 2}, "orders_b"),
    ]


def test_another_rule_without_images() -> None:
    master, replica = life([], images=False)
    news(replica)
    again(replica, routing_rules=SHARED)
    master.insert("users", 2, "two", 2)
    replica.relay.relay()
    with pytest.raises(SnapshotNeededError, match="other rules for topics and rows apply to space 'orders_a'"):
        replica.receive()
    replica.crash()
    replica.forced_snapshot = "the test"
    replica.connect()
    found = events(news(replica))
    assert found[:2] == [("shop.orders_a", "t", None, "orders_a"), ("shop.orders_b", "t", None, "orders_b")]
    assert {one[:2] for one in found[2:]} == {("shop.users", "r"), ("shop.orders", "r")}


def test_a_space_that_is_renamed_on_a_shared_topic_has_other_keys() -> None:
    master, replica = life(SHARED)
    news(replica)
    master.rename("orders_a", "orders_c")
    assert events(news(replica)) == [
        ("shop.orders", "t", None, "orders_a"),
        ("shop.orders", "t", None, "orders_c"),
        ("shop.orders", "r", {NAME: "orders_c", "id": 1}, "orders_c"),
    ]


def ask(replica: Replica) -> RequestError | None:
    """Ask for the rows of a space. Returns the refusal."""
    batch, outcome = replica.pipeline.take_order(Received(Execute("asked", ("users",), exact=True)), NOW_US)
    if batch is not None:
        replica.submit(batch)
        replica.commit()
    return outcome.refusal


def test_a_request_waits_until_other_rules_are_carried_out() -> None:
    """Otherwise the rows that these rules move would never be published again."""
    master, replica = life([])
    news(replica)
    again(replica, routing_rules=SHARED)
    refusal = ask(replica)
    assert refusal is not None
    assert "other rules for columns, topics or rows" in refusal.message
    master.insert("users", 2, "two", 2)
    assert ("shop.orders", "r", {NAME: "orders_b", "id": 1}, "orders_b") in events(news(replica))
    assert ask(replica) is None
    while replica.pipeline.position.requests.open:
        replica.submit(replica.pipeline.backfill(NOW_US)[0])
    replica.commit()
    assert len(events(news(replica))) == 2


def test_other_rules_end_a_request_that_was_open() -> None:
    master, replica = life([])
    news(replica)
    assert ask(replica) is None
    again(replica, routing_rules=SHARED)
    batch, failure = replica.pipeline.backfill(NOW_US)
    assert failure is not None
    assert "other rules for columns, topics or rows" in failure.public
    replica.submit(batch)
    replica.commit()
    assert not replica.pipeline.position.requests.open
    master.insert("users", 2, "two", 2)
    assert ("shop.orders", "r", {NAME: "orders_b", "id": 1}, "orders_b") in events(news(replica))


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["a.b", "a_b"], "would have the topic 'shop.a_b' beside 'shop.a.b', the topic of space .*dots and underscores"),
        (["a b", "a/b"], "would share 'shop.a_b', the topic of space"),
        (["dlq"], "would share 'shop.dlq', a control topic"),
    ],
)
def test_collisions_are_refused_at_the_start_and_at_ddl(names: list[str], problem: str) -> None:
    *others, last = names
    master = Master("2.11")
    for name in others:
        master.create_space(name, USERS)
    replica = Replica(master, images=True)
    replica.connect()
    master.create_space(last, USERS)
    replica.relay.relay()
    with pytest.raises(ConfigurationError, match=problem) as caught:
        replica.receive()
    assert "[[routing.rules]]" in caught.value.hint
    fresh = Replica(master, images=True)
    with pytest.raises(ConfigurationError, match=problem):
        fresh.connect()
    # The remedy.
    routed = Replica(
        master, images=True, routing_rules=[RoutingRuleSection(spaces=last.replace(".", r"\."), topic="other-{space}")]
    )
    routed.connect()


def test_a_shared_topic_and_one_that_is_not() -> None:
    with pytest.raises(ConfigurationError, match=r"would share 'shop\.users', the topic of space"):
        life([RoutingRuleSection(spaces="orders_a", topic="users")])
    life([RoutingRuleSection(spaces="orders_a|users", topic="users")])


def test_a_field_of_the_name_that_keys_have() -> None:
    master, replica = life(SHARED)
    master.create_space("orders_c", [{"name": "id", "type": "unsigned"}, {"name": NAME, "type": "string"}])
    replica.relay.relay()
    with pytest.raises(ConfigurationError, match=f"space 'orders_c' has a field '{NAME}'"):
        replica.receive()
