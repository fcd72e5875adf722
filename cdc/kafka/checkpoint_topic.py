"""Reader of the checkpoint topic's committed records."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from cdc.errors import ConfigurationError, ConnectionLostError
from cdc.events import topics
from cdc.events.json_values import encode
from cdc.kafka.errors import reading_error
from cdc.stream.commits.checkpoint import Checkpoint, fold

READ_TIMEOUT_SECONDS: Final = 60.0
_NULL: Final = "NULL"
"""Text that represents a null value in the console producer's input."""


def name_of(prefix: str) -> str:
    """Return the name of the checkpoint topic for this kafka.topic_prefix."""
    return topics.TopicNames(prefix).control(topics.CHECKPOINT)


def read(consumer: Consumer, topic: str, name: str, servers: str) -> Checkpoint:
    """Read the whole topic with a read_committed `consumer`, and close the consumer.

    An unreadable record is ignored if a later record with the same key is readable. Raises:
    - ConnectionLostError if Kafka doesn't answer for READ_TIMEOUT_SECONDS,
    - ForbiddenError if the daemon may not read the topic,
    - ConfigurationError if the latest record of a key is unreadable; its hint has the command that repairs the topic on the
      brokers `servers`.
    """
    checkpoint = Checkpoint()
    good: dict[bytes, bytes | None] = {}
    bad: dict[bytes, tuple[int, bytes | None]] = {}
    try:
        # Without this request librdkafka looks for the partition's leader half a second later.
        consumer.list_topics(topic, READ_TIMEOUT_SECONDS)
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(READ_TIMEOUT_SECONDS)
            if message is None:
                raise ConnectionLostError(f"Kafka didn't answer for {READ_TIMEOUT_SECONDS:.0f} s while {topic} was read")
            error = message.error()
            if error is None:
                key, value = message.key() or b"", message.value()
                try:
                    fold(name, key, value, checkpoint)
                except ConfigurationError:
                    bad.pop(key, None)
                    # A tombstone removes whatever had this key. A record without a key could never be replaced.
                    if value is not None and key:
                        bad[key] = message.offset() or 0, value
                else:
                    bad.pop(key, None)
                    good[key] = value
            elif error.code() == KafkaError._PARTITION_EOF:
                if bad:
                    raise _unreadable(topic, name, servers, bad, good)
                return checkpoint
            elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                raise reading_error(error, f"{topic} can't be read")
    except KafkaException as error:
        raise reading_error(error.args[0], f"{topic} can't be read") from error
    finally:
        consumer.close()


def _unreadable(
    topic: str, name: str, servers: str, bad: Mapping[bytes, tuple[int, bytes | None]], good: Mapping[bytes, bytes | None]
) -> ConfigurationError:
    """Return the error for unreadable records, with a remedy for the first one. The next start reports the next record."""
    key, (offset, value) = next(iter(bad.items()))
    more = f" ({len(bad) - 1} more are like it)" if len(bad) > 1 else ""
    what = (
        f"{topic}, partition 0, offset {offset}: the latest record with the key {key[:200]!r} can't be understood; it holds "
        f"{(value or b'')[:200]!r}{more}. No daemon of this version writes that: it was written by hand, by another program that "
        "shares kafka.topic_prefix, or by a newer version"
    )
    texts = _texts([key] if key in good else _of_no_use(key, name), good)
    if texts is None:
        return ConfigurationError(what, f"Delete the topic {topic}, and start once with --rebuild-state.")
    command = (
        f"printf '%s\\t%s\\n' {' '.join(map(shlex.quote, texts))} | kafka-console-producer.sh --bootstrap-server {servers} "
        f"--topic {topic} --property parse.key=true --property null.marker={_NULL}"
    )
    if key in good:
        return ConfigurationError(what, f"Write the key's last readable record again: {command}")
    then = " and start once with --rebuild-state" if len(texts) > 2 or _is_position_of(key, name) else ""
    return ConfigurationError(what, f"The key has no earlier readable record. Remove it{then}: {command}")


def _of_no_use(key: bytes, name: str) -> list[bytes]:
    """Return the keys to remove if the record of this key can't be replaced.

    For a part of the daemon's own checkpoint these include the key of its position, so that all of the checkpoint is dropped.
    """
    try:
        is_own = json.loads(key)["name"] == name
    except (ValueError, TypeError, KeyError):
        is_own = False
    position = encode({"name": name})
    return [key, position] if is_own and key != position else [key]


def _is_position_of(key: bytes, name: str) -> bool:
    return key == encode({"name": name})


def _texts(keys: list[bytes], good: Mapping[bytes, bytes | None]) -> list[str] | None:
    """Return keys and values in alternation, as text for a shell; None if some of it isn't printable text."""
    found: list[str] = []
    for key in keys:
        value = good.get(key) if len(keys) == 1 else None
        try:
            found += [key.decode(), _NULL if value is None else value.decode()]
        except UnicodeDecodeError:
            return None
    return found if all(text.isprintable() for text in found) else None
