"""Text that all events of one stream transaction share, and the transaction's counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from cdc.events.envelope import COLLECTION_ORDER, SEQ, SharedPieces, SpaceEvents, transaction_records
from cdc.protocol.codec import Body
from cdc.protocol.constants import Type
from cdc.schema.tracker import SchemaTracker
from cdc.stream.transactions.transaction import Row, Transaction


class OriginTexts(msgspec.Struct, gc=False):
    """Text that stays the same for consecutive transactions of one origin; built again for a row of another origin.

    `before` and `after` are the vclock's text around the origin's own component.
    """

    origin: int = 0
    before: bytes = b""
    after: bytes = b""
    origin_text: bytes = b""
    transaction_text: bytes = b""
    previous_lsn: bytes = b"0"

    def turn_to(self, origin: int, vclock: Mapping[int, int]) -> None:
        """Build the text for this origin, whose next row follows `vclock`."""
        others = sorted((other, lsn) for other, lsn in vclock.items() if other != origin)
        before = b"".join(b'"%d":%d,' % item for item in others if item[0] < origin)
        after = b"".join(b',"%d":%d' % item for item in others if item[0] > origin)
        self.origin = origin
        self.before = b'{%b"%d":' % (before, origin)
        self.after = after + b"}"
        self.origin_text = b'%d,"lsn":' % origin
        self.transaction_text = b'},"transaction":{"id":"%d:' % origin
        self.previous_lsn = b"%d" % vclock.get(origin, 0)


class EventFragments(msgspec.Struct, gc=False):
    """Text that all events of one transaction share, and the transaction's counters.

    `event` joins the pieces that cdc.events.envelope draws: `time` from `source` to `sequence`, `origin` the replica id, `tsn`,
    `tail` from the vclock to `transaction`, and `suffix` the end. `orders` counts the events of each space.
    `row_number` is that of the next row. The batch isn't split after the row `last_row_number`.
    """

    transaction: Transaction
    time: bytes
    origin: bytes
    tsn: bytes
    tail: bytes
    suffix: bytes
    orders: dict[Any, int]
    row_number: int = 0
    last_row_number: int | None = None
    previous_lsn: bytes = b"0"
    """Lsn of the origin before the transaction."""
    total_order: int = 0
    emptied: dict[int, str] = {}
    """Names of the spaces that lost all rows, by id: the transaction may drop them, too."""
    elsewhere: dict[int, int] = {}
    """How many of `orders` aren't in this part of the transaction: rows of buckets that move keep their places if they wait, or
    publish nothing."""
    is_part: bool = False
    """Whether other parts of the transaction may have events, too."""

    def event(self, space: SpaceEvents, lsn: int, row_number: int, seq: int, start: bytes) -> bytes:
        """Return the transaction's next event: `start` is the text of its operation and images."""
        space_id, orders = space.form.space_id, self.orders
        self.total_order += 1
        order = orders[space_id] = orders[space_id] + 1 if space_id in orders else 1
        lsn_text = b"%d" % lsn
        return b"".join(
            (
                start,
                self.time,
                lsn_text,
                space.table,
                self.origin,
                lsn_text,
                self.tsn,
                b"%d" % row_number,
                SEQ,
                b"%d" % seq,
                space.schema,
                self.tail,
                b"%d" % self.total_order,
                COLLECTION_ORDER,
                b"%d" % order,
                self.suffix,
            )
        )

    def truncation(self, space: SpaceEvents, lsn: int, row_number: int, seq: int) -> bytes:
        """Return the event that reports the loss of all rows of a space."""
        self.emptied[space.form.space_id] = space.form.name
        return self.event(space, lsn, row_number, seq, space.openings.truncate)

    @property
    def is_alone(self) -> bool:
        """Whether the next row is the transaction's only one, and stands for no others."""
        return self.transaction.row_count == 1 and self.last_row_number is not None

    def keep_places(self, space_id: int, count: int = 1) -> tuple[int, int]:
        """Keep places for events that aren't made now; return the first one's order in the transaction, and in the space."""
        first = self.total_order + 1, self.orders.get(space_id, 0) + 1
        self.total_order += count
        self.orders[space_id] = self.orders.get(space_id, 0) + count
        self.elsewhere[space_id] = self.elsewhere.get(space_id, 0) + count
        self.is_part = True
        return first

    def turn_to_place(self, space_id: int, total_order: int, order: int) -> None:
        """Give the next event, of this space, the place that was kept for it."""
        skipped = order - 1 - self.orders.get(space_id, 0)
        self.elsewhere[space_id] = self.elsewhere.get(space_id, 0) + skipped
        self.total_order, self.orders[space_id] = total_order - 1, order - 1

    def counts(self) -> dict[int, int]:
        """Return the numbers of the events that have been made, by space."""
        if not self.elsewhere:
            return self.orders
        made = {space_id: count - self.elsewhere.get(space_id, 0) for space_id, count in self.orders.items()}
        return {space_id: count for space_id, count in made.items() if count}

    def records(self, schema: SchemaTracker) -> list[tuple[bytes, bytes]]:
        """Return keys and values of the transaction's BEGIN and END."""
        transaction = self.transaction
        counts = [
            (schema.name(space_id) or self.emptied.get(space_id, str(space_id)), count)
            for space_id, count in self.counts().items()
        ]
        return transaction_records(f"{transaction.replica_id}:{transaction.tsn}", counts, transaction.timestamp)


class BinaryFragments(EventFragments, gc=False):
    """The same in a format that isn't text: `shared` joins the pieces of an event."""

    shared: SharedPieces | None = None

    def event(self, space: SpaceEvents, lsn: int, row_number: int, seq: int, start: bytes) -> bytes:
        """Do as EventFragments.event."""
        assert self.shared is not None
        space_id, orders = space.form.space_id, self.orders
        self.total_order += 1
        order = orders[space_id] = orders[space_id] + 1 if space_id in orders else 1
        return self.shared.event(space, lsn, row_number, seq, start, (self.total_order, order)) + self.suffix


def deletes(fragments: EventFragments, lsn: int, requests: Iterator[tuple[Body, bytes]]) -> Iterator[Row]:
    """Yield the DELETEs that the row before stands for, as rows with its number. The caller counts each before the next."""
    number = fragments.row_number - 1
    for body, frame in requests:
        fragments.row_number = number
        yield Type.DELETE, lsn, body, frame
