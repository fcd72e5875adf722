"""A registered daemon's id: whether the replica set knows one, and when it is safe to request one.

An id is a row of `_cluster`, which a leader writes and the others get by replication. A server without the row may only lag:

    A  JOIN ─▶ {2, uuid} ─ ─ ─ replication ─ ─ ─▶ B
                                 ▲ if B is asked for an id now, B writes {3, uuid}, and the two rows stop replication at the
                                   unique index of UUIDs, on both sides

So before the daemon requests an id, it asks all members whether they know one.
"""

from __future__ import annotations

from uuid import UUID

import structlog

from cdc.config import Config
from cdc.errors import CdcError, ConnectionLostError, ProtocolError, excerpt
from cdc.protocol.session import Selected
from cdc.protocol.system_spaces import CLUSTER_BY_UUID, CLUSTER_SPACE
from cdc.sources.connection import Connection
from cdc.sources.handshake import expect, greet, vote
from cdc.sources.replica_set import replicaset_uuid
from cdc.upstream import joining, resume


def find_id(connection: Connection, uuid: UUID | None = None) -> int | None:
    """Return the id that the server knows for a daemon's UUID, by default the connection's own, or None.

    Raises ServerError, ConnectionLostError or ProtocolError.
    """
    connection.session.select(CLUSTER_SPACE, CLUSTER_BY_UUID, [str(uuid or connection.session.instance_uuid)])
    match expect(connection, Selected).tuples:
        case []:
            return None
        case [[int() as id_, *_], *_]:
            return id_
        case tuples:
            raise ProtocolError(f"_cluster of {connection.address} has a row that can't be read", detail=excerpt(tuples, 200))


def check_others(connection: Connection, config: Config) -> None:
    """Raise ConnectionLostError if another member already knows an id of this daemon. Called before an id is requested.

    Members that can't be asked are skipped, as they may be unavailable for good, and so are servers of another replica set:
    their ids mean nothing here. If nobody knows an id, the log says what an id costs the replica set.
    """
    ours = replicaset_uuid(connection)
    log = structlog.get_logger().bind(name=config.name, upstream=connection.address)
    for member in config.source.members():
        if member.address == connection.address:
            continue
        try:
            other = greet(member, connection.session.instance_uuid, frame_bytes_max=config.source.frame_bytes_max)
            try:
                if (error := resume.foreign(ours, replicaset_uuid(other))) is not None:
                    raise error
                known = find_id(other)
            finally:
                other.close()
        except CdcError as error:
            log.warning("a member can't be asked for this daemon's id", member=member.address, reason=str(error))
            continue
        if known is not None:
            raise ConnectionLostError(
                f"the server {connection.address} doesn't know yet that this daemon is instance {known} of its replica set",
                f"{member.address} knows, so this server will get it by replication.",
            )
    costs = joining.warning(vote(connection), connection.session.instance_uuid)
    if costs is not None:
        log.warning(costs)
