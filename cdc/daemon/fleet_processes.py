"""Decides which of a fleet's daemons run: it starts, starts again or gives up each, by how its process has ended.

    waiting ─▶ running ─┬─ ended with status 0, with --until-caught-up: it has caught up ─▶ done
       ▲                ├─ an error in the configuration ─▶ all others are stopped, and the fleet ends with that error
       │                ├─ another error of an operator, with --until-caught-up ─▶ the same
       └── back-off ◀───┴─ anything else: a signal, also one that stops it in order, a crash, an error that may pass

Without --until-caught-up an error that needs an operator is tried again, too, as a service manager would: it concerns one shard,
and the others go on.

A daemon tells each second that it is well. One that hasn't for `watchdog_seconds` is frozen (stopped by a signal, or by its
debugger), or a thread that it can't do without is stuck: it is killed, and so started again. One that waits, for Kafka say, or
that reads a long snapshot, tells all the same. Time in which the fleet's own process didn't run (a machine that was suspended,
or out of memory) isn't counted: the daemons may not have run then either.

The module starts no process and reads no clock; times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from signal import SIGINT, SIGKILL, SIGTERM, SIGUSR2
from typing import Final

from cdc.ops.silence import SILENT_SECONDS
from cdc.upstream.failover import BackOff

DELAY_FIRST_SECONDS: Final = 0.5
DELAY_MAX_SECONDS: Final = 60.0
STEADY_SECONDS: Final = 60.0
"""Time after which a process that ends is started again as soon as one that ended for the first time."""
LOOK_SECONDS: Final = 1.0
"""Interval between two calls of `look`."""
_INTERRUPTED: Final = 130
"""Exit status of a command that SIGINT has ended before it could heed that."""
_LOOK_SECONDS_MAX: Final = 3.0
"""Time between two calls of `look` above which the fleet's own process didn't run."""


class Phase(Enum):
    """What a shard's process does."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Failure:
    """The error with which a daemon ended: its sentence, and whether the configuration is wrong, or an operator must act."""

    sentence: str
    is_configuration: bool = False
    needs_operator: bool = False


class Measure(Enum):
    """What is to be done about a daemon that doesn't tell that it is well."""

    TELL = "tell"
    """Operators are told, and it is asked where its threads are."""
    KILL = "kill"


@dataclass(slots=True)
class ShardProcess:
    """What is known of a shard's process. `error` is why it ended last, None if that was in order."""

    phase: Phase = Phase.WAITING
    start_at: float = 0.0
    started_at: float = 0.0
    starts: int = 0
    error: str | None = None
    silent_seconds: float = 0.0
    """How long the daemon hasn't told that it is well."""
    lifelessness: str | None = None
    """Why it can't go on, as it says itself."""
    taken: set[Measure] = field(default_factory=set)
    """What has been done about its present silence."""
    has_told: bool = False
    """Whether this process has told anything about itself, so that it has begun its work."""
    back_off: BackOff = field(default_factory=lambda: BackOff(DELAY_FIRST_SECONDS, DELAY_MAX_SECONDS))

    @property
    def restarts(self) -> int:
        """How often the process was started again."""
        return max(0, self.starts - 1)


