"""A snapshot against the images: what differs comes out, and nothing else; a consumer ends with the master's contents."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import CdcError, KeysChangedError, PositionError, StoreBehindError
from cdc.events.json_values import encode, plain
from cdc.protocol.constants import Flag
from cdc.protocol.extensions import OpaqueExtension
from tests.fakes.consumer import Consumer
from tests.fakes.lives import go_a_step
from tests.fakes.master import SEQUENCE, Master
from tests.fakes.profiles import SOME
from tests.fakes.replica import Replica
from tests.fakes.shop import USERS, Sent, read
from tests.fakes.workload import Workload

PAIRS: list[Any] = [{"name": "a", "type": "unsigned"}, {"name": "b", "type": "string"}]
HIDDEN = OpaqueExtension(9, b"x")
"""What no event can show."""


class Life:
    """A master, a replica with images, and a consumer of what the replica commits."""

    def __init__(self, version: str = "2.11", **options: Any) -> None:
        self.master = Master(version)
        self.replica = Replica(self.master, images=True, **options)
        self.consumer = Consumer()

    def connect(self) -> list[Sent]:
        """A connection; the events of its snapshot, if it takes one."""
        self.replica.connect()
        return self.news()

    def news(self) -> list[Sent]:
        """The events that were committed since the last call."""
        return self.consumer.take(read(message) for message in self.replica.news())

    def follow(self) -> list[Sent]:
        """Everything that the master has, committed; its events."""
        self.replica.relay.relay()
        self.replica.relay.heartbeat()  # it ends a transaction whose last row isn't relayed
        self.replica.receive()
        self.replica.commit()
        return self.news()

    def restart(self, *, forget: bool = False) -> list[Sent]:
        """kill -9 and a new connection, which may find a gap."""
        self.replica.crash()
        if forget:
            self.master.gc_vclock = self.master.vclock
        return self.connect()

    def heal(self, error: CdcError) -> None:
        """The error has ended the daemon's pipeline, and only a snapshot helps: go on by one."""
        self.replica.crash()
        self.replica.forced_snapshot = error.message
        self.connect()
        self.follow()

    def completed(self) -> dict[str, int]:
        """By space: `sweep_seq` of the last snapshot."""
        statuses = [sent.value for sent in map(read, self.replica.topics.committed) if isinstance(sent.value, dict)]
        last = [value for value in statuses if value.get("status") == "COMPLETED"][-1]
        return {space["space"]: space["sweep_seq"] for space in last["spaces"]}

    def check(self, *names: str) -> None:
        """The consumer has the master's rows in these spaces."""
        for name in names:
            (space,) = [row for row in self.master.contents("_space") if row[2] == name]
            fields = [item["name"] for item in space[6]]
            rows = [dict(zip(fields, json.loads(encode(plain(row))), strict=False)) for row in self.master.contents(name)]
            assert self.consumer.contents(space[0]) == sorted(rows, key=json.dumps), name
        assert self.consumer.filled() <= {row[0] for row in self.master.contents("_space")}, "a space that is gone"


def ops(events: list[Sent]) -> list[tuple[str | None, Any]]:
    """Of each event: what it is, and of which key."""
    return [(event.op, event.key) for event in events]


@pytest.fixture
def life() -> Life:
    """Two rows in `users`, published, and in the store."""
    found = Life()
    found.master.create_space("users", USERS)
    found.master.insert("users", 1, "one", 10)
    found.master.insert("users", 2, "two", 20)
    assert ops(found.connect()) == [("r", {"id": 1}), ("r", {"id": 2})]
    found.replica.flush()
    return found


def test_gap_is_healed_by_what_differs(life: Life) -> None:
    for number in range(3, 8):
        life.master.insert("users", number, "same")
    life.follow()
    life.replica.flush()
    life.replica.crash()
    life.master.update("users", [1], ["=", "name", "ONE"])
    life.master.delete("users", 2)
    life.master.insert("users", 9, "nine")
    events = life.restart(forget=True)
    assert ops(events) == [("u", {"id": 1}), ("c", {"id": 9}), ("d", {"id": 2})]
    assert [(event.value["before"], event.value["after"]) for event in events] == [
        ({"id": 1, "name": "one", "balance": 10}, {"id": 1, "name": "ONE", "balance": 10}),
        (None, {"id": 9, "name": "nine"}),
        ({"id": 2, "name": "two", "balance": 20}, None),
    ]
    assert life.completed() == {"users": 0}
    life.check("users")
    life.master.update("users", [9], ["=", "name", "NINE"])
    assert ops(life.follow()) == [("u", {"id": 9})]
    life.check("users")


