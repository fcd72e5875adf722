"""Staged troubles: the daemon's last word, or its page, and the doctor name the cause and what to do about it."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cdc.commands.doctor import doctor
from cdc.config.fleet import load_daemon
from tests.fakes.registry import FakeRegistry
from tests.live.scene import Scene
from tests.live.test_gaps import forget_logs
from tests.live.test_refusals import delete_topics
from tests.live.test_state import command, complaint
from tests.live.waiting import wait_for

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

_CREATE = """
box.schema.space.create('users', {format = {{'id', 'unsigned'}, {'name', 'string'}}}):create_index('pk')
box.space.users:insert{1, 'one'}
"""


class Told(NamedTuple):
    """What an operator gets to read: by the page and /status, or as a daemon's last words; and by the doctor."""

    page: str
    doctor: str


def frame(scene: Scene) -> dict[str, Any]:
    """What the page shows now."""
    with urllib.request.urlopen(f"http://127.0.0.1:{scene.daemon._http_port}/page/state", timeout=10) as answer:
        shown: dict[str, Any] = json.load(answer)
        return shown


def advice(scene: Scene) -> str:
    """All that the doctor says."""
    lines: list[str] = []
    doctor(load_daemon(scene.daemon.directory / f"{scene.daemon.name}.toml", None), lines.append)
    return "\n".join(lines)


def on_the_page(scene: Scene, holds: Callable[[dict[str, Any]], object]) -> Told:
    """Wait for a trouble on the page of a daemon that goes on."""

    def found() -> str:
        assert scene.daemon.run.exit_status() is None, scene.daemon.run.log_tail()
        if scene.daemon.status() is None:
            return ""  # it doesn't listen yet
        troubles = [trouble for trouble in frame(scene)["troubles"] if holds(trouble)]
        return "\n".join(f"{trouble['sentence']}. {trouble['remedy']}" for trouble in troubles)

    page = wait_for("the trouble on the page", found, 60)
    assert page is not None
    status = scene.daemon.status()
    assert status is not None
    return Told(f"{page}\n{status['error']}", advice(scene))


def at_the_end(scene: Scene) -> Told:
    """Wait for the last words of a daemon that can't go on."""
    assert scene.daemon.wait_for_end(120) == 1
    return Told(scene.daemon.run.log_tail().splitlines()[-1], advice(scene))


def follow(scene: Scene) -> None:
    """Have a daemon that has published what there is."""
    scene.daemon.settings["kafka"]["partitions"] = 1
    scene.tarantool.eval(_CREATE)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.catch_up()


def test_the_master_is_lost(scene: Scene) -> None:
    follow(scene)
    scene.tarantool.kill()
    told = on_the_page(scene, lambda trouble: trouble["is_holding_up"])
    for text in told:
        assert str(scene.tarantool.port) in text
        assert "closed the connection" in text or "refused" in text
    assert "Start one of the members" in told.page


def test_kafka_is_lost(frail_scene: Scene) -> None:
    scene = frail_scene
    scene.daemon.settings["kafka"]["stalled_after_ms"] = 1_000
    follow(scene)
    scene.kafka.kill()
    try:
        scene.tarantool.eval("box.space.users:replace{2, 'two'}")
        told = on_the_page(scene, lambda trouble: trouble["place"] == "kafka" and trouble["is_holding_up"])
    finally:
        scene.kafka.start()
    assert any(reason in told.page for reason in ("refused", "brokers are down", "committed nothing"))
    assert "Check whether the brokers run" in told.page
    assert "kafka" in told.doctor
    assert "Check whether the brokers run" in told.doctor


def test_the_registry_refuses(scene: Scene) -> None:
    with FakeRegistry() as registry:
        scene.daemon.settings["format"] = {"value": "avro", "registry": {"url": registry.url, "auto_register": False}}
        scene.daemon.settings["kafka"]["partitions"] = 1
        scene.tarantool.eval(_CREATE)
        scene.daemon.start()
        told = on_the_page(scene, lambda trouble: trouble["place"] == "registry")
    for text in told:
        assert "users" in text
        assert "auto_register" in text


def test_the_disk_is_full(scene: Scene, small_disk: Path) -> None:
    scene.daemon.settings["state"]["path"] = str(small_disk / "state")
    follow(scene)
    scene.tarantool.eval("for i = 1, 40000 do box.space.users:replace{i, string.rep('x', 200)} end")
    told = at_the_end(scene)
    assert f"{small_disk}/state/images couldn't be written, there is no room left on its disk" in told.page
    assert "state.path" in told.doctor
    assert "MiB" in told.doctor


def test_logs_were_collected_before_they_were_read(scene: Scene) -> None:
    scene.daemon.settings["source"]["on_gap"] = "fail"
    follow(scene)
    scene.daemon.terminate()
    scene.tarantool.eval("for i = 1, 3 do box.space.users:replace{i, 'new'} end")
    forget_logs(scene)
    scene.daemon.start()
    told = at_the_end(scene)
    for text in told:
        assert "gap" in text
        assert "on_gap" in text or "snapshot" in text


def test_the_store_is_of_another(scene: Scene) -> None:
    follow(scene)
    scene.daemon.terminate()
    other = scene.new_daemon(f"{scene.prefix}-other", kafka={"topic_prefix": f"{scene.prefix}-other", "partitions": 1})
    shutil.copytree(scene.daemon.settings["state"]["path"], other.settings["state"]["path"])
    scene.daemon = other
    other.start()
    told = at_the_end(scene)
    for text in told:
        assert "state" in text
        assert scene.prefix in text


def test_rights_are_lacking(scene: Scene) -> None:
    scene.tarantool.eval("box.schema.user.create('poor', {password = 's'})")
    scene.daemon.settings["source"]["uris"] = [f"poor:s@127.0.0.1:{scene.tarantool.port}"]
    scene.tarantool.eval(_CREATE)
    scene.daemon.start()
    told = at_the_end(scene)
    for text in told:
        assert "poor" in text
        assert "replication" in text


def test_a_topic_is_deleted(scene: Scene) -> None:
    """It is told by every daemon that comes after, until the rows are there again, or an operator says that nobody needs them."""
    follow(scene)
    topic, daemon = f"{scene.prefix}.users", scene.daemon
    for number, ending in enumerate((("snapshot", "users"), ("topics", "--acknowledge", topic)), 2):
        delete_topics(scene, topic)
        scene.tarantool.eval(f"box.space.users:replace{{{number}, 'two'}}")
        told = on_the_page(scene, lambda trouble: trouble["loses_rows"])
        daemon.kill()
        at_rest = advice(scene)
        daemon.start()
        daemon.wait_until_streaming()
        for text in (*told, *on_the_page(scene, lambda trouble: trouble["loses_rows"]), at_rest):
            assert f"the topic {topic} was deleted" in text
        for text in (told.page, told.doctor, at_rest):
            assert "snapshot --config FILE users" in text
        assert "rows are lost" in at_rest
        assert command(daemon, *ending).returncode == 0
        daemon.wait_until("it is over", lambda status: not status["lost_topics"])
        daemon.kill()
        assert "was deleted" not in advice(scene)
        daemon.start()
        daemon.wait_until_streaming()
    assert complaint(daemon, "topics", "--acknowledge", topic).endswith("known are: none\n")
