"""Finds the topics of spaces that were deleted and created again since the last run, by their ids.

The daemon notices a topic that is missing when it writes there. A topic that somebody has created again looks as ever, but what
was published there is gone: consumers that hadn't read it miss changes, and their offsets mean other events now. The daemon
records that at its start, and once a minute (cdc.kafka.losses); `check` tells it before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from cdc.config import Config
from cdc.kafka.clients import Admin
from cdc.kafka.names import names_of
from cdc.kafka.topic_admin import cluster_id
from cdc.kafka.topic_ids import KnownIds, topic_ids
from cdc.store import topics_file
from cdc.stream.commits.checkpoint import Checkpoint
from cdc.stream.commits.former_topics import spaces_by_topic
from cdc.stream.commits.losses import snapshot_remedy


def created_again(config: Config, stored: Checkpoint, admin: Admin, cluster: str | None) -> Iterator[tuple[str, str]]:
    """Yield the topics that have another id than in the last run with this cluster, each with a sentence."""
    spaces = spaces_by_topic(stored, names_of(config.kafka))
    former = topics_file.read(config.state.path, cluster)
    for topic, id_ in topic_ids(admin, [topic for topic in spaces if topic in former]).items():
        if id_ != former[topic]:
            yield (
                topic,
                "it was deleted and created again since the daemon's last start or stop, and what was published there is "
                f"gone. While the daemon runs, {snapshot_remedy(spaces[topic], config.kafka.shards_of(topic))}",
            )


def of_last_run(config: Config, admin: Admin, writers: Collection[str]) -> KnownIds:
    """Return the ids of the last run with this cluster, whose process is one of `writers`, to be kept up to date from now on.

    Raises ConnectionLostError.
    """
    cluster = cluster_id(admin, config.kafka.bootstrap_servers)
    path = config.state.path
    return KnownIds(topics_file.read(path, cluster), writers, lambda ids: topics_file.write(path, cluster, ids))


def at_stop(config: Config, stored: Checkpoint, admin: Admin, ids: KnownIds) -> None:
    """Note the ids of topics that were made since the last look."""
    ids.learn_new(topic_ids(admin, spaces_by_topic(stored, names_of(config.kafka))))
