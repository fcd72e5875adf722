"""What the server's own store holds after changes, kills, and what has expired meanwhile; from a broker in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

import pytest

from cdc.errors import CdcError
from cdc.feeds.tap import keeper as keeper_module
from cdc.feeds.tap.keeper import StoreUpdater
from cdc.feeds.tap.keys import KeyTemplate
from cdc.feeds.tap.merging import Selection
from cdc.feeds.tap.session import Cursor
from cdc.feeds.tap.topic_store import TopicStore
from cdc.feeds.tap.wire import Packets
from tests.feeds.tap.broker import PREFIX, Broker
from tests.live.waiting import wait_for

_USERS, _SNAPSHOTS = f"{PREFIX}.users", f"{PREFIX}.snapshot"
_ALL = Selection(None, None, frozenset(), is_keys_only=False)


@pytest.fixture
def broker() -> Broker:
    """A space in two partitions, and the topics of a daemon that has just begun."""
    broker = Broker()
    broker.create(_USERS, 2)
    broker.create(_SNAPSHOTS)
    broker.form(0, 1, "users")
    return broker


class Kept:
    """A store that is kept, as long as the context lasts; its end is like a kill, as nothing is written at the end."""

    def __init__(self, path: Path, broker: Broker, **settings: Any) -> None:
        self.store = TopicStore(path, PREFIX, [".*"], lambda space: KeyTemplate("{space}:{key}", space), 1024, 5.0)
        self.epochs: list[int] = []
        self.ends: list[CdcError | None] = []
        self.updater = StoreUpdater(broker.topics(**settings), self.store, lambda _: True, self.epochs.append, self.ends.append)

    def __enter__(self) -> Self:
        self.store.open()
        self.updater.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.updater.stop()
        self.updater.join()
        self.store.close()
        assert self.ends == [None]

    def wait(self, seq: int) -> None:
        """Until all changes up to here are in the store."""
        wait_for(f"the store to come to {seq}", lambda: self.store.position.seq == seq and not self.store.position.is_loading)

    def wait_swept(self, offset: int) -> None:
        """Until what stands before this offset of the topic of snapshots is in the store."""
        place = f"{_SNAPSHOTS}/0"
        wait_for("the snapshot's end", lambda: self.store.position.places.get(place, (0, 0))[0] == offset)

    def rows(self) -> dict[str, tuple[int, Any]]:
        """By key: the row's number, and its value."""
        self.store.seq()  # a view of now
        found = self.store.read(Cursor(), _ALL, is_packed=False, count_max=10_000, bytes_max=1 << 30)
        packets = Packets().feed(b"".join(found.frames))
        return {packet.key.decode(): (packet.cas, json.loads(packet.value)["value"]) for packet in packets}


def test_filled_and_followed_through_kills(tmp_path: Path, broker: Broker) -> None:
    for seq in range(1, 11):
        broker.change(seq, seq, f"v{seq}", partition=seq % 2)
    with Kept(tmp_path, broker) as kept:
        kept.wait(10)
        assert kept.rows() == {f"users:{seq}": (seq, f"v{seq}") for seq in range(1, 11)}
        # The later number is there before the earlier one.
        broker.change(12, 3, None, partition=1)
        broker.change(11, 4, "new", partition=0)
        kept.wait(12)
        expected = {f"users:{seq}": (seq, f"v{seq}") for seq in range(1, 11) if seq != 3} | {"users:4": (11, "new")}
        assert kept.rows() == expected
    broker.empty(13)
    broker.change(14, 4, "again")
    with Kept(tmp_path, broker) as kept:
        kept.wait(14)
        assert kept.rows() == {"users:4": (14, "again")}
        assert not kept.store.incomplete
        assert not kept.epochs, "all that has gone was named"


