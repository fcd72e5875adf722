"""What befalls two machines at a moment that seeds seldom meet."""

from __future__ import annotations

from unittest.mock import patch

from cdc.daemon.kept_logs import KeptLogs
from tests.simulation.faults import Fault, Strikes
from tests.simulation.standbys import Pair
from tests.simulation.vinyl import SPACE_ID as VINYL
from tests.simulation.world import Result, World, run_seed

_SEEDS_MAX = 40
_KEYS_MAX = 10
_FROZEN_SECONDS = 16.0
"""Long enough for a standby that isn't ready to say why."""


def alter_a_key(world: World) -> bool:
    """Give a space that has rows another primary key. Return whether there is one."""
    master = world.master
    own = [space for space in master.spaces_of(master.origin) if world.vinyl is None or space != VINYL]
    spaces = [space for space in own if master.contents(space) and not master.is_sync(space)]
    if not spaces or master._open is not None:
        return False
    world.workload._alter_key(spaces[0])
    master.remember()
    world.member.wrote()
    return True


def lose_the_log(world: World) -> None:
    """While rows are published again, the first daemon is frozen, and members remove the log that the standby's store needs."""
    world.pair = pair = Pair(world)
    world.deliver(is_exact=True)
    world.keep_images("full")
    world.settings["kafka"]["queue_bytes_max"] = 1024  # so rows that come again need several commits
    check, walked = world._check, world.walked

    def look() -> None:
        check()
        published, standby = world.judge.decided, pair.standby.daemon
        store = standby._writer.position if standby is not None and standby._writer is not None else None
        if walked["a log is lost"] or store is None or store.snapshot is None or published.snapshot is None:
            return
        if store.vclock == published.vclock and walked["a key is altered"] < _KEYS_MAX:
            walked["a key is altered"] += alter_a_key(world)
        elif store.vclock != published.vclock and published.rekeyed:
            walked["a log is lost"] += 1
            pair.logs_dropped()
            for member in world.network.members.values():
                kept = member.master.vclock
                member.master.gc_vclock = {origin: min(lsn, published.vclock[origin]) for origin, lsn in kept.items()}
            Strikes(world)._freeze_process(Fault(0.0, "frozen", _FROZEN_SECONDS))

    world._check = look  # type: ignore[method-assign]


def scene() -> Result:
    """The first seed's life in which it comes to that."""
    lives = (run_seed(seed, lose_the_log, faults=[], rounds=40) for seed in range(1, _SEEDS_MAX))
    return next(result for result in lives if result.walked["a log is lost"])


def test_a_standby_whose_log_is_gone_waits_for_the_one_that_publishes_rows_again() -> None:
    result = scene()
    assert result.failure is None, "\n".join([*result.trace, str(result.failure)])
    assert any("no member that answers has the log after it" in line for line in result.trace), "it says so meanwhile"


def test_one_that_took_its_subscription_for_proof_would_end_both() -> None:
    with patch.object(KeptLogs, "look", lambda *_: True):
        result = scene()
    assert "isn't the one that the checkpoint was written with" in str(result.failure)


def test_a_standby_takes_its_first_snapshot_until_kafka_has_all_of_it() -> None:
    """An earlier try may have left its store empty, and a snapshot that has begun in Kafka: both are its own (seed 4434)."""

    def change(world: World) -> None:
        world.pair = Pair(world)
        world.deliver(is_exact=False)

    faults = [Fault(0.0105, "messages refused", 10.9247), Fault(0.158, "member away", 2.4585), Fault(0.6062, "stop", 0.0163)]
    result = run_seed(8, change, faults=faults, rounds=5)
    assert result.failure is None, "\n".join([*result.trace, str(result.failure)])
