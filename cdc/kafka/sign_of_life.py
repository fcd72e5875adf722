"""Signs of life on the checkpoint topic: a daemon writes them, and another daemon listens for them before it claims the name.

A sign of life is a record outside all transactions, written by a producer and a thread of its own. So signs are also written
while a large transaction is being published, while there is nothing to publish, and while Tarantool is unavailable. They stop
when the process ends.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import structlog
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, Message, TopicPartition

from cdc.errors import ConnectionLostError
from cdc.kafka.clients import FOLLOWING_END_WAIT_MS, KafkaClients
from cdc.kafka.reach import Reach
from cdc.stream.commits.checkpoint import Sign, sign_record
from cdc.stream.commits.ownership import SIGN_SECONDS, Listening

_FLUSH_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.1
"""Time after which a partition that brings nothing is asked for its end: by so much a silence is noticed later."""
_QUERY_SECONDS: Final = 1.0
_FETCH_SECONDS: Final = 1.0
"""Time within which a record that the leader has is fetched, if Kafka is well."""

_T = TypeVar("_T")


class SignOfLife:
    """Periodic writer of signs of life, from `start` until `close`."""

    def __init__(self, clients: KafkaClients, topic: str, name: str, writer: str) -> None:
        self._clients = clients
        self._topic = topic
        self._name = name
        self._writer = writer
        self._is_stopping = threading.Event()
        self._begin()
        self._thread = threading.Thread(target=self._run, name="sign of life", daemon=True)

    def start(self) -> None:
        """Begin to write signs of life, once the name has been claimed."""
        self._thread.start()

    def close(self, *, is_clean: bool) -> None:
        """Stop writing signs, as the process ends.

        If everything is committed (`is_clean`), a last sign says so, and another daemon needn't wait for silence.
        """
        self._is_stopping.set()
        self._thread.join()
        if is_clean:
            self._write_sign(is_last=True)
            self._producer.flush(_FLUSH_SECONDS)
        self._producer.purge()

    def _run(self) -> None:
        while True:
            self._write_sign()
            self._producer.poll(0)
            if not self._has_arrived:
                self._replace_unreachable_producer()
            if self._is_stopping.wait(SIGN_SECONDS):
                return

    def _begin(self) -> None:
        producer = self._producer = self._clients.best_effort_producer()
        self._reach = Reach([producer], self._clients.admin, self._topic, ConnectionLostError)
        # Whether the latest sign with a delivery report has arrived.
        self._has_arrived = True

    def _replace_unreachable_producer(self) -> None:
        """Replace the producer if it can't reach Kafka but a new client can. Called when the last sign didn't arrive."""
        try:
            self._reach.check()
        except ConnectionLostError as error:
            structlog.get_logger().info("signs of life are sent by a new producer", name=self._name, reason=error.message)
            self._producer.purge()
            self._begin()

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        self._has_arrived = error is None

    def _write_sign(self, *, is_last: bool = False) -> None:
        sign = Sign(self._writer, socket.gethostname(), os.getpid(), time.time_ns() // 1_000_000, is_last)
        key, value = sign_record(self._name, sign)
        try:
            self._producer.produce(self._topic, value, key, on_delivery=self._on_delivery)
        except (BufferError, KafkaException) as error:
            # Events go to the same brokers, and their errors are reported.
            structlog.get_logger().debug("a sign of life couldn't be sent", name=self._name, reason=str(error))


class Evidence(Protocol):
    """What is made of what arrives on the checkpoint topic. Times are of this process's monotonic clock, in seconds."""

    def record_sign(self, sign: Sign, now: float) -> None:
        """Record a sign of life; a position counts as one, without a host."""

    def record_quiet(self, now: float) -> None:
        """Record that the partition's leader has nothing more."""

    def record_outage(self, now: float) -> None:
        """Record that Kafka doesn't answer."""

    def is_decided(self, now: float) -> bool:
        """Return whether enough is known."""


