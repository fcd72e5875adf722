"""A position in a replica set: how far the log of each member (origin) has been followed.

Tarantool gives every change an origin (`replica_id`, 1 to 31) and a number that grows within that origin (`lsn`). Lsns of two
origins don't compare, so a position has one lsn per origin. Component 0 counts a member's own local changes. These are never
relayed and mean nothing to other members, so component 0 is dropped wherever a vclock enters this program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from cdc.errors import ProtocolError, excerpt

VCLOCK_MAX: Final = 32
"""Number of Tarantool's origins: ids 0 to 31."""

_TEXT: Final = re.compile(r"\{\s*(?:\d+\s*:\s*\d+\s*(?:,\s*\d+\s*:\s*\d+\s*)*)?\}")
_PAIR: Final = re.compile(r"(\d+)\s*:\s*(\d+)")


class VClock(Mapping[int, int]):
    """An immutable vclock: origin → lsn. An origin that is absent counts as lsn 0, so `{}` and `{1: 0}` are equal."""

    __slots__ = ("_components",)

    def __init__(self, components: Mapping[int, int] | None = None) -> None:
        # Invariant: ids are 1..31 in ascending order, lsns are positive.
        self._components: dict[int, int] = {
            origin: lsn for origin, lsn in sorted((components or {}).items()) if origin != 0 and lsn != 0
        }
        for origin, lsn in self._components.items():
            if not 0 < origin < VCLOCK_MAX or lsn < 0:
                raise ValueError(f"vclock component {origin}: {lsn} is out of range")

    @classmethod
    def parse(cls, text: str) -> VClock:
        """Read the form that `str()` and Tarantool's logs print: `{1: 42, 2: 7}`. Raises ValueError."""
        if not _TEXT.fullmatch(text.strip()):
            raise ValueError(f"{text!r} is not a vclock; one looks like {{1: 42, 2: 7}}")
        return cls({int(origin): int(lsn) for origin, lsn in _PAIR.findall(text)})

    @classmethod
    def from_wire(cls, value: object) -> VClock:
        """Read a decoded MessagePack map. Raises ProtocolError if it isn't a map of ids to lsns."""
        if not isinstance(value, dict):
            raise ProtocolError("a vclock should be a map, and the server sent something else", detail=excerpt(value, 100))
        for origin, lsn in value.items():
            if type(origin) is not int or type(lsn) is not int or not 0 <= origin < VCLOCK_MAX or lsn < 0:
                raise ProtocolError(
                    "a component of a vclock is out of range", detail=f"{excerpt(origin, 50)}: {excerpt(lsn, 50)}"
                )
        return cls(value)

    @classmethod
    def from_json(cls, value: Mapping[str, int]) -> VClock:
        """Read the form that events and checkpoints carry: `{"1": 42}`."""
        return cls({int(origin): lsn for origin, lsn in value.items()})

    def to_json(self) -> dict[str, int]:
        """Return the form that events and checkpoints carry: JSON object keys are strings."""
        return {str(origin): lsn for origin, lsn in self._components.items()}

    def __getitem__(self, origin: int) -> int:
        return self._components.get(origin, 0)

    def __iter__(self) -> Iterator[int]:
        return iter(self._components)

    def __len__(self) -> int:
        return len(self._components)

    def __contains__(self, origin: object) -> bool:
        return origin in self._components

    def __eq__(self, other: object) -> bool:
        return self._components == other._components if isinstance(other, VClock) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._components.items()))

    def __str__(self) -> str:
        return "{" + ", ".join(f"{origin}: {lsn}" for origin, lsn in self._components.items()) + "}"

    def __repr__(self) -> str:
        return f"VClock({self})"

    def covers(self, other: VClock) -> bool:
        """Return whether this vclock contains everything that `other` contains (greater or equal in every component)."""
        return all(self[origin] >= lsn for origin, lsn in other._components.items())

    def lacking(self, other: VClock) -> dict[int, tuple[int, int]]:
        """Return the components in which `other` is ahead: origin → (own lsn, other's lsn). Empty if this covers `other`."""
        return {origin: (self[origin], lsn) for origin, lsn in other._components.items() if self[origin] < lsn}
