"""`tarantool-cdc topics`: what is where in Kafka: the daemon's topics, how much is in each, up to which seq, and who lags.

Sizes are numbers of records, as far as offsets tell them: a transaction's end takes an offset, too, and so does each record that
compaction has removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from cdc.commands import Say
from cdc.config import Config
from cdc.daemon.http_settings import access_of
from cdc.kafka import hanging
from cdc.kafka.clients import Admin, KafkaClients
from cdc.kafka.errors import reading_error
from cdc.kafka.names import names_of, whose
from cdc.kafka.topic_admin import list_topics
from cdc.ops.asking import ask
from cdc.stream.commits.unseen import Place

_SECONDS: Final = 10.0


@dataclass(slots=True)
class Topic:
    """One topic: its partitions, offsets in use, the seq of its newest event (0: none), and how far groups lag."""

    name: str
    partitions: int
    records: int = 0
    seq: int = 0
    lags: dict[str, int] = field(default_factory=dict)


def topics(config: Config, say: Say, *, as_json: bool) -> None:
    """Print the daemon's topics. Raises ConnectionLostError while Kafka doesn't answer."""
    clients = KafkaClients(config.name, config.kafka)
    admin = clients.admin()
    prefix = f"{config.kafka.topic_prefix}."
    existing = list_topics(admin, config.kafka.bootstrap_servers)
    found = [Topic(name, count) for name, count in sorted(existing.items()) if name.startswith(prefix)]
    consumer = clients.consumer("read_committed")
    try:
        ends = {place: end for topic in found for place, end in _ends(consumer, topic).items()}
        without = _without_seqs(config)
        places = {place: end for place, end in ends.items() if place[0] not in without}
        seqs = hanging.newest_seqs(clients.consumer("read_committed"), whose(config.kafka), places)
        for topic in found:
            topic.seq = seqs.get(topic.name, 0)
        note = _add_lags(admin, found, ends)
    except KafkaException as error:
        raise reading_error(error.args[0], "the topics can't be read") from error
    finally:
        consumer.close()
    if as_json:
        say(json.dumps([asdict(topic) for topic in found], indent=1))
        return
    for line in readable(found):
        say(line)
    if note:
        say(note)


def acknowledge(config: Config, lost: Sequence[str], say: Say) -> None:
    """Have the running daemon say no more that these topics were deleted. Raises as `ask`."""
    ask(config.name, config.http.address, "/losses/acknowledge", {"topics": list(lost)}, access_of(config))
    say(f"the daemon says no more that {', '.join(lost)} was deleted")


def readable(found: list[Topic]) -> Iterator[str]:
    """Yield the lines for people."""
    if not found:
        yield "there are no topics of this prefix yet"
        return
    rows = [("topic", "partitions", "records", "newest seq", "consumer groups and how far each is behind")]
    for topic in found:
        lags = ", ".join(f"{group} {lag}" for group, lag in sorted(topic.lags.items())) or "-"
        rows.append((topic.name, str(topic.partitions), str(topic.records), str(topic.seq or "-"), lags))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for name, *numbers, lags in rows:
        shown = [f"{number:>{width}}" for number, width in zip(numbers, widths[1:], strict=True)]
        yield f"{name:<{widths[0]}}  {'  '.join(shown)}  {lags}"


def _without_seqs(config: Config) -> set[str]:
    names = names_of(config.kafka)
    return {names.control(name) for name in ("checkpoint", "heartbeat", "signal", "notification")}


def _ends(consumer: Consumer, topic: Topic) -> dict[Place, int]:
    """Return the last stable offset of each partition, and count the topic's records."""
    found = {}
    for number in range(topic.partitions):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic.name, number), _SECONDS)
        topic.records += max(0, high - low)
        found[topic.name, number] = high if high > low else 0
    return found


def _add_lags(admin: Admin, found: list[Topic], ends: dict[Place, int]) -> str:
    """Add how far each consumer group is behind. Return a sentence if that can't be known."""
    by_name = {topic.name: topic for topic in found}
    try:
        groups = [group.group_id for group in admin.list_consumer_groups(request_timeout=_SECONDS).result().valid]
        for group in groups:
            asked: Any = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=_SECONDS)
            for place in asked[group].result().topic_partitions or ():
                topic = by_name.get(place.topic)
                if topic is not None and place.offset >= 0:
                    end = ends.get((place.topic, place.partition), 0)
                    topic.lags[group] = topic.lags.get(group, 0) + max(0, end - place.offset)
    except KafkaException as error:
        return f"consumer groups can't be asked for: {error.args[0].str()} (DESCRIBE on groups is needed)"
    return ""
