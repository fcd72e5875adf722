"""State of a client that outlasts its connection: its request and its position.

While a client is being filled from the store (`cursor` is its position there), it has also been sent the changes up to `seq`.
After that, `seq` is the last change that it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from cdc.feeds.tap.wire import TapRequest

FORMAT_VERSION = 1


class Cursor(NamedTuple):
    """Position after the last row of the store that was sent: its space's number, and its key in the store."""

    space: int = 0
    key: bytes = b""


class ClientPosition(NamedTuple):
    """A client's position: a change, and, while the client is being filled, a row of the store."""

    seq: int
    cursor: Cursor | None


class ControlPosition(NamedTuple):
    """State of removals that no event names: disconnected clients still have such keys."""

    swept_seq: int = 0
    """Clients that were filled before this seq have such keys."""
    offset: int = 0
    """Offset up to which `<prefix>.snapshot`, which reports these removals, was read."""
    served: str = ""
    """Hash of the configuration that determines keys and values."""
    swept_offset: int = 0
    """Offset after the record that reported `swept_seq`.

    Clients filled at this very seq, but before the record, have such keys too.
    """


@dataclass(slots=True)
class Session:
    """State of one named client; a session without a name ends with its connection."""

    request: TapRequest
    position: ClientPosition
    created_at: float
    seen_at: float
    owned: frozenset[int] = frozenset()
    """Vbuckets that the client has taken over: no other client of that time gets them."""
    lost: frozenset[int] = frozenset()
    """Vbuckets that another client has taken over from this one."""
    begun_seq: int = 0
    """Seq at which the client was last filled, or began to follow."""
    begun_version: int = 0
    """The schema's version at that time."""
    begun_offset: int = 0
    """ControlPosition.swept_offset at that time."""
    is_reset: bool = False
    """Whether the client must first be sent a FLUSH."""
    is_replaying: bool = False
    """Whether the client is still being sent the changes since the date that it gave."""
    is_ended: bool = False
    """Whether the client stayed away too long: if it comes back, it is sent a FLUSH and starts again."""

    @property
    def name(self) -> str:
        """The client's name."""
        return self.request.name

    def can_resume(self, request: TapRequest) -> bool:
        """Whether a client that comes back with this request resumes: the content of its feed must be the same."""
        former = self.request
        return (
            not self.is_ended
            and (former.vbuckets, former.is_dump, former.is_takeover) == (request.vbuckets, request.is_dump, request.is_takeover)
            and (request.is_keys_only or not former.is_keys_only)
        )

    def to_json(self) -> dict[str, Any]:
        """Return the session in its stored form."""
        request = self.request
        return {
            "version": FORMAT_VERSION,
            "name": request.name,
            "backfill_since": request.backfill_since,
            "is_dump": request.is_dump,
            "vbuckets": sorted(request.vbuckets) if request.vbuckets is not None else None,
            "is_takeover": request.is_takeover,
            "has_acks": request.has_acks,
            "is_keys_only": request.is_keys_only,
            "seq": self.position.seq,
            "cursor": [self.position.cursor.space, self.position.cursor.key.hex()] if self.position.cursor is not None else None,
            "created_at": self.created_at,
            "seen_at": self.seen_at,
            "owned": sorted(self.owned),
            "lost": sorted(self.lost),
            "begun_seq": self.begun_seq,
            "begun_version": self.begun_version,
            "begun_offset": self.begun_offset,
            "is_reset": self.is_reset,
            "is_replaying": self.is_replaying,
            "is_ended": self.is_ended,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Session:
        """Decode the result of `to_json`. Raises ValueError, KeyError or TypeError for anything else."""
        if value["version"] != FORMAT_VERSION:
            raise ValueError(f"a session of format {value['version']!r}")
        vbuckets = value["vbuckets"]
        request = TapRequest(
            value["name"],
            value["backfill_since"],
            value["is_dump"],
            frozenset(vbuckets) if vbuckets is not None else None,
            value["is_takeover"],
            value["has_acks"],
            value["is_keys_only"],
        )
        cursor = value["cursor"]
        position = ClientPosition(value["seq"], Cursor(cursor[0], bytes.fromhex(cursor[1])) if cursor is not None else None)
        owned, lost = frozenset(value["owned"]), frozenset(value["lost"])
        return cls(
            request,
            position,
            value["created_at"],
            value["seen_at"],
            owned,
            lost,
            value["begun_seq"],
            value["begun_version"],
            value.get("begun_offset", 0),
            value["is_reset"],
            value["is_replaying"],
            value.get("is_ended", False),
        )
