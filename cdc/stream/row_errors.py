"""Errors about one row: the problem, the row's identity, and its bytes, so that the row can be examined and replayed."""

from __future__ import annotations

from typing import Final

from cdc.errors import CdcError, ProtocolError
from cdc.events.json_values import encode
from cdc.protocol.constants import TYPE_NAMES, Key
from cdc.protocol.extensions import pack
from cdc.stream.transaction import Transaction

_SHOWN_BYTES: Final = 600
_BODY_OPENING: Final = b"\x82" + pack(int(Key.SPACE_ID))
_BODY_TUPLE: Final = pack(int(Key.TUPLE))

SNAPSHOT = Transaction(0, 0, 0, 0.0, 0, [])
"""Placeholder for the transaction of rows that have none."""


def at_row(error: CdcError, transaction: Transaction, kind: int, lsn: int, body: bytes, space: str = "") -> CdcError:
    """Return the same error with the row that it is about, the row's space if known, and its body as received."""
    row = f"row {transaction.replica_id}:{lsn} ({TYPE_NAMES.get(kind, kind)}){space}, body {body[:_SHOWN_BYTES].hex(' ')}"
    return type(error)(f"{error.message}; {row}", error.hint)


def malformed(transaction: Transaction, kind: int, lsn: int, body: bytes) -> ProtocolError:
    """Return the error for a row of the stream whose body doesn't fit its type."""
    return ProtocolError(
        f"row {transaction.replica_id}:{lsn} ({TYPE_NAMES.get(kind, kind)}) has a malformed body: {body[:_SHOWN_BYTES].hex(' ')}"
    )


def malformed_in_snapshot(frame: bytes) -> ProtocolError:
    """Return the error for a row of a snapshot that isn't an INSERT into a space."""
    return ProtocolError(f"a row of the snapshot can't be read: {frame[:_SHOWN_BYTES].hex(' ')}")


def stored_body(space_id: int, tuple_: bytes) -> bytes:
    """Return the body that the master would send for a row that is kept here."""
    return b"".join((_BODY_OPENING, pack(space_id), _BODY_TUPLE, tuple_))


def dead_letter(
    error: CdcError, transaction: Transaction, kind: int, lsn: int, body: bytes, space_id: object, server_uuid: str
) -> tuple[bytes, bytes]:
    """Return key and value for the dead-letter topic, with everything needed to apply the row again."""
    identity = {"replica_id": transaction.replica_id, "lsn": lsn}
    letter = {
        **identity,
        "error": str(error),
        "tsn": transaction.tsn,
        "type": TYPE_NAMES.get(kind, str(kind)),
        "space_id": space_id,
        "timestamp": transaction.timestamp,
        "server_uuid": server_uuid,
        "body": body,
    }
    return encode(identity), encode(letter)
