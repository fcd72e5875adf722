"""Reader of a whole control topic.

The daemon creates these topics with one partition. An operator may have created them with more, or have added some.
"""

from __future__ import annotations

from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from cdc.errors import ConnectionLostError
from cdc.kafka.errors import reading_error

_TIMEOUT_SECONDS: Final = 30.0


def newest(consumer: Consumer, topic: str) -> dict[bytes, bytes]:
    """Return the newest value of each key of an existing topic, without keys whose newest record is a tombstone.

    Consumer and errors as in `values`.
    """
    found = dict(_records(consumer, topic))
    return {key: value for key, value in found.items() if value is not None}


def values(consumer: Consumer, topic: str) -> list[bytes]:
    """Return all values of an existing topic, in the order of each partition.

    The `consumer` must be read_committed and report the ends of partitions; it is closed. Raises ConnectionLostError and
    ForbiddenError.
    """
    return [value for _, value in _records(consumer, topic) if value is not None]


def _records(consumer: Consumer, topic: str) -> list[tuple[bytes, bytes | None]]:
    found: list[tuple[bytes, bytes | None]] = []
    what = f"{topic} can't be read"
    try:
        # Without this request librdkafka looks for the partition's leader half a second later.
        missing = set(consumer.list_topics(topic, _TIMEOUT_SECONDS).topics[topic].partitions) or {0}
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in sorted(missing)])
        while missing:
            message = consumer.poll(_TIMEOUT_SECONDS)
            if message is None:
                raise ConnectionLostError(f"{what}: Kafka didn't answer for {_TIMEOUT_SECONDS:.0f} s")
            error = message.error()
            if error is None:
                found.append((message.key() or b"", message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                missing.discard(message.partition() or 0)
            elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                raise reading_error(error, what)
        return found
    except KafkaException as error:
        raise reading_error(error.args[0], what) from error
    finally:
        consumer.close()
