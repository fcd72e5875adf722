"""What a reader of the daemon's topics gets to see: everything below the end offsets of one moment."""

from __future__ import annotations

import time
import uuid
from typing import NamedTuple, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined] # its annotations don't re-export it

from tests.live.waiting import PATIENCE_SECONDS, wait_for

_CALL_SECONDS = 10.0
Place = tuple[str, int]
"""A topic and one of its partitions."""


class Record(NamedTuple):
    """One message where it lies."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


Look = dict[Place, int]
"""Where each partition ended at one moment: the last stable offset for a reader of committed messages."""


class TopicReader:
    """Reads all topics that begin with a prefix, from their beginning, as far as each look allows."""

    def __init__(self, bootstrap_servers: str, prefix: str, *, committed: bool = True, only: str = "") -> None:
        """`only` names the one topic after the prefix that is wanted."""
        self._prefix = f"{prefix}.{only}"
        self._isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        common: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
            "reconnect.backoff.max.ms": 500,
        }
        self._admin = AdminClient(common)
        self._consumer = Consumer(
            {
                **common,
                "group.id": uuid.uuid4().hex,
                "enable.auto.commit": False,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 20,
                "fetch.error.backoff.ms": 20,
            }
        )
        self.records: dict[Place, list[Record]] = {}
        """What has been read, by partition, in the order of the offsets."""
        self.partition_counts: dict[str, int] = {}
        self._read_to: Look = {}

    def look(self, timeout_seconds: float = PATIENCE_SECONDS) -> Look:
        """Where all topics end now, having read that far; waits for the first. Raises KafkaException while Kafka is away."""
        ends = wait_for("the topics' ends", self._ends_once_there, timeout_seconds)
        self._read(ends, timeout_seconds)
        return ends

    def look_at_rest(self, timeout_seconds: float = PATIENCE_SECONDS) -> Look:
        """As `look`, once no transaction is open: a commit is over before Kafka has shown it in all partitions."""

        def is_at_rest() -> bool:
            everything = self._ends(IsolationLevel.READ_UNCOMMITTED)
            return bool(everything) and everything == self._ends()

        self.look(timeout_seconds)
        wait_for("the end of all Kafka transactions", is_at_rest, timeout_seconds)
        return self.look(timeout_seconds)

    def below(self, look: Look) -> list[Record]:
        """The records that a look could reach."""
        return [record for place, end in look.items() for record in self.records[place] if record.offset < end]

    def close(self) -> None:
        """Let go of the connections."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ends_once_there(self) -> Look:
        try:
            self._assign_new()
            return self._ends()
        except KafkaException as error:
            if error.args[0].code() < 0:
                raise  # librdkafka's own: nobody answers
            return {}  # the broker's: a topic that is just being made has several

    def _assign_new(self) -> None:
        topics = self._admin.list_topics(timeout=_CALL_SECONDS).topics
        new = []
        for name, topic in topics.items():
            if name.startswith(self._prefix):
                self.partition_counts[name] = len(topic.partitions)
                new += [(name, number) for number in topic.partitions if (name, number) not in self.records]
        if new:
            self._consumer.incremental_assign([TopicPartition(*place, OFFSET_BEGINNING) for place in new])
        for place in new:
            self.records[place] = []
            self._read_to[place] = 0

    def _ends(self, isolation: IsolationLevel | None = None) -> Look:
        if not self.records:
            return {}
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(*place): latest for place in self.records}
        found = self._admin.list_offsets(wanted, isolation_level=isolation or self._isolation, request_timeout=_CALL_SECONDS)
        return {(place.topic, place.partition): future.result().offset for place, future in found.items()}

    def _read(self, ends: Look, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        missing = {place for place, end in ends.items() if self._read_to[place] < end}
        while missing:
            for message in self._consumer.consume(5000, 0.05):
                error, topic = message.error(), message.topic()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    if error.fatal():
                        raise KafkaException(error)
                    continue
                offset, partition = message.offset(), message.partition()
                assert topic is not None
                assert offset is not None
                assert partition is not None
                place = (topic, partition)
                if error is None:
                    self.records[place].append(Record(topic, partition, offset, message.key(), message.value()))
                    offset += 1
                self._read_to[place] = max(self._read_to[place], offset)
                if self._read_to[place] >= ends.get(place, 0):
                    missing.discard(place)
            if missing and time.monotonic() > deadline:
                raise TimeoutError(f"these partitions can't be read to their ends: {sorted(missing)}")
