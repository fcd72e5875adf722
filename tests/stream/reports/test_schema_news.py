"""Log lines about DDL in the stream."""

from __future__ import annotations

from typing import Any

from cdc.config.routing import RoutingRuleSection
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.schema.forms import StoredSpace
from cdc.stream.batches.batch import Batch, Broadcast
from cdc.stream.reports.schema_news import BARE, OTHER_ROUTING, REKEYED, REKEYED_EMPTY, schema_reports
from tests.fakes import wire
from tests.fakes.master import Master
from tests.fakes.pipelines import NOW_US, frames_of, pipeline
from tests.fakes.shop import USERS, Shop

NEW, OTHER = "a new space is published", "a space has another form"
GONE, EMPTY = "a space is gone, or not published any more", "all rows of a space are gone"


class Reader:
    """Takes what the replica of a shop hands over, as the daemon does."""

    def __init__(self, shop: Shop, *, has_images: bool = False) -> None:
        self.shop = shop
        self.has_images = has_images
        self.known: dict[int, StoredSpace] = dict(shop.replica.topics.checkpoint().spaces)

    def read(self) -> list[tuple[str, dict[str, Any]]]:
        """What is new since the last call."""
        self.shop.replica.relay.relay()
        self.shop.replica.receive()
        found = [line for batch in self.shop.replica.unsettled for line in self._take(batch)]
        self.shop.replica.commit()
        return found

    def _take(self, batch: Batch) -> list[tuple[str, dict[str, Any]]]:
        found = list(schema_reports(batch, self.known, has_images=self.has_images))
        for space_id, space in batch.stored.items():
            if space is None:
                self.known.pop(space_id, None)
            else:
                self.known[space_id] = space
        return found


def test_one_line_for_each_change_of_the_schema() -> None:
    shop = Shop()
    reader = Reader(shop)
    shop.master.insert("users", 3)
    assert reader.read() == []
    shop.master.create_space("orders", USERS)
    assert reader.read() == [(NEW, {"space": "orders", "space_id": 513, "schema_version": 2})]
    shop.master.create_index("orders", [[1, "string"]], index_id=1, name="by_name")
    assert reader.read() == [], "a secondary index is no other form"
    shop.master.format("orders", [*USERS, {"name": "more", "type": "any", "is_nullable": True}])
    assert reader.read() == [(OTHER, {"space": "orders", "space_id": 513, "schema_version": 3})]
    shop.master.rename("orders", "sales")
    about = {"space": "sales", "space_id": 513, "schema_version": 4, "former_name": "orders"}
    assert reader.read() == [(OTHER, about)]
    shop.master.insert("sales", 1)
    shop.master.truncate("sales")
    assert reader.read() == [(EMPTY, {"topic": "shop.sales"})]
    shop.master.drop("sales")
    assert sorted(sentence for sentence, _ in reader.read()) == sorted([GONE, EMPTY])


def test_another_primary_key_alarms_nobody() -> None:
    """All rows go and come again, by themselves."""
    shop = Shop(images=True)
    reader = Reader(shop, has_images=True)
    shop.master.alter_key("users", [[0, "unsigned"], [1, "string"]])
    sentence, about = REKEYED, {"space": "users", "space_id": 512, "schema_version": 2}
    assert reader.read() == [(sentence, about | {"former_key": "id", "key": "id, name"})]
    shop.master.format("users", [{"name": "number", "type": "unsigned"}, *USERS[1:]])
    assert reader.read() == [(sentence, about | {"schema_version": 3, "former_key": "id, name", "key": "number, name"})]
    assert sentence.endswith("no action is needed")
    shop.master.truncate("users")
    reader.read()
    shop.master.alter_key("users", [[0, "unsigned"]])
    assert [sentence for sentence, _ in reader.read()] == [REKEYED_EMPTY]


def test_other_rules_for_topics_alarm_nobody() -> None:
    """Nor do the truncations in the former topic and in the new one."""
    shop = Shop(images=True)
    shop.replica.flush()
    shop.replica.crash()
    shop.replica._options["routing_rules"] = [RoutingRuleSection(spaces="users", topic="people")]
    shop.replica.connect()
    reader = Reader(shop)
    shop.master.insert("users", 3)
    assert reader.read() == [(OTHER_ROUTING, {"space": "users", "space_id": 512, "schema_version": 2})]


def test_another_primary_key_without_images_is_for_consumers_to_follow() -> None:
    shop = Shop()
    reader = Reader(shop)
    shop.master.alter_key("users", [[0, "unsigned"], [1, "string"]])
    about = {"space": "users", "space_id": 512, "schema_version": 2, "former_key": "id", "key": "id, name"}
    assert reader.read() == [(BARE, about)]


def test_a_snapshot_is_no_news() -> None:
    master = Master()
    master.create_space("users", USERS)
    target = pipeline()
    target.begin_snapshot(VClock({1: 5}), NOW_US)
    rows = b"".join(wire.frame({0: 2}, body) for body in [*master.snapshot(), {0x10: 512, 0x21: [1]}])
    batches = [*target.feed_snapshot(frames_of(rows), NOW_US), *target.end_snapshot(NOW_US)]
    assert any(batch.stored for batch in batches), "it tells of every space"
    assert [line for batch in batches for line in schema_reports(batch, {}, has_images=False)] == []


def test_a_truncation_of_a_snapshot_is_no_alarm() -> None:
    """A space that begins to be published is told by `t` first."""

    def said(snapshot: SnapshotState | None) -> list[str]:
        position = Position(VClock({1: 5}), 5, snapshot=snapshot)
        batch = Batch([Broadcast("shop.users", b"t")], 1, 1, 0, position, True, {}, [], 0.0, has_broadcast=True)
        return [sentence for sentence, _ in schema_reports(batch, {}, has_images=False)]

    assert said(SnapshotState(1, is_complete=True)) == [EMPTY]
    (anew,) = said(SnapshotState(1, is_complete=False))
    assert anew.startswith("a snapshot publishes a space again: a `t` event has consumers drop their rows")
