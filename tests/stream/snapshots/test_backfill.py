"""Rows that are asked for again: each as `r`, in order with the stream, whatever happens to the spaces in the middle."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from cdc.errors import RequestError
from cdc.ops.request_queue import WAITING_MAX, RequestQueue
from cdc.positions.position import Position, SnapshotState
from cdc.positions.requests import NO_REQUESTS, Request, Requests, SignalPlace
from cdc.positions.vclock import VClock
from cdc.protocol.extensions import OpaqueExtension
from cdc.stream.batches.covered import Covered
from cdc.stream.snapshots import backfill
from cdc.stream.snapshots.orders import Acknowledge, Condition, Execute, Log, Order, Pause, Received, Refused, Resume, Stop
from cdc.stream.snapshots.requests import Outcome
from cdc.upstream import start
from cdc.upstream.start import Known
from tests.fakes.pipelines import NOW_US
from tests.fakes.shop import Sent, Shop, read
from tests.live.waiting import wait_for


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "CHUNK_ROWS", 2)


class Asking(Shop):
    """A shop with images, five rows, and a request for rows of `users`, or of other spaces."""

    def __init__(self, *names: str, **options: Any) -> None:
        super().__init__(images=True, **options)
        for number in range(3, 6):
            self.master.insert("users", number)
        self.follow()
        self.replica.flush()
        self.names = names or ("users",)
        self.is_asked = False

    def give(self, order: Order) -> Outcome:
        """Have an order carried out."""
        batch, outcome = self.replica.pipeline.take_order(Received(order), NOW_US)
        if batch is not None:
            self.replica.submit(batch)
            self.replica.commit()
        return outcome

    def ask(self, identity: str = "asked") -> None:
        """Ask for the rows. Raises RequestError if that is refused."""
        self.is_asked = True
        outcome = self.give(Execute(identity, self.names, exact=True))
        if outcome.refusal is not None:
            raise outcome.refusal

    @property
    def is_open(self) -> bool:
        """Whether a request is open."""
        return bool(self.replica.pipeline.position.requests.open)

    def chunk(self) -> list[Sent]:
        """What the next chunk publishes."""
        if not self.is_asked:
            self.ask()
        self.replica.submit(self.replica.pipeline.backfill(NOW_US)[0])
        self.replica.commit()
        return self.news()

    def rest(self) -> list[Sent]:
        """What the request publishes from here to its end."""
        found = self.chunk()
        while self.is_open:
            found += self.chunk()
        return found

    def crash(self) -> None:
        """Kill the process, and begin again."""
        self.replica.crash()
        self.replica.connect()

    @property
    def snapshot_state(self) -> SnapshotState:
        """Of the checkpoint."""
        position = self.replica.topics.checkpoint().position
        assert position is not None
        assert position.snapshot is not None
        return position.snapshot


def ids(sent: list[Sent]) -> list[int]:
    return [event.value["after"]["id"] for event in sent if event.op == "r"]


def test_every_row_once_between_its_records() -> None:
    shop = Asking()
    sent = shop.rest()
    assert [one.topic for one in sent] == ["shop.snapshot", *["shop.users"] * 5, "shop.snapshot"]
    assert ids(sent) == [1, 2, 3, 4, 5]
    started, *events, completed = sent
    assert started.key == completed.key == {"snapshot_id": "2"}
    assert started.value["status"] == "STARTED"
    vclock = VClock(shop.master.vclock).to_json()
    assert completed.value == {
        "snapshot_id": "2",
        "status": "COMPLETED",
        "vclock": vclock,
        "seq": events[-1].source["seq"],
        "spaces": [{"space": "users", "space_id": 512, "rows": 5, "sweep_seq": 0}],
        "ts_ms": NOW_US // 1000,
    }
    first = events[0]
    assert (first.key, first.value["before"], first.value["after"]) == ({"id": 1}, None, {"id": 1, "name": "one", "balance": 10})
    assert first.value["transaction"] is None
    source = {name: first.source[name] for name in ("snapshot", "snapshot_id", "vclock", "lsn", "schema_version")}
    assert source == {"snapshot": "true", "snapshot_id": "2", "vclock": vclock, "lsn": None, "schema_version": 1}
    assert [event.source["seq"] for event in events] == list(range(started.value["seq"] + 1, started.value["seq"] + 6))


def test_looks_like_the_rows_of_a_snapshot() -> None:
    shop = Asking()
    (theirs, *_), (ours, *_) = ([one for one in sent if one.op == "r"] for sent in (shop.snapshot, shop.rest()))
    assert list(ours.value) == list(theirs.value)
    assert list(ours.source) == list(theirs.source)


def test_changes_between_two_chunks_are_in_order() -> None:
    shop = Asking()
    assert ids(shop.chunk()) == [1, 2]
    shop.master.update("users", [1], ["=", "name", "uno"])
    shop.master.update("users", [4], ["=", "name", "quattro"])
    shop.master.delete("users", 3)
    shop.master.insert("users", 6)
    assert [event.op for event in shop.events()] == ["u", "u", "d", "c"]
    sent = shop.rest()
    assert ids(sent) == [4, 5, 6]
    assert sent[0].value["after"] == {"id": 4, "name": "quattro"}
    assert sent[-1].value["spaces"][0]["rows"] == 5


def test_truncated_in_the_middle() -> None:
    shop = Asking()
    shop.chunk()
    shop.master.truncate("users")
    shop.master.insert("users", 1, "again")
    shop.master.insert("users", 9, "new")
    assert [event.op for event in shop.events()] == ["t", "c", "c"]
    assert ids(shop.rest()) == [9]


def test_dropped_in_the_middle() -> None:
    shop = Asking("users", "others")
    shop.master.create_space("others", [{"name": "id", "type": "unsigned"}])
    shop.master.insert("others", 7)
    shop.follow()
    shop.chunk()
    shop.master.drop("users")
    shop.follow()
    sent = shop.rest()
    assert ids(sent) == [7]
    assert [space["space"] for space in sent[-1].value["spaces"]] == ["others"]


def test_altered_in_the_middle() -> None:
    shop = Asking()
    shop.chunk()
    shop.master.format("users", [{"name": "id", "type": "unsigned"}, {"name": "title", "type": "string"}])
    shop.master.insert("users", 6, "six")
    shop.follow()
    *events, completed = shop.rest()
    assert ids(events) == [3, 4, 5, 6]
    assert {event.source["schema_version"] for event in events} == {2}
    assert events[-1].value["after"] == {"id": 6, "title": "six"}
    assert completed.value["spaces"][0]["rows"] == 6


def test_renamed_in_the_middle() -> None:
    """The other topic has all rows."""
    shop = Asking()
    shop.chunk()
    shop.master.rename("users", "people")
    shop.follow()
    *events, completed = shop.rest()
    assert ids(events) == [1, 2, 3, 4, 5]
    assert {event.topic for event in events} == {"shop.people"}
    assert completed.value["spaces"] == [{"space": "people", "space_id": 512, "rows": 5, "sweep_seq": 0}]


def test_before_the_first_row_of_the_stream() -> None:
    """A space that nothing has been compiled for since the start, and a store that had everything."""
    shop = Asking()
    shop.replica.flush()
    shop.replica.crash()
    shop.replica.connect()
    assert shop.replica.snapshot is None
    shop.news()
    assert ids(shop.rest()) == [1, 2, 3, 4, 5]
    assert shop.snapshot_state == SnapshotState(2, is_complete=True, row_count=2, request_count=1)


@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize("changes", [False, True])
def test_restart_in_the_middle(flushes: bool, changes: bool) -> None:
    """The request goes on after the last row of the checkpoint, under its number, and no snapshot is taken."""
    shop = Asking()
    shop.replica.flush()
    assert ids(shop.chunk()) == [1, 2]
    if changes:
        shop.master.insert("users", 6)
        shop.master.delete("users", 3)
        shop.follow()
    if flushes:
        shop.replica.flush()
    shop.crash()
    assert shop.replica.snapshot is None
    shop.master.insert("users", 7)
    assert [one.op for one in shop.follow() if one.topic in ("shop.snapshot", "shop.users") and one.value] == ["c"]
    assert shop.snapshot_state.open_request == 2
    *events, completed = shop.rest()
    assert ids(events) == ([4, 5, 6, 7] if changes else [3, 4, 5, 7])
    assert {event.source["snapshot_id"] for event in events} == {"2"}
    assert (completed.key, completed.value["status"]) == ({"snapshot_id": "2"}, "COMPLETED")
    assert completed.value["spaces"] == [{"space": "users", "space_id": 512, "rows": 6, "sweep_seq": 0}]
    assert shop.snapshot_state == SnapshotState(2, is_complete=True, row_count=2, request_count=1)


def test_what_was_not_committed_is_made_again() -> None:
    shop = Asking()
    shop.chunk()
    shop.replica.submit(shop.replica.pipeline.backfill(NOW_US)[0])
    shop.crash()
    assert ids(shop.rest()) == [3, 4, 5]


def test_renamed_and_killed() -> None:
    """The checkpoint's progress is that under the former topic."""
    shop = Asking()
    shop.chunk()
    shop.master.rename("users", "people")
    shop.follow()
    shop.crash()
    shop.follow()
    *events, completed = shop.rest()
    assert ids(events) == [1, 2, 3, 4, 5]
    assert completed.value["spaces"][0]["rows"] == 5


