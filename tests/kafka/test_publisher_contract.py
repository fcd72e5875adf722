"""What a publisher promises whatever Kafka does: the same cases on a fake cluster and on a real broker, both ways of delivery."""

from __future__ import annotations

import random
import select
import time
from collections.abc import Callable, Iterator

import pytest

from cdc.errors import ConnectionLostError, PublishAborted, PublishError
from cdc.kafka import reach
from cdc.kafka.errors import FencedError, ProducerLostError
from cdc.kafka.publisher import Publisher
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.stream.batches.batch import Batch, Broadcast
from tests.kafka.grounds import FakeGround, Ground, Mode, RealGround, publisher
from tests.live.waiting import wait_for

Start = Callable[..., Publisher]
MODES: list[Mode] = ["exactly_once", "at_least_once"]
PATIENCE_SECONDS = 120.0

pytestmark = pytest.mark.parametrize("mode", MODES)


_REAL = (pytest.mark.live, pytest.mark.xdist_group("frail_kafka"), pytest.mark.one_of_these)


@pytest.fixture(params=["fake", pytest.param("real", marks=_REAL)])
def ground(request: pytest.FixtureRequest) -> Ground:
    if request.param == "fake":
        return FakeGround()
    return RealGround(request.getfixturevalue("frail_kafka"))


@pytest.fixture
def start(ground: Ground) -> Iterator[Start]:
    """Starts publishers, one after the other, and ends those that haven't been. As a daemon does, it tries again while Kafka
    doesn't answer: a broker under load may not know yet who leads a new partition.
    """
    started: list[Publisher] = []

    def make(mode: Mode, **settings: object) -> Publisher:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            new = publisher(ground, mode, **settings)  # type: ignore[arg-type]  # each has its own type
            try:
                new.start()
            except ConnectionLostError:
                new.stop(0)
                if time.monotonic() > deadline:
                    raise
            else:
                started.append(new)
                return new

    yield make
    for one in started:
        if one._thread.is_alive():
            one.stop(0)


def row(ground: Ground, number: int) -> bytes:
    return b'{"source":{"name":"%s","seq":%d}}' % (ground.prefix.encode(), number)


def batch(ground: Ground, number: int, *more: Broadcast | tuple[str, bytes | None, bytes], is_boundary: bool = True) -> Batch:
    """One row, or a few messages of topics after the prefix, that lead to lsn `number`."""
    topic = f"{ground.prefix}.things"
    found = more or ((topic, b"%d" % number, row(ground, number)),)
    topics = sorted({message.topic if isinstance(message, Broadcast) else message[0] for message in found})
    return Batch(list(found), 10, 1, 1, Position(VClock({1: number}), number), is_boundary, {}, topics, 1.0)


