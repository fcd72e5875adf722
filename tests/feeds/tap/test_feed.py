"""What all clients share, over a broker in memory: what it knows of keys that went, and how rows and changes are joined."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc import config
from cdc.errors import ConnectionLostError
from cdc.feeds.tap import keeper, live
from cdc.feeds.tap.changes import Renaming
from cdc.feeds.tap.feed import Feed
from cdc.feeds.tap.live import Topics
from cdc.feeds.tap.merging import Batch, Selection
from cdc.feeds.tap.rows import FILL_OPAQUE, BusyError, Rows
from cdc.feeds.tap.session import ClientPosition, ControlPosition, Cursor, Session
from cdc.feeds.tap.stream import NEW, ClientStream, SlowError, StalledError
from cdc.feeds.tap.window import AckWindow
from cdc.feeds.tap.wire import Opcode, Packet, Packets, TapRequest
from cdc.kafka.hanging import Place as Partition
from tests.feeds.tap.broker import PREFIX, Broker, Reader
from tests.feeds.tap.served import Served, change
from tests.live.waiting import wait_for

_SNAPSHOTS = f"{PREFIX}.snapshot"
_PARTITIONS = 2
_ROUNDS = 400
_CALM_STEPS = 30


def _feed(broker: Broker, directory: Path, forget: Callable[[], None] = lambda: None, **tap: Any) -> Feed:
    values = {
        "name": PREFIX,
        "source": {"uris": ["localhost:1"]},
        "kafka": {"bootstrap_servers": "localhost:1", "topic_prefix": PREFIX},
        "state": {"path": directory / "state"},
        "tap": {"path": directory / "tap", **tap},
    }
    feed = Feed(config.parse(values, "the test"), _raise, forget)
    feed._topics = broker.topics()
    return feed


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("known", "is_expired", "is_missed"),
    [(0, True, False), (2, False, False), (2, True, False), (1, True, True), (7, False, True)],
    ids=["new", "all there", "all read", "expired unread", "another topic"],
)
def test_records_of_snapshots_that_nobody_has_read(tmp_path: Path, known: int, is_expired: bool, is_missed: bool) -> None:
    broker, missed = Broker(), list[bool]()
    broker.change(1, 1, "a")
    broker.snapshot(1, 1)
    broker.snapshot(1, 1, rows=1, sweep_seq=1)
    if is_expired:
        broker.expire(_SNAPSHOTS)

    async def follow() -> None:
        feed = _feed(broker, tmp_path, lambda: missed.append(True))
        feed.removals.control = ControlPosition(0, known)
        assert await feed.start(asyncio.Event())
        async with asyncio.timeout(30):
            await feed.wait_until_at_end()
            await asyncio.sleep(0)  # what the reader's thread has said by then
        assert feed.removals.control == ControlPosition(0 if is_expired else 1, 2, swept_offset=0 if is_expired else 2)
        await feed.stop()

    asyncio.run(follow())
    assert bool(missed) is is_missed


# The whole server, over the broker.


def test_what_a_client_gets_by_its_name_is_there_from_the_first_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has looked at the store before the first client, nor at a space since it has got its name."""
    monkeypatch.setattr(live, "_NEAR", 0)  # nothing is read but what is new
    broker = _shop()
    filters = [{"name": "few", "spaces": ["us.*", "people"]}]
    with Served(tmp_path, broker=broker, clients=filters) as served, served.connect() as client:
        client.connect("few").start()
        client.wait_filled()
        assert client.contents.keys() == {"users:1", "users:2"}
        broker.form(3, 2, "people", former="users")
        broker.change(4, 2, "new", space="people")
        wait_for("the other name", lambda: client.contents.keys() == {"people:1", "people:2"})


