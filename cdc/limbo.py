"""Where synchronous transactions wait for their CONFIRM. In this version: the door that stays shut.

A row of a synchronous transaction is relayed before it is confirmed, and may still be rolled back. Until this program can
hold such rows back, and the asynchronous ones behind them, it must not publish them, and must not pass over them either.
So the first one stops the daemon. What says that a transaction is synchronous depends on the master: flags on its last row
since 2.8, before that only the `is_sync` option of a space that it touches.

CONFIRM, ROLLBACK, PROMOTE and DEMOTE speak about transactions that wait. While none can wait here, CONFIRM, PROMOTE and
DEMOTE change nothing; a ROLLBACK that undoes a transaction which is already past would be a loss, so it stops the daemon.

Sources: src/box/txn_limbo.h, txn_limbo_queue.h, applier.cc (apply_synchro_req).
"""

from __future__ import annotations

from collections.abc import Callable

from cdc.change import Transaction
from cdc.errors import SynchronousReplicationError
from cdc.protocol.codec import Body
from cdc.protocol.constants import TYPE_NAMES, Flag, Key, Type
from cdc.vclock import VClock

_WAITS = Flag.WAIT_SYNC | Flag.WAIT_ACK
_HINT = "Synchronous spaces can't be followed by this version: take the daemon to a replica set without them."


def refuse_flagged(transaction: Transaction) -> None:
    """Raise if the transaction's flags say that it waits for a quorum (masters since 2.8)."""
    if transaction.flags & _WAITS:
        raise SynchronousReplicationError(
            f"transaction {transaction.replica_id}:{transaction.tsn} is synchronous, or waits behind one that is", _HINT
        )


def refuse_space(transaction: Transaction, space_name: str) -> SynchronousReplicationError:
    """The error for a transaction that touches a space with `is_sync` (masters before 2.8 set no flags)."""
    return SynchronousReplicationError(
        f"transaction {transaction.replica_id}:{transaction.tsn} changes the synchronous space {space_name!r}", _HINT
    )


def pass_control_row(kind: int, body: Body, position: Callable[[], VClock]) -> None:
    """A row that speaks about the limbo: harmless while nothing waits, unless it undoes what has passed."""
    if kind == Type.RAFT_ROLLBACK:
        owner, lsn = body.get(Key.REPLICA_ID, 0), body.get(Key.LSN, 0)
        raise SynchronousReplicationError(
            f"{TYPE_NAMES[kind]} of everything of origin {owner} from lsn {lsn} on arrived at {position()}", _HINT
        )
