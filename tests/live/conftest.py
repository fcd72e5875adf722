"""What the live tests share: scenes, and a broker that may be hurt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from cdc.local.interface import KafkaServer, TarantoolServer
from cdc.local.servers import local_servers
from tests.live.scene import Scene


class SceneFactory(Protocol):
    """Makes a scene; it ends with the test, and its servers' own fixtures end the servers."""

    def __call__(self, kafka: KafkaServer, master: TarantoolServer = ...) -> Scene: ...


@pytest.fixture(scope="session")
def frail_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One broker for all tests that stop, kill or freeze it: leave it running."""
    with local_servers(tmp_path_factory.mktemp("frail-kafka")) as started:
        # A transaction that is older than its producer allows is aborted at once, not within ten seconds.
        yield started.start_kafka(properties={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}, heap="512m")


@pytest.fixture
def scene_factory(tmp_path: Path, tarantool: TarantoolServer, seed: int) -> Iterator[SceneFactory]:
    """Makes scenes around the test's own master."""
    scenes: list[Scene] = []

    def make(kafka: KafkaServer, master: TarantoolServer = tarantool) -> Scene:
        scenes.append(Scene(tmp_path / f"scene-{len(scenes)}", master, kafka, seed))
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.close()


@pytest.fixture
def scene(scene_factory: SceneFactory, kafka: KafkaServer) -> Scene:
    """A scene at the session's broker."""
    return scene_factory(kafka)


@pytest.fixture
def frail_scene(scene_factory: SceneFactory, frail_kafka: KafkaServer) -> Scene:
    """A scene at the broker that may be hurt."""
    if not frail_kafka.is_running:
        frail_kafka.start()  # the test before failed in the middle
    return scene_factory(frail_kafka)
