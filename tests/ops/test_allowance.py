"""What may happen per second, and at once."""

from __future__ import annotations

from cdc.ops.allowance import Allowance


def test_a_burst_and_then_so_much_per_second() -> None:
    allowance = Allowance(10)
    assert allowance.left(100.0) == 10
    allowance.use(10)
    assert allowance.left(100.0) == 0
    allowance.use(1)
    assert allowance.left(100.0) == -1, "it was taken in advance"
    assert allowance.left(100.5) == 4
    assert allowance.left(200.0) == 10, "what wasn't used isn't kept"


def test_another_burst() -> None:
    allowance = Allowance(2, burst=5)
    assert allowance.left(1.0) == 5
    allowance.use(5)
    assert allowance.left(2.0) == 2
    assert allowance.left(10.0) == 5
