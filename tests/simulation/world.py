"""The world: a daemon, the members that it follows, its Kafka, its disk and its operator, all from one seed."""

from __future__ import annotations

import dataclasses
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import structlog

from cdc.config import Config, parse
from cdc.daemon.admission import StartOptions
from cdc.daemon.supervisor import Daemon
from cdc.errors import CdcError
from cdc.positions.vclock import VClock
from cdc.store import files
from tests.fakes.interleavings import LimboWorkload
from tests.fakes.master import Ack
from tests.fakes.synchronous import SynchronousMaster
from tests.simulation import librdkafka
from tests.simulation.brokers import Brokers
from tests.simulation.judge import NAME, Judge
from tests.simulation.library import EPOCH_SECONDS, Library, installed, process_of
from tests.simulation.network import Link, Member, Network
from tests.simulation.scheduler import Process, Scheduler

PORT: Final = 3301
PATIENCE_SECONDS: Final = 180.0
"""Simulated time within which everything must have arrived once faults have stopped."""


@dataclasses.dataclass
class Life:
    """One process of the daemon."""

    process: Process
    daemon: Daemon | None = None
    error: CdcError | None = None
    is_over: bool = False


@dataclasses.dataclass
class Result:
    """What came of a seed."""

    seed: int
    step_count: int
    seconds: float
    event_count: int
    life_count: int
    walked: Counter[str]
    digest: str
    failure: BaseException | None = None
    trace: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Fault:
    """Something that goes wrong at a time of the run."""

    at: float
    kind: str
    seconds: float = 0.0


