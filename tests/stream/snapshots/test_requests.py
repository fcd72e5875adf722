"""Orders as transcripts: what they do to the open requests, what notifications tell of that, and kills in between."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from cdc.config.columns import ColumnsRule
from cdc.errors import ConfigurationError, RequestError
from cdc.positions.position import Position, SnapshotState
from cdc.positions.requests import Request, Requests, SignalPlace
from cdc.stream.commits.checkpoint import Writer, position_record
from cdc.stream.snapshots import backfill
from cdc.stream.snapshots.orders import Condition, Execute, Log, Order, Pause, Received, Refused, Resume, Stop
from cdc.stream.snapshots.requests import REQUESTS_MAX, Outcome
from tests.fakes.pipelines import NOW_US, pipeline
from tests.fakes.shop import USERS, Sent, Shop, read

BOTH = frozenset({"signal", "notification"})


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "CHUNK_ROWS", 2)


class Signalled(Shop):
    """A shop with two spaces of three rows, whose signals have offsets, and whose notifications are lines."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"images": True, "optional_topics": BOTH, **options})
        self.master.insert("users", 3, "three", 30)
        self.master.create_space("orders", USERS)
        for number in range(1, 4):
            self.master.insert("orders", number, "order", number * 100)
        self.follow()
        self.replica.flush()
        self.place = SignalPlace("topic", 0, 0)
        self.failure: str | None = None

    def signal(self, order: Order | None, *, commits: bool = True) -> Outcome:
        """Have the next signal carried out."""
        self.place = self.place.after(self.place.offset, self.place.offset)
        return self.take(Received(order, self.place), commits=commits)

    def take(self, received: Received, *, commits: bool = True) -> Outcome:
        batch, outcome = self.replica.pipeline.take_order(received, NOW_US)
        if batch is not None:
            self.replica.submit(batch)
        if commits:
            self.replica.commit()
        return outcome

    def chunk(self, *, commits: bool = True) -> None:
        batch, failure = self.replica.pipeline.backfill(NOW_US)
        self.failure = None if failure is None else str(failure)
        self.replica.submit(batch)
        if commits:
            self.replica.commit()

    def run(self) -> list[str]:
        """All rows of all requests; what was told since the last time."""
        while self.replica.pipeline.position.requests.open:
            self.chunk()
        return self.told()

    def crash(self) -> None:
        self.replica.crash()
        self.replica.connect()
        self.follow_silently()

    def follow_silently(self) -> None:
        self.replica.relay.relay()
        self.replica.receive()
        self.replica.commit()

    def told(self) -> list[str]:
        """The news as lines: rows by space, notifications."""
        return list(filter(None, map(line, self.news())))


def line(sent: Sent) -> str:
    if sent.topic == "shop.notification":
        value, data = sent.value, sent.value["additional_data"]
        assert sent.key == {"id": value["id"]}
        assert value["timestamp"] == NOW_US // 1000
        assert data["connector_name"] == "shop"
        assert all(isinstance(text, str) for text in data.values())
        about = data.get("scanned_collection") or data.get("current_collection_in_progress") or data.get("reason", "")
        return f"{value['id']} {value['type']} {about}".strip()
    if sent.op is not None:
        return f"{sent.op} {sent.topic.removeprefix('shop.')} {sent.value['after']['id']}"
    return ""


def test_a_signal_from_its_arrival_to_the_last_row() -> None:
    shop = Signalled()
    shop.news()
    assert shop.signal(Execute("a", ("shop.(users|orders)",))).refusal is None
    assert shop.told() == []
    assert shop.run() == [
        "a STARTED",
        "a IN_PROGRESS shop.users",
        "r users 1",
        "r users 2",
        "r users 3",
        "a TABLE_SCAN_COMPLETED shop.users",
        "a IN_PROGRESS shop.orders",
        "r orders 1",
        "r orders 2",
        "r orders 3",
        "a TABLE_SCAN_COMPLETED shop.orders",
        "a COMPLETED",
    ]
    assert shop.replica.pipeline.position.requests.signals == shop.place


