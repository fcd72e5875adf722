"""Finds the topics of spaces that were deleted and created again since the last run, by their ids.

The daemon notices a topic that is missing when it writes there. A topic that somebody has created again looks as ever, but what
was published there is gone: consumers that hadn't read it miss changes, and their offsets mean other events now.
"""

from __future__ import annotations

from collections.abc import Iterator

import structlog

from cdc.config import Config
from cdc.kafka.clients import Admin
from cdc.kafka.names import names_of
from cdc.kafka.topic_admin import snapshot_remedy
from cdc.kafka.topic_ids import topic_ids
from cdc.store import topics_file
from cdc.stream.commits.checkpoint import Checkpoint
from cdc.stream.commits.former_topics import spaces_by_topic


def created_again(config: Config, stored: Checkpoint, admin: Admin, cluster: str | None) -> Iterator[tuple[str, str]]:
    """Yield the topics that have another id than in the last run with this cluster, each with a sentence."""
    spaces = spaces_by_topic(stored, names_of(config.kafka))
    former = topics_file.read(config.state.path, cluster)
    for topic, id_ in topic_ids(admin, [topic for topic in spaces if topic in former]).items():
        if id_ != former[topic]:
            yield (
                topic,
                "it was deleted and created again since the daemon's last start or stop, and what was published there is "
                f"gone. While the daemon runs, {snapshot_remedy(spaces[topic])}",
            )


def report(config: Config, stored: Checkpoint, admin: Admin, cluster: str | None) -> None:
    """Log a warning for each topic that was created again."""
    for topic, sentence in created_again(config, stored, admin, cluster):
        structlog.get_logger().warning(f"the topic {topic}: {sentence}", name=config.name)


def remember(config: Config, stored: Checkpoint, admin: Admin, cluster: str | None) -> None:
    """Keep the ids of all topics of published spaces for the next run."""
    topics_file.write(config.state.path, cluster, topic_ids(admin, spaces_by_topic(stored, names_of(config.kafka))))
