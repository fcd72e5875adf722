"""A server's answer to VOTE: its position, the oldest position whose logs it keeps, and whether it is writable.

Two dialects share the packet. 2.6: 1 is_ro, 2 vclock, 3 gc_vclock, 4 is_loading. Later: 1 is_ro_cfg, 2 vclock, 3 gc_vclock,
4 is_ro, 5 is_anon, 6 is_booted, 7 can_lead, 8 bootstrap leader, 9 registered replicas, 10 name. Only the later dialect has
key 6.

2.6 sets is_loading if the server isn't writable at the moment, and is_ro to box.cfg.read_only. If a 2.6 member is configured
read-only, its ballot therefore doesn't show whether it is still loading its data. Such a member answers the next request with
the error LOADING.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from cdc.errors import ProtocolError, excerpt
from cdc.positions.vclock import VClock

_READ_ONLY_OR_CONFIGURED_SO: Final = 1
_VCLOCK: Final = 2
_GC_VCLOCK: Final = 3
_LOADING_OR_READ_ONLY: Final = 4
_ANONYMOUS: Final = 5
_BOOTED: Final = 6
_REGISTERED: Final = 9


@dataclass(frozen=True, slots=True)
class Ballot:
    """A server's report about itself. `gc_vclock` is the oldest position from which the server can still be followed."""

    vclock: VClock
    gc_vclock: VClock
    is_read_only: bool
    is_ready: bool
    is_anonymous: bool = False
    registered: frozenset[UUID] | None = None
    """The instances that have an id in the replica set; None if the server doesn't list them (before 2.11)."""


def parse_ballot(value: Any) -> Ballot:
    """Parse the map under IPROTO_BALLOT. Raises ProtocolError if it is malformed."""
    if not isinstance(value, dict):
        raise ProtocolError("a ballot should be a map, and the server sent something else", detail=excerpt(value, 100))
    vclock = VClock.from_wire(value.get(_VCLOCK, {}))
    gc_vclock = VClock.from_wire(value.get(_GC_VCLOCK, {}))
    if _BOOTED in value:
        return Ballot(
            vclock=vclock,
            gc_vclock=gc_vclock,
            is_read_only=bool(value.get(_LOADING_OR_READ_ONLY, False)),
            is_ready=bool(value[_BOOTED]),
            is_anonymous=bool(value.get(_ANONYMOUS, False)),
            registered=_uuids(value[_REGISTERED]) if _REGISTERED in value else None,
        )
    is_read_only = bool(value.get(_READ_ONLY_OR_CONFIGURED_SO, False))
    return Ballot(
        vclock=vclock,
        gc_vclock=gc_vclock,
        is_read_only=is_read_only,
        is_ready=is_read_only or not value.get(_LOADING_OR_READ_ONLY, False),
    )


def _uuids(value: Any) -> frozenset[UUID]:
    try:
        return frozenset(UUID(each) for each in value)
    except (TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(
            "a ballot should list UUIDs, and the server sent something else", detail=excerpt(value, 100)
        ) from error
