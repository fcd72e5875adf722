"""What can go wrong, classified by who must act.

Every error that leaves a module of this project is one of these. Each carries a sentence that names the thing and, where
somebody can do something about it, the remedy. `Remedy.WAIT` errors heal by waiting and trying again; `Remedy.OPERATOR`
errors need a person, and trying again would only repeat them.
"""

from __future__ import annotations

import reprlib
from enum import Enum
from typing import Final

_EXCERPTS: Final = reprlib.Repr()
_EXCERPTS.maxlevel = 8
_EXCERPTS.maxlist = _EXCERPTS.maxtuple = _EXCERPTS.maxdict = 50
_EXCERPTS.maxstring = _EXCERPTS.maxother = 200
_EXCERPTS.maxlong = 100


def excerpt(value: object, length: int = 500) -> str:
    """A value from outside as an error shows it: at most `length` characters, however long and however deeply nested it is."""
    return _EXCERPTS.repr(value)[:length]


class Remedy(Enum):
    """Who must act before another try can succeed."""

    WAIT = "wait"
    OPERATOR = "operator"


class CdcError(Exception):
    """Root of all errors of this project: a sentence, and what to do about it."""

    remedy = Remedy.OPERATOR

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        if not self.hint:
            return self.message
        return f"{self.message.rstrip('.')}. {self.hint}"


class ConfigurationError(CdcError):
    """The configuration can't be used; nothing has been connected to."""


class ProtocolError(CdcError):
    """The peer sent what the protocol doesn't allow; the connection is unusable from here on."""


class LogFileError(CdcError):
    """A .snap or .xlog file can't be read: it is something else, of another version, or damaged at `offset` (in bytes)."""

    def __init__(self, message: str, *, offset: int, hint: str = "") -> None:
        super().__init__(f"{message}, at offset {offset}" if offset else message, hint)
        self.offset = offset
        self.file = ""
        """The file's path, once it is known."""


class UnsupportedRowError(ProtocolError):
    """A row of a kind that this program doesn't know: passing over it would lose a change silently."""


class ConnectionLostError(CdcError):
    """The peer went away, or never answered."""

    remedy = Remedy.WAIT


class SilenceError(ConnectionLostError):
    """The connection stands, and nothing comes over it for longer than a server that is well keeps silent."""


class ServerError(CdcError):
    """The server answered with an error packet.

    `code` is Tarantool's error number, `kind` the type that the error stack gives (`ClientError`, `XlogGapError`, …; empty
    where the server sent no stack), `remedy` follows from both.
    """

    def __init__(self, message: str, *, code: int, kind: str = "", hint: str = "", remedy: Remedy = Remedy.OPERATOR) -> None:
        super().__init__(message, hint)
        self.code = code
        self.kind = kind
        self.remedy = remedy


class SchemaError(CdcError):
    """A row doesn't fit the schema at its position."""


class UnkeyableError(SchemaError):
    """A space's primary key has no form in which keys that the server takes for equal are equal bytes."""


class StateError(CdcError):
    """The state store can't be used as it is: unreadable, of another version, in use or without room. What it holds is intact."""


class StateLostError(CdcError):
    """What the state store holds can't be trusted any more; it must be built anew."""


class EncodingError(CdcError):
    """A value has no representation in the configured format."""


class SnapshotNeededError(CdcError):
    """The stream doesn't lead on: only a snapshot does.

    `place` is the origin and the lsn of the transaction that the snapshot must have in it, None if any will do.
    """

    place: tuple[int, int] | None = None


class KeysChangedError(SnapshotNeededError):
    """A space got another primary key, and what is kept of its rows doesn't do: only a snapshot has them under the new one."""


class UnseenRowsError(SnapshotNeededError):
    """A space whose name wasn't published got one that is, and what was in it before has never been seen here."""


class StoreBehindError(SnapshotNeededError):
    """The state store can't be brought up to the checkpoint; only a snapshot can fill it."""


class ImageError(CdcError):
    """A row can't have been applied to the tuple that is kept for its key.

    `key` is the store's, if the row may be passed over: what the key has is not known then until a row tells it whole.
    """

    key: bytes | None = None


class SynchronousReplicationError(CdcError):
    """A synchronous transaction arrived, which this version can't tell confirmed from rolled back."""


class PositionError(CdcError):
    """The position can't be continued at this master: a gap in its logs, a lost history or another replica set."""


class RequestError(CdcError):
    """What was asked of a running daemon can't be done; the daemon goes on."""


class PublishError(CdcError):
    """Kafka refused for good: fenced by another daemon, forbidden, or a message that it will never take."""


class TransactionTimeoutError(PublishError):
    """A source transaction took longer to publish than a Kafka transaction may be open, so that Kafka aborted it."""


class PublishAborted(CdcError):  # noqa: N818 - not a fault of its own: it says that a transaction must be done again
    """A Kafka transaction was aborted; everything since the last checkpoint must be published again."""

    remedy = Remedy.WAIT
