"""What readers can reach of a daemon's topics, where the checkpoint's topic is gone."""

from __future__ import annotations

import threading

import pytest

from cdc.config import KafkaSection
from cdc.errors import PublishError
from cdc.events.envelope import transaction_records
from cdc.kafka import readers_view
from cdc.kafka.errors import ForbiddenError
from cdc.kafka.readers_view import ReadersView
from cdc.stream.commits.checkpoint import position_record
from tests.fakes.kafka import Cluster, clients
from tests.kafka.test_publisher import WRITER, batch

TOPIC = "shop.checkpoint"


@pytest.fixture
def cluster() -> Cluster:
    """With the checkpoint of `x` at seq 7."""
    key, value = position_record("x", batch(7).position, WRITER, 1)
    return Cluster(partitions={TOPIC: 1}, records=[(TOPIC, None, key, value)])


@pytest.fixture
def view(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> ReadersView:
    monkeypatch.setattr(readers_view, "GONE_SECONDS", 0.2)
    return ReadersView(KafkaSection(bootstrap_servers="x:1", topic_prefix="shop"), "x", clients(cluster))


def test_a_checkpoint_that_was_deleted_is_told_without_waiting_for_a_reader(cluster: Cluster, view: ReadersView) -> None:
    """librdkafka looks for a topic that is gone for half a minute."""
    del cluster.partitions[TOPIC]
    with pytest.raises(PublishError, match=f"the topic {TOPIC} was deleted, .*Start once with --rebuild-state"):
        view.checkpoint()
    assert not cluster.reads


def test_a_checkpoint_that_brokers_show_late_is_not_deleted(cluster: Cluster, view: ReadersView) -> None:
    del cluster.partitions[TOPIC]
    later = threading.Timer(0.05, lambda: cluster.partitions.update({TOPIC: 1}))
    later.start()
    found = view.checkpoint().position
    assert found is not None
    assert found.seq == 7


def test_a_checkpoint_that_may_not_be_seen_any_more_is_not_deleted(cluster: Cluster, view: ReadersView) -> None:
    del cluster.partitions[TOPIC]
    cluster.hidden.add(TOPIC)
    with pytest.raises(ForbiddenError, match=f"{TOPIC} can't be read"):
        view.checkpoint()


def test_the_record_of_a_transaction_tells_that_what_hangs_was_committed(cluster: Cluster, view: ReadersView) -> None:
    """Where all its events hang, and the checkpoint: consumers wait for these events, so an abort would lose them."""
    cluster.records.append((TOPIC, None, *position_record("x", batch(8).position, WRITER, 1)))
    cluster.hanging[TOPIC] = 1
    cluster.partitions["shop.transaction"] = 1
    position = view.checkpoint().position
    assert position is not None
    ((origin, lsn),) = position.vclock.items()
    for number, is_committed in ((lsn, False), (lsn + 1, True)):
        cluster.records += [("shop.transaction", None, *each) for each in transaction_records(f"{origin}:{number}", [], 1.0)]
        assert view.what_hangs(None) == ({(TOPIC, 0): 1}, is_committed)
    cluster.records[-2:] = [("shop.transaction", None, b"{}", b'{"id":"another program\'s"}')]
    assert view.what_hangs(None) == ({(TOPIC, 0): 1}, False)
