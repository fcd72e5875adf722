"""Delivery of batches to Kafka: two modes with one interface.

exactly_once: one transactional producer writes events and checkpoint in the same transaction. A read_committed consumer sees
only complete source transactions, and each event once. A restart resumes from the last committed checkpoint.

at_least_once: an idempotent producer writes the events, which are visible immediately. Once all of them are acknowledged, a
second, small transactional producer writes the checkpoint. A restart publishes the complete transactions after the checkpoint
again. Owing to the second producer, both modes read the checkpoint in the same way, and in both a second daemon of the same
name fences the first. A space's new form on the schema topic becomes visible after all events before it and before all events
after it. Otherwise a consumer that has applied the form would misread an earlier event that arrives late.

No callback runs per message. In a transaction, the commit confirms all its messages. Outside a transaction, only failures are
reported, and a completed flush confirms that all earlier messages have arrived.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.config import KafkaSection
from cdc.errors import ConnectionLostError, PublishAborted, PublishError
from cdc.events import topics
from cdc.events.topics import TopicNames
from cdc.kafka.clients import Complain, KafkaClients
from cdc.kafka.errors import FENCED, NAME_HINT, FencedError, ProducerLostError, operator_error, writing_error
from cdc.kafka.hanging import FILLER_KEY, Place
from cdc.kafka.reach import Reach
from cdc.kafka.sender import CALL_TIMEOUT_SECONDS, Sender
from cdc.stream.batches.batch import Batch, Broadcast, Part

INIT_TIMEOUT_SECONDS: Final = 10.0

Record = tuple[bytes, bytes | None]

_first: Final[Callable[[Any], str]] = itemgetter(0)
"""Function that returns the topic of a message other than a broadcast, without a Python call per message."""


class Delivery(Protocol):
    """Interface that writes batches to Kafka in order. Not thread-safe: one thread owns it."""

    def start(self) -> None:
        """Claim the transactional id, which fences an earlier daemon of the same name.

        Raises ConnectionLostError while Kafka is unavailable, and PublishError if a retry can't help.
        """

    def end_hanging(self, partitions: Iterable[Place], *, commit: bool) -> None:
        """Commit or abort the hanging transaction in these partitions (see cdc.kafka.hanging).

        To be called while no transaction is open. Raises PublishAborted or PublishError.
        """

    def produce(self, batch: Batch) -> None:
        """Pass a batch's messages to the producer, in order."""

    def arrived(self) -> Collection[str]:
        """Wait until all messages of the open Kafka transaction have arrived; return the topics that they are in.

        Raises PublishAborted or PublishError.
        """

    def commit(self, records: Iterable[Record]) -> Iterable[str]:
        """Make all events so far, and the checkpoint's `records`, durable. Raises PublishAborted or PublishError.

        Returns the topics that the Kafka transaction wrote to.
        """

    def abort(self) -> None:
        """Discard all uncommitted messages. Raises PublishAborted or PublishError if Kafka doesn't take the abort."""

    @property
    def is_open(self) -> bool:
        """Whether a transaction may be open, as far as Kafka's answers say."""

    def close(self) -> None:
        """Discard all messages that aren't delivered yet."""


