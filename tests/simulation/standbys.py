"""Two machines whose daemons are each other's standby (`standby = true`), each with a service manager that restarts what ends.

What must hold beyond what holds for one: a standby claims the name only after the other's last sign of life or a silence that
Kafka confirms; it takes no snapshot then; and in the end it is ready, with the rows of the log in a store of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from cdc.kafka.errors import FencedError
from cdc.stream.commits.ownership import NameTakenError
from tests.simulation.judge import CHECKPOINT, NAME

if TYPE_CHECKING:
    from tests.simulation.world import Life, World

MACHINES: Final = (1, 2)
"""Also the numbers of their disks."""
SILENT_SECONDS: Final = 2.25
"""How long a daemon that was heard has been silent at least when its standby takes over, as docs/guarantees.md says."""
_LATE_SECONDS: Final = 15.0
"""How long a standby may take from the end of that silence until it claims: it reads the topics first, which may be slow."""
RESTART_SECONDS: Final = 0.5
"""After how long a service manager starts again what has ended."""


class Pair:
    """The two machines of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._active = 1
        self._has_gap = False
        self.rebuilds: set[int] = set()
        """Machines whose next process is told to rebuild its store."""

    @property
    def life(self) -> Life:
        """The newest process of the machine that had the name last."""
        return self.newest(self._active)

    @property
    def standby(self) -> Life:
        """The newest process of the other one."""
        return self.newest(3 - self._active)

    def newest(self, machine: int) -> Life:
        """The newest process of a machine."""
        return next(life for life in reversed(self._world.lives) if life.state_number == machine)

    def start(self) -> None:
        """Start both."""
        for machine in MACHINES:
            self._world.start(machine=machine)

    def restart(self) -> None:
        """What the service managers do: start what has ended."""
        for machine in MACHINES:
            life = self.newest(machine)
            if (life.is_over or not life.process.is_alive) and not self._world.is_disk_full:
                self._world.start(machine=machine, rebuild_state=machine in self.rebuilds)
                self.rebuilds.discard(machine)

    def logs_dropped(self) -> None:
        """Members have removed logs, which a standby may need."""
        self._has_gap = True

    def claimed(self, life: Life) -> None:
        """A process claims the name."""
        former, now = self.life, self._world.scheduler.now
        if former is not life:
            former.may_end_with += (FencedError, NameTakenError)
        is_beside = former is not life and former.process.is_awake and life.claimed_at is None
        if is_beside and life.has_stood_by:
            silence = max(self._silences(), default=SILENT_SECONDS)
            assert silence > SILENT_SECONDS - 0.001, (
                f"{life.process.name} claims the name after a silence of {silence:.3f} s, and {former.process.name} runs"
            )
        elif is_beside and former.claimed_at is not None:
            # It had the name last, for all that it could read before the other one has written.
            assert now - former.claimed_at < _LATE_SECONDS, f"{life.process.name} claims the name beside {former.process.name}"
        if life.claimed_at is None:
            snapshot = self._world.judge.decided.snapshot
            life.continues = life.has_stood_by and snapshot is not None and snapshot.is_complete
        life.claimed_at = now
        if life.state_number != self._active:
            self._active = life.state_number
            self._world.judge.may_forget = True
            self._world.walked["standby: takes over"] += 1

    def _silences(self) -> Iterator[float]:
        """The silences, in seconds, for which Kafka could vouch lately; without limit if the last sign was a last one."""
        brokers = self._world.brokers
        (partition,) = brokers.topics[CHECKPOINT]
        end = brokers.wall_ms()
        outage_end = end - (self._world.scheduler.now - brokers.down_until) * 1000
        for entry in reversed(partition.entries):
            identity = json.loads(entry.key) if entry.key else {}
            if identity not in ({"name": "", "alive": NAME}, {"name": NAME}) or entry.value is None:
                continue
            if json.loads(entry.value).get("is_last"):
                yield float("inf")
                return
            yield (end - max(outage_end, entry.ts_ms)) / 1000
            end = entry.ts_ms
            if (brokers.wall_ms() - end) / 1000 > _LATE_SECONDS or end < outage_end:
                return

    def took_snapshot(self, life: Life, reason: str) -> None:
        """A process takes a snapshot."""
        is_excused = self._has_gap or self._world.judge.may_jump
        assert not life.continues or is_excused, f"{life.process.name} takes a snapshot after it stood by: {reason}"

    def is_ready(self) -> bool:
        """Whether the standby could take over, with the rows at the newest checkpoint."""
        daemon, judge = self.standby.daemon, self._world.judge
        if daemon is None or daemon.status.state != "standby" or not daemon.status.is_standby_ready:
            return False
        stored = daemon._writer.position if daemon._writer is not None else None
        return not judge.has_images or (stored is not None and stored.vclock == judge.decided.vclock)
