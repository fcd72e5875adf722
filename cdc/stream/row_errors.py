"""Errors about one row: the problem, the row's identity, and its bytes, so that the row can be examined and applied again.

The operator decides what becomes of such a row: the daemon stops at it, or writes it to the dead-letter topic and goes on.
"""

from __future__ import annotations

from typing import Final

from cdc.errors import CdcError, ImageError, ProtocolError, SchemaError
from cdc.events import topics
from cdc.events.json_values import encode
from cdc.images.overlay import Images
from cdc.protocol.constants import TYPE_NAMES, Key
from cdc.protocol.extensions import pack
from cdc.stream.batch import BatchBuilder
from cdc.stream.options import PipelineOptions
from cdc.stream.spaces import Spaces
from cdc.stream.transactions.transaction import Transaction

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


class Refusals:
    """Handler of rows that can't be encoded, or can't be applied to the images."""

    def __init__(
        self, options: PipelineOptions, spaces: Spaces, builder: BatchBuilder, images: Images | None, server_uuid: str
    ) -> None:
        self._options = options
        self._spaces = spaces
        self._builder = builder
        self._images = images
        self._server_uuid = server_uuid

    def refuse(self, error: CdcError, transaction: Transaction, kind: int, lsn: int, body: bytes, space_id: object) -> None:
        """Raise the error of a row that can't be encoded, or write the row and its body as received to the dead-letter topic."""
        if self._options.on_error == "fail":
            raise at_row(error, transaction, kind, lsn, body, self._space_text(space_id)) from error
        self._set_aside(error, transaction, kind, lsn, body, space_id)

    def refuse_unappliable(
        self, error: ImageError, transaction: Transaction, kind: int, lsn: int, body: bytes, space_id: object
    ) -> None:
        """Raise the error of a row that can't be applied to the images, or mark its key as doubtful and set the row aside."""
        assert self._images is not None
        if self._options.on_image_error == "fail" or error.key is None or not self._images.mark_doubtful(error.key):
            raise at_row(error, transaction, kind, lsn, body, self._space_text(space_id)) from error
        self._set_aside(error, transaction, kind, lsn, body, space_id)

    def _set_aside(self, error: CdcError, transaction: Transaction, kind: int, lsn: int, body: bytes, space_id: object) -> None:
        self._builder.control(topics.DLQ, *dead_letter(error, transaction, kind, lsn, body, space_id, self._server_uuid))

    def _space_text(self, space_id: object) -> str:
        try:
            return f" of space {self._spaces.form(space_id).name!r}" if type(space_id) is int else ""
        except SchemaError:
            return ""  # it has rows here and no name; the error gives the reason, and the body contains the space's id
