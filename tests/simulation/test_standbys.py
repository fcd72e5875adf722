"""What befalls two machines at one moment that seeds seldom meet."""

from __future__ import annotations

from unittest.mock import patch

from cdc.daemon.kept_logs import KeptLogs
from tests.simulation.faults import Fault, Strikes
from tests.simulation.standbys import Pair
from tests.simulation.world import World, run_seed

_SEED = 23
"""One in which a space gets another key."""
_FROZEN_SECONDS = 16.0
"""Long enough for a standby that isn't ready to say why."""


def lose_the_log(world: World) -> None:
    """While rows are published again, the first daemon is frozen, and members remove the log that the standby's store needs."""
    world.pair = pair = Pair(world)
    world.deliver(is_exact=True)
    world.keep_images("full")
    world.workload.alters_keys = True
    check = world._check

    def look() -> None:
        check()
        published, standby = world.judge.decided, pair.standby.daemon
        if world.walked["a log is lost"] or not published.rekeyed or standby is None or not standby.status.is_standby_ready:
            return
        assert standby._writer is not None
        store = standby._writer.position
        if store is None or store.vclock == published.vclock:
            return
        world.walked["a log is lost"] += 1
        pair.logs_dropped()
        for member in world.network.members.values():
            kept = member.master.vclock
            member.master.gc_vclock = {origin: min(lsn, published.vclock[origin]) for origin, lsn in kept.items()}
        Strikes(world)._freeze_process(Fault(0.0, "frozen", _FROZEN_SECONDS))

    world._check = look  # type: ignore[method-assign]


def test_a_standby_whose_log_is_gone_waits_for_the_one_that_publishes_rows_again() -> None:
    result = run_seed(_SEED, lose_the_log, faults=[], rounds=60)
    assert result.failure is None, "\n".join([*result.trace, str(result.failure)])
    assert result.walked["a log is lost"] == 1
    assert any("no member that answers has the log after it" in line for line in result.trace), "it says so meanwhile"


def test_one_that_took_its_subscription_for_proof_would_end_both() -> None:
    with patch.object(KeptLogs, "look", lambda *_: True):
        result = run_seed(_SEED, lose_the_log, faults=[], rounds=60)
    assert "isn't the one that the checkpoint was written with" in str(result.failure)
