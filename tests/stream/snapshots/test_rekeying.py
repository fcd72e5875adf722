"""A primary key that becomes another: all rows come again under their new keys, out of the store, whatever happens meanwhile."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import EncodingError, KeysChangedError
from cdc.images import overlay
from cdc.positions.position import Position, Rekeyed
from cdc.positions.vclock import VClock
from cdc.stream.batches.batch import Batch
from cdc.stream.snapshots import backfill, rekeying
from cdc.stream.snapshots.orders import Execute, Received
from tests.fakes.consumer import Consumer
from tests.fakes.lives import STEPS, go_a_step, work_in_transactions
from tests.fakes.master import Master
from tests.fakes.profiles import SOME
from tests.fakes.replica import Replica
from tests.fakes.shop import Sent, read
from tests.stream.snapshots.test_snapshot_diff import HIDDEN, Life, ops

FIELDS: list[Any] = [
    {"name": "id", "type": "unsigned"},
    {"name": "code", "type": "string"},
    {"name": "n", "type": "unsigned"},
    {"name": "more", "type": "any", "is_nullable": True},
]
KEYS: list[list[tuple[int, str]]] = [[(0, "unsigned")], [(1, "string")], [(2, "unsigned"), (0, "unsigned")], [(0, "integer")]]
BY_CODE = KEYS[1]
COLLATED: list[Any] = [{"field": 1, "type": "string", "collation": 1}]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several of each for a handful of rows."""
    monkeypatch.setattr(rekeying, "CHUNK_ROWS", 2)
    monkeypatch.setattr(backfill, "CHUNK_ROWS", 2)
    monkeypatch.setattr(overlay, "REKEY_ROWS", 3)


class Killed(Exception):  # noqa: N818 - no fault of anybody
    """The process is gone."""


class MortalReplica(Replica):
    """A replica that is killed when it has handed over so many batches, or pauses."""

    handed_over = 0
    lives_until: int | None = None

    def submit(self, batch: Batch) -> None:
        """Hand a batch to the publisher."""
        if self.handed_over == self.lives_until:
            raise Killed
        self.handed_over += 1
        super().submit(batch)


class Rekeying(Life):
    """Five rows of `things`, published and in the store."""

    def __init__(self, version: str = "2.11", parts: list[Any] = KEYS[0], **options: Any) -> None:
        self.master = Master(version)
        self.replica: MortalReplica = MortalReplica(self.master, images=True, **options)
        self.consumer = Consumer()
        self.master.create_space("things", FIELDS, parts)
        for number in range(1, 6):
            self.master.insert("things", *row(number))
        self.connect()
        self.replica.flush()

    def position(self) -> Position:
        """The checkpoint's."""
        found = self.replica.topics.checkpoint().position
        assert found is not None
        return found

    def go_on(self) -> list[Sent]:
        """Go on from the checkpoint, without a snapshot, and catch up."""
        self.replica.lives_until = None
        self.replica.crash()
        events = self.connect()
        assert self.replica.snapshot is None, self.replica.snapshot
        return events + self.follow()

    def be_killed(self, act: Callable[[], object], moment: int, *, flushes: bool = True) -> None:
        """Do this, and be killed when so many more batches have been handed over; what had been is committed."""
        self.replica.lives_until = self.replica.handed_over + moment
        with pytest.raises(Killed):
            act()
        self.replica.commit()
        if flushes:
            self.replica.flush()

    def records(self) -> list[tuple[str, str, list[int]]]:
        """What was said of snapshots: number, status, rows of each space."""
        values = [sent.value for sent in map(read, self.replica.topics.committed) if sent.topic == "shop.snapshot"]
        return [(value["snapshot_id"], value["status"], [space["rows"] for space in value.get("spaces", [])]) for value in values]


def row(number: int, *more: Any) -> list[Any]:
    return [number, f"code {9 - number}", number * 10, *more]


def codes(*numbers: int) -> list[tuple[str, Any]]:
    return [("r", {"code": f"code {9 - number}"}) for number in numbers]


@pytest.fixture
def life() -> Rekeying:
    return Rekeying()


