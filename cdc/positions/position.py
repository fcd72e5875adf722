"""The position: what the daemon knows about its progress between two runs, and the content of a checkpoint record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from cdc.errors import ConfigurationError
from cdc.positions.last_row import LastRow
from cdc.positions.requests import NO_REQUESTS, Requests
from cdc.positions.vclock import VClock

FORMAT_VERSION = 1
"""Format version of the checkpoint record. A record of a newer version is refused rather than half understood."""


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """The snapshot that the position rests on: its number, and its number of rows once it is complete.

    - `row_count`: until the snapshot is complete, that of the last complete one.
    - `sweep_seq`: 0 for a snapshot that itself publishes which keys are gone. A snapshot that compares with nothing may
      consist of several, of which all but the last were interrupted: then the seq at which the first of them began. Keys that
      haven't been published since are gone.
    - `is_silent`: while the snapshot is taken, its rows aren't published, because there was nothing before it and
      `snapshot.mode` is never.
    - `is_first`: no snapshot has ever been complete, so that consumers have no rows from before it.
    - `choice`: while the first snapshot is taken, the number of what is to be published of it (SnapshotChoice.number_of).
    - `request_count`: how many of the last numbers went to requests to publish rows of the images (stream/snapshots/backfill.py).
    - `open_request`: the number of the request whose rows are being published, 0 if there is none. It is that of the first of
      the position's `requests`; a position of an older version has none of these, as it can't continue a request.
    """

    snapshot_id: int
    is_complete: bool
    row_count: int = 0
    sweep_seq: int = 0
    request_count: int = 0
    is_silent: bool = False
    is_first: bool = False
    open_request: int = 0
    choice: int = 0

    @property
    def base_id(self) -> int:
        """Number of the snapshot that was read from a master."""
        return self.snapshot_id - self.request_count


@dataclass(frozen=True, slots=True)
class Rekeyed:
    """A space with a changed primary key, and how far its rows have been published again under the new one.

    `snapshot_id` is the number that these rows carry, 0 before the first. `after` is the last row's key in the state store,
    without the prefix that all keys of the space have.
    """

    space_id: int
    snapshot_id: int = 0
    after: bytes = b""
    row_count: int = 0


@dataclass(frozen=True, slots=True)
class Position:
    """A transaction boundary of the stream, with everything that is needed to resume from it.

    `vclock` covers the transactions whose events come before the position, and those that need no publishing. `seq` is the last
    assigned number. During a snapshot, `vclock` is where its stream will begin. While there are any `rekeyed` spaces, the stream
    waits: their rows are published first.
    """

    vclock: VClock = field(default_factory=VClock)
    seq: int = 0
    schema_version: int = 0
    replicaset_uuid: UUID | None = None
    server_uuid: UUID | None = None
    snapshot: SnapshotState | None = None
    doubtful: frozenset[bytes] = frozenset()
    """Keys whose tuple in the state store isn't the master's, each with its space's id as its beginning (Images.doubts)."""
    rekeyed: tuple[Rekeyed, ...] = ()
    last_rows: tuple[LastRow, ...] = ()
    """The last rows of some origins, as `server_uuid` sent them. One that isn't at the vclock's lsn says nothing about it."""
    requests: Requests = NO_REQUESTS
    """What the daemon was asked for and hasn't finished."""

    def to_json(self) -> dict[str, Any]:
        """Return the record's value."""
        value: dict[str, Any] = {
            "version": FORMAT_VERSION,
            "vclock": self.vclock.to_json(),
            "seq": self.seq,
            "schema_version": self.schema_version,
            "replicaset_uuid": str(self.replicaset_uuid) if self.replicaset_uuid else None,
            "server_uuid": str(self.server_uuid) if self.server_uuid else None,
            "snapshot": {
                "snapshot_id": self.snapshot.snapshot_id,
                "is_complete": self.snapshot.is_complete,
                "row_count": self.snapshot.row_count,
                "sweep_seq": self.snapshot.sweep_seq,
                "request_count": self.snapshot.request_count,
                **({"is_silent": True} if self.snapshot.is_silent else {}),
                **({"is_first": True} if self.snapshot.is_first else {}),
                **({"choice": self.snapshot.choice} if self.snapshot.choice else {}),
                **({"open_request": self.snapshot.open_request} if self.snapshot.request_count else {}),
            }
            if self.snapshot
            else None,
            **({"doubtful": sorted(key.hex() for key in self.doubtful)} if self.doubtful else {}),
        }
        if self.rekeyed:
            value["rekeyed"] = [
                {
                    "space_id": one.space_id,
                    "snapshot_id": one.snapshot_id,
                    "after": one.after.hex(),
                    "row_count": one.row_count,
                }
                for one in self.rekeyed
            ]
        if self.last_rows:
            value["last_rows"] = [row.to_json() for row in self.last_rows]
        if self.requests != NO_REQUESTS:
            value["requests"] = self.requests.to_json()
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Position:
        """Read a record's value. Raises ConfigurationError if a newer version of this program wrote it."""
        if value.get("version") != FORMAT_VERSION:
            raise ConfigurationError(
                f"the checkpoint has format {value.get('version')!r}, this program writes {FORMAT_VERSION}",
                "Run the version that wrote it, or choose another name and kafka.topic_prefix.",
            )
        snapshot, rekeyed = value["snapshot"], value.get("rekeyed", ())
        if snapshot and "open_request" not in snapshot and snapshot.get("request_count"):
            # Older versions didn't say, or not which one. A request that is ended a second time does no harm.
            is_rekeying = any(one["snapshot_id"] == snapshot["snapshot_id"] for one in rekeyed)
            snapshot = {**snapshot, "open_request": 0 if is_rekeying else snapshot["snapshot_id"]}
            snapshot.pop("is_request_open", None)
        return cls(
            vclock=VClock.from_json(value["vclock"]),
            seq=value["seq"],
            schema_version=value["schema_version"],
            replicaset_uuid=UUID(value["replicaset_uuid"]) if value["replicaset_uuid"] else None,
            server_uuid=UUID(value["server_uuid"]) if value["server_uuid"] else None,
            snapshot=SnapshotState(**snapshot) if snapshot else None,
            doubtful=frozenset(map(bytes.fromhex, value.get("doubtful", ()))),
            rekeyed=tuple(Rekeyed(**{**one, "after": bytes.fromhex(one["after"])}) for one in rekeyed),
            last_rows=tuple(map(LastRow.from_json, value.get("last_rows", ()))),
            requests=Requests.from_json(value.get("requests", {})),
        )