def test_what_notifications_contain() -> None:
    shop = Signalled()
    shop.news()
    shop.signal(Execute("a", ("users",)))
    while shop.replica.pipeline.position.requests.open:
        shop.chunk()
    told = {one.value["type"]: one.value for one in shop.news() if one.topic == "shop.notification"}
    assert told["STARTED"] == {
        "id": "a",
        "aggregate_type": "Incremental Snapshot",
        "type": "STARTED",
        "additional_data": {"connector_name": "shop", "data_collections": "shop.users", "snapshot_id": "2"},
        "timestamp": NOW_US // 1000,
    }
    about = {"connector_name": "shop", "data_collections": "shop.users", "snapshot_id": "2"}
    scanned = {"scanned_collection": "shop.users", "total_rows_scanned": "3", "status": "SUCCEEDED"}
    assert told["TABLE_SCAN_COMPLETED"]["additional_data"] == about | scanned
    assert told["COMPLETED"]["additional_data"] == about | {"total_rows_scanned": "3"}


def test_progress_has_the_last_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "PROGRESS_US", 0)
    shop = Signalled()
    shop.news()
    shop.signal(Execute("a", ("users",)))
    shop.chunk()
    *_, last = (one.value["additional_data"] for one in shop.news() if one.topic == "shop.notification")
    assert (last["last_processed_key"], last["total_rows_scanned"]) == ('{"id":2}', "2")


def test_without_the_topic_nothing_is_told() -> None:
    shop = Signalled(optional_topics=frozenset({"signal"}))
    shop.signal(Refused("x", "no"))
    shop.signal(Execute("a", ("users",)))
    assert all("r users" in each for each in shop.run() if each[0] == "r")
    assert not [one for one in shop.news() if one.topic == "shop.notification"]


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (Refused("x", "the reason"), "the reason"),
        (Execute("x", ("nobody",)), "no published space matches 'nobody'"),
        (Execute("x", ("(",)), "missing )"),
        (Execute("x", ("(a|b|c|.)*" * 40 + "#",) * 5000), "too long"),
        (Execute("x", ("users",), (Condition("users", "row.nothing > 1"),)), "nothing"),
        (Execute("x", ("users",), (Condition("(", "row.id > 1"),)), "missing )"),
        (Execute("x", ("users",), (Condition(None, "1 + 1"),)), "not true or false"),
        (Stop("x"), "no open request"),
        (Pause("x"), "no request"),
        (Resume("x"), "no request"),
    ],
)
def test_what_is_skipped(order: Order, reason: str) -> None:
    """It is told once, and its place is recorded, so that it isn't read again."""
    shop = Signalled()
    shop.news()
    outcome = shop.signal(order)
    assert reason in str(outcome.refusal)
    (told,) = shop.told()
    assert told.startswith("x SKIPPED")
    assert reason in told
    shop.crash()
    assert shop.replica.pipeline.position.requests.signals == shop.place
    assert not shop.replica.pipeline.position.requests.open


def test_a_flood_is_bounded() -> None:
    shop = Signalled()
    refused = [shop.signal(Execute(str(number), ("users",))).refusal for number in range(REQUESTS_MAX + 5)]
    assert [error is not None for error in refused] == [False] * REQUESTS_MAX + [True] * 5
    assert shop.signal(Stop("stop")).refusal is None
    assert not shop.replica.pipeline.position.requests.open


def test_an_id_that_is_open_is_not_taken_twice() -> None:
    shop = Signalled()
    assert shop.signal(Execute("a", ("users",))).refusal is None
    assert "open already" in str(shop.signal(Execute("a", ("users",))).refusal)
    shop.run()
    assert shop.signal(Execute("a", ("users",))).refusal is None


def test_stop_in_the_middle() -> None:
    shop = Signalled()
    shop.signal(Execute("a", ("users", "orders")))
    shop.signal(Execute("b", ("orders",)))
    shop.chunk()
    shop.news()
    assert shop.signal(Stop("s", ("shop.users",))).refusal is None
    told = shop.run()
    assert [each for each in told if each.startswith("r ")] == [f"r orders {n}" for n in (1, 2, 3, 1, 2, 3)]
    assert "a COMPLETED" in told
    shop.signal(Execute("c", ("users",)))
    shop.chunk()
    shop.news()
    shop.signal(Stop("s"))
    sent = shop.news()
    assert [one.value["status"] for one in sent if one.topic == "shop.snapshot"] == ["ABORTED"]
    assert [each.split()[:2] for each in map(line, sent) if each] == [["c", "ABORTED"]]
    assert not shop.replica.pipeline.position.requests.open
    state = shop.replica.pipeline.position.snapshot
    assert state is not None
    assert not state.open_request


