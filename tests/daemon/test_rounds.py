"""The daemon's rounds from end to end: a source that plays what it is told, and the real publisher over a cluster of words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from cdc.config import parse
from cdc.daemon import supervisor
from cdc.daemon.beginning import Beginning
from cdc.daemon.supervisor import Daemon
from cdc.errors import CdcError, ConnectionLostError, PositionError, SchemaError, SnapshotNeededError, UnknownSpaceError
from cdc.kafka import publisher
from cdc.kafka.errors import ProducerLostError
from cdc.positions.vclock import VClock
from cdc.protocol.failure import XlogGapError
from cdc.upstream import start
from tests.fakes.kafka import Cluster, clients
from tests.kafka.test_publisher import batch, fails_once, row, wait

LOST = ConnectionLostError("it broke")
Play = Callable[[Beginning], bool]


@dataclass
class Scripted:
    """A source whose streams do one after the other what `plays` says; it notes what it is told."""

    plays: list[Play] = field(default_factory=list)
    beginnings: list[Beginning] = field(default_factory=list)
    heard: list[object] = field(default_factory=list)
    settle: Callable[[Beginning], object] = field(default=lambda _: None)

    def start(self) -> None:
        """As `Source.start`."""

    def close(self) -> None:
        """As `Source.close`."""

    @contextmanager
    def opened(self, beginning: Beginning) -> Iterator[Turn]:
        """As `Source.opened`."""
        self.beginnings.append(beginning)
        yield Turn(self, beginning)

    def failed(self, error: CdcError) -> None:
        """As `Source.failed`."""
        self.heard.append(error)

    def try_fail_over(self, error: CdcError) -> bool:  # noqa: ARG002 - there is no other place
        """As `Source.try_fail_over`."""
        return False

    def next_delay(self) -> float:
        """As `Source.next_delay`."""
        return 0.0

    def delay_elapsed(self) -> None:
        """As `Source.delay_elapsed`."""

    def succeeded(self) -> None:
        """As `Source.succeeded`."""
        self.heard.append("succeeded")


class Turn:
    """One of its streams."""

    has_streamed = True
    published = VClock()

    def __init__(self, source: Scripted, beginning: Beginning) -> None:
        self._source = source
        self._beginning = beginning

    def run(self) -> bool:
        """As `Stream.run`."""
        return self._source.plays.pop(0)(self._beginning)

    def collect_submitted(self) -> None:
        """As `Stream.collect_submitted`."""
        self._source.heard.append("collected")
        self._source.settle(self._beginning)


class Quiet:
    """Says nobody that the daemon lives."""

    def __init__(self, *_: object) -> None:
        pass

    def start(self) -> None:
        """As `SignOfLife.start`."""

    def close(self, *, is_clean: bool) -> None:
        """As `SignOfLife.close`."""


@pytest.fixture
def source() -> Scripted:
    return Scripted()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Scripted, cluster: Cluster) -> Daemon:
    """One that has been admitted."""
    values = {
        "name": "shop",
        "source": {"uris": ["m0:3301"]},
        "kafka": {"bootstrap_servers": "k:9092", "topic_prefix": "shop", "commit_interval_ms": 1},
        "state": {"images": "none", "path": str(tmp_path)},
        "http": {"listen": ""},
    }
    for module in (publisher, supervisor):
        monkeypatch.setattr(module, "KafkaClients", lambda *_: clients(cluster))
    monkeypatch.setattr(supervisor, "SignOfLife", Quiet)
    monkeypatch.setattr(supervisor, "tune_garbage_collector", lambda: None)
    monkeypatch.setattr(Daemon, "_be_admitted", lambda _: None)
    return Daemon(parse(values, "test"), new_source=lambda *_: source)


def breaks(error: CdcError) -> Play:
    """A stream that ends so."""

    def play(_: Beginning) -> bool:
        raise error

    return play


def ends(_: Beginning) -> bool:
    """A stream that has reached its goal."""
    return True


def submits(*numbers: int, then: CdcError | None = None) -> Play:
    """A stream that publishes these rows, and breaks if `then` says so, or waits until they are settled."""

    def play(beginning: Beginning) -> bool:
        for number in numbers:
            beginning.publisher.submit(batch(number))
        if then is not None:
            raise then
        wait(beginning.publisher)
        return True

    return play


def refused(cluster: Cluster, submitting: Play) -> Play:
    """A stream whose first message Kafka throws away, and its transaction with it."""

    def play(beginning: Beginning) -> bool:
        cluster.refuse = fails_once(KafkaError._MSG_TIMED_OUT)
        return submitting(beginning)

    return play


def test_the_source_is_told_that_kafka_works_and_how_each_stream_ended(
    daemon: Daemon, source: Scripted, cluster: Cluster
) -> None:
    gap = XlogGapError("gone")
    source.plays = [breaks(LOST), refused(cluster, submits(1)), breaks(gap), ends]
    daemon.run()
    # What Kafka threw away is no failure of the source, and nothing of it can be settled.
    assert source.heard == ["succeeded", LOST, "collected", gap, "collected"]


def test_a_snapshot_that_the_stream_asks_for_is_asked_for_once(daemon: Daemon, source: Scripted) -> None:
    source.plays = [breaks(SnapshotNeededError("renamed")), breaks(LOST), ends]
    daemon.run()
    assert [beginning.known.forced for beginning in source.beginnings] == [None, "renamed", None]


@pytest.mark.parametrize("is_behind", [False, True])
def test_what_becomes_of_a_foreign_store_in_this_process_is_its_own_doing(
    daemon: Daemon, source: Scripted, monkeypatch: pytest.MonkeyPatch, *, is_behind: bool
) -> None:
    """A snapshot that breaks off may leave it empty: that is no other daemon's store then, and the snapshot is taken again."""
    monkeypatch.setattr(Turn, "has_streamed", False)
    monkeypatch.setattr(start, "makes_ours", lambda _: not is_behind)
    daemon._is_store_ours = False
    source.plays = [breaks(LOST), ends]
    daemon.run()
    assert [beginning.known.is_store_ours for beginning in source.beginnings] == [False, not is_behind]