def test_a_space_that_is_emptied_takes_no_other_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is new, and has met this one space alone."""
    monkeypatch.setattr(live, "_NEAR", 0)
    broker = _shop()
    with Served(tmp_path, broker=broker) as served, served.connect() as first:
        first.connect("a").start()
        first.wait_filled()
        wait_for("the ACKs", lambda: served.server.clients["a"].session.position.cursor is None)
    with Served(tmp_path, broker=broker) as served, served.connect() as client:
        client.connect("a").start(first)
        broker.change(4, 1, "new")
        broker.empty(5)
        wait_for("the deletions", lambda: client.contents.keys() == {"others:1"})


def test_a_store_that_was_removed_is_a_new_one_to_those_who_come_back(tmp_path: Path) -> None:
    """Keys that go while there is no store are deleted by nobody; which store a client was filled from, its session knows."""
    broker = _shop()
    with Served(tmp_path, broker=broker) as served, served.connect() as first:
        first.connect("a").start()
        first.wait_filled()
        wait_for("the ACKs", lambda: served.server.clients["a"].session.position.cursor is None)
    shutil.rmtree(tmp_path / "rows")
    for count in (1, 0):
        with Served(tmp_path, broker=broker) as served, served.connect() as client:
            client.connect("a").start(first)
            wait_for("the rows", lambda: client.backfills_ended == count)  # noqa: B023 - at once
            broker.change(5 - count, 1, f"new {count}")
            wait_for("the change", lambda: f"new {count}".encode() in client.contents.get("users:1", b""))  # noqa: B023 - at once
            assert client.flush_count == count


def test_keys_of_an_emptied_space_are_found_once_kafka_answers_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.feeds.tap.lookups.RETRY_SECONDS", 0.01)
    broker, trouble = _shop(), [ConnectionLostError("no broker answers"), ConnectionLostError("no broker answers")]
    with Served(tmp_path, broker=broker) as served, served.connect() as client:
        former_keys = served.server.feed._topics.former_keys

        def hindered(*arguments: Any) -> Any:
            if trouble:
                raise trouble.pop()
            return former_keys(*arguments)

        monkeypatch.setattr(served.server.feed._topics, "former_keys", hindered)
        client.connect("a").start()
        client.wait_filled()
        broker.empty(4)
        wait_for("the deletions", lambda: client.contents.keys() == {"others:1"})
        assert not trouble
        assert client.flush_count == 0


def test_other_keys_than_before_are_told_to_all(tmp_path: Path) -> None:
    broker, first = _shop(), None
    for number, key in enumerate(["{space}:{key}", "{space}:{key}", "{space}/{key}", "{space}/{key}"]):
        with Served(tmp_path, broker=broker, key=key) as served, served.connect() as client:
            client.connect("a").start(first)
            broker.change(4 + number, 2, number, partition=1)
            wait_for("the change", lambda: client.cas.get(key.format(space="users", key=2)) == 4 + number)  # noqa: B023
            wait_for("the rows", lambda: client.contents.keys() == {key.format(space=n, key=k) for n, k in _KEYS})  # noqa: B023
            wait_for("the ACKs", lambda: served.server.clients["a"].session.position == (4 + number, None))  # noqa: B023
            assert client.flush_count == (number == 2)
            first = client


def test_a_row_without_the_keys_field_harms_nobody(tmp_path: Path) -> None:
    broker = _shop()
    with (
        capture_logs() as said,
        Served(tmp_path, broker=broker, key="{space}/{value}") as served,
        served.connect() as client,
    ):
        client.connect("a").start()
        client.wait_filled()
        expected = {"users/a", "users/b", "others/x"}
        assert client.contents.keys() == expected
        source = {"name": PREFIX, "table": "users", "space_id": 512, "seq": 4}
        broker.write(f"{PREFIX}.users", b'{"id":3}', {"op": "c", "before": None, "after": {"id": 3}, "source": source})
        broker.change(5, 4, "d")
        wait_for("the next", lambda: client.contents.keys() == expected | {"users/d"})
        # Filled from the store it is the same.
        with served.connect() as dumped:
            dumped.connect("dump", is_dump=True).start()
            dumped.wait_closed()
            assert dumped.contents.keys() >= expected
    # Once, however many rows lack it.
    assert [(line["space"], line["field"]) for line in said if "field" in line] == [("users", "value")]


def test_another_name_concerns_those_who_get_the_space(tmp_path: Path) -> None:
    """And not who gets others, nor anybody where no name is wanted."""

    async def follow() -> None:
        clients = [{"name": "few", "spaces": ["others"]}]
        feed = _feed(Broker(), tmp_path, spaces=["users", "people", "others"], clients=clients)
        few, all_ = (
            Session(TapRequest(name), ClientPosition(5, None), 0.0, 0.0, begun_seq=5, begun_version=1) for name in ("few", "all")
        )
        feed.removals.renamed(Renaming(2, 6, "temporary", "other"))
        assert (feed.needs_refill(few), feed.needs_refill(all_)) == (False, False)
        feed.removals.renamed(Renaming(3, 7, "users", "people"))
        feed.removals.renamed(Renaming(3, 7, "users", "people"))  # each time the topic is read
        assert (feed.needs_refill(few), feed.needs_refill(all_)) == (False, True)
        feed.removals.renamed(Renaming(4, 8, "others", "elsewhere"))
        assert feed.needs_refill(few)

    asyncio.run(follow())


def test_a_date_before_another_name_is_no_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The changes tell the former name, and nothing tells that it is gone."""

    async def follow() -> None:
        feed = _feed(Broker(), tmp_path)
        found = 6
        monkeypatch.setattr(feed._topics, "since", lambda _: found)
        assert await feed.since(1) == 6
        feed.removals.renamed(Renaming(2, 6, "users", "people"))
        assert await feed.since(1) is None
        found = 7
        assert await feed.since(1) == 7

    asyncio.run(follow())