def test_all_rows_come_again_under_their_new_keys(life: Rekeying) -> None:
    life.master.alter_key("things", BY_CODE)
    life.master.update("things", ["code 8"], ["=", "n", 11])
    life.master.delete("things", "code 4")
    events = life.follow()
    assert life.replica.snapshot is not None, "the first one, which this test begins with"
    assert ops(events) == [("t", None), *codes(5, 4, 3, 2, 1), ("u", {"code": "code 8"}), ("d", {"code": "code 4"})]
    assert life.records()[2:] == [("2", "STARTED", []), ("2", "COMPLETED", [5])]
    truncation, first = events[0].source, events[1]
    alteration = life.master.log[-3]
    assert (truncation["lsn"], truncation["row"], truncation["schema_version"]) == (alteration.lsn, 0, 2)
    assert first.value["transaction"] is None
    assert (first.source["snapshot"], first.source["snapshot_id"], first.source["schema_version"]) == ("true", "2", 2)
    assert first.source["vclock"] == {"1": alteration.lsn}
    assert events[-2].value["before"]["n"] == 10
    assert [event.source["seq"] for event in events] == list(range(6, 14))
    life.check("things")
    assert life.position().rekeyed == ()
    # And it is kept under them, for whoever comes later.
    life.replica.flush()
    life.master.update("things", ["code 7"], ["=", "n", 22])
    assert ops(life.go_on()) == [("u", {"code": "code 7"})]
    life.check("things")


def test_the_schema_record_comes_first(life: Rekeying) -> None:
    life.master.alter_key("things", BY_CODE)
    life.follow()
    topics = [sent.topic for sent in map(read, life.replica.topics.committed)][-9:]
    assert topics == ["shop.schema", "shop.things", "shop.snapshot", *["shop.things"] * 5, "shop.snapshot"]


def test_what_is_on_its_way_to_the_store_comes_too(life: Rekeying) -> None:
    """Changes before the alteration in the same batch, and in one that isn't written yet."""
    life.master.delete("things", 2)
    life.follow()
    life.master.insert("things", *row(6))
    life.master.alter_key("things", BY_CODE)
    assert ops(life.follow()) == [("c", {"id": 6}), ("t", None), *codes(6, 5, 4, 3, 1)]
    life.replica.flush()
    life.check("things")
    life.master.replace("things", *row(3, "again"))
    assert ops(life.go_on()) == [("u", {"code": "code 6"})]
    life.check("things")


@pytest.mark.parametrize("flushes", [True, False])
def test_altered_twice_and_back(life: Rekeying, *, flushes: bool) -> None:
    life.master.alter_key("things", BY_CODE)
    life.master.replace("things", *row(3, "between"))
    life.master.alter_key("things", KEYS[2])
    life.master.alter_key("things", KEYS[0])
    life.master.delete("things", 1)
    assert [event.op for event in life.follow()] == [*"trrrrr", "u", *"trrrrr", *"trrrrr", "d"]
    life.check("things")
    if flushes:
        life.replica.flush()
    life.master.insert("things", *row(1, "anew"))
    assert ops(life.go_on()) == [("c", {"id": 1})]
    life.check("things")


def test_rows_under_former_keys_are_removed_from_the_store(life: Rekeying) -> None:
    tuples, writer = life.replica.tuples, life.replica._writer
    assert tuples is not None
    assert writer is not None
    writer._flush_interval = 0.0
    life.master.alter_key("things", BY_CODE)
    life.follow()
    life.replica.flush()
    assert tuples.row_count == 10
    for _ in range(3):
        life.replica.flush()
    assert tuples.row_count == 5
    (number,) = tuples.space_ids()
    assert number >= overlay.NUMBER_MIN
    life.master.alter_key("things", KEYS[0])
    life.follow()
    life.replica.flush()
    for _ in range(3):
        life.replica.flush()
    assert tuples.space_ids() == [number + 1]
    life.go_on()
    life.check("things")


@pytest.mark.parametrize("tidies", range(4))
def test_rows_on_their_way_to_the_store_are_not_removed_as_former_ones(
    life: Rekeying, monkeypatch: pytest.MonkeyPatch, tidies: int
) -> None:
    """Three other keys in quick succession: the second one's rows are the store's next, though the third has replaced them."""
    monkeypatch.setattr(overlay, "REKEY_ROWS", 3)
    writer = life.replica._writer
    assert writer is not None
    writer._flush_interval = 0.0
    for parts in (BY_CODE, KEYS[2], KEYS[0]):
        life.master.alter_key("things", parts)
    life.replica.relay.relay()
    life.replica.receive()
    batches = life.replica.unsettled
    first, second, third = [number for number, batch in enumerate(batches) if batch.stored]
    assert first < second < third
    life.replica.commit(second)
    life.replica.flush()
    for _ in range(tidies):
        life.replica.flush()
    life.replica.commit(third - second)
    life.replica.flush()
    life.news()
    life.replica.crash()
    life.connect()
    life.follow()
    life.check("things")