def test_a_pause_outlives_a_kill() -> None:
    shop = Signalled()
    shop.signal(Execute("a", ("users",)))
    shop.chunk()
    shop.signal(Pause("p"))
    assert "already" in str(shop.signal(Pause("p")).refusal)
    shop.news()
    shop.crash()
    requests = shop.replica.pipeline.position.requests
    assert (requests.is_paused, len(requests.open)) == (True, 1)
    assert shop.told() == []
    shop.signal(Resume("r"))
    assert shop.told() == ["a RESUMED"]
    assert shop.run()[-1] == "a COMPLETED"


def test_a_message_for_the_log() -> None:
    shop = Signalled()
    outcome = shop.signal(Log("l", "at {} and {}"))
    assert outcome.about["message"] == f"at {shop.replica.pipeline.position.vclock} and {{}}"
    assert shop.told()[-1:] != ["l SKIPPED"]


def test_a_signal_is_taken_once() -> None:
    """The reader hands it over again after an aborted commit, and the checkpoint has it already, or hasn't."""
    shop = Signalled()
    shop.signal(Execute("a", ("users",)), commits=False)
    taken = shop.place
    shop.crash()
    assert not shop.replica.pipeline.position.requests.open
    shop.take(Received(Execute("a", ("users",)), taken))
    shop.run()
    shop.crash()
    assert shop.take(Received(Execute("a", ("users",)), taken)) == Outcome()
    assert not shop.replica.pipeline.position.requests.open


def test_killed_anywhere(seed: int) -> None:
    """Signals, changes, chunks, kills before and after commits, in any order: each signal's rows once, and its end told once."""
    rng = random.Random(seed)
    shop = Signalled()
    orders = [Execute(f"s{number}", (rng.choice(["users", "orders", ".*"]),)) for number in range(8)]
    sent = 0
    shop.news()
    told: list[Sent] = []
    for _ in range(400):
        step = rng.random()
        known = shop.replica.pipeline.position.requests
        if step < 0.15:
            at = known.signals.offset if known.signals is not None else 0
            if at < len(orders):
                sent = max(sent, at + 1)
                place = SignalPlace("topic", at + 1, at)
                shop.take(Received(orders[at], place), commits=rng.random() < 0.5)
        elif step < 0.6 and known.open and not shop.replica.pipeline.is_catching_up:
            shop.chunk(commits=rng.random() < 0.5)
        elif step < 0.7:
            shop.master.update("users", [rng.randint(1, 3)], ["=", "name", str(rng.random())])
            shop.follow_silently()
        elif step < 0.8:
            shop.replica.commit()
            if rng.random() < 0.5:
                shop.replica.flush()
        elif step < 0.9:
            shop.crash()
        told += shop.news()
    shop.crash()
    while shop.replica.pipeline.position.requests.open:
        shop.chunk()
    told += shop.news()
    ends = [one.value["id"] for one in told if one.topic == "shop.notification" and one.value["type"] == "COMPLETED"]
    known = shop.replica.pipeline.position.requests
    assert known.signals is not None
    assert ends == [order.id for order in orders[: known.signals.offset]]
    counts = {"users": 3, "orders": 3, ".*": 6}
    numbers = [one.value["source"]["snapshot_id"] for one in told if one.op == "r"]
    for number, order in enumerate(orders[: known.signals.offset], 2):
        assert numbers.count(str(number)) == counts[order.spaces[0]], order
    seqs = [one.source["seq"] for one in told if one.op is not None]
    assert seqs == sorted(set(seqs))


def test_without_images_any_more_a_request_ends() -> None:
    """The configuration says so since the restart."""
    request = Request("a", (512,), snapshot_id=2, counts=((513, 7),))
    state = SnapshotState(2, is_complete=True, request_count=1, open_request=2)
    position = Position(snapshot=state, requests=Requests((request, Request("b", (512,)))))
    target = pipeline(position, optional_topics=BOTH)
    batch, failure = target.backfill(NOW_US)
    assert "keeps no rows" in str(failure)
    assert [request.id for request in batch.position.requests.open] == ["b"]
    assert batch.position.snapshot is not None
    assert not batch.position.snapshot.open_request
    sent = list(map(read, batch.messages))
    assert [one.value["status"] for one in sent if one.topic == "shop.snapshot"] == ["ABORTED"]
    assert [line(one) for one in sent if line(one)] == [f"a ABORTED {failure}"]