def test_a_sweep_at_the_very_number_of_a_clients_filling(tmp_path: Path) -> None:
    """A space that is empty by now: no event has moved the number on."""

    async def follow() -> None:
        feed = _feed(Broker(), tmp_path)
        session = Session(TapRequest("a"), ClientPosition(5, None), 0.0, 0.0, begun_seq=5)
        feed.removals.swept(5, 3)
        assert feed.needs_refill(session)
        session.begun_offset = feed.swept_offset  # as it is filled again
        assert not feed.needs_refill(session)
        feed.removals.swept(5, 3)
        assert not feed.needs_refill(session), "records are read again at each start"
        feed.removals.swept(5, 4)
        assert feed.needs_refill(session)

    asyncio.run(follow())


def test_changes_that_are_lost_are_made_good_from_the_daemons_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "HOLE_SECONDS", 0.05)
    monkeypatch.setattr(live, "HOLE_TOPICS_SECONDS", 0.01)
    broker = _shop()

    async def follow() -> None:
        feed = _feed(broker, tmp_path)
        assert await feed.start(asyncio.Event())
        session = Session(TapRequest("a"), ClientPosition(3, None), 0.0, 0.0, begun_seq=3)
        broker.change(6, 1, "4 and 5 are gone")
        async with asyncio.timeout(30):
            while feed.last < 6:
                await asyncio.sleep(0.01)
        assert feed.needs_refill(session)
        assert not feed.needs_refill(Session(TapRequest("b"), ClientPosition(6, None), 0.0, 0.0, begun_seq=6))
        await feed.stop()

    asyncio.run(follow())


def test_what_has_been_read_is_nothing_new_though_it_is_still_gathered(tmp_path: Path) -> None:
    async def follow() -> None:
        feed = _feed(_shop(), tmp_path)
        feed.stored.store.seq = lambda: 0  # type: ignore[method-assign]  # it is behind the topics
        feed.newest._follower_count, feed.newest._appended_at = 5_000, asyncio.get_running_loop().time()
        assert await feed.start(asyncio.Event())
        async with asyncio.timeout(30):
            await feed.wait_until_at_end()
        assert feed.last == 3
        await feed.stop()

    asyncio.run(follow())


def _followed_through(tmp_path: Path, *, is_stuck: bool) -> tuple[list[int], Feed]:
    """What one client gets of far more than the ring has room for, that comes at once, while a thousand follow."""

    async def follow() -> tuple[list[int], Feed]:
        broker = _shop()
        feed = _feed(broker, tmp_path, buffer_bytes_max=1 << 20)
        feed.stored.store.seq = lambda: 0  # type: ignore[method-assign]  # it is behind the topics
        assert await feed.start(asyncio.Event())
        await feed.wait_until_at_end()
        feed.newest._follower_count = 1_000  # they are told ten times a second
        told: list[int] = []
        async with asyncio.timeout(30):
            stuck = feed.batches(Session(TapRequest("stuck"), ClientPosition(0, None), 0.0, 0.0), 0)
            if is_stuck:
                await anext(stuck)
            following = feed.batches(Session(TapRequest("good"), ClientPosition(0, None), 0.0, 0.0), 0)
            told.append((await anext(following)).last)
            for seq in range(4, 5_004):
                broker.change(seq, seq, "x" * 2_000)
            while told[-1] < 5_003:
                batch = await anext(following)
                assert batch.first == told[-1] + 1
                told.append(batch.last)
            await following.aclose()
            if is_stuck:
                with pytest.raises(SlowError):
                    await anext(stuck)
            await stuck.aclose()
        await feed.stop()
        return told, feed

    return asyncio.run(follow())