def test_topics_of_a_prefix_that_begins_with_this_one_are_not_waited_for(tmp_path: Path, broker: Broker) -> None:
    """The other daemon's seqs are higher than any of this one's, and its position is in a topic of this prefix, by its name."""
    broker.change(1, 1, "a")
    source = {"name": "shop.eu", "table": "users", "space_id": 512, "seq": 9}
    broker.write("shop.eu.users", b'{"id":1}', {"op": "c", "before": None, "after": {"id": 1, "value": "b"}, "source": source})
    broker.write("shop.eu.schema", None, {"source": source, "tableChanges": [{"type": "CREATE", "id": '"users"', "table": None}]})
    broker.write("shop.eu.checkpoint", b'{"name":"shop-eu"}', {"seq": 9})
    with Kept(tmp_path, broker) as kept:
        kept.wait(1)
        assert kept.updater.places == {(_USERS, 0), (_USERS, 1)}
        assert kept.rows() == {"users:1": (1, "a")}


def test_topics_that_were_renamed_while_they_were_copied(tmp_path: Path) -> None:
    """As MirrorMaker does; the events have the name that their daemon has given them, and some come twice."""
    original, copy = Broker(), Broker()
    original.form(0, 1, "users")
    for seq in range(1, 5):
        original.change(seq, seq % 3, f"v{seq}")
    for (topic, _), log in original.logs.items():
        for key, value in [*log.messages, *log.messages[-2:]]:
            copy.write(f"dc1.{topic}", key, value)
    with Kept(tmp_path, copy, topic_prefix="dc1.shop") as kept:
        kept.wait(4)
        assert kept.rows() == {"users:0": (3, "v3"), "users:1": (4, "v4"), "users:2": (2, "v2")}


def test_another_name_moves_the_rows_and_makes_clients_begin_anew(tmp_path: Path, broker: Broker) -> None:
    broker.change(1, 1, "a")
    with Kept(tmp_path, broker) as kept:
        kept.wait(1)
        broker.form(1, 2, "people", former="users")
        broker.change(2, 2, "b", space="people")
        kept.wait(2)
        wait_for("the epoch", lambda: kept.epochs)
        assert kept.rows() == {"people:1": (1, "a"), "people:2": (2, "b")}


@pytest.mark.parametrize("is_away", [False, True], ids=["there", "away"])
def test_a_sweep_takes_what_nobody_names(tmp_path: Path, broker: Broker, is_away: bool) -> None:
    for seq in (1, 2):
        broker.change(seq, seq, "old")
    with Kept(tmp_path, broker) as kept:
        kept.wait(2)
        if not is_away:
            _sweep(broker)
            kept.wait_swept(2)
    if is_away:
        _sweep(broker)
    with Kept(tmp_path, broker) as kept:
        kept.wait_swept(2)
        assert kept.rows() == {"users:1": (3, "new")}
        assert not kept.store.incomplete
        assert bool(kept.epochs) is is_away


def test_a_sweep_that_expired_unread_makes_the_store_incomplete(tmp_path: Path, broker: Broker) -> None:
    for seq in (1, 2):
        broker.change(seq, seq, "old")
    with Kept(tmp_path, broker) as kept:
        kept.wait(2)
    _sweep(broker)
    broker.expire(_SNAPSHOTS)
    broker.snapshot(3, 3)
    with Kept(tmp_path, broker) as kept:
        kept.wait(3)
        assert kept.store.incomplete == ["users"], "users:2 may be gone"
        broker.change(4, 1, "new", snapshot=3)
        broker.snapshot(3, 4, rows=1)
        wait_for("the rows", lambda: not kept.store.incomplete)
        assert kept.rows() == {"users:1": (4, "new")}
    with Kept(tmp_path, broker) as kept:
        kept.wait_swept(4)
        assert not kept.store.incomplete, "it has read all records that there are"


def test_sweeps_that_expired_before_the_first_start_make_it_incomplete_too(tmp_path: Path, broker: Broker) -> None:
    for seq in (1, 2):
        broker.change(seq, seq, "old")
    _sweep(broker)
    broker.expire(_SNAPSHOTS)
    with Kept(tmp_path, broker) as kept:
        kept.wait(3)
        assert kept.store.incomplete == ["users"]


