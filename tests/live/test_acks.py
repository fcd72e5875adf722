"""The master is told what is durable in Kafka and nothing beyond it, and is told so even while Kafka stands still."""

from __future__ import annotations

import itertools
import json
import threading
import time
from dataclasses import dataclass, field

import pytest

from tests.live.proxy import StallAfter, Straight
from tests.live.scene import Scene
from tests.live.test_gaps import forget_logs
from tests.live.topics import TopicReader
from tests.live.waiting import wait_for

VClock = dict[int, int]

MARKERS_SECONDS = 1.0
"""A commit is durable before Kafka has written the markers that show it to readers; this is how long they may take. Far less
than the time between two commits here, so an ACK of what is only received is still found out."""

STALLED_SECONDS = 15
"""kafka.stalled_after_ms, by default."""


def is_covered(one: VClock, by: VClock) -> bool:
    """Whether `by` has all that `one` has."""
    return all(by.get(origin, 0) >= lsn for origin, lsn in one.items())


@dataclass
class Auditor:
    """Sees each ACK before the master does and looks up what is committed at that time."""

    reader: TopicReader
    scene: Scene
    acks: list[VClock] = field(default_factory=list)
    beyond: list[tuple[VClock, VClock]] = field(default_factory=list)
    ahead_count: int = 0
    """At how many ACKs the daemon had received more than it acknowledged."""

    def __call__(self, ack: VClock) -> None:
        deadline = time.monotonic() + MARKERS_SECONDS
        while not is_covered(ack, committed := self._committed()) and time.monotonic() < deadline:
            pass
        self.acks.append(ack)
        if not is_covered(ack, committed):
            self.beyond.append((ack, committed))
        status = self.scene.daemon.status()
        if status is not None:
            received = {int(origin): lsn for origin, lsn in status["position"]["received"].items()}
            self.ahead_count += not is_covered(received, ack)

    def _committed(self) -> VClock:
        self.reader.look()
        ((_, records),) = self.reader.records.items()
        positions = [value for record in records if "vclock" in (value := json.loads(record.value or b"{}"))]
        return {int(origin): lsn for origin, lsn in positions[-1]["vclock"].items()}


def test_no_ack_is_beyond_the_committed_checkpoint(scene: Scene) -> None:
    scene.daemon.settings["source"]["ack_interval_ms"] = 50
    # Rare commits: what has been received is ahead of what is durable nearly all the time.
    scene.daemon.settings["kafka"] |= {"commit_interval_ms": 3000, "commit_pause_ms": 3000}
    scene.workload.create(500)
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix, only="checkpoint") as reader:
        auditor = Auditor(reader, scene)
        proxy = scene.proxy(on_ack=auditor)
        scene.workload.start(pause=0.005)
        scene.daemon.start()
        wait_for("many ACKs", lambda: len({tuple(ack.items()) for ack in auditor.acks}) >= 4)
        scene.daemon.restart_killed()
        count = len(auditor.acks)
        wait_for("ACKs of the second run", lambda: len(auditor.acks) > count + 20)
        scene.workload.stop()
        scene.catch_up()
        assert scene.daemon.terminate() == 0
        proxy.close()
    assert not auditor.beyond, (
        f"{len(auditor.beyond)} of {len(auditor.acks)} ACKs were beyond the checkpoint: {auditor.beyond[0]}"
    )
    # The second stream begins one row earlier, to recognize the row at the checkpoint, and can't acknowledge it before.
    back = [(earlier, later) for earlier, later in itertools.pairwise(auditor.acks) if not is_covered(earlier, later)]
    assert len(back) <= 1, f"ACKs went back: {back}"
    assert all(is_covered(earlier, VClock({origin: lsn + 1 for origin, lsn in later.items()})) for earlier, later in back), (
        f"too far: {back}"
    )
    assert auditor.ahead_count >= 10, "the daemon never had more than it acknowledged, so nothing was proven"


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(20_000, id="short"),
        pytest.param(400_000, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(1200)]),
    ],
)
def test_a_large_transaction_on_a_kafka_that_stands_still(frail_scene: Scene, count: int) -> None:
    """It takes far longer to publish than a silent replica is given, and its queue is full in the middle of it."""
    scene = frail_scene
    scene.daemon.settings["kafka"] |= {"queue_bytes_max": 2**20, "message_bytes_max": 2**20}
    scene.daemon.settings["kafka"]["properties"] |= {"transaction.timeout.ms": 300_000, "queue.buffering.max.kbytes": 2 * 1024}
    scene.daemon.settings["source"]["transaction_bytes_max"] = 2**20
    acks: list[float] = []
    proxy = scene.proxy(on_ack=lambda _: acks.append(time.monotonic()))
    scene.workload.create(10)
    scene.daemon.start()
    scene.catch_up()
    begin = time.monotonic()
    scene.tarantool.eval(
        f"box.begin() for id = 1, {count} do box.space.idle:replace{{id, 'one of very many rows'}} end box.commit()"
    )
    scene.daemon.wait_until("it is published", lambda status: status["rows"] > 2_000)
    scene.kafka.pause()
    try:
        status = scene.daemon.wait_until("it waits for room", lambda status: not status["buffers"]["is_reading"])
        paused_at = time.monotonic()
        wait_for("ACKs", lambda: sum(at > paused_at for at in acks) >= 10)
    finally:
        scene.kafka.resume()
    scene.catch_up()
    gaps = [later - earlier for earlier, later in itertools.pairwise([begin, *(at for at in acks if at > begin)])]
    assert max(gaps) <= 2.0, f"{max(gaps):.2f} s without an ACK"
    assert proxy.connection_count == 1, "the master has dropped the connection"
    assert status["buffers"]["queued_bytes"] < 4 * 2**20
    assert status["buffers"]["unwritten_bytes"] > 0
    scene.check()


