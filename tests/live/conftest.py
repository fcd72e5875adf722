"""What the live tests share: scenes, and a broker that may be hurt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from cdc.local.interface import KafkaServer, TarantoolServer
from tests.live.scene import Scene


class SceneFactory(Protocol):
    """Makes a scene; it ends with the test, and its servers' own fixtures end the servers."""

    def __call__(self, kafka: KafkaServer, master: TarantoolServer = ...) -> Scene: ...


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
    return scene_factory(frail_kafka)