class World:
    """One seed's."""

    def __init__(self, seed: int, directory: Path, faults: list[Fault] | None = None, rounds: int | None = None) -> None:
        self.seed = seed
        self.scheduler = scheduler = Scheduler(seed)
        self.directory = directory
        plan = random.Random(f"plan {seed}")
        self.version = plan.choice(["2.6", "2.11", "3.3"])
        self.rounds = rounds if rounds is not None else plan.choice([10, 30, 60])
        self.walked: Counter[str] = Counter()
        self.network = Network(scheduler, self._acknowledged)
        self.library = Library(scheduler, self.network)
        self.network.descriptors = self.library.descriptors
        self.brokers = Brokers(scheduler, lambda: int((EPOCH_SECONDS + scheduler.now) * 1000))
        self.master = SynchronousMaster(self.version)
        self.judge = Judge(self.brokers, self.master)
        self.brokers.on_decide = self.judge.decide
        self.judge.stored = self._stored
        self._work_random = random.Random(f"work {seed}")
        self.workload = LimboWorkload(
            self.master, self._work_random, plan.choice([1, 1, 2, 3]), has_unseen_ends=self.version == "2.6"
        )
        self.member = Member(self.master, PORT, before_contents=self.workload.finish)
        self.network.members[PORT] = self.member
        self.lives: list[Life] = []
        self.boot = 0
        self.faults = faults if faults is not None else self._planned(plan)
        self.is_calm = False
        self._left = self.rounds
        self.config = self._config()

    # The plan.

    def _planned(self, plan: random.Random) -> list[Fault]:
        kinds = ["kill"]
        span = self.rounds * 0.03 + 0.5
        return sorted(
            (
                Fault(round(plan.random() * span, 4), plan.choice(kinds), round(plan.choice([0.05, 0.5, 3.0]) * plan.random(), 4))
                for _ in range(plan.choice([0, 1, 2, 4]))
            ),
            key=lambda fault: fault.at,
        )

    def _config(self) -> Config:
        return parse(
            {
                "name": NAME,
                "source": {"uris": [f"cdc:secret@127.0.0.1:{PORT}"]},
                "kafka": {
                    "bootstrap_servers": "127.0.0.1:9092",
                    "topic_prefix": NAME,
                    "partitions": 2,
                    "transaction_topic": "none",
                },
                "state": {"path": str(self.directory / "state")},
                "http": {"listen": ""},
            },
            "the simulation",
        )

    # What the product gets in place of its surroundings.

    def name(self, name: str) -> Any:
        """The world's object for a name of a module."""
        match name:
            case "wait":
                return self.library.wait
            case "WakePipe":
                return self.library.wake_pipe
            case "Admin":
                return lambda settings, *, logger: librdkafka.Admin(self.brokers)  # noqa: ARG005 - as it is called
            case "Consumer":
                return lambda settings, *, logger: librdkafka.Consumer(self.brokers, settings)  # noqa: ARG005
            case "Producer" | "BatchProducer":
                return lambda settings, *, logger: librdkafka.Producer(self.brokers, settings)  # noqa: ARG005
            case "boot_id":
                return lambda: f"boot {self.boot}"
            case "lock":
                return self._lock
            case "open_environment":
                return self._open_environment
            case "write_condition":
                return self._write_condition
        return getattr(self.library, name)

    def _lock(self, path: Path, holder: str) -> Any:
        held = files.lock(path, holder)
        process_of(self.scheduler).at_kill.append(held.close)
        return held

    def _open_environment(self, path: Path, *, is_clean: bool) -> Any:
        environment = files.open_environment(path, is_clean=is_clean)
        process_of(self.scheduler).at_kill.append(environment.close)
        return environment

    def _write_condition(self, path: Path, text: str) -> None:
        self.scheduler.check_alive()
        files.write_condition(path, text)

    # The daemon's life.

    def start(self, **options: bool) -> Life:
        """Start a process of the daemon."""
        life = Life(Process(f"daemon {len(self.lives) + 1}"))
        self.lives.append(life)

        def main() -> None:
            try:
                life.daemon = Daemon(self.config, StartOptions(**options))
                life.daemon.run()
            except CdcError as error:
                life.error = error
                self.scheduler.note(f"ends: {error}")
            finally:
                life.is_over = True

        self.scheduler.spawn(life.process, "main", main)
        return life

    @property
    def life(self) -> Life:
        """The newest process."""
        return self.lives[-1]

    def kill(self) -> None:
        """End it at once."""
        life = self.life
        if life.is_over or not life.process.is_alive:
            return
        self.scheduler.note("kill -9")
        if life.daemon is not None:
            self.walked[f"killed while {life.daemon.status.state}"] += 1
        self.scheduler.kill(life.process)
        life.is_over = True

    def _stored(self) -> VClock | None:
        daemon = self.life.daemon
        if daemon is None or daemon._writer is None or daemon._writer.position is None:
            return None
        return daemon._writer.position.vclock

    def _acknowledged(self, _: Link, ack: Ack) -> None:
        self.judge.acknowledged(ack)

    # What happens.

    def _work(self) -> None:
        self._left -= 1
        self.workload.run(self._work_random.randint(1, 6))
        if not self._left:
            self.workload.finish()
        self.member.wrote()
        if self._left:
            self.scheduler.after(self._work_random.random() * 0.06, self._work)

    def _strike(self, fault: Fault) -> None:
        self.walked[f"fault: {fault.kind}"] += 1
        self.scheduler.note(f"fault: {fault.kind}")
        match fault.kind:
            case "kill":
                self.kill()
                self.scheduler.after(fault.seconds, self._restart)
            case _:
                raise AssertionError(fault.kind)

    def _restart(self) -> None:
        if self.life.is_over:
            self.start()

    def _check(self) -> None:
        self.judge.read()
        life = self.life
        if life.is_over and life.error is not None:
            raise life.error

    # The run.

    def run(self) -> Result:
        """Live it, and judge it."""
        failure: BaseException | None = None
        scheduler = self.scheduler
        try:
            with installed(self.name), self._logged():
                try:
                    self._live()
                finally:
                    scheduler.current = None
                    for life in self.lives:
                        scheduler.kill(life.process)
        except (AssertionError, CdcError, Exception) as error:  # noqa: BLE001 - it is the result
            failure = error
        return Result(
            self.seed,
            scheduler.step_count,
            scheduler.now,
            self.judge.event_count,
            len(self.lives),
            self.walked,
            self.brokers.digest(),
            failure,
            tuple(scheduler.trace),
        )

    def _live(self) -> None:
        scheduler = self.scheduler
        self.start()
        scheduler.after(0.0, self._work)
        for fault in self.faults:
            scheduler.after(fault.at, lambda fault=fault: self._strike(fault))  # type: ignore[misc]
        last = max((fault.at + fault.seconds for fault in self.faults), default=0.0)
        scheduler.run(lambda: self._left == 0 and scheduler.now >= last, 10_000, check=self._check)
        scheduler.note("calm")
        self._restart()
        is_there = scheduler.run(self._is_settled, PATIENCE_SECONDS, check=self._check)
        assert is_there, f"not everything has arrived: {self._why()}"
        self.judge.check_end()
        daemon = self.life.daemon
        assert daemon is not None
        daemon.stop()
        assert scheduler.run(lambda: self.life.is_over, 60, check=self._check), "the daemon doesn't stop"

    def _is_settled(self) -> bool:
        """Whether everything has arrived, the daemon says so, and the member knows."""
        daemon = self.life.daemon
        if daemon is None or daemon.status.state != "streaming" or daemon.status.error is not None:
            return False
        relays = [link.relay for member in self.network.members.values() for link in member.links]
        acks = [relay.acks[-1].vclock for relay in relays if relay.acks]
        is_known = any(all(ack.get(origin, 0) >= lsn for origin, lsn in self.master.vclock.items()) for ack in acks)
        return is_known and self.judge.has_everything()

    def _why(self) -> str:
        daemon = self.life.daemon
        status = daemon.status.state if daemon is not None else None
        error = daemon.status.error if daemon is not None else None
        return f"the master has {self.master.vclock}, Kafka {self.judge.decided.vclock}; the daemon says {status}, {error}"

    @contextmanager
    def _logged(self) -> Iterator[None]:
        def line(_: object, method: str, event: MutableMapping[str, Any]) -> str:
            text = " ".join([str(event.pop("event")), *(f"{key}={value}" for key, value in event.items())])
            self.scheduler.note(f"{method}: {text}")
            raise structlog.DropEvent

        before = structlog.get_config()
        structlog.configure(processors=[line], cache_logger_on_first_use=False, wrapper_class=structlog.BoundLogger)
        try:
            yield
        finally:
            structlog.configure(**before)


def run_seed(seed: int, change: Callable[[World], None] = lambda _: None, **options: Any) -> Result:
    """Run one seed, on a disk that is in memory where there is one."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it
    directory = Path(tempfile.mkdtemp(prefix="simulation-", dir=memory if memory.is_dir() else None))
    try:
        world = World(seed, directory, **options)
        change(world)
        return world.run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