def test_who_follows_loses_nothing_however_much_comes_at_once(tmp_path: Path) -> None:
    """As after a time without Kafka: ten times as much as the ring has room for, before anybody was told of the first of it."""
    told, feed = _followed_through(tmp_path, is_stuck=False)
    assert len(told) > 10
    assert feed.ring.byte_count < 2 << 20


def test_who_stands_still_is_waited_for_no_longer_than_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.feeds.tap.newest._HOLD_SECONDS", 0.3)
    _followed_through(tmp_path, is_stuck=True)


def test_nobody_is_dropped_for_kafkas_being_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that were filled from a store that is ahead of the topics, and one with a date: Kafka is asked once for many."""
    monkeypatch.setattr("cdc.feeds.tap.lookups.RETRY_SECONDS", 0.01)
    broker = _shop()
    asked: list[str] = []

    async def follow() -> None:
        feed = _feed(broker, tmp_path)
        assert await feed.start(asyncio.Event())
        await feed.wait_until_at_end()
        newest_seq, since = feed._topics.newest_seq, feed._topics.since

        def asks(what: str, look: Callable[..., Any]) -> Callable[..., Any]:
            def ask(*arguments: Any) -> Any:
                asked.append(what)
                if len(asked) < 4:
                    raise ConnectionLostError("Kafka can't be reached")
                return look(*arguments)

            return ask

        monkeypatch.setattr(feed._topics, "newest_seq", asks("end", newest_seq))
        monkeypatch.setattr(feed._topics, "since", asks("date", since))
        async with asyncio.timeout(30):
            following = [feed.batches(Session(TapRequest(f"{n}"), ClientPosition(4, None), 0.0, 0.0), 4) for n in range(100)]
            coming = [asyncio.ensure_future(anext(one)) for one in following]
            since_when = asyncio.ensure_future(feed.since(1))
            while len(asked) < 2:
                await asyncio.sleep(0.01)
            broker.change(4, 4, "x")
            broker.change(5, 5, "x")
            assert {(await one).last for one in coming} == {5}
            await since_when
            for one in following:
                await one.aclose()
        await feed.stop()

    asyncio.run(follow())
    assert asked.count("end") < 10


def test_who_comes_and_goes_while_kafka_is_away_leaves_no_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that came left one that waited for Kafka's answer, with a client of Kafka's: hundreds, and 2 GB, within seconds."""
    broker, is_back = _shop(), threading.Event()
    listed = Topics.listed

    def listed_late(topics: Topics, admin: Any) -> Any:
        is_back.wait(30)
        return listed(topics, admin)

    def reading() -> int:
        return sum(thread.name == "tap-live" for thread in threading.enumerate())

    async def follow() -> None:
        feed = _feed(broker, tmp_path)
        assert await feed.start(asyncio.Event())
        await feed.wait_until_at_end()
        before = reading()
        monkeypatch.setattr(Topics, "listed", listed_late)
        for number in range(40):
            one = feed.batches(Session(TapRequest(f"{number}"), ClientPosition(0, None), 0.0, 0.0), 0)
            coming = asyncio.ensure_future(anext(one))
            await asyncio.sleep(0.01)
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
            await one.aclose()
        assert reading() - before <= 4
        is_back.set()
        async with asyncio.timeout(30):
            last = feed.batches(Session(TapRequest("last"), ClientPosition(0, None), 0.0, 0.0), 0)
            assert (await anext(last)).first == 1
            await last.aclose()
        await feed.stop()

    try:
        asyncio.run(follow())
    finally:
        is_back.set()


def test_who_takes_little_keeps_nobody_from_reading_the_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.feeds.tap.catching_up._PLACES", 1)
    monkeypatch.setattr("cdc.feeds.tap.catching_up._TURN_SECONDS", 0.1)
    broker = Broker()
    for seq in range(1, 6_001):
        broker.change(seq, seq, "x")

    async def follow() -> None:
        feed = _feed(broker, tmp_path)
        assert await feed.start(asyncio.Event())
        await feed.wait_until_at_end()
        slow, fast, last = (Session(TapRequest(name), ClientPosition(0, None), 0.0, 0.0) for name in ("slow", "fast", "last"))
        async with asyncio.timeout(30):
            # It takes one batch and no more.
            of_slow = feed.batches(slow, 0)
            assert (await anext(of_slow)).first == 1
            feed.check_turn(slow)
            of_fast, of_last = feed.batches(fast, 0), feed.batches(last, 0)
            found, taken = await anext(of_fast), 0
            with pytest.raises(SlowError):
                feed.check_turn(slow)
            # Each of those that take what they have has its turn, and nothing is left out or comes twice.
            waiting = asyncio.ensure_future(anext(of_last))
            while taken < 6_000:
                assert found.first == taken + 1
                taken = found.last
                await asyncio.sleep(0.15)
                found = await anext(of_fast) if taken < 6_000 else found
            feed.check_turn(fast)
            assert (await waiting).first == 1
            feed.check_turn(fast)
        for batches in (of_slow, of_fast, of_last):
            await batches.aclose()
        feed.check_turn(slow)
        await feed.stop()

    asyncio.run(follow())


