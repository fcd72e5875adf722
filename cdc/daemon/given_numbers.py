"""What a daemon remembers of the numbers that it has given, beside Kafka's checkpoint and the state store.

The file in state.path, this process's own commits, and the ends of the topics. cdc.upstream.witnesses decides what follows.
"""

from __future__ import annotations

import functools
from collections.abc import Collection

import structlog

from cdc.config import Config
from cdc.daemon import known_topics
from cdc.kafka.clients import Admin, KafkaClients
from cdc.kafka.publisher import Publisher
from cdc.kafka.topic_admin import cluster_id
from cdc.kafka.topic_ids import SeenTopics
from cdc.positions.numbers import Kept, Numbers
from cdc.positions.position import Position
from cdc.store.numbers_file import NumbersFile
from cdc.stream.commits.checkpoint import Checkpoint
from cdc.upstream.witnesses import Witnesses


def other_kafka(kept: Kept, cluster: str | None) -> str | None:
    """Return a warning if the cluster isn't the one of the last run, or None."""
    if cluster is None or kept.cluster_id in (None, cluster):
        return None
    return (
        f"this is another Kafka than in the last run: its cluster id is {cluster}, that one's was {kept.cluster_id}. Offsets of "
        "consumers are of no use here: see docs/operations.md"
    )


class GivenNumbers:
    """Memory of the given numbers. For the daemon's thread, which has the lock of the state directory."""

    def __init__(self, config: Config, writers: Collection[str] = ()) -> None:
        """Read the file. `writers` are the last processes that used the state directory."""
        self._config = config
        self._writers = writers
        self.file = NumbersFile(config.state.path, config.name, config.kafka.control_prefix)
        self._topics: Numbers | None = None
        self.witnesses = Witnesses(kept=self.file.kept)
        """What remembers given numbers besides the checkpoint and the store, as of the last reading of the checkpoint."""

    @functools.cached_property
    def seen_topics(self) -> SeenTopics:
        """What the publishers so far know of topics; at first their ids in the last run. Raises ConnectionLostError."""
        return SeenTopics(ids=known_topics.of_last_run(self._config, self._admin(), self._writers))

    def name_claimed(self, publisher: Publisher, stored: Checkpoint, committed: Position | None) -> None:
        """Note that this process has claimed its name and read the checkpoint, as in `checkpoint_read`.

        The ends of the topics are read, unless the last run or this one has at_least_once delivery: then events may be newer than
        the checkpoint. They are read at each claim: before it, another process may have had the name, and Kafka may have lost the
        checkpoints of that one. Raises ConnectionLostError.
        """
        newest = publisher.newest_numbers() if self._config.kafka.delivery == "exactly_once" else Numbers()
        may_be_passed = self.file.may_be_passed
        if self._topics is None:
            was_ahead = may_be_passed and newest.seq > Numbers.of(stored.position).seq
            self._note_cluster(ahead_until=newest.seq if was_ahead else 0)
        self._topics = (self._topics or Numbers()) | (Numbers() if may_be_passed else newest)
        self.checkpoint_read(stored, committed)

    def checkpoint_read(self, stored: Checkpoint, committed: Position | None) -> None:
        """Note that the checkpoint has been read from Kafka, which may have lost the newest ones, or topics.

        `committed` is the last position that this process has committed.
        """
        topics = self._topics or Numbers()
        self.witnesses = Witnesses(kept=self.file.kept, process=committed, topics=topics, others=stored.others)

    def _note_cluster(self, *, ahead_until: int) -> None:
        kafka = self._config.kafka
        cluster = cluster_id(self._admin(), kafka.bootstrap_servers)
        warning = other_kafka(self.file.kept, cluster)
        if warning is not None:
            structlog.get_logger().warning(warning, name=self._config.name)
        self.file.begin(cluster, kafka.delivery, ahead_until=ahead_until)

    def stopped(self, stored: Checkpoint, committed: Position | None) -> None:
        """Record what there is after an orderly stop: nothing is published beyond the last committed position."""
        if committed is not None:
            self.file.close(committed)
        known_topics.at_stop(self._config, stored, self._admin(), self.seen_topics.ids)

    def _admin(self) -> Admin:
        return KafkaClients(self._config.name, self._config.kafka).admin()
