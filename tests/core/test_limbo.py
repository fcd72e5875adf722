"""The door that stays shut: what is synchronous stops the daemon, and control rows pass unless they undo something."""

from __future__ import annotations

import pytest

from cdc import limbo
from cdc.change import Transaction
from cdc.errors import SynchronousReplicationError
from cdc.protocol.constants import Type
from cdc.vclock import VClock


def transaction(flags: int) -> Transaction:
    return Transaction(1, 40, 41, 1.0, flags, [], None, 2)


@pytest.mark.parametrize("flags", [2, 3, 4, 6, 7])
def test_flags_that_say_that_it_waits(flags: int) -> None:
    with pytest.raises(SynchronousReplicationError, match="transaction 1:40 is synchronous"):
        limbo.refuse_flagged(transaction(flags))


@pytest.mark.parametrize("flags", [0, 1, 8, 9])
def test_flags_that_do_not(flags: int) -> None:
    limbo.refuse_flagged(transaction(flags))


def test_space_that_is_synchronous() -> None:
    assert "transaction 1:40 changes the synchronous space 'syn'" in str(limbo.refuse_space(transaction(0), "syn"))


@pytest.mark.parametrize("kind", [Type.RAFT_CONFIRM, Type.RAFT_PROMOTE, Type.RAFT_DEMOTE])
def test_control_rows_that_change_nothing(kind: int) -> None:
    limbo.pass_control_row(kind, {2: 1, 3: 39}, lambda: VClock({1: 41}))


def test_rollback_stops() -> None:
    with pytest.raises(SynchronousReplicationError, match=r"RAFT_ROLLBACK .* origin 1 from lsn 39 on arrived at \{1: 41\}"):
        limbo.pass_control_row(Type.RAFT_ROLLBACK, {2: 1, 3: 39}, lambda: VClock({1: 41}))
