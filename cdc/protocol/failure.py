"""Error packets: Tarantool's error code and message, the stack of causes, and the remedy for the operator.

The code decides whether waiting can resolve the error (a server that is still loading, a peer that timed out). An xlog gap is
recognized also by the error type in the stack, because 2.6.0 sends it with the code of an ordinary Lua error. A log that the
server can't read is recognized by the type alone: its errors (a wrong checksum, a wrong magic number) have no code of their own.
The server reads other files in this format too, so the type counts only where rows of the log were requested.
"""

from __future__ import annotations

import re
from typing import Any, Final

from cdc.errors import CdcError, PositionError, ProtocolError, Remedy, ServerError
from cdc.protocol.codec import Body, Header
from cdc.protocol.constants import ErrorCode, Key, Type

_STACK: Final = 0
_KIND: Final = 0
_MESSAGE: Final = 3

_HINTS: Final[dict[int, tuple[Remedy, str]]] = {
    ErrorCode.READONLY: (
        Remedy.WAIT,
        "A read-only server can't register replicas: add the replica set's leader to source.uris, or wait until this server is "
        "writable.",
    ),
    ErrorCode.ACCESS_DENIED: (
        Remedy.OPERATOR,
        "Grant it: box.schema.user.grant('<user>', 'replication') and box.schema.user.grant('<user>', 'read', 'universe').",
    ),
    ErrorCode.NO_SUCH_USER: (Remedy.OPERATOR, "Check the user in source.uris, or create it with box.schema.user.create."),
    ErrorCode.PASSWORD_MISMATCH: (
        Remedy.OPERATOR,
        "Check the user and the password of source.uris or source.password_file. In a URI %XX is a byte: write a % as %25.",
    ),
    ErrorCode.CFG: (Remedy.WAIT, ""),
    ErrorCode.UNKNOWN_REPLICA: (Remedy.WAIT, "The replica's id was taken away, or has not reached this server yet."),
    ErrorCode.REPLICASET_UUID_MISMATCH: (
        Remedy.OPERATOR,
        "The server belongs to another replica set than the checkpoint: check source.uris; another replica set needs another "
        "name and kafka.topic_prefix.",
    ),
    ErrorCode.UNSUPPORTED: (Remedy.OPERATOR, "A master with wal_mode = 'none' can't be followed."),
    ErrorCode.CONNECTION_TO_SELF: (Remedy.OPERATOR, "The daemon's instance UUID is the server's own: change the daemon's name."),
    ErrorCode.SYSTEM: (Remedy.WAIT, ""),
    ErrorCode.LOADING: (Remedy.WAIT, "The server is still loading its data."),
    ErrorCode.PROTOCOL: (
        Remedy.OPERATOR,
        "Before a registered daemon can run anonymously, give its id back with `tarantool-cdc unregister`.",
    ),
    ErrorCode.REPLICA_NOT_ANON: (Remedy.WAIT, "The replica has got its id just now."),
    ErrorCode.SYNC_QUORUM_TIMEOUT: (Remedy.WAIT, "A snapshot waits for the quorum of all transactions written before it."),
    ErrorCode.SYNC_ROLLBACK: (Remedy.WAIT, "A synchronous transaction that the snapshot waited for was rolled back."),
    ErrorCode.TOO_EARLY_SUBSCRIBE: (Remedy.WAIT, "The replica's id was taken away, or has not reached this server yet."),
    ErrorCode.NIL_UUID: (
        Remedy.WAIT,
        "The daemon never has a nil UUID: an instance that isn't a member of a replica set yet answers at this address. "
        "Bootstrap it, or correct source.uris.",
    ),
    ErrorCode.SHUTDOWN: (
        Remedy.WAIT,
        "The daemon follows another member of source.uris at once, or this one when it is back.",
    ),
    ErrorCode.INVALID_VCLOCK: (
        Remedy.OPERATOR,
        "A position that the server keeps for a replica can't be read. Find its row in box.space._gc_consumers, and remove it "
        "with box.ctl.replica_gc('<the row's uuid>').",
    ),
    ErrorCode.SYNC_QUEUE_FULL: (Remedy.WAIT, "Too many synchronous transactions wait for their quorum on this server."),
    ErrorCode.REPLICA_GC: (
        Remedy.OPERATOR,
        "Only a replica that the server knows and that isn't connected can be cleaned up: stop the daemon that has this UUID, "
        "and call box.ctl.replica_gc again.",
    ),
    ErrorCode.SYNC_TIMEOUT: (Remedy.WAIT, "A synchronous transaction has waited too long for its quorum, and waits on."),
    ErrorCode.XLOG_NOT_FOUND: (
        Remedy.OPERATOR,
        "The server has no log file that begins at this vclock: take another one, of a file that is there (box.info.gc()).",
    ),
}

