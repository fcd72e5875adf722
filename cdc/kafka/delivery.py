"""How batches become durable in Kafka: two ways with one interface.

exactly_once: one transactional producer writes events and checkpoint in the same transaction. A reader with
read_committed sees whole source transactions, each event once; a restart goes on from the last committed checkpoint.

at_least_once: an idempotent producer writes events, which are visible at once; after all of them are acknowledged a second,
small transactional producer writes the checkpoint. A restart repeats the whole transactions after it. The second producer
makes both modes alike where it counts: the checkpoint is read the same way, and a second daemon of the same name fences
the first. A space's new form on the schema topic is visible when all events before it are, and before any after it: who
applies it would take what comes late for something that the form has ended.

No callback runs per message. In a transaction the commit speaks for all its messages; outside one, only failures are
reported, and a flush that returns says that everything before it arrived.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.config import KafkaSection
from cdc.errors import ConnectionLostError, PublishAborted, PublishError
from cdc.events import topics
from cdc.events.topics import TopicNames
from cdc.kafka.by_batch import by_batch
from cdc.kafka.clients import Complain, KafkaClients
from cdc.kafka.errors import FENCED, NAME_HINT, FencedError, operator_error, writing_error
from cdc.kafka.hanging import FILLER_KEY, Place
from cdc.stream.batch import Batch, Broadcast, Part

INIT_TIMEOUT_SECONDS: Final = 10.0
CALL_TIMEOUT_SECONDS: Final = 5.0
_FULL_QUEUE_POLL_SECONDS: Final = 0.01

Record = tuple[bytes, bytes | None]

_first: Final[Callable[[Any], str]] = itemgetter(0)
"""The topic of a message that is no broadcast, without a call of Python's for each."""


class Delivery(Protocol):
    """Writes batches in order. Not thread-safe: one thread owns it."""

    def start(self) -> None:
        """Take the name: fence an earlier daemon. Raises ConnectionLostError while Kafka is away, PublishError for good."""

    def end_hanging(self, partitions: Iterable[Place], *, commit: bool) -> None:
        """Decide over what hangs in partitions (see cdc.kafka.hanging).

        To be called right after `start`. Raises PublishAborted or PublishError.
        """

    def produce(self, batch: Batch) -> None:
        """Hand a batch's messages to the producer, in order."""

    def commit(self, records: Iterable[Record]) -> Iterable[str]:
        """Make everything so far, and the checkpoint's `records`, durable. Raises PublishAborted or PublishError.

        Returns the topics that were written to in the Kafka transaction.
        """

    def abort(self) -> None:
        """Give up what isn't committed. Raises PublishError."""

    @property
    def is_open(self) -> bool:
        """Whether a transaction may be open, as far as Kafka has told."""

    def close(self) -> None:
        """Let go of the connection."""


class _Producing:
    """What both ways share: handing messages over while the producer's queue is bounded."""

    def __init__(
        self, producer: Producer, is_stopping: Callable[[], bool], row_work_lock: AbstractContextManager[object]
    ) -> None:
        self._producer = producer
        self._by_batch = by_batch(producer)
        self._is_stopping = is_stopping
        # Serialises the two threads that work on rows, a batch at a time; see Publisher.
        self._turn = row_work_lock

    def _hand_over(self, parts: list[Part]) -> None:
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
                # The queue is full because the broker is slow or away; the transaction's time-out ends the wait.
                if self._is_stopping():
                    raise PublishAborted("stopped while the producer's queue was full") from None
                self._producer.poll(_FULL_QUEUE_POLL_SECONDS)
            except KafkaException as error:
                refusal = error.args[0]
                cause = self._first_error(refusal)
                # What ended the transaction may be about any topic, and rarely about this message's.
                what = (
                    f"a message for {_topic(parts[start], within)} was refused"
                    if cause is refusal
                    else "a Kafka transaction can't go on"
                )
                raise writing_error(cause, what) from error

    def _partition_count(self, topic: str) -> int:
        """How many partitions the topic has now, for a message that must reach all that have rows.

        Partitions may be added at any time. The producer itself is asked: an answer to it is also what it places keys by, so
        no key was placed in a partition that isn't counted here. A partition that is added later has nothing of before.
        """
        found = self._producer.list_topics(topic, CALL_TIMEOUT_SECONDS).topics[topic]
        if found.error is not None or not found.partitions:
            raise PublishAborted(f"the partitions of {topic} aren't known: {found.error or 'it has none'}")
        return len(found.partitions)

    def _first_error(self, error: KafkaError) -> KafkaError:
        """What went wrong before, where it is only told that something did."""
        return error


