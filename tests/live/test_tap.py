"""TAP clients beside a real daemon: what they have in the end is what the master has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.feeds.tap.client import FUTURE
from tests.live.scene import Scene
from tests.live.tap import TapProcess, decoded, expected_contents
from tests.live.waiting import wait_for


@pytest.fixture
def tap(scene: Scene) -> Iterator[TapProcess]:
    """A server that isn't started yet."""
    with TapProcess(scene) as process:
        yield process


def test_filled_and_followed(scene: Scene, tap: TapProcess) -> None:
    scene.workload.create(2_000)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    tap.start()
    with tap.connect() as everything, tap.connect() as keys, tap.connect() as future, tap.connect() as half:
        everything.connect("everything").start()
        keys.connect("keys", is_keys_only=True).start()
        future.connect("future", since=FUTURE, has_acks=False).start()
        half.connect("half", vbuckets=list(range(0, 1024, 2))).start()
        everything.wait_filled()
        assert len(everything.contents) >= 1_000
        scene.run_workload()
        scene.catch_up()
        expected = expected_contents(scene)
        wait_for("the master's contents", lambda: everything.contents.keys() == expected.keys())
        wait_for("the last values", lambda: decoded(everything.contents) == expected)
        assert not everything.older_over_newer
        wait_for("all keys to be told", lambda: keys.keys_told >= everything.contents.keys())
        assert keys.contents.keys() == expected.keys()
        assert not any(keys.contents.values())
        assert future.keys_told
        assert len(future.keys_told) < len(everything.keys_told)
        assert half.contents.items() <= everything.contents.items()
        assert 0.4 < len(half.contents) / len(expected) < 0.6
    scene.check()
