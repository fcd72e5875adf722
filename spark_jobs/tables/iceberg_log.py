"""An Iceberg table's state from its metadata, without a Spark job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

NUMBERS: Final = "tarantool_cdc.transactions"
"""Name in a snapshot's summary: the applications' numbers, as JSON."""
OWN: Final = "tarantool_cdc.properties"
"""Name in a snapshot's summary: the jobs' properties of the table at that time, as JSON. Iceberg keeps only the present ones."""
TAG: Final = "tarantool_cdc"
"""Tag on the last snapshot whose summary has these."""

_NO_SNAPSHOT: Final = -1


class TableState:
    """A version of a table: a snapshot of its main branch.

    Iceberg can put a table back to an earlier snapshot (`rollback_to_snapshot`), but leaves properties and columns as they are.
    Then those of the snapshot count: the jobs write the rows, properties and columns together.
    """

    def __init__(self, table: Any, version: int | None) -> None:
        """Use Iceberg's Java object for a table, and one of its snapshots, or None for the present one."""
        self._table = table
        self._snapshot = table.currentSnapshot() if version is None else table.snapshot(version)
        is_newest = version is None or version == table.currentSnapshot().snapshotId()
        self._is_present = is_newest and not _is_put_back(table)
        # A table that someone else has made may have no snapshot yet.
        self.version: int = _NO_SNAPSHOT if self._snapshot is None else self._snapshot.snapshotId()

    @property
    def identity(self) -> tuple[str, int]:
        """See `TableState.identity` in format.py."""
        return str(self._table.uuid()), self.version

    @property
    def previous_version(self) -> int | None:
        """See `TableState.previous_version` in format.py. It is None, too, if the version before has expired."""
        parent = None if self._snapshot is None else self._snapshot.parentId()
        return None if parent is None or self._table.snapshot(parent) is None else int(parent)

    @property
    def put_back_from(self) -> int | None:
        """See `TableState.put_back_from` in format.py. The numbers are those of the snapshot to which a table is put back."""
        return None

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """See `TableState.properties` in format.py."""
        if self._is_present:
            return dict(self._table.properties())
        known: dict[str, str] = json.loads(_summary(self._table, self._snapshot).get(OWN, "{}"))
        return known

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """See `TableState.columns` in format.py."""
        schema = self._table.schema() if self._is_present else self._table.schemas().get(self._snapshot.schemaId())
        return tuple(field.name() for field in schema.columns())

    @cached_property
    def transactions(self) -> Mapping[str, int]:
        """See `TableState.transactions` in format.py."""
        return _numbers(self._table, self._snapshot)


def _is_put_back(table: Any) -> bool:
    """Return whether someone has put the table back to a snapshot before the tagged one."""
    tagged = table.snapshot(TAG)
    snapshot = table.currentSnapshot()
    # Nearly always the present snapshot is the tagged one, or a compaction of it.
    while tagged is not None and snapshot is not None and snapshot.snapshotId() != tagged.snapshotId():
        if snapshot.sequenceNumber() < tagged.sequenceNumber():
            return True
        snapshot = None if snapshot.parentId() is None else table.snapshot(snapshot.parentId())
    return False


def numbers_of(table: Any) -> dict[str, int]:
    """Return the applications' numbers in a table's present version."""
    return _numbers(table, table.currentSnapshot())


def _numbers(table: Any, snapshot: Any) -> dict[str, int]:
    found: dict[str, int] = json.loads(_summary(table, snapshot).get(NUMBERS, "{}"))
    return found


def _summary(table: Any, snapshot: Any) -> Mapping[str, str]:
    """Return the summary of the nearest snapshot, from this one back, that has numbers."""
    while snapshot is not None:
        summary = snapshot.summary()
        if summary.containsKey(NUMBERS):
            return {name: str(summary.get(name)) for name in (NUMBERS, OWN) if summary.containsKey(name)}
        parent = snapshot.parentId()
        # All snapshots between the present one and the tagged one are of others, and may have expired.
        snapshot = None if parent is None else table.snapshot(parent) or table.snapshot(TAG)
    return {}
