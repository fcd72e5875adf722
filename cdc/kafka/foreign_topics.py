"""Find topics that a daemon would write to, and that belong to somebody else.

Events of two daemons in one topic would reach the consumers of both. Two daemons can have a topic in common although each has its
own prefix: `shop` with the space `eu.users`, and `shop.eu` with the space `users`. Any other program may use a topic's name, too.

    another schema topic names the topic as its own       whatever the topic contains: the other daemon is about to write there
    the topic exists, and this daemon's checkpoint        its last records are read: if none of them is this daemon's, the topic
    doesn't know it                                       belongs to another producer

    a missing topic's name differs from another's only    Kafka refuses to create it
    in dots and underscores

The first question costs nothing unless a prefix begins another one. The second is asked once for each such topic.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from cdc.config import KafkaSection
from cdc.errors import PublishError
from cdc.events import topics
from cdc.events.topics import TopicNames
from cdc.kafka import hanging
from cdc.kafka.clients import Admin, KafkaClients
from cdc.kafka.hanging import Whose
from cdc.kafka.names import claim_topic, names_of, whose
from cdc.kafka.owned_topics import OwnedTopics

_REMEDY: Final = (
    "Give one of the two another kafka.topic_prefix, the space another topic (topic in a rule of [[routing.rules]]), or leave "
    "the space out with spaces.exclude; if nobody needs the topic any more, delete it."
)


class ForeignTopics:
    """Judge of the topics of one daemon. For one thread."""

    def __init__(self, config: KafkaSection, clients: KafkaClients) -> None:
        self._prefix = config.topic_prefix
        self._whose = whose(config)
        self._is_shared = config.shard is not None and config.shard.shares_topics
        self._clients = clients
        self._owned = OwnedTopics(clients)
        names = names_of(config)
        self._control = {names.control(name) for name in topics.CONTROL | config.optional_topics}
        claim = claim_topic(config)
        if claim is not None:
            self._control.add(claim)

    def check(self, admin: Admin, wanted: Collection[str], existing: Mapping[str, int], known: Collection[str] = ()) -> None:
        """Raise PublishError if one of the `wanted` topics belongs to another producer.

        `known` are the topics that this daemon has used before. Raises ConnectionLostError while Kafka doesn't answer.
        """
        self._check_spelling(wanted, existing)
        for topic in wanted:
            other = self._other_owner(admin, topic, existing)
            if other is not None:
                raise PublishError(
                    f"the topic {topic} is also a topic of the daemon with kafka.topic_prefix {other!r}: consumers of both would "
                    "get the rows of both",
                    _REMEDY,
                )
        self._check_contents(admin, {topic: existing[topic] for topic in wanted if topic in existing and topic not in known})

    @staticmethod
    def _check_spelling(wanted: Collection[str], existing: Mapping[str, int]) -> None:
        """Raise PublishError for a topic that Kafka would refuse to create, because another one differs only in dots."""
        new = {topic.replace(".", "_"): topic for topic in wanted if topic not in existing}
        for other in existing if new else ():
            topic = new.get(other.replace(".", "_"))
            if topic is not None:
                raise PublishError(
                    f"the topic {topic} can't be created, as there is {other}: Kafka doesn't distinguish dots and underscores in "
                    "names of topics, and the two would share their metrics, so it says that they collide",
                    _REMEDY,
                )

    def _other_owner(self, admin: Admin, topic: str, existing: Mapping[str, int]) -> str | None:
        """Return the prefix of another daemon whose topic this is; None if there is none."""
        parts = topic.split(".")
        for count in range(1, len(parts)):
            prefix, suffix = ".".join(parts[:count]), ".".join(parts[count:])
            if prefix == self._prefix or TopicNames(prefix).control(topics.SCHEMA) not in existing:
                continue
            name, suffixes = self._owned.of(prefix, admin, existing)
            if name is not None and name != self._prefix and (suffix in suffixes or suffix in topics.CONTROL):
                return prefix
        return None

    def _check_contents(self, admin: Admin, counts: Mapping[str, int]) -> None:
        """Raise PublishError for a space's topic with records of which none is this daemon's."""
        counts = {topic: count for topic, count in counts.items() if topic not in self._control}
        if not counts:
            return
        open_, closed = hanging.open_partitions(admin, counts)
        ends = open_ | closed
        writers = hanging.last_writers(self._clients.consumer("read_committed"), ends)
        for topic, names in sorted(writers.items()):
            if names and not any(name is not None and self._is_ours(name) for name in names):
                named = sorted((name for name in names if name is not None), key=str)
                by = _shown(named[0]) if named else "another program"
                raise PublishError(f"the topic {topic} exists, and its records are of {by}, not this daemon's", _REMEDY)

    def _is_ours(self, found: Whose) -> bool:
        """Return whether a topic with records of this origin is this daemon's. A fleet's daemons may have the same topics."""
        return found == self._whose or (self._is_shared and found.name == self._prefix and found.shard is not None)


def _shown(found: Whose) -> str:
    shard = "" if found.shard is None else f", the fleet's shard {found.shard!r}"
    return f"the daemon with kafka.topic_prefix {found.name!r}{shard}"
