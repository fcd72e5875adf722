"""What the events of one transaction of the stream share, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from cdc.events.envelope import COLLECTION_ORDER, OPEN_TRUNCATE, SEQ, SpaceEvents, transaction_records
from cdc.schema.tracker import SchemaTracker
from cdc.stream.transaction import Transaction


class OriginTexts(msgspec.Struct, gc=False):
    """Texts that hold while one origin's transactions follow each other; made anew when another origin's row comes.

    `before` and `after` are the vclock around the origin's own component.
    """

    origin: int = 0
    before: bytes = b""
    after: bytes = b""
    origin_text: bytes = b""
    transaction_text: bytes = b""
    previous_lsn: bytes = b"0"

    def turn_to(self, origin: int, vclock: Mapping[int, int]) -> None:
        """From here on rows are of this origin, and follow `vclock`."""
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
    """What the events of one transaction share, and where it stands."""

    transaction: Transaction
    time: bytes
    origin: bytes
    tsn: bytes
    tail: bytes
    suffix: bytes
    orders: dict[Any, int]
    row_number: int = 0
    total_order: int = 0
    emptied: dict[int, str] = {}
    """Names of spaces that lost their rows: the transaction may drop them, too."""

    def truncation(self, space: SpaceEvents, lsn: int, row_number: int, seq: int) -> bytes:
        """The event that all rows of a space are gone, counted as the transaction's next."""
        form = space.form
        self.total_order += 1
        self.emptied[form.space_id] = form.name
        order = self.orders[form.space_id] = self.orders.get(form.space_id, 0) + 1
        return b"".join(
            (
                OPEN_TRUNCATE,
                self.time,
                b"%d" % lsn,
                space.table,
                self.origin,
                b"%d" % lsn,
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

    def records(self, schema: SchemaTracker) -> list[tuple[bytes, bytes]]:
        """Keys and values of the transaction's BEGIN and END."""
        transaction = self.transaction
        counts = [
            (schema.name(space_id) or self.emptied.get(space_id, str(space_id)), count) for space_id, count in self.orders.items()
        ]
        return transaction_records(f"{transaction.replica_id}:{transaction.tsn}", counts, transaction.timestamp)
