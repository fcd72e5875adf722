"""A Kafka that loses what it has committed, seen by the daemon's rounds: at a start, after an abort, with either delivery."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cdc.config import parse
from cdc.daemon import given_numbers, supervisor
from cdc.daemon.beginning import Beginning
from cdc.daemon.given_numbers import GivenNumbers, other_kafka
from cdc.daemon.supervisor import Daemon
from cdc.kafka import publisher
from cdc.kafka.publisher import Publisher
from cdc.positions.numbers import Kept, Numbers
from cdc.store.numbers_file import FILE
from tests.daemon.test_rounds import LOST, Play, Quiet, Scripted, breaks, ends, refused, submits
from tests.fakes.kafka import Cluster, clients
from tests.kafka.test_publisher import wait


class Place:
    """A daemon's machine, on which one process runs after the other."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.delivery = "exactly_once"
        self.source = Scripted()
        self.cluster = Cluster()

    def run(self, *plays: Play) -> list[Beginning]:
        """Where the streams of one process begin."""
        kafka = {"bootstrap_servers": "k:9092", "topic_prefix": "shop", "commit_interval_ms": 1, "delivery": self.delivery}
        values = {
            "name": "shop",
            "source": {"uris": ["m0:3301"]},
            "kafka": kafka,
            "state": {"images": "none", "path": str(self.directory)},
            "http": {"listen": ""},
        }
        config = parse(values, "test")
        self.source.plays, self.source.beginnings = list(plays), []
        daemon = Daemon(config, new_source=lambda *_: self.source)
        daemon._given = GivenNumbers(config)
        daemon.run()
        return self.source.beginnings

    def lose(self, *topics: str, but: int = 0) -> None:
        """Kafka loses the records of these topics, except the first ones of each."""
        kept = {topic: self.cluster.written(topic)[:but] for topic in topics}
        others = [record for record in self.cluster.records if record[0] not in kept]
        self.cluster.records = others + [record for records in kept.values() for record in records]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    found = Place(tmp_path)
    for module in (publisher, supervisor, given_numbers):
        monkeypatch.setattr(module, "KafkaClients", lambda *_: clients(found.cluster))
    monkeypatch.setattr(supervisor, "SignOfLife", Quiet)
    monkeypatch.setattr(supervisor, "tune_garbage_collector", lambda: None)
    monkeypatch.setattr(Daemon, "_be_admitted", lambda _: None)
    return found


CHECKPOINT, THINGS = "shop.checkpoint", "shop.things"


@pytest.mark.parametrize("left", ["topics", "file", "both"])
def test_a_start_knows_that_the_newest_checkpoints_are_lost(place: Place, left: str) -> None:
    place.run(submits(1, 2, 3))
    if left == "topics":
        (place.directory / FILE).unlink()
    place.lose(CHECKPOINT, *([THINGS] if left == "file" else []), but=1)
    (beginning,) = place.run(ends)
    what = "the file numbers in state.path counts events" if left == "file" else "the topics have events"
    assert beginning.known.thrown_back == f"there is no checkpoint, but {what} up to seq 3"
    assert beginning.known.given.seq == 3


def test_a_start_after_an_orderly_stop_finds_everything_at_one_place(place: Place) -> None:
    place.run(submits(1, 2, 3))
    (beginning,) = place.run(ends)
    assert (beginning.known.thrown_back, beginning.known.given) == (None, Numbers(3))


def test_with_at_least_once_delivery_newer_events_are_no_proof(place: Place) -> None:
    """After a kill they are there before their checkpoint. What was committed is proof."""
    place.delivery = "at_least_once"
    place.run(submits(1, 2, 3))
    file = (place.directory / FILE).read_bytes()
    (place.directory / FILE).write_bytes(file.replace(b'"seq": 3', b'"seq": 0'))
    place.lose(CHECKPOINT, but=1)
    for delivery in ("at_least_once", "exactly_once"):  # it may have been changed after the kill
        place.delivery = delivery
        (beginning,) = place.run(ends)
        assert beginning.known.thrown_back is None
        (place.directory / FILE).write_bytes(file.replace(b'"seq": 3', b'"seq": 0'))
    place.delivery = "at_least_once"
    (place.directory / FILE).write_bytes(file)
    (beginning,) = place.run(ends)
    assert beginning.known.thrown_back == "there is no checkpoint, but the file numbers in state.path counts events up to seq 3"


