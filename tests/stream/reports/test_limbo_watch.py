"""What waits for long is told: once when it begins and once when it ends, and as long as it holds."""

from __future__ import annotations

from cdc.stream.reports.limbo_watch import OverdueQuorum, check_overdue
from cdc.stream.transactions.limbo import LimboState

SECOND = 1_000_000


def waiting(since_us: int, lsn: int = 45, count: int = 3) -> LimboState:
    return LimboState(count, count, 100, 0, since_us, 1, lsn)


def test_a_wait_that_is_not_long_is_nobodys_business() -> None:
    assert check_overdue(LimboState(), None, 100 * SECOND, alert_ms=10_000) == (None, "")
    assert check_overdue(waiting(91 * SECOND), None, 100 * SECOND, alert_ms=10_000) == (None, "")


def test_a_long_wait_is_told_when_it_begins_and_when_it_ends() -> None:
    limbo = waiting(89 * SECOND)
    overdue, line = check_overdue(limbo, None, 100 * SECOND, alert_ms=10_000)
    assert overdue == OverdueQuorum(1, 45, 89 * SECOND, 3)
    assert line == overdue.sentence(100 * SECOND)
    assert line.startswith("transaction 1:45 has been waiting for its quorum for 11 s, and 2 more after it; ")
    assert check_overdue(limbo, overdue, 101 * SECOND, alert_ms=10_000) == (overdue, "")
    assert check_overdue(LimboState(), overdue, 104 * SECOND, alert_ms=10_000) == (
        None,
        "transaction 1:45 no longer waits, after 15 s",
    )


def test_another_one_is_told_too() -> None:
    overdue, _ = check_overdue(waiting(1), None, 100 * SECOND, alert_ms=10_000)
    other, line = check_overdue(waiting(2, lsn=47, count=1), overdue, 100 * SECOND, alert_ms=10_000)
    assert other is not None
    assert (other.lsn, line[:65]) == (47, "transaction 1:47 has been waiting for its quorum for 100 s; nothi")
