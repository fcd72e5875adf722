"""Limits that the brokers report: how long a transaction may stay open, and how large a message may be.

Reading them needs DESCRIBE_CONFIGS on the cluster, which nothing else in the daemon needs. Without that right the limits stay
unknown, and the daemon assumes Kafka's own defaults.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]  # it is documented

from cdc.errors import PublishError

ASK_SECONDS: Final = 3.0
"""Time limit for the answers of all brokers together, so that a frozen broker can't keep the daemon from starting."""

_TRANSACTION_TIMEOUT: Final = "transaction.max.timeout.ms"
_REQUEST_BYTES: Final = "socket.request.max.bytes"


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """Lowest value that any broker reported for each limit; None if no broker reported it."""

    transaction_timeout_ms: int | None = None
    request_bytes: int | None = None

    def check(self, message_bytes_max: int) -> None:
        """Raise PublishError if the configured maximum message size exceeds the brokers' request size limit."""
        if self.request_bytes is not None and message_bytes_max > self.request_bytes:
            raise PublishError(
                f"kafka.message_bytes_max is {message_bytes_max}, and a broker closes the connection at a request of more than "
                f"{self.request_bytes} bytes",
                "Lower kafka.message_bytes_max, or raise socket.request.max.bytes on all brokers.",
            )


def broker_limits(admin: AdminClient) -> BrokerLimits:
    """Read the limits of all brokers. Brokers that don't answer in time, or refuse to answer, are left out."""
    deadline = time.monotonic() + ASK_SECONDS
    asked: list[Future[dict[str, Any]]] = []
    found: dict[str, list[int]] = {_TRANSACTION_TIMEOUT: [], _REQUEST_BYTES: []}
    try:
        for number in admin.list_topics(timeout=ASK_SECONDS).brokers:
            broker = ConfigResource(ConfigResource.Type.BROKER, str(number))
            asked += admin.describe_configs([broker], request_timeout=ASK_SECONDS).values()
    except KafkaException:
        return BrokerLimits()
    for answer in asked:
        try:
            entries = answer.result(max(0.0, deadline - time.monotonic()))
        except (KafkaException, TimeoutError):
            continue
        for name, values in found.items():
            if name in entries and entries[name].value is not None:
                values.append(int(entries[name].value))
    return BrokerLimits(*(min(values, default=None) for values in found.values()))
