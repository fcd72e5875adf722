"""Partition of a key, as chosen by Kafka's own producers and by librdkafka's `murmur2_random`.

The partition is the 32-bit MurmurHash2 of the key with Kafka's seed, without its sign bit, modulo the number of partitions
(org.apache.kafka.common.utils.Utils).
"""

from __future__ import annotations

from typing import Final

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_ALL: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """Return the hash, from 0 to 2**32 - 1."""
    whole = len(data) & ~3
    found = _SEED ^ len(data)
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _FACTOR & _ALL
        word = (word ^ word >> 24) * _FACTOR & _ALL
        found = found * _FACTOR & _ALL ^ word
    if whole < len(data):
        found = (found ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _ALL
    found = (found ^ found >> 13) * _FACTOR & _ALL
    return found ^ found >> 15


def partition_of(key: bytes, partition_count: int) -> int:
    """Return the number of the partition for messages with this key, in a topic with `partition_count` partitions."""
    return (murmur2(key) & _POSITIVE) % partition_count
