"""What random lives have in common: work in transactions, and the ordinary steps between a master's log and its consumer."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.fakes.master import Master
from tests.fakes.replica import Replica

STEPS = ("work", "work", "relay", "receive", "commit", "commit", "flush", "crash")


def work_in_transactions(master: Master, rng: random.Random, count: int, step: Callable[[], Any], *, share: float) -> None:
    """Do that many steps, of which this share is the beginning of a transaction of some."""
    for _ in range(count):
        if rng.random() < share:
            master.begin()
            for _ in range(rng.randint(1, 5)):
                step()
            if not master._open:
                master.nop()
            master.commit()
        else:
            step()


def go_a_step(what: str, replica: Replica, rng: random.Random, work: Callable[[int], None]) -> bool:
    """Take one of the ordinary steps; False for one that isn't."""
    match what:
        case "work":
            work(rng.randint(1, 5))
        case "relay":
            replica.relay.relay(rng.choice([1, 3, 20, None]))
        case "receive":
            replica.receive()
        case "commit":
            replica.commit(rng.choice([1, 2, None]))
        case "flush":
            replica.flush()
        case _:
            return False
    return True