def test_a_space_that_is_taken_out_while_the_store_is_behind_comes_back_as_a_whole(life: Rekeying) -> None:
    """Kafka's checkpoint has to learn that it is out, although only the store is brought along at first."""
    life.master.create_space("others", FIELDS, KEYS[0])
    life.master.insert("others", *row(1))
    life.follow()
    life.replica.flush()
    life.master.insert("others", *row(2))
    life.follow()
    life.replica.include("others")
    life.restart()
    assert life.replica.pipeline.is_catching_up
    life.master.insert("others", *row(3))
    life.master.delete("things", 5)
    assert [event.op for event in life.follow()] == ["c"]
    life.replica.flush()
    life.replica.include(".*")
    assert [event.op for event in life.restart()] == [*"trrrr"]
    life.master.delete("things", 2)
    life.follow()
    life.check("things")


def test_of_an_empty_space_nothing_is_said(life: Rekeying) -> None:
    life.master.truncate("things")
    life.follow()
    life.master.alter_key("things", BY_CODE)
    life.master.insert("things", *row(1))
    assert ops(life.follow()) == [("c", {"code": "code 8"})]
    life.check("things")


@pytest.mark.parametrize("is_transaction", [True, False])
def test_dropped_and_created_anew(life: Rekeying, *, is_transaction: bool) -> None:
    """The rows go with the first primary key, and come with the second."""
    if is_transaction:
        life.master.begin()
    life.master.drop_index("things", 0)
    life.master.create_index("things", BY_CODE)
    for number in (1, 2):
        life.master.insert("things", *row(number))
    if is_transaction:
        life.master.commit()
    assert ops(life.follow()) == [("t", None), ("c", {"code": "code 8"}), ("c", {"code": "code 7"})]
    life.check("things")


def test_truncated_in_the_same_transaction(life: Rekeying) -> None:
    life.master.begin()
    life.master.alter_key("things", BY_CODE)
    life.master.truncate("things")
    life.master.commit()
    assert {event.op for event in life.follow()} == {"t"}
    life.check("things")
    life.master.insert("things", *row(1))
    assert ops(life.follow()) == [("c", {"code": "code 8"})]
    life.check("things")


@pytest.mark.parametrize("memory", [100, 10**9])
def test_rows_that_the_same_transaction_changes_come_with_the_others(memory: int) -> None:
    life = Rekeying(transaction_bytes_max=memory)
    life.master.begin()
    life.master.replace("things", *row(1, "before"))
    life.master.alter_key("things", BY_CODE)
    life.master.replace("things", *row(2, "after"))
    life.master.delete("things", "code 6")
    life.master.insert("things", *row(6))
    life.master.commit()
    life.master.update("things", ["code 3"], ["=", "n", 1])
    events = life.follow()
    assert ops(events) == [("u", {"id": 1}), ("t", None), *codes(6, 5, 4, 2, 1), ("u", {"code": "code 3"})]
    assert events[1].value["transaction"] == {
        "id": events[0].value["transaction"]["id"],
        "total_order": 2,
        "data_collection_order": 2,
    }
    life.check("things")


def keys_that_meet(life: Rekeying) -> None:
    """Two rows whose former keys are each other's new ones, and a transaction that makes them so behind another one."""
    life.master.create_space("others", FIELDS, KEYS[0])
    life.master.insert("others", 10, "ten", 20)
    life.master.insert("others", 20, "twenty", 10)
    life.follow()
    life.replica.flush()
    life.master.insert("things", *row(6))
    life.master.begin()
    life.master.update("others", [10], ["=", "more", "changed"])
    life.master.alter_key("others", [(2, "unsigned")])
    life.master.replace("others", 30, "thirty", 30)


def test_killed_in_a_large_transaction_that_alters_the_key(life: Rekeying) -> None:
    """What was handed on before it is in the store, with the keys that rows had then."""
    life.replica._options["batch_bytes_max"] = 1500
    life.restart()
    keys_that_meet(life)
    for number in range(100, 110):
        life.master.insert("things", *row(number, "x" * 300))
    life.master.commit()
    life.replica.relay.relay()
    life.replica.receive()
    life.replica.commit(1)
    life.replica.flush()
    assert ops(life.news()) == [("c", {"id": 6})]
    events = life.go_on()
    assert ops(events)[:2] == [("u", {"id": 10}), ("t", None)]
    life.check("things", "others")


