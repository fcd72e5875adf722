"""Errors about one row: what is wrong, which row it is, and its bytes, so that it can be looked at and replayed."""

from __future__ import annotations

from cdc.change import Transaction
from cdc.errors import CdcError, ProtocolError
from cdc.json_values import encode
from cdc.protocol.codec import Body, Header
from cdc.protocol.constants import TYPE_NAMES, Key
from cdc.protocol.extensions import pack

SNAPSHOT = Transaction(0, 0, 0, 0.0, 0, [])
"""Stands for the transaction of rows that have none."""


def at_row(error: CdcError, transaction: Transaction, kind: int, lsn: int, body: Body) -> CdcError:
    """The same error, with the row that it is about."""
    row = f"row {transaction.replica_id}:{lsn} ({TYPE_NAMES.get(kind, kind)}), body {pack(body).hex(' '):.2000}"
    return type(error)(f"{error.message}; {row}", error.hint)


def malformed(transaction: Transaction, kind: int, lsn: int, body: Body) -> ProtocolError:
    """A row of the stream whose body isn't what its type promises."""
    return ProtocolError(
        f"row {transaction.replica_id}:{lsn} ({TYPE_NAMES.get(kind, kind)}) isn't what its type promises: "
        f"body {pack(body).hex(' '):.2000}"
    )


def malformed_in_snapshot(header: Header, body: Body) -> ProtocolError:
    """A row of a snapshot that isn't an INSERT into a space."""
    row = f"header {pack(header).hex(' '):.500}, body {pack(body).hex(' '):.2000}"
    return ProtocolError(f"a row of the snapshot can't be read: {row}")


def dead_letter(
    error: CdcError, transaction: Transaction, kind: int, lsn: int, body: Body, server_uuid: str
) -> tuple[bytes, bytes]:
    """Key and value for the dead-letter topic: all that is needed to do the row again."""
    identity = {"replica_id": transaction.replica_id, "lsn": lsn}
    letter = {
        **identity,
        "error": str(error),
        "tsn": transaction.tsn,
        "type": TYPE_NAMES.get(kind, str(kind)),
        "space_id": body.get(Key.SPACE_ID),
        "timestamp": transaction.timestamp,
        "server_uuid": server_uuid,
        "body": pack(body),
    }
    return encode(identity), encode(letter)