def test_gap_with_spaces_that_come_and_go(life: Life) -> None:
    life.master.create_space("other", USERS)
    life.master.insert("other", 1, "gone with its space")
    life.master.create_space("cut", USERS)
    life.master.insert("cut", 1, "cut")
    life.master.insert("cut", 2, "cut")
    life.follow()
    life.replica.flush()
    life.replica.crash()
    life.master.drop("other")
    life.master.truncate("cut")
    life.master.create_space("new", USERS)
    life.master.insert("new", 1, "new")
    events = life.restart(forget=True)
    assert sorted((event.topic, event.op) for event in events) == [
        ("shop.cut", "d"),
        ("shop.cut", "d"),
        ("shop.new", "r"),
        ("shop.other", "t"),
    ]
    life.check("users", "cut", "new")


def test_gap_with_another_primary_key(life: Life) -> None:
    life.master.alter_key("users", [(1, "string")])
    life.master.replace("users", 3, "three")
    assert ops(life.restart(forget=True)) == [
        ("t", None),
        ("r", {"name": "one"}),
        ("r", {"name": "two"}),
        ("r", {"name": "three"}),
    ]
    life.check("users")


def test_key_altered_behind_a_truncation(life: Life) -> None:
    """What was kept under the first key is gone, what came since isn't."""
    life.master.insert("users", 4, "four")
    life.master.truncate("users")
    life.master.insert("users", 3, "three")
    life.follow()
    life.master.alter_key("users", [(1, "string")])
    assert ops(life.follow()) == [("t", None), ("r", {"name": "three"})]
    life.check("users")


def test_key_of_an_empty_space_is_altered(life: Life) -> None:
    """Nothing is kept under the old one."""
    life.master.truncate("users")
    life.master.alter_key("users", [(1, "string")])
    life.master.insert("users", 3, "three")
    life.master.update("users", ["three"], ["=", 3, 5])
    assert ops(life.follow()) == [("t", None), ("c", {"name": "three"}), ("u", {"name": "three"})]
    life.check("users")


def test_key_that_could_not_be_kept_is_altered_to_one_that_can() -> None:
    life = Life()
    life.master.create_space("texts", PAIRS, [{"field": 1, "type": "string", "collation": 1}])
    life.connect()
    life.master.insert("texts", 1, "one")
    life.follow()
    life.master.alter_key("texts", [(0, "unsigned")])
    life.master.update("texts", [1], ["=", 2, "ONE"])
    with pytest.raises(KeysChangedError) as raised:
        life.follow()
    life.heal(raised.value)
    life.check("texts")


# The store is behind the checkpoint, and what lies between can't be read again.


def test_gap_behind_the_checkpoint_that_the_store_has_not_reached(life: Life) -> None:
    """The consumer has a row that the store never had, and that is gone from the master."""
    life.master.insert("users", 3, "three")
    life.master.update("users", [1], ["=", "name", "ONE"])
    life.follow()
    life.replica.crash()  # before a flush
    life.master.delete("users", 3)
    life.master.update("users", [1], ["=", "name", "one"])
    life.restart(forget=True)
    life.check("users")


def test_interrupted_snapshot_of_which_the_store_has_a_part() -> None:
    life = Life()
    life.master.create_space("users", USERS)
    for number in range(1, 4):
        life.master.insert("users", number, "there")
    life.connect()
    life.replica.flush()
    # A second snapshot after a gap, whose beginning is in Kafka, and only the beginning of that in the store.
    life.master.insert("users", 4, "four")
    life.restart(forget=True)
    life.check("users")
    life.replica.crash()
    life.master.delete("users", 4)
    life.restart(forget=True)
    life.check("users")


def test_space_that_is_included_again() -> None:
    life = Life()
    for name in ("users", "other"):
        life.master.create_space(name, USERS)
        life.master.insert(name, 1, "one")
        life.master.insert(name, 2, "two")
    life.connect()
    life.replica.flush()
    life.replica.include("users")
    assert ops(life.restart()) == []
    life.master.delete("other", 2)
    life.master.insert("other", 3, "three")
    assert life.follow() == []
    life.replica.flush()
    life.replica.include(".*")
    life.restart()
    life.check("users", "other")


