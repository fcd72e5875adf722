"""`tarantool-cdc unregister`: gives back the id that a registered daemon has in its replica set.

    ask all members for our id ─▶ confirm ─▶ is the daemon connected anywhere? ─▶ delete it from `_cluster` at a writable member

The server itself would also delete the id of a connected replica, and would continue to send to a replica that no longer has an
id. So the command first asks each member, by a SUBSCRIBE in the daemon's name, which a server refuses while the daemon streams
from it. This happens after the confirmation: a SUBSCRIBE tells a master from 3.3 on from which position the subscriber needs
the logs.

Sources: box.cc (box_process_subscribe), alter.cc (on_replace_dd_cluster), replication.cc (replica_clear_id).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from cdc.config import Config
from cdc.config.source import Member
from cdc.errors import CdcError, ConfigurationError, RequestError, ServerError
from cdc.positions.vclock import VClock
from cdc.protocol.constants import ErrorCode
from cdc.protocol.failure import XlogGapError
from cdc.protocol.session import Selected, Subscribed
from cdc.protocol.system_spaces import CLUSTER_BY_UUID, CLUSTER_SPACE
from cdc.sources.connection import Connection
from cdc.sources.handshake import expect, greet, vote
from cdc.sources.registration import find_id
from cdc.sources.replica_set import replicaset_uuid
from cdc.upstream.identity import instance_uuid


@dataclass(frozen=True, slots=True)
class _Found:
    """A member's answer about the daemon's id."""

    member: Member
    is_read_only: bool
    id_: int | None


def unregister(config: Config, say: Callable[[str], object], confirm: Callable[[str], bool]) -> bool:
    """Ask `confirm`, give the id back, and report the result. Return whether the daemon has no id now.

    Raises ConfigurationError if no member can do it, RequestError if the daemon is connected, and the servers' errors.
    """
    uuid = instance_uuid(config.name)
    found = _ask_all(config, uuid, say)
    known = [each for each in found if each.id_ is not None]
    if not known:
        why = 'source.mode is "anonymous", and ' if config.source.mode == "anonymous" else ""
        say(f"there is nothing to give back: {why}no member that answers knows instance {uuid}")
        return True
    writable = next((each for each in known if not each.is_read_only), None)
    if writable is None:
        raise ConfigurationError(
            f"instance {uuid} has id {known[0].id_}, but no member that answers may be written to",
            "Name the replica set's leader in source.uris.",
        )
    if not confirm(f"Give back id {writable.id_}? The replica set then keeps no logs for the daemon {config.name!r}."):
        say("nothing was done")
        return False
    for each in found:
        _check_away(config, each.member, uuid)
    connection = _connect(config, writable.member, uuid)
    try:
        connection.session.delete(CLUSTER_SPACE, CLUSTER_BY_UUID, [str(uuid)])
        deleted = expect(connection, Selected).tuples
    finally:
        connection.close()
    if deleted:
        say(f"{writable.member.address}: id {deleted[0][0]} of instance {uuid} was given back")
    else:
        say(f"{writable.member.address}: somebody else has just given back id {writable.id_} of instance {uuid}")
    return True


def _ask_all(config: Config, uuid: UUID, say: Callable[[str], object]) -> list[_Found]:
    found: list[_Found] = []
    errors: list[CdcError] = []
    for member in config.source.members():
        try:
            connection = _connect(config, member, uuid)
            try:
                ballot = vote(connection)
                found.append(_Found(member, ballot.is_read_only, find_id(connection)))
            finally:
                connection.close()
        except CdcError as error:
            errors.append(error)
            say(f"{member.address}: can't be asked: {error}")
    if not found:
        raise errors[-1]
    return found


def _check_away(config: Config, member: Member, uuid: UUID) -> None:
    """Raise RequestError if the daemon streams from this member."""
    connection = _connect(config, member, uuid)
    try:
        # From the beginning: so this makes the master keep no fewer logs than the daemon needs.
        connection.session.subscribe(replicaset_uuid(connection), VClock(), is_anonymous=False)
        expect(connection, Subscribed)
    except XlogGapError:
        pass  # the member would have accepted the SUBSCRIBE if it had its first logs
    except ServerError as error:
        if error.code == ErrorCode.CFG:
            raise RequestError(
                f"the daemon {config.name!r} is connected to {member.address}: {error.message}", "Stop it, and try again."
            ) from error
        if error.code not in (ErrorCode.UNKNOWN_REPLICA, ErrorCode.TOO_EARLY_SUBSCRIBE):
            raise
        # This member doesn't know the id, so nobody follows it under that id.
    finally:
        connection.close()


def _connect(config: Config, member: Member, uuid: UUID) -> Connection:
    return greet(member, uuid, frame_bytes_max=config.source.frame_bytes_max)
