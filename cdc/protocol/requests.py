"""Requests and ACKs of a replica, as bytes. Each function returns one packet, with only those fields that the server needs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from cdc.positions.vclock import VCLOCK_MAX, VClock
from cdc.protocol.codec import Body, encode_frame
from cdc.protocol.constants import FEATURES_SENT, Key, Type, version_id

_PROTOCOL_VERSION_SENT: Final = 4
"""Protocol version that ID announces: that of 2.11. This program uses nothing newer."""

_FIRST_WITH_ACK_TERM: Final = (2, 11, 0)


_ITERATOR_EQ: Final = 0


def scramble(password: str, salt: bytes) -> bytes:
    """Return the answer to the salt, 20 bytes: sha1(password) xor sha1(salt + sha1(sha1(password)))."""
    first = hashlib.sha1(password.encode("utf-8", "surrogateescape")).digest()
    second = hashlib.sha1(first).digest()
    third = hashlib.sha1(salt + second).digest()
    return bytes(left ^ right for left, right in zip(first, third, strict=True))


def authenticate(sync: int, user: str, password: str, salt: bytes) -> bytes:
    """Return AUTH, with the method chap-sha1."""
    body: Body = {Key.USER_NAME: user, Key.TUPLE: ["chap-sha1", scramble(password, salt)]}
    return encode_frame({Key.REQUEST_TYPE: Type.AUTH, Key.SYNC: sync}, body)


def identify(sync: int) -> bytes:
    """Return ID, which announces this client's protocol version and features (for servers from 2.10 on)."""
    body: Body = {Key.VERSION: _PROTOCOL_VERSION_SENT, Key.FEATURES: list(FEATURES_SENT)}
    return encode_frame({Key.REQUEST_TYPE: Type.ID, Key.SYNC: sync}, body)


def vote(sync: int) -> bytes:
    """Return VOTE, which requests the ballot: the server's vclock and the oldest position that it can still serve."""
    return encode_frame({Key.REQUEST_TYPE: Type.VOTE, Key.SYNC: sync})


def fetch_snapshot(sync: int, version: tuple[int, int, int], instance_uuid: UUID | None) -> bytes:
    """Return FETCH_SNAPSHOT, which requests all rows as of one moment. The body is mandatory from 3.0 on and ignored before.

    If it contains the replica's UUID, a master from 3.3 on keeps its logs from that moment on for the replica.
    """
    body: Body = {Key.SERVER_VERSION: version_id(version)}
    if instance_uuid is not None:
        body[Key.INSTANCE_UUID] = str(instance_uuid)
    return encode_frame({Key.REQUEST_TYPE: Type.FETCH_SNAPSHOT, Key.SYNC: sync}, body)


def join(sync: int, instance_uuid: UUID, version: tuple[int, int, int], instance_name: str | None = None) -> bytes:
    """Return JOIN, which requests an id in `_cluster`, unless the replica has one, and all rows."""
    body: Body = {Key.INSTANCE_UUID: str(instance_uuid), Key.SERVER_VERSION: version_id(version)}
    _name(body, instance_name)
    return encode_frame({Key.REQUEST_TYPE: Type.JOIN, Key.SYNC: sync}, body)


def register(
    sync: int, instance_uuid: UUID, vclock: VClock, version: tuple[int, int, int], instance_name: str | None = None
) -> bytes:
    """Return REGISTER, which requests an id in `_cluster` for a replica that has all changes up to `vclock`."""
    body: Body = {
        Key.INSTANCE_UUID: str(instance_uuid),
        Key.VCLOCK: dict(vclock),
        Key.SERVER_VERSION: version_id(version),
    }
    _name(body, instance_name)
    return encode_frame({Key.REQUEST_TYPE: Type.REGISTER, Key.SYNC: sync}, body)


def select(sync: int, space_id: int, index_id: int, key: list[Any]) -> bytes:
    """Return SELECT of the tuples with this key, at most 32: a replica set has no more members."""
    body: Body = {
        Key.SPACE_ID: space_id,
        Key.INDEX_ID: index_id,
        Key.LIMIT: VCLOCK_MAX,
        Key.OFFSET: 0,
        Key.ITERATOR: _ITERATOR_EQ,
        Key.KEY: key,
    }
    return encode_frame({Key.REQUEST_TYPE: Type.SELECT, Key.SYNC: sync}, body)


def delete(sync: int, space_id: int, index_id: int, key: list[Any]) -> bytes:
    """Return DELETE of the tuple with this key."""
    body: Body = {Key.SPACE_ID: space_id, Key.INDEX_ID: index_id, Key.KEY: key}
    return encode_frame({Key.REQUEST_TYPE: Type.DELETE, Key.SYNC: sync}, body)


def subscribe(
    sync: int,
    *,
    replicaset_uuid: UUID,
    instance_uuid: UUID,
    vclock: VClock,
    version: tuple[int, int, int],
    anonymous: bool = True,
    id_filter: Iterable[int] = (),
    instance_name: str | None = None,
) -> bytes:
    """Return SUBSCRIBE, which requests all changes after `vclock`.

    The packet always contains SERVER_VERSION: without it, a master regards all rows that it has sent as acknowledged.
    """
    body: Body = {
        Key.REPLICASET_UUID: str(replicaset_uuid),
        Key.INSTANCE_UUID: str(instance_uuid),
        Key.VCLOCK: dict(vclock),
        Key.SERVER_VERSION: version_id(version),
        Key.REPLICA_ANON: anonymous,
    }
    origins = sorted(id_filter)
    if origins:
        body[Key.ID_FILTER] = origins
    _name(body, instance_name)
    return encode_frame({Key.REQUEST_TYPE: Type.SUBSCRIBE, Key.SYNC: sync}, body)


def _name(body: Body, instance_name: str | None) -> None:
    if instance_name is not None:
        body[Key.INSTANCE_NAME] = instance_name


def acknowledge(
    vclock: VClock,
    *,
    version: tuple[int, int, int],
    term: int = 0,
    vclock_sync: int | None = None,
    timestamp: float | None = None,
) -> bytes:
    """Return an ACK, the answer to heartbeats: all changes up to `vclock` are durable in this replica.

    The master passes `term` on to the cluster's Raft even from an anonymous replica, so it must be a term that a server sent,
    or 0. `vclock_sync` echoes the value of the last heartbeat. `timestamp` is the time of the last durable change. Servers
    before 2.11 don't know these fields, so the ACK for them has none of the three.
    """
    header: Body = {Key.REQUEST_TYPE: Type.OK, Key.REPLICA_ID: 0}
    body: Body = {Key.VCLOCK: dict(vclock)}
    if version >= _FIRST_WITH_ACK_TERM:
        if timestamp is not None:
            header[Key.TIMESTAMP] = timestamp
        body[Key.TERM] = term
        if vclock_sync is not None:
            body[Key.VCLOCK_SYNC] = vclock_sync
    return encode_frame(header, body)
