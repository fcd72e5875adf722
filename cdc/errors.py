"""Errors of the project, classified by who must act.

Every error that leaves a module of this project is one of these. Each has a sentence that names the problem and, if somebody can
solve it, the remedy. `Remedy.WAIT` errors heal by waiting and retrying. `Remedy.OPERATOR` errors need a person: a retry would
only repeat them.

Who may see the status mustn't see rows by it. So an error has two parts: the sentence, which names spaces, fields, positions and
servers, and the `detail`, which has all that is quoted of received data: rows, keys, operations, bytes. The log has both (`str`);
the status, metrics and notifications have the sentence alone (`public`).
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final, Self

OUT_OF_FILES: Final = "Raise the limit of open files: `ulimit -n`, or LimitNOFILE in systemd's unit."
"""Remedy if the process, or the machine, has no descriptor left: nothing is wrong with the peer or its address."""
_EXCERPTS: Final = reprlib.Repr()
_EXCERPTS.maxlevel = 8
_EXCERPTS.maxlist = _EXCERPTS.maxtuple = _EXCERPTS.maxdict = 50
_EXCERPTS.maxstring = _EXCERPTS.maxother = 200
_EXCERPTS.maxlong = 100


def excerpt(value: object, length: int = 500) -> str:
    """Return a foreign value for an error message: at most `length` characters, however long and deeply nested the value is."""
    return _EXCERPTS.repr(value)[:length]


def printable(text: str, *, but: str = "") -> str:
    """Return a text that may be foreign, with what isn't printable written as in JSON, but for the characters of `but`."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in but else json.dumps(sign)[1:-1] for sign in text)


class Remedy(Enum):
    """Who must act before a retry can succeed."""

    WAIT = "wait"
    OPERATOR = "operator"


class CdcError(Exception):
    """Root of all errors of this project: a sentence, its remedy (`hint`), and what it quotes of received data (`detail`)."""

    remedy = Remedy.OPERATOR

    def __init__(self, message: str, hint: str = "", *, detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail

    def quoting(self, detail: str) -> Self:
        """Return this error with more received data in front of what it quotes already."""
        self.detail = "; ".join(filter(None, (detail, self.detail)))
        return self

    def conceal(self) -> None:
        """Leave received data out, as rules for columns may apply to it."""
        if self.detail:
            self.detail = "it isn't shown, because there are columns.rules"

    @property
    def public(self) -> str:
        """The sentence and the remedy, without received data."""
        return self._with_hint(self.message)

    def __str__(self) -> str:
        return self._with_hint(f"{self.message}: {self.detail}" if self.detail else self.message)

    def _with_hint(self, text: str) -> str:
        return f"{text.rstrip('.')}. {self.hint}" if self.hint else text


class ConfigurationError(CdcError):
    """The configuration can't be used; nothing has been connected to."""


class ProtocolError(CdcError):
    """The peer sent data that the protocol doesn't allow; the connection is unusable from here on."""


class LogFileError(CdcError):
    """A .snap or .xlog file can't be read: it is of another kind or version, or damaged at `offset` (in bytes)."""

    def __init__(self, message: str, *, offset: int, hint: str = "") -> None:
        super().__init__(f"{message}, at offset {offset}" if offset else message, hint)
        self.offset = offset
        self.file = ""
        """The file's path, once it is known."""


class UnsupportedRowError(ProtocolError):
    """A row of a kind that this program doesn't know: skipping it would lose a change silently."""


class ConnectionLostError(CdcError):
    """The peer closed the connection, or never answered."""

    remedy = Remedy.WAIT


class SilenceError(ConnectionLostError):
    """The connection is open, but nothing has been received for longer than a healthy server stays silent."""


class ServerError(CdcError):
    """The server answered with an error packet.

    `code` is Tarantool's error number. `kind` is the type in the error stack (`ClientError`, `XlogGapError`, …; empty if the
    server sent no stack). `remedy` follows from both.
    """

    def __init__(self, message: str, *, code: int, kind: str = "", hint: str = "", remedy: Remedy = Remedy.OPERATOR) -> None:
        super().__init__(message, hint)
        self.code = code
        self.kind = kind
        self.remedy = remedy


class SchemaError(CdcError):
    """A row doesn't fit the schema at its position."""


class UnknownSpaceError(SchemaError):
    """A row is of a space that the schema lacks: the checkpoint topic may have lost the space's form."""


class UnkeyableError(SchemaError):
    """A space's primary key can't be encoded so that keys that the server considers equal are equal bytes."""


class StateError(CdcError):
    """The state store can't be used as it is: unreadable, of another version, in use or without room. Its content is intact."""


class StateLostError(CdcError):
    """The state store's content can't be trusted any more; the store must be built again."""


class EncodingError(CdcError):
    """A value has no representation in the configured format."""


class WiderRowError(CdcError):
    """A row has more fields than its space's schema, which gets as many as `width` then, and the row is encoded again."""

    def __init__(self, message: str, width: int, hint: str = "") -> None:
        super().__init__(message, hint)
        self.width = width


class ManyRowsError(CdcError):
    """A row changes many others: it is handled as the `requests`, bodies and frames of DELETEs, in its place."""

    def __init__(self, requests: Iterator[tuple[dict[int, Any], bytes]]) -> None:
        super().__init__("a row changes many others")
        self.requests = requests


class SnapshotNeededError(CdcError):
    """The stream can't be continued: only a snapshot can.

    `place` is the origin and the lsn of the transaction that the snapshot must contain, None if any snapshot will do.
    """

    place: tuple[int, int] | None = None


class KeysChangedError(SnapshotNeededError):
    """A space got another primary key, and its kept rows can't be moved to it: only a snapshot has them under the new key."""


class UnseenRowsError(SnapshotNeededError):
    """A space with an unpublished name got a published one, and its earlier rows have never been seen."""


class StoreBehindError(SnapshotNeededError):
    """The state store can't be brought up to the checkpoint; only a snapshot can fill it."""


class ImageError(CdcError):
    """A row contradicts the tuple that is kept for its key.

    `key` is the store's key if the row may be skipped: the key's tuple is unknown then, until a row contains it completely.
    """

    key: bytes | None = None


class SynchronousReplicationError(CdcError):
    """The log rolls back a synchronous transaction that it had confirmed."""


class PositionError(CdcError):
    """The daemon can't resume at this master: a gap in the master's logs, a lost history or another replica set."""


class OtherHistoryError(PositionError):
    """The server has other rows under lsns that were published."""


class ForeignServerError(PositionError):
    """The server belongs to another replica set than the checkpoint, so nothing of it may be used."""


class RequestError(CdcError):
    """A running daemon can't do what it was asked to; the daemon continues."""


class PublishError(CdcError):
    """Kafka refused permanently: fenced by another daemon, forbidden, or a message that it will never accept."""


class TransactionTimeoutError(PublishError):
    """A source transaction took longer to publish than a Kafka transaction may be open, so Kafka aborted it."""


class PublishAborted(CdcError):  # noqa: N818 - not a fault of its own: it says that a transaction must be done again
    """A Kafka transaction was aborted; everything since the last checkpoint must be published again."""

    remedy = Remedy.WAIT
