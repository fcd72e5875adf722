"""Decides which of a fleet's daemons run: it starts, starts again or gives up each, by how its process has ended.

    waiting ─▶ running ─┬─ ended with status 0: it has reached its goal ─▶ done
       ▲                ├─ an error in the configuration ─▶ all others are stopped, and the fleet ends with that error
       │                ├─ another error of an operator, with --until-caught-up ─▶ the same
       └── back-off ◀───┴─ anything else: a signal, a crash, an error that may pass

Without --until-caught-up an error that needs an operator is tried again, too, as a service manager would: it concerns one shard,
and the others go on. The module starts no process and reads no clock; times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from signal import SIGTERM
from typing import Final

from cdc.upstream.failover import BackOff

DELAY_FIRST_SECONDS: Final = 0.5
DELAY_MAX_SECONDS: Final = 60.0
STEADY_SECONDS: Final = 60.0
"""Time after which a process that ends is started again as soon as one that ended for the first time."""


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


@dataclass(slots=True)
class ShardProcess:
    """What is known of a shard's process. `error` is why it ended last, None if that was in order."""

    phase: Phase = Phase.WAITING
    start_at: float = 0.0
    started_at: float = 0.0
    starts: int = 0
    error: str | None = None
    back_off: BackOff = field(default_factory=lambda: BackOff(DELAY_FIRST_SECONDS, DELAY_MAX_SECONDS))

    @property
    def restarts(self) -> int:
        """How often the process was started again."""
        return max(0, self.starts - 1)


class FleetProcesses:
    """The processes of a fleet's daemons."""

    def __init__(self, names: Iterable[str], *, until_caught_up: bool = False) -> None:
        self.shards: dict[str, ShardProcess] = {name: ShardProcess() for name in names}
        self._until_caught_up = until_caught_up
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

    def ended(self, name: str, status: int, failure: Failure | None, now: float) -> float | None:
        """Record the end of a shard's process, with its exit status, which is negative for a signal, and what it said of it.

        Return the delay before the process is started again, in seconds; None if it isn't.
        """
        shard = self.shards[name]
        shard.phase = Phase.DONE
        if status == 0:
            shard.error = None
            return None
        shard.error = failure.sentence if failure is not None else _ended_how(status)
        if self.is_stopping and status == -SIGTERM:
            shard.error = None  # it was told to stop before it could heed that, as it was being loaded, so nothing had begun
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


def _ended_how(status: int) -> str:
    return f"it was killed by signal {-status}" if status < 0 else f"it ended with exit status {status}"