@pytest.mark.parametrize("moment", range(5))
def test_who_goes_when_something_comes_is_gone(tmp_path: Path, moment: int) -> None:
    """Otherwise its connection would be waited for, and its name be taken, for ever."""

    async def wait() -> None:
        feed = _feed(Broker(), tmp_path)
        feed._reader = SimpleNamespace(is_at_end=False)  # type: ignore[assignment]  # nothing else is asked of it
        waiting = asyncio.ensure_future(feed.wait_read(1))
        for _ in range(5):
            await asyncio.sleep(0)
        feed.newest.wake()
        for _ in range(moment):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting}, timeout=5)
        assert waiting.cancelled()

    asyncio.run(wait())


def test_a_row_is_left_out_only_if_its_change_was_told(tmp_path: Path) -> None:
    """The first view is in the middle of a batch: what changed before it in there comes as a row."""
    told: list[bytes] = []
    changes = [change(1, "9", b"x"), change(2, "1", b"y")]
    rows = [
        Rows(1, 0, [change(0, "5", b"z").frame], [b"users:5"], Cursor(512, b"5")),
        Rows(2, 0, [changes[0].frame], [b"users:9"], None),
    ]

    async def drain() -> None:
        """It is taken at once."""

    async def follow() -> None:
        feed = _feed(Broker(), tmp_path)
        feed.ring.append(Batch(1, 2, changes, 100))

        async def read(*_: object) -> Rows:
            return rows.pop(0)

        feed.read = read  # type: ignore[method-assign, assignment]  # there is no store
        session = Session(TapRequest("", is_dump=True), ClientPosition(NEW, Cursor()), 0.0, 0.0)
        await ClientStream(session, feed, _Kept(), told.extend, drain, None, 60.0).run()
        await feed.stop()

    asyncio.run(follow())
    keys = [packet.key for packet in Packets().feed(b"".join(told)) if packet.key]
    assert keys == [b"users:5", b"users:1", b"users:9"]


@pytest.mark.parametrize("is_moving", [True, False])
def test_a_slow_link_is_no_stalled_client(tmp_path: Path, is_moving: bool) -> None:
    """What it takes of one message in the time of a stall is enough, however little."""
    taken, told = 0, list[bytes]()

    def count() -> int:
        nonlocal taken
        taken += is_moving
        return taken

    async def drain() -> None:
        if taken < 10:
            await asyncio.Event().wait()

    async def follow() -> None:
        feed = _feed(Broker(), tmp_path)
        feed.ring.append(Batch(1, 1, [change(1, "1", b"x")], 100))
        session = Session(TapRequest(""), ClientPosition(0, None), 0.0, 0.0)
        stream = ClientStream(session, feed, _Kept(), told.extend, drain, None, 0.01, count)
        running = asyncio.ensure_future(stream.run())
        if is_moving:
            async with asyncio.timeout(30):
                while stream.seq < 1:
                    await asyncio.sleep(0.001)
            running.cancel()
            await asyncio.wait({running})
        else:
            while not told:
                await asyncio.sleep(0)
            stream.noop()  # which may be taken, and be no progress
            with pytest.raises(StalledError):
                await running
        assert len(told) == 1
        await feed.stop()

    asyncio.run(follow())


def test_many_clients_look_at_a_store_that_cannot_be_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.feeds.tap.stored.STORE_SECONDS", 0.01)
    look_count, is_there = 0, False

    def look(*_: object, **__: object) -> Any:
        nonlocal look_count
        look_count += 1
        if not is_there:
            raise BusyError("it is being given other keys")
        return 3, 0

    async def follow() -> None:
        nonlocal is_there
        feed = _feed(_shop(), tmp_path)
        feed.stored.store.refresh_position = feed.stored.store.read = look  # type: ignore[method-assign]  # there is no daemon
        selection = Selection(None, None, frozenset(), is_keys_only=False)
        reading = [asyncio.ensure_future(feed.read(Cursor(), selection)) for _ in range(100)]
        async with asyncio.timeout(30):
            while look_count < 110:
                await asyncio.sleep(0.01)
        assert not any(one.done() for one in reading)
        await asyncio.sleep(0.2)
        assert look_count < 200, "each looks once, and from then on one for all"
        is_there = True
        async with asyncio.timeout(30):
            await asyncio.gather(*reading)
        await feed.stop()

    asyncio.run(follow())


