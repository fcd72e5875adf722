"""Topics that were deleted and created again between two runs, and those of which that can't be said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cdc.config import Config
from cdc.daemon.known_topics import created_again
from cdc.kafka.clients import Admin
from cdc.kafka.names import names_of
from cdc.kafka.topic_ids import KnownIds, topic_ids
from cdc.positions.position import SnapshotState
from cdc.store import topics_file
from cdc.stream.commits.checkpoint import Checkpoint
from cdc.stream.commits.former_topics import spaces_by_topic
from tests.daemon.test_start import AT, SPACES, config
from tests.fakes.kafka import Cluster, clients


def keep(settings: Config, stored: Checkpoint, admin: Admin) -> None:
    """Note the ids of all topics, as a run with the cluster `a` does."""
    ids = KnownIds(keep=lambda ids: topics_file.write(settings.state.path, "a", ids))
    ids.learn(topic_ids(admin, spaces_by_topic(stored, names_of(settings.kafka))))


def test_a_topic_with_another_id(tmp_path: Path) -> None:
    settings, cluster = config(tmp_path), Cluster({"shop.users": 2, "shop.renamed_before": 2})
    stored, admin = Checkpoint(AT, {one.space_id: one for one in SPACES}), clients(cluster).admin()
    assert not list(created_again(settings, stored, admin, "a")), "nothing is known of earlier ones"
    keep(settings, stored, admin)
    assert not list(created_again(settings, stored, admin, "a"))
    cluster.topic_ids = {"shop.users": "another", "shop.schema": "another"}
    ((topic, sentence),) = created_again(settings, stored, admin, "a")
    assert topic == "shop.users"
    assert sentence.startswith("it was deleted and created again since the daemon's last start")
    assert "`tarantool-cdc snapshot --config FILE users` sends its rows again" in sentence
    assert not list(created_again(settings, stored, admin, "b")), "of another cluster that is told already"
    interrupted = replace(AT, snapshot=SnapshotState(2, is_complete=False))
    assert not list(created_again(settings, replace(stored, position=interrupted), admin, "a")), "all rows come again anyway"
    del cluster.partitions["shop.users"]
    assert not list(created_again(settings, stored, admin, "a")), "what is missing is told when the daemon creates it"
    keep(settings, stored, admin)
    assert not list(created_again(settings, stored, admin, "a"))