def test_space_that_is_included_again_before_anything_has_changed(life: Life) -> None:
    """A pattern that is wrong for a moment takes nothing from the store that nobody would miss."""
    life.replica.include("userz")
    life.restart()
    life.replica.include(".*")
    assert life.restart() == []
    life.master.update("users", [1], ["=", "name", "ONE"])
    (event,) = life.follow()
    assert event.value["before"] == {"id": 1, "name": "one", "balance": 10}
    life.replica.flush()
    assert life.restart(forget=True) == []
    life.check("users")


def test_newly_included_while_the_store_is_behind() -> None:
    life = Life(include=["users"])
    for name in ("users", "other"):
        life.master.create_space(name, USERS)
        life.master.insert(name, 1, "one")
    life.connect()
    life.replica.flush()
    life.master.insert("users", 2, "two")
    life.follow()
    life.replica.include(".*")
    life.restart()
    life.follow()
    life.master.update("other", [1], ["=", "name", "ONE"])
    life.follow()
    life.check("users", "other")


def test_store_of_somebody_else(life: Life) -> None:
    """Rows without a position that this daemon gave them: nobody has published them."""
    store = life.replica.tuples
    assert store is not None
    key, row = next(store.scan(512))
    store.records.clear()
    store.rows.clear()
    store.rows[key[:-1] + b"\x07"] = row[:1] + b"\x07" + row[2:]
    store.rows[key[:-1] + b"\x08"] = row[:1] + b"\x08" + row[2:]
    life.master.delete("users", 1)
    life.master.insert("users", 8, "one", 10)
    life.restart()
    life.check("users")


def test_master_that_lost_what_lies_between_store_and_checkpoint(life: Life) -> None:
    """A backup that is older than the checkpoint, and not older than the store."""
    life.master.insert("users", 3, "three")
    life.follow()
    life.replica.crash()
    lost = life.master.log.pop()
    life.master._lsns[lost.origin] -= 1
    with pytest.raises(PositionError, match="lacks changes that were published"):
        life.connect()


def test_catch_up_gives_the_stream_the_images_of_the_checkpoint(life: Life) -> None:
    life.master.insert("users", 3, "three")
    life.master.delete("users", 1)
    life.follow()
    assert life.restart() == []
    assert life.replica.pipeline.is_catching_up
    life.master.update("users", [3], ["=", "name", "THREE"])
    (event,) = life.follow()
    assert (event.op, event.value["before"]["name"], event.source["seq"]) == ("u", "three", 5)
    life.check("users")


def test_catch_up_where_origins_come_in_another_order() -> None:
    """The upstream of the second connection had them the other way round: what isn't out yet waits for what is."""
    life = Life()
    life.master.create_space("users", USERS)
    life.connect()
    life.replica.flush()
    mark = len(life.master.log)
    life.master.insert("users", 1, "one")
    life.master.origin = 2
    life.master.insert("users", 2, "two")
    life.follow()
    life.master.origin = 1
    life.master.insert("users", 3, "three")
    life.master.update("users", [1], ["=", 2, "eins"])
    life.replica.crash()
    first, second, *more = life.master.log[mark:]
    life.master.log[mark:] = [first, *more, second]
    life.connect()
    life.follow()
    life.check("users")


def test_catch_up_over_a_log_that_has_no_end_where_events_are_out() -> None:
    """What consumers have ends within a transaction of this log: then only a snapshot helps."""
    life = Life()
    life.master.create_space("users", USERS)
    life.connect()
    life.replica.flush()
    mark = len(life.master.log)
    life.master.insert("users", 1, "one")
    life.follow()
    life.master.insert("users", 3, "three")
    life.replica.crash()
    for place, row in enumerate(life.master.log[mark:]):
        row.tsn = life.master.log[mark].lsn
        row.flags = Flag.COMMIT if place else None
    life.connect()
    with pytest.raises(StoreBehindError) as raised:
        life.follow()
    life.heal(raised.value)
    life.check("users")


# Rows that can't be shown.


