"""Finds out whether a server that couldn't read its own log can read the end of it, before a snapshot is taken because of that.

A server reads a log file from its beginning. If the file that it is writing now is the damaged one, a stream from any position
ends at the damage, one that follows a snapshot too, and each snapshot would only be followed by the next. So the server is asked
for a stream from its present position first.
"""

from __future__ import annotations

import time
from typing import Final
from uuid import UUID

from cdc.config.source import Member
from cdc.errors import Remedy, ServerError
from cdc.positions.vclock import VClock
from cdc.protocol.constants import ErrorCode
from cdc.protocol.failure import LogDamagedError
from cdc.protocol.session import Heartbeat, StreamRows, Subscribed
from cdc.sources.handshake import expect, greet

PATIENCE_SECONDS: Final = 3.0
"""Time, in seconds, after which a stream without rows and without an error counts as readable. A server sends its first heartbeat
before it looks into its log, and the second one a second later."""


def check_end_of_log(member: Member, probe_uuid: UUID, replicaset_uuid: UUID, vclock: VClock, *, frame_bytes_max: int) -> None:
    """Follow the server from `vclock`, its present position, until it has proved that it can read its log from there.

    Raises a ServerError that waiting may cure if it can't, and the errors of a connection. `probe_uuid` mustn't be the daemon's:
    the server would take the two connections for one replica's.
    """
    connection = greet(member, probe_uuid, frame_bytes_max=frame_bytes_max)
    try:
        connection.session.subscribe(replicaset_uuid, vclock)
        expect(connection, Subscribed)
        deadline, heartbeat_count = time.monotonic() + PATIENCE_SECONDS, 0
        while heartbeat_count < 2 and (left := deadline - time.monotonic()) > 0:
            events = connection.receive(left)
            if any(isinstance(event, StreamRows) for event in events):
                return
            heartbeat_count += sum(isinstance(event, Heartbeat) for event in events)
    except LogDamagedError as error:
        raise ServerError(
            f"the server {member.address} can't read the log that it is writing now, and a stream after a snapshot would end "
            f"there, too: {error.cause}",
            code=ErrorCode.PROC_LUA,
            kind=error.KIND,
            hint="Call box.snapshot() on it: with the next change it begins a new log. The daemon tries again.",
            remedy=Remedy.WAIT,
        ) from error
    finally:
        connection.close()
