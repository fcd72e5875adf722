"""What is read of the shards' buckets: all that is committed at first, and then what is new."""

from __future__ import annotations

import time

import pytest

from cdc.config.shard import Shard
from cdc.errors import ConfigurationError, ConnectionLostError
from cdc.kafka import bucket_reader
from cdc.kafka.bucket_reader import BucketReader
from cdc.stream.moves.records import BucketRecord, bucket_key
from tests.fakes.kafka import Cluster, clients

OWN, OTHER = "shop.s1.buckets", "shop.s2.buckets"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(bucket_reader, "_LOOK_SECONDS", 0.0)
    found = Cluster()
    found.partitions[OWN] = 1
    return found


@pytest.fixture
def reader(cluster: Cluster) -> BucketReader:
    return BucketReader(Shard("s1", "shop", "shop", ("s1", "s2"), True), clients(cluster))


def write(cluster: Cluster, topic: str, bucket: int | None, value: bytes) -> None:
    cluster.records.append((topic, 0, bucket_key(bucket), value))


def test_all_and_then_what_is_new(cluster: Cluster, reader: BucketReader) -> None:
    assert reader.news() == []
    write(cluster, OWN, 7, BucketRecord("active", 2, first=3).to_json())
    write(cluster, OWN, None, b'{"replicaset_uuid": "a"}')
    shards = reader.begin()
    assert shards.own.records == {7: BucketRecord("active", 2, first=3)}
    assert (shards.own.replicaset_uuid, shards.shard("s2").replicaset_uuid) == ("a", None)
    assert reader.news() == []
    sent = BucketRecord("sent", 3, "a", 1, {"a": 1}, {"a": 1}, head=(1, 5, 0), asks="s1")
    cluster.partitions[OTHER] = 1
    write(cluster, OTHER, 7, sent.to_json())
    assert reader.news() == [7]
    write(cluster, OTHER, None, b'{"replicaset_uuid": "b"}')
    assert reader.news() == [None]
    assert shards.shard("s2").records == {7: sent}
    assert shards.questions() == [("s2", 7)]
    write(cluster, OTHER, 8, BucketRecord("receiving", 1, "a", asks="s1").to_json())
    write(cluster, OTHER, 7, BucketRecord("active", 4, first=1).to_json())
    assert reader.news() == [8, 7]
    assert shards.questions() == [("s2", 8)]
    assert shards.doubled == {7: {"s1", "s2"}}
    assert reader.begin().own.records.keys() == {7}, "another beginning reads all again"
    reader.close()


def test_the_own_commit_is_not_readable_yet(cluster: Cluster, reader: BucketReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed is read, however long Kafka takes to show it."""
    write(cluster, OWN, 7, BucketRecord("active").to_json())
    cluster.hanging[OWN] = 0
    monkeypatch.setattr(time, "sleep", lambda _: cluster.hanging.clear())
    assert reader.begin().own.records.keys() == {7}
    cluster.hanging[OWN] = 0
    monkeypatch.setattr(bucket_reader, "_ANSWER_SECONDS", 0.0)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(ConnectionLostError, match=r"the end of shop\.s1\.buckets"):
        reader.begin()


def test_trouble(cluster: Cluster, reader: BucketReader, monkeypatch: pytest.MonkeyPatch) -> None:
    write(cluster, OWN, 7, b"[]")
    with pytest.raises(ConfigurationError, match="topic of buckets of the shard 's1'"):
        reader.begin()
    monkeypatch.setattr(bucket_reader, "_ANSWER_SECONDS", 0.0)
    cluster.partitions[OTHER] = 1
    cluster.stranded_count = 100
    with pytest.raises(ConnectionLostError):
        reader.begin()
