"""What vshard's spaces say: which spaces are sharded, and by which field."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from cdc.schema.forms import type_of_key_part

BUCKETS: Final = "_bucket"
"""Space with the state of each bucket of a replica set."""
SHARD_INDEX: Final = "bucket_id"
"""Usual name of the index whose first part is the number of the row's bucket (vshard's shard_index)."""
_NUMBERS: Final = frozenset({"unsigned", "integer", "number"})


def bucket_field(index_rows: Iterable[list[Any]]) -> int | None:
    """Return the place of the field with the row's bucket, given the rows of a space's indexes; None if it isn't sharded."""
    for row in index_rows:
        if row[2] == SHARD_INDEX:
            match row[5]:
                case [{"field": int(place), "type": str(kind)}, *_] | [[int(place), str(kind), *_], *_]:
                    return place if type_of_key_part(kind) in _NUMBERS else None
    return None