def test_requests_wait_for_each_other_through_a_kill() -> None:
    shop = Asking()
    shop.ask("first")
    shop.ask("second")
    shop.chunk()
    shop.crash()
    assert [request.id for request in shop.replica.pipeline.position.requests.open] == ["first", "second"]
    assert ids(shop.rest()) == [3, 4, 5, 1, 2, 3, 4, 5]
    shop.crash()
    assert not shop.is_open


def test_a_request_of_a_former_version_is_ended() -> None:
    """That version's checkpoint says only that a request was open."""
    shop = Asking()
    shop.chunk()
    events = shop.replica.pipeline._events
    events.base = replace(events.base, requests=NO_REQUESTS)
    shop.master.insert("users", 6)
    shop.follow()
    shop.crash()
    (ended,) = [one for one in shop.follow() if one.topic == "shop.snapshot"]
    assert (ended.key, ended.value["status"], ended.value["spaces"]) == ({"snapshot_id": "2"}, "ABORTED", [])
    assert not shop.snapshot_state.open_request


def test_a_record_of_the_checkpoint_has_all_of_a_request() -> None:
    place = SignalPlace("id", 7, 8, 9)
    request = Request("a", (512, 513), ((512, "row.id > 1"),), 3, b"\x01", 4, 5, ((511, 6),))
    for requests in (Requests((request, Request("b", (7,))), is_paused=True, signals=place), NO_REQUESTS):
        position = Position(requests=requests)
        assert Position.from_json(json.loads(json.dumps(position.to_json()))).requests == requests


