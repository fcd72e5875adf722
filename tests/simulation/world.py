"""The world: a daemon, the members that it follows, its Kafka, its disk and its operator, all from one seed."""

from __future__ import annotations

import dataclasses
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import lmdb
import structlog

from cdc.config import Config, parse
from cdc.daemon.admission import StartOptions
from cdc.daemon.supervisor import Daemon
from cdc.errors import CdcError, ForeignServerError, StateError, UnknownSpaceError
from cdc.store import files
from cdc.store.store import StateStore
from cdc.store.writer import numbers_in
from cdc.stream.batches import compiled_rows
from cdc.stream.commits.ownership import NameTakenError
from cdc.upstream.start import StateForeignError
from tests.fakes.interleavings import LimboWorkload
from tests.fakes.master import Ack
from tests.simulation import edges, librdkafka
from tests.simulation.brokers import Brokers
from tests.simulation.disks import CONDITION, DATA, Disks
from tests.simulation.faults import Fault, Strikes, planned
from tests.simulation.judge import CHECKPOINT, NAME, Judge
from tests.simulation.library import EPOCH_SECONDS, Library, installed
from tests.simulation.members import Writer, catch_up, lagging
from tests.simulation.network import Link, Member, Network
from tests.simulation.operators import Operators
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.standbys import RESTART_SECONDS, Pair
from tests.simulation.vinyl import ORIGIN, VinylSpace

PORT: Final = 3301
_PAIR_SHARE: Final = 0.2
"""Share of the seeds in which there are two machines, with a standby on one of them."""
_VINYL_SHARE: Final = 0.2
"""Share of those with images that have a space in vinyl."""
PATIENCE_SECONDS: Final = 180.0
"""Simulated time within which everything must have arrived once faults have stopped."""

_BATCH_BYTES: Final = 2 << 20
"""By how much the queue may exceed its limit: one batch."""


