"""Thread that listens to the daemon that has the name, for a standby (cdc.stream.commits.standby)."""

from __future__ import annotations

import threading
import time
from typing import Final

import structlog
from confluent_kafka import KafkaException

from cdc.errors import CdcError, ConnectionLostError
from cdc.kafka.clients import KafkaClients
from cdc.kafka.sign_of_life import observe
from cdc.kafka.topic_admin import lost_checkpoint
from cdc.stream.commits.checkpoint import Sign
from cdc.stream.commits.standby import Vigil

_LOOK_SECONDS: Final = 5.0
"""Interval, in seconds, at which an outage's reason is looked for."""
_ANSWER_SECONDS: Final = 2.0


class LifeWatch:
    """Listener to the signs of life of one daemon, from `start` until `close`. It has a thread, as asking Kafka may wait."""

    def __init__(self, clients: KafkaClients, topic: str, name: str, vigil: Vigil) -> None:
        self._clients = clients
        self._topic = topic
        self._name = name
        self._vigil = vigil
        self._is_stopping = threading.Event()
        self._failure: Exception | None = None
        self._looked_at: float | None = None
        self.outage: CdcError | None = None
        """Why nobody can be heard, while that is so and a reason is known."""
        self._thread = threading.Thread(target=self._run, name="life watch", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._is_stopping.set()
        self._thread.join()

    def check(self) -> None:
        """Raise the error that has ended the listening, if one has: without it no silence would ever be noticed."""
        if self._failure is not None:
            raise self._failure

    def record_sign(self, sign: Sign, now: float) -> None:
        """See `Evidence.record_sign`."""
        self.outage = None
        self._vigil.record_sign(sign, now)

    def record_quiet(self, now: float) -> None:
        """See `Evidence.record_quiet`."""
        self.outage = None
        self._vigil.record_quiet(now)

    def record_outage(self, now: float) -> None:
        """See `Evidence.record_outage`."""
        self._vigil.record_outage(now)
        if self._looked_at is None or now - self._looked_at >= _LOOK_SECONDS:
            self.outage, self._looked_at = self._reason(), now

    def is_decided(self, now: float) -> bool:  # noqa: ARG002 - it goes on as long as the standby waits
        """See `Evidence.is_decided`."""
        return False

    def _reason(self) -> CdcError | None:
        try:
            found = self._clients.admin().list_topics(self._topic, _ANSWER_SECONDS).topics.get(self._topic)
        except KafkaException as error:
            return ConnectionLostError(f"Kafka doesn't answer: {error.args[0].str()}")
        return None if found is not None and found.partitions else lost_checkpoint(self._topic)

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                observe(self._clients, self._topic, self._name, self._is_stopping.is_set, self)
            except ConnectionLostError as error:
                self._vigil.record_outage(time.monotonic())
                structlog.get_logger().info("listening with a new client", name=self._name, reason=error.message)
            except Exception as error:  # noqa: BLE001 - raised by `check`, in the thread that waits
                self._failure = error
                return
