"""Reader of the signal topic, in a thread of its own: records become orders for the daemon's thread.

    where was it? (the checkpoint) ─▶ the topic, its id and its ends ─▶ read on ─▶ orders, each with the place after it
                                          ▲                               │ deleted, out of range, no broker, no right
                                          └───────── later ◀──────────────┘

The offsets are in the daemon's checkpoint, written in one commit with what a signal changes, and not in a consumer group: the
offset of a group would be committed before or after that, and a crash in between would lose a signal, or carry it out twice.
Nothing that happens here ends the daemon, or holds up its rows: while the topic can't be read, /status says why, and the reader
tries again.
"""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.config import KafkaSection
from cdc.errors import CdcError, ConnectionLostError
from cdc.events import topics
from cdc.kafka.clients import Admin, KafkaClients
from cdc.kafka.errors import reading_error
from cdc.kafka.names import names_of
from cdc.kafka.reach import Reach
from cdc.kafka.topic_admin import TopicAdmin, refusal_by_name
from cdc.kafka.topic_ids import topic_ids
from cdc.positions.requests import SignalPlace
from cdc.stream.snapshots.orders import Received, begin_at, received

_POLL_SECONDS: Final = 0.5
_ANSWER_SECONDS: Final = 10.0
_CLOSE_SECONDS: Final = 3.0
_AGAIN_SECONDS: Final = 5.0
"""Pause before the topic is opened again."""
_LOOK_SECONDS: Final = 5.0
"""Interval at which the topic's id is asked for."""
_PASSING: Final = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE})
"""Errors after which the consumer goes on by itself."""


class Inbox(Protocol):
    """Receiver of the orders."""

    def place(self, timeout_seconds: float) -> tuple[SignalPlace | None] | None:
        """Return the place up to which signals were taken, None in the tuple if never; None while that isn't known."""

    def offer(self, received: Received, timeout_seconds: float) -> bool:
        """Take an order, and return whether there was room for it within the time."""

    def report_trouble(self, reason: str | None) -> None:
        """Take note of why the topic can't be read now; None if it can."""


class SignalReader:
    """Reader of one daemon's signals, from `start` until `close`."""

    def __init__(self, config: KafkaSection, clients: KafkaClients, inbox: Inbox) -> None:
        self._config = config
        self._clients = clients
        self._inbox = inbox
        self._topic = names_of(config).control(topics.SIGNAL)
        self._is_stopping = threading.Event()
        self._topic_admin: TopicAdmin | None = None
        self._log = structlog.get_logger()
        self._trouble: str | None = None
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)

    def start(self) -> None:
        """Begin to read as soon as the place in the checkpoint is known."""
        self._thread.start()

    def close(self) -> None:
        """Stop reading. A request to brokers that don't answer isn't waited for."""
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        found = None
        while found is None and not self._is_stopping.is_set():
            found = self._inbox.place(_POLL_SECONDS)
        place = found[0] if found is not None else None
        while not self._is_stopping.is_set():
            try:
                place = self._opened(place)
            except (CdcError, KafkaException) as error:
                self._report(error.args[0].str() if isinstance(error, KafkaException) else str(error))
            else:
                place = self._read_from(place)
            self._is_stopping.wait(_AGAIN_SECONDS)

    def _opened(self, place: SignalPlace | None) -> SignalPlace:
        """Make sure that the topic is there, and return the place to read it from, which the checkpoint will have, too.

        Raises KafkaException, and the errors of TopicAdmin.ensure.
        """
        if self._topic_admin is None:
            self._topic_admin = TopicAdmin(self._config, self._clients.admin, self._is_stopping)
        self._topic_admin.invalidate()
        self._topic_admin.ensure([self._topic])
        topic_id = topic_ids(self._clients.admin(), [self._topic]).get(self._topic)
        if topic_id is None:
            raise ConnectionLostError(f"Kafka doesn't describe the topic {self._topic}")
        consumer = self._clients.tail()
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=_ANSWER_SECONDS)
        finally:
            consumer.close()
        begin, warning = begin_at(place, topic_id, (low, high), time.time_ns() // 1_000_000)
        if warning:
            self._log.warning(warning, topic=self._topic, offset=begin.offset)
        if begin != place:
            self._deliver(Received(None, begin))
        return begin

    def _trouble_with_partitions(self, consumer: Consumer) -> str | None:
        """Return what to say if signals may be where nobody reads them: somebody may add partitions at any time."""
        count = len(consumer.list_topics(self._topic, _ANSWER_SECONDS).topics[self._topic].partitions)
        if count <= 1:
            return None
        return (
            f"the signal topic {self._topic} has {count} partitions, and the daemon reads only the first, number 0: delete the "
            "topic, and create it with one partition"
        )

    def _read_from(self, place: SignalPlace) -> SignalPlace:
        """Read signals until the daemon stops, or the topic has to be opened again; return the place after the last one."""
        consumer, admin = self._clients.tail(), self._clients.admin()
        reach = Reach([consumer], self._clients.admin, self._topic, ConnectionLostError)
        look_at = time.monotonic() + _LOOK_SECONDS
        try:
            consumer.assign([TopicPartition(self._topic, 0, place.offset)])
            self._report(self._trouble_with_partitions(consumer))
            self._log.info("signals are read", topic=self._topic, offset=place.offset)
            while not self._is_stopping.is_set():
                message = consumer.poll(_POLL_SECONDS)
                error = message.error() if message is not None else None
                if error is not None and error.code() not in _PASSING:
                    raise reading_error(error, f"{self._topic} can't be read")
                if time.monotonic() > look_at:
                    self._check_topic(admin, place.topic_id)
                    self._report(self._trouble_with_partitions(consumer))
                    look_at = time.monotonic() + _LOOK_SECONDS
                if message is None or error is not None:
                    reach.check()
                    continue
                found = self._order_in(place, message)
                if not self._deliver(found):
                    break
                assert found.place is not None
                place = found.place
        except (CdcError, KafkaException) as error:
            self._report(error.args[0].str() if isinstance(error, KafkaException) else str(error))
        finally:
            consumer.close()
        return place

    def _check_topic(self, admin: Admin, topic_id: str) -> None:
        """Raise ConnectionLostError if the topic was deleted, or made anew: the consumer waits for the former one for ever."""
        found = topic_ids(admin, [self._topic]).get(self._topic)
        refusal = refusal_by_name(admin, self._topic) if found is None else None
        is_gone = refusal is not None and refusal.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        if is_gone or (found is not None and found != topic_id):
            raise ConnectionLostError(f"Kafka doesn't have the topic {self._topic} any more, or another one of this name")

    def _order_in(self, place: SignalPlace, message: Message) -> Received:
        _, ts_ms = message.timestamp()
        return received(self._config.topic_prefix, place, message.offset() or 0, ts_ms, (message.key(), message.value()))

    def _deliver(self, found: Received) -> bool:
        """Give an order to the daemon's thread, when that has room; return False if the daemon stops before."""
        while not self._is_stopping.is_set():
            if self._inbox.offer(found, _POLL_SECONDS):
                return True
        return False

    def _report(self, reason: str | None) -> None:
        if reason == self._trouble:
            return
        self._trouble = reason
        self._inbox.report_trouble(reason)
        if reason is not None:
            self._log.warning("signals can't be read", topic=self._topic, reason=reason)