def test_changes_that_expired_make_it_incomplete_until_all_rows_come(tmp_path: Path, broker: Broker) -> None:
    broker.change(1, 1, "a")
    broker.change(2, 2, "b", partition=1)
    with Kept(tmp_path, broker) as kept:
        kept.wait(2)
    broker.change(3, 1, None)
    broker.expire(_USERS)
    broker.change(4, 3, "c")
    with Kept(tmp_path, broker) as kept:
        kept.wait(4)
        assert kept.store.incomplete == ["users"]
        broker.snapshot(1, 4)
        broker.change(5, 2, "b", snapshot=1, partition=1)
        broker.change(6, 3, "c", snapshot=1)
        broker.snapshot(1, 6, rows=2)
        wait_for("the rows", lambda: not kept.store.incomplete)
        assert kept.rows() == {"users:2": (5, "b"), "users:3": (6, "c")}


def test_a_number_that_never_comes_is_gone_around(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "HOLE_SECONDS", 0.1)
    broker.change(1, 1, "a")
    with Kept(tmp_path, broker) as kept:
        kept.wait(1)
        broker.change(3, 3, "c")
        kept.wait(3)
        assert kept.rows().keys() == {"users:1", "users:3"}


def test_what_comes_late_makes_clients_begin_anew(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least once, a message of one partition may come after a later one of another."""
    monkeypatch.setattr(keeper_module, "_UNORDERED_SECONDS", 0.0)
    broker.change(2, 2, "b")
    with Kept(tmp_path, broker, delivery="at_least_once") as kept:
        kept.wait(2)
        broker.change(1, 1, "a", partition=1)
        wait_for("the row", lambda: kept.rows().keys() == {"users:1", "users:2"})
        assert kept.epochs


def test_a_topic_that_was_made_again_while_it_was_away(tmp_path: Path, broker: Broker) -> None:
    for seq in (1, 2):
        broker.change(seq, seq, "a")
    with Kept(tmp_path, broker) as kept:
        kept.wait(2)
    broker.change(3, 3, "a")
    broker.change(4, 1, None)
    broker.make_again(_USERS)
    for seq in range(5, 9):  # at the offsets of those that are gone
        broker.change(seq, seq, "b")
    with Kept(tmp_path, broker) as kept:
        kept.wait(8)
        assert kept.store.incomplete == ["users"], "nobody knows what became of 3 and 4"
        assert kept.epochs
        broker.snapshot(1, 8)
        for seq in range(9, 15):
            broker.change(seq, seq - 7, "c", snapshot=1)
        broker.snapshot(1, 14, rows=6)
        wait_for("the rows", lambda: not kept.store.incomplete)
        assert kept.rows() == {f"users:{seq - 7}": (seq, "c") for seq in range(9, 15)}
    with Kept(tmp_path, broker) as kept:
        kept.wait(14)
        assert not kept.store.incomplete
        assert not kept.epochs, "it is told once"


@pytest.mark.parametrize("is_away", [False, True], ids=["there", "away"])
@pytest.mark.parametrize("is_seen", [False, True], ids=["at once", "seen gone"])
def test_a_topic_that_was_made_again_when_all_of_it_was_read(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch, *, is_away: bool, is_seen: bool
) -> None:
    monkeypatch.setattr(keeper_module, "TOPICS_SECONDS", 0.05)
    for seq in (1, 2, 3):
        broker.change(seq, seq, "a")

    def make_again() -> None:
        if is_seen:
            broker.delete(_USERS)
            wait_for("a look at the topics", lambda: is_away or (_USERS, 0) not in kept.updater.places)
        broker.create(_USERS, 2)
        broker.make_again(_USERS)
        broker.change(4, 4, "b")

    with Kept(tmp_path, broker) as kept:
        kept.wait(3)
        if not is_away:
            make_again()
            kept.wait(4)
    if is_away:
        make_again()
    with Kept(tmp_path, broker) as kept:
        kept.wait(4)
        assert kept.rows() == {f"users:{seq}": (seq, "a") for seq in (1, 2, 3)} | {"users:4": (4, "b")}
        assert not kept.store.incomplete, "numbers tell that nothing is missing"


def test_a_topic_that_is_gone_lacks_what_it_had(tmp_path: Path, broker: Broker) -> None:
    broker.form(0, 1, "goods", space_id=513)
    broker.change(1, 1, "a")
    broker.change(2, 1, "a", space="goods", space_id=513)
    with Kept(tmp_path, broker) as kept:
        kept.wait(2)
    broker.delete(_USERS)
    broker.change(4, 1, "b", space="goods", space_id=513)
    with Kept(tmp_path, broker) as kept:
        kept.wait(4)
        assert kept.store.incomplete == ["users"]


def test_a_daemon_that_counts_anew(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """All topics are gone, and the daemon's state with them: later numbers say less than earlier ones did."""
    monkeypatch.setattr(keeper_module, "TOPICS_SECONDS", 0.05)

    def begin_anew(value: str) -> None:
        for topic in (_USERS, _SNAPSHOTS, f"{PREFIX}.schema"):
            broker.make_again(topic)
        broker.form(0, 1, "users")
        for seq in (1, 2):
            broker.change(seq, 10 + seq, value)

    for seq in range(1, 6):
        broker.change(seq, seq, "old")
    with Kept(tmp_path, broker) as kept:
        kept.wait(5)
        wait_for("a look at the topics", lambda: kept.updater.verified_seq == 5)
        broker.change(6, 6, "old")
        kept.wait(6)
    begin_anew("new")
    with Kept(tmp_path, broker) as kept:
        kept.wait(2)
        assert kept.epochs
        assert kept.rows() == {"users:11": (1, "new"), "users:12": (2, "new")}
        wait_for("a look at the topics", lambda: kept.updater.verified_seq == 2)
        begin_anew("newer")
        kept.updater.join()
        assert "Start the server again" in str(kept.ends.pop())
        kept.ends.append(None)
    with Kept(tmp_path, broker) as kept:
        kept.wait(2)
        assert kept.rows() == {"users:11": (1, "newer"), "users:12": (2, "newer")}
        assert not kept.store.incomplete


def test_a_store_of_another_cluster_is_made_anew(tmp_path: Path, broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    broker.change(1, 1, "there")
    with Kept(tmp_path, broker) as kept:
        kept.wait(1)
    other = Broker()
    other.cluster_id = "second"
    other.create(_SNAPSHOTS)
    other.form(0, 1, "users")
    other.change(1, 2, "here")
    with Kept(tmp_path, other) as kept:
        wait_for("another epoch", lambda: kept.epochs)
        kept.wait(1)
        assert kept.rows() == {"users:2": (1, "here")}
    assert "it was filled from the Kafka cluster first, and this is second" in capsys.readouterr().out


def test_a_row_takes_as_much_room_as_is_documented(tmp_path: Path, broker: Broker) -> None:
    """docs/tap.md: 300 to 600 bytes a row of 70 bytes, once all have changed."""
    count, value = 10_000, "x" * 37
    with Kept(tmp_path, broker) as kept:
        for life in range(3):
            for number in range(count):
                broker.change(life * count + number + 1, (number * 7919) % count, value, partition=number % 2)
            kept.wait((life + 1) * count)
        assert kept.store.row_count == count
        assert 70 < kept.store.size_bytes / count < 600


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_is_told(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody was told of it, clients waited for a thread that had ended."""
    monkeypatch.delattr(keeper_module, "event_of")
    broker.change(1, 1, "a")
    kept = Kept(tmp_path, broker)
    kept.store.open()
    kept.updater.start()
    kept.updater.join()
    kept.store.close()
    assert "NameError" in str(kept.ends)


def _sweep(broker: Broker) -> None:
    """A snapshot without the row 2, taken by a daemon that doesn't know what was there before."""
    broker.snapshot(2, 2)
    broker.change(3, 1, "new", snapshot=2)
    broker.snapshot(2, 3, rows=1, sweep_seq=2)