class _Transactions:
    """The transactional producer's life, with librdkafka's errors sorted by who must act."""

    def __init__(self, producer: Producer, is_stopping: Callable[[], bool]) -> None:
        self._producer = producer
        self._is_stopping = is_stopping
        self.is_open = False

    def start(self) -> None:
        try:
            self._producer.init_transactions(INIT_TIMEOUT_SECONDS)
        except KafkaException as error:
            cause = error.args[0]
            what = "Kafka refuses transactions to this daemon"
            if cause.code() in FENCED:
                raise FencedError(f"{what}: {cause.str()}", NAME_HINT) from error
            if cause.fatal() or operator_error(cause, what) is not None:
                raise operator_error(cause, what) or PublishError(f"{what}: {cause.str()}") from error
            raise ConnectionLostError(f"Kafka doesn't answer: {cause.str()}") from error

    def begin(self) -> None:
        if not self.is_open:
            self._call(self._producer.begin_transaction, "a Kafka transaction can't be begun")
            self.is_open = True

    def commit(self) -> None:
        self._retry(lambda: self._producer.commit_transaction(CALL_TIMEOUT_SECONDS), "a Kafka transaction can't be committed")
        self.is_open = False

    def abort(self) -> None:
        if self.is_open:
            self._retry(lambda: self._producer.abort_transaction(CALL_TIMEOUT_SECONDS), "a Kafka transaction can't be aborted")
            self.is_open = False

    def first_error(self, error: KafkaError) -> KafkaError:
        """Why the transaction can't go on, where a message was refused only because it can't.

        A transaction can't be begun then either, and that is refused with the reason.
        """
        if error.code() in (KafkaError._STATE, KafkaError._FATAL):
            try:
                self._producer.begin_transaction()
            except KafkaException as reason:
                told: KafkaError = reason.args[0]
                return told
        return error

    def end_hanging(self, partitions: Iterable[Place], *, commit: bool) -> None:
        self.begin()
        for topic, partition in partitions:
            self._producer.produce(topic, None, FILLER_KEY, partition=partition)
        # What is still in the producer's queue when a transaction is aborted never reaches its partition.
        while self._producer.flush(CALL_TIMEOUT_SECONDS):
            if self._is_stopping():
                raise PublishAborted("stopped while a hanging transaction was ended")
        if commit:
            self.commit()
        else:
            self.abort()

    def _call(self, call: Callable[[], object], what: str) -> None:
        try:
            call()
        except KafkaException as error:
            raise writing_error(error.args[0], what) from error

    def _retry(self, call: Callable[[], object], what: str) -> None:
        """Repeat a call as long as librdkafka says that repeating is how to go on."""
        while True:
            try:
                call()
            except KafkaException as error:
                cause = error.args[0]
                if not cause.retriable() or cause.txn_requires_abort() or cause.fatal():
                    raise writing_error(cause, what) from error
                if self._is_stopping():
                    raise PublishAborted(f"{what} while stopping: {cause.str()}") from error
            else:
                return


class ExactlyOnce(_Producing):
    """Events and checkpoint in one transaction."""

    def __init__(
        self,
        producer: Producer,
        is_stopping: Callable[[], bool],
        row_work_lock: AbstractContextManager[object],
        topic: str,
    ) -> None:
        super().__init__(producer, is_stopping, row_work_lock)
        self._transactions = _Transactions(producer, is_stopping)
        self._checkpoint_topic = topic
        # Topics that the open transaction has written to.
        self._written: set[str] = set()

    def start(self) -> None:
        self._transactions.start()

    def end_hanging(self, partitions: Iterable[Place], *, commit: bool) -> None:
        self._transactions.end_hanging(partitions, commit=commit)

    def produce(self, batch: Batch) -> None:
        self._transactions.begin()
        self._written |= _topics(batch.parts)
        self._hand_over(batch.parts)

    def commit(self, records: Iterable[Record]) -> Iterable[str]:
        self._transactions.begin()
        self._hand_over([(self._checkpoint_topic, key, value) for key, value in records])
        self._transactions.commit()
        written, self._written = self._written, set()
        return written | {self._checkpoint_topic}

    def abort(self) -> None:
        self._transactions.abort()
        self._written.clear()

    def _first_error(self, error: KafkaError) -> KafkaError:
        return self._transactions.first_error(error)

    @property
    def is_open(self) -> bool:
        return self._transactions.is_open

    def close(self) -> None:
        # Messages of an open transaction are of no use to anybody.
        self._producer.purge()