def test_a_space_is_not_the_only_one_as_long_as_nobody_knows(tmp_path: Path) -> None:
    """The daemon's store can't be read yet, and the topics of other spaces have expired: a FLUSH would take their rows, too."""
    feed = _feed(Broker(), tmp_path)
    feed._changes.template("users")
    session = Session(TapRequest("a"), ClientPosition(3, None), 0.0, 0.0)
    assert not feed.is_alone(session, "users")
    feed.stored.store._names = ["users"]
    assert feed.is_alone(session, "users")
    feed.stored.store._names = ["users", "others"]
    assert not feed.is_alone(session, "users")


def test_a_store_that_became_older_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was replaced by a copy: what was seen of it before says nothing."""
    monkeypatch.setattr("cdc.feeds.tap.stored.STORE_SECONDS", 0.01)

    async def wait() -> None:
        feed = _feed(Broker(), tmp_path)
        feed.stored.store.refresh_position = lambda: (3, 0)  # type: ignore[method-assign]  # there is no daemon
        feed.stored._position = 9, 0
        assert not feed.is_new_enough(Rows(3, 0, [], [], None), 5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await feed.wait_stored(5)

    asyncio.run(wait())


def test_nobody_is_flushed_before_there_are_rows(tmp_path: Path) -> None:
    """The daemon is dead, and its store behind the topics: what a client has is better than nothing."""
    told: list[bytes] = []
    kept = _Kept()

    async def drain() -> None:
        """It is taken at once."""

    async def follow() -> None:
        feed = _feed(_shop(), tmp_path)
        stored = (2, 0)
        feed.stored.store.refresh_position = lambda: stored  # type: ignore[method-assign]  # there is no daemon
        assert await feed.start(asyncio.Event())
        await feed.wait_until_at_end()
        session = Session(TapRequest("a"), ClientPosition(3, None), 0.0, 0.0, begun_seq=3, is_reset=True)
        stream = ClientStream(session, feed, kept, told.extend, drain, None, 60.0)
        running = asyncio.ensure_future(stream.run())
        async with asyncio.timeout(30):
            while feed.stored._position is None:
                await asyncio.sleep(0.01)
        assert not told
        stored = (3, 0)
        async with asyncio.timeout(30):
            while not told:
                await asyncio.sleep(0.01)
        assert [packet.opcode for packet in Packets().feed(b"".join(told))] == [Opcode.TAP_FLUSH]
        assert kept.saved is not None
        assert kept.saved["is_reset"], "a server that is killed now begins with the FLUSH again"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await feed.stop()

    asyncio.run(follow())


_KEYS = [("users", 1), ("users", 2), ("others", 1)]


def _shop() -> Broker:
    """Two spaces, with three rows."""
    broker = Broker()
    broker.create(f"{PREFIX}.users", _PARTITIONS)
    broker.create(_SNAPSHOTS)
    broker.form(0, 1, "users")
    broker.form(0, 1, "others", space_id=513)
    broker.change(1, 1, "a")
    broker.change(2, 2, "b", partition=1)
    broker.change(3, 1, "x", space="others", space_id=513)
    return broker


# Rows and changes, in any schedule.


class _AtOnce(ThreadPoolExecutor):
    """What is given to another thread is done at once, so that a seed decides all that happens."""

    def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*arguments, **named))
        except BaseException as error:  # noqa: BLE001 - for whoever waits
            done.set_exception(error)
        return done


class _Kept:
    """Sessions as a killed server leaves them: as they were when they were kept last."""

    def __init__(self) -> None:
        self.saved: dict[str, Any] | None = None

    def take_over(self, session: Session, vbuckets: frozenset[int]) -> None:
        """Nobody does."""

    async def keep(self, session: Session) -> None:
        """Now."""
        self.saved = session.to_json()


class _Cache:
    """A client that keeps what it is told, and holds it against promises: nothing older behind anything newer; no row twice."""

    def __init__(self) -> None:
        self.contents: dict[str, tuple[int, bytes]] = {}
        self.newest: dict[str, int] = {}
        self.asked: list[int] = []
        self.told: list[str] = []
        self.filled: set[str] = set()
        """Keys that were told since the backfill began, as rows or as changes."""

    def reconnect(self) -> None:
        """What it hasn't acknowledged comes again, beginning with the oldest."""
        self.newest.clear()
        self.asked.clear()
        self.filled.clear()

    def users(self) -> dict[str, int]:
        """Keys of the space that moves, with their numbers."""
        return {key: cas for key, (cas, _) in self.contents.items() if not key.startswith("others")}

    def take(self, frames: list[bytes]) -> None:
        """Messages."""
        for packet in Packets(1 << 30).feed(b"".join(frames)):
            self._take(packet)

    def _take(self, packet: Packet) -> None:
        key = packet.key.decode()
        self.told.append(f"{packet.opcode:02x} {key} {packet.cas}")
        if packet.extras[3:4] and packet.extras[3] & 1:
            self.asked.append(packet.opaque)
        if packet.opcode == Opcode.TAP_FLUSH:
            self.contents.clear()
        elif packet.opcode == Opcode.TAP_OPAQUE:
            self.filled.clear()
        elif packet.opcode in (Opcode.TAP_MUTATION, Opcode.TAP_DELETE):
            # Over a FLUSH, too: the cache's readers would see an older value than they have seen.
            assert packet.cas >= self.newest.get(key, 0), f"{key} goes back: {self.told[-60:]}"
            self.newest[key] = packet.cas
            is_row = packet.opcode == Opcode.TAP_MUTATION and packet.opaque & FILL_OPAQUE
            assert not is_row or key not in self.filled, f"{key} comes again as a row: {self.told[-60:]}"
            self.filled.add(key)
            if packet.opcode == Opcode.TAP_MUTATION:
                self.contents[key] = packet.cas, packet.value
            else:
                self.contents.pop(key, None)