def test_what_a_snapshot_lacks_waits_for_room(frail_scene: Scene) -> None:
    """Its rows are all that the daemon has read, and what they lack comes out of the store, as much as that may be."""
    scene, count = frail_scene, 12_000
    scene.daemon.settings["kafka"] |= {"queue_bytes_max": 2**20, "message_bytes_max": 2**20}
    scene.daemon.settings["kafka"]["properties"] |= {"transaction.timeout.ms": 300_000, "queue.buffering.max.kbytes": 2 * 1024}
    scene.workload.create(10)
    scene.tarantool.eval(f"box.begin() for id = 1, {count} do box.space.idle:replace{{id, 'one of many rows'}} end box.commit()")
    scene.daemon.start()
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    scene.tarantool.eval("box.begin() for _, row in box.space.idle:pairs() do box.space.idle:delete(row[1]) end box.commit()")
    forget_logs(scene)
    stall = StallAfter(4_000)
    courses = iter([stall])
    scene.proxy(lambda: next(courses, Straight()))
    scene.daemon.start()
    assert stall.has_stalled.wait(60)
    scene.daemon.wait_until("a snapshot has begun", lambda status: status["state"] == "snapshot")
    scene.kafka.pause()
    try:
        stall.is_released.set()
        status = scene.daemon.wait_until("it waits for room", lambda status: not status["buffers"]["is_reading"])
        queued = [status["buffers"]["queued_bytes"]]
        for _ in range(10):
            now = scene.daemon.status()
            assert now is not None
            queued.append(now["buffers"]["queued_bytes"])
    finally:
        scene.kafka.resume()
    scene.catch_up()
    assert 2**20 <= max(queued) < 4 * 2**20, "each row that is deleted takes some hundred bytes"
    stream = scene.check()
    assert sum(event.op == "d" and event.source["table"] == "idle" for event in stream.events) >= count


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(4, id="short"),
        pytest.param(120, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
    ],
)
def test_kafka_stands_still_under_a_busy_master(frail_scene: Scene, seconds: float) -> None:
    """ACKs go on and don't advance, the master keeps the connection, memory stays flat; then everything arrives."""
    scene = frail_scene
    # Kafka must not count the time in which it stood still against the daemon: that is another test's matter.
    scene.daemon.settings["kafka"]["properties"]["transaction.timeout.ms"] = 300_000
    acks: list[tuple[float, VClock]] = []
    proxy = scene.proxy(on_ack=lambda ack: acks.append((time.monotonic(), ack)))
    scene.workload.create(500)
    scene.daemon.start()
    scene.catch_up()
    scene.workload.start(pause=0.005)
    scene.tarantool.eval(_FLOOD)
    scene.daemon.wait_until("rows flow", lambda status: status["rows"] > 6_000)
    # Where a topic is about to be made, the daemon goes back to the checkpoint, as nobody answers.
    scene.workload.stop()
    scene.catch_up()
    scene.kafka.pause()
    try:
        scene.daemon.wait_until("it has stopped reading", lambda status: not status["buffers"]["is_reading"])
        begin, frozen_ack, resident = time.monotonic(), acks[-1][1], [scene.daemon.anonymous_bytes]
        lsn = scene.tarantool.vclock()[1]
        while time.monotonic() < begin + seconds:
            threading.Event().wait(0.25)
            resident.append(scene.daemon.anonymous_bytes)
        end = time.monotonic()
        assert scene.tarantool.vclock()[1] > lsn + 300 * seconds, "the master was not busy"
        assert scene.tarantool.eval("return box.info.replication_anon.count") == [1], "the master has dropped the connection"
        status = scene.daemon.status()
        assert status is not None
        assert status["state"] == ("stalled" if seconds > STALLED_SECONDS else "streaming")
    finally:
        scene.kafka.resume()
    within = [(at, ack) for at, ack in acks if begin < at < end]
    gaps = [later - earlier for earlier, later in itertools.pairwise([begin, *(at for at, _ in within), end])]
    assert max(gaps) <= 1.0, f"{max(gaps):.2f} s without an ACK"
    assert {tuple(ack.items()) for _, ack in within} == {tuple(frozen_ack.items())}, "an ACK advanced while Kafka stood still"
    assert max(resident) < 300 * 2**20, f"{max(resident) / 2**20:.0f} MB"
    assert max(resident) - resident[0] < 24 * 2**20, f"grew from {resident[0] / 2**20:.0f} to {max(resident) / 2**20:.0f} MB"
    scene.tarantool.eval("flooding = false")
    scene.catch_up()
    # Kafka, back again, may have ended the open transaction; going back to the checkpoint takes another connection.
    status = scene.daemon.status()
    assert status is not None
    assert scene.daemon.terminate() == 0
    assert proxy.connection_count == 1 + status["kafka"]["aborts"]
    scene.check()


_FLOOD = """
flooding = true
local fiber = require('fiber')
local payload = string.rep('flood ', 250) -- few large rows: what fills up is counted in bytes
fiber.create(function()
    local id = 0
    while flooding do
        box.begin()
        for _ = 1, 16 do
            id = id + 1
            box.space.idle:replace{id % 1000, payload}
        end
        box.commit()
        fiber.sleep(0.005)
    end
end)
"""
