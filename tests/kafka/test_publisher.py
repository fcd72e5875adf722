"""What the publisher does when Kafka refuses, fences, or takes too long: both ways of delivery, against a cluster of words."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdc.config import KafkaSection
from cdc.daemon.event_sink import EventSink
from cdc.errors import CdcError, ConnectionLostError, PublishAborted, PublishError, TransactionTimeoutError
from cdc.kafka import readability, readers_view, topic_admin
from cdc.kafka.errors import ProducerLostError
from cdc.kafka.publisher import END_SECONDS, Publisher
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.stream.batches.batch import Batch, Broadcast
from cdc.stream.commits.checkpoint import Writer
from cdc.stream.commits.open_transaction import COMMIT_LEADS_SECONDS
from tests.fakes.kafka import FENCED, NO_ANSWER, Cluster, FakeProducer, Record, clients
from tests.live.waiting import wait_for

Mode = Literal["exactly_once", "at_least_once"]
MODES: list[Mode] = ["exactly_once", "at_least_once"]
Start = Callable[..., Publisher]
WRITER = Writer("writer", has_store=False)


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """This Kafka writes its markers at once, or not at all."""
    monkeypatch.setattr(readers_view, "MARKERS_SECONDS", 0.1)


@pytest.fixture
def cluster() -> Cluster:
    """An empty one that works."""
    return Cluster()


@pytest.fixture
def start(cluster: Cluster) -> Iterator[Start]:
    """Starts publishers, one after the other, and stops them."""
    publishers: list[Publisher] = []

    def make(mode: Mode, **settings: object) -> Publisher:
        publisher = Publisher("x", config_of(mode, **settings), WRITER, clients(cluster))
        publisher.start()
        publishers.append(publisher)
        return publisher

    yield make
    for publisher in publishers:
        if publisher._thread.is_alive():
            publisher.stop(20)


def config_of(mode: Mode, **settings: object) -> KafkaSection:
    """Of a daemon that commits at once."""
    return KafkaSection.model_validate(
        {"bootstrap_servers": "x:1", "topic_prefix": "shop", "delivery": mode, "commit_interval_ms": 1, **settings}
    )


def row(number: int) -> bytes:
    """An event's value, as far as the publisher reads it."""
    return b'{"source":{"name":"shop","seq":%d}}' % number


def batch(number: int, *messages: Broadcast, is_boundary: bool = True) -> Batch:
    """One row of one space, at lsn `number`."""
    found = messages or (("shop.things", b"%d" % number, row(number)),)
    return Batch(list(found), 10, 1, 1, Position(VClock({1: number}), number), is_boundary, {}, ["shop.things"], 1.0)