class _Daemon:
    """Publishes what a seed says, each change to some partition of its key's."""

    def __init__(self, broker: Broker, chance: random.Random) -> None:
        self._broker = broker
        self._chance = chance
        self.seq = 0
        self.version = 1
        self.name = "users"
        self.rows: dict[int, int] = {}
        broker.create(f"{PREFIX}.users", _PARTITIONS)
        broker.create(_SNAPSHOTS)
        broker.form(0, 1, "users")
        broker.form(0, 1, "others", space_id=513)

    def act(self) -> None:
        """Something happens."""
        match self._chance.choices(["change", "delete", "empty", "rename", "other"], [60, 20, 2, 1, 10])[0]:
            case "empty":
                self.seq += 1
                self._broker.empty(self.seq, space=self.name)
                self.rows.clear()
            case "rename":
                former, self.name = self.name, "people" if self.name == "users" else "users"
                self.version += 1
                self._broker.create(f"{PREFIX}.{self.name}", _PARTITIONS)
                self._broker.form(self.seq, self.version, self.name, former=former)
            case "other":
                self.seq += 1
                self._broker.change(self.seq, self._chance.randrange(5), "x", space="others", space_id=513)
            case what:
                key = self._chance.randrange(40)
                if what == "delete" and self.rows.pop(key, None) is None:
                    return
                self.seq += 1
                if what == "change":
                    self.rows[key] = self.seq
                value = f"v{self.seq}" if what == "change" else None
                self._broker.change(self.seq, key, value, space=self.name, partition=key % _PARTITIONS)

    def expected(self) -> dict[str, int]:
        """What a client has in the end: keys, and the numbers of their changes."""
        return {f"{self.name}:{key}": seq for key, seq in self.rows.items()}


