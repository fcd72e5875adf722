"""Check whether long-lived Kafka clients still reach Kafka while a new client does.

librdkafka (since 2.10; its issue 5301) drops brokers that a metadata response doesn't list, and some responses list none: the
response of a broker that has just started, and of a broker that hasn't reached Kafka's controller for longer than its session.
A client without any broker schedules a new bootstrap from bootstrap.servers, but the same response may cancel it:

    librdkafka's main thread    0 brokers, 5 topics ──▶ drop the last broker ──────▶ got a response: cancel the new bootstrap
    the broker's thread                                          └──▶ it was the last: schedule a new bootstrap

Which of the two comes last is chance. A client that is left without brokers sends no requests and reports nothing, forever.
Therefore code that waits for a client calls `Reach.check`, which raises an error when only a new client can reach Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException

from cdc.errors import CdcError

LOOK_SECONDS: Final = 10.0
"""Waiting time before the first check, and interval between two checks."""
_ANSWER_SECONDS: Final = 2.0
"""Time within which a client finds a broker, if one is available."""


class _Client(Protocol):
    """Kafka client of any kind."""

    @property
    def list_topics(self) -> Callable[..., Any]:
        """Request for the cluster's brokers and topics."""


class Reach:
    """Reachability check for clients that one thread waits for."""

    def __init__(
        self, clients: Sequence[_Client], new_client: Callable[[], _Client], topic: str, error: Callable[[str], CdcError]
    ) -> None:
        """Check `clients` against a client made by `new_client`; all are asked for the `topic`. `error` makes the exception."""
        self._clients = clients
        self._new_client = new_client
        self._topic = topic
        self._error = error
        self._asked_at = self._began_at = 0.0

    def check(self) -> None:
        """Check the clients once LOOK_SECONDS have passed; the check may take some seconds.

        To be called at least every LOOK_SECONDS while an answer is missing. Raises the error if one of the clients finds no
        broker although a new client does.
        """
        now = time.monotonic()
        if now > self._asked_at + LOOK_SECONDS:
            self._began_at = now  # a new wait: the previous one ended in between
        self._asked_at = now
        if now < self._began_at + LOOK_SECONDS:
            return
        lost = [client for client in self._clients if not self._finds_brokers(client)]
        # The brokers may have come back between the two requests, so the clients that found none are asked once more.
        if lost and self._has_brokers(self._new_client()) and not all(map(self._finds_brokers, lost)):
            raise self._error("Kafka's client doesn't find any broker, and a new one does")
        self._asked_at = self._began_at = time.monotonic()

    def _finds_brokers(self, client: _Client) -> bool:
        try:
            client.list_topics(self._topic, _ANSWER_SECONDS)
        except KafkaException as error:
            # A broker that doesn't answer, or refuses the request, was found.
            return bool(error.args[0].code() != KafkaError._TRANSPORT)
        return True

    def _has_brokers(self, client: _Client) -> bool:
        try:
            return bool(client.list_topics(self._topic, _ANSWER_SECONDS).brokers)
        except KafkaException:  # the new client can't reach Kafka either
            return False
