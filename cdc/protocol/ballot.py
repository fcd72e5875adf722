"""A server's answer to VOTE: how far it is, what it still keeps, and whether it may be written to.

Two dialects share the packet. 2.6: 1 is_ro, 2 vclock, 3 gc_vclock, 4 is_loading. Later: 1 is_ro_cfg, 2 vclock, 3 gc_vclock,
4 is_ro, 5 is_anon, 6 is_booted, 7 can_lead, 8 bootstrap leader, 9 registered replicas, 10 name. Key 6 tells them apart.

2.6 fills in is_loading with whether it can't be written to at the moment, and is_ro with box.cfg.read_only. So of a member
that is configured read-only the ballot doesn't tell whether it loads its data; if it does, it says so to the next request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from cdc.errors import ProtocolError, excerpt
from cdc.positions.vclock import VClock

_READ_ONLY_OR_CONFIGURED_SO: Final = 1
_VCLOCK: Final = 2
_GC_VCLOCK: Final = 3
_LOADING_OR_READ_ONLY: Final = 4
_ANONYMOUS: Final = 5
_BOOTED: Final = 6


@dataclass(frozen=True, slots=True)
class Ballot:
    """What a server says of itself. `gc_vclock` is the oldest position from which it can still be followed."""

    vclock: VClock
    gc_vclock: VClock
    is_read_only: bool
    is_ready: bool
    is_anonymous: bool = False


def parse_ballot(value: Any) -> Ballot:
    """Read the map under IPROTO_BALLOT. Raises ProtocolError."""
    if not isinstance(value, dict):
        raise ProtocolError(f"a ballot should be a map, the server sent {excerpt(value, 100)}")
    vclock = VClock.from_wire(value.get(_VCLOCK, {}))
    gc_vclock = VClock.from_wire(value.get(_GC_VCLOCK, {}))
    if _BOOTED in value:
        return Ballot(
            vclock=vclock,
            gc_vclock=gc_vclock,
            is_read_only=bool(value.get(_LOADING_OR_READ_ONLY, False)),
            is_ready=bool(value[_BOOTED]),
            is_anonymous=bool(value.get(_ANONYMOUS, False)),
        )
    is_read_only = bool(value.get(_READ_ONLY_OR_CONFIGURED_SO, False))
    return Ballot(
        vclock=vclock,
        gc_vclock=gc_vclock,
        is_read_only=is_read_only,
        is_ready=is_read_only or not value.get(_LOADING_OR_READ_ONLY, False),
    )
