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
from cdc.kafka.clients import Complain, KafkaClients
from cdc.kafka.errors import FENCED, NAME_HINT, FencedError, ProducerLostError, operator_error, writing_error
from cdc.kafka.hanging import FILLER_KEY, Place
from cdc.kafka.reach import Reach
from cdc.kafka.sender import CALL_TIMEOUT_SECONDS, Sender
from cdc.stream.batch import Batch, Broadcast, Part

INIT_TIMEOUT_SECONDS: Final = 10.0

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


class ExactlyOnce:
    """Events and checkpoint in one transaction."""

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
        # Topics that the open transaction has written to.
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

    def commit(self, records: Iterable[Record]) -> Iterable[str]:
        self._transactions.begin()
        self._sender.send([(self._checkpoint_topic, key, value) for key, value in records], {self._checkpoint_topic})
        self._transactions.commit()
        written, self._written = self._written, set()
        return written | {self._checkpoint_topic}

    def abort(self) -> None:
        self._sender.forget()
        self._transactions.abort()
        self._written.clear()

    @property
    def is_open(self) -> bool:
        return self._transactions.is_open

    def close(self) -> None:
        # Messages of an open transaction are of no use to anybody.
        self._producer.purge()


class AtLeastOnce:
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
        self._producer = producer
        self._is_stopping = is_stopping
        self._sender = Sender(producer, is_stopping, row_work_lock, check=self._check)
        self._schema_topic = schema_topic
        self._checkpoint_producer = checkpoint_producer
        self._transactions = _Transactions(checkpoint_producer, is_stopping)
        first_error = self._transactions.first_error
        self._checkpoint_sender = Sender(checkpoint_producer, is_stopping, row_work_lock, first_error=first_error)
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
                    self._sender.flush()
                self._send(list(parts))
                if is_form:
                    self._sender.flush()
        else:
            self._send(batch.parts)
        self._check()

    def _send(self, parts: list[Part]) -> None:
        self._sender.send(parts, _topics(parts))

    def commit(self, records: Iterable[Record]) -> Iterable[str]:
        self._sender.flush()
        self._transactions.begin()
        self._checkpoint_sender.send([(self._checkpoint_topic, key, value) for key, value in records], {self._checkpoint_topic})
        self._transactions.commit()
        return [self._checkpoint_topic]

    def abort(self) -> None:
        """Throw away what waits, and know what became of the rest, so that nothing of it arrives behind what comes next."""
        self._sender.forget()
        self._checkpoint_sender.forget()
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
    """The one that is configured, which isn't started yet. While it waits it also raises ProducerLostError (cdc.kafka.reach)."""
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
    """The wall clock, for records that say when they were written."""
    return time.time_ns() // 1_000_000
