"""The queues of transactions that may still be rolled back: synchronous ones, and asynchronous ones after them.

The master relays a row of a synchronous transaction before a quorum has it. A later row of its own decides whether it stays:

    lsn    45 sync    46 async    47 sync    48 CONFIRM 45    49 ROLLBACK 47
             waits      waits       waits      │  45 and 46      │  47 and all after it
                                               ▼  are released   ▼  are dropped
    released   44 ───────────────────────────▶ 46 ────────────▶ 49

The master's version determines what makes a transaction synchronous. From 2.8 on, flags of its last row do: WAIT_ACK means that
it is synchronous, WAIT_SYNC that it waits. Before 2.8, rows have no such flags, and a transaction is synchronous if it touches a
space with the `is_sync` option. The option's value at the time of writing decides. The schema at which rows are decoded may be
older than that, because DDL waits here like everything else. This is the only reason why this module folds the waiting `_space`
rows.

A server that knows the flags may send rows without them, which it wrote before its upgrade. So the spaces' option always counts.

A transaction of NOPs alone has nothing to confirm or roll back, so a master with flags doesn't put it into its limbo, and no
CONFIRM follows. From 3.0 on, it may carry WAIT_ACK all the same: a trigger made its rows NOPs, or a member did so to rows of a
leader that had been replaced. It carries WAIT_SYNC only if local rows, which aren't relayed, were a part of it: then it did wait.

An asynchronous transaction waits if its origin's queue isn't empty, whatever its flags say, because it was written after the
waiting ones. So does a transaction of NOPs, because its origin's position can't move past the head of the queue. The transactions
in front of it decide when it is released or dropped.

    CONFIRM N     releases everything from the head of the queue up to the first synchronous transaction past lsn N
    ROLLBACK N    drops the first synchronous transaction at or past lsn N, and everything after it
    PROMOTE N     confirms up to N and rolls back the rest, for the former owner; DEMOTE does the same

The master has one limbo with one owner. Here every origin has a queue: the log of an instance that rejoins may contain rows that
another leader's PROMOTE has undone; in all other logs that PROMOTE comes earlier. The next change of ownership drops those
rows, too.

A queue holds back the position of its own origin alone, before the queue's head. When the queue becomes empty, the origin's
position jumps over the dropped transactions and over the control rows. Of the rows' contents, this module reads
only control rows, spaces' ids and rows of `_space`. It ignores terms and elections: the master accepted every row that its own
log holds.

Sources: src/box/txn_limbo_queue.c (apply_confirm, apply_rollback, transfer_ownership), txn.c (txn_journal_entry_new:
is_fully_nop), applier.cc (applier_synchro_filter_tx, apply_plain_tx), and for the absence of flags before 2.8 the captures.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from cdc import native
from cdc.errors import ProtocolError, SynchronousReplicationError, excerpt
from cdc.protocol.codec import Body
from cdc.protocol.constants import DATA_TYPES, SYNCHRO_TYPES, TYPE_NAMES, Flag, Key, Type
from cdc.protocol.system_spaces import SPACE_SPACE
from cdc.schema.tracker import SchemaTracker
from cdc.stream.transactions.held import Held, Part
from cdc.stream.transactions.transaction import Row, Transaction
from cdc.stream.transactions.transaction_buffer import TransactionBuffer, TransactionQueue

FLAGS_SINCE: Final = (2, 8)
"""The first version whose rows have flags that mark waiting transactions."""

DEFINITION_BYTES: Final = 1024
"""Approximate memory of a waiting `_space` row besides its frame, in bytes."""
_OF_SPACES: Final = DATA_TYPES | {Type.NOP}
_LSN_SPAN: Final = 1 << 64
"""Modulus of an lsn, which is a signed number of 64 bits and is sent as unsigned. A negative one occurs in 2.6: if an
asynchronous transaction, which has no lsn in its queue, is at the head, 2.6 rolls back everything by ROLLBACK -1."""


class LimboState(msgspec.Struct, frozen=True):
    """Size of the limbo.

    The oldest transaction, `oldest_origin`:`oldest_lsn`, arrived at `oldest_us`; all three are 0 if none waits.
    """

    transaction_count: int = 0
    row_count: int = 0
    memory_byte_count: int = 0
    disk_byte_count: int = 0
    oldest_us: int = 0
    oldest_origin: int = 0
    oldest_lsn: int = 0


class Limbo:
    """The queues of one connection, by origin. The caller passes in no transaction that the position covers."""

    def __init__(self, schema: SchemaTracker, waiting: TransactionBuffer, version: tuple[int, ...]) -> None:
        """`schema` is the schema at which released rows are decoded; `version` is the master's version."""
        self._schema = schema
        self._waiting = waiting
        self._has_flags = version >= FLAGS_SINCE
        # Invariant: no queue is empty, unless its last transaction is being released.
        self._queues: dict[int, TransactionQueue] = {}
        # By origin: lsn and `_space` rows of the waiting transactions that have such rows.
        self._definitions: dict[int, deque[tuple[int, list[Row]]]] = {}
        # `_space` rows as they will be when all waiting transactions are released; None for a space that will be gone.
        self._space_rows: dict[int, list[Any] | None] = {}
        # By owner: lsn of the last synchronous transaction that was confirmed here.
        self._confirmed: dict[int, int] = {}
        self._received: dict[int, int] = {}
        # While what was held is put into a queue: lsns of the synchronous ones. The spaces' options may have changed since.
        self._known_synchronous: set[int] | None = None
        self.held = Held()
        """What waits unread. Invariant: while something is held, there are no queues."""

    @property
    def is_empty(self) -> bool:
        """Whether no transaction waits."""
        return not self._queues and not self.held

    @property
    def has_queues(self) -> bool:
        """Whether transactions wait in queues."""
        return bool(self._queues)

    @property
    def received(self) -> dict[int, int]:
        """By origin with waiting transactions: the lsn of the last row that has arrived, whether the row waits or not."""
        return {self.held.origin: self.held.received_lsn} if self.held else self._received

    @property
    def state(self) -> LimboState:
        """Number and size of the waiting transactions, for operators."""
        held = self.held
        if held:
            part, counts = held.head, (held.transaction_count, held.row_count, held.byte_count)
            return LimboState(*counts, 0, part.received_us, held.origin, part.arrivals.first_lsn(part.at))
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

    # Arrivals by the batch.

    @property
    def is_likely(self) -> bool:
        """Whether the next rows probably concern the limbo."""
        return bool(self.held or self._schema.synchronous)

    def look_at(self, rows: native.Rows, at: int, vclock: Mapping[int, int]) -> native.Arrivals | None:
        """Return the transactions from row `at` on that can be decided together, given that there are no queues.

        None if the first one isn't such a transaction.
        """
        origin, held = rows.origin(at), self.held
        if held and origin != held.origin:
            return None
        after = held.received_lsn if held else vclock.get(origin, 0)
        arrivals = rows.arrivals(at, list(self._schema.synchronous), self._has_flags, after, held.waiting_lsn)
        return arrivals if arrivals.end > at else None

    def certain_until(self, origin: int, arrivals: native.Arrivals, confirmed: int) -> int:
        """Return the index of the row before which all these are certain, given that nothing waits before them.

        Records the last of them that is synchronous as confirmed, so the caller must release them.
        """
        until, lsn = arrivals.certain_until(confirmed)
        if lsn:
            self._confirmed[origin] = lsn
        return until

    def hold_again(self, bytes_max: int) -> None:
        """Hold what waits in queues, if the highest confirmed lsn is enough to decide about all of it, and if it is small."""
        if len(self._queues) != 1 or any(self._definitions.values()):
            return
        ((origin, queue),) = self._queues.items()
        if self.held.put_entries(queue.entries(bytes_max), self._received[origin]):
            self._waiting.drop(self._queues.pop(origin))
            del self._received[origin]

    def take_held(self) -> Iterator[Part]:
        """Remove what is held, part by part. Before it asks for the next part, the caller must queue each one's transactions."""
        received, parts = self.received, self.held.take_all()
        self._known_synchronous = {lsn for part in parts for lsn in part.arrivals.lsns}
        yield from parts
        self._known_synchronous = None
        for origin, lsn in received.items():
            self.advance_or_defer(origin, lsn)  # the last rows may have been about transactions that are gone

    # Arrivals.

    def enqueue_if_waiting(self, transaction: Transaction, now_us: int) -> bool:
        """Queue a transaction if it has to wait; return whether it was queued. Raises the spool's errors if the disk is full."""
        known = self._known_synchronous
        if known is None and transaction.row_count == 1 and not (transaction.flags or self._queues or self._schema.synchronous):
            return False  # as most transactions are: nothing waits, and nothing is synchronous
        queue = self._queues.get(transaction.replica_id)
        if known is not None:
            is_synchronous, space_rows = transaction.lsn in known, list[Row]()
        else:
            touches, space_rows = self._synchronous_and_space_rows(transaction)
            is_synchronous = touches or (bool(transaction.flags & Flag.WAIT_ACK) and not self._bypasses_limbo(transaction))
        if queue is None and not is_synchronous:
            # If it is asynchronous and flagged as waiting, it was written while the last confirmation was under way.
            return False
        if queue is None:
            queue = self._queues[transaction.replica_id] = self._waiting.new_queue()
        queue.put(transaction, is_synchronous=is_synchronous, received_us=now_us)
        if space_rows:
            self._definitions.setdefault(transaction.replica_id, deque()).append((transaction.lsn, space_rows))
        self._received[transaction.replica_id] = transaction.lsn
        self._fold(self._space_rows, space_rows)
        return True

    def advance_or_defer(self, replica_id: int, lsn: int) -> bool:
        """Record a row that only moves the position; return whether the position may move at once."""
        if replica_id not in self._queues:
            return True
        self._received[replica_id] = lsn
        return False

    # Control rows.

    def apply(self, transaction: Transaction) -> Iterator[Transaction]:
        """Apply a transaction of one control row: yield the transactions that it releases, in order, and drop those it rolls
        back.

        The caller must handle each transaction before it asks for the next. A repeated row, or a row about transactions that
        never arrived, changes nothing. Raises ProtocolError for a malformed row, SynchronousReplicationError if the row undoes
        a confirmed transaction.
        """
        kind, _, body, _ = transaction.rows[0]
        owner, lsn = _checked(kind, body, transaction)
        if kind == Type.RAFT_ROLLBACK:
            if not self._undo(owner, lsn) and 0 < lsn <= self._confirmed.get(owner, 0):
                raise SynchronousReplicationError(
                    f"{TYPE_NAMES[kind]} of everything of origin {owner} from lsn {lsn} on arrived at "
                    f"{transaction.replica_id}:{transaction.lsn}, but {owner}:{self._confirmed[owner]} was already confirmed",
                    'Published changes have been rolled back: take a new snapshot with snapshot.mode = "always", '
                    "and find out how the replica set lost its quorum.",
                )
            return
        yield from self._release(owner, lsn)
        if kind != Type.RAFT_CONFIRM:
            self._undo(owner, lsn + 1)
            for other in list(self._queues):
                if other != owner:
                    self._undo(other, 0)

    def take_unblocked(self) -> dict[int, int]:
        """Return the origins whose queue has become empty since the last call, with the lsn up to which they were received."""
        if len(self._received) == len(self._queues):
            return {}
        return {origin: self._received.pop(origin) for origin in list(self._received) if origin not in self._queues}

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
        """Drop the first synchronous transaction at or past `lsn` and all after it; return whether there was one."""
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
            # Released rows are in the schema by now, and dropped rows never will be: only the rows that still wait count.
            self._space_rows = {}
            for definitions in self._definitions.values():
                for _, space_rows in definitions:
                    self._fold(self._space_rows, space_rows)

    def _bypasses_limbo(self, transaction: Transaction) -> bool:
        """Return whether a transaction with WAIT_ACK changes nothing, so that its master didn't wait either."""
        if transaction.flags & Flag.WAIT_SYNC:
            return False
        spool = transaction.spool
        pieces = (transaction.rows,) if spool is None else self._waiting.rows_in_pieces(spool)
        return all(kind == Type.NOP for rows in pieces for kind, _, _, _ in rows)

    # Synchronous spaces, for rows without flags.

    def _synchronous_and_space_rows(self, transaction: Transaction) -> tuple[bool, list[Row]]:
        """Return whether a transaction touches a synchronous space, and its rows of `_space`."""
        if transaction.spool is None:
            return self._touched(transaction.rows, {})
        if self._has_flags and not (self._schema.synchronous or self._space_rows):
            return False, []  # the spool isn't read a second time for a space that the transaction makes synchronous itself
        is_synchronous, space_rows, ahead = False, list[Row](), dict[int, list[Any] | None]()
        for rows in self._waiting.rows_in_pieces(transaction.spool):
            touches, found = self._touched(rows, ahead)
            is_synchronous = is_synchronous or touches
            space_rows += found
        return is_synchronous, space_rows

    def _touched(self, rows: list[Row], ahead: dict[int, list[Any] | None]) -> tuple[bool, list[Row]]:
        # Before there were flags, a row that a trigger had turned into a NOP counted like any other row of its space.
        kinds = DATA_TYPES if self._has_flags else _OF_SPACES
        try:
            space_ids = {body.get(Key.SPACE_ID) for kind, _, body, _ in rows if kind in kinds}
        except TypeError:
            return False, []  # an array instead of a space id: the row is refused where it is handled
        if SPACE_SPACE not in space_ids:
            if not (self._schema.synchronous or self._space_rows or ahead):
                return False, []
            return any(self._is_synchronous(space_id, ahead) for space_id in space_ids), []
        # The transaction defines spaces itself, so its rows have to be read in order.
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
    """Return whether a transaction is a control row of the limbo."""
    rows = transaction.rows
    return bool(rows) and rows[0][0] in SYNCHRO_TYPES and len(rows) == 1


def _checked(kind: int, body: Body, transaction: Transaction) -> tuple[int, int]:
    owner, lsn = body.get(Key.REPLICA_ID, 0), body.get(Key.LSN, 0)
    if type(owner) is not int or type(lsn) is not int or owner < 0 or lsn < 0:
        raise ProtocolError(
            f"row {transaction.replica_id}:{transaction.lsn} ({TYPE_NAMES[kind]}) has a malformed body", detail=excerpt(body)
        )
    return owner, lsn - _LSN_SPAN if lsn >= _LSN_SPAN // 2 else lsn
