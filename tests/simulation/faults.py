"""What goes wrong, and when: the plan of a seed, and how each fault strikes.

A fault is drawn with a weight. Those that earlier seeds of the same run met seldom are drawn more often (`Steering`).
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdc.errors import CdcError, ForeignServerError, RequestError, StateError
from cdc.kafka.errors import FencedError
from cdc.stream.commits.ownership import NameTakenError
from cdc.stream.snapshots.orders import Execute
from tests.fakes.interleavings import LimboWorkload
from tests.fakes.master import VERSIONS
from tests.simulation.brokers import Entry
from tests.simulation.disks import CONDITION, DATA
from tests.simulation.judge import NAME, SIGNALS
from tests.simulation.members import ForeignWriter, go_back
from tests.simulation.network import DISCONNECT_SECONDS

if TYPE_CHECKING:
    from tests.simulation.network import Member
    from tests.simulation.world import World


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong at a time of the run, for some time."""

    at: float
    kind: str
    seconds: float = 0.0


KINDS: Final = (
    "kill",
    "stop",
    "power off",
    "disk lies",
    "frozen",
    "frozen and replaced",
    "disk full",
    "kafka away",
    "cut off from kafka",
    "answers lost",
    "messages refused",
    "messages slow",
    "leaders move",
    "markers left out",
    "checkpoint loses its tail",
    "records expire",
    "second daemon",
    "take-over",
    "take-over begins again",
    "network cut",
    "network slow",
    "connections live on",
    "member away",
    "member frozen",
    "member comes back older",
    "logs dropped",
    "history rewritten",
    "other replica set",
    "clock jumps",
    "snapshot requested",
    "signal",
    "member upgraded",
    "configuration changed",
    "spaces left out",
    "images switched",
    "verify",
    "position put back",
)

_LASTS: Final = {"frozen and replaced": 12.0}
"""How long a fault lasts at least: the other daemon must have got the name before the frozen one wakes up."""
_STANDBY_SHARE: Final = 0.3
"""How often a kill meets the standby, where there is one."""
_RARE: Final = 5
"""How often an edge has to be walked before it is no longer rare."""


def planned(plan: random.Random, span: float, weights: Mapping[str, float]) -> list[Fault]:
    """Draw a seed's faults for a run of about so many seconds."""
    kinds = list(KINDS)
    count = plan.choice([0, 1, 2, 3, 5, 8])
    drawn = plan.choices(kinds, [weights.get(kind, 1.0) * (4 if kind == "kill" else 1) for kind in kinds], k=count)
    faults = [
        Fault(
            round(plan.random() * span, 4),
            kind,
            round(_LASTS.get(kind, 0.0) + plan.choice([0.05, 0.5, 3.0, 15.0]) * plan.random(), 4),
        )
        for kind in drawn
    ]
    return sorted(faults, key=lambda fault: fault.at)


class Steering:
    """Weights for the faults that were seldom met so far, and for those that come with edges that were seldom walked."""

    def __init__(self) -> None:
        self.walked: Counter[str] = Counter()
        self._bonus: Counter[str] = Counter()

    def learn(self, walked: Counter[str], kinds: Iterable[str]) -> None:
        """Take in what a run with these faults has walked."""
        rare = [edge for edge in walked if ":" in edge and not edge.startswith("fault") and self.walked[edge] < _RARE]
        self.walked += walked
        for kind in self._bonus:
            self._bonus[kind] = int(self._bonus[kind] * 0.95)
        for kind in set(kinds):
            self._bonus[kind] += min(20, 10 * len(rare))

    def weights(self) -> dict[str, float]:
        """The weight of each kind."""
        met = {kind: self.walked[f"fault: {kind}"] for kind in KINDS}
        mean = sum(met.values()) / len(KINDS)
        return {kind: min(4.0, (mean + 1) / (met[kind] + 1)) + min(4.0, self._bonus[kind] / 10) for kind in KINDS}


