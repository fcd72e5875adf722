"""Errors about one row: the problem, the row's identity, and in the detail its bytes, to be examined and applied again.

The operator decides what becomes of such a row: the daemon stops at it, or writes it to the dead-letter topic and goes on.
"""

from __future__ import annotations

from typing import Final

from cdc.errors import CdcError, ImageError, ProtocolError, SchemaError, UnsupportedRowError
from cdc.events import topics
from cdc.events.columns import CONCEALED
from cdc.events.json_values import encode
from cdc.images.overlay import Images
from cdc.protocol.constants import ROW_TYPES, TYPE_NAMES, Key
from cdc.protocol.extensions import pack
from cdc.stream.batches.batch import BatchBuilder
from cdc.stream.batches.options import PipelineOptions
from cdc.stream.batches.spaces import Spaces
from cdc.stream.transactions.transaction import Transaction

_SHOWN_BYTES: Final = 600
_BODY_OPENING: Final = b"\x82" + pack(int(Key.SPACE_ID))
_BODY_TUPLE: Final = pack(int(Key.TUPLE))

SNAPSHOT = Transaction(0, 0, 0, 0.0, 0, [])
"""Placeholder for the transaction of rows that have none."""


def at_row(error: CdcError, transaction: Transaction, kind: int, lsn: int, body: bytes | None, space: str = "") -> CdcError:
    """Return the same error with the row that it is about, the row's space if known, and its body as received.

    `body` is None if it must not be shown. Then nothing else that the error quotes is shown.
    """
    row = f"row {transaction.replica_id}:{lsn} ({TYPE_NAMES.get(kind, kind)}){space}"
    found = type(error)(f"{error.message}; {row}", error.hint)
    return found.quoting(_quoted(body)).quoting(error.detail if body is not None else "")


def _quoted(body: bytes | None) -> str:
    return f"body {body[:_SHOWN_BYTES].hex(' ')}" if body is not None else f"its body {CONCEALED}"


def malformed(transaction: Transaction, kind: int, lsn: int, body: bytes | None) -> ProtocolError:
    """Return the error for a row of the stream whose body doesn't fit its type, or whose type isn't known.

    `body` is None if it must not be shown.
    """
    if kind not in ROW_TYPES:
        # It may be a change, so skipping it could lose data. Only files have such rows here: a session looks at types first.
        what = f"row {transaction.replica_id}:{lsn} is of type {kind}, which this version can't follow"
        return UnsupportedRowError(what, "A newer version of the daemon may know it.", detail=_quoted(body))
    what = f"row {transaction.replica_id}:{lsn} ({TYPE_NAMES.get(kind, kind)}) has a malformed body"
    return ProtocolError(what, detail=_quoted(body))


def malformed_in_snapshot(frame: bytes | None) -> ProtocolError:
    """Return the error for a row of a snapshot that isn't an INSERT into a space; `frame` is None if it must not be shown."""
    quoted = frame[:_SHOWN_BYTES].hex(" ") if frame is not None else f"it {CONCEALED}"
    return ProtocolError("a row of the snapshot can't be read", detail=quoted)


def stored_body(space_id: int, tuple_: bytes) -> bytes:
    """Return the body that the master would send for a row that is kept here."""
    return b"".join((_BODY_OPENING, pack(space_id), _BODY_TUPLE, tuple_))


def dead_letter(
    error: CdcError, transaction: Transaction, kind: int, lsn: int, body: bytes | None, space_id: object, server_uuid: str
) -> tuple[bytes, bytes]:
    """Return key and value for the dead-letter topic, with everything needed to apply the row again.

    `body` is None if it must not be published: then the row has to be taken from the server's log.
    """
    shown = str(error) if body is not None else error.public
    identity = {"replica_id": transaction.replica_id, "lsn": lsn}
    letter = {
        **identity,
        "error": shown,
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
        self.are_past = False
        """Whether rows only change the images, as their events are published: one that couldn't be encoded, if it had to be, was
        refused then."""

    def refuse(self, error: CdcError, transaction: Transaction, kind: int, lsn: int, body: bytes, space_id: object) -> None:
        """Raise the error of a row that can't be encoded, or write the row and its body as received to the dead-letter topic."""
        if self.are_past:
            return
        if self._options.on_error == "fail":
            raise self.at_row(error, transaction, kind, lsn, body, space_id) from error
        self._set_aside(error, transaction, kind, lsn, body, space_id)

    def refuse_unappliable(
        self, error: ImageError, transaction: Transaction, kind: int, lsn: int, body: bytes, space_id: object
    ) -> None:
        """Raise the error of a row that can't be applied to the images, or mark its key as doubtful and set the row aside."""
        assert self._images is not None
        if self._options.on_image_error == "fail" or error.key is None or not self._images.mark_doubtful(error.key):
            raise self.at_row(error, transaction, kind, lsn, body, space_id) from error
        self._set_aside(error, transaction, kind, lsn, body, space_id)

    def at_row(self, error: CdcError, transaction: Transaction, kind: int, lsn: int, body: bytes, space_id: object) -> CdcError:
        """Return the error of a row, as the function `at_row` does, as far as the rules for columns let it be shown."""
        return at_row(error, transaction, kind, lsn, self.shown_body(body, space_id), self._space_text(space_id))

    def malformed(self, transaction: Transaction, kind: int, lsn: int, body: bytes, space_id: object) -> ProtocolError:
        """Return the error for a row of the stream whose body doesn't fit its type."""
        return malformed(transaction, kind, lsn, self.shown_body(body, space_id))

    def malformed_in_snapshot(self, frame: bytes, space_id: object) -> ProtocolError:
        """Return the error for a row of a snapshot that isn't an INSERT into a space."""
        return malformed_in_snapshot(self.shown_body(frame, space_id))

    def shown_body(self, body: bytes, space_id: object) -> bytes | None:
        """Return a row's body; None if the rules for columns don't let it be shown."""
        return None if self._spaces.conceals(space_id) else body

    def _set_aside(self, error: CdcError, transaction: Transaction, kind: int, lsn: int, body: bytes, space_id: object) -> None:
        shown = self.shown_body(body, space_id)
        self._builder.control(topics.DLQ, *dead_letter(error, transaction, kind, lsn, shown, space_id, self._server_uuid))

    def _space_text(self, space_id: object) -> str:
        try:
            return f" of space {self._spaces.form(space_id).name!r}" if type(space_id) is int else ""
        except SchemaError:
            return ""  # it has rows here and no name; the error gives the reason, and the body contains the space's id
