"""What a browser shows of a daemon in each trouble: cause, remedy, the panel that it belongs to; at a desk and on a phone.

`PICTURES=folder pytest -m soak tests/live/test_page_panels.py` keeps the pictures.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from cdc.commands.doctor import doctor
from cdc.config.fleet import load_daemon
from cdc.local.interface import KafkaServer, TarantoolServer
from tests.conftest import TarantoolFactory
from tests.fakes.registry import FakeRegistry
from tests.live.browser import CHROMIUM, DESK, PHONE, Page, browser
from tests.live.cluster import Cluster
from tests.live.conftest import SceneFactory
from tests.live.proxy import Slow
from tests.live.scene import Scene
from tests.live.test_fleet import Fleet, _kill_quietly
from tests.live.test_moving_buckets import COPY, ROWS, STATE, sharded_masters
from tests.live.test_refusals import delete_topics
from tests.live.test_troubles import advice, follow
from tests.live.waiting import wait_for

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (Debian: apt-get install chromium)"),
]

_HEIGHTS: Final = {DESK: 620, PHONE: 1_000}


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with browser(tmp_path) as found:
        yield found


def show(page: Page, scene: Scene, *words: str) -> str:
    """Open a daemon's page, and wait for the words among its troubles; all that they say."""
    page.open(f"http://127.0.0.1:{scene.daemon._http_port}/")
    for word in words:
        page.wait_for_text("#troubles", word)
    return page.text("#troubles")


def keep(page: Page, folder: Path, name: str) -> None:
    """Look at it from a desk and on a phone, in light and dark: no program fails, and nothing is wider than the window."""
    pictures = Path(os.environ.get("PICTURES", folder))
    for size, is_dark in ((DESK, False), (DESK, True), (PHONE, True), (PHONE, False)):
        page.look(size, is_dark=is_dark)
        kind = f"{'desk' if size == DESK else 'phone'}-{'dark' if is_dark else 'light'}"
        page.picture(pictures / f"{name}-{kind}.png", _HEIGHTS[size])
        assert page.overflow <= 0, kind
        colour = page.value("getComputedStyle(document.body).backgroundColor")
        brightness = sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")[:3])
        assert (brightness < 384) is is_dark, (kind, colour)
    assert page.errors == []


def test_the_master_is_lost(page: Page, scene: Scene, tmp_path: Path) -> None:
    follow(scene)
    scene.tarantool.kill()
    text = show(page, scene, str(scene.tarantool.port), "Check that the server runs")
    assert "Nothing is wrong" not in text
    assert "stands still" in page.text("#way .stands")
    assert "Tarantool" in page.text("#way .stands")
    assert page.text("#state") == "connecting"
    keep(page, tmp_path, "master")


def test_kafka_is_lost(page: Page, frail_scene: Scene, tmp_path: Path) -> None:
    scene = frail_scene
    scene.daemon.settings["kafka"]["stalled_after_ms"] = 1_000
    follow(scene)
    scene.kafka.kill()
    try:
        scene.tarantool.eval("box.space.users:replace{2, 'two'}")
        show(page, scene, "Check whether the brokers run")
        page.wait_for_text("#troubles", "committed nothing")
        page.wait_for_text("#way .stands", "Kafka")
        assert page.text("#state") == "stalled"
        keep(page, tmp_path, "kafka")
    finally:
        scene.kafka.start()


def test_a_topic_is_deleted(page: Page, scene: Scene, tmp_path: Path) -> None:
    follow(scene)
    delete_topics(scene, f"{scene.prefix}.users")
    scene.tarantool.eval("box.space.users:replace{2, 'two'}")
    text = show(page, scene, "was deleted", "snapshot --config FILE users", "--acknowledge")
    assert "consumers lack rows" in text
    page.wait_for_text("#state", "streaming")
    keep(page, tmp_path, "topic")


def test_the_registry_refuses(page: Page, scene: Scene, tmp_path: Path) -> None:
    with FakeRegistry() as registry:
        scene.daemon.settings["format"] = {"value": "avro", "registry": {"url": registry.url, "auto_register": False}}
        scene.daemon.settings["kafka"]["partitions"] = 1
        scene.tarantool.eval("box.schema.space.create('users', {format = {{'id', 'unsigned'}}}):create_index('pk')")
        scene.tarantool.eval("box.space.users:insert{1}")
        scene.daemon.start()
        wait_for("it to answer", scene.daemon.status)
        show(page, scene, "auto_register", "users")
        assert "Registry" in page.text("#way .stands")
        assert "users" in page.text("#waits")
        keep(page, tmp_path, "registry")


def test_the_disk_is_full(page: Page, scene: Scene, small_disk: Path, tmp_path: Path) -> None:
    """The daemon ends, and takes the page with it: an open one says so, and keeps what it had."""
    scene.daemon.settings["state"]["path"] = str(small_disk / "state")
    follow(scene)
    show(page, scene, "Nothing is wrong")
    scene.tarantool.eval("for i = 1, 40000 do box.space.users:replace{i, string.rep('x', 200)} end")
    assert scene.daemon.wait_for_end(120) == 1
    page.wait_for_text("#silence", "doesn't answer")
    assert "Its log has its last words" in page.text("#silence")
    assert "Nothing is wrong" not in page.text("#troubles")
    keep(page, tmp_path, "disk")