class Strikes:
    """How the faults strike one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._table: dict[str, Callable[[Fault], None]] = {
            "kill": self._kill,
            "stop": self._stop,
            "power off": self._power_off,
            "disk lies": self._lie,
            "frozen": self._freeze_process,
            "frozen and replaced": self._replace_frozen,
            "disk full": self._disk_full,
            "kafka away": lambda fault: world.brokers.fail_for(fault.seconds),
            "cut off from kafka": self._cut_off,
            "answers lost": lambda fault: self._share(fault, "lost_answer", 0.3),
            "messages refused": lambda fault: self._share(fault, "refusal", 0.05),
            "messages slow": lambda fault: self._share(fault, "slow_seconds", 0.4),
            "leaders move": lambda fault: self._share(fault, "first_refusal", 0.5),
            "markers left out": lambda fault: self._share(fault, "hanging", 0.2),
            "checkpoint loses its tail": self._lose_checkpoints,
            "records expire": self._expire,
            "second daemon": lambda fault: self._second(fault, takes_over=False),
            "take-over": lambda fault: self._second(fault, takes_over=True),
            "take-over begins again": self._take_over_twice,
            "network cut": self._cut,
            "network slow": self._slow,
            "connections live on": self._live_on,
            "member away": self._away,
            "member frozen": self._freeze,
            "member comes back older": self._age,
            "logs dropped": self._drop_logs,
            "history rewritten": self._rewrite,
            "other replica set": self._other_set,
            "clock jumps": self._jump,
            "snapshot requested": self._request,
            "signal": self._signal,
            "member upgraded": self._upgrade,
            "configuration changed": self._configure,
            "spaces left out": self._leave_out,
            "images switched": self._switch_images,
            "verify": self._verify,
            "position put back": self._put_back,
        }
        assert tuple(self._table) == KINDS

    def strike(self, fault: Fault) -> None:
        """Let it happen."""
        self._world.walked[f"fault: {fault.kind}"] += 1
        self._world.scheduler.note(f"fault: {fault.kind} ({fault.seconds:g} s)")
        self._table[fault.kind](fault)

    def _later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._world.scheduler.after(seconds, callback)

    # The process, its machine and its disk.

    def _kill(self, fault: Fault) -> None:
        world = self._world
        if world.pair is not None and world.scheduler.random.random() < _STANDBY_SHARE:
            world.kill_one(world.pair.standby)
        else:
            world.kill()
        self._later(fault.seconds, world.restart)

    def _stop(self, fault: Fault) -> None:
        daemon = self._world.life.daemon
        if daemon is not None:
            daemon.stop()
        self._later(fault.seconds + 0.5, self._world.restart)

    def _power_off(self, fault: Fault) -> None:
        world = self._world
        world.kill()
        world.boots[world.life.state_number] += 1
        world.judge.may_forget = True
        rng = world.scheduler.random
        state = world.directory / f"state{world.life.state_number}"
        store = state / "images" / DATA
        if store.exists() and rng.random() < 0.5:
            # Pages that were never written: the store must not be trusted.
            data = bytearray(store.read_bytes())
            for _ in range(3):
                at = rng.randrange(max(1, len(data) // 4096)) * 4096
                data[at : at + 4096] = bytes(len(data[at : at + 4096]))
            if "unsynced" in (store.parent / CONDITION).read_text():
                store.write_bytes(data)
        world.disks.lose(state)
        self._later(fault.seconds, world.restart)

    def _lie(self, fault: Fault) -> None:
        """After an orderly stop the disk only says that it syncs, until its machine loses its power."""
        world = self._world
        life = world.life
        if world.pair is not None or world.operators.are_busy or life.daemon is None or life.is_over:
            return
        state = world.directory / f"state{life.state_number}"
        life.daemon.stop()

        def begin() -> None:
            world.disks.begin_to_lie(state)
            world.operators.are_busy = False
            world.restart()
            self._later(fault.seconds, lose)

        def lose() -> None:
            if world.life.state_number == life.state_number and not world.is_calm:
                world.kill()
                world.boots[life.state_number] += 1
                world.judge.may_forget = True
                world.disks.lose_all(state)
                world.restart()

        world.operators.are_busy = True
        world.operators.when_over(begin)

    def _disk_full(self, fault: Fault) -> None:
        world = self._world
        world.is_disk_full = True
        world.may_end(StateError)

        def empty() -> None:
            world.is_disk_full = False
            world.restart()

        self._later(fault.seconds, empty)

    def _freeze_process(self, fault: Fault) -> None:
        """SIGSTOP, and SIGCONT later. The members close connections over which nothing comes."""
        world, life = self._world, self._world.life
        if world.pair is not None and not world.judge.is_exact:
            return  # what it has in hand isn't refused when it wakes up, as docs/guarantees.md says
        if life.is_over:
            return
        world.scheduler.freeze(life.process)
        life.may_end_with += (FencedError,) if fault.kind == "frozen and replaced" else ()

        def cut() -> None:
            for member in world.network.members.values():
                for link in [link for link in member.links if link.socket.process is life.process]:
                    link.cut(is_noticed=True)

        if fault.seconds > DISCONNECT_SECONDS:
            self._later(DISCONNECT_SECONDS, cut)
        self._later(fault.seconds, lambda: world.scheduler.thaw(life.process))

    def _replace_frozen(self, fault: Fault) -> None:
        """A frozen daemon is silent, so another machine's gets the name without being told to take it. Then the first wakes up.

        With at_least_once delivery Kafka doesn't refuse what the first one has in hand, as docs/guarantees.md says.
        """
        world = self._world
        if world.pair is not None:
            self._freeze_process(fault)
            return
        first = world.life
        is_alone = not any(life.process.is_frozen for life in world.lives)
        if not world.judge.is_exact or not is_alone or first.daemon is None or first.daemon.status.state != "streaming":
            return
        self._freeze_process(fault)
        world.move_state(takes_over=False)
        world.start(rebuild_state=True)

    # Kafka.

    def _share(self, fault: Fault, name: str, share: float) -> None:
        faults = self._world.brokers.faults
        setattr(faults, name, share)
        self._later(fault.seconds, lambda: setattr(faults, name, 0.0))

    def _cut_off(self, fault: Fault) -> None:
        """The machine doesn't reach Kafka. (With at_least_once another daemon takes it for gone, and it may come back.)"""
        if self._world.judge.is_exact:
            self._world.brokers.cut_off_for(self._world.life.process, fault.seconds)

    def _lose_checkpoints(self, fault: Fault) -> None:
        """The only replica of the checkpoint's partition was on a machine that stopped: its newest records are gone."""
        world = self._world
        world.kill()
        if not world.has_foreigner:
            world.lose_checkpoints(world.scheduler.random.randint(1, 6))
        self._later(fault.seconds, world.restart)

    def _expire(self, _: Fault) -> None:
        world = self._world
        for topic, partitions in world.brokers.topics.items():
            if topic.startswith("shop.space"):
                for partition in partitions:
                    # The newest segment stays, as it does in Kafka: a daemon finds its last events there.
                    partition.begin = max(partition.begin, min(partition.stable, partition.end - 8))

    def _second(self, fault: Fault, *, takes_over: bool) -> None:
        """Another machine starts a daemon of this name, which must not begin unless it is told to end the first."""
        world = self._world
        first = world.life
        if world.pair is not None or first.is_over or first.daemon is None or first.daemon.status.state != "streaming":
            return
        if takes_over:
            first.may_end_with += (FencedError, CdcError)
            world.move_state()
            world.start(take_over=True, rebuild_state=True)
            return
        second = world.start(is_second=True, rebuild_state=world.scheduler.random.random() < 0.7)
        second.may_end_with += (NameTakenError, CdcError)

        def give_up() -> None:
            # Before the silence would be long enough: it must not become the daemon when the first is restarted later.
            world.scheduler.kill(second.process)
            second.is_over = True

        self._later(min(fault.seconds, 5.0), give_up)

    def _take_over_twice(self, fault: Fault) -> None:
        """The daemon that takes the name over ends soon, perhaps while it waits for the former one's end, and starts again."""
        world, rng = self._world, self._world.scheduler.random
        before = world.life
        self._second(fault, takes_over=True)
        taker, end = world.life, rng.choice([self._kill, self._stop])
        if taker is not before:
            self._later(rng.random() * 10, lambda: end(fault) if world.life is taker else None)

    # The network and the members.

    def _cut(self, _: Fault) -> None:
        for member in self._world.network.members.values():
            for link in list(member.links):
                link.cut()

    def _slow(self, fault: Fault) -> None:
        network = self._world.network
        network.slowness = 200.0
        self._later(fault.seconds, lambda: setattr(network, "slowness", 1.0))

    def _live_on(self, fault: Fault) -> None:
        """The ends of connections don't reach the members, the first time at once."""
        network = self._world.network
        network.lives_on_until = self._world.scheduler.now + fault.seconds
        self._cut(fault)

    def _away(self, fault: Fault) -> None:
        member = self._any_member()
        member.stop()
        self._later(fault.seconds, lambda: setattr(member, "is_up", True))

    def _freeze(self, fault: Fault) -> None:
        member = self._any_member()
        member.is_frozen = True

        def thaw() -> None:
            member.is_frozen = False
            member.stop()  # what it sends now comes from a connection that nobody has any more
            member.is_up = True

        self._later(fault.seconds, thaw)

    def _age(self, fault: Fault) -> None:
        """A member that isn't the writer loses the end of its log with its disk's cache, and gets it again by and by."""
        world = self._world
        replicas = [one for one in list(world.network.members.values())[1:] if not one.is_foreign]
        if replicas:
            replica = world.scheduler.random.choice(replicas)
            replica.stop()
            go_back(replica.master, world.master, world.scheduler.random.randint(1, 10))
            self._later(fault.seconds, lambda: setattr(replica, "is_up", True))

    def _upgrade(self, fault: Fault) -> None:
        """A member comes back with the next version. (Where 2.6 writes, others would have to know how it hands on its limbo.)"""
        member = self._any_member()
        member.stop()
        if member.master.version == VERSIONS["2.11"]:
            member.master.version = VERSIONS["3.3"]
        self._later(fault.seconds, lambda: setattr(member, "is_up", True))

    def _any_member(self) -> Member:
        """The followed one, mostly."""
        world = self._world
        members, daemon = world.network.members, world.life.daemon
        followed = (
            {f"127.0.0.1:{port}": port for port in members}.get(daemon.status.upstream or "") if daemon is not None else None
        )
        if followed is not None and world.scheduler.random.random() < 0.7:
            return members[followed]
        return members[world.scheduler.random.choice(sorted(members))]

    def _drop_logs(self, _: Fault) -> None:
        if self._world.pair is not None:
            self._world.pair.logs_dropped()
        for member in self._world.network.members.values():
            if not self._world.judge.is_rewritten:
                member.master.collect_garbage()

    def _rewrite(self, fault: Fault) -> None:
        """The only member loses the end of its log, and is past the lost lsns with other rows when it is back.

        Left out is what docs/guarantees.md says isn't noticed: the last row's log is gone, it is of another origin, or the daemon
        was killed in the middle of a batch, so that its checkpoint has no row.
        """
        world = self._world
        master, settings = world.master, world.settings["source"]
        is_alone = len(world.network.members) == 1 and world.workload.origins == [1]
        is_alone &= not world.has_foreigner and world.pair is None
        has_logs = master.gc_vclock == world.first_gc_vclock and settings["mode"] == "anonymous"
        is_known = not world.life.is_over or world.judge.knows_last_row
        if not is_alone or not has_logs or not is_known or "on_divergence" not in settings:
            return
        world.member.stop()
        if master.rewrite(world.scheduler.random.randint(1, 6)):
            world.judge.rewrite()
            master.remember()
        self._later(fault.seconds, lambda: setattr(world.member, "is_up", True))

    def _other_set(self, fault: Fault) -> None:
        """An address leads to a server of another replica set for a while."""
        world = self._world
        member = self._any_member()
        if not world.judge.knows_replica_set or world.judge.may_jump or world.has_foreigner:
            return  # at the very first start nothing says which one is meant
        foreign = ForeignWriter(world.version)
        LimboWorkload(foreign, world.scheduler.random, 1).run(30)
        member.stop()
        own, member.master, member.is_foreign, member.is_up = member.master, foreign, True, True
        if len(world.network.members) == 1:
            world.may_end(ForeignServerError)

        def move_back() -> None:
            member.stop()
            member.master, member.is_foreign, member.is_up = own, False, True
            world.restart()

        self._later(fault.seconds, move_back)

    def _jump(self, _: Fault) -> None:
        library = self._world.library
        library.skew_seconds += self._world.scheduler.random.choice([-7200.0, -1.0, 1.0, 86_400.0])

    # The operator.

    def _request(self, _: Fault) -> None:
        """`tarantool-cdc snapshot` of everything."""
        world, life = self._world, self._world.life
        if life.is_over or life.daemon is None:
            return
        queue = life.daemon._requests

        def ask() -> None:
            try:
                queue.submit(Execute("asked", (".*",)))
            except RequestError as error:
                world.scheduler.note(f"the request is refused: {error}")

        world.scheduler.spawn(life.process, "operator", ask)

    def _signal(self, _: Fault) -> None:
        """Somebody writes to the signal topic. The daemon obeys what is written once its checkpoint has a place in the topic."""
        world = self._world
        if world.judge.decided.requests.signals is not None:
            name = f"signal-{len(world.judge.signals)}"
            world.judge.signals[name] = []
            order = {"id": name, "type": "execute-snapshot", "data": {"data-collections": [".*"]}}
            world.brokers.write(SIGNALS, 0, Entry(NAME.encode(), json.dumps(order).encode(), world.brokers.wall_ms()))

    def _configure(self, fault: Fault) -> None:
        """Another flush interval, size of a transaction in memory, and pause between commits, from the next start on."""
        world, rng = self._world, self._world.scheduler.random
        # The way back from registered needs `tarantool-cdc unregister`. Of two machines one goes on with the former settings.
        mode = world.settings["source"]["mode"]
        if mode == "anonymous" and world.pair is None:
            mode = rng.choice(["anonymous", "registered"])
        world.settings = {
            **world.settings,
            "source": {**world.settings["source"], "mode": mode, "transaction_bytes_max": rng.choice([1024, 64 << 20])},
            "kafka": {
                **world.settings["kafka"],
                "commit_pause_ms": rng.choice([0, 30, 400]),
                "queue_bytes_max": rng.choice([1024, 32 << 20]),
            },
            "state": {**world.settings["state"], "flush_interval_ms": rng.choice([0, 500, 5000])},
        }
        is_frozen = any(life.process.is_frozen for life in world.lives)
        if world.pair is None and world.judge.has_images and not is_frozen and rng.random() < 0.3:
            world.settings["kafka"]["delivery"] = rng.choice(["exactly_once", "at_least_once"])
            # What may have come again once may do so ever after, as far as the judge knows.
            world.judge.is_exact &= world.settings["kafka"]["delivery"] == "exactly_once"
        self._stop(fault)

    def _leave_out(self, fault: Fault) -> None:
        """The configuration leaves some spaces out for a while. Without images their older rows would come with no start."""
        world = self._world
        if world.pair is not None or not world.judge.has_images:
            return
        world.leave_out("space 1 [12]")
        self._stop(fault)
        self._later(fault.seconds + 1.0, world.include_all)

    def _switch_images(self, fault: Fault) -> None:
        """Another state.images from the next start on. With two machines, only one of them would have it."""
        world = self._world
        if world.image_choices:
            images = world.scheduler.random.choice(world.image_choices)
            world.settings = {**world.settings, "state": {**world.settings["state"], "images": images}}
            world.walked[f"images: switched to {images}"] += 1
            self._stop(fault)

    def _verify(self, fault: Fault) -> None:
        """`tarantool-cdc verify`."""
        world = self._world
        if world.pair is None and world.vinyl is None and not world.judge.is_rewritten:
            world.operators.verify(fault.seconds)

    def _put_back(self, fault: Fault) -> None:
        """`tarantool-cdc position export`, and `set` after a loss."""
        if self._world.pair is None and not self._world.judge.is_rewritten:
            self._world.operators.export(fault.seconds)
