"""Keys' partitions: as Kafka's own tests say, as librdkafka places them, and as the compiled module counts them."""

from __future__ import annotations

import random

import pytest
from confluent_kafka import Message, Producer

from cdc.kafka.murmur2 import murmur2, partition_of


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973_932_308),
        (b"foobar", -790_332_482),
        (b"a-little-bit-long-string", -985_981_536),
        (b"a-little-bit-longer-string", -1_486_304_829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
        (b"abc", 479_470_107),
    ],
)
def test_hashes_are_those_of_kafkas_own_tests(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected % 2**32


def test_partitions_are_those_that_the_producer_chooses(seed: int) -> None:
    chance = random.Random(seed)
    keys = [chance.randbytes(length) for length in range(1, 40) for _ in range(5)]
    found: dict[bytes, int | None] = {}

    def delivered(error: object, message: Message) -> None:
        assert error is None
        key = message.key()
        assert isinstance(key, bytes)
        found[key] = message.partition()

    # By default a topic of such a cluster has four partitions.
    producer = Producer(
        {"test.mock.num.brokers": 1, "partitioner": "murmur2_random", "log_level": 0, "allow.auto.create.topics": "true"}
    )
    for key in keys:
        producer.produce("a", b"", key, on_delivery=delivered)
    assert producer.flush(20) == 0
    count = len(producer.list_topics("a", 10).topics["a"].partitions)
    assert count > 1
    assert found == {key: partition_of(key, count) for key in keys}
