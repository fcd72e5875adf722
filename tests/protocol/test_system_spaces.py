"""Which replica set rows of Tarantool's own spaces name."""

from __future__ import annotations

from uuid import UUID

import pytest

from cdc.errors import SchemaError
from cdc.protocol.system_spaces import replicaset_uuid_in

REPLICASET = UUID("6dd1ef25-8a29-4f9e-9a3c-6e4b8f3d0a11")


@pytest.mark.parametrize("name", ["cluster", "replicaset_uuid"])
def test_replica_set_in_schema_rows(name: str) -> None:
    assert replicaset_uuid_in({0x10: 272, 0x21: [name, str(REPLICASET)]}) == REPLICASET
    assert replicaset_uuid_in({0x10: 513, 0x21: [name, str(REPLICASET)]}) is None
    assert replicaset_uuid_in({0x10: 272, 0x21: ["version", 2, 6, 0]}) is None
    assert replicaset_uuid_in({}) is None
    with pytest.raises(SchemaError, match="isn't a UUID"):
        replicaset_uuid_in({0x10: 272, 0x21: [name, "x"]})
