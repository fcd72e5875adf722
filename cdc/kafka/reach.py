"""Whether clients that last still reach Kafka, where a new one does.

librdkafka (since 2.10; its issue 5301) lets go of brokers that an answer about topics doesn't list, and there are answers that
list none: of a broker that has just started, and of one that Kafka's controller hasn't heard of for longer than its session.
Without any broker it wants to begin again with bootstrap.servers, but the same answer, being one, takes that back:

    librdkafka's main thread    0 brokers, 5 topics ──▶ let go of the last broker ──────────▶ an answer: no need to begin again
    the broker's thread                                              └──▶ it was the last: begin again, soon

Which of the two comes last is chance. A client that is left without brokers asks nobody and tells nothing, for ever. So who waits
for one asks here, and is told when only another client leads on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException

from cdc.errors import CdcError

LOOK_SECONDS: Final = 10.0
"""How long something is waited for until it is looked, and between two looks."""
_ANSWER_SECONDS: Final = 2.0
"""By then a client has found a broker, if there is any."""


class _Client(Protocol):
    """Of whatever kind."""

    @property
    def list_topics(self) -> Callable[..., Any]:
        """What brokers there are, and topics."""


class Reach:
    """Of clients that one thread waits for."""

    def __init__(
        self, clients: Sequence[_Client], new_client: Callable[[], _Client], topic: str, error: Callable[[str], CdcError]
    ) -> None:
        """`new_client` makes one to compare them with; all of them are asked for the `topic`. `error` is what to raise."""
        self._clients = clients
        self._new_client = new_client
        self._topic = topic
        self._error = error
        self._asked_at = self._began_at = 0.0

    def check(self) -> None:
        """To be called while something doesn't come, at least every LOOK_SECONDS. Looks so often, which may take some seconds.

        Raises the error if one of the clients finds no broker although a new one does.
        """
        now = time.monotonic()
        if now > self._asked_at + LOOK_SECONDS:
            self._began_at = now  # it is something else that doesn't come
        self._asked_at = now
        if now < self._began_at + LOOK_SECONDS:
            return
        lost = [client for client in self._clients if not self._finds_brokers(client)]
        # The brokers may have come back between the two questions, so those that found none are asked once more.
        if lost and self._has_brokers(self._new_client()) and not all(map(self._finds_brokers, lost)):
            raise self._error("Kafka's client doesn't find any broker, and a new one does")
        self._asked_at = self._began_at = time.monotonic()

    def _finds_brokers(self, client: _Client) -> bool:
        try:
            client.list_topics(self._topic, _ANSWER_SECONDS)
        except KafkaException as error:
            # One that doesn't answer, or refuses, has been found.
            return bool(error.args[0].code() != KafkaError._TRANSPORT)
        return True

    def _has_brokers(self, client: _Client) -> bool:
        try:
            return bool(client.list_topics(self._topic, _ANSWER_SECONDS).brokers)
        except KafkaException:  # whatever it is, this one can't do it either
            return False
