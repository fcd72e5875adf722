"""A daemon's place in a fleet (cdc.config.fleet)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """One of a fleet's replica sets: its name, the fleet's name and prefix, the names of all shards, and whether they write the
    same topics."""

    name: str
    fleet: str
    fleet_prefix: str
    siblings: tuple[str, ...]
    shares_topics: bool

    @property
    def co_writers(self) -> tuple[str, ...]:
        """Names of the shards that write the same topics, this one among them; none if each has topics of its own."""
        return self.siblings if self.shares_topics else ()

    @property
    def prefix(self) -> str:
        """Prefix of the topics that only this shard's daemon writes."""
        return f"{self.fleet_prefix}.{self.name}"
