"""Smaller batches for topics that accept only small ones.

Kafka applies a topic's max.message.bytes to whole batches. librdkafka has one batch size for all topics, and doesn't divide a
batch that was refused. The daemon creates topics that accept its batches, but an operator may have set less. Then every row may
be far below the limit, and the batches aren't. So after a refusal a new producer sends smaller batches: as small as the limits of
the topics demand, or a quarter if the daemon may not read them (DESCRIBE_CONFIGS). Only if the batches were small enough already,
a single message is too large.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from confluent_kafka import KafkaException

from cdc.errors import CdcError
from cdc.kafka import topic_settings
from cdc.kafka.clients import Admin
from cdc.kafka.errors import ProducerLostError, TooLargeError
from cdc.stream.commits.publisher_statistics import PublisherStatistics

_SMALLEST_BYTES: Final = 16 * 1024
"""Batch size below which a refusal is taken to concern a single message, if the topics' limits are unknown."""


def smaller(bytes_max: int, limits: Iterable[int]) -> int | None:
    """Return the batch size to try after a batch of up to `bytes_max` was refused; None if smaller batches can't help.

    `limits` are those of the topics, as far as known. A tenth remains for the batch's head, and for data that doesn't compress.
    """
    lowest = min(limits, default=None)
    if lowest is None:
        return bytes_max // 4 if bytes_max > _SMALLEST_BYTES else None
    fitting = max(lowest * 9 // 10, 1)
    return fitting if fitting < bytes_max else None


def after_refusal(error: CdcError, admin: Admin, topics: Iterable[str], statistics: PublisherStatistics) -> CdcError:
    """Return the error with which the publisher ends after `error`, given the topics that it writes to.

    If a batch was too large, it asks for a new producer, whose batches are smaller according to `statistics`, or it is final and
    names the topics' limits. Other errors are returned unchanged.
    """
    if not isinstance(error, TooLargeError):
        return error
    limits = _limits(admin, topics)
    fitting = smaller(statistics.batch_bytes_max, limits.values())
    if fitting is None:
        low = sorted((limit, topic) for topic, limit in limits.items() if limit == min(limits.values()))
        if low:
            error.message = f"{error.message}; the lowest max.message.bytes is {low[0][0]}, of the topic {low[0][1]}"
        return error
    statistics.batch_bytes_max = fitting
    return ProducerLostError(f"{error.message}: a topic refused a batch, so batches have at most {fitting} bytes from now on")


def _limits(admin: Admin, topics: Iterable[str]) -> dict[str, int]:
    try:
        found: Mapping[str, topic_settings.Settings] = topic_settings.read(admin, sorted(topics))
    except KafkaException:
        return {}
    name = topic_settings.MESSAGE_BYTES
    return {topic: int(settings[name].value) for topic, settings in found.items() if name in settings}