def wait(publisher: EventSink) -> list[Position]:
    """What is settled next. Raises what the publisher raises."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        settled = publisher.collect()
        if settled:
            return settled
        poller = select.poll()
        poller.register(publisher.wake_fd, select.POLLIN)
        poller.poll(1000)
    raise AssertionError("nothing was settled")


def fails_once(code: int) -> Callable[[object], KafkaError | None]:
    errors = iter([KafkaError(code)])
    return lambda _: next(errors, None)


@pytest.mark.parametrize("mode", MODES)
def test_what_is_settled_is_there(cluster: Cluster, start: Start, mode: Mode) -> None:
    publisher = start(mode)
    publisher.submit(batch(1))
    assert [position.seq for position in wait(publisher)] == [1]
    assert cluster.values("shop.things") == [row(1)]
    assert publisher.committed == Position(VClock({1: 1}), 1)


@pytest.mark.parametrize("mode", MODES)
def test_a_broadcast_reaches_the_partitions_that_there_are_now(cluster: Cluster, start: Start, mode: Mode) -> None:
    publisher = start(mode, partitions=2)
    publisher.submit(batch(1))
    wait(publisher)
    cluster.partitions["shop.things"] = 5
    publisher.submit(batch(2, Broadcast("shop.things", b"t")))
    wait(publisher)
    assert [partition for _, partition, _, value in cluster.records if value == b"t"] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("mode", MODES)
def test_topics_are_made_after_a_commit(cluster: Cluster, start: Start, mode: Mode) -> None:
    publisher = start(mode, commit_interval_ms=60_000, commit_pause_ms=60_000)
    for number in (1, 2):
        found = batch(number)
        found.topics += [f"shop.{number}", f"shop.{number}b"]
        publisher.submit(found)
    # The first is committed long before its time.
    assert [position.seq for position in wait(publisher)] == [1]
    publisher.stop(20)
    assert {"shop.1", "shop.1b", "shop.2", "shop.2b"} <= cluster.partitions.keys()
    assert not cluster.created_within


def new_topic(number: int, *, is_boundary: bool = True) -> Batch:
    """One row of a space that has no topic yet."""
    found = batch(number, is_boundary=is_boundary)
    found.topics.append("shop.new")
    return found


@pytest.mark.parametrize("mode", MODES)
def test_topics_are_made_when_kafka_is_back(cluster: Cluster, start: Start, monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    """What waits for them isn't aborted, for which the daemon would leave its master; and why it waits is told."""
    monkeypatch.setattr(topic_admin, "ADMIN_TIMEOUT_SECONDS", 0.05)
    publisher = start(mode)
    publisher.submit(batch(1))
    wait(publisher)
    # Until then it would wait for that, not for the topic.
    until(lambda: publisher._readability.is_seen)
    cluster.is_silent = True
    publisher.submit(new_topic(2))
    until(lambda: (publisher.statistics.trouble or "").startswith("Kafka can't be reached at x:1: "))
    assert publisher.statistics.backlog.stalled_since() is not None, "what `stalled` in the status is made of"
    cluster.is_silent = False
    assert [position.seq for position in wait(publisher)] == [2]
    assert "shop.new" in cluster.partitions
    assert (publisher.statistics.abort_count, publisher.statistics.trouble) == (0, None)


@pytest.mark.parametrize("ends", [Publisher.abandon, Publisher.stop])
def test_what_ends_the_wait_for_topics(
    cluster: Cluster, start: Start, monkeypatch: pytest.MonkeyPatch, ends: Callable[[Publisher, object], object]
) -> None:
    monkeypatch.setattr(topic_admin, "ADMIN_TIMEOUT_SECONDS", 0.05)
    publisher = start("exactly_once")
    cluster.is_silent = True
    publisher.submit(new_topic(1))
    until(lambda: publisher.statistics.trouble is not None)
    ends(publisher, {Publisher.abandon: "its rest won't come", Publisher.stop: 0.1}[ends])
    with pytest.raises(PublishAborted, match=r"its rest won't come|Kafka can't be reached"):
        wait(publisher)
    assert "shop.new" not in cluster.partitions


