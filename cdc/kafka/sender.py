"""Messages on their way to a producer of librdkafka's: its queue is bounded, and first messages go alone (`first_writes`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from cdc.errors import PublishAborted
from cdc.kafka.by_batch import by_batch
from cdc.kafka.errors import operator_error, writing_error
from cdc.kafka.first_writes import FirstWrites, Placed
from cdc.stream.batch import Broadcast, Part

CALL_TIMEOUT_SECONDS: Final = 5.0
_FULL_QUEUE_POLL_SECONDS: Final = 0.01
_UNKNOWN_TOPIC_POLL_SECONDS: Final = 0.05
_UNKNOWN_TOPIC_SECONDS: Final = 30.0
_FEW_TOPICS: Final = 20
"""Of more, all topics of the cluster are asked for at once."""


class Sender:
    """Gives messages to one producer, in order. Not thread-safe: one thread owns it."""

    def __init__(
        self,
        producer: Producer,
        is_stopping: Callable[[], bool],
        row_work_lock: AbstractContextManager[object],
        *,
        first_error: Callable[[KafkaError], KafkaError] = lambda error: error,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`first_error` says what went wrong before, where it is only told that something did; `check` raises what was reported
        of earlier messages.
        """
        self._producer = producer
        self._by_batch = by_batch(producer)
        self._is_stopping = is_stopping
        # Serialises the two threads that work on rows, a batch at a time; see Publisher.
        self._turn = row_work_lock
        self._first_error = first_error
        self._check = check
        self._first_writes = FirstWrites()

    def send(self, parts: list[Part], topics: Collection[str]) -> None:
        """Hand over what goes to these topics. Raises PublishAborted or PublishError."""
        lacking = self._first_writes.lacking(topics, time.monotonic())
        if lacking:
            parts = self._begin(parts, lacking)
        self._put(parts)

    def flush(self) -> None:
        """Wait until everything so far has arrived, or was given up. Raises PublishAborted."""
        while self._producer.flush(CALL_TIMEOUT_SECONDS):
            self._check()
            if self._is_stopping():
                raise PublishAborted("stopped while messages were on their way")
        self._check()

    def forget(self) -> None:
        """What was on its way may not have arrived."""
        self._first_writes.forget()

    def _begin(self, parts: list[Part], lacking: set[str]) -> list[Part]:
        """Send what is the first for its partition, and wait until it has arrived; returns what is left to be sent."""
        first_writes = self._first_writes
        first_writes.learn(self._counted(first_writes.unknown(lacking)))
        if not first_writes.begins(parts, lacking):
            return parts
        broadcast = {part.topic for part in parts if isinstance(part, Broadcast)}
        now, later = first_writes.split(parts, lacking, {topic: self._partition_count(topic) for topic in broadcast})
        self._put_placed(now)
        self.flush()
        first_writes.acknowledged()
        self._put_placed(later)
        return []

    def _put(self, parts: list[Part]) -> None:
        produce, by_batch = self._producer.produce, self._by_batch
        # The next message: its part, and which of that part it is, or for which partition a broadcast.
        start = within = 0
        # How many partitions the broadcast that is next goes to.
        count: int | None = None
        while True:
            try:
                with self._turn:
                    if by_batch is not None and count is None:
                        start, within, code = by_batch.produce(parts, start, within)
                        if code:
                            raise KafkaException(KafkaError(code))
                    # What isn't taken there is for the producer itself: broadcasts, and what it has something to say about.
                    for part in parts[start:] if start else parts:
                        if isinstance(part, tuple):
                            topic, key, value = part
                            produce(topic, value, key)
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
                                produce(part.topic, part.value, partition=within)
                                within += 1
                            count = None
                        start, within = start + 1, 0
                        if by_batch is not None:
                            break
                if start == len(parts):
                    self._producer.poll(0)
                    return
                following = parts[start]
                if count is None and isinstance(following, Broadcast):
                    count = self._partition_count(following.topic)  # without the lock, as it may take seconds
            except BufferError:
                self._await_room()
            except KafkaException as error:
                part = parts[start]
                topic = part.topic if isinstance(part, Broadcast) else part[0] if isinstance(part, tuple) else part[within][0]
                raise self._refusal(error, topic) from error

    def _put_placed(self, messages: Iterable[Placed]) -> None:
        for topic, key, value, partition in messages:
            while True:
                try:
                    if partition is None:
                        self._producer.produce(topic, value, key)
                    else:
                        self._producer.produce(topic, value, key, partition=partition)
                except BufferError:
                    self._await_room()
                except KafkaException as error:
                    raise self._refusal(error, topic) from error
                else:
                    break
        self._producer.poll(0)

    def _await_room(self) -> None:
        """The queue is full because the broker is slow or away; the transaction's time-out ends the wait."""
        if self._is_stopping():
            raise PublishAborted("stopped while the producer's queue was full") from None
        self._producer.poll(_FULL_QUEUE_POLL_SECONDS)

    def _refusal(self, error: KafkaException, topic: str) -> Exception:
        refusal = error.args[0]
        cause = self._first_error(refusal)
        # What ended the transaction may be about any topic, and rarely about this message's.
        what = f"a message for {topic} was refused" if cause is refusal else "a Kafka transaction can't go on"
        return writing_error(cause, what)

    def _partition_count(self, topic: str) -> int:
        """How many partitions the topic has now, for a message that must reach all that have rows.

        Partitions may be added at any time. The producer itself is asked: an answer to it is also what it places keys by, so
        no key was placed in a partition that isn't counted here. A partition that is added later has nothing of before.
        """
        found = self._producer.list_topics(topic, CALL_TIMEOUT_SECONDS).topics[topic]
        if found.error is not None or not found.partitions:
            raise PublishAborted(f"the partitions of {topic} aren't known: {found.error or 'it has none'}")
        return len(found.partitions)

    def _counted(self, topics: list[str]) -> dict[str, int]:
        """How many partitions each of these topics has, which have been made sure of.

        Waits while no broker answers, and a while for one that hasn't heard of a new topic. Raises PublishAborted, PublishError.
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
                raise PublishAborted("stopped before Kafka had said which partitions there are")
            if time.monotonic() >= deadline:
                raise PublishAborted(f"the brokers don't know the topic {topics[0]}")
            self._producer.poll(_UNKNOWN_TOPIC_POLL_SECONDS)

    def _count(self, topics: list[str], counts: dict[str, int]) -> None:
        """Add what the brokers know now. Raises KafkaException if none answers, PublishError if one refuses."""
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