@dataclasses.dataclass
class Life:
    """One process of the daemon."""

    process: Process
    daemon: Daemon | None = None
    error: CdcError | None = None
    is_over: bool = False
    may_end_with: tuple[type[CdcError], ...] = ()
    """Errors that are right in this world: a daemon that is fenced, a disk that is full."""
    is_second: bool = False
    takes_over: bool = False
    state_number: int = 1
    """Of its disk."""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Its configuration."""
    has_stood_by: bool = False
    """Whether it has waited as a standby until the other one was gone."""
    continues: bool = False
    """Whether it has to go on then where the other one was, without a snapshot."""
    claimed_at: float | None = None
    """When it last claimed the name."""


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
    faults: tuple[Fault, ...]
    rounds: int
    failure: BaseException | None = None
    trace: tuple[str, ...] = ()


class World:
    """One seed's."""

    def __init__(
        self,
        seed: int,
        directory: Path,
        faults: list[Fault] | None = None,
        rounds: int | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.seed = seed
        self.scheduler = scheduler = Scheduler(seed)
        self.directory = directory
        plan = random.Random(f"plan {seed}")
        self.version = plan.choice(["2.6", "2.11", "3.3"])
        self.is_python = plan.random() < 0.5
        """Whether the Python row path is used, whatever the machine has."""
        drawn = plan.choice([5, 15, 40])
        self.rounds = rounds if rounds is not None else drawn
        self.walked: Counter[str] = Counter()
        self.network = Network(scheduler, self._acknowledged)
        self.library = Library(scheduler, self.network)
        self.network.descriptors = self.library.descriptors
        self.disks = Disks(scheduler.random)
        self.library.os.fsync = self.disks.fsync
        self.brokers = Brokers(scheduler, lambda: int((EPOCH_SECONDS + scheduler.now) * 1000))
        self.master = Writer(self.version)
        for number in (2, 3):
            assert self.master.enroll(UUID(int=number)) == number
        self.judge = Judge(self.brokers, self.master)
        self.brokers.on_decide = self.judge.decide
        self.brokers.on_lost = lambda: self.judge.lost_checkpoints(self.brokers.topics[CHECKPOINT][0])
        self.brokers.on_claim = self._claimed
        self._work_random = random.Random(f"work {seed}")
        self.workload = LimboWorkload(
            self.master, self._work_random, plan.choice([1, 1, 2, 3]), has_unseen_ends=self.version == "2.6"
        )
        self.member = Member(self.master, PORT, before_contents=self.workload.finish)
        self.network.members[PORT] = self.member
        self.master.remember()
        self._add_replicas(plan)
        self.lives: list[Life] = []
        self.boots: Counter[int] = Counter()
        """By disk: how often its machine has lost its power."""
        self.operators = Operators(self)
        self.pair = Pair(self) if random.Random(f"pair {seed}").random() < _PAIR_SHARE else None
        self.is_disk_full = self.is_calm = False
        is_exact = plan.random() < 0.75
        obeys_signals = plan.random() < 0.4
        has_records = self.judge.has_transaction_topic = plan.random() < 0.4
        self.settings: dict[str, dict[str, Any]] = {
            "source": {
                "mode": plan.choice(["anonymous", "anonymous", "registered"]),
                "transaction_bytes_max": plan.choice([1024, 64 << 20]),
            },
            "kafka": {
                "commit_pause_ms": plan.choice([0, 30]),
                "queue_bytes_max": plan.choice([1024, 32 << 20]),
                "transaction_topic": "all" if has_records else "none",
                "signal_topic": obeys_signals,
                "notification_topic": obeys_signals,
            },
            "state": {"flush_interval_ms": plan.choice([0, 500, 2000])},
        }
        if len(self.network.members) == 1:
            self.settings["source"]["on_divergence"] = "resnapshot"
        self.vinyl: VinylSpace | None = None
        self.image_choices: list[str] = []
        """What state.images may become at a restart; nothing if it stays as it is."""
        self.first_gc_vclock = dict(self.master.gc_vclock)
        self.deliver(is_exact=is_exact)
        if is_exact and plan.random() < 0.25:
            self.keep_images(plan.choice(["none", "source"]))
        # Without images nobody has the rows that would be published again.
        self.workload.alters_keys = self.judge.has_images and plan.random() < 0.5
        self.brokers.queue_count_max = plan.choice([20, 100_000])
        self._state_count = 1
        # The newest process, and what it shows.
        self._state = (0, "")
        self._followed: str | None = None
        self._is_moving = False
        self._takes_over = True
        self.faults = planned(plan, self.rounds * 0.03 + 0.5, weights or {}) if faults is None else faults
        self.disks.is_watching = any(fault.kind in ("power off", "disk lies") for fault in self.faults)
        # A NOP isn't compared with what comes under its lsn later, so nobody notices another history there.
        self.workload.has_nops = all(fault.kind != "history rewritten" for fault in self.faults)
        if is_exact and self.pair is None and any(fault.kind == "images switched" for fault in self.faults):
            self.mix_images(has_source=plan.random() < 0.5)
        elif self.judge.has_images and self.workload.has_nops and random.Random(f"vinyl {seed}").random() < _VINYL_SHARE:
            self.add_vinyl()
        self._strikes = Strikes(self)
        self._left = self.rounds

    def deliver(self, *, is_exact: bool) -> None:
        """Set the way of delivery."""
        if not is_exact:
            # Patches that come again with other numbers can't be told from new ones.
            self.keep_images("full")
        self.judge.is_exact = is_exact
        self.settings["kafka"]["delivery"] = "exactly_once" if is_exact else "at_least_once"

    def keep_images(self, images: str) -> None:
        """Set state.images for good."""
        self.image_choices = []
        self.settings["state"]["images"] = images
        self.judge.keep_images(images)
        self.master.writes_images = images == "source"
        # Without images all requests are published as they are.
        self.vinyl = self.vinyl if images == "full" else None
        if self.vinyl is not None:
            self.judge.watch_vinyl(self.vinyl)

    def add_vinyl(self) -> None:
        """There is a space in vinyl, too."""
        assert self.master.enroll(UUID(int=ORIGIN)) == ORIGIN
        self.vinyl = VinylSpace(self.master, random.Random(f"vinyl rows {self.seed}"))
        self.master.remember()
        self.settings["format"] = {"on_image_error": "dlq"}
        self.judge.watch_vinyl(self.vinyl)

    def mix_images(self, *, has_source: bool) -> None:
        """state.images may change from one start to the next: between full and none, or three ways if the log has images, too."""
        self.judge.keep_images("mixed")
        self.master.writes_images = has_source
        # Rows that were published under another key aren't published again without images.
        self.workload.alters_keys = False
        self.image_choices = ["full", "none", *(["source"] if has_source else [])]
        self.settings["state"]["images"] = self.scheduler.random.choice(self.image_choices)

    def leave_out(self, pattern: str) -> None:
        """From the next start on, spaces with such names aren't published."""
        self.settings = {**self.settings, "spaces": {"exclude": [pattern]}}
        self.judge.leave_out(pattern)

    def include_all(self) -> None:
        """All are published again, by a process that is started now."""
        self.settings = {name: section for name, section in self.settings.items() if name != "spaces"}
        if self.life.settings.get("spaces") and self.life.daemon is not None:
            self.life.daemon.stop()
            self.scheduler.after(0.5, self.restart)

    def _add_replicas(self, plan: random.Random) -> None:
        """Some seeds have members that lag behind the one that writes."""
        for number in range(2, 2 + plan.choice([0, 0, 1, 2])):
            replica = Member(lagging(self.master, number), PORT + number - 1)
            # It is asked for its contents only where nothing waits for a quorum.
            replica.before_contents = lambda replica=replica: self._settle(replica)  # type: ignore[misc]
            self.network.members[replica.port] = replica

    def _settle(self, replica: Member) -> None:
        self.workload.finish()
        self.master.remember()
        catch_up(replica.master, self.master, 1.0)

    def _replicate(self, replica: Member) -> None:
        if replica.is_foreign:
            return
        catch_up(replica.master, self.master, self.scheduler.random.choice([0.0, 0.5, 1.0]) if self._left else 1.0)
        replica.wrote()

    def _config(self, state: str) -> Config:
        own: dict[str, dict[str, Any]] = {
            "source": {"uris": [f"cdc:secret@127.0.0.1:{port}" for port in self.network.members]},
            "kafka": {
                "bootstrap_servers": "127.0.0.1:9092",
                "topic_prefix": NAME,
                "partitions": 2,
            },
            "state": {"path": str(self.directory / state)},
            "http": {"listen": ""},
        }
        return parse(
            {
                **self.settings,
                "name": NAME,
                "standby": self.pair is not None,
                **{key: {**value, **self.settings.get(key, {})} for key, value in own.items()},
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
            case "compiled_row_path":
                return (lambda *_: None) if self.is_python else compiled_rows.compiled_row_path
            case "boot_id":
                return self._boot_id
            case "lock":
                return self._lock
            case "open_environment":
                return self._open_environment
            case "write_condition":
                return self._write_condition
        return getattr(self.library, name)

    def _boot_id(self) -> str:
        current = self.scheduler.current
        machine = self._life_of(current.process).state_number if current is not None else self.life.state_number
        return f"boot {self.boots[machine]} of {machine}"

    def _lock(self, path: Path, holder: str) -> Any:
        held = files.lock(path, holder)
        self._at_kill(held.close)
        return held

    def _at_kill(self, effect: Callable[[], None]) -> None:
        if self.scheduler.current is not None:  # otherwise it is the judge who reads
            self.scheduler.current.process.at_kill.append(effect)

    def _open_environment(self, path: Path, *, is_clean: bool) -> Any:
        environment = files.open_environment(path, is_clean=is_clean)
        self._at_kill(environment.close)
        return Environment(self, environment, path / DATA)

    def _write_condition(self, path: Path, text: str) -> None:
        self.scheduler.check_alive()
        files.write_condition(path, text)
        self.disks.synced(path / CONDITION)

    # The daemon's life.

    def start(self, *, is_second: bool = False, machine: int | None = None, **options: bool) -> Life:
        """Start a process of the daemon; a second one has a disk of its own, and of two machines each has one."""
        life = Life(Process(f"daemon {len(self.lives) + 1}"), is_second=is_second, takes_over=options.get("take_over", False))
        life.may_end_with = (StateError,) if self.is_disk_full else ()
        if self.has_foreigner and len(self.network.members) == 1:
            life.may_end_with += (ForeignServerError,)
        life.settings = self.settings
        life.state_number = self._state_count if machine is None else machine
        is_former_there = any(other.process.is_awake for other in self.lives if not other.is_second)
        if (self._is_moving and not self._takes_over) or (self.judge.may_jump and is_former_there):
            # Where Kafka is away, or this one is killed, the frozen one may be back before it has been silent for long enough.
            # Where Kafka has lost the checkpoint of a take-over, the former one has the name again.
            life.may_end_with += (NameTakenError,)
        if self.pair is not None:
            life.may_end_with += (NameTakenError,)  # the other one had none yet when it looked; the next time it is its standby
        self.lives.append(life)
        config = self._config("second" if is_second else f"state{life.state_number}")

        def main() -> None:
            try:
                life.daemon = Daemon(config, StartOptions(**options))
                life.daemon.run()
            except CdcError as error:
                life.error = error
                if isinstance(error, NameTakenError) and not is_second:
                    self._stay(life)
                self.scheduler.note(f"ends: {error}".replace(str(self.directory), "DISK"))
            finally:
                life.is_over = life.process.is_over = True
                if self.pair is not None:
                    self.scheduler.after(RESTART_SECONDS, self.restart)

        self.scheduler.spawn(life.process, "main", main)
        return life

    def run_command(self, run: Callable[[Config], None], then: Callable[[], None]) -> None:
        """Run a command beside the daemon, with its configuration."""
        life = Life(Process(f"command {len(self.lives) + 1}"), is_second=True)
        life.state_number = self._state_count
        self.lives.append(life)
        config = self._config(f"state{self._state_count}")

        def main() -> None:
            try:
                run(config)
            finally:
                life.is_over = life.process.is_over = True
                self.scheduler.after(0.5, then)

        self.scheduler.spawn(life.process, "main", main)

    @property
    def has_foreigner(self) -> bool:
        """Whether one of the addresses leads to another replica set."""
        return any(member.is_foreign for member in self.network.members.values())

    @property
    def life(self) -> Life:
        """The newest process, without those that begin although one is there; of two machines that of the one with the name."""
        return self.pair.life if self.pair is not None else next(life for life in reversed(self.lives) if not life.is_second)

    def move_state(self, *, takes_over: bool = True) -> None:
        """The next process has another disk."""
        self._state_count += 1
        self._is_moving = self.judge.may_forget = True
        self._takes_over = takes_over

    def _stay(self, refused: Life) -> None:
        """The former process is there again, so no other disk is needed."""
        for life in self.lives:
            life.is_second |= life.state_number == refused.state_number
        self._is_moving, self._state_count = False, self.life.state_number

    def restart(self) -> None:
        """Start the daemon again, if it has ended and nothing keeps it from that."""
        if self.operators.are_busy:
            return
        if self.pair is not None:
            self.pair.restart()
        elif self.life.is_over and not self.is_disk_full:
            # The operator gives these until the daemon has filled the new disk's store.
            self.start(take_over=self._is_moving and self._takes_over, rebuild_state=self._is_moving)

    def lose_checkpoints(self, count: int) -> None:
        """The newest commits of the checkpoint topic are gone; nothing else is."""
        (partition,) = self.brokers.topics.get(CHECKPOINT, (None,))
        if partition is None:
            return
        for _ in range(count):
            place = next((at for at in range(partition.end - 1, -1, -1) if partition.entries[at].state == "marker"), 0)
            # At least the first commits stay: without any the daemon asks its operator.
            if sum(entry.state == "marker" for entry in partition.entries[:place]) < 4:
                break
            del partition.entries[place:]
        while partition.entries and partition.entries[-1].state != "marker":
            partition.entries.pop()
        partition.open_from.clear()
        self.brokers.version += 1
        self.judge.lost_checkpoints(partition)

    def may_end(self, error: type[CdcError]) -> None:
        """Every process may end with this error now."""
        for life in self.lives:
            life.may_end_with += (error,)

    def kill(self) -> None:
        """End it at once."""
        self.kill_one(self.life)

    def kill_one(self, life: Life) -> None:
        """End this process at once."""
        if life.is_over or not life.process.is_alive:
            return
        self.scheduler.note("kill -9")
        if life.daemon is not None:
            self.walked[f"killed while {life.daemon.status.state}"] += 1
        self.scheduler.kill(life.process)
        life.is_over = True

    def _life_of(self, process: Process) -> Life:
        return next(life for life in self.lives if life.process is process)

    def _acknowledged(self, link: Link, ack: Ack) -> None:
        life = self._life_of(link.socket.process)
        writer = life.daemon._writer if life.daemon is not None else None
        stored = writer.checkpoint().position if writer is not None else None
        is_standby = life.daemon is not None and life.daemon.status.state == "standby"
        self.judge.acknowledged(ack, stored.vclock if stored is not None else None, is_standby=is_standby)

    def _claimed(self, process: Process) -> None:
        life = self._life_of(process)
        if life.daemon is None:
            return  # a command, which has made sure that no daemon runs
        if self.pair is not None:
            self.pair.claimed(life)
        self.judge.claimed(process, life.daemon._writer_id, takes_over=life.takes_over or self.pair is not None)

    # What happens.

    def _work(self) -> None:
        self._left -= 1
        self.workload.run(self._work_random.randint(1, 6))
        if self.vinyl is not None:
            self.vinyl.run(self._work_random.randint(0, 3))
        if not self._left:
            self.workload.finish()
            if self.vinyl is not None:
                self.vinyl.finish()
        self.master.remember()
        self.member.wrote()
        for replica in list(self.network.members.values())[1:]:
            self.scheduler.after(self.scheduler.random.random() * 0.05, lambda replica=replica: self._replicate(replica))  # type: ignore[misc]
        if self._left:
            self.scheduler.after(self._work_random.random() * 0.06, self._work)

    def _check(self) -> None:
        self.judge.read()
        daemon = self.life.daemon
        if daemon is not None and daemon._publisher is not None:
            queued, limit = daemon._publisher.queued_bytes, daemon._config.kafka.queue_bytes_max
            assert queued <= limit + _BATCH_BYTES, f"{queued} bytes are queued, and the limit is {limit}"
        state = (len(self.lives), daemon.status.state if daemon is not None else "")
        if state != self._state:
            former = self._state[1] if self._state[0] == state[0] else "start"
            self.walked[f"daemon: {former or 'start'} -> {state[1] or 'start'}"] += 1
            self._state = state
        followed = daemon.status.upstream if daemon is not None else None
        if followed and followed != self._followed:
            self.walked[
                f"{'daemon: follows its first member' if self._followed is None else 'daemon: follows another member'}"
            ] += 1
            self._followed = followed
        self._is_moving &= daemon is None or daemon.status.state != "streaming"
        for life in self.lives[-4:]:
            if life.is_over and life.error is not None and not isinstance(life.error, life.may_end_with):
                self._obey(life, life.error)

    def _obey(self, life: Life, error: CdcError) -> None:
        """The operator does what an error says, where that is right in this world."""
        if isinstance(error, NameTakenError) and self.judge.is_taken(life.process):
            life.may_end_with += (NameTakenError,)
            return
        if isinstance(error, UnknownSpaceError) and self.judge.is_rewritten:
            # Another history right behind a second snapshot: the next start takes one again.
            life.may_end_with += (UnknownSpaceError,)
            self.scheduler.after(0.1, self.restart)
            return
        if isinstance(error, StateForeignError) and self.judge.may_jump and self.pair is not None:
            # The standby's store is ahead of what Kafka has left, and only an operator may say that this is the one.
            life.may_end_with += (StateForeignError,)
            self.pair.rebuilds.add(life.state_number)
            return
        if isinstance(error, StateError) and self.disks.has_lied:
            self._give_up_store(life)
            return
        if not isinstance(error, StateForeignError) or self._state_count == 1 or not self.judge.may_jump:
            raise error
        # The checkpoint that is left is from before the move to another disk.
        life.may_end_with += (StateForeignError,)
        self._is_moving = True
        self.scheduler.after(0.1, self.restart)

    def _give_up_store(self, life: Life) -> None:
        """A disk that lied has an older state, or a part of one: the daemon says so, and takes a snapshot if it is told to."""
        self.disks.has_lied = False
        self.walked["disk: an operator gives the state up"] += 1
        life.may_end_with += (StateError,)
        shutil.rmtree(self.directory / f"state{life.state_number}" / "images", ignore_errors=True)
        self._is_moving = True
        self.scheduler.after(0.1, self.restart)

    # The run.

    def run(self) -> Result:
        """Live it, and judge it."""
        failure: BaseException | None = None
        scheduler = self.scheduler
        try:
            with installed(self.name), self._logged(), edges.counted(self.walked):
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
            tuple(self.faults),
            self.rounds,
            failure,
            tuple(scheduler.trace),
        )

    def _live(self) -> None:
        scheduler = self.scheduler
        if self.pair is not None:
            self.pair.start()
        else:
            self.start()
        scheduler.after(0.0, self._work)
        for fault in self.faults:
            scheduler.after(fault.at, lambda fault=fault: self._strikes.strike(fault))  # type: ignore[misc]
        last = max((fault.at + fault.seconds for fault in self.faults), default=0.0)
        scheduler.run(lambda: self._left == 0 and scheduler.now >= last, 10_000, check=self._check)
        scheduler.note("calm")
        self.is_calm = True
        self.brokers.faults.calm()
        self.include_all()
        for replica in list(self.network.members.values())[1:]:
            scheduler.after(0.1, lambda replica=replica: self._replicate(replica))  # type: ignore[misc]
        self.is_disk_full = False
        self.restart()
        is_there = scheduler.run(self._is_settled, PATIENCE_SECONDS, check=self._check)
        assert is_there, f"not everything has arrived: {self._why()}"
        self.judge.check_end()
        daemon = self.life.daemon
        assert daemon is not None
        shown = daemon.status
        assert shown.checkpoint == self.judge.decided.vclock, (
            f"the checkpoint is {self.judge.decided.vclock}, not {shown.checkpoint}"
        )
        if self.pair is not None:
            self._stop(self.pair.standby)
        self._stop(self.life)

    def _stop(self, life: Life) -> None:
        """Stop a process, and look into its store."""
        assert life.daemon is not None
        life.daemon.stop()
        assert self.scheduler.run(lambda: life.is_over, 60, check=self._check), "the daemon doesn't stop"
        if life.settings["state"].get("images", "full") != "full":
            return
        with closing(StateStore(self.directory / f"state{life.state_number}" / "images")) as store:
            numbers = numbers_in(store.records)
            self.judge.check_store(lambda space_id: [row for _, row in store.scan(numbers.get(space_id, space_id))])

    def _is_settled(self) -> bool:
        """Whether everything has arrived, the daemon says so, and the member knows."""
        self.restart()  # one that was told to stop ends when it can
        daemon = self.life.daemon
        if daemon is None or daemon.status.state != "streaming" or daemon.status.error is not None or not daemon.status.is_ready:
            return False
        if self.life.settings.get("spaces"):
            self.include_all()
            return False
        links = [link for member in self.network.members.values() for link in member.links]
        acks = [link.relay.acks[-1].vclock for link in links if link.relay.acks and link.socket.process is self.life.process]
        is_known = any(all(ack.get(origin, 0) >= lsn for origin, lsn in self.master.vclock.items()) for ack in acks)
        return is_known and self.judge.has_everything() and (self.pair is None or self.pair.is_ready())

    def _why(self) -> str:
        daemon = self.life.daemon
        status = daemon.status.shown_state if daemon is not None else None
        error = daemon.status.error if daemon is not None else None
        return f"the master has {self.master.vclock}, Kafka {self.judge.decided.vclock}; the daemon says {status}, {error}"

    def _hear(self, life: Life, line: str) -> None:
        """What a daemon of two says of itself."""
        assert self.pair is not None
        life.has_stood_by |= line.startswith("taking over: the daemon")
        if line.startswith("taking a snapshot"):
            self.pair.took_snapshot(life, line)

    @contextmanager
    def _logged(self) -> Iterator[None]:
        def line(_: object, method: str, event: MutableMapping[str, Any]) -> str:
            text = " ".join([str(event.pop("event")), *(f"{key}={value}" for key, value in event.items())])
            if text.startswith("published changes were lost") and not self.judge.is_rewritten:
                self.scheduler.failure = AssertionError(f"the member has lost nothing: {text}")
            if self.pair is not None and self.scheduler.current is not None:
                self._hear(self._life_of(self.scheduler.current.process), text)
            self.scheduler.note(f"{method}: {text}".replace(str(self.directory), "DISK"))
            raise structlog.DropEvent

        before = structlog.get_config()
        structlog.configure(processors=[line], cache_logger_on_first_use=False, wrapper_class=structlog.BoundLogger)
        try:
            yield
        finally:
            structlog.configure(**before)


class Environment:
    """An LMDB environment on a disk that may be full."""

    def __init__(self, world: World, environment: Any, file: Path) -> None:
        self._world = world
        self._environment = environment
        self._file = file

    def sync(self, *arguments: Any) -> None:
        """Have all of it on the disk."""
        self._environment.sync(*arguments)
        self._world.disks.synced(self._file)

    def begin(self, *arguments: Any, write: bool = False, **more: Any) -> Any:
        """Begin a transaction."""
        if write and self._world.is_disk_full:
            raise lmdb.DiskError("no room")
        return self._environment.begin(*arguments, write=write, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)


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
