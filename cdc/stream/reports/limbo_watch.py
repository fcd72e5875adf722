"""Reports when a transaction has been waiting long for its quorum, and when it stops waiting.

Meanwhile no later transaction is published, which looks like a quiet master unless the daemon reports it. The log gets the
beginning and the end of a wait; /status and /metrics show the present state. The module reads no clock: its caller passes the
time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cdc.stream.transactions.limbo import LimboState

QUORUM_REMEDY: Final = (
    "Look at box.info.synchro on the leader: the leader needs replication_synchro_quorum members that follow it, or "
    "box.ctl.promote() (box.ctl.clear_synchro_queue() before 2.10) on the member that is to lead."
)
"""What to do about a quorum that doesn't come."""


@dataclass(frozen=True, slots=True)
class OverdueQuorum:
    """A transaction that has been waiting too long, and the number of waiting transactions with it."""

    origin: int
    lsn: int
    since_us: int
    transaction_count: int

    def description(self, now_us: int) -> str:
        """Return a description of the problem."""
        behind = f", and {self.transaction_count - 1} more after it" if self.transaction_count > 1 else ""
        return (
            f"transaction {self.origin}:{self.lsn} has been waiting for its quorum for {(now_us - self.since_us) / 1e6:.0f} s"
            f"{behind}; nothing of this is published before the log confirms it or rolls it back"
        )

    def sentence(self, now_us: int) -> str:
        """Return a description of the problem, and its remedy."""
        return f"{self.description(now_us)}. {QUORUM_REMEDY}"


def check_overdue(
    limbo: LimboState, previous: OverdueQuorum | None, now_us: int, *, alert_ms: int
) -> tuple[OverdueQuorum | None, str]:
    """Return what has been waiting for `alert_ms` or more, and a line for the log if that has just begun or ended, else "".

    `previous` is the result of the previous call. The limbo ends with its connection; the next connection receives the waiting
    transactions again.
    """
    if not limbo.oldest_us or now_us - limbo.oldest_us < alert_ms * 1000:
        if previous is None:
            return None, ""
        return (
            None,
            f"transaction {previous.origin}:{previous.lsn} no longer waits, after {(now_us - previous.since_us) / 1e6:.0f} s",
        )
    overdue = OverdueQuorum(limbo.oldest_origin, limbo.oldest_lsn, limbo.oldest_us, limbo.transaction_count)
    is_news = previous is None or (previous.origin, previous.lsn) != (overdue.origin, overdue.lsn)
    return overdue, overdue.sentence(now_us) if is_news else ""
