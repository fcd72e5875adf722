"""Tarantool's system spaces: their ids, unchanged since 1.7, and the replica set's UUID in their rows."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from cdc.errors import SchemaError, excerpt
from cdc.protocol.codec import Body
from cdc.protocol.constants import Key

SCHEMA_SPACE: Final = 272
SPACE_SPACE: Final = 280
INDEX_SPACE: Final = 288
USER_SPACE: Final = 304
PRIVILEGE_SPACE: Final = 312
CLUSTER_SPACE: Final = 320
"""`_cluster`: id and UUID of each registered instance."""
CLUSTER_BY_UUID: Final = 1
"""The index of `_cluster` by UUID."""
TRUNCATE_SPACE: Final = 330
REPLICASET_KEYS: Final = ("replicaset_uuid", "cluster")
"""Keys of `_schema` under which the replica set's UUID is stored: from 3.0 on, and before."""
REPLICASET_NAME_KEY: Final = "replicaset_name"
"""Key of `_schema` with the replica set's name, from 3.0 on, if it has one."""
SYSTEM_SPACE_MAX: Final = 511
"""Highest id of a system space (BOX_SYSTEM_ID_MAX)."""


def replicaset_uuid_in(body: Body) -> UUID | None:
    """Return the replica set's UUID from a row of `_schema` (key `cluster` before 3.0), None for any other row.

    Raises SchemaError if the row's value isn't a UUID.
    """
    if body.get(Key.SPACE_ID) != SCHEMA_SPACE:
        return None
    match body.get(Key.TUPLE):
        case [str(key), str(text), *_] if key in REPLICASET_KEYS:
            try:
                return UUID(text)
            except ValueError as error:
                raise SchemaError(
                    "_schema names a replica set by something that isn't a UUID", detail=excerpt(text, 100)
                ) from error
    return None