def test_a_request_that_is_complete_is_not_ended_once_more() -> None:
    shop = Asking()
    shop.rest()
    shop.replica.flush()
    shop.replica.crash()
    shop.replica.connect()
    assert shop.replica.snapshot is None
    assert not [one for one in shop.follow() if one.topic == "shop.snapshot"]


def test_a_request_keeps_its_own_number_whatever_came_after_it() -> None:
    """Another primary key takes the next number, and its rows are complete; those of the request begin again."""
    shop = Asking()
    shop.chunk()
    for number in range(3, 6):
        shop.master.delete("users", number)
    shop.master.alter_key("users", [(1, "string"), (0, "unsigned")])
    shop.follow()
    assert (shop.snapshot_state.snapshot_id, shop.snapshot_state.open_request) == (3, 2)
    shop.replica.flush()
    shop.crash()
    assert not [one for one in shop.follow() if one.topic == "shop.snapshot"]
    *events, completed = shop.rest()
    assert ids(events) == [1, 2]
    assert (completed.key, completed.value["status"]) == ({"snapshot_id": "2"}, "COMPLETED")


def test_a_snapshot_after_requests_has_the_next_number() -> None:
    shop = Asking()
    shop.rest()
    shop.replica.crash()
    shop.replica.forced_snapshot = "for the test"
    shop.replica.connect()
    assert shop.snapshot_state.snapshot_id == shop.snapshot_state.base_id == 3