class AtLeastOnce(_Producing):
    """Events at once, the checkpoint after them."""

    def __init__(
        self,
        producer: Producer,
        checkpoint_producer: Producer,
        is_stopping: Callable[[], bool],
        row_work_lock: AbstractContextManager[object],
        topic: str,
        schema_topic: str,
    ) -> None:
        super().__init__(producer, is_stopping, row_work_lock)
        self._schema_topic = schema_topic
        self._checkpoint_producer = checkpoint_producer
        self._transactions = _Transactions(checkpoint_producer, is_stopping)
        self._checkpoint_topic = topic
        # The first failed delivery since the start, or since an abort; nothing after it may be settled.
        self.failure: KafkaError | None = None
        # The topic of that message.
        self._failed_topic: str | None = None

    def on_failed_delivery(self, error: KafkaError | None, message: Message) -> None:
        """librdkafka's report; with delivery.report.only.error it comes for failures alone."""
        if error is not None and self.failure is None:
            self.failure = error
            self._failed_topic = message.topic()

    def start(self) -> None:
        self._transactions.start()

    def end_hanging(self, partitions: Iterable[Place], *, commit: bool) -> None:
        self._transactions.end_hanging(partitions, commit=commit)

    def produce(self, batch: Batch) -> None:
        if batch.stored:  # only then it may have new forms
            for is_form, parts in itertools.groupby(batch.parts, lambda part: _topic(part) == self._schema_topic):
                if is_form:
                    self._flush()
                self._hand_over(list(parts))
                if is_form:
                    self._flush()
        else:
            self._hand_over(batch.parts)
        self._check()

    def _flush(self) -> None:
        """Wait until everything so far has arrived."""
        while self._producer.flush(CALL_TIMEOUT_SECONDS):
            self._check()
            if self._is_stopping():
                raise PublishAborted("stopped while messages were on their way")
        self._check()

    def commit(self, records: Iterable[Record]) -> Iterable[str]:
        self._flush()
        self._transactions.begin()
        for key, value in records:
            self._checkpoint_producer.produce(self._checkpoint_topic, value, key)
        self._transactions.commit()
        return [self._checkpoint_topic]

    def abort(self) -> None:
        """Throw away what waits, and know what became of the rest, so that nothing of it arrives behind what comes next."""
        self._transactions.abort()
        while True:
            self._producer.purge(in_queue=True, in_flight=False)
            if not self._producer.flush(CALL_TIMEOUT_SECONDS):
                break
            if self._is_stopping():
                return
        # What has failed is published again, as everything else.
        self.failure = None

    @property
    def is_open(self) -> bool:
        return self._transactions.is_open

    def close(self) -> None:
        self._producer.purge()
        self._checkpoint_producer.purge()

    def _check(self) -> None:
        if self.failure is not None:
            raise writing_error(self.failure, f"an event can't be delivered to {self._failed_topic}")


def make_delivery(
    config: KafkaSection,
    clients: KafkaClients,
    names: TopicNames,
    complain: Complain,
    timeout_ms: int,
    is_stopping: Callable[[], bool],
    row_work_lock: AbstractContextManager[object],
) -> Delivery:
    """The one that is configured, which isn't started yet."""
    topic = names.control(topics.CHECKPOINT)
    transactional = clients.transactional(complain, timeout_ms)
    if config.delivery == "exactly_once":
        return ExactlyOnce(transactional, is_stopping, row_work_lock, topic)
    delivery: AtLeastOnce

    def report(error: KafkaError | None, message: Message) -> None:
        delivery.on_failed_delivery(error, message)

    producer = clients.idempotent(complain, report)
    delivery = AtLeastOnce(producer, transactional, is_stopping, row_work_lock, topic, names.control(topics.SCHEMA))
    return delivery


def _topics(parts: list[Part]) -> set[str]:
    if set(map(type, parts)) == {tuple}:
        return set(map(_first, parts))
    found: set[str] = set()
    for part in parts:
        if isinstance(part, tuple | Broadcast):
            found.add(_topic(part))
        else:
            found.update(part.topics())
    return found


def _topic(part: Part, within: int = 0) -> str:
    if isinstance(part, Broadcast):
        return part.topic
    return part[0] if isinstance(part, tuple) else part[within][0]


def now_ms() -> int:
    """The wall clock, for records that say when they were written."""
    return time.time_ns() // 1_000_000
