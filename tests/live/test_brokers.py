"""Three brokers, of which some die, fall silent, are restarted in turn, or are away together: exactly once, without a hole."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

from cdc.local.kafka_cluster import KafkaCluster, KafkaNode
from cdc.stream.commits import ownership
from tests.live.conftest import SceneFactory
from tests.live.scene import Scene, Watcher
from tests.live.waiting import wait_for

PATIENCE_SECONDS: Final = 240
SILENCE_SECONDS_MAX: Final = 30.0
"""What a silent broker may cost: its session in this cluster, 4 s, and 5 s by the daemon's time-outs; where the broker led the
controllers, their election before that; where it was silent in the instant of a commit, the brokers' request.timeout.ms, 5 s.
The rest is for a machine under load. By librdkafka's defaults it would be the time of a transaction, 120 s here."""


@pytest.fixture
def broker_scene(scene_factory: SceneFactory, kafka_cluster: KafkaCluster) -> Scene:
    """At three brokers, which all run, with every partition on all of them."""
    kafka_cluster.start()
    scene = scene_factory(kafka_cluster)
    scene.daemon.settings["kafka"].update(replication_factor=3, partitions=3, stalled_after_ms=3_000)
    # A machine that runs three brokers besides gives the master its turn late.
    scene.daemon.settings["source"]["replication_timeout_ms"] = 3_000
    # Nothing is to be helped by the end of a transaction's time.
    scene.daemon.settings["kafka"]["properties"]["transaction.timeout.ms"] = 120_000
    scene.workload.create(200)
    return scene


def commits_go_on(scene: Scene, what: str, timeout_seconds: float = PATIENCE_SECONDS) -> float:
    """Wait until two commits more have come through; returns after how many seconds the second did.

    The first may have been on its way before whatever was done.
    """
    began = time.monotonic()
    before: list[int] = []

    def have_come(status: dict[str, Any]) -> bool:
        count = status["kafka"]["commits"]
        before[:] = before or [count]
        return bool(count >= before[0] + 2)

    scene.daemon.wait_until(f"commits go on: {what}", have_come, timeout_seconds)
    return time.monotonic() - began


def transactional_id(scene: Scene) -> str:
    return ownership.transactional_id(scene.daemon.name, scene.prefix)


@pytest.mark.one_of_these("Kafka that goes")
def test_one_falls_silent_and_another_dies(broker_scene: Scene, kafka_cluster: KafkaCluster) -> None:
    """Commits go on without them: those that lead the checkpoint and coordinate the transactions."""
    scene, cluster = broker_scene, kafka_cluster
    scene.workload.start(fibers=2, pause=0.1, rows_max=200)
    scene.daemon.start()
    commits_go_on(scene, "at first")
    silent = cluster.transaction_coordinator(transactional_id(scene))
    silent.pause()
    try:
        commits_go_on(scene, "without the silent one", 60)
    finally:
        silent.resume()
    in_sync = wait_for("it is in sync again", lambda: cluster.in_sync(f"{scene.prefix}.checkpoint") == {1, 2, 3}, 120)
    assert in_sync
    dead = cluster.leader(f"{scene.prefix}.checkpoint")
    dead.kill()
    try:
        commits_go_on(scene, "without the dead one", 60)
    finally:
        dead.start()
    scene.workload.stop()
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    scene.check()


