"""The row at which a position stands, as far as it has to be recognized: lsns alone don't say that a server still has it.

A server that lost the end of its log gives the lost lsns to other rows. Once it is past the daemon's position, no vclock shows
that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class LastRow:
    """One row of the log: its origin and lsn, its request type, when the server wrote it, and a checksum of its body.

    The checksum is a CRC-32, or has more than 32 bits: those above tell of which kind it is. None: the row has none, because the
    checkpoint mustn't tell anything about its values.
    """

    replica_id: int
    lsn: int
    kind: int
    timestamp: float
    checksum: int | None

    def has_other_body(self, other: LastRow) -> bool:
        """Return whether the bodies differ; False if that can't be told."""
        if self.checksum is None or other.checksum is None or self.checksum >> _BITS != other.checksum >> _BITS:
            return False
        return self.checksum != other.checksum

    def to_json(self) -> dict[str, Any]:
        """Return the form that checkpoints carry."""
        return {
            "replica_id": self.replica_id,
            "lsn": self.lsn,
            "type": self.kind,
            "timestamp": self.timestamp,
            "crc32": self.checksum,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LastRow:
        """Read the form that checkpoints carry. Raises KeyError."""
        return cls(value["replica_id"], value["lsn"], value["type"], value["timestamp"], value["crc32"])