def test_a_request_that_was_cut_off_is_ended_before_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins again after the snapshot, under another number."""
    monkeypatch.setattr(backfill, "CHUNK_ROWS", 2)
    shop = Asking()
    shop.chunk()
    shop.replica.flush()
    shop.replica.crash()
    shop.replica.forced_snapshot = "for the test"
    shop.replica.connect()
    sent = [*shop.news(), *shop.follow()]
    said = [(one.key["snapshot_id"], one.value["status"]) for one in sent if one.topic == "shop.snapshot"]
    assert said == [("2", "ABORTED"), ("3", "STARTED"), ("3", "COMPLETED")]
    assert not shop.snapshot_state.open_request
    started, *events, completed = shop.rest()
    assert (started.value["status"], started.key, completed.key) == ("STARTED", {"snapshot_id": "4"}, {"snapshot_id": "4"})
    assert ids(events) == [1, 2, 3, 4, 5]


def test_store_that_lacks_a_snapshot_is_told_from_one_that_lacks_a_request() -> None:
    def at(snapshot: SnapshotState) -> Position:
        return Position(vclock=VClock({1: 5}), snapshot=snapshot)

    first, asked = SnapshotState(1, is_complete=True), SnapshotState(2, is_complete=True, request_count=1)

    def is_useless(checkpoint: SnapshotState, store: SnapshotState) -> bool:
        return start.needed(Known(at(checkpoint), has_store=True, store=at(store))).takes_snapshot

    assert not is_useless(asked, first)
    assert is_useless(SnapshotState(2, is_complete=True), first)
    assert is_useless(SnapshotState(3, is_complete=True), asked)


@pytest.mark.parametrize("name", ["nobody", "_space"])
def test_space_that_is_not_published(name: str) -> None:
    shop = Asking("users", name)
    with pytest.raises(RequestError, match=rf"'{name}' is published. Published are: users\."):
        shop.chunk()
    shop.master.insert("users", 6)
    assert shop.event().op == "c"
    assert shop.snapshot_state.snapshot_id == 1


def test_without_images() -> None:
    shop = Shop()
    batch, outcome = shop.replica.pipeline.take_order(Received(Execute("a", ("users",), exact=True)), NOW_US)
    assert batch is None
    assert "state.images" in str(outcome.refusal)


def test_space_that_is_not_kept() -> None:
    shop = Asking("collated")
    shop.master.create_space("collated", [{"name": "id", "type": "map"}], [(0, "map")])
    shop.follow()
    with pytest.raises(RequestError, match="'collated' has no images"):
        shop.chunk()


def test_row_that_can_not_be_shown() -> None:
    shop = Asking(on_error="dlq")
    shop.master.insert("users", 4444, None, None, OpaqueExtension(9, b"x"))
    shop.follow()
    sent = shop.rest()
    assert ids(sent) == [1, 2, 3, 4, 5]
    (letter,) = [one for one in sent if one.topic == "shop.dlq"]
    assert letter.value["space_id"] == 512
    assert sent[-1].value["spaces"][0]["rows"] == 5


def test_large_rows_make_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "CHUNK_ROWS", 1000)
    monkeypatch.setattr(backfill, "CHUNK_BYTES", 100)
    shop = Asking()
    assert len(ids(shop.chunk())) == 1
    assert ids(shop.rest()) == [2, 3, 4, 5]


# The queue.


class Queued(Asking):
    """The same, with the queue of a daemon."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.requests = RequestQueue()
        self.errors: list[RequestError] = []

    def order(self, order: Order) -> threading.Thread:
        """Give an order as a thread of HTTP does."""

        def run() -> None:
            try:
                self.requests.submit(order)
            except RequestError as error:
                self.errors.append(error)

        waiting = len(self.requests._waiting)
        thread = threading.Thread(target=run)
        thread.start()
        wait_for("the order", lambda: len(self.requests._waiting) > waiting)
        return thread

    def restart(self) -> None:
        """Kill the pipeline, and begin again at the checkpoint, on another connection."""
        self.crash()
        self.requests.restart(self.replica.topics.checkpoint().position)

    def turn(self, *, is_busy: bool = False, queued_bytes: int = 0, commits: bool = True) -> list[Sent]:
        """What the next turn publishes."""
        batch = self.requests.turn(self.replica.pipeline, NOW_US, queued_bytes=queued_bytes, is_busy=is_busy)
        if batch is not None:
            self.replica.submit(batch)
        if commits:
            self.replica.commit()
            self.replica.flush()
            return self.news()
        return list(map(read, batch.messages)) if batch is not None else []


def execute(identity: str, *names: str) -> Execute:
    return Execute(identity, names, exact=True)


def test_one_after_another() -> None:
    shop = Queued()
    assert shop.requests.to_json() is None
    threads = [shop.order(execute("a", "nobody")), shop.order(execute("b", "users")), shop.order(execute("c", "users"))]
    assert shop.turn() == []
    threads[0].join(5)
    assert len(shop.errors) == 1
    assert shop.turn() == []
    assert ids(shop.turn()) == [1, 2], "orders and rows take turns"
    assert shop.turn() == []
    for thread in threads:
        assert shop.turn(queued_bytes=10_000_000) == []
        thread.join(5)
    assert shop.requests.to_json() == {
        "id": "b", "snapshot_id": "2", "spaces": ["users"], "rows": 2, "waiting": 1, "paused": False
    }  # fmt: skip
    assert [ids(shop.turn()) for _ in range(6)] == [[3, 4], [5], [1, 2], [3, 4], [5], []]
    assert shop.requests.to_json() is None
    assert shop.requests.last_ended == {"id": "c", "spaces": ["users"], "rows": 5, "error": None}
    assert not shop.requests.is_running
    assert len(shop.errors) == 1


