"""Topics that were deleted and created again between two runs, and those of which that can't be said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from structlog.testing import capture_logs

from cdc.daemon.known_topics import created_again, remember, report
from cdc.positions.position import SnapshotState
from cdc.stream.commits.checkpoint import Checkpoint
from tests.daemon.test_start import AT, SPACES, config
from tests.fakes.kafka import Cluster, clients


def test_a_topic_with_another_id(tmp_path: Path) -> None:
    settings, cluster = config(tmp_path), Cluster({"shop.users": 2, "shop.renamed_before": 2})
    stored, admin = Checkpoint(AT, {one.space_id: one for one in SPACES}), clients(cluster).admin()
    assert not list(created_again(settings, stored, admin, "a")), "nothing is known of earlier ones"
    remember(settings, stored, admin, "a")
    assert not list(created_again(settings, stored, admin, "a"))
    cluster.topic_ids = {"shop.users": "another", "shop.schema": "another"}
    with capture_logs() as said:
        report(settings, stored, admin, "a")
    (line,) = said
    assert line["event"].startswith("the topic shop.users: it was deleted and created again since the daemon's last start")
    assert "`tarantool-cdc snapshot --config FILE users` sends its rows again" in line["event"]
    assert not list(created_again(settings, stored, admin, "b")), "of another cluster that is told already"
    interrupted = replace(AT, snapshot=SnapshotState(2, is_complete=False))
    assert not list(created_again(settings, replace(stored, position=interrupted), admin, "a")), "all rows come again anyway"
    del cluster.partitions["shop.users"]
    assert not list(created_again(settings, stored, admin, "a")), "what is missing is told when the daemon creates it"
    remember(settings, stored, admin, "a")
    assert not list(created_again(settings, stored, admin, "a"))