def test_a_schema_that_lacks_a_space_is_read_from_a_snapshot_once(daemon: Daemon, source: Scripted) -> None:
    """The checkpoint topic may have lost forms by retention. If the snapshot doesn't help, an operator is needed."""
    unknown = UnknownSpaceError("a row arrived for space 512, which doesn't exist at this position")
    source.plays = [breaks(unknown), breaks(unknown)]
    with pytest.raises(UnknownSpaceError):
        daemon.run()
    assert [beginning.known.forced for beginning in source.beginnings] == [None, unknown.message]


def test_after_trouble_with_the_source_what_was_submitted_is_settled(daemon: Daemon, source: Scripted, cluster: Cluster) -> None:
    source.settle = lambda beginning: wait(beginning.publisher)
    values: list[list[bytes | None]] = []

    def looks(_: Beginning) -> bool:
        values.append(cluster.values("shop.things"))
        return True

    source.plays = [submits(1, then=LOST), looks]
    daemon.run()
    assert values == [[row(1)]]


def test_what_cannot_be_settled_after_trouble_with_the_source_is_published_again(
    daemon: Daemon, source: Scripted, cluster: Cluster
) -> None:
    """From the checkpoint, with the same publisher: without going back it would take nothing any more."""
    source.settle = lambda beginning: wait(beginning.publisher)
    source.plays = [refused(cluster, submits(1, then=LOST)), submits(1)]
    daemon.run()
    assert cluster.values("shop.things") == [row(1)]
    first, second = source.beginnings
    assert first.publisher is second.publisher


def test_what_needs_a_person_is_told_before_what_follows_from_it(daemon: Daemon, source: Scripted) -> None:
    lost = ProducerLostError("the producer is lost")

    def settle(_: Beginning) -> None:
        raise lost

    source.settle = settle
    foreign = PositionError("of another replica set")
    # With what heals by waiting it is the other way round: the producer is made anew.
    source.plays = [breaks(LOST), breaks(foreign)]
    with pytest.raises(PositionError, match="of another replica set"):
        daemon.run()
    first, second = source.beginnings
    assert first.publisher is not second.publisher


def test_the_status_has_no_row_that_an_error_quotes(daemon: Daemon, source: Scripted) -> None:
    """The log has it, and who may see rows gets it apart."""
    source.plays = [breaks(SchemaError("a row has no key", "Leave the space out.", detail="[7, 'ann']"))]
    with pytest.raises(SchemaError, match=r"a row has no key: \[7, 'ann'\]. Leave the space out."):
        daemon.run()
    status = daemon.status
    assert (status.error, status.error_remedy) == ("a row has no key. Leave the space out.", "Leave the space out.")
    assert status.error_detail == "[7, 'ann']"
    assert "ann" not in str(status.to_json())
