"""Readers of what the daemon has published: one that counts, one that looks at the clock."""

from __future__ import annotations

import gc
import time
from array import array
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from cdc.local.interface import KafkaServer

_POLL_SECONDS: Final = 30.0
_TIME: Final = b'"ts_us":'
_TIME_DIGITS: Final = 16  # from 2001 to 2286


@dataclass(frozen=True)
class Counted:
    """Rows of a topic: how many different ones, how many of them again, and how long it took to read them."""

    rows: int
    repeated: int
    seconds: float

    @property
    def rows_per_second(self) -> float:
        """The reader's own limit."""
        return (self.rows + self.repeated) / self.seconds if self.seconds else 0.0


def count_rows(kafka: KafkaServer, topic: str, id_max: int) -> Counted:
    """Read the whole topic, committed records only, and count the rows by their key `{"id":…}`."""
    consumer, partition_count = _assigned(kafka, topic, OFFSET_BEGINNING, {"enable.partition.eof": True})
    seen = bytearray(id_max + 1)
    repeated = 0
    ended: set[int | None] = set()  # the end of a partition may be reported more than once
    started = last = time.monotonic()
    try:
        while len(ended) < partition_count:
            message = consumer.poll(_POLL_SECONDS)
            if message is None:
                raise TimeoutError(f"{topic} couldn't be read to its end")
            if (error := message.error()) is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                ended.add(message.partition())
                continue
            row_id = int((message.key() or b"")[6:-1])
            _time_of(message.value() or b"")
            repeated += seen[row_id]
            seen[row_id] = 1
            last = time.monotonic()
    finally:
        consumer.close()
    return Counted(seen.count(1), repeated, last - started)


@dataclass(frozen=True)
class Latencies:
    """Milliseconds from the master's timestamp of a row to its return from the consumer's poll, sorted."""

    milliseconds: list[float]

    def quantile(self, share: float) -> float:
        """The smallest that `share` of all don't exceed."""
        return self.milliseconds[min(len(self.milliseconds) - 1, int(len(self.milliseconds) * share))]


class LatencyReader:
    """Reads committed rows as they come. It does nothing with a row but take its time out by its place in the text."""

    def __init__(self, kafka: KafkaServer, topic: str) -> None:
        """From the topic's present end on."""
        self._consumer, _ = _assigned(kafka, topic, None, {})

    def close(self) -> None:
        """Let go of the connection."""
        self._consumer.close()

    def read(self, *, warm_up_seconds: float, seconds: float) -> Latencies:
        """Read for `warm_up_seconds` and then, measuring, for `seconds`."""
        poll, clock = self._consumer.poll, time.time_ns
        found = array("q")
        begin = clock() // 1000 + round(warm_up_seconds * 1e6)
        end = begin + round(seconds * 1e6)
        gc.collect()
        gc.disable()
        try:
            while (now := clock() // 1000) < end:
                message = poll(0.1)
                if message is None:
                    continue
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                now = clock() // 1000
                if now >= begin:
                    found.append(now - _time_of(message.value() or b""))
        finally:
            gc.enable()
        return Latencies([micro / 1000 for micro in sorted(found)])


def _time_of(value: bytes) -> int:
    """`source.ts_us`: the first such name in an event whose row has none of that name."""
    start = value.index(_TIME) + len(_TIME)
    return int(value[start : start + _TIME_DIGITS])


def _assigned(kafka: KafkaServer, topic: str, offset: int | None, settings: dict[str, Any]) -> tuple[Consumer, int]:
    """A consumer of all the topic's partitions, from `offset` or else from where they end now; and how many they are."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": f"{topic}-bench",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "queued.max.messages.kbytes": 64 * 1024,
            **settings,
        }
    )
    partitions = [TopicPartition(topic, number) for number in consumer.list_topics(topic, timeout=30).topics[topic].partitions]
    for partition in partitions:
        if offset is None:
            _, partition.offset = consumer.get_watermark_offsets(partition, timeout=30)
        else:
            partition.offset = offset
    consumer.assign(partitions)
    return consumer, len(partitions)