def test_a_transaction_that_alters_the_key_and_can_not_be_shown(life: Rekeying) -> None:
    keys_that_meet(life)
    life.master.insert("things", *row(7, HIDDEN))
    life.master.commit()
    with pytest.raises(EncodingError):
        life.follow()
    life.replica.commit()
    life.replica.flush()
    assert ops(life.news()) == [("c", {"id": 6})]
    life.replica._options["on_error"] = "dlq"
    assert ops(life.go_on())[:2] == [("u", {"id": 10}), ("t", None)]
    life.check("others")


def test_altered_several_times_in_a_transaction(life: Rekeying) -> None:
    life.master.begin()
    life.master.alter_key("things", BY_CODE)
    life.master.replace("things", *row(2, "between"))
    life.master.alter_key("things", KEYS[2])
    life.master.alter_key("things", KEYS[0])
    life.master.replace("things", *row(3, "after"))
    life.master.commit()
    events = life.follow()
    assert [event.op for event in events][-6:] == [*"trrrrr"]
    life.check("things")
    life.master.delete("things", 4)
    assert ops(life.follow()) == [("d", {"id": 4})]


def test_renamed_part(life: Rekeying) -> None:
    """The rows are kept under the same keys, and known under others."""
    life.master.format("things", [{"name": "number", "type": "unsigned"}, *FIELDS[1:]])
    life.master.delete("things", 2)
    expected = [("t", None), *(("r", {"number": number}) for number in range(1, 6)), ("d", {"number": 2})]
    assert ops(life.follow()) == expected
    assert life.replica.tuples is not None
    life.replica.flush()
    assert life.replica.tuples.space_ids() == [512]
    life.check("things")


def test_renamed_field_that_is_no_part(life: Rekeying) -> None:
    life.master.format("things", [FIELDS[0], {"name": "title", "type": "string"}, *FIELDS[2:]])
    assert life.follow() == []


def test_part_that_was_renamed_behind_a_gap(life: Rekeying) -> None:
    life.replica.crash()
    life.master.format("things", [{"name": "number", "type": "unsigned"}, *FIELDS[1:]])
    assert ops(life.restart(forget=True)) == [("t", None), *(("r", {"number": number}) for number in range(1, 6))]
    life.check("things")


def test_renamed_together_with_the_space(life: Rekeying) -> None:
    """All of it is in the other topic."""
    life.master.begin()
    life.master.rename("things", "objects")
    life.master.alter_key("things" if life.master.version < (2, 0, 0) else "objects", BY_CODE)
    life.master.commit()
    events = life.follow()
    assert {event.topic for event in events} == {"shop.objects"}
    assert ops(events) == [("t", None), *codes(5, 4, 3, 2, 1)]


def test_several_spaces_in_one_transaction(life: Rekeying) -> None:
    life.master.create_space("others", FIELDS)
    for number in range(1, 4):
        life.master.insert("others", *row(number))
    life.follow()
    life.master.begin()
    life.master.alter_key("things", BY_CODE)
    life.master.alter_key("others", BY_CODE)
    life.master.commit()
    life.be_killed(life.follow, 5, flushes=False)
    life.news()
    assert [one.space_id for one in life.position().rekeyed] == [512, 513]
    life.go_on()
    life.check("things", "others")
    assert life.records()[2:] == [("2", "STARTED", []), ("2", "COMPLETED", [5]), ("3", "STARTED", []), ("3", "COMPLETED", [3])]


def test_a_request_for_rows_that_is_running(life: Rekeying) -> None:
    """It shows all rows under the keys that they have now, and events around them fit."""
    asked, _ = life.replica.pipeline.take_order(Received(Execute("a", ("things",), exact=True)), 0)
    assert asked is not None
    life.replica.submit(asked)
    life.replica.submit(life.replica.pipeline.backfill(0)[0])
    life.replica.commit()
    life.master.alter_key("things", BY_CODE)
    life.master.insert("things", *row(6))
    life.follow()
    while life.replica.pipeline.position.requests.open:
        life.replica.submit(life.replica.pipeline.backfill(0)[0])
    life.replica.commit()
    shown = ops(life.news())
    assert shown == codes(6, 5, 4, 3, 2, 1)
    assert life.records()[-1] == ("2", "COMPLETED", [6])
    life.check("things")


