"""Thread that listens to the daemon that has the name, for a standby (cdc.stream.commits.standby)."""

from __future__ import annotations

import threading
import time

import structlog

from cdc.errors import ConnectionLostError
from cdc.kafka.clients import KafkaClients
from cdc.kafka.sign_of_life import observe
from cdc.stream.commits.checkpoint import Sign
from cdc.stream.commits.standby import Vigil


class LifeWatch:
    """Listener to the signs of life of one daemon, from `start` until `close`. It has a thread, as asking Kafka may wait."""

    def __init__(self, clients: KafkaClients, topic: str, name: str, vigil: Vigil) -> None:
        self._clients = clients
        self._topic = topic
        self._name = name
        self._vigil = vigil
        self._is_stopping = threading.Event()
        self._failure: Exception | None = None
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
        self._vigil.record_sign(sign, now)

    def record_quiet(self, now: float) -> None:
        """See `Evidence.record_quiet`."""
        self._vigil.record_quiet(now)

    def record_outage(self, now: float) -> None:
        """See `Evidence.record_outage`."""
        self._vigil.record_outage(now)

    def is_decided(self, now: float) -> bool:  # noqa: ARG002 - it goes on as long as the standby waits
        """See `Evidence.is_decided`."""
        return False

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