@pytest.mark.parametrize("behind_a_gap", [True, False])
@pytest.mark.parametrize("goes_on", [True, False])
def test_row_that_can_not_be_shown_and_what_follows(*, behind_a_gap: bool, goes_on: bool) -> None:
    """Consumers have the row from before it, which must not stay with them."""
    life = Life(on_error="dlq")
    life.master.create_space("users", [*USERS, {"name": "more", "type": "any", "is_nullable": True}])
    life.connect()
    life.master.insert("users", 1, "one", 1)
    life.master.insert("users", 2, "two", 2, HIDDEN)
    life.master.replace("users", 1, "one", 1, HIDDEN)
    assert ops(life.follow()) == [("c", {"id": 1})]
    life.replica.flush()
    life.replica.crash()
    for number in (1, 2):
        if goes_on:
            life.master.update("users", [number], ["=", "more", "shown"])
        else:
            life.master.delete("users", number)
    found = [*life.restart(forget=behind_a_gap), *life.follow()]
    assert ops(found) == [("u" if goes_on else "d", {"id": number}) for number in (1, 2)]
    assert [event.value["before"] for event in found] == [None, None]
    life.check("users")


@pytest.mark.parametrize("images", [True, False])
def test_space_whose_key_can_not_be_shown(*, images: bool) -> None:
    """Two parts of its key have one name. All that is lost is its rows: not the daemon, nor the truncation, nor what follows."""
    fields = [{"name": "a.b", "type": "unsigned"}, {"name": "a", "type": "map"}]
    master = Master()
    master.create_space("clash", fields, [[0, "unsigned"], {"field": 1, "path": ".b", "type": "unsigned"}])
    master.insert("clash", 1, {"b": 2})
    replica = Replica(master, images=images, on_error="dlq")
    replica.connect()
    master.replace("clash", 1, {"b": 2}, "replaced")
    master.delete("clash", 1, 2)
    master.truncate("clash")
    master.insert("clash", 1, {"b": 2})
    master.format("clash", [{"name": "other", "type": "unsigned"}, *fields[1:]])
    master.insert("clash", 3, {"b": 2})
    replica.relay.relay()
    replica.receive()
    replica.commit()
    told = [(sent.topic.removeprefix("shop."), sent.op) for sent in map(read, replica.news())]
    letters = told.count(("dlq", None))
    assert letters == 4
    # With images it is another primary key, so that all rows come, the one that was set aside too.
    rest = [("clash", "t"), ("clash", "r"), ("clash", "c")] if images else [("clash", "c")]
    assert [one for one in told if one[0] == "clash"] == [("clash", "t"), *rest]


def test_row_that_can_not_be_shown_before_one_that_ends_it(life: Life) -> None:
    """What came before the row at fault is good, and changes the images as it must."""
    life = Life(on_error="dlq")
    life.master.create_space("users", [*USERS, {"name": "more", "type": "any", "is_nullable": True}])
    life.connect()
    life.master.insert("users", 1, "one", 1, HIDDEN)
    life.master.nop()
    life.master.insert("users", 1, "another one")
    life.replica.relay.relay()
    with pytest.raises(Exception, match="an INSERT of a key that already exists"):
        life.replica.receive()
    life.replica.commit()
    life.replica.flush()
    assert life.replica.tuples is not None
    assert life.replica.tuples.row_count == 1


def test_system_rows_of_a_master_without_others() -> None:
    """All rows are seen, also those that wait for the schema to be complete."""
    life = Life(include=["_sequence"])
    life.master.create_sequence(1, "one")
    assert len(life.connect()) == 1
    life.replica.flush()
    life.master.nop()
    assert ops(life.restart(forget=True)) == []
    assert len(life.consumer.contents(SEQUENCE)) == 1


# Any life.


@SOME
@given(seed=st.integers(0, 2**32 - 1))
def test_consumer_has_the_masters_contents_after_any_life(seed: int) -> None:
    rng = random.Random(seed)
    life = Life(
        rng.choice(["2.6", "2.11", "3.3"]),
        transaction_bytes_max=rng.choice([200, 10**9]),
        batch_bytes_max=rng.choice([1, 1500, 10**6]),
    )
    work = Workload(life.master, rng, simple=True)
    work.run(15)
    life.connect()
    for _ in range(40):
        step = rng.choice(["work", "work", "relay", "relay", "receive", "receive", "commit", "commit", "flush", "crash", "gap"])
        if not go_a_step(step, life.replica, rng, work.run):
            life.restart(forget=step == "gap" and rng.random() < 0.5)
        life.news()
    life.follow()
    life.check(*work.names)