# Keys that can't be kept.


def test_key_under_which_rows_can_not_be_kept(life: Rekeying) -> None:
    """They come under it all the same, this once; from then on the space is one without images."""
    life.master.alter_key("things", COLLATED)
    life.master.update("things", ["code 8"], ["=", "n", 11])
    life.replica.relay.relay()
    life.replica.receive()
    life.replica.commit()
    *rows, change = [sent for sent in map(read, life.replica.news()) if sent.op]
    assert ops(rows) == [("t", None), *codes(1, 2, 3, 4, 5)]
    assert (change.op, change.key, change.value["patch"]) == ("u", {"code": "code 8"}, [{"op": "=", "field": "n", "value": 11}])
    assert life.replica.pipeline.images is not None
    assert "collation" in life.replica.pipeline.images.spaces_without_images["things"]
    life.replica.flush()
    assert life.replica.tuples is not None
    assert life.replica.tuples.row_count == 0


@pytest.mark.parametrize("flushes", [True, False])
@pytest.mark.parametrize("moment", range(4))
def test_killed_while_such_rows_are_published(life: Rekeying, moment: int, *, flushes: bool) -> None:
    life.master.alter_key("things", COLLATED)
    life.be_killed(life.follow, moment, flushes=flushes)
    life.go_on()
    life.check("things")
    life.replica.flush()
    life.go_on()
    life.check("things")


def test_such_a_key_and_changes_of_rows_in_one_transaction(life: Rekeying) -> None:
    life.master.begin()
    life.master.alter_key("things", COLLATED)
    life.master.replace("things", *row(1, "x"))
    life.master.commit()
    with pytest.raises(KeysChangedError) as raised:
        life.follow()
    life.heal(raised.value)
    life.check("things")


@pytest.mark.parametrize("change", ["alter", "rename"])
def test_key_that_could_not_be_kept_before_needs_a_snapshot(change: str) -> None:
    life = Rekeying(parts=COLLATED)
    if change == "alter":
        life.master.alter_key("things", KEYS[0])
    else:
        life.master.format("things", [FIELDS[0], {"name": "title", "type": "string"}, *FIELDS[2:]])
    with pytest.raises(KeysChangedError) as raised:
        life.follow()
    life.heal(raised.value)
    life.check("things")


# Whatever happens meanwhile.


def moments() -> Iterator[tuple[int, int | None, bool, bool]]:
    """After how many batches the process ends, how many of them are committed (all, or all but so many), and flushes."""
    for moment in range(15):
        for uncommitted in (0, 1, 3, None):
            for flushes in (True, False):
                yield moment, uncommitted, flushes, moment % 2 == 0


@pytest.mark.parametrize(("moment", "uncommitted", "flushes", "is_early"), list(moments()))
def test_killed_at_any_moment(moment: int, uncommitted: int | None, *, flushes: bool, is_early: bool) -> None:
    life = Rekeying("2.6")
    life.master.insert("things", *row(6))
    if is_early:
        life.follow()
        life.replica.flush()
    life.master.alter_key("things", BY_CODE)
    life.master.update("things", ["code 5"], ["=", "n", 44])
    life.master.delete("things", "code 8")
    life.replica.lives_until = life.replica.handed_over + moment
    was_killed = False
    try:
        life.replica.relay.relay()
        life.replica.receive()
    except Killed:
        was_killed = True
    assert was_killed == (moment < 13), "the moments reach from before the first batch to behind the last"
    count = len(life.replica.unsettled)
    life.replica.commit(0 if uncommitted is None else max(0, count - uncommitted))
    if flushes:
        life.replica.flush()
    life.news()
    life.go_on()
    life.check("things")
    ops_of_all = [sent.op for sent in map(read, life.replica.topics.committed) if sent.op]
    assert ops_of_all == [*"rrrrr", "c", "t", *"rrrrrr", "u", "d"], "each event once"
    assert [record[:2] for record in life.records()][2:] == [("2", "STARTED"), ("2", "COMPLETED")]
    # And with a store that is where it should be.
    life.replica.flush()
    life.master.replace("things", *row(5, "later"))
    assert ops(life.go_on()) == [("u", {"code": "code 4"})]
    life.check("things")


