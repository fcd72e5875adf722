"""A standby takes over from a daemon that is killed or frozen, again and again, and nothing is lost or comes twice."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

import pytest

from tests.live.daemon import DaemonProcess
from tests.live.scene import Scene

DEATH_SECONDS_MAX, SILENCE_SECONDS_MAX = 5.0, 15.0
"""What is promised on a machine that has time for it."""
Harm = Literal["kill", "freeze", "terminate"]
STEPS: Final = {"noticed": "taking over", "claimed": "kafka is ready", "subscribed": "following"}
"""What the log says at the end of each step of a takeover. The last step ends with the first events that are committed."""


def wait_until_ready(standby: DaemonProcess) -> None:
    """Wait until it could take over."""
    standby.wait_until(
        "it stands by", lambda status: status["state"] == "standby" and status["standby"]["is_ready"] and standby.is_ready()
    )


@dataclass
class Pair:
    """Two daemons of one name, of which one publishes and the other stands by."""

    scene: Scene
    active: DaemonProcess
    standby: DaemonProcess
    timelines: list[dict[str, float]] = field(default_factory=list)
    """How long each step of each takeover took, in seconds."""
    gaps: dict[Harm, list[float]] = field(default_factory=lambda: {"kill": [], "freeze": [], "terminate": []})

    @classmethod
    def of(cls, scene: Scene) -> Pair:
        """Start both."""
        pair = cls(scene, scene.daemon, scene.new_daemon())
        pair.active.start("--standby")
        pair.active.wait_until_streaming()
        pair.standby.start("--standby")
        wait_until_ready(pair.standby)
        return pair

    def take_over(self, harm: Harm) -> None:
        """Do harm to the one that publishes, and wait until the other does."""
        former, successor = self.active, self.standby
        began, began_at = time.monotonic(), time.time()
        match harm:
            case "kill":
                former.kill()
            case "freeze":
                os.kill(former.run.pid, signal.SIGSTOP)
            case "terminate":
                assert former.terminate() == 0
                began, began_at = time.monotonic(), time.time()
        # The first commit is the claim, the second has events.
        successor.wait_until("it has taken over", lambda status: status["kafka"]["commits"] > 1 and status["kafka"]["events"])
        self.gaps[harm].append(time.monotonic() - began)
        self.timelines.append(timeline(successor.run.log_text(), began_at, time.time()))
        print(harm, " ".join(f"{step} {seconds:.2f}" for step, seconds in self.timelines[-1].items()))
        self.active, self.standby = successor, former
        self.scene.daemon = successor
        if harm == "freeze":
            os.kill(former.run.pid, signal.SIGCONT)
            assert former.wait_for_end() == 1, "it was fenced"
            assert f"taken the name {former.name!r}" in former.run.log_tail(3)

    def stand_by(self) -> None:
        """Have the former one, which has ended, stand by."""
        self.standby.start("--standby")
        wait_until_ready(self.standby)

    def close(self) -> None:
        """Let both end, and the workload before."""
        self.scene.workload.stop()
        self.scene.catch_up()
        assert self.active.terminate() == 0
        for daemon in (self.standby, self.active):
            assert "snapshot" not in daemon.run.log_text().partition("waiting as a standby")[2], "a takeover needs none"
            daemon.start(command="verify")
            assert daemon.wait_for_end() == 0, daemon.run.log_tail()


def timeline(log: str, began: float, ended: float) -> dict[str, float]:
    """How long each step of a takeover took, by the log of the daemon that has taken over."""
    found: dict[str, float] = {}
    before, lines = began, log.splitlines()
    for step, phrase in STEPS.items():
        # Before, as a standby, it followed the server, too.
        while phrase not in lines[0]:
            del lines[0]
        now = datetime.fromisoformat(lines[0].split()[0]).timestamp()
        found[step], before = now - before, now
    return {**found, "events": ended - before}


@pytest.mark.parametrize(
    ("count", "delivery"),
    [
        pytest.param(3, "exactly_once", id="short"),
        # Run alone, on a machine that does nothing else, with -s: 20 of each in turn.
        pytest.param(40, "exactly_once", id="measured", marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
        pytest.param(100, "exactly_once", id="long", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
        pytest.param(12, "at_least_once", id="at least once", marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
def test_takeovers(scene: Scene, count: int, delivery: str, seed: int) -> None:
    chance = random.Random(seed)
    scene.daemon.settings["kafka"]["delivery"] = delivery
    scene.workload.create(500)
    scene.workload.start(pause=0.02, rows_max=500)
    pair = Pair.of(scene)
    pair.standby.settings["kafka"]["delivery"] = delivery
    planned: dict[int, list[Harm]] = {3: ["kill", "freeze", "terminate"], 40: ["kill", "freeze"] * 20}
    harms = planned.get(count, [])
    for number in range(count):
        if number:
            pair.stand_by()
        time.sleep(chance.random() * 0.3)  # the moment is random, so there is nothing to wait for
        pair.take_over(harms.pop() if harms else chance.choice(("kill", "freeze")))
    pair.close()
    for harm, gaps in pair.gaps.items():
        if gaps:
            print(f"{harm}: {len(gaps)} takeovers, {statistics.median(gaps):.2f} s in the median, {max(gaps):.2f} s at worst")
    for step in pair.timelines[0]:
        took = [each[step] for each in pair.timelines]
        print(f"{step}: {statistics.median(took):.2f} s in the median, {max(took):.2f} s at worst")
    scene.check_as_promised()