@pytest.fixture
def lockstep(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker whose readers are given what a test says, and who commit and look for topics whenever they may."""
    for name in ("_COMMIT_SECONDS", "TOPICS_SECONDS", "HOLE_TOPICS_SECONDS"):
        monkeypatch.setattr(keeper, name, 0.0)
    for name in ("TOPICS_SECONDS", "HOLE_TOPICS_SECONDS"):
        monkeypatch.setattr(live, name, 0.0)
    monkeypatch.setattr("cdc.feeds.tap.stored.STORE_SECONDS", 0.0)
    monkeypatch.setattr("cdc.feeds.tap.stored._ROWS", 7)
    broker = Broker(lockstep=True)
    yield broker
    with broker.turn:
        broker.lockstep = False
        broker.turn.notify_all()


@pytest.mark.parametrize("life", range(6))
def test_rows_and_changes_are_joined_whatever_comes_when(lockstep: Broker, tmp_path: Path, seed: int, life: int) -> None:
    """The server's own store is behind the changes or before them, views are old, clients are slow, servers are killed."""
    chance = random.Random(seed + life)
    asyncio.run(_live(lockstep, tmp_path, chance))


async def _live(broker: Broker, directory: Path, chance: random.Random) -> None:
    asyncio.get_running_loop().set_default_executor(_AtOnce())
    daemon, cache, kept = _Daemon(broker, chance), _Cache(), _Kept()
    for _ in range(30):
        daemon.act()
    for _ in range(chance.randrange(1, 4)):
        await _serve_for_a_while(broker, directory, daemon, cache, kept, chance, _ROUNDS, is_last=False)
    await _serve_for_a_while(broker, directory, daemon, cache, kept, chance, 0, is_last=True)
    assert cache.users() == daemon.expected()


async def _serve_for_a_while(
    broker: Broker,
    directory: Path,
    daemon: _Daemon,
    cache: _Cache,
    kept: _Kept,
    chance: random.Random,
    rounds: int,
    *,
    is_last: bool,
) -> None:
    feed = _feed(broker, directory, store_path=directory / "rows", buffer_bytes_max=1024 * 1024)
    starting = asyncio.ensure_future(feed.start(asyncio.Event()))
    await _step(broker, chance)
    assert await starting
    stream, running = _connected(feed, cache, kept)
    cache.reconnect()
    for _ in range(rounds):
        match chance.randrange(12):
            case 0 | 1 | 2:
                daemon.act()
            case 3:
                feed.stored.store._view_seconds_max = chance.choice([0.0, 60.0])
            case 4 | 5:
                for _ in range(chance.randrange(1, 3)):
                    if cache.asked:
                        stream.answered(cache.asked.pop(0))
            case 6 if chance.random() < 0.05 and kept.saved is not None:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                kept.saved = stream.session.to_json()
                stream, running = _connected(feed, cache, kept)
                cache.reconnect()
            case 7:
                kept.saved = stream.session.to_json() if stream.session.position.seq != NEW else kept.saved
            case _:
                await _step(broker, chance)
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
        assert not running.done(), running.exception()
    if is_last:
        feed.stored.store._view_seconds_max = 0.0
        calm = 0
        async with asyncio.timeout(60):
            while calm < _CALM_STEPS:  # what was told last, as of another name, may take it from the right contents once more
                await _step(broker, chance, is_all=True)
                for opaque in cache.asked:
                    stream.answered(opaque)
                cache.asked.clear()
                await asyncio.sleep(0)
                calm = calm + 1 if cache.users() == daemon.expected() else 0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    with broker.turn:
        broker.lockstep = False
        broker.turn.notify_all()
    await feed.stop()
    broker.lockstep = True
    broker.readers.clear()


def _connected(feed: Feed, cache: _Cache, kept: _Kept) -> tuple[ClientStream, asyncio.Task[None]]:
    """The client, where it was."""
    session = Session(TapRequest("cache", has_acks=True), ClientPosition(NEW, Cursor()), 0.0, 0.0)
    if kept.saved is not None:
        session = Session.from_json(kept.saved)

    async def drain() -> None:
        await asyncio.sleep(0)

    stream = ClientStream(session, feed, kept, cache.take, drain, AckWindow(1 << 20), 60.0)
    return stream, asyncio.ensure_future(stream.run())


async def _step(broker: Broker, chance: random.Random, *, is_all: bool = False) -> None:
    """One of the readers gets some messages, and does with them what it does."""
    readers = [reader for reader in broker.readers if reader.is_waiting]
    if not readers:
        await asyncio.sleep(0.0005)
        return
    reader = chance.choice(readers)
    places = sorted(reader.places)
    count = 1_000 if is_all else chance.choice([0, 1, 3, 100])
    chosen = places if is_all else chance.sample(places, chance.randrange(len(places) + 1))
    counts: list[tuple[Partition, int]] = [(place, count) for place in chosen]
    reader.grant(counts)
    await _settled(reader, broker)


async def _settled(reader: Reader, broker: Broker) -> None:
    """Until the reader asks again, is closed, or waits for the loop."""
    for _ in range(200):
        await asyncio.sleep(0.0001)
        if reader.is_waiting or reader not in broker.readers:
            return