def observe(clients: KafkaClients, topic: str, name: str, is_stopping: Callable[[], bool], evidence: Evidence) -> None:
    """Listen to the daemon of this name until the evidence is decided, or a stop is requested. Waits while Kafka doesn't answer.

    Raises ConnectionLostError if only a new client is of use: this function's can't reach Kafka and a new one can, or the topic
    was made again.
    """
    consumer = clients.consumer("read_uncommitted", end_wait_ms=FOLLOWING_END_WAIT_MS)
    reach = Reach([consumer], clients.admin, topic, ConnectionLostError)
    place = TopicPartition(topic, 0, OFFSET_END)
    read_to = -1
    behind_since: float | None = None
    try:
        # Without this request librdkafka looks for the partition's leader half a second later.
        _answers(lambda: consumer.list_topics(topic, _QUERY_SECONDS))
        consumer.assign([place])
        while not is_stopping() and (behind_since is not None or not evidence.is_decided(time.monotonic())):
            message = consumer.poll(_POLL_SECONDS)
            now = time.monotonic()
            if message is None:
                # Silence counts only while the partition's leader confirms that there are no further records. One that has just
                # been written, by any daemon of the topic, comes a moment later: nothing is decided before, but it's no outage.
                end = _answers(lambda: consumer.get_watermark_offsets(place, timeout=_QUERY_SECONDS))
                if end is not None and read_to > end[1]:
                    # Its end isn't that of what was read, so nothing that comes there may ever be noticed by this client.
                    raise ConnectionLostError(f"{topic} is shorter than what was read of it: it was deleted and made again")
                if end is not None and read_to == end[1]:
                    behind_since = None
                    evidence.record_quiet(now)
                    continue
                behind_since = now if behind_since is None else behind_since
                if end is None or now - behind_since >= _FETCH_SECONDS:
                    evidence.record_outage(now)
                    reach.check()
                continue
            behind_since = None
            if (error := message.error()) is None:
                read_to = (message.offset() or 0) + 1
                found = _sign_in(name, message.key() or b"", message.value())
                if found is not None:
                    evidence.record_sign(found, now)
            elif error.code() == KafkaError._PARTITION_EOF:
                read_to = message.offset() or 0
            else:
                evidence.record_outage(now)
    finally:
        consumer.close()


class _Presence:
    """Evidence of whether a daemon is running, apart from the process with the id `apart_from`."""

    def __init__(self, now: float, apart_from: str | None) -> None:
        self._listening = Listening(now)
        self._apart_from = apart_from
        self._latest = Sign("", "", 0, 0)

    @property
    def found(self) -> Sign | None:
        """The daemon's last sign; None if it isn't known to run."""
        return self._latest if self._listening.is_running else None

    def record_sign(self, sign: Sign, now: float) -> None:
        if sign.is_last or sign.writer == self._apart_from:
            return
        if sign.host:
            self._latest = sign
        self._listening.record_sign(now)

    def record_quiet(self, now: float) -> None:
        """Nothing to do: a silence counts from the last sign, or the last outage."""

    def record_outage(self, now: float) -> None:
        self._listening.record_outage(now)

    def is_decided(self, now: float) -> bool:
        return self._listening.is_running or self._listening.is_gone(now)


def listen(
    clients: KafkaClients, topic: str, name: str, is_stopping: Callable[[], bool], *, apart_from: str | None = None
) -> Sign | None:
    """Listen until it is clear whether a daemon of this name is running, apart from the process with the id `apart_from`.

    Returns the daemon's last sign of life, or None if no daemon runs or a stop was requested. Raises as `observe`.
    """
    presence = _Presence(time.monotonic(), apart_from)
    observe(clients, topic, name, is_stopping, presence)
    return presence.found


def _answers(question: Callable[[], _T]) -> _T | None:
    try:
        return question()
    except KafkaException:
        return None


def _sign_in(name: str, key: bytes, value: bytes | None) -> Sign | None:
    """Return the sign of life in a record. A position that the daemon wrote counts as one, too. None for other records."""
    try:
        identity, content = json.loads(key), json.loads(value or b"null")
        if identity == {"name": "", "alive": name} and content is not None:
            return Sign(content["writer"], content["host"], content["process_id"], content["ts_ms"], content["is_last"])
        if identity == {"name": name} and content is not None:
            return Sign(content["writer"], "", 0, content["ts_ms"])
    except (ValueError, KeyError, TypeError):
        pass  # reading the checkpoint reports what is wrong with the record
    return None
