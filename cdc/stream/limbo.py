"""Where transactions wait that may still be rolled back: synchronous ones, and asynchronous ones behind them.

A row of a synchronous transaction is relayed before a quorum has it. Whether it stays is said later, by a row of its own:

    lsn    45 sync    46 async    47 sync    48 CONFIRM 45    49 ROLLBACK 47
             waits      waits       waits      │  45 and 46      │  47 vanishes, and all behind it
                                               ▼  come out       ▼
    released   44 ───────────────────────────▶ 46 ────────────▶ 49

What makes a transaction synchronous depends on the master. From 2.8 on, flags of its last row say so: WAIT_ACK that it is
synchronous, WAIT_SYNC that it waits. Before that nothing in the row does, and the `is_sync` option of the spaces that it
touches decides; of the spaces as they were when it was written, which may be ahead of the schema at which rows are decoded,
because DDL waits here like everything else. So the `_space` rows that wait are folded here, for this one question.

Rows without flags from a server that knows them were written before it was upgraded, so the spaces always count.

A transaction of NOPs alone has nothing to confirm or roll back, so a master with flags lets it past its limbo, and no CONFIRM
follows. From 3.0 on it may carry WAIT_ACK all the same: a trigger made its rows NOPs, or a member did to rows of a leader that
had been replaced. It never carries WAIT_SYNC, unless local rows, which aren't relayed, were a part of it: then it did wait.

An asynchronous transaction waits if its origin's queue isn't empty, whatever its flags say: it was written behind what waits.
So does one of NOPs, as the position of its origin can't move past the head; it is decided by what is in front of it.

    CONFIRM N     from the head, everything comes out up to the first synchronous transaction past lsn N
    ROLLBACK N    the first synchronous transaction from lsn N on vanishes, and all behind it
    PROMOTE N     confirms up to N and rolls back the rest, for the former owner; DEMOTE does the same

The master has one limbo with one owner. Here every origin has a queue, because an instance that comes back may have rows in its
log that another leader's PROMOTE, further back in everybody else's, has undone; the next change of ownership drops those too.

A queue pins the position of its origin alone, in front of its head. The position of an origin jumps over what vanished, and
over the rows that spoke about it, when its queue is empty. What the rows mean, and terms and elections, this module refuses to
know: a row that the master's own log holds was accepted by the master.

Sources: src/box/txn_limbo_queue.c (apply_confirm, apply_rollback, transfer_ownership), txn.c (txn_journal_entry_new:
is_fully_nop), applier.cc (applier_synchro_filter_tx, apply_plain_tx), and for the absence of flags before 2.8 the captures.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from cdc.errors import ProtocolError, SynchronousReplicationError, excerpt
from cdc.protocol.codec import Body
from cdc.protocol.constants import DATA_TYPES, SYNCHRO_TYPES, TYPE_NAMES, Flag, Key, Type
from cdc.protocol.system_spaces import SPACE_SPACE
from cdc.schema.tracker import SchemaTracker
from cdc.stream.transaction import Row, Transaction
from cdc.stream.transaction_buffer import Line, TransactionBuffer

FLAGS_SINCE: Final = (2, 8)
"""The first version whose rows say which transactions wait."""

DEFINITION_BYTES: Final = 1024
"""About what a `_space` row that waits costs in memory, beside its frame."""
_OF_SPACES: Final = DATA_TYPES | {Type.NOP}
_LSN_SPAN: Final = 1 << 64
"""An lsn is a signed number of 64 bits, written as unsigned: 2.6 rolls back "from -1 on", which is everything that waits, where
an asynchronous transaction, which has no lsn in its queue, stands first."""


class LimboState(msgspec.Struct, frozen=True):
    """What waits. The oldest arrived at `oldest_us` and is `oldest_origin`:`oldest_lsn`; all three are 0 if nothing waits."""

    transaction_count: int = 0
    row_count: int = 0
    memory_byte_count: int = 0
    disk_byte_count: int = 0
    oldest_us: int = 0
    oldest_origin: int = 0
    oldest_lsn: int = 0


class Limbo:
    """The queues of one connection, by origin. Its caller drops what the position covers before it comes here."""

    def __init__(self, schema: SchemaTracker, waiting: TransactionBuffer, version: tuple[int, ...]) -> None:
        """`schema` is the one at which released rows are decoded; `version` is the master's."""
        self._schema = schema
        self._waiting = waiting
        self._has_flags = version >= FLAGS_SINCE
        # Invariant: no queue in it is empty, unless its last transaction is being released.
        self._queues: dict[int, Line] = {}
        # By origin: lsn and `_space` rows of those that have any.
        self._definitions: dict[int, deque[tuple[int, list[Row]]]] = {}
        # `_space` rows as they will be when everything that waits is released; None for a space that will be gone.
        self._space_rows: dict[int, list[Any] | None] = {}
        # By owner: the last synchronous transaction that was confirmed here.
        self._confirmed: dict[int, int] = {}
        self.received: dict[int, int] = {}
        """By origin with a queue: the lsn of the last row that has arrived, waiting or not."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._queues

    @property
    def state(self) -> LimboState:
        """How much waits, for operators."""
        heads = [head for queue in self._queues.values() if (head := queue.head) is not None]
        if not heads:
            return LimboState()
        oldest = min(heads, key=lambda head: head.received_us)
        definitions = [row for found in self._definitions.values() for _, rows in found for row in rows]
        return LimboState(
            sum(queue.count for queue in self._queues.values()),
            sum(queue.row_count for queue in self._queues.values()),
            self._waiting.memory_byte_count + sum(DEFINITION_BYTES + len(frame) for _, _, _, frame in definitions),
            self._waiting.disk_byte_count,
            oldest.received_us,
            oldest.replica_id,
            oldest.lsn,
        )

    # Arrivals.

    def holds(self, transaction: Transaction, now_us: int) -> bool:
        """Take a transaction in if it has to wait; returns whether it has to. Raises what a full disk raises."""
        queue = self._queues.get(transaction.replica_id)
        touches, space_rows = self._look_at_spaces(transaction)
        is_synchronous = touches or (bool(transaction.flags & Flag.WAIT_ACK) and not self._passes_limbo(transaction))
        if queue is None and not is_synchronous:
            # Asynchronous and flagged as waiting, it was written while the last confirmation was on its way.
            return False
        if queue is None:
            queue = self._queues[transaction.replica_id] = self._waiting.line()
        queue.put(transaction, is_synchronous=is_synchronous, received_us=now_us)
        if space_rows:
            self._definitions.setdefault(transaction.replica_id, deque()).append((transaction.lsn, space_rows))
        self.received[transaction.replica_id] = transaction.lsn
        self._fold(self._space_rows, space_rows)
        return True

    def passes(self, replica_id: int, lsn: int) -> bool:
        """A row that only moves the position has arrived; returns whether it does so at once."""
        if replica_id not in self._queues:
            return True
        self.received[replica_id] = lsn
        return False

    # What is said about them.

    def apply(self, transaction: Transaction) -> Iterator[Transaction]:
        """A transaction of one control row: yields what it releases, in order, and drops what it rolls back.

        Each must be handled before the next is asked for. A row that comes again, or that speaks about what nobody has seen,
        changes nothing. Raises ProtocolError for a row that can't be understood, SynchronousReplicationError if it undoes
        what was confirmed.
        """
        kind, _, body, _ = transaction.rows[0]
        owner, lsn = _checked(kind, body, transaction)
        if kind == Type.RAFT_ROLLBACK:
            if not self._undo(owner, lsn) and 0 < lsn <= self._confirmed.get(owner, 0):
                raise SynchronousReplicationError(
                    f"{TYPE_NAMES[kind]} of everything of origin {owner} from lsn {lsn} on arrived at "
                    f"{transaction.replica_id}:{transaction.lsn}, and {owner}:{self._confirmed[owner]} had been confirmed",
                    'What was published has been rolled back: take a new snapshot with snapshot.mode = "always", '
                    "and look at how the replica set lost its quorum.",
                )
            return
        yield from self._release(owner, lsn)
        if kind != Type.RAFT_CONFIRM:
            self._undo(owner, lsn + 1)
            for other in list(self._queues):
                if other != owner:
                    self._undo(other, 0)

    def unpinned(self) -> dict[int, int]:
        """Origins whose queue has become empty since the last call, with the lsn that they have been received up to."""
        if len(self.received) == len(self._queues):
            return {}
        return {origin: self.received.pop(origin) for origin in list(self.received) if origin not in self._queues}

    def _release(self, owner: int, lsn: int) -> Iterator[Transaction]:
        queue = self._queues.get(owner)
        if queue is None:
            return
        definitions = self._definitions.get(owner) or deque()
        while (head := queue.head) is not None and (not head.is_synchronous or head.lsn <= lsn):
            if head.is_synchronous:
                self._confirmed[owner] = head.lsn
            while definitions and definitions[0][0] <= head.lsn:
                definitions.popleft()
            yield queue.take()
        self._tidy(owner)

    def _undo(self, owner: int, lsn: int) -> bool:
        """Drop from the first synchronous transaction at or past `lsn` on; returns whether there was one."""
        queue = self._queues.get(owner)
        first = queue.drop_from(lsn) if queue is not None else None
        if first is None:
            return False
        definitions = self._definitions.get(owner) or deque()
        while definitions and definitions[-1][0] >= first:
            definitions.pop()
        self._tidy(owner)
        return True

    def _tidy(self, owner: int) -> None:
        if not self._queues[owner]:
            self._waiting.drop(self._queues.pop(owner))
        if self._space_rows:
            # What was released is in the schema, what vanished never will be: what waits says what is to come.
            self._space_rows = {}
            for definitions in self._definitions.values():
                for _, space_rows in definitions:
                    self._fold(self._space_rows, space_rows)

    def _passes_limbo(self, transaction: Transaction) -> bool:
        """Whether a transaction that has WAIT_ACK changes nothing, so that its master didn't wait either."""
        if transaction.flags & Flag.WAIT_SYNC:
            return False
        spool = transaction.spool
        pieces = (transaction.rows,) if spool is None else self._waiting.rows_in_pieces(spool)
        return all(kind == Type.NOP for rows in pieces for kind, _, _, _ in rows)

    # Which spaces are synchronous, where the master's rows don't say.

    def _look_at_spaces(self, transaction: Transaction) -> tuple[bool, list[Row]]:
        """Whether a transaction touches a synchronous space, and its rows of `_space`."""
        if transaction.spool is None:
            return self._touched(transaction.rows, {})
        if self._has_flags and not (self._schema.synchronous or self._space_rows):
            return False, []  # it isn't read twice for a space that it makes synchronous itself
        is_synchronous, space_rows, ahead = False, list[Row](), dict[int, list[Any] | None]()
        for rows in self._waiting.rows_in_pieces(transaction.spool):
            touches, found = self._touched(rows, ahead)
            is_synchronous = is_synchronous or touches
            space_rows += found
        return is_synchronous, space_rows

    def _touched(self, rows: list[Row], ahead: dict[int, list[Any] | None]) -> tuple[bool, list[Row]]:
        # Before there were flags, a row that a trigger had turned into nothing counted like any other of its space.
        kinds = DATA_TYPES if self._has_flags else _OF_SPACES
        try:
            space_ids = {body.get(Key.SPACE_ID) for kind, _, body, _ in rows if kind in kinds}
        except TypeError:
            return False, []  # an array where an id should be: its row is refused where it is handled
        if SPACE_SPACE not in space_ids:
            if not (self._schema.synchronous or self._space_rows or ahead):
                return False, []
            return any(self._is_synchronous(space_id, ahead) for space_id in space_ids), []
        # The transaction defines spaces itself: its rows have to be gone through in order.
        is_synchronous, space_rows = False, list[Row]()
        for row in rows:
            kind, _, body, _ = row
            space_id = body.get(Key.SPACE_ID)
            if space_id == SPACE_SPACE:
                space_rows.append(row)
                self._fold(ahead, [row])
            elif kind in kinds and self._is_synchronous(space_id, ahead):
                is_synchronous = True
        return is_synchronous, space_rows

    def _is_synchronous(self, space_id: Any, ahead: dict[int, list[Any] | None]) -> bool:
        for rows in (ahead, self._space_rows):
            if space_id in rows:
                row = rows[space_id]
                return row is not None and SchemaTracker.is_synchronous_row(row)
        return space_id in self._schema.synchronous

    def _fold(self, ahead: dict[int, list[Any] | None], space_rows: list[Row]) -> None:
        for kind, _, body, _ in space_rows:
            space_id, row = self._schema.fold_space_row(kind, body, ahead, self._space_rows)
            ahead[space_id] = row


def is_control(transaction: Transaction) -> bool:
    """Whether a transaction is a row that speaks about the limbo."""
    rows = transaction.rows
    return bool(rows) and rows[0][0] in SYNCHRO_TYPES and len(rows) == 1


def _checked(kind: int, body: Body, transaction: Transaction) -> tuple[int, int]:
    owner, lsn = body.get(Key.REPLICA_ID, 0), body.get(Key.LSN, 0)
    if type(owner) is not int or type(lsn) is not int or owner < 0 or lsn < 0:
        raise ProtocolError(
            f"row {transaction.replica_id}:{transaction.lsn} ({TYPE_NAMES[kind]}) isn't what its type promises: {excerpt(body)}"
        )
    return owner, lsn - _LSN_SPAN if lsn >= _LSN_SPAN // 2 else lsn