def test_it_is_kept_why_a_request_ended_and_no_row_is_quoted() -> None:
    shop = Queued()
    thread = shop.order(Execute("x", ("users",), (Condition(None, "row.name.matches(row.name + '(')"),), exact=True))
    for _ in range(4):
        shop.turn()
    thread.join(5)
    assert not shop.errors
    ended = shop.requests.last_ended
    assert ended is not None
    assert (ended["id"], ended["rows"]) == ("x", 0)
    assert "the expression fails for a row of space 'users'. Change the filter" in ended["error"]


def test_an_answer_waits_until_the_request_is_durable() -> None:
    shop = Queued()
    thread = shop.order(execute("a", "users"))
    shop.turn(commits=False)
    shop.turn(commits=False)
    assert thread.is_alive()
    shop.replica.commit()
    shop.replica.flush()
    shop.turn()
    thread.join(5)
    assert not thread.is_alive()


def test_an_order_that_kafka_has_thrown_away_is_carried_out_on_the_next_connection() -> None:
    shop = Queued()
    thread = shop.order(execute("a", "users"))
    shop.turn(commits=False)
    shop.restart()
    assert not shop.is_open
    assert [ids(shop.turn()) for _ in range(4)] == [[], [1, 2], [3, 4], [5]]
    thread.join(5)
    assert not shop.errors


@pytest.mark.parametrize("more", [0, 3])
def test_orders_that_are_committed_while_the_connection_is_lost_are_carried_out_once(more: int) -> None:
    """No turn has found that they are durable; `more` is how many chunks of rows were, too."""
    shop = Queued()
    threads = [shop.order(order) for order in (execute("a", "users"), Stop("b"), execute("c", "users"), Pause("d"), Resume("e"))]
    while shop.requests._waiting:
        shop.turn(commits=False)
    for _ in range(more):
        shop.turn(commits=False)
    shop.replica.commit()
    sent = [shop.news()]
    shop.restart()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert not shop.errors
    sent += [shop.turn() for _ in range(5)]
    assert [number for each in sent for number in ids(each)][-5:] == [1, 2, 3, 4, 5]
    notes = Counter(one.value["status"] for each in sent for one in each if one.topic == "shop.snapshot")
    assert notes["COMPLETED"] == 1
    assert not shop.requests.is_running


def test_what_may_be_seen_before_it_is_committed_waits_until_the_checkpoint_knows_of_the_request() -> None:
    shop = Queued()
    shop.requests = RequestQueue(start_alone=True)
    shop.ask()
    started = shop.turn(commits=False)
    assert [sent.value["status"] for sent in started] == ["STARTED"]
    assert (shop.turn(commits=False), shop.requests.is_running) == ([], False)
    shop.replica.commit()
    shop.replica.flush()
    assert shop.snapshot_state.open_request == 2
    assert ids(shop.turn(commits=False)) == [1, 2]
    shop.replica.commit()
    assert (shop.requests.is_running, shop.snapshot_state.open_request) == (True, 2)
    for _ in range(2):
        shop.turn(commits=False)
    shop.replica.commit()
    assert (shop.requests.is_running, shop.snapshot_state.open_request) == (False, 0)
    assert shop.replica.topics.checkpoint().position == shop.replica.pipeline.position


def test_what_kafka_throws_away_is_made_once_more() -> None:
    """All of a request was handed over, and the transaction that had it was aborted: nobody has seen a row."""
    shop = Queued()
    shop.ask()

    def turns() -> list[int]:
        return [number for _ in range(5) for number in ids(shop.turn(commits=False))]

    with structlog.testing.capture_logs() as logs:
        assert turns() == [1, 2, 3, 4, 5]
        assert not shop.requests.is_running
        shop.restart()
        assert turns() == [1, 2, 3, 4, 5]
        assert not logs
        shop.replica.commit()
        shop.replica.flush()
        assert turns() == []
    assert [(entry["event"], entry["rows"]) for entry in logs] == [("rows were published again", 5)]
    assert shop.requests.to_json() is None


