"""Several members: which one is followed, how soon another is when that one ends or stops, and what is waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from cdc.local.interface import KafkaServer
from tests.live.cluster import Cluster, only_processes
from tests.live.conftest import SceneFactory
from tests.live.daemon import DaemonProcess
from tests.live.forked import run_command
from tests.live.scene import Scene
from tests.live.stream import parse

pytestmark = [only_processes, pytest.mark.xdist_group("upstreams")]

FAIL_OVER_SECONDS = 4.0
"""Four times the members' replication_timeout."""
SLACK_SECONDS = 2.0
"""For a machine that others use."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two members that follow each other, with the server's own heartbeat interval. Leave both running and connected."""
    with Cluster(tmp_path_factory.mktemp("cluster"), 2, replication_timeout=1) as started:
        started[0].eval("box.schema.space.create('things'):create_index('primary') box.space.things:insert{0, 'first'}")
        started.wait_until_equal()
        yield started


@pytest.fixture
def several(scene_factory: SceneFactory, kafka: KafkaServer, cluster: Cluster) -> Scene:
    """A scene whose daemon knows both members."""
    for member in cluster:
        if not member.is_running:
            member.start()
    cluster.configure(read_only=False, replication=cluster.uris)
    cluster.wait_until_connected()
    cluster.wait_until_equal()
    scene = scene_factory(kafka, cluster[0])
    scene.daemon.settings["source"] = {"uris": cluster.uris, "survey_interval_ms": 1_000}
    scene.daemon.settings["kafka"]["partitions"] = 1
    return scene


def followed(daemon: DaemonProcess, address: str, timeout_seconds: float = 120) -> dict[str, Any]:
    """Wait until the daemon follows the member at this address."""

    def is_followed(status: dict[str, Any]) -> bool:
        return bool(status["state"] == "streaming" and status["upstream"]["address"] == address)

    return daemon.wait_until(f"it follows {address}", is_followed, timeout_seconds)


def checked(daemon: DaemonProcess, exit_status: int = 0, **source: str) -> list[str]:
    """What `check` says with the daemon's configuration, keys of its source changed."""
    file = daemon.directory / f"{daemon.name}.toml"
    environment = {f"TARANTOOL_CDC__SOURCE__{key.upper()}": value for key, value in source.items()}
    run = run_command("check", "--config", str(file), environment=environment)
    assert run.returncode == exit_status, run.stdout + run.stderr
    return run.stdout.splitlines()


def at(cluster: Cluster, number: int) -> str:
    return f"127.0.0.1:{cluster[number].port}"


def states(status: dict[str, Any]) -> dict[str, str]:
    return {member["address"]: member["state"] for member in status["upstreams"]}


def seconds_until_rows_flow(scene: Scene, cluster: Cluster, survivor: int) -> float:
    """Until a row that the survivor writes now is durable in Kafka."""
    began = time.monotonic()
    cluster[survivor].eval("box.space.things:auto_increment{'after'}")
    scene.daemon.wait_until_caught_up(cluster[survivor].vclock(), 30)
    return time.monotonic() - began


def test_fail_over(several: Scene, cluster: Cluster) -> None:
    """One is killed, one is stopped; rows flow again within the time in which a replica would notice."""
    daemon = several.daemon
    daemon.start()
    followed(daemon, at(cluster, 0))
    several.catch_up()
    cluster[0].kill()
    killed = seconds_until_rows_flow(several, cluster, 1)
    status = followed(daemon, at(cluster, 1))
    assert killed < FAIL_OVER_SECONDS + SLACK_SECONDS
    daemon.wait_until("it shows who is away", lambda s: states(s) == {at(cluster, 0): "unreachable", at(cluster, 1): "following"})
    cluster[0].start()
    cluster.wait_until_connected()
    cluster[0].eval("box.space.things:auto_increment{'again'}")
    cluster.wait_until_equal()
    several.catch_up()
    # The one that is preferred is back, and nothing is changed for it.
    status = daemon.wait_until("it shows who is back", lambda s: states(s)[at(cluster, 0)] == "standby")
    assert status["upstream"]["address"] == at(cluster, 1)
    cluster[1].pause()
    try:
        stopped = seconds_until_rows_flow(several, cluster, 0)
        followed(daemon, at(cluster, 0))
    finally:
        cluster[1].resume()
    assert stopped < FAIL_OVER_SECONDS + SLACK_SECONDS
    print(f"rows flow again {killed:.2f} s after kill -9, {stopped:.2f} s after SIGSTOP")
    cluster.wait_until_equal()
    several.catch_up()
    assert daemon.terminate() == 0
    several.check()


