"""Queueing of messages at a librdkafka producer. Its queue is bounded, and first messages are sent alone (`first_writes`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from cdc.errors import PublishAborted
from cdc.kafka.by_batch import by_batch
from cdc.kafka.errors import operator_error, writing_error
from cdc.kafka.first_writes import FirstWrites, Placed
from cdc.stream.batches.batch import Addressed, Broadcast, Part

CALL_TIMEOUT_SECONDS: Final = 5.0
_FULL_QUEUE_POLL_SECONDS: Final = 0.01
_UNKNOWN_TOPIC_POLL_SECONDS: Final = 0.05
_UNKNOWN_TOPIC_SECONDS: Final = 30.0
_FEW_TOPICS: Final = 20
"""Number of topics above which all topics of the cluster are requested at once."""


class Sender:
    """In-order queueing of messages at one producer. Not thread-safe: one thread owns it."""

    def __init__(
        self,
        producer: Producer,
        is_stopping: Callable[[], bool],
        row_work_lock: AbstractContextManager[object],
        *,
        first_error: Callable[[KafkaError], KafkaError] = lambda error: error,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Queue messages at `producer`.

        If an error says only that an earlier error broke the producer, `first_error` returns that earlier error. `check` raises
        the reported failures of earlier messages.
        """
        self._producer = producer
        self._by_batch = by_batch(producer)
        self._is_stopping = is_stopping
        # Serializes the two threads that work on rows, one batch at a time; see Publisher.
        self._row_work_lock = row_work_lock
        self._first_error = first_error
        self._check = check
        self._first_writes = FirstWrites()

    def send(self, parts: list[Part], topics: Collection[str]) -> None:
        """Queue these messages, which all go to `topics`. Raises PublishAborted or PublishError."""
        unacknowledged = self._first_writes.unacknowledged_topics(topics, time.monotonic())
        if unacknowledged:
            parts = self._begin(parts, unacknowledged)
        self._put(parts)

    def flush(self) -> None:
        """Wait until all messages so far were delivered or failed. Raises PublishAborted, and the errors of `check`."""
        while self._producer.flush(CALL_TIMEOUT_SECONDS):
            self._check()
            if self._is_stopping():
                raise PublishAborted("stopped while messages were in transit")
        self._check()

    def invalidate(self) -> None:
        """Forget all acknowledgements, because messages in transit may not have arrived."""
        self._first_writes.invalidate()

    def _begin(self, parts: list[Part], unacknowledged: set[str]) -> list[Part]:
        """Send the first message of each new partition, and wait until they have arrived. Return the parts still to be sent."""
        first_writes = self._first_writes
        first_writes.learn(self._counted(first_writes.unknown(unacknowledged)))
        if not first_writes.has_first_message(parts, unacknowledged):
            return parts
        broadcast = {part.topic for part in parts if isinstance(part, Broadcast)}
        now, later = first_writes.split(parts, unacknowledged, {topic: self._partition_count(topic) for topic in broadcast})
        self._put_placed(now)
        self.flush()
        first_writes.acknowledged()
        self._put_placed(later)
        return []

    def _put(self, parts: list[Part]) -> None:
        produce, by_batch = self._producer.produce, self._by_batch
        # The next message: the index of its part, and its index within the part, or a broadcast's next partition.
        start = within = 0
        # Number of partitions that the next part, a broadcast, goes to.
        count: int | None = None
        while True:
            try:
                with self._row_work_lock:
                    if by_batch is not None and count is None:
                        start, within, code = by_batch.produce(parts, start, within)
                        if code:
                            raise KafkaException(KafkaError(code))
                    # The producer itself sends the parts that weren't accepted there: broadcasts, and refused messages, for which
                    # it raises the error.
                    for part in parts[start:] if start else parts:
                        if isinstance(part, tuple):
                            topic, key, value = part
                            produce(topic, value, key)
                        elif isinstance(part, Addressed):
                            self._produce(self._first_writes.placed(part))
                        elif not isinstance(part, Broadcast):
                            while within < len(part):
                                topic, key, value = part[within]
                                produce(topic, value, key)
                                within += 1
                                if by_batch is not None:
                                    break
                            if within < len(part):
                                break
                        elif count is None:
                            break
                        else:
                            while within < count:
                                self._produce(Placed(part.topic, None, part.value, within, part.headers))
                                within += 1
                            count = None
                        start, within = start + 1, 0
                        # More of these may follow, and each end of this loop copies the rest of the list.
                        if by_batch is not None and not isinstance(part, Addressed):
                            break
                if start == len(parts):
                    break
                following = parts[start]
                if count is None and isinstance(following, Broadcast):
                    count = self._partition_count(following.topic)  # without the lock, as it may take seconds
            except BufferError:
                self._await_room()
            except KafkaException as error:
                part = parts[start]
                topic = part.topic if isinstance(part, Broadcast) else part[0] if isinstance(part, tuple) else part[within][0]
                raise self._refusal(error, topic) from error
        self._poll()

    def _poll(self) -> None:
        """Have the producer's callbacks called. Raises the error that has made the producer unusable meanwhile."""
        try:
            self._producer.poll(0)
        except KafkaException as error:
            raise writing_error(self._first_error(error.args[0]), "a Kafka transaction can't continue") from error

    def _put_placed(self, messages: Iterable[Placed]) -> None:
        for message in messages:
            while True:
                try:
                    self._produce(message)
                except BufferError:
                    self._await_room()
                except KafkaException as error:
                    raise self._refusal(error, message.topic) from error
                else:
                    break
        self._poll()

    def _produce(self, message: Placed) -> None:
        topic, key, value, partition, headers = message
        more: dict[str, Any] = {} if partition is None else {"partition": partition}
        if headers is not None:
            more["headers"] = headers
        self._producer.produce(topic, value, key, **more)

    def _await_room(self) -> None:
        """Wait for room in the queue, which is full because a broker is slow or unavailable.

        The transaction's time-out ends the wait.
        """
        if self._is_stopping():
            raise PublishAborted("stopped while the producer's queue was full") from None
        self._producer.poll(_FULL_QUEUE_POLL_SECONDS)

    def _refusal(self, error: KafkaException, topic: str) -> Exception:
        refusal = error.args[0]
        cause = self._first_error(refusal)
        # The error that broke the transaction may concern any topic, and rarely this message's.
        what = f"a message for {topic} was refused" if cause is refusal else "a Kafka transaction can't continue"
        return writing_error(cause, what)

    def _partition_count(self, topic: str) -> int:
        """Return the topic's current number of partitions, for a broadcast, which must reach every partition with rows.

        Partitions may be added at any time. Therefore the producer itself is asked: it places keys by the same answer, so it
        has placed no key in a partition that isn't counted here. A partition added later has no earlier rows.
        """
        found = self._producer.list_topics(topic, CALL_TIMEOUT_SECONDS).topics[topic]
        if found.error is not None or not found.partitions:
            raise PublishAborted(f"the partitions of {topic} aren't known: {found.error or 'it has none'}")
        return len(found.partitions)

    def _counted(self, topics: list[str]) -> dict[str, int]:
        """Return the partition counts of these topics, which are known to exist.

        Waits as long as no broker answers, and up to _UNKNOWN_TOPIC_SECONDS for brokers that don't know a new topic yet. Raises
        PublishAborted or PublishError.
        """
        counts: dict[str, int] = {}
        deadline = time.monotonic() + _UNKNOWN_TOPIC_SECONDS
        while True:
            try:
                self._count(topics, counts)
            except KafkaException as error:
                refusal = operator_error(error.args[0], "the partitions of topics can't be asked for")
                if refusal is not None:
                    raise refusal from error
                deadline = time.monotonic() + _UNKNOWN_TOPIC_SECONDS
            topics = [topic for topic in topics if topic not in counts]
            if not topics:
                return counts
            if self._is_stopping():
                raise PublishAborted("stopped before Kafka had reported the topics' partitions")
            if time.monotonic() >= deadline:
                raise PublishAborted(f"the brokers don't know the topic {topics[0]}")
            self._producer.poll(_UNKNOWN_TOPIC_POLL_SECONDS)

    def _count(self, topics: list[str], counts: dict[str, int]) -> None:
        """Add the counts that the brokers know now. Raises KafkaException if none answers, PublishError if one refuses."""
        ask = self._producer.list_topics
        everything = ask(timeout=CALL_TIMEOUT_SECONDS).topics if len(topics) > _FEW_TOPICS else None
        for topic in topics:
            found = ask(topic, CALL_TIMEOUT_SECONDS).topics[topic] if everything is None else everything.get(topic)
            if found is None:
                continue
            if found.partitions:
                counts[topic] = len(found.partitions)
            elif found.error is not None:
                refusal = operator_error(found.error, f"a message for {topic} was refused")
                if refusal is not None:
                    raise refusal