# Filters.


def test_only_the_wanted_rows() -> None:
    shop = Signalled()
    shop.news()
    conditions = Condition("shop.orders", "row.balance > 100.0"), Condition("orders", "row.id == 1")
    shop.signal(Execute("a", ("users", "orders"), conditions))
    shop.chunk()
    shop.crash()
    sent: list[Sent] = shop.news()
    while shop.replica.pipeline.position.requests.open:
        shop.chunk()
        sent += shop.news()
    assert [line(one) for one in sent if one.op == "r"] == [*(f"r users {n}" for n in (1, 2, 3)), "r orders 2", "r orders 3"]
    (completed,) = [one.value for one in sent if one.topic == "shop.snapshot" and one.value["status"] == "COMPLETED"]
    assert [(space["space"], space["rows"]) for space in completed["spaces"]] == [("users", 3)], (
        "all rows of a space that is named"
    )


def test_rows_with_a_filter_come_in_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter that somebody sends may take long for each row, and the stream waits for a chunk."""
    monkeypatch.setattr(backfill, "CHUNK_ROWS", 1000)
    monkeypatch.setattr(backfill, "FILTERED_ROWS", 1)
    shop = Signalled()
    shop.news()
    shop.signal(Execute("a", ("orders",), (Condition(None, "row.id != 2"),)))
    chunks = []
    while shop.replica.pipeline.position.requests.open:
        shop.chunk()
        chunks.append([each for each in shop.told() if each[:2] == "r "])
    assert chunks == [["r orders 1"], [], ["r orders 3"], []]


def test_a_filter_for_many_spaces_is_compiled_when_each_of_them_begins() -> None:
    """It may be one that fits some of them only, and takes long to compile."""
    shop = Signalled()
    for number in range(12):
        shop.master.create_space(f"more{number}", USERS if number < 11 else [{"name": "key", "type": "unsigned"}])
        shop.master.insert(f"more{number}", 1)
    shop.follow()
    shop.news()
    assert shop.signal(Execute("a", (".*",), (Condition(None, "row.id == 1"),))).refusal is None
    chunk_count = 0
    while shop.replica.pipeline.position.requests.open:
        shop.chunk()
        chunk_count += 1
    assert chunk_count >= 13, "one in a chunk"
    told = shop.told()
    assert "r more10 1" in told
    assert told[-1].startswith("a ABORTED")
    assert "'id'" in told[-1]


def test_a_filter_that_fails_for_a_row_ends_the_request_and_nothing_else() -> None:
    """With format.on_error = "fail", too."""
    shop = Signalled()
    shop.master.insert("users", 4)
    shop.follow()
    shop.news()
    shop.signal(Execute("a", ("users",), (Condition(None, "row.balance > 5.0"),)))
    told = shop.run()
    assert [each for each in told if each[:2] == "r "] == [f"r users {n}" for n in (1, 2, 3)]
    assert told[-1].startswith("a ABORTED")
    assert "fails for a row" in str(shop.failure)
    shop.signal(Execute("b", ("users",)))
    assert shop.run()[-1] == "b COMPLETED"


def test_a_filter_may_not_guess_what_is_masked() -> None:
    shop = Signalled(column_rules=[ColumnsRule(spaces="users", exclude=["name"])])
    outcome = shop.signal(Execute("a", ("users",), (Condition(None, "row.name == 'one'"),)))
    assert "leaves out or masks" in str(outcome.refusal)
    assert shop.signal(Execute("a", ("users",), (Condition(None, "row.id > 1"),))).refusal is None


# Names.


@pytest.mark.parametrize("name", ["signal", "notification"])
def test_a_space_may_have_the_name_of_a_topic_that_is_not_used(name: str) -> None:
    shop = Shop()
    shop.master.create_space(name, USERS)
    shop.master.insert(name, 1)
    assert shop.event().topic == f"shop.{name}"


@pytest.mark.parametrize("name", ["signal", "notification"])
def test_a_space_may_not_have_the_name_of_a_topic_that_is_used(name: str) -> None:
    shop = Shop(optional_topics=BOTH)
    shop.master.create_space(name, USERS)
    shop.master.insert(name, 1)
    with pytest.raises(ConfigurationError, match="a control topic of this daemon"):
        shop.follow()


def test_an_order_of_http_is_refused_without_a_trace() -> None:
    shop = Signalled()
    shop.news()
    outcome = shop.take(Received(Execute("h", ("nobody",), exact=True)))
    assert isinstance(outcome.refusal, RequestError)
    assert shop.told() == []


# Snapshots that are read from the server.


def told_of_snapshots(sent: list[Sent]) -> list[str]:
    lines = []
    for one in sent:
        if one.topic == "shop.notification":
            assert one.value["aggregate_type"] == "Initial Snapshot"
            data = one.value["additional_data"]
            about = data.get("scanned_collection") or data.get("current_collection_in_progress") or ""
            lines.append(f"{one.value['id']} {one.value['type']} {about} {data.get('total_rows_scanned', '')}".strip())
    return lines


def test_the_first_snapshot() -> None:
    shop = Signalled()
    assert told_of_snapshots(shop.snapshot) == [
        "snapshot-1 STARTED",
        "snapshot-1 IN_PROGRESS shop.users",
        "snapshot-1 TABLE_SCAN_COMPLETED shop.users 2",
        "snapshot-1 COMPLETED  2",
    ]


def test_spaces_one_after_the_other_and_one_without_rows() -> None:
    shop = Signalled()
    shop.master.create_space("empty", USERS)
    shop.replica.forced_snapshot = "for the test"
    shop.news()
    shop.crash()
    assert told_of_snapshots(shop.news()) == [
        "snapshot-2 STARTED",
        "snapshot-2 IN_PROGRESS shop.users",
        "snapshot-2 TABLE_SCAN_COMPLETED shop.users 3",
        "snapshot-2 IN_PROGRESS shop.orders",
        "snapshot-2 TABLE_SCAN_COMPLETED shop.orders 3",
        "snapshot-2 TABLE_SCAN_COMPLETED shop.empty 0",
        "snapshot-2 COMPLETED  6",
    ]


@pytest.mark.parametrize(
    ("images", "began"), [(True, ["snapshot-3 RESUMED"]), (False, ["snapshot-2 ABORTED", "snapshot-3 STARTED"])]
)
def test_an_interrupted_snapshot(images: bool, began: list[str]) -> None:
    shop = Signalled() if images else Shop(optional_topics=BOTH)
    pipeline = shop.replica.pipeline
    shop.replica.submit(pipeline.begin_snapshot(pipeline.position.vclock, NOW_US))
    shop.replica.commit()
    if images:
        shop.replica.flush()
    shop.news()
    shop.replica.crash()
    shop.replica.connect()
    assert told_of_snapshots(shop.news())[: len(began)] == began


def test_a_first_start_without_rows() -> None:
    shop = Shop(optional_topics=BOTH, mode="never")
    assert told_of_snapshots(shop.snapshot) == ["snapshot-1 SKIPPED"]


def test_filters_do_not_outgrow_the_checkpoint() -> None:
    """A filter is there once for each of its spaces, and all open requests are a part of each checkpoint."""
    shop = Signalled()
    for number in range(40):
        shop.master.create_space(f"many {number}", USERS)
    shop.follow_silently()
    long = "row.id > 1 || " * 70 + "true"
    outcomes = [shop.signal(Execute(f"x{number}", (".*",), (Condition(None, long),))) for number in range(6)]
    refused = [str(outcome.refusal) for outcome in outcomes if outcome.refusal is not None]
    assert (len(outcomes) - len(refused), len(refused)) == (3, 3)
    assert "131072 are allowed" in refused[0]
    assert len(position_record("shop", shop.replica.pipeline.position, Writer("w", has_store=True), 0)[1]) < 200_000


def test_all_patterns_of_a_signal_together_may_take_only_so_long() -> None:
    """The stream waits meanwhile."""
    shop = Signalled()
    slow = "(" + "u?s?e?r?o?d?.*" * 20 + ")#"
    conditions = [Condition(slow + "x" * (number % 3), "row.id > 1") for number in range(5000)]
    began = time.monotonic()
    assert "too long" in str(shop.signal(Execute("a", (".*",), tuple(conditions))).refusal)
    assert time.monotonic() - began < 3
    assert shop.signal(Execute("b", (".*",), tuple(conditions[:1]))).refusal is None