class Drill:
    """One thing after another happens to the brokers, and each time the daemon gets over it."""

    def __init__(self, scene: Scene, cluster: KafkaCluster, seed: int) -> None:
        self.scene = scene
        self.cluster = cluster
        self.chance = random.Random(seed)
        self.log: list[str] = []
        self.longest_freeze_seconds = 0.0

    @property
    def topic(self) -> str:
        """Whose partitions and coordinators are hurt."""
        return f"{self.scene.prefix}.checkpoint"

    def somebody(self) -> tuple[str, KafkaNode]:
        """A broker, and what it was chosen for."""
        choices: dict[str, Callable[[], KafkaNode]] = {
            "leader": lambda: self.cluster.leader(self.topic),
            "coordinator": lambda: self.cluster.transaction_coordinator(transactional_id(self.scene)),
            "controller": self.cluster.controller,
            "any": lambda: self.chance.choice(list(self.cluster.nodes.values())),
        }
        role = self.chance.choice(list(choices))
        return role, choices[role]()

    def all_in_sync(self) -> None:
        """Wait until whatever happened before is over."""
        wait_for("all are in sync", lambda: self.cluster.in_sync(self.topic) == {1, 2, 3}, PATIENCE_SECONDS)
        commits_go_on(self.scene, "all are there")

    def kill(self) -> str:
        """One dies; in some cases the daemon with it."""
        role, node = self.somebody()
        node.kill()
        has_daemon = self.chance.random() < 0.3
        if has_daemon:
            self.scene.daemon.restart_killed()
        seconds = commits_go_on(self.scene, f"{role} {node.node_id} is dead")
        node.start()
        return f"{role} {node.node_id} killed{' with the daemon' if has_daemon else ''}: {seconds:.1f} s"

    def freeze(self) -> str:
        """One falls silent, for longer than its session and all that the daemon may need."""
        role, node = self.somebody()
        led = node is self.cluster.controller()
        node.pause()
        try:
            seconds = commits_go_on(self.scene, f"{role} {node.node_id} is silent")
        finally:
            node.resume()
        self.longest_freeze_seconds = max(self.longest_freeze_seconds, seconds)
        return f"{role} {node.node_id} frozen{' (led the controllers)' if led else ''}: {seconds:.1f} s"

    def two_away(self) -> str:
        """Nothing can be written. The daemon says so, and goes on when one is back."""
        first, second = self.chance.sample(list(self.cluster.nodes.values()), 2)
        first.kill()
        second.kill()
        self.scene.daemon.wait_until(
            "it isn't ready", lambda status: status["state"] in ("stalled", "waiting for kafka"), PATIENCE_SECONDS
        )
        assert not self.scene.daemon.is_ready()
        # Of two that are started one after the other the first would wait for the second: there are no controllers without it.
        self.cluster.start()
        seconds = commits_go_on(self.scene, "two are back")
        return f"{first.node_id} and {second.node_id} away, then back: {seconds:.1f} s"

    def rolling_restart(self) -> str:
        """Each in turn, in order."""
        longest = 0.0
        for node in self.cluster.nodes.values():
            node.stop()
            longest = max(longest, commits_go_on(self.scene, f"{node.node_id} is being restarted"))
            node.start()
            self.all_in_sync()
        return f"rolling restart: {longest:.1f} s"


COURSES: Final = {"exactly_once": (12, 6, 3, 2), "at_least_once": (4, 2, 1, 1)}
"""How often brokers are killed, frozen, two of three away, and restarted one after the other."""


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", COURSES)
def test_drills(broker_scene: Scene, kafka_cluster: KafkaCluster, mode: str, seed: int) -> None:
    """Each event as often as its mode promises, no hole, and the contents are the master's, whatever the brokers went through."""
    scene = broker_scene
    scene.daemon.settings["kafka"]["delivery"] = mode
    drill = Drill(scene, kafka_cluster, seed)
    acts = (drill.kill, drill.freeze, drill.two_away, drill.rolling_restart)
    course = [act for act, count in zip(acts, COURSES[mode], strict=True) for _ in range(count)]
    drill.chance.shuffle(course)
    scene.workload.start(fibers=2, pause=0.1, rows_max=200)
    scene.daemon.start()
    commits_go_on(scene, "at first")
    with Watcher(scene.reader()) as watcher:
        for act in course:
            drill.all_in_sync()
            drill.log.append(act())
            print(drill.log[-1], flush=True)
        drill.all_in_sync()
        scene.workload.stop()
        scene.catch_up(600)
        assert scene.daemon.terminate() == 0
    if mode == "exactly_once":
        watcher.check(scene.check(), share_with_more=0.01)
    else:
        scene.check_as_promised()
    assert drill.longest_freeze_seconds < SILENCE_SECONDS_MAX, drill.log