def wait(one: Publisher, number: int, patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until that much is settled. Raises what the publisher raises."""
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        settled = one.collect()
        if settled and settled[-1].seq >= number:
            return
        if not settled:
            poller = select.poll()
            poller.register(one.wake_fd, select.POLLIN)
            poller.poll(500)
    raise AssertionError(f"{number} was not settled")


def seq(one: Publisher) -> int:
    """What the checkpoint says, of one that was just started."""
    return one.committed.seq if one.committed is not None else 0


def test_what_is_settled_is_there(ground: Ground, start: Start, mode: Mode) -> None:
    one = start(mode)
    for number in (1, 2, 3):
        one.submit(batch(ground, number))
    wait(one, 3)
    assert ground.values("things") == [row(ground, number) for number in (1, 2, 3)]
    assert one.stop(60)
    assert (one.unreadable, one.open_seconds) == (None, None)
    assert seq(start(mode)) == 3


def test_an_orderly_end_commits_what_was_submitted(ground: Ground, start: Start, mode: Mode) -> None:
    one = start(mode, commit_interval_ms=60_000, commit_pause_ms=60_000)
    one.submit(batch(ground, 1))
    assert one.stop(60)
    assert [position.seq for position in one.last_settled()] == [1]
    assert ground.values("things") == [row(ground, 1)]
    assert seq(start(mode)) == 1


def test_an_end_within_a_source_transaction(ground: Ground, start: Start, mode: Mode) -> None:
    """Its part is not committed, and no transaction stays open; the next start goes on before it."""
    one = start(mode, commit_interval_ms=60_000, commit_pause_ms=60_000)
    one.submit(batch(ground, 1))
    one.submit(batch(ground, 2, is_boundary=False))
    assert not one.stop(60)
    assert one.open_seconds is None
    if mode == "exactly_once":
        assert ground.values("things") == [row(ground, 1)]
    again = start(mode)
    assert seq(again) == 1
    again.submit(batch(ground, 2))
    wait(again, 2)
    assert sorted(set(ground.values("things"))) == [row(ground, 1), row(ground, 2)]


def test_what_is_abandoned_is_published_anew(ground: Ground, start: Start, mode: Mode) -> None:
    one = start(mode)
    one.submit(batch(ground, 1))
    wait(one, 1)
    one.submit(batch(ground, 2, is_boundary=False))
    one.abandon("the rest won't come")
    with pytest.raises(PublishAborted, match="the rest won't come"):
        wait(one, 2)
    stored = one.reload()
    assert stored is not None
    assert stored.position == Position(VClock({1: 1}), 1)
    one.reset()
    one.submit(batch(ground, 2))
    wait(one, 2)
    found = ground.values("things")
    assert (found if mode == "exactly_once" else sorted(set(found))) == [row(ground, 1), row(ground, 2)]


def test_what_a_killed_process_left_open(ground: Ground, start: Start, mode: Mode) -> None:
    """It just doesn't go on: the next one of the name does, from the checkpoint, and nobody ever sees the rest."""
    killed = start(mode, commit_interval_ms=60_000, commit_pause_ms=60_000)
    killed.submit(batch(ground, 1, is_boundary=False))
    again = start(mode)
    assert seq(again) == 0
    again.submit(batch(ground, 1))
    wait(again, 1)
    found = ground.values("things")
    assert (found if mode == "exactly_once" else sorted(set(found))) == [row(ground, 1)]


def test_the_second_of_one_name_fences_the_first(ground: Ground, start: Start, mode: Mode) -> None:
    first = start(mode)
    second = start(mode, writer="another writer")
    first.submit(batch(ground, 1))
    with pytest.raises(FencedError):
        wait(first, 1)
    second.submit(batch(ground, 1))
    wait(second, 1)
    assert first.committed is None
    third = publisher(ground, mode)
    with pytest.raises(PublishError, match="another daemon has taken the name"):
        third.start(expected_writers={"writer"})
    third.stop(0)


def test_the_first_is_told_also_when_it_has_nothing_to_publish(
    ground: Ground, start: Start, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.kafka.publisher_loop.PROOF_SECONDS", 0.2)
    first = start(mode)
    first.submit(batch(ground, 1))
    wait(first, 1)
    start(mode, writer="another writer")
    with pytest.raises(FencedError):
        wait(first, 2)
    assert seq(first) == 1


@pytest.mark.parametrize("how", ["compacted", "narrow"])
def test_what_a_topic_never_takes_ends_the_publisher(ground: Ground, start: Start, mode: Mode, how: str) -> None:
    """Nothing of its source transaction counts, and the remedy names what is to be changed."""
    getattr(ground, f"make_{how}")("strict")
    one = start(mode)
    one.statistics.batch_bytes_max = 1_000  # smaller batches can't help
    one.submit(batch(ground, 1))
    wait(one, 1)
    topic = f"{ground.prefix}.strict"
    message = (topic, None, b"no key") if how == "compacted" else (topic, b"key", random.Random(1).randbytes(50_000))
    one.submit(batch(ground, 2, message))
    with pytest.raises(PublishError) as caught:
        wait(one, 2)
    assert ("cleanup.policy" if how == "compacted" else "max.message.bytes") in str(caught.value)
    one.stop(60)
    assert one.open_seconds is None
    assert ground.values("strict") == []
    assert seq(start(mode)) == 1


def test_a_truncation_reaches_partitions_that_were_added(ground: Ground, start: Start, mode: Mode) -> None:
    one = start(mode, partitions=2)
    one.submit(batch(ground, 1))
    wait(one, 1)
    ground.add_partitions("things", 5)
    one.submit(batch(ground, 2, Broadcast(f"{ground.prefix}.things", b"t")))
    wait(one, 2)
    assert ground.values("things").count(b"t") == 5


def test_kafka_falls_silent_for_longer_than_requests_wait(ground: Ground, start: Start, mode: Mode) -> None:
    """What was submitted before, and meanwhile, comes once."""
    one = start(mode)
    with ground.silence():
        for number in (1, 2):
            one.submit(batch(ground, number))
        with pytest.raises(AssertionError, match="was not settled"):
            wait(one, 1, patience_seconds=ground.silence_seconds)
    wait(one, 2)
    one.submit(batch(ground, 3))
    wait(one, 3)
    assert one.stop(60)
    assert ground.values("things") == [row(ground, number) for number in (1, 2, 3)]


def test_a_producer_that_finds_no_broker_any_more(
    monkeypatch: pytest.MonkeyPatch, ground: Ground, start: Start, mode: Mode
) -> None:
    """It is lost once another finds them, and what it had is for that one to publish."""
    monkeypatch.setattr(reach, "LOOK_SECONDS", ground.look_seconds)
    with ground.stranding() as strand:
        one = start(mode)
        one.submit(batch(ground, 1))
        wait(one, 1)
        wait_for("readers are seen to reach it: before, nothing more is begun", lambda: one._readability.is_seen)
        strand()
        one.submit(batch(ground, 2))
        with pytest.raises(ProducerLostError, match="doesn't find any broker, and a new one does"):
            wait(one, 2)
        one.stop(0)
        another = start(mode)
        assert seq(another) == 1
        another.submit(batch(ground, 2))
        wait(another, 2)
        assert another.stop(60)
    assert ground.values("things") == [row(ground, 1), row(ground, 2)]


def test_a_commit_whose_answer_is_lost_counts_once(ground: Ground, start: Start, mode: Mode) -> None:
    """It came through: nothing of it is published again, and nobody is told of an abort."""
    with ground.losing() as way:
        one = start(mode)
        way.lose(2)
        for number in (1, 2, 3):
            one.submit(batch(ground, number))
            wait(one, number)
        assert way.left == 0
        assert one.statistics.abort_count == 0
        assert one.stop(60)
    assert ground.values("things") == [row(ground, number) for number in (1, 2, 3)]
    assert seq(start(mode)) == 3


def test_an_end_while_kafka_is_silent(ground: Ground, start: Start, mode: Mode) -> None:
    """It takes no longer than it may, tells how long readers may have to wait, and the next start goes on."""
    one = start(mode)
    one.submit(batch(ground, 1))
    wait(one, 1)
    wait_for("readers are seen to reach it: before, nothing more is begun", lambda: one._readability.is_seen)
    with ground.silence():
        one.submit(batch(ground, 2))
        assert not one.stop(1)
        # Outside of transactions there is none before all events have arrived.
        assert one.open_seconds == (600 if mode == "exactly_once" else None)
    again = start(mode)
    if seq(again) == 1:  # else the commit that was under way has come through now that Kafka answers
        again.submit(batch(ground, 2))
        wait(again, 2)
    assert again.committed == Position(VClock({1: 2}), 2)
    found = ground.values("things")
    assert (found if mode == "exactly_once" else sorted(set(found))) == [row(ground, 1), row(ground, 2)]