_DENIED_USER: Final = re.compile(r"for user '([^']+)'")
"""Finds the user in a server's message that access was denied."""


_NOBODY: Final = "guest"
"""The user of a connection that hasn't authenticated."""


def loading_error(address: str) -> ServerError:
    """Return the error of a server that is still loading its data, and answers as if it had none."""
    return ServerError(f"the server {address} is still loading its data", code=ErrorCode.LOADING, remedy=Remedy.WAIT)


def read_only_error(address: str) -> ServerError:
    """Return the error of a server that can't give the daemon an id, because it is read-only."""
    remedy, hint = _HINTS[ErrorCode.READONLY]
    message = f"the server {address} is read-only, and only a writable one gives the daemon its id in the replica set"
    return ServerError(message, code=ErrorCode.READONLY, hint=hint, remedy=remedy)


def is_leaving(error: CdcError) -> bool:
    """Return whether the server has said that it is shutting down: it may answer until it is gone."""
    return isinstance(error, ServerError) and error.code == ErrorCode.SHUTDOWN


class XlogGapError(PositionError):
    """The master no longer has the logs between the daemon's position and its own."""


class LogDamagedError(XlogGapError):
    """The master can't read its own logs between the daemon's position and its own, though its data may be whole.

    The logs are as good as removed. `cause` is the server's message.
    """

    KIND: Final = "XlogError"

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"the master can't read its own logs, which are damaged: {cause}",
            'source.on_gap = "resnapshot" starts again from a snapshot.',
        )
        self.cause = cause


def parse_error(header: Header, body: Body, *, is_of_log: bool = False) -> ServerError | PositionError | ProtocolError:
    """Return the exception for an error packet. `is_of_log`: it answers a request for rows of the log."""
    code = header[Key.REQUEST_TYPE] & (Type.ERROR - 1)
    stack = _stack(body)
    kind = stack[0].get(_KIND) if stack else ""
    message = body.get(Key.ERROR_24)
    if message is None and stack:
        message = stack[0].get(_MESSAGE)
    if not isinstance(message, str):
        return ProtocolError(f"the server sent error {code} without a message")
    kind = kind if isinstance(kind, str) else ""
    causes = [item[_MESSAGE] for item in stack[1:] if isinstance(item.get(_MESSAGE), str)]
    text = "; caused by: ".join([message, *causes])
    if code == ErrorCode.XLOG_GAP or kind == "XlogGapError" or (is_of_log and code == ErrorCode.XLOG_NOT_FOUND):
        return XlogGapError(
            f"the master has removed logs that are needed: {text}",
            'source.on_gap = "resnapshot" starts again from a snapshot.',
        )
    if is_of_log and kind == LogDamagedError.KIND:
        return LogDamagedError(text)
    remedy, hint = _HINTS.get(code, (Remedy.OPERATOR, ""))
    user = _DENIED_USER.search(text)
    if user is not None and user[1] == _NOBODY and code == ErrorCode.ACCESS_DENIED:
        hint = f"Without a user in source.uris it is {_NOBODY} who asks: write user:password@host:port there. Or g{hint[1:]}"
    if code == ErrorCode.CFG and "duplicate connection" in text:
        return ServerError(
            "a former connection of this daemon's name is still open at the server",
            code=code,
            kind=kind,
            hint="The connection closes within seconds: when the daemon that had this name, or is being stopped, exits, or when "
            f"the server notices that the daemon is gone. The server says: {text} (error {code})",
            remedy=remedy,
        )
    if user is not None:
        hint = hint.replace("'<user>'", f"'{user[1]}'")
    return ServerError(f"the server says: {text} (error {code})", code=code, kind=kind, hint=hint, remedy=remedy)


def _stack(body: Body) -> list[dict[int, Any]]:
    value = body.get(Key.ERROR)
    stack = value.get(_STACK) if isinstance(value, dict) else None
    return [item for item in stack if isinstance(item, dict)] if isinstance(stack, list) else []