@pytest.mark.parametrize("flushes", [True, False])
@pytest.mark.parametrize("moment", range(2, 6))
def test_a_gap_while_rows_are_published_again(life: Rekeying, moment: int, *, flushes: bool) -> None:
    """A snapshot makes the space anew, though the store has rows that equal it: consumers have them in part."""
    life.master.alter_key("things", BY_CODE)
    life.be_killed(life.follow, moment, flushes=flushes)
    life.news()
    life.replica.lives_until = None
    life.replica.crash()
    life.master.delete("things", "code 4")
    life.restart(forget=True)
    assert life.replica.snapshot is not None
    assert life.position().rekeyed == ()
    life.follow()
    life.check("things")


def test_a_snapshot_that_ends_it_and_is_interrupted_itself(life: Rekeying) -> None:
    """What consumers have in part is gone from the first moment on."""
    life.master.alter_key("things", BY_CODE)
    life.be_killed(life.follow, 4)
    life.replica.crash()
    life.master.delete("things", "code 4")
    life.master.gc_vclock = life.master.vclock
    life.be_killed(life.connect, 2)
    assert life.position().rekeyed == ()
    life.news()
    life.replica.lives_until = None
    life.restart(forget=True)
    life.follow()
    life.check("things")


def test_position_as_a_record() -> None:
    position = Position(VClock({1: 7}), rekeyed=(Rekeyed(512, 3, b"\x00\xff", 9), Rekeyed(513)))
    assert Position.from_json(position.to_json()) == position
    assert "rekeyed" not in Position().to_json()


class Placed(Consumer):
    """A consumer that tells fields by their places: their names are those of the time when a row was published."""

    def _apply(self, sent: Sent) -> None:
        for name in ("before", "after"):
            if sent.value[name] is not None:
                sent.value[name] = list(sent.value[name].values())
        super()._apply(sent)


class Work:
    """Random changes of two spaces, whose primary keys become others all the time."""

    def __init__(self, master: Master, rng: random.Random) -> None:
        self._master = master
        self._rng = rng
        self._parts = {"one": KEYS[0], "two": KEYS[1]}
        self._numbers = iter(range(10**6))
        for name, parts in self._parts.items():
            master.create_space(name, FIELDS, parts)

    def run(self, count: int) -> None:
        """That many steps."""
        work_in_transactions(self._master, self._rng, count, self._step, share=0.2)

    def _step(self) -> None:
        rng, master = self._rng, self._master
        name = rng.choice(list(self._parts))
        number = rng.randint(1, 7)
        match rng.choice(
            ["replace"] * 5 + ["update", "update", "delete", "delete", "alter", "alter", "rename", "truncate", "again"]
        ):
            case "update":
                master.update(name, self._key(name, number), ["=", 4, rng.randint(0, 99)])
            case "delete":
                master.delete(name, *self._key(name, number))
            case "alter":
                self._parts[name] = rng.choice(KEYS)
                master.alter_key(name, self._parts[name])
            case "rename":
                names = [rng.choice([field["name"], f"{field['name']} {next(self._numbers)}"]) for field in FIELDS]
                master.format(name, [{**field, "name": new} for field, new in zip(FIELDS, names, strict=True)])
            case "truncate" if rng.random() < 0.3:
                master.truncate(name)
            case "again" if rng.random() < 0.3:
                self._parts[name] = rng.choice(KEYS)
                master.drop_index(name, 0)
                master.create_index(name, self._parts[name])
            case _:
                master.replace(name, *row(number, rng.randint(0, 99)))

    def _key(self, name: str, number: int) -> list[Any]:
        return [row(number)[place] for place, _ in self._parts[name]]


