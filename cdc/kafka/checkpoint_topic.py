"""Reads the checkpoint topic, committed records only."""

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
from cdc.stream.checkpoint import Checkpoint, fold

READ_TIMEOUT_SECONDS: Final = 60.0
_NULL: Final = "NULL"
"""Stands for a null value in what the console producer is given."""


def name_of(prefix: str) -> str:
    """What the topic is called, for daemons with this kafka.topic_prefix."""
    return topics.TopicNames(prefix).control(topics.CHECKPOINT)


def read(consumer: Consumer, topic: str, name: str, servers: str) -> Checkpoint:
    """Read the whole topic, as a consumer of committed records that is closed afterwards.

    A record that can't be understood is of no moment once a later one of its key can. Raises ConnectionLostError if Kafka stops
    answering for READ_TIMEOUT_SECONDS, ForbiddenError, and ConfigurationError for a record that can't be understood and is the
    latest of its key, with the command that mends it at the brokers `servers`.
    """
    checkpoint = Checkpoint()
    good: dict[bytes, bytes | None] = {}
    bad: dict[bytes, tuple[int, bytes | None]] = {}
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
                key, value = message.key() or b"", message.value()
                try:
                    fold(name, key, value, checkpoint)
                except ConfigurationError:
                    bad.pop(key, None)
                    # Whatever had that key is gone, or it has none, and nothing could ever take its place.
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
    """What to say of records that can't be understood, with a remedy for the first; the others come up after it."""
    key, (offset, value) = next(iter(bad.items()))
    more = f" ({len(bad) - 1} more are like it)" if len(bad) > 1 else ""
    what = (
        f"{topic}, partition 0, offset {offset}: the latest record with the key {key[:200]!r} can't be understood; it holds "
        f"{(value or b'')[:200]!r}{more}. No daemon of this version writes that: it was somebody by hand, another program that "
        "shares kafka.topic_prefix, or a newer version"
    )
    texts = _texts([key] if key in good else _of_no_use(key, name), good)
    if texts is None:
        return ConfigurationError(what, f"Delete the topic {topic}, and start once with --rebuild-state.")
    command = (
        f"printf '%s\\t%s\\n' {' '.join(map(shlex.quote, texts))} | kafka-console-producer.sh --bootstrap-server {servers} "
        f"--topic {topic} --property parse.key=true --property null.marker={_NULL}"
    )
    if key in good:
        return ConfigurationError(what, f"Write the last good one again: {command}")
    then = " and start once with --rebuild-state" if len(texts) > 2 or _is_position_of(key, name) else ""
    return ConfigurationError(what, f"There is no good one before it. Remove it{then}: {command}")


def _of_no_use(key: bytes, name: str) -> list[bytes]:
    """What to remove where a record of this key can't be replaced: with a part of the daemon's own checkpoint, all of it."""
    try:
        is_own = json.loads(key)["name"] == name
    except (ValueError, TypeError, KeyError):
        is_own = False
    position = encode({"name": name})
    return [key, position] if is_own and key != position else [key]


def _is_position_of(key: bytes, name: str) -> bool:
    return key == encode({"name": name})


def _texts(keys: list[bytes], good: Mapping[bytes, bytes | None]) -> list[str] | None:
    """Keys and values in turn, as a shell's words; None if they can't be typed."""
    found: list[str] = []
    for key in keys:
        value = good.get(key) if len(keys) == 1 else None
        try:
            found += [key.decode(), _NULL if value is None else value.decode()]
        except UnicodeDecodeError:
            return None
    return found if all(text.isprintable() for text in found) else None
