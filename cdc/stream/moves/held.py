"""What waits of a bucket: rows of its log, as they were received."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from cdc.schema.keys import space_prefix
from cdc.stream.moves.records import Place, Step
from cdc.stream.transactions.transaction import Transaction

HELD_NUMBER: Final = 1
"""Number under which the state store has what waits. No space that users may have has this id."""
_PREFIX: Final = space_prefix(HELD_NUMBER)


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """The source transaction of a row, and the position at its end."""

    replica_id: int
    tsn: int
    lsn: int
    timestamp: float
    row_count: int
    previous_lsn: bytes
    vclock: dict[int, int]


class TransactionTexts(Protocol):
    """What is told of the transaction of a row that may have to wait (cdc.stream.fragments)."""

    transaction: Transaction
    previous_lsn: bytes

    @property
    def is_alone(self) -> bool:
        """Whether the row is the transaction's only one, and stands for no others."""

    def keep_places(self, space_id: int, count: int = 1) -> tuple[int, int]:
        """Keep places for events that aren't made now; return the first one's order in the transaction, and in the space."""


class HeldRow(msgspec.Struct, array_like=True):
    """A row of a sharded space. `is_joined`: an earlier row of its key waits since the bucket's last state.

    `is_follower`: nothing but earlier rows of its key make it wait. `bucket_after` and `tuple_after` are those of its key
    after it. `orders` is the place of its event among its transaction's: in all, and in its space. `is_part`: its transaction may
    have other events. Stores of earlier versions know neither.
    """

    space_id: int
    key: bytes
    kind: int
    lsn: int
    row_number: int
    frame: bytes
    origin: Origin
    is_joined: bool = False
    is_follower: bool = False
    bucket_after: int | None = None
    tuple_after: bytes | None = None
    orders: tuple[int, int] | None = None
    is_part: bool = False


class Held(msgspec.Struct, array_like=True):
    """A row of a bucket's log that waits: of `_bucket` (`step`), or of a sharded space (`row`). `number` counts all that wait.

    The bucket of a row is the one that its key was in before it, or that it creates its key in.
    """

    number: int
    bucket_id: int
    place: Place
    step: Step | None = None
    row: HeldRow | None = None

    @property
    def is_follower(self) -> bool:
        """Whether it waits behind other rows of its key alone."""
        return self.row is not None and self.row.is_follower

    @property
    def store_key(self) -> bytes:
        """Key in the state store, in whose order rows wait."""
        return _PREFIX + self.number.to_bytes(8, "big")

    def pack(self) -> bytes:
        """Return the value in the state store."""
        return msgspec.msgpack.encode(self)

    @property
    def byte_count(self) -> int:
        """Approximate size in memory, in bytes."""
        row = self.row
        return _OBJECTS_BYTES + (len(row.frame) + len(row.key) + len(row.tuple_after or b"") if row is not None else 0)


_OBJECTS_BYTES: Final = 400
_decoder: Final = msgspec.msgpack.Decoder(Held)


def unpack(value: bytes) -> Held:
    """Return what `pack` has made bytes of."""
    return _decoder.decode(value)