def test_it_lags(page: Page, scene: Scene, tmp_path: Path) -> None:
    """It was away for a minute, and the way to the master is slow."""
    follow(scene)
    assert scene.daemon.terminate() == 0
    proxy = scene.proxy(lambda: Slow(20_000))
    scene.tarantool.eval("for i = 1, 20000 do box.space.users:replace{i, string.rep('x', 200)} end")
    written = time.monotonic()
    scene.daemon.settings["source"]["uris"] = [scene.tarantool.uri.replace(str(scene.tarantool.port), str(proxy.port))]
    wait_for("the rows to be old", lambda: time.monotonic() > written + 62, 90)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    text = show(page, scene, "what is published now was written", "If the lag falls, wait")
    assert "rows more" in text
    assert "rows go on" in text
    assert re.search(r"(\d\d+ s|min)\s+Lag\n", page.text("#numbers")), page.text("#numbers")
    assert page.text("#state") == "streaming"
    # Right after a commit there is no lag for a moment, and this may be the moment at which the command looks.
    wait_for("the advice", lambda: "If the lag falls, wait" in advice(scene), 60)
    keep(page, tmp_path, "lag")


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[Cluster]:
    """Two members; a synchronous transaction needs both."""
    with Cluster(tmp_path / "cluster", 2, synchro_quorum=2, synchro_timeout=600) as started:
        options = "{is_sync = true, format = {{'id', 'unsigned'}, {'word', 'string'}}}"
        started[0].eval(f"box.schema.space.create('quorum', {options}):create_index('primary')")
        started.wait_until_equal()
        started.hand_over(0)
        yield started


def test_a_quorum_is_not_reached(
    page: Page, scene_factory: SceneFactory, kafka: KafkaServer, quorum: Cluster, tmp_path: Path
) -> None:
    scene = scene_factory(kafka)
    scene.daemon.settings["source"] |= {"uris": quorum.uris, "quorum_alert_ms": 500}
    scene.daemon.settings["kafka"]["partitions"] = 1
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    quorum[1].pause()
    try:
        quorum.begin_write(0, "first", "box.space.quorum:insert{1, 'waits'}")
        show(page, scene, "quorum", "replication_synchro_quorum")
        assert "Quorum" in page.text("#way .holds")
        assert "1 transactions" in page.text("#waits")
        assert "replication_synchro_quorum" in advice(scene)
        keep(page, tmp_path, "quorum")
    finally:
        quorum[1].resume()


@pytest.fixture
def masters(tarantool_factory: TarantoolFactory) -> dict[str, TarantoolServer]:
    return sharded_masters(tarantool_factory)


@pytest.fixture
def fleet(tmp_path: Path, kafka: KafkaServer, masters: dict[str, TarantoolServer]) -> Iterator[Fleet]:
    made = Fleet(tmp_path, kafka, masters, "shared")
    text = made.file.read_text().replace("[source]\n", "[source]\nbucket_alert_ms = 500\n")
    made.file.write_text(text.replace("[fleet]\n", "[fleet]\nwatchdog_ms = 0\n"))
    yield made
    made.close()


def test_a_moved_bucket_waits(page: Page, fleet: Fleet, masters: dict[str, TarantoolServer], tmp_path: Path) -> None:
    """Its rows wait for the daemon of the shard where it was, which stands still."""
    fleet.start()
    wait_for("both stream", fleet.caught_up, 120)
    (one, here), (two, there) = masters.items()
    process = fleet.statuses()[one]["process_id"]
    os.kill(process, signal.SIGSTOP)
    try:
        here.eval("box.space.orders:replace{7, 1, 0}")
        here.eval(STATE, 1, "sending", there.replicaset_uuid, 1)
        there.eval(STATE, 1, "receiving", here.replicaset_uuid, 1)
        for row in here.eval(ROWS, 1)[0]:
            there.eval(COPY, [row])
        here.eval(STATE, 1, "sent", there.replicaset_uuid, 1)
        there.eval(STATE, 1, "active", None, 1)
        there.eval("box.space.orders:replace{7, 1, 1}")
        page.open(f"http://127.0.0.1:{fleet.port}/shards/{two}/")
        page.wait_for_text("#troubles", "bucket 1", 90)
        text = page.wait_for_text("#troubles", "Look at that shard's daemon")
        assert one in text
        lines: list[str] = []
        doctor(load_daemon(fleet.file, two), lines.append)
        assert "Look at that shard's daemon" in "\n".join(lines)
        keep(page, tmp_path, "bucket")
        page.open(f"http://127.0.0.1:{fleet.port}/")
        text = page.wait_for_text("#troubles", "bucket 1", 90)
        assert "doesn't answer" in page.wait_for_text("#troubles", one)
        page.wait_for_text("#state", "not all is well")
        assert "no answer" in page.text("#shards")
        assert f"kill -CONT {process}" in page.text("#troubles")
        keep(page, tmp_path, "fleet")
    finally:
        os.kill(process, signal.SIGCONT)
        _kill_quietly(process)