def test_after_at_least_once_delivery_newer_events_are_no_proof_until_they_are_passed(place: Place) -> None:
    """Else a second start with exactly_once would take what the killed daemon had published for a loss of Kafka's."""
    place.delivery = "at_least_once"
    place.run(submits(1, 2, 3))
    path = place.directory / FILE
    path.write_bytes(path.read_bytes().replace(b'"seq": 3', b'"seq": 0'))
    place.lose(CHECKPOINT, but=1)
    place.delivery = "exactly_once"
    for plays in ((ends,), (submits(1, 2),), (submits(3, 4),)):
        (beginning,) = place.run(*plays)
        assert beginning.known.thrown_back is None
    place.lose(CHECKPOINT, but=1)
    path.unlink()
    (beginning,) = place.run(ends)
    assert beginning.known.thrown_back == "there is no checkpoint, but the topics have events up to seq 4"


def publisher_of(beginning: Beginning) -> Publisher:
    """The daemon's publisher."""
    assert isinstance(beginning.publisher, Publisher)
    return beginning.publisher


def test_the_process_itself_knows_what_it_has_committed(place: Place) -> None:
    """Kafka is restarted without its newest records, and the daemon isn't."""

    def loses(beginning: Beginning) -> bool:
        submits(1, 2, 3)(beginning)
        publisher = publisher_of(beginning)
        while publisher.committed is None or publisher.committed.seq < 3:
            wait(publisher)
        place.lose(CHECKPOINT, but=1)
        return refused(place.cluster, submits(4))(beginning)

    first, second = place.run(loses, ends)
    assert first.known.thrown_back is None
    assert second.known.thrown_back == "there is no checkpoint, but this process has committed events up to seq 3"
    assert second.known.given.seq >= 3


def test_a_process_that_was_fenced_learns_what_another_one_has_published(place: Place) -> None:
    """Kafka loses the other one's checkpoints with its claim, so the first process has the name again."""
    other = Place(place.directory / "other")
    other.cluster = place.cluster

    def is_taken_over(beginning: Beginning) -> bool:
        submits(1)(beginning)
        left = len(place.cluster.written(CHECKPOINT))
        other.run(submits(2, 3))
        place.lose(CHECKPOINT, but=left)
        return submits(2)(beginning)

    first, second = place.run(is_taken_over, ends)
    assert first.known.thrown_back is None
    assert second.known.thrown_back == "there is no checkpoint, but the topics have events up to seq 3"
    assert second.known.given.seq == 3


def test_once_the_checkpoint_is_ahead_again_the_daemon_goes_on_from_there(place: Place) -> None:
    place.run(submits(1, 2, 3))
    place.lose(CHECKPOINT, but=1)

    def heals(beginning: Beginning) -> bool:
        submits(4)(beginning)
        beginning.checkpoint.position = publisher_of(beginning).committed
        raise LOST

    first, second, third = place.run(breaks(LOST), heals, ends)
    assert first.known.thrown_back == second.known.thrown_back is not None
    assert (third.known.thrown_back, third.known.given.seq) == (None, 4)


def test_another_kafka_is_told_of(place: Place) -> None:
    assert other_kafka(Kept(), "a") is other_kafka(Kept(cluster_id="a"), "a") is other_kafka(Kept(cluster_id="a"), None) is None
    said: list[list[str]] = []
    for cluster_id in ("a", "a", "b"):
        place.cluster.cluster_id = cluster_id
        with capture_logs() as lines:
            place.run(ends)
        said.append([line["event"] for line in lines if "another Kafka" in line["event"]])
    assert said[:2] == [[], []]
    (warning,) = said[2]
    assert "its cluster id is b, that one's was a" in warning