@pytest.mark.one_of_these("choice of a member")
def test_preference(several: Scene, cluster: Cluster) -> None:
    cluster.hand_over(0)
    several.daemon.settings["source"]["prefer"] = "replica"
    several.daemon.start()
    followed(several.daemon, at(cluster, 1))
    status = several.daemon.wait_until("it has asked all", lambda status: "following" in states(status).values())
    found = {member["address"]: member for member in status["upstreams"]}
    assert [found[at(cluster, number)]["read_only"] for number in (0, 1)] == [False, True]
    assert {member["state"] for member in found.values()} == {"following", "standby"}
    assert {member["uuid"] for member in found.values()} == {member.uuid for member in cluster}
    assert several.daemon.terminate() == 0
    for prefer, expected in (("replica", 1), ("leader", 0), ("order", 0)):
        said = checked(several.daemon, prefer=prefer)
        assert f"{at(cluster, expected)} would be followed: " in said[-2]
        assert said[-1] == "run would start"
        assert len([line for line in said if "would resume from" in line]) == 2
    assert len([line for line in checked(several.daemon, mode="registered") if "may replicate and register" in line]) == 2


@pytest.mark.one_of_these("choice of a member")
def test_wrong_password_of_one_member(several: Scene, cluster: Cluster) -> None:
    good = cluster.uris[1]
    several.daemon.settings["source"]["uris"] = [f"cdc:not-it@{at(cluster, 0)}", good]
    several.daemon.start()
    followed(several.daemon, at(cluster, 1))
    status = several.daemon.wait_until("it shows the refusal", lambda s: states(s).get(at(cluster, 0)) == "refused")
    assert "password" in next(member["error"] for member in status["upstreams"] if member["state"] == "refused")
    assert several.daemon.terminate() == 0
    several.daemon.settings["source"]["uris"] = [f"cdc:not-it@{at(cluster, number)}" for number in (0, 1)]
    several.daemon.start()
    assert several.daemon.wait_for_end() == 1
    last = several.daemon.run.log_tail(1)
    assert "none of the 2 members" in last
    assert "not-it" not in last


@pytest.mark.one_of_these("choice of a member")
def test_nobody_has_what_was_published(several: Scene, cluster: Cluster) -> None:
    """The other member has not got the last row when its leader is killed: that is waited for, in sight, and no divergence."""
    daemon = several.daemon
    daemon.start()
    followed(daemon, at(cluster, 0))
    cluster.configure([1], replication=[])
    cluster[0].eval("box.space.things:auto_increment{'only here'}")
    several.catch_up()
    vclock = cluster[0].vclock()
    cluster[0].kill()
    status = daemon.wait_until("it waits", lambda s: "is behind" in (s["error"] or "") and "on_divergence" in s["error"])
    assert f"published {vclock[1]}" in status["error"]
    assert f"server {cluster[1].vclock()[1]}" in status["error"]
    assert states(status) == {at(cluster, 0): "unreachable", at(cluster, 1): "behind"}
    cluster[0].start()
    followed(daemon, at(cluster, 0))
    assert daemon.terminate() == 0
    # Waited for long enough, it is one.
    cluster[0].kill()
    daemon.settings["source"]["divergence_wait_ms"] = 300
    daemon.start()
    assert daemon.wait_for_end() == 1
    said = checked(daemon, exit_status=1)
    assert said[-1] == "run would stop: 1 failure"
    for text in (daemon.run.log_tail(1), said[-2]):
        assert "no member has all changes" in text
        assert f"published {vclock[1]}" in text


@pytest.mark.one_of_these("choice of a member")
def test_origin_that_is_left_out(several: Scene, cluster: Cluster) -> None:
    """Its rows don't come, it is nothing to wait for, and the logs that have them are not missed when they are gone."""
    daemon = several.daemon
    daemon.settings["source"] |= {"uris": cluster.uris[:1], "exclude_origins": [2], "on_gap": "fail"}
    daemon.settings["state"]["images"] = "none"
    daemon.start("--until-caught-up")
    assert daemon.wait_for_end() == 0
    for number, word in ((0, "ours"), (1, "theirs"), (0, "ours too")):
        cluster[number].eval("box.space.things:auto_increment(...)", [f"{word} of this test"])
        cluster.wait_until_equal()
    daemon.start("--until-caught-up")
    assert daemon.wait_for_end() == 0, daemon.run.log_text()
    # The position of origin 2 stays where it was; logs from there are removed.
    cluster[0].eval("box.cfg{checkpoint_count = 1} box.snapshot()")
    cluster[1].eval("box.space.things:auto_increment{'theirs again of this test'}")
    cluster.wait_until_equal()
    cluster[0].eval("box.snapshot() box.space.things:auto_increment{'last of this test'}")
    cluster.wait_until_equal()
    daemon.start("--until-caught-up")
    assert daemon.wait_for_end() == 0, daemon.run.log_text()
    cluster[0].eval("box.cfg{checkpoint_count = 2}")
    with several.reader() as reader:
        words = [event.value["after"]["field_2"] for event in parse(reader).events]
    expected = ["ours of this test", "ours too of this test", "last of this test"]
    assert [word for word in words if word.endswith("of this test")] == expected