class FleetProcesses:
    """The processes of a fleet's daemons."""

    def __init__(self, names: Iterable[str], *, until_caught_up: bool = False, watchdog_seconds: float | None = None) -> None:
        """With `watchdog_seconds` None no silent daemon is killed."""
        self.shards: dict[str, ShardProcess] = {name: ShardProcess() for name in names}
        self.watchdog_seconds = watchdog_seconds
        self._until_caught_up = until_caught_up
        self._looked_at: float | None = None
        self.is_stopping = False
        """Whether no process is started any more, and those that run are asked to stop."""
        self.fatal: tuple[str, str] | None = None
        """The shard whose error ended the fleet, and the error's sentence."""
        self._unclean: dict[str, str] = {}

    def due(self, now: float) -> list[str]:
        """Return the shards whose processes are to be started now."""
        if self.is_stopping:
            return []
        return [name for name, shard in self.shards.items() if shard.phase is Phase.WAITING and shard.start_at <= now]

    def wait_seconds(self, now: float) -> float | None:
        """Return the time until the next process is due; None if none will be."""
        times = [] if self.is_stopping else [shard.start_at for shard in self.shards.values() if shard.phase is Phase.WAITING]
        return max(0.0, min(times) - now) if times else None

    def started(self, name: str, now: float) -> None:
        """Record that a shard's process was started."""
        shard = self.shards[name]
        shard.phase, shard.started_at, shard.starts = Phase.RUNNING, now, shard.starts + 1
        shard.has_told = False
        self._break_silence(shard)

    def heard(self, name: str, lifelessness: str | None) -> None:
        """Record that a daemon has told that it is well, or why it can't go on."""
        shard = self.shards[name]
        shard.has_told = True
        if lifelessness is None:
            self._break_silence(shard)
        shard.lifelessness = lifelessness

    def look(self, now: float) -> list[tuple[str, Measure]]:
        """Return what is to be done now about daemons that are silent. To be called every LOOK_SECONDS."""
        passed = min(now - self._looked_at, _LOOK_SECONDS_MAX) if self._looked_at is not None else 0.0
        self._looked_at = now
        due = []
        for name in self.running:
            shard = self.shards[name]
            shard.silent_seconds += passed
            limits = {Measure.TELL: SILENT_SECONDS, Measure.KILL: self.watchdog_seconds}
            for what, seconds in limits.items():
                if seconds is not None and shard.silent_seconds >= seconds and what not in shard.taken:
                    shard.taken.add(what)
                    due.append((name, what))
        return due

    @staticmethod
    def _break_silence(shard: ShardProcess) -> None:
        shard.silent_seconds, shard.lifelessness = 0.0, None
        shard.taken.clear()

    def ended(self, name: str, status: int, failure: Failure | None, now: float) -> float | None:
        """Record the end of a shard's process, with its exit status, which is negative for a signal, and what it said of it.

        Return the delay before the process is started again, in seconds; None if it isn't.
        """
        shard = self.shards[name]
        shard.phase = Phase.DONE
        if status == 0 and (self._until_caught_up or self.is_stopping):
            shard.error = None
            return None
        shard.error = failure.sentence if failure is not None else _ended_how(status, shard)
        if self.is_stopping and status in (-SIGTERM, -SIGINT, _INTERRUPTED, -SIGUSR2):
            # It was told to stop, by the fleet or by a terminal's Ctrl-C, before it could heed that, as it was being loaded, so
            # nothing had begun. Or it was asked where its threads are as it was ending, when it heeds no signal any more, so all
            # was done.
            shard.error = None
            return None
        if self.is_stopping:
            self._unclean[name] = shard.error
            return None
        if failure is not None and (failure.is_configuration or (failure.needs_operator and self._until_caught_up)):
            self.fatal, self.is_stopping = (name, failure.sentence), True
            return None
        if now - shard.started_at >= STEADY_SECONDS:
            shard.back_off.reset()
        delay = shard.back_off.next()
        shard.phase, shard.start_at = Phase.WAITING, now + delay
        return delay

    def need(self, name: str, now: float) -> None:
        """Record that another shard waits for this one. If it has ended as it had caught up, it is started again."""
        shard = self.shards.get(name)
        if shard is not None and self._until_caught_up and not self.is_stopping and shard.phase is Phase.DONE:
            shard.phase, shard.start_at = Phase.WAITING, now

    def stop(self) -> None:
        """Record that the fleet is to stop."""
        self.is_stopping = True

    @property
    def running(self) -> list[str]:
        """The shards whose processes run."""
        return [name for name, shard in self.shards.items() if shard.phase is Phase.RUNNING]

    def is_over(self) -> bool:
        """Whether no process runs, and none will be started."""
        return not self.running and (self.is_stopping or all(shard.phase is Phase.DONE for shard in self.shards.values()))

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield the shards with which the fleet ends badly, and why; the one that ended it first."""
        if self.fatal is not None:
            yield self.fatal
        yield from self._unclean.items()


def _ended_how(status: int, shard: ShardProcess) -> str:
    if status == 0:
        return "it has stopped in order, and the fleet hadn't told it to: somebody has sent its process SIGTERM or SIGINT"
    if Measure.KILL in shard.taken and status == -SIGKILL:
        why = f": {shard.lifelessness}" if shard.lifelessness is not None else ""
        return f"it was killed by the fleet's watchdog, as it had answered nothing for {shard.silent_seconds:.0f} s{why}"
    return f"it was killed by signal {-status}" if status < 0 else f"it ended with exit status {status}"
