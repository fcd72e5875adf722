"""Configuration of a local Tarantool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TarantoolOptions:
    """The options of `box.cfg` that tests and the demo set. If an option is None, the server's default applies."""

    replication_timeout: float = 1
    """Interval of heartbeats, in seconds; a replica that is silent for four times as long is dropped."""
    memtx_memory: int = 256 * 1024 * 1024
    """Memory for tuples, in bytes."""
    checkpoint_interval: float = 0
    """Interval of snapshots, in seconds; 0: only `box.snapshot()` makes one."""
    checkpoint_count: int = 2
    """Number of snapshots that are kept; logs older than the oldest of them are removed."""
    wal_max_size: int | None = None
    """Size, in bytes, at which a log file is closed and the next one begun."""
    synchro_quorum: int | None = None
    """Number of members that must have a synchronous transaction, including the master."""
    synchro_timeout: float | None = None
    """Time, in seconds, after which a synchronous transaction without its quorum is rolled back."""
    replication: Sequence[str] = ()
    """URIs of the members of the replica set, if there are several."""
    read_only: bool = False
    instance_uuid: str | None = None
    replicaset_uuid: str | None = None
    box: Mapping[str, Any] = field(default_factory=dict)
    """Other options of `box.cfg`, as JSON values; they override the ones above."""

    def box_configuration(self) -> dict[str, Any]:
        """Return the table for `box.cfg`, without the options that name a place: `listen` and `work_dir`."""
        configuration: dict[str, Any] = {
            "replication_timeout": self.replication_timeout,
            "memtx_memory": self.memtx_memory,
            "checkpoint_interval": self.checkpoint_interval,
            "checkpoint_count": self.checkpoint_count,
            "wal_max_size": self.wal_max_size,
            "replication_synchro_quorum": self.synchro_quorum,
            "replication_synchro_timeout": self.synchro_timeout,
            "replication": list(self.replication) or None,
            "read_only": self.read_only,
            "instance_uuid": self.instance_uuid,
            "replicaset_uuid": self.replicaset_uuid,
            **self.box,
        }
        return {name: value for name, value in configuration.items() if value is not None}
