"""Spaces that are given names: into what is published, out of it, and back, with all of their rows each time."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdc.errors import UnseenRowsError
from tests.fakes.lives import STEPS, go_a_step, work_in_transactions
from tests.fakes.master import Master
from tests.fakes.profiles import SOME
from tests.fakes.shop import Sent, Shop, read
from tests.stream.snapshots.test_rekeying import BY_CODE, FIELDS, KEYS, Killed, MortalReplica, Placed, Rekeying, in_pieces, row
from tests.stream.snapshots.test_snapshot_diff import Life, ops

HIDDEN = ["shadow.*", "old.*"]


def swap(life: Life) -> None:
    """What was filled in the shadow takes the other's place, at once."""
    life.master.begin()
    life.master.rename("things", "old")
    life.master.rename("shadow", "things")
    life.master.commit()


def go_on(life: Life) -> list[Sent]:
    """Follow as the daemon does: by a snapshot, where nothing else leads on."""
    try:
        return life.follow()
    except UnseenRowsError as error:
        life.replica.commit()
        if life.replica.tuples is not None:
            life.replica.flush()
        events = life.news()
        life.replica.crash()
        life.replica.forced_snapshot = error.message
        return events + life.connect() + life.follow()


def said(life: Life) -> list[tuple[str, str]]:
    """The schema records: what happened, to which space."""
    values = [sent.value for sent in map(read, life.replica.topics.committed) if sent.topic == "shop.schema"]
    return [(change["type"], change["id"].strip('"')) for value in values for change in value["tableChanges"]]


@pytest.fixture
def life() -> Rekeying:
    """Five rows of `things`, and three of a shadow, which isn't published."""
    found = Rekeying("2.6", exclude=HIDDEN)
    found.master.create_space("shadow", FIELDS, KEYS[0])
    for number in (1, 2, 3):
        found.master.insert("shadow", *row(number, "new"))
    found.follow()
    found.replica.flush()
    return found


def test_what_is_renamed_into_the_published_names_stops_the_stream(life: Rekeying) -> None:
    swap(life)
    with pytest.raises(UnseenRowsError) as raised:
        life.follow()
    error = raised.value
    assert error.message.startswith("space 'shadow' (513), which isn't published, was renamed to 'things', which is")
    assert "snapshot" in error.hint
    assert error.place == (1, life.master.vclock[1])


def test_it_comes_with_all_of_its_rows(life: Rekeying) -> None:
    former, now = life.master.id_of("things"), life.master.id_of("shadow")
    swap(life)
    life.master.update("things", [1], ["=", "n", 99])
    events = go_on(life)
    assert life.replica.snapshot is not None
    assert {event.topic for event in events} == {"shop.things"}
    assert [(event.op, event.source["space_id"]) for event in events] == [("t", former), ("t", now), *[("r", now)] * 3]
    assert said(life)[-2:] == [("DROP", "things"), ("CREATE", "things")]
    life.check("things")
    # With images, right away and after a start.
    life.master.update("things", [1], ["=", "n", 100])
    life.master.delete("things", 2)
    assert ops(life.follow()) == [("u", {"id": 1}), ("d", {"id": 2})]
    life.replica.flush()
    life.master.replace("things", *row(3, "newer"))
    assert ops(life.go_on()) == [("u", {"id": 3})]
    life.check("things")


def test_what_came_before_comes_out_as_it_was(life: Rekeying) -> None:
    """Changes that arrive together with the renaming are no part of the snapshot."""
    life.master.update("things", [1], ["=", "n", 1])
    life.master.delete("things", 1)
    swap(life)
    assert [event.op for event in go_on(life)] == ["u", "d", "t", "t", *"rrr"]
    life.check("things")


