"""What the brokers allow at most, as far as they tell: it decides how long a transaction may be open and how large a message.

Asking needs DESCRIBE_CONFIGS on the cluster, which nothing else here needs. Whoever may not ask learns nothing, and goes by
Kafka's own defaults.
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
"""For all brokers together: one that is frozen must not keep the daemon from starting."""

_TRANSACTION_TIMEOUT: Final = "transaction.max.timeout.ms"
_REQUEST_BYTES: Final = "socket.request.max.bytes"


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """The least that any broker allows; None where none has told."""

    transaction_timeout_ms: int | None = None
    request_bytes: int | None = None

    def check(self, message_bytes_max: int) -> None:
        """Raises PublishError if a message may be larger than the brokers take."""
        if self.request_bytes is not None and message_bytes_max > self.request_bytes:
            raise PublishError(
                f"kafka.message_bytes_max is {message_bytes_max}, and a broker hangs up on a request of more than "
                f"{self.request_bytes} bytes",
                "Lower kafka.message_bytes_max, or raise socket.request.max.bytes on all brokers.",
            )


def broker_limits(admin: AdminClient) -> BrokerLimits:
    """Ask all brokers. A broker that doesn't answer in time, or may not be asked, tells nothing."""
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