@SOME
@given(seed=st.integers(0, 2**32 - 1))
def test_consumer_has_the_masters_contents_after_any_life(seed: int) -> None:
    """Killed anywhere, with the store anywhere behind; a snapshot is taken for a gap and for nothing else."""
    rng = random.Random(seed)
    life = Life(rng.choice(["2.6", "2.11", "3.3"]))
    life.replica = mortal = MortalReplica(life.master, images=True, transaction_bytes_max=rng.choice([200, 10**9]))
    life.consumer = Placed()
    work = Work(life.master, rng)
    work.run(15)
    life.connect()
    life.replica.flush()
    may_forget = rng.random() < 0.3
    for _ in range(30):
        gap = False
        mortal.lives_until = mortal.handed_over + rng.choice([0, 1, 2, 3, 5, 8]) if rng.random() < 0.3 else None
        try:
            step = rng.choice([*STEPS, "gap"])
            if not go_a_step(step, life.replica, rng, work.run) and (step == "crash" or may_forget):
                gap = step == "gap"
                raise Killed
        except Killed:
            mortal.lives_until = None
            life.replica.commit(rng.choice([0, 1, 3, None]))
            if rng.random() < 0.5:
                life.replica.flush()
            life.news()
            position = life.replica.topics.checkpoint().position
            is_whole = position is not None and position.snapshot is not None and position.snapshot.is_complete
            life.restart(forget=gap)
            assert life.replica.snapshot is None or may_forget or not is_whole
        life.news()
    mortal.lives_until = None
    life.follow()
    for name in ("one", "two"):
        found: list[Any] = life.consumer.contents(life.master.id_of(name))
        assert found == sorted(life.master.contents(name), key=json.dumps)


def in_pieces(data: bytes) -> Iterator[bytes]:
    """So many bytes at a time that no two rows of a user's come together."""
    for start in range(0, len(data), 20):
        yield data[start : start + 20]


@pytest.mark.parametrize("flushes", [True, False])
@pytest.mark.parametrize("moment", range(18, 29))
def test_other_keys_behind_a_gap_and_killed_in_its_snapshot(moment: int, *, flushes: bool) -> None:
    """From the schema record of the new key on, nothing is kept, or known to consumers, under the old one."""
    life = Rekeying(cut=in_pieces)
    life.master.create_space("others", FIELDS, KEYS[0])
    for number in range(1, 6):
        life.master.insert("others", *row(number))
    life.follow()
    life.replica.flush()
    life.replica.crash()
    for number in range(1, 6):
        life.master.update("things", [number], ["=", "more", "meanwhile"])
    life.master.alter_key("others", BY_CODE)
    life.master.delete("others", "code 4")
    life.master.gc_vclock = life.master.vclock
    life.be_killed(life.connect, moment, flushes=flushes)
    life.news()
    life.replica.lives_until = None
    life.restart()
    life.follow()
    life.check("things", "others")
    life.master.update("others", ["code 8"], ["=", "n", 11])
    assert ops(life.follow()) == [("u", {"code": "code 8"})]
    life.check("things", "others")


AMOUNTS: list[Any] = [{"name": "id", "type": "decimal"}, {"name": "word", "type": "string"}]


@pytest.mark.parametrize("version", ["2.6", "2.11", "3.3"])
@pytest.mark.parametrize("index", ["tree", "hash"])
def test_an_index_that_tells_writings_apart_is_another_key(version: str, index: str) -> None:
    """Equal decimals are one row of a TREE, and a row each of a HASH."""
    life = Rekeying(version)
    life.master.create_space("money", AMOUNTS, [(0, "decimal")], index=index)
    life.master.insert("money", Decimal("1.0"), "one")
    life.master.insert("money", Decimal(2), "two")
    life.follow()
    if index == "tree":
        life.master.alter_index("money", "hash")
        assert ops(life.follow()) == [("t", None), ("r", {"id": "1.0"}), ("r", {"id": "2"})]
    life.master.insert("money", Decimal(1), "another")
    life.master.replace("money", Decimal("1.00"), "a third")
    life.master.replace("money", Decimal("1.0"), "the first")
    life.master.update("money", [Decimal("1.00")], ["=", 2, "the third"])
    life.master.delete("money", Decimal(1))
    life.master.delete("money", Decimal("2.0"))
    written = [("c", "1"), ("c", "1.00"), ("u", "1.0"), ("u", "1.00"), ("d", "1")]
    assert ops(life.follow()) == [(kind, {"id": text}) for kind, text in written]
    life.check("money")
    life.replica.flush()
    life.master.replace("money", Decimal("2.00"), "two again")
    assert ops(life.go_on()) == [("c", {"id": "2.00"})]
    life.check("money")
    for text in ("1.00", "2.00"):  # the server refuses a TREE while 1.0 is there too
        life.master.delete("money", Decimal(text))
    life.master.alter_index("money", "tree")
    assert ops(life.follow())[-3:] == [("t", None), ("r", {"id": "1"}), ("r", {"id": "2"})]
    life.check("money")