def test_what_is_renamed_out_of_them_is_gone(life: Rekeying) -> None:
    life.master.begin()
    life.master.replace("things", *row(1, "before"))
    life.master.rename("things", "old")
    life.master.commit()
    life.master.replace("old", *row(2, "behind"))
    events = life.follow()
    assert ops(events) == [("u", {"id": 1}), ("t", None)]
    assert (events[1].source["lsn"], events[1].source["row"]) == (life.master.log[-2].lsn, 1)
    assert events[1].value["transaction"]["total_order"] == 2
    assert said(life)[-1] == ("DROP", "things")
    life.replica.flush()
    assert life.replica.tuples is not None
    assert life.replica.tuples.row_count == 0
    life.check()


@pytest.mark.parametrize("alters", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("changes", [True, False])
def test_away_and_back(life: Rekeying, *, changes: bool, at_once: bool, alters: bool) -> None:
    """As it was, or changed meanwhile, or with another primary key; seen step by step, or in one transaction."""
    if at_once:
        life.master.begin()
    life.master.rename("things", "old")
    if not at_once:
        go_on(life)
    if changes:
        life.master.update("old", [1], ["=", "n", 77])
        life.master.delete("old", 2)
        life.master.insert("old", *row(8))
    if alters:
        life.master.alter_key("old", BY_CODE)
    life.master.rename("old", "things")
    if at_once:
        life.master.commit()
    go_on(life)
    life.check("things")
    life.master.update("things", ["code 8"] if alters else [1], ["=", "more", "then"])
    assert [event.op for event in go_on(life)] == ["u"]
    life.check("things")


def test_a_space_that_never_had_rows_under_another_name_needs_no_snapshot(life: Rekeying) -> None:
    """Its name was another one before it had a primary key, in the same transaction, or until its primary key was dropped."""
    life.master.create_space("shadow 2", FIELDS, [])
    life.master.drop_index("shadow 2", 0)
    life.follow()
    life.master.rename("shadow 2", "keyless")
    life.master.create_index("keyless", KEYS[0])
    life.master.begin()
    life.master.create_space("shadow 3", FIELDS, KEYS[0])
    life.master.rename("shadow 3", "quick")
    life.master.commit()
    life.master.begin()
    life.master.drop_index("shadow", 0)
    life.master.rename("shadow", "emptied")
    life.master.create_index("emptied", KEYS[0])
    life.master.commit()
    for name in ("keyless", "quick", "emptied"):
        life.master.insert(name, *row(1))
    assert ops(life.follow()) == [("c", {"id": 1})] * 3
    life.check("keyless", "quick", "emptied")


@pytest.mark.parametrize("flushes", [True, False])
@pytest.mark.parametrize("moment", range(7))
def test_killed_at_any_moment(life: Rekeying, moment: int, *, flushes: bool) -> None:
    """Between the renaming and the last of the rows, and once more while that is mended."""
    life.master.update("things", [1], ["=", "n", 1])
    swap(life)
    for more in (0, 1):
        life.replica.lives_until = life.replica.handed_over + moment + more
        try:
            go_on(life)
        except Killed:
            life.replica.commit(more or None)
        if flushes:
            life.replica.flush()
        life.news()
        life.replica.lives_until = None
        life.replica.crash()
        life.replica.forced_snapshot = None  # the process is another
        life.master.replace("things", *row(7, more))
        life.connect()
    go_on(life)
    life.check("things")


def test_without_a_primary_key_its_name_is_free() -> None:
    """It goes on under another name, which is told at once, and whoever takes its name has its topic."""
    life = Life()
    life.master.create_space("things", FIELDS, KEYS[0])
    life.master.insert("things", *row(1))
    life.connect()
    life.replica.flush()
    life.master.drop_index("things", 0)
    life.master.rename("things", "former")
    life.master.create_space("things", FIELDS, KEYS[0])
    life.master.insert("things", *row(2))
    assert ops(life.follow()) == [("t", None), ("c", {"id": 2})]
    assert said(life)[1:] == [("ALTER", "former"), ("CREATE", "things")]
    life.replica.flush()
    life.restart()
    life.master.create_index("former", KEYS[0])
    life.master.insert("former", *row(3))
    assert [(event.topic, event.op) for event in life.follow()] == [("shop.former", "c")]
    assert len(said(life)) == 3
    life.check("things", "former")


def test_a_format_that_comes_while_there_is_no_primary_key_is_told() -> None:
    life = Life()
    life.master.create_space("things", FIELDS, KEYS[0])
    life.connect()
    life.replica.flush()
    life.master.drop_index("things", 0)
    life.master.format("things", [*FIELDS, {"name": "more", "type": "any"}])
    life.follow()
    life.replica.flush()
    life.restart()
    life.master.create_index("things", KEYS[0])
    life.master.insert("things", *row(1), "more")
    (event,) = life.follow()
    assert event.value["after"]["more"] == "more"
    assert event.source["schema_version"] == 2
    assert said(life) == [("CREATE", "things"), ("ALTER", "things")]


@pytest.mark.parametrize("images", [True, False])
def test_rows_that_went_with_the_primary_key_behind_a_gap(*, images: bool) -> None:
    """The space is still there, and may be given a key again."""
    shop = Shop(images=images)
    if images:
        shop.replica.flush()
    shop.replica.crash()
    shop.master.drop_index("users", 0)
    shop.master.collect_garbage()
    shop.replica.connect()
    assert [(sent.op, sent.topic) for sent in shop.news() if sent.op is not None] == [("t", "shop.users")]
    shop.master.create_index("users", [[0, "unsigned"]])
    shop.master.insert("users", 1, "again", 10)
    assert [(event.op, event.value["before"]) for event in shop.events()] == [("c", None)]


def test_found_behind_a_gap(life: Rekeying) -> None:
    """The snapshot that heals the gap has all of it."""
    life.replica.crash()
    swap(life)
    assert [event.op for event in life.restart(forget=True)] == ["t", "t", *"rrr"]
    life.check("things")


def test_rows_that_were_kept_from_another_time_are_gone(life: Rekeying) -> None:
    """Published, left out by the configuration and renamed then, and renamed into what is published."""
    life.master.create_space("bystander", FIELDS, KEYS[0])
    life.master.insert("bystander", *row(1))
    life.follow()
    life.replica.flush()
    life.replica._options["exclude"] = [*HIDDEN, "things"]
    life.restart()
    life.master.insert("things", *row(9))
    assert go_on(life) == []
    life.master.delete("things", 1)
    life.master.rename("things", "others")
    assert [event.op for event in go_on(life)] == ["t", *"rrrrr"]
    life.check("others")


@pytest.mark.parametrize("images", [True, False])
def test_consumers_keep_the_rows_of_a_space_that_is_left_out_while_another_is_taken_in(images: bool) -> None:
    """Which needs a snapshot of everything; a space that was dropped meanwhile ends with a `t` there, as ever."""
    life = Life("2.6")
    life.replica = MortalReplica(life.master, images=images, exclude=["others"])
    for name in ("things", "others", "dropped"):
        life.master.create_space(name, FIELDS, KEYS[0])
        life.master.insert(name, *row(1, name))
    life.connect()
    if images:
        life.replica.flush()

    def by_snapshot() -> list[Sent]:
        life.replica.crash()
        life.replica.forced_snapshot = "a space has been taken in"
        events = life.connect() + life.follow()
        if images:
            life.replica.flush()
        return events

    life.master.drop("dropped")
    life.replica._options["exclude"] = ["things"]
    events = by_snapshot()
    begin = [("t", "shop.others")] if images else []
    assert [(event.op, event.topic) for event in events] == [("t", "shop.dropped"), *begin, ("r", "shop.others")]
    # Taken in again, it begins anew.
    life.replica._options["exclude"] = []
    life.master.delete("things", 1)
    life.master.insert("things", *row(2, "things"))
    found = [(event.op, event.topic) for event in by_snapshot() if event.topic == "shop.things"]
    assert found == [*([("t", "shop.things")] if images else []), ("r", "shop.things")]


def test_without_images_a_snapshot_tells_all() -> None:
    life = Life("2.6", exclude=HIDDEN)
    life.replica = MortalReplica(life.master, images=False, exclude=HIDDEN)
    for name in ("things", "shadow"):
        life.master.create_space(name, FIELDS, KEYS[0])
        life.master.insert(name, *row(1, name))
    life.connect()
    swap(life)
    life.master.update("things", [1], ["=", "n", 99])
    events = go_on(life)
    assert [(event.op, event.source["space_id"]) for event in events] == [("t", 512), ("r", 513)]
    assert events[-1].value["after"] == {"id": 1, "code": "code 8", "n": 99, "more": "shadow"}


def test_all_rows_come_though_snapshots_are_not_wanted() -> None:
    """What the first one left out isn't told now either, but for the space that has come in."""
    life = Life()
    life.replica = MortalReplica(life.master, images=True, mode="never", exclude=HIDDEN)
    for name in ("things", "shadow", "others"):
        life.master.create_space(name, FIELDS, KEYS[0])
        life.master.insert(name, *row(1, name))
    assert life.connect() == []
    life.replica.flush()
    swap(life)
    assert [(event.op, event.source["space_id"]) for event in go_on(life)] == [("t", 512), ("t", 513), ("r", 513)]


def silent(**options: Any) -> Life:
    """A daemon whose snapshots aren't wanted, and which has published changes of `things`. It is away, and misses some."""
    life = Life("2.6")
    life.replica = MortalReplica(life.master, images=True, mode="never", **options)
    for name in ("things", "others"):
        life.master.create_space(name, FIELDS, KEYS[0])
        life.master.insert(name, *row(9, "from before"))
    assert life.connect() == []
    life.replica.flush()
    for number in (1, 2, 3):
        life.master.insert("things", *row(number))
    life.follow()
    life.replica.flush()
    life.replica.crash()
    life.master.delete("things", 1)
    life.master.insert("things", *row(4))
    return life


MOMENTS = (1, 5, 19, 20, 21, 22)
"""Before the schema, in it, and about where its first event is handed over."""


def killed_while_it_heals(moment: int) -> Life:
    """That daemon, killed at some moment of the snapshot that a gap makes necessary; what was handed over is committed."""
    life = silent(cut=in_pieces)
    life.master.gc_vclock = life.master.vclock
    assert isinstance(life.replica, MortalReplica)
    life.replica.lives_until = life.replica.handed_over + moment
    with pytest.raises(Killed):
        life.connect()
    life.replica.commit()
    life.replica.lives_until = None
    return life


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_snapshot_that_heals_a_gap_and_is_interrupted_comes_out_under_any_mode(moment: int) -> None:
    life = killed_while_it_heals(moment)
    life.replica.flush()
    events = life.news()
    life.replica.crash()
    events += life.connect()
    assert sorted(event.key["id"] for event in events) == [1, 4]
    assert [found["id"] for found in life.consumer.contents(life.master.id_of("things"))] == [2, 3, 4]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_snapshot_whose_beginning_the_store_lacks(moment: int) -> None:
    """While only its STARTED is out, the store has what consumers have; later nobody knows what they have, and all rows come."""
    life = killed_while_it_heals(moment)
    is_told = any(event.op for event in life.news())
    life.replica.crash()
    events = sorted((event.op, event.key["id"]) for event in life.connect())
    assert events == ([("r", 2), ("r", 3), ("r", 4), ("r", 9), ("r", 9)] if is_told else [("d", 1), ("r", 4)])
    assert is_told == (moment > 21)


def test_what_was_missed_comes_out_with_spaces_that_are_newly_published() -> None:
    life = silent(include=["things"])
    life.replica.include(".*")
    events = sorted((event.topic, event.op, event.key) for event in life.connect() if event.op != "t")
    assert events == [("shop.others", "r", {"id": 9}), ("shop.things", "c", {"id": 4}), ("shop.things", "d", {"id": 1})]


def test_what_was_missed_comes_out_though_the_store_is_lost() -> None:
    """Nobody can tell any more what that was, so it is all rows, and consumers sweep the others."""
    life = silent()
    assert life.replica.tuples is not None
    life.replica.tuples.destroy()
    life.replica.crash()
    life.connect()
    life.check("things")


def test_after_an_interrupted_silent_snapshot_one_that_is_wanted_has_all_rows() -> None:
    """What the store has of the silent one, consumers haven't."""
    life = Life("2.6")
    life.replica = mortal = MortalReplica(life.master, images=True, mode="never", cut=in_pieces)
    life.master.create_space("things", FIELDS, KEYS[0])
    for number in range(1, 7):
        life.master.insert("things", *row(number))
    mortal.lives_until = mortal.handed_over + 20
    with pytest.raises(Killed):
        life.connect()
    mortal.commit()
    mortal.flush()
    assert mortal.tuples is not None
    assert mortal.tuples.row_count
    mortal.lives_until = None
    mortal.crash()
    mortal._mode = "initial"
    life.connect()
    life.check("things")


def test_the_first_snapshot_stays_silent_however_often_it_is_interrupted() -> None:
    life = Life("2.6")
    life.replica = mortal = MortalReplica(life.master, images=True, mode="never", cut=in_pieces)
    life.master.create_space("things", FIELDS, KEYS[0])
    life.master.insert("things", *row(1))
    for moment in (1, 5, 9):
        mortal.lives_until = mortal.handed_over + moment
        with pytest.raises(Killed):
            life.connect()
        mortal.commit()
        mortal.flush()
        mortal.crash()
    mortal.lives_until = None
    assert life.connect() == []


NAMES = ["one", "two", "shadow 1", "shadow 2", "old 1"]


class Names:
    """Random changes of three spaces, whose names become others all the time."""

    def __init__(self, master: Master, rng: random.Random) -> None:
        self._master = master
        self._rng = rng
        self._parts: dict[str, Any] = dict.fromkeys(("one", "two", "shadow 1"), KEYS[0])
        self._bare: set[str] = set()  # these have no primary key
        self.may_strip = True
        for name, parts in self._parts.items():
            master.create_space(name, FIELDS, parts)

    def run(self, count: int) -> None:
        """That many steps."""
        work_in_transactions(self._master, self._rng, count, self._step, share=0.3)

    def _step(self) -> None:
        rng, master = self._rng, self._master
        name, number = rng.choice(list(self._parts)), rng.randint(1, 7)
        if name in self._bare:
            self._step_of_a_bare_one(name)
            return
        match rng.choice(["replace"] * 12 + ["update", "delete", "rename"] * 4 + ["alter", "drop"] * 2 + ["strip"]):
            case "update":
                master.update(name, self._key(name, number), ["=", 4, rng.randint(0, 99)])
            case "delete":
                master.delete(name, *self._key(name, number))
            case "rename":
                self._rename(name)
            case "strip" if self.may_strip:
                master.drop_index(name, 0)
                self._bare.add(name)
            case "alter":
                self._parts[name] = rng.choice(KEYS)
                master.alter_key(name, self._parts[name])
            case "drop" if rng.random() < 0.2:
                master.drop(name)
                self._parts[name] = rng.choice(KEYS)
                master.create_space(name, FIELDS, self._parts[name])
            case _:
                master.replace(name, *row(number, rng.randint(0, 99)))

    def _rename(self, name: str) -> str:
        free = self._rng.choice([other for other in NAMES if other not in self._parts])
        self._master.rename(name, free)
        self._parts[free] = self._parts.pop(name)
        return free

    def _step_of_a_bare_one(self, name: str) -> None:
        rng = self._rng
        self._bare.remove(name)
        if rng.random() < 0.5:
            self._bare.add(self._rename(name))
        else:
            self._parts[name] = rng.choice(KEYS)
            self._master.create_index(name, self._parts[name])

    def _key(self, name: str, number: int) -> list[Any]:
        return [row(number)[place] for place, _ in self._parts[name]]

    def published(self) -> list[str]:
        """Of the names that there are."""
        return [name for name in self._parts if not any(re.fullmatch(pattern, name) for pattern in HIDDEN)]


@SOME
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=53543)  # a snapshot has another space with the name of one that is gone, and that no event ever had
def test_consumer_has_what_is_published_after_any_life(seed: int) -> None:
    """Killed anywhere, with the store anywhere behind; and nothing else."""
    live_randomly(seed)