def test_a_topic_that_a_large_source_transaction_needs_is_not_waited_for(
    cluster: Cluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's transaction is open by then, and would run out of its time."""
    monkeypatch.setattr(topic_admin, "ADMIN_TIMEOUT_SECONDS", 0.05)
    publisher = start("exactly_once")
    publisher.submit(batch(1, is_boundary=False))
    until(lambda: cluster.is_open)
    cluster.is_silent = True
    publisher.submit(new_topic(2))
    until(lambda: publisher.statistics.abort_count > 0)
    cluster.is_silent = False
    with pytest.raises(PublishAborted, match="Kafka can't be reached"):
        wait(publisher)


@pytest.mark.parametrize("code", [KafkaError._MSG_TIMED_OUT, KafkaError._UNKNOWN_PARTITION])
def test_a_failed_delivery_is_forgotten_after_the_abort(cluster: Cluster, start: Start, code: int) -> None:
    publisher = start("at_least_once")
    cluster.refuse = fails_once(code)
    publisher.submit(batch(1))
    with pytest.raises(PublishAborted, match=r"an event can't be delivered to shop\.things: "):
        wait(publisher)
    assert (publisher.statistics.abort_count, cluster.values("shop.things")) == (1, [])
    assert "an event can't be delivered" in (publisher.statistics.failure or "")
    publisher.reset()
    for number in (1, 2, 3):
        publisher.submit(batch(number))
        wait(publisher)
    assert cluster.values("shop.things") == [row(1), row(2), row(3)]
    assert (publisher.statistics.abort_count, publisher.statistics.failure) == (1, None)


@pytest.mark.parametrize(
    "code", [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.INVALID_RECORD]
)
def test_what_cannot_heal_ends_the_publisher(cluster: Cluster, start: Start, code: int) -> None:
    publisher = start("at_least_once")
    cluster.refuse = lambda _: KafkaError(code)
    before = cluster.attempts
    publisher.submit(batch(1))
    with pytest.raises(PublishError, match=r"an event can't be delivered to shop\.things: "):
        wait(publisher)
    assert cluster.attempts == before + 1


def test_what_ended_a_transaction_is_not_told_of_the_topic_of_the_next_message(
    cluster: Cluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message is refused only because the transaction can't go on, for which another topic may be the reason."""
    publisher = start("exactly_once")

    def refuse(*_: object) -> None:
        def tell() -> None:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "Failed to add partition(s)"))

        monkeypatch.setattr(FakeProducer, "begin_transaction", lambda _: tell())
        raise KafkaException(KafkaError(KafkaError._STATE))

    monkeypatch.setattr(FakeProducer, "produce", refuse)
    publisher.submit(batch(1))
    with pytest.raises(PublishAborted, match=r"^a Kafka transaction can't continue: Failed to add partition\(s\)"):
        wait(publisher)
    assert not cluster.values("shop.things")


@pytest.mark.parametrize("mode", MODES)
def test_a_topic_that_is_gone_is_made_again(cluster: Cluster, start: Start, mode: Mode) -> None:
    publisher = start(mode)
    publisher.submit(batch(1))
    wait(publisher)
    del cluster.partitions["shop.things"]
    cluster.fail_commit = fails_once_to_commit(KafkaError._UNKNOWN_TOPIC)
    publisher.submit(batch(2))
    with pytest.raises(PublishAborted):
        wait(publisher)
    publisher.reset()
    publisher.submit(batch(2))
    wait(publisher)
    assert "shop.things" in cluster.partitions


def fails_once_to_commit(code: int) -> Callable[[], KafkaError | None]:
    errors = iter([KafkaError(code, txn_requires_abort=True)])
    return lambda: next(errors, None)


def test_what_was_aborted_is_not_said_to_be_committed(cluster: Cluster, start: Start) -> None:
    publisher = start("at_least_once")
    publisher.submit(batch(1))
    wait(publisher)
    cluster.refuse = fails_once(KafkaError._MSG_TIMED_OUT)
    publisher.submit(batch(2))
    with pytest.raises(PublishAborted):
        wait(publisher)
    publisher.reset()
    publisher.stop(20)
    assert publisher.committed == Position(VClock({1: 1}), 1)


@pytest.mark.parametrize(
    "code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD]
)
def test_what_cannot_heal_leaves_no_transaction_open(cluster: Cluster, start: Start, code: int) -> None:
    """Whoever has to act may take hours, and readers would wait for its end."""
    publisher = start("exactly_once")
    cluster.refuse = lambda record: KafkaError(code) if record[0] == "shop.things" else None
    publisher.submit(batch(1))
    with pytest.raises(PublishError, match="can't be committed"):
        wait(publisher)
    publisher.stop(20)
    assert not cluster.is_open
    assert publisher.open_seconds is None
    assert cluster.values("shop.things") == []


