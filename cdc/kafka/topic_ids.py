"""Ids that Kafka gives to topics: a topic that was deleted and created again has another one under the same name."""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka import KafkaException, TopicCollection

from cdc.kafka.clients import Admin
from cdc.kafka.topic_admin import ADMIN_TIMEOUT_SECONDS


def topic_ids(admin: Admin, names: Collection[str]) -> dict[str, str]:
    """Return the ids of those of these topics that exist and may be seen. Without an answer from Kafka none is known."""
    found: dict[str, str] = {}
    if not names:
        return found
    for name, answer in admin.describe_topics(TopicCollection(list(names)), request_timeout=ADMIN_TIMEOUT_SECONDS).items():
        try:
            found[name] = str(answer.result().topic_id)
        except KafkaException:
            continue  # missing or hidden, which the daemon reports when it writes to the topic
    return found
