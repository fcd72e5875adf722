"""Identity of the Kafka cluster and its topics: a topic that was deleted and created again has the same name, but another id."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection

from cdc.kafka.clients import Admin
from cdc.kafka.errors import reading_error

_TIMEOUT_SECONDS: Final = 10.0
_GONE: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED)
_WHAT: Final = "Kafka can't be asked which topics there are"


class Identity(NamedTuple):
    """Id of the cluster, and ids of topics by topic name, if the brokers return them (Kafka 2.8 or later)."""

    cluster: str
    topics: dict[str, str]

    def made_again(self, known: Mapping[str, str]) -> set[str]:
        """Return the topics whose id differs from their `known` one."""
        return {name for name, former in known.items() if self.topics.get(name, former) != former}


def identity_of(admin: Admin, names: Collection[str]) -> Identity:
    """Return the current ids. Raises ConnectionLostError while Kafka is unavailable."""
    found: dict[str, str] = {}
    try:
        cluster = admin.describe_cluster(request_timeout=_TIMEOUT_SECONDS).result().cluster_id or ""
        answers = admin.describe_topics(TopicCollection(sorted(names)), request_timeout=_TIMEOUT_SECONDS) if names else {}
    except KafkaException as error:
        raise reading_error(error.args[0], _WHAT) from error
    for name, answer in answers.items():
        try:
            number = answer.result().topic_id
        except KafkaException as error:
            if error.args[0].code() in _GONE:
                continue
            raise reading_error(error.args[0], _WHAT) from error
        if number.get_most_significant_bits() or number.get_least_significant_bits():
            found[name] = str(number)
    return Identity(cluster, found)