def test_orders_wait_while_kafka_commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.ops.request_queue.SUBMITTED_MAX", 3)
    shop = Queued()
    for number in range(1, 6):
        assert shop.requests.offer(Received(Log(str(number), "x"), SignalPlace("topic", number, 0)), 0.0)
    for _ in range(10):
        shop.turn(commits=False)
    signals = shop.replica.pipeline.requests.signals
    assert signals is not None
    assert (signals.offset, shop.requests.is_running) == (3, False)
    shop.replica.commit()
    shop.replica.flush()
    for _ in range(3):
        shop.turn()
    assert shop.replica.pipeline.requests.signals == SignalPlace("topic", 5, 0)
    assert shop.requests.signals.taken == 5


def test_the_log_is_not_flooded() -> None:
    shop = Queued()
    with structlog.testing.capture_logs() as logs:
        for number in range(1, 60):
            assert shop.requests.offer(Received(Refused(str(number), "no"), SignalPlace("topic", number, 0)), 0.0)
            shop.turn()
        shop.turn()
    assert 20 <= len(logs) <= 22
    assert shop.requests.signals.to_json() == {"taken": 0, "skipped": 59, "error": None}


def test_the_reader_waits_for_room() -> None:
    requests = RequestQueue()
    place = SignalPlace("topic", 1, 0)
    assert all(requests.offer(Received(Log("a", "x"), place), 0.0) for _ in range(WAITING_MAX))
    assert not requests.offer(Received(Log("a", "x"), place), 0.0)
    assert requests.place(0.0) is None
    with pytest.raises(RequestError, match="waiting already"):
        requests.submit(execute("a", "users"))


def test_nobody_answers() -> None:
    shop = Queued()
    with pytest.raises(RequestError, match="busy"):
        shop.requests.submit(execute("a", "users"), 0.01)
    assert shop.turn() == []
    assert not shop.is_open


def test_gives_way_to_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Queued()
    shop.ask()
    now = iter([100.0, 101.0, 102.9, 103.1, 103.2])
    # Not the clock of all modules: other threads read it, too.
    monkeypatch.setattr("cdc.ops.request_queue.time", SimpleNamespace(monotonic=lambda: next(now)))
    made = [bool(shop.turn(is_busy=True)) for _ in range(3)]
    assert made == [True, False, True]


def test_row_that_can_not_be_shown_ends_the_request_and_not_the_daemon() -> None:
    """As the request goes on after a restart, the daemon would end again and again."""
    shop = Asking()
    images = shop.replica.pipeline.images
    assert images is not None
    ((key, _), *_) = images.scan(512)
    images.put(key, b"\x94\x01\xc0\xc0\xd4\x09x")
    *events, ended = shop.rest()
    assert (events[1:], ended.value["status"]) == ([], "ABORTED")
    shop.master.insert("users", 6)
    assert shop.event().op == "c"


def test_what_makes_up_for_a_topic_that_was_deleted() -> None:
    """All rows of a space, since the seq before the first; not those that a filter chooses, nor a snapshot's differences."""
    shop = Asking()
    pipeline, before = shop.replica.pipeline, shop.replica.pipeline.position.seq
    shop.ask()
    batches = [pipeline.backfill(NOW_US)[0] for _ in range(3)]
    assert [list(batch.covered) for batch in batches] == [[], [], [Covered("shop.users", "users", before)]]
    filtered = Execute("some", ("users",), (Condition(None, "row.id > 3"),), exact=True)
    assert shop.give(filtered).refusal is None
    while pipeline.position.requests.open:
        assert not pipeline.backfill(NOW_US)[0].covered


def test_an_operator_acknowledges_what_is_lost() -> None:
    shop = Asking()
    batch, outcome = shop.replica.pipeline.take_order(Received(Acknowledge("a", ("shop.users", "shop.orders"))), NOW_US)
    assert outcome.refusal is None
    assert batch is not None
    assert list(batch.covered) == [Covered("shop.users"), Covered("shop.orders")]
    assert not batch.messages


@pytest.mark.parametrize("images", [True, False])
def test_whether_a_snapshot_makes_up_for_one(*, images: bool) -> None:
    """The first publishes all rows; one that compares with the images only what differs."""
    shop = Shop(images=images)
    assert shop.replica.topics.covered == [Covered("shop.users", "users", 0)]
    seq = shop.replica.pipeline.position.seq
    if images:
        shop.replica.flush()
    shop.replica.crash()
    shop.replica.forced_snapshot = "for the test"
    shop.replica.connect()
    assert shop.replica.topics.covered[1:] == ([] if images else [Covered("shop.users", "users", seq)])