def test_after_a_slow_abort_only_a_new_producer_goes_on(cluster: Cluster, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late copy of the request would abort a part of the next transaction."""
    monkeypatch.setattr("cdc.kafka.publisher_loop.answer_seconds", lambda _: 0.1)
    publisher = start("exactly_once")
    until = time.monotonic() + 0.3
    cluster.fail_commit = fails_once_to_commit(KafkaError._MSG_TIMED_OUT)
    cluster.fail_abort = lambda: NO_ANSWER if time.monotonic() < until else None
    publisher.submit(batch(1))
    with pytest.raises(ProducerLostError, match="long to abort"):
        wait(publisher)
    again = start("exactly_once")
    again.submit(batch(1))
    wait(again)
    assert cluster.values("shop.things") == [row(1)]


def test_a_source_transaction_that_takes_too_long(cluster: Cluster, start: Start) -> None:
    cluster.timeout_seconds = 0.3
    publisher = start("exactly_once")
    publisher.submit(batch(1))
    wait(publisher)
    publisher.submit(batch(2, is_boundary=False))
    time.sleep(0.4)  # this is what the test is about
    publisher.submit(batch(3))
    with pytest.raises(TransactionTimeoutError, match=r"of 0\.3 s, 1 events of it \(10 bytes\).*hadn't arrived") as caught:
        wait(publisher)
    assert "transaction.max.timeout.ms" in str(caught.value)
    assert "--take-over" not in str(caught.value)
    assert publisher.statistics.abort_count == 1
    # A new producer goes on, if it is faster.
    again = start("exactly_once")
    again.submit(batch(2, is_boundary=False))
    again.submit(batch(3))
    assert [position.seq for position in wait(again)] == [3]
    assert cluster.values("shop.things") == [row(1), row(2), row(3)]


@pytest.mark.parametrize("mode", MODES)
def test_a_commit_waits_for_nothing_when_nothing_waits(start: Start, mode: str) -> None:
    publisher = start(mode, commit_interval_ms=60_000, commit_pause_ms=0)
    for seq in (1, 2):
        publisher.submit(batch(seq))
        assert [position.seq for position in wait(publisher)] == [seq]


def test_while_a_commit_is_under_way_batches_are_wanted_for_the_next_one(cluster: Cluster, start: Start) -> None:
    seen: list[float] = []

    def look() -> None:
        seen.append(publisher.wanted_in_seconds)

    publisher = start("exactly_once", commit_interval_ms=1, commit_pause_ms=60_000)
    cluster.fail_commit = look
    publisher.submit(batch(1))
    wait(publisher)
    whole = 60 - COMMIT_LEADS_SECONDS[0]
    assert seen == [whole]
    assert 0 < publisher.wanted_in_seconds < whole
    publisher.statistics.last_commit_at -= 60
    assert publisher.wanted_in_seconds == 0


def test_batches_are_wanted_at_once_where_readers_wait_for_no_commit(start: Start) -> None:
    publisher = start("at_least_once", commit_interval_ms=1, commit_pause_ms=60_000)
    publisher.submit(batch(1))
    wait(publisher)
    assert publisher.wanted_in_seconds == 0


def test_a_large_source_transaction_has_all_the_time_that_there_is(cluster: Cluster, start: Start) -> None:
    publisher = start("exactly_once", commit_interval_ms=60_000, commit_pause_ms=60_000)
    publisher.submit(batch(1))
    publisher.submit(batch(2, is_boundary=False))
    assert [position.seq for position in wait(publisher)] == [1]
    assert cluster.values("shop.things") == [row(1)]
    publisher.abandon("the test ends")


def test_a_commit_between_source_transactions_that_takes_too_long_is_no_size(cluster: Cluster, start: Start) -> None:
    cluster.timeout_seconds = 0.2
    publisher = start("exactly_once", commit_interval_ms=400, commit_pause_ms=400)
    publisher.submit(batch(1))
    with pytest.raises(PublishError) as caught:
        wait(publisher)
    assert not isinstance(caught.value, TransactionTimeoutError)
    assert "--take-over" not in str(caught.value)


def test_a_name_that_is_lost_at_the_start_is_taken_again(cluster: Cluster, start: Start) -> None:
    errors = iter([FENCED])
    cluster.fail_commit = lambda: next(errors, None)
    with pytest.raises(ConnectionLostError, match="fenced right after claiming the name") as caught:
        start("exactly_once")
    assert "--take-over" not in str(caught.value)
    publisher = start("exactly_once")
    publisher.submit(batch(1))
    wait(publisher)


def test_another_daemon_is_named_only_if_there_is_one(cluster: Cluster, start: Start) -> None:
    first = start("exactly_once")
    config = KafkaSection(bootstrap_servers="x:1", topic_prefix="shop")
    other = Publisher("x", config, Writer("another writer", has_store=False), clients(cluster))
    other.start()
    first.submit(batch(1))
    with pytest.raises(CdcError, match="fenced") as caught:
        wait(first)
    assert "--take-over" not in str(caught.value)
    again = Publisher("x", config, WRITER, clients(cluster))
    with pytest.raises(
        PublishError, match=r"another daemon has taken the name 'x': this one ends, and nothing is lost\. If that was intended"
    ):
        again.start(expected_writers={"writer"})
    again.stop(0)
    other.stop(20)


def with_unreadable_claim(cluster: Cluster) -> Publisher:
    """Another daemon of the name, whose claim's transaction looks open to readers."""
    before = len(cluster.written("shop.checkpoint"))
    config = KafkaSection(bootstrap_servers="x:1", topic_prefix="shop")
    other = Publisher("x", config, Writer("another writer", has_store=False), clients(cluster))
    other.start()
    cluster.others["shop.checkpoint"] = before
    return other


def test_another_daemon_whose_first_record_was_not_readable_yet(
    cluster: Cluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim of a fenced daemon ends the other one's transaction, and shows its record: the name isn't taken back."""
    start("exactly_once").stop(20)
    other = with_unreadable_claim(cluster)
    claim = FakeProducer.init_transactions

    def claim_and_show(self: FakeProducer, timeout: float) -> None:
        claim(self, timeout)
        cluster.others.clear()

    monkeypatch.setattr(FakeProducer, "init_transactions", claim_and_show)
    again = Publisher("x", KafkaSection(bootstrap_servers="x:1", topic_prefix="shop"), WRITER, clients(cluster))
    with pytest.raises(PublishError, match="another daemon has taken the name 'x'"):
        again.start(expected_writers={"writer"})
    assert b"another writer" in (cluster.values("shop.checkpoint")[-1] or b""), "nothing is written under the other one's name"
    again.stop(0)
    other.stop(0)


def test_a_fenced_daemon_waits_for_the_claim_that_is_not_readable_yet(
    cluster: Cluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own claim would fence the other one, which may be writing the missing marker of its own, and would abort that."""
    start("exactly_once").stop(20)
    other = with_unreadable_claim(cluster)
    ask = readers_view.ReadersView.still_open

    def ask_and_show(self: readers_view.ReadersView) -> dict[tuple[str, int], int]:
        found = ask(self)
        cluster.others.clear()
        return found

    monkeypatch.setattr(readers_view.ReadersView, "still_open", ask_and_show)
    claims: list[float] = []
    monkeypatch.setattr(FakeProducer, "init_transactions", lambda _, timeout: claims.append(timeout))
    again = Publisher("x", KafkaSection(bootstrap_servers="x:1", topic_prefix="shop"), WRITER, clients(cluster))
    with pytest.raises(PublishError, match="another daemon has taken the name 'x'"):
        again.start(expected_writers={"writer"})
    assert not claims
    again.stop(0)
    other.stop(0)


def leave_out_next(cluster: Cluster) -> None:
    """The next commit is left out of all topics, as of partitions that had no leader in that moment."""
    cluster.leave_out.update({"shop.checkpoint": 1, "shop.things": 1})


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("mode", MODES)
def test_an_orderly_end_shows_all_that_was_committed(cluster: Cluster, start: Start, mode: Mode) -> None:
    publisher = start(mode, commit_interval_ms=60_000, commit_pause_ms=60_000)
    publisher.submit(batch(1))
    leave_out_next(cluster)
    assert publisher.stop(20)
    assert (publisher.unreadable, publisher.open_seconds) == (None, None)
    assert row(1) in cluster.values("shop.things")
    assert not cluster.hanging
    assert start(mode).committed == Position(VClock({1: 1}), 1)


def test_an_end_says_what_readers_may_not_reach(cluster: Cluster, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readability, "END_SECONDS", 0.1)
    publisher = start("exactly_once", commit_interval_ms=60_000, commit_pause_ms=60_000)
    publisher.submit(batch(1))
    cluster.can_tell = False
    assert publisher.stop(20), "all was committed"
    assert "can't be asked for" in (publisher.unreadable or "")
    assert publisher.open_seconds is None


def test_an_end_waits_until_partitions_have_leaders_again(cluster: Cluster, start: Start) -> None:
    publisher = start("exactly_once", commit_interval_ms=60_000, commit_pause_ms=60_000)
    publisher.submit(batch(1))
    leave_out_next(cluster)
    cluster.can_tell = False
    threading.Timer(1.0, lambda: setattr(cluster, "can_tell", True)).start()
    assert publisher.stop(20)
    assert publisher.unreadable is None
    assert not cluster.hanging


@pytest.mark.parametrize("mode", MODES)
def test_what_hangs_is_shown_when_it_is_quiet(cluster: Cluster, start: Start, mode: Mode) -> None:
    publisher = start(mode)
    leave_out_next(cluster)
    publisher.submit(batch(1))
    wait(publisher)
    until(lambda: not cluster.hanging)
    assert row(1) in cluster.values("shop.things")


def leave_first_row_hanging(cluster: Cluster, publisher: Publisher) -> None:
    """It is committed, and its partition has no leader from then on."""
    until(lambda: publisher._readability.is_seen)
    cluster.can_tell = False
    cluster.leave_out.update(["shop.things"])
    publisher.submit(batch(1))
    wait(publisher)
    assert cluster.hanging == {"shop.things": 0}


def rows(cluster: Cluster) -> list[bytes]:
    """What readers of committed messages find, without fillers."""
    return [value for value in cluster.values("shop.things") if value is not None]


def aborts_row(number: int) -> Callable[[Record], KafkaError | None]:
    """The first Kafka transaction with this row in it can't be committed."""
    errors = iter([KafkaError(KafkaError._MSG_TIMED_OUT)])
    return lambda record: next(errors, None) if record[3] == row(number) else None


def publish_again(publisher: Publisher, number: int) -> None:
    """The row was aborted: the daemon goes back to the checkpoint, which is before it, and publishes it again."""
    with pytest.raises(PublishAborted):
        wait(publisher)
    stored = publisher.reload()
    assert stored is not None
    assert stored.position is not None
    assert stored.position.seq == number - 1
    publisher.reset()
    publisher.submit(batch(number))
    wait(publisher)


@pytest.mark.parametrize("left_out", [["shop.things"], ["shop.checkpoint"], ["shop.things", "shop.checkpoint"]])
def test_no_abort_takes_what_was_committed(cluster: Cluster, start: Start, left_out: list[str]) -> None:
    """An abort decides over everything in its partitions, also over what the commit before was left out of."""
    publisher = start("exactly_once")
    cluster.refuse = aborts_row(2)
    cluster.leave_out.update(left_out)
    publisher.submit(batch(1))
    wait(publisher)
    publisher.submit(batch(2))
    publish_again(publisher, 2)
    assert rows(cluster) == [row(1), row(2)]


def test_nothing_is_written_before_readers_can_reach_the_last_commit(cluster: Cluster, start: Start) -> None:
    """Also while a partition without a leader doesn't tell; what waits comes when it has one, and Kafka's trouble is told."""
    publisher = start("exactly_once")
    cluster.refuse = aborts_row(2)
    leave_first_row_hanging(cluster, publisher)
    attempts = cluster.attempts
    publisher.submit(batch(2))
    until(lambda: "can't be asked for" in (publisher.statistics.trouble or ""))
    assert (cluster.attempts, cluster.hanging) == (attempts, {"shop.things": 0})
    cluster.can_tell = True
    publish_again(publisher, 2)
    assert rows(cluster) == [row(1), row(2)]
    assert publisher.statistics.trouble is None


def test_no_abort_takes_a_checkpoint(cluster: Cluster, start: Start) -> None:
    """Outside of transactions there is nothing else to take, but the master may have forgotten what it was told is durable."""
    publisher = start("at_least_once")
    errors = iter([KafkaError(KafkaError._MSG_TIMED_OUT)])
    cluster.refuse = lambda record: next(errors, None) if b'"seq":2,' in (record[3] or b"") else None
    cluster.leave_out.update(["shop.checkpoint"])
    publisher.submit(batch(1))
    wait(publisher)
    publisher.submit(batch(2))
    publish_again(publisher, 2)


@pytest.mark.parametrize("mode", MODES)
def test_also_a_commit_of_the_position_alone_is_seen(
    cluster: Cluster, start: Start, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = start(mode)
    publisher.submit(batch(1))
    wait(publisher)
    until(lambda: publisher._readability.is_seen)
    cluster.can_tell = False
    cluster.leave_out.update(["shop.checkpoint"])
    monkeypatch.setattr("cdc.kafka.publisher_loop.PROOF_SECONDS", 0.0)
    until(lambda: cluster.hanging)
    # Another such commit would end it by the way.
    monkeypatch.setattr("cdc.kafka.publisher_loop.PROOF_SECONDS", 1000.0)
    cluster.can_tell = True
    until(lambda: not cluster.hanging)
    stored = publisher.reload()
    assert stored is not None
    assert stored.position == publisher.committed


def test_anothers_transaction_in_the_same_topic_holds_nobody_up(cluster: Cluster, start: Start) -> None:
    publisher = start("exactly_once")
    cluster.others["shop.things"] = 0
    for number in (1, 2, 3):
        publisher.submit(batch(number))
        wait(publisher)
    del cluster.others["shop.things"]
    publisher.submit(batch(4))
    wait(publisher)
    assert rows(cluster) == [row(1), row(2), row(3), row(4)]


def test_a_stop_gives_up_soon_after_its_time(cluster: Cluster, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after the same time again, which service managers wouldn't wait for."""
    goes_on, waited = threading.Event(), list[float | None]()
    commit, join = FakeProducer.commit_transaction, threading.Thread.join
    publisher = start("exactly_once")

    def held_up(producer: FakeProducer, timeout: float) -> None:
        assert goes_on.wait(30)
        commit(producer, timeout)

    monkeypatch.setattr(FakeProducer, "commit_transaction", held_up)
    monkeypatch.setattr(threading.Thread, "join", lambda _, timeout=None: waited.append(timeout))
    publisher.submit(batch(1))
    assert not publisher.stop(30)
    assert waited == [30, END_SECONDS]
    monkeypatch.setattr(threading.Thread, "join", join)
    goes_on.set()
    publisher.stop(20)
    assert rows(cluster) in ([], [row(1)])


def test_an_end_while_readers_can_not_reach_the_last_commit(
    cluster: Cluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits isn't written, and the next start goes on with it."""
    monkeypatch.setattr(readability, "END_SECONDS", 0.1)
    publisher = start("exactly_once")
    leave_first_row_hanging(cluster, publisher)
    publisher.submit(batch(2))
    assert not publisher.stop(0.3)
    assert (publisher.open_seconds, cluster.hanging) == (None, {"shop.things": 0})
    cluster.can_tell = True
    again = start("exactly_once")
    assert again.committed == Position(VClock({1: 1}), 1)
    again.submit(batch(2))
    wait(again)
    assert rows(cluster) == [row(1), row(2)]


def test_what_is_abandoned_while_readers_can_not_reach_the_last_commit(cluster: Cluster, start: Start) -> None:
    publisher = start("exactly_once")
    leave_first_row_hanging(cluster, publisher)
    publisher.submit(batch(2, is_boundary=False))
    publisher.abandon("the rest won't come")
    with pytest.raises(PublishAborted, match="the rest won't come"):
        wait(publisher)
    cluster.can_tell = True
    assert publisher.reload() is None, "only a new producer tells whether it hangs"


@pytest.mark.parametrize("is_known", [True, False])
def test_what_hangs_at_a_start(cluster: Cluster, start: Start, *, is_known: bool) -> None:
    """It is committed if it is known to have been; if not, nobody has seen any of it, and it is as if it had never been."""
    publisher = start("exactly_once")
    leave_out_next(cluster)
    publisher.submit(batch(1))
    wait(publisher)
    assert cluster.hanging
    next_one = Publisher("x", publisher._config, WRITER, clients(cluster))
    stored = next_one.start(known=publisher.committed if is_known else None)
    next_one.stop(20)
    assert (stored.position.seq if stored.position else None) == (1 if is_known else 0)
    assert (row(1) in cluster.values("shop.things")) is is_known
    assert not cluster.hanging


@pytest.mark.parametrize("mode", MODES)
def test_an_end_that_has_to_leave_a_transaction_open(cluster: Cluster, start: Start, mode: Mode) -> None:
    """It says for how long readers wait; the next start ends it."""
    publisher = start(mode, commit_interval_ms=60_000, commit_pause_ms=60_000)
    publisher.submit(batch(1))
    cluster.fail_commit = cluster.fail_abort = lambda: KafkaError(KafkaError._TIMED_OUT, retriable=True)
    assert not publisher.stop(0.3)
    assert publisher.open_seconds == 900
    cluster.fail_commit = cluster.fail_abort = lambda: None
    again = start(mode)
    assert not cluster.is_open
    again.submit(batch(1))
    wait(again)
    assert again.stop(20)
    assert again.open_seconds is None


@pytest.mark.parametrize("slow", ["shop.things", "shop.schema", "shop.others"])
def test_a_new_form_is_shown_behind_what_it_ends_and_before_what_it_begins(cluster: Cluster, start: Start, slow: str) -> None:
    """Although each partition takes its own time."""
    publisher = start("at_least_once", commit_interval_ms=60_000, commit_pause_ms=60_000)
    # All partitions have something: a first message would be waited for anyhow.
    keys = [b"%d" % number for number in range(50)]
    begins = batch(0)
    begins.parts = [(topic, key, b"") for topic in ("shop.things", "shop.schema", "shop.others") for key in keys]
    begins.topics = ["shop.things", "shop.schema", "shop.others"]
    publisher.submit(begins)
    wait_for("they are there", lambda: len(cluster.written("shop.others")) == len(keys))
    before = len(cluster.records)
    cluster.slow = {slow}
    publisher.submit(batch(1))
    found = batch(2)
    found.parts += [("shop.schema", b"form", b"form"), ("shop.others", b"3", row(3))]
    found.stored = {512: None}
    publisher.submit(found)
    assert publisher.stop(20)
    later = cluster.records[before:]
    assert [value for topic, _, _, value in later if topic != "shop.checkpoint"] == [row(1), row(2), b"form", row(3)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_the_thread_ends_the_publisher(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for ever for what it would have settled."""
    publisher = start("exactly_once")
    monkeypatch.setattr(publisher._loop, "_topic_admin", None)
    publisher.submit(batch(1))
    with pytest.raises(PublishError, match="the publisher's thread failed: AttributeError"):
        wait(publisher)
