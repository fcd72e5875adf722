"""A daemon's place in a fleet (cdc.config.fleet)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """One of a fleet's replica sets: its name, the fleet's name and prefix, the names of all shards, whether they write the same
    topics, the names of their replica sets, in the order of the shards, and http.listen of the fleet's process."""

    name: str
    fleet: str
    fleet_prefix: str
    siblings: tuple[str, ...]
    shares_topics: bool
    replicaset_names: tuple[str, ...] = ()
    fleet_listen: str = ""

    @property
    def replicaset_names_by_shard(self) -> dict[str, str]:
        """The names of the replica sets, where these are given."""
        return dict(zip(self.siblings, self.replicaset_names, strict=False))

    @property
    def replicaset_name(self) -> str:
        """Name of the shard's replica set."""
        return self.replicaset_names_by_shard.get(self.name, self.name)

    @property
    def co_writers(self) -> tuple[str, ...]:
        """Names of the shards that write the same topics, this one among them; none if each has topics of its own."""
        return self.siblings if self.shares_topics else ()

    def writers_of(self, topic: str) -> tuple[str, ...]:
        """Return the names of the shards that write a space's topic, this one first."""
        others = () if topic.startswith(f"{self.prefix}.") else self.co_writers
        return (self.name, *(name for name in others if name != self.name))

    @property
    def prefix(self) -> str:
        """Prefix of the topics that only this shard's daemon writes."""
        return f"{self.fleet_prefix}.{self.name}"