def live_randomly(seed: int, note: Callable[[str], None] = lambda _: None) -> None:
    rng = random.Random(seed)
    life = Life(rng.choice(["2.6", "2.11", "3.3"]))
    options: dict[str, Any] = {"exclude": HIDDEN, "transaction_bytes_max": rng.choice([200, 10**9])}
    life.replica = mortal = MortalReplica(life.master, images=True, **options)
    life.consumer = Placed()
    work = Names(life.master, rng)
    work.run(15)
    life.connect()
    life.replica.flush()
    more = rng.choice([[], ["gap"], ["include", "include"], ["gap", "include"]])
    work.may_strip = "include" not in more  # while a space is left out, nobody sees that (docs/operations.md)
    for _ in range(30):
        mortal.lives_until = mortal.handed_over + rng.choice([0, 1, 2, 3, 5, 8]) if rng.random() < 0.3 else None
        gap = False
        step = rng.choice([*STEPS, *more])
        note(step)
        try:
            if not go_a_step(step, life.replica, rng, work.run):
                if step == "include":
                    life.replica.include(*rng.choice([["one"], ["two"], [".*"]]))
                gap = step == "gap"
                raise Killed
        except UnseenRowsError as error:
            note(error.message)
            mortal.lives_until = None
            life.replica.commit()
            if rng.random() < 0.7:
                life.replica.flush()
            life.news()
            life.replica.crash()
            if rng.random() < 0.7:
                life.replica.forced_snapshot = error.message
                mortal.lives_until = mortal.handed_over + rng.choice([1, 2, 3, 5]) if rng.random() < 0.5 else None
            reconnect(life, rng)
        except Killed:
            mortal.lives_until = None
            life.replica.commit(rng.choice([0, 1, 3, None]))
            if rng.random() < 0.5:
                life.replica.flush()
            life.news()
            life.replica.crash()
            if gap:
                life.master.gc_vclock = life.master.vclock
            reconnect(life, rng)
        life.news()
    mortal.lives_until = None
    if "include" in more:
        life.replica.commit()
        life.news()
        life.replica.include(".*")
        life.replica.crash()
        reconnect(life, rng)
    for _ in range(3):
        go_on(life)
    for name in work.published():
        found: list[Any] = life.consumer.contents(life.master.id_of(name))
        assert found == sorted(life.master.contents(name), key=json.dumps), name
    if "include" not in more:  # what the configuration leaves out stays with consumers
        assert life.consumer.filled() <= {life.master.id_of(name) for name in work.published()}


def reconnect(life: Life, rng: random.Random) -> None:
    """A new connection, whose snapshot or catch-up may be killed, or find that only a snapshot leads on."""
    while True:
        try:
            life.connect()
        except Killed:
            assert isinstance(life.replica, MortalReplica)
            life.replica.lives_until = None
            life.replica.commit(rng.choice([0, 1, 3, None]))
            if rng.random() < 0.5:
                life.replica.flush()
            life.news()
            life.replica.crash()
        else:
            return