class _Transactions:
    """Life cycle of a transactional producer, with librdkafka's errors classified by who must act."""

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
        """Return the error that broke the transaction, if a message was refused only because the transaction is broken.

        In that state librdkafka also refuses to begin a transaction, and that refusal names the original error.
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
        # Messages that are still in the producer's queue when a transaction is aborted never reach their partitions.
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
        """Repeat a call as long as librdkafka reports its error as retriable."""
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


class ExactlyOnce:
    """Delivery of events and checkpoint in one transaction."""

    def __init__(
        self,
        producer: Producer,
        is_stopping: Callable[[], bool],
        row_work_lock: AbstractContextManager[object],
        topic: str,
    ) -> None:
        self._producer = producer
        self._transactions = _Transactions(producer, is_stopping)
        self._sender = Sender(producer, is_stopping, row_work_lock, first_error=self._transactions.first_error)
        self._checkpoint_topic = topic
        # Topics that the open transaction wrote to.
        self._written: set[str] = set()

    def start(self) -> None:
        self._transactions.start()

    def end_hanging(self, partitions: Iterable[Place], *, commit: bool) -> None:
        self._transactions.end_hanging(partitions, commit=commit)

    def produce(self, batch: Batch) -> None:
        self._transactions.begin()
        topics = _topics(batch.parts)
        self._written |= topics
        self._sender.send(batch.parts, topics)

    def arrived(self) -> Collection[str]:
        self._sender.flush()
        return set(self._written)

    def commit(self, records: Iterable[Record]) -> Iterable[str]:
        self._transactions.begin()
        self._sender.send([(self._checkpoint_topic, key, value) for key, value in records], {self._checkpoint_topic})
        self._transactions.commit()
        written, self._written = self._written, set()
        return written | {self._checkpoint_topic}

    def abort(self) -> None:
        self._sender.invalidate()
        self._transactions.abort()
        self._written.clear()

    @property
    def is_open(self) -> bool:
        return self._transactions.is_open

    def close(self) -> None:
        # The messages of an open transaction will never be committed.
        self._producer.purge()


class AtLeastOnce:
    """Delivery of events outside transactions, with the checkpoint committed after them."""

    def __init__(
        self,
        producer: Producer,
        checkpoint_producer: Producer,
        is_stopping: Callable[[], bool],
        row_work_lock: AbstractContextManager[object],
        topic: str,
        schema_topic: str,
    ) -> None:
        self._producer = producer
        self._is_stopping = is_stopping
        self._sender = Sender(producer, is_stopping, row_work_lock, check=self._check)
        self._schema_topic = schema_topic
        self._checkpoint_producer = checkpoint_producer
        self._transactions = _Transactions(checkpoint_producer, is_stopping)
        first_error = self._transactions.first_error
        self._checkpoint_sender = Sender(checkpoint_producer, is_stopping, row_work_lock, first_error=first_error)
        self._checkpoint_topic = topic
        # The first failed delivery since the start or the last abort. No later message may be settled.
        self.failure: KafkaError | None = None
        # The topic of the message that failed.
        self._failed_topic: str | None = None

    def on_failed_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Record a delivery report of librdkafka. With delivery.report.only.error, only failures are reported."""
        if error is not None and self.failure is None:
            self.failure = error
            self._failed_topic = message.topic()

    def start(self) -> None:
        self._transactions.start()

    def end_hanging(self, partitions: Iterable[Place], *, commit: bool) -> None:
        self._transactions.end_hanging(partitions, commit=commit)

    def produce(self, batch: Batch) -> None:
        if batch.stored:  # other batches have no new forms
            for is_form, parts in itertools.groupby(batch.parts, lambda part: _topic(part) == self._schema_topic):
                if is_form:
                    self._sender.flush()
                self._send(list(parts))
                if is_form:
                    self._sender.flush()
        else:
            self._send(batch.parts)
        self._check()

    def _send(self, parts: list[Part]) -> None:
        self._sender.send(parts, _topics(parts))

    def arrived(self) -> Collection[str]:
        return ()

    def commit(self, records: Iterable[Record]) -> Iterable[str]:
        self._sender.flush()
        self._transactions.begin()
        self._checkpoint_sender.send([(self._checkpoint_topic, key, value) for key, value in records], {self._checkpoint_topic})
        self._transactions.commit()
        return [self._checkpoint_topic]

    def abort(self) -> None:
        """Discard the queued messages, and wait for the result of those in transit, so that none arrives after later messages."""
        self._sender.invalidate()
        self._checkpoint_sender.invalidate()
        self._transactions.abort()
        while True:
            self._producer.purge(in_queue=True, in_flight=False)
            if not self._producer.flush(CALL_TIMEOUT_SECONDS):
                break
            if self._is_stopping():
                return
        # The failed message is published again with all other unsettled messages.
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
    """Return the configured delivery, not started yet.

    While waiting for Kafka it may also raise ProducerLostError, if only a new client can reach Kafka (cdc.kafka.reach).
    """
    topic = names.control(topics.CHECKPOINT)
    transactional = clients.transactional(complain, timeout_ms)
    producers = [transactional]
    reach = Reach(producers, clients.admin, topic, ProducerLostError)

    def is_over() -> bool:
        if is_stopping():
            return True
        reach.check()
        return False

    if config.delivery == "exactly_once":
        return ExactlyOnce(transactional, is_over, row_work_lock, topic)
    delivery: AtLeastOnce

    def report(error: KafkaError | None, message: Message) -> None:
        delivery.on_failed_delivery(error, message)

    producer = clients.idempotent(complain, report)
    producers.append(producer)
    delivery = AtLeastOnce(producer, transactional, is_over, row_work_lock, topic, names.control(topics.SCHEMA))
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


def _topic(part: Part) -> str:
    if isinstance(part, Broadcast):
        return part.topic
    return part[0] if isinstance(part, tuple) else part[0][0]


def now_ms() -> int:
    """Return the wall-clock time in milliseconds since the epoch, for records that say when they were written."""
    return time.time_ns() // 1_000_000
