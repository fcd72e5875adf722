"""Tarantool's own spaces: their ids, which no version has changed since 1.7, and which replica set their rows name."""

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
"""Its index by UUID."""
TRUNCATE_SPACE: Final = 330
SYSTEM_SPACE_MAX: Final = 511
"""Spaces up to this id are Tarantool's own (BOX_SYSTEM_ID_MAX)."""


def replicaset_uuid_in(body: Body) -> UUID | None:
    """The replica set that a row of `_schema` names (as `cluster` before 3.0), None for any other row.

    Raises SchemaError if it isn't a UUID.
    """
    if body.get(Key.SPACE_ID) != SCHEMA_SPACE:
        return None
    match body.get(Key.TUPLE):
        case ["cluster" | "replicaset_uuid", str(text), *_]:
            try:
                return UUID(text)
            except ValueError as error:
                raise SchemaError(f"_schema names {excerpt(text, 100)} as the replica set") from error
    return None
