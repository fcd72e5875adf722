"""Error packets: Tarantool's number and message, the stack behind them, and what an operator should do.

What can heal by waiting (a server that is still loading, a peer that timed out) is told from what can't by the number, and
an xlog gap by the type in the stack: 2.6.0 sends it with the number of any Lua error.
"""

from __future__ import annotations

import re
from typing import Any, Final

from cdc.errors import PositionError, ProtocolError, Remedy, ServerError
from cdc.protocol.codec import Body, Header
from cdc.protocol.constants import ErrorCode, Key, Type

_STACK: Final = 0
_KIND: Final = 0
_MESSAGE: Final = 3

_HINTS: Final[dict[int, tuple[Remedy, str]]] = {
    ErrorCode.READONLY: (
        Remedy.WAIT,
        "A read-only server gives no ids: name the replica set's leader in source.uris too, or wait until this one is writable.",
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
        "A daemon that was registered gives its id back with `tarantool-cdc unregister` before it is anonymous.",
    ),
    ErrorCode.REPLICA_NOT_ANON: (Remedy.WAIT, "The replica has got its id just now."),
    ErrorCode.SYNC_QUORUM_TIMEOUT: (Remedy.WAIT, "A snapshot waits for the quorum of what was written before it."),
    ErrorCode.SYNC_ROLLBACK: (Remedy.WAIT, "A synchronous transaction that the snapshot waited for was rolled back."),
    ErrorCode.TOO_EARLY_SUBSCRIBE: (Remedy.WAIT, "The replica's id was taken away, or has not reached this server yet."),
}

_DENIED_USER: Final = re.compile(r"for user '([^']+)'")
"""How a server says to whom it has denied something."""


_NOBODY: Final = "guest"
"""Who a connection is until it says who."""


class XlogGapError(PositionError):
    """The master no longer has the logs that lead from our position to its own."""


def parse_error(header: Header, body: Body) -> ServerError | PositionError | ProtocolError:
    """The error that an error packet stands for, ready to be raised."""
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
    if code == ErrorCode.XLOG_GAP or kind == "XlogGapError":
        return XlogGapError(
            f"the master has removed logs that are needed: {text}",
            'source.on_gap = "resnapshot" starts again from a snapshot.',
        )
    remedy, hint = _HINTS.get(code, (Remedy.OPERATOR, ""))
    user = _DENIED_USER.search(text)
    if user is not None and user[1] == _NOBODY and code == ErrorCode.ACCESS_DENIED:
        hint = f"Without a user in source.uris it is {_NOBODY} who asks: write user:password@host:port there. Or g{hint[1:]}"
    if code == ErrorCode.CFG and "duplicate connection" in text:
        return ServerError(
            "a former connection of this daemon's name is still open at the server",
            code=code,
            kind=kind,
            hint="It ends within seconds: with the daemon that the name was taken from or that is being stopped, or when the "
            f"server notices that its daemon is gone. The server says: {text} (error {code})",
            remedy=remedy,
        )
    if user is not None:
        hint = hint.replace("'<user>'", f"'{user[1]}'")
    return ServerError(f"the server says: {text} (error {code})", code=code, kind=kind, hint=hint, remedy=remedy)


def _stack(body: Body) -> list[dict[int, Any]]:
    value = body.get(Key.ERROR)
    stack = value.get(_STACK) if isinstance(value, dict) else None
    return [item for item in stack if isinstance(item, dict)] if isinstance(stack, list) else []
