"""Reads the checkpoint topic, committed records only."""

from __future__ import annotations

from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from cdc.errors import ConnectionLostError
from cdc.events import topics
from cdc.kafka.errors import reading_error
from cdc.stream.checkpoint import Checkpoint, fold

READ_TIMEOUT_SECONDS: Final = 60.0


def name_of(prefix: str) -> str:
    """What the topic is called, for daemons with this kafka.topic_prefix."""
    return topics.TopicNames(prefix).control(topics.CHECKPOINT)


def read(consumer: Consumer, topic: str, name: str) -> Checkpoint:
    """Read the whole topic, as a consumer of committed records that is closed afterwards.

    Raises ConnectionLostError if Kafka stops answering for READ_TIMEOUT_SECONDS, ForbiddenError, ConfigurationError as `fold`.
    """
    checkpoint = Checkpoint()
    try:
        # Without it librdkafka looks for the partition's leader half a second later.
        consumer.list_topics(topic, READ_TIMEOUT_SECONDS)
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(READ_TIMEOUT_SECONDS)
            if message is None:
                raise ConnectionLostError(f"Kafka didn't answer for {READ_TIMEOUT_SECONDS:.0f} s while {topic} was read")
            error = message.error()
            if error is None:
                fold(name, message.key() or b"", message.value(), checkpoint)
            elif error.code() == KafkaError._PARTITION_EOF:
                return checkpoint
            elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                raise reading_error(error, f"{topic} can't be read")
    except KafkaException as error:
        raise reading_error(error.args[0], f"{topic} can't be read") from error
    finally:
        consumer.close()
