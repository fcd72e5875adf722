"""What lasts of a client beyond its connection: what it wants, and where it is.

While it is being filled from the store (`cursor` is the place there), the changes up to `seq` have been sent as well; behind
that, `seq` is the last change that it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from cdc.feeds.tap.wire import Wish

FORMAT_VERSION = 1


class Cursor(NamedTuple):
    """The last row of the store that was sent: its space's number, and its key there."""

    space: int = 0
    key: bytes = b""


class Place(NamedTuple):
    """Where a client is: at a change, and, while it is being filled, at a row of the store."""

    seq: int
    cursor: Cursor | None


class ControlPlace(NamedTuple):
    """What is known of keys that went without anybody's naming them: clients that are away have them still."""

    swept_seq: int = 0
    """Who was filled before this number has such keys."""
    offset: int = 0
    """Up to where `<prefix>.snapshot`, which tells of them, was read."""
    served: str = ""
    """What of the configuration makes keys and values."""
    swept_offset: int = 0
    """Behind the record that told of `swept_seq`: who was filled at this very number, but before it, has such keys too."""


@dataclass(slots=True)
class Session:
    """One client by its name; without a name it ends with the connection."""

    wish: Wish
    place: Place
    created_at: float
    seen_at: float
    owned: frozenset[int] = frozenset()
    """Vbuckets that it has taken over: nobody else who was there then gets them."""
    lost: frozenset[int] = frozenset()
    """Vbuckets that another one has taken over from it."""
    begun_seq: int = 0
    """Where it was when it was filled last, or began to follow."""
    begun_version: int = 0
    """The schema's version then."""
    begun_offset: int = 0
    """What ControlPlace had for `swept_offset` then."""
    is_reset: bool = False
    """Whether the client must first be told that everything is gone."""
    is_replaying: bool = False
    """Whether it is still being told what changed since the date that it gave."""
    is_ended: bool = False
    """Whether its client stayed away too long: if it comes back, it must be told that everything is gone, and begins anew."""

    @property
    def name(self) -> str:
        """The client's."""
        return self.wish.name

    def is_for(self, wish: Wish) -> bool:
        """Whether a client that comes back with this wish goes on where it was: what it gets must be the same."""
        former = self.wish
        return (
            not self.is_ended
            and (former.vbuckets, former.is_dump, former.is_takeover) == (wish.vbuckets, wish.is_dump, wish.is_takeover)
            and (wish.is_keys_only or not former.is_keys_only)
        )

    def to_json(self) -> dict[str, Any]:
        """As it is kept."""
        wish = self.wish
        return {
            "version": FORMAT_VERSION,
            "name": wish.name,
            "backfill_since": wish.backfill_since,
            "is_dump": wish.is_dump,
            "vbuckets": sorted(wish.vbuckets) if wish.vbuckets is not None else None,
            "is_takeover": wish.is_takeover,
            "has_acks": wish.has_acks,
            "is_keys_only": wish.is_keys_only,
            "seq": self.place.seq,
            "cursor": [self.place.cursor.space, self.place.cursor.key.hex()] if self.place.cursor is not None else None,
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
        """What `to_json` gave. Raises ValueError, KeyError or TypeError for anything else."""
        if value["version"] != FORMAT_VERSION:
            raise ValueError(f"a session of format {value['version']!r}")
        vbuckets = value["vbuckets"]
        wish = Wish(
            value["name"],
            value["backfill_since"],
            value["is_dump"],
            frozenset(vbuckets) if vbuckets is not None else None,
            value["is_takeover"],
            value["has_acks"],
            value["is_keys_only"],
        )
        cursor = value["cursor"]
        place = Place(value["seq"], Cursor(cursor[0], bytes.fromhex(cursor[1])) if cursor is not None else None)
        owned, lost = frozenset(value["owned"]), frozenset(value["lost"])
        return cls(
            wish,
            place,
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
