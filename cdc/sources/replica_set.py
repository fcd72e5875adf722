"""The replica set that a server belongs to, asked before anything else of the server is used.

A server says so by itself only in its answer to SUBSCRIBE, which comes after a snapshot. But its UUID is a row of `_schema`, and
a SELECT of that row needs only the right that FETCH_SNAPSHOT and SUBSCRIBE need as well: to read the universe.
"""

from __future__ import annotations

import math
import time
from typing import Final
from uuid import UUID

from cdc.errors import ProtocolError, ServerError, excerpt
from cdc.protocol.constants import ErrorCode
from cdc.protocol.failure import loading_error
from cdc.protocol.session import Selected
from cdc.protocol.system_spaces import REPLICASET_KEYS, SCHEMA_SPACE
from cdc.sources.connection import Connection
from cdc.sources.handshake import HANDSHAKE_TIMEOUT_SECONDS, expect

_NOT_LOADED: Final = ErrorCode.NO_SUCH_SPACE
"""Code of the error with which a server answers a SELECT of `_schema` before it has loaded the space."""


def replicaset_uuid(connection: Connection, *, deadline: float = math.inf) -> UUID:
    """Return the UUID of the server's replica set. `deadline`: when to give up, in monotonic seconds.

    Raises a ServerError that a retry can cure (Remedy.WAIT) if the server has yet to learn it, ProtocolError if it isn't a UUID,
    and the errors of `expect`.
    """
    session = connection.session
    # A server from 3.0 on has the new key, unless its schema hasn't been upgraded yet.
    for key in REPLICASET_KEYS if session.greeting.version >= (3, 0, 0) else reversed(REPLICASET_KEYS):
        session.select(SCHEMA_SPACE, 0, [key])
        try:
            tuples = expect(connection, Selected, min(HANDSHAKE_TIMEOUT_SECONDS, deadline - time.monotonic())).tuples
        except ServerError as error:
            if error.code != _NOT_LOADED:
                raise
            raise loading_error(connection.address) from error
        for row in tuples:
            try:
                return UUID(row[1])
            except (ValueError, TypeError, AttributeError, IndexError) as error:
                what = f"_schema of {connection.address} names a replica set by something that isn't a UUID"
                raise ProtocolError(what, detail=excerpt(row, 100)) from error
    raise loading_error(connection.address)
