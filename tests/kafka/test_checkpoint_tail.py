"""The checkpoint as it is followed: committed records only, the newest of each key, by one client after another."""

from __future__ import annotations

import pytest

from cdc.errors import ConfigurationError
from cdc.events.json_values import encode
from cdc.kafka import checkpoint_tail
from cdc.kafka.checkpoint_tail import CheckpointTail
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.stream.commits.checkpoint import Writer, position_record
from tests.fakes.kafka import Cluster, clients

TOPIC = "shop.checkpoint"


def write(cluster: Cluster, seq: int, *, commit: bool = True) -> None:
    producer = clients(cluster).transactional(lambda _: None, 1000)
    producer.init_transactions(1)
    producer.begin_transaction()
    key, value = position_record("shop", Position(VClock({1: seq}), seq), Writer("w", has_store=True), 0)
    producer.produce(TOPIC, value, key)
    if commit:
        producer.commit_transaction(1)
    else:
        producer.abort_transaction(1)


def seq_after_look(tail: CheckpointTail) -> int | None:
    tail.look()
    position = tail.checkpoint.position
    return position.seq if position is not None else None


def test_it_has_the_newest_committed_position() -> None:
    cluster = Cluster({TOPIC: 1})
    tail = CheckpointTail(clients(cluster), TOPIC, "shop")
    assert (seq_after_look(tail), tail.is_read) == (None, True)
    write(cluster, 1)
    write(cluster, 2)
    write(cluster, 3, commit=False)
    assert seq_after_look(tail) == 2
    write(cluster, 4)
    assert seq_after_look(tail) == 4
    tail.close()


def test_a_daemon_that_always_writes_more_is_read_to_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client says that there is nothing more only if a look finds nothing."""
    cluster = Cluster({TOPIC: 1})
    write(cluster, 1)
    tail = CheckpointTail(clients(cluster), TOPIC, "shop")
    consume = tail._consumer.consume
    monkeypatch.setattr(tail._consumer, "consume", lambda *them: [one for one in consume(*them) if one.error() is None])
    seqs = []
    while not tail.is_read:
        seqs.append(seq_after_look(tail))
        write(cluster, len(seqs) + 1)
        assert len(seqs) < 4
    assert seqs[0] == 1
    tail.close()


def test_if_nothing_comes_for_long_another_client_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster({TOPIC: 1})
    tail = CheckpointTail(clients(cluster), TOPIC, "shop")
    first = tail._consumer
    assert seq_after_look(tail) is None
    assert tail._consumer is first
    monkeypatch.setattr(checkpoint_tail, "QUIET_SECONDS", 0.0)
    write(cluster, 1)
    assert seq_after_look(tail) == 1
    assert tail._consumer is not first
    tail.close()


@pytest.mark.parametrize("is_mended", [True, False])
def test_a_record_that_cannot_be_understood_counts_until_another_has_its_key(is_mended: bool) -> None:
    cluster = Cluster({TOPIC: 1})
    write(cluster, 1)
    producer = clients(cluster).idempotent(lambda _: None, lambda *_: None)
    producer.produce(TOPIC, b"{}", encode({"name": "shop"}))
    producer.flush(1)
    if is_mended:
        write(cluster, 2)
    tail = CheckpointTail(clients(cluster), TOPIC, "shop")
    if is_mended:
        assert seq_after_look(tail) == 2
    else:
        with pytest.raises(ConfigurationError, match="the checkpoint has format None"):
            tail.look()
    tail.close()
