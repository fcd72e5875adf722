"""The owner of a prefix: which topics under the prefix are those of one daemon, and which events in them.

`<prefix>.schema` tells. The `source.name` of its records is the owner's name, usually the prefix itself; MirrorMaker may have
given the topics another prefix. The owner's topics are `<prefix>.<space>` for each name that its records have given to a space.
Other topics may have names under the same prefix: those of a daemon with the prefix `shop.eu` under `shop`, or of another
program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from spark_jobs.contract.envelope import Names
from spark_jobs.errors import JobError

FOREIGN_TO_TOPICS: Final = "[^A-Za-z0-9._-]"
"""Pattern of a letter of a space's name that a topic's name can't have."""


def topic_suffix(space: str) -> str:
    """Return a space's name as it is written in the name of its topic."""
    return re.sub(FOREIGN_TO_TOPICS, "_", space)


@dataclass(frozen=True)
class Owner:
    """Owner of the topics under a prefix. `topics` are those that the schema topic names."""

    names: Names | None
    """None: the records name no daemon, so every event in these topics counts. The daemon's own records always do."""
    topics: frozenset[str]
    routed: Mapping[str, str] = field(default_factory=dict)
    """Spaces whose events now go to a topic of another name than `<prefix>.<space>`, with that topic."""

    @property
    def is_doubtful(self) -> bool:
        """Whether nothing tells whose topics these are."""
        return self.names is not None and self.names.doubt is not None

    def has_one_of(self, names: set[str | None]) -> bool:
        """Return whether events with these names are the owner's."""
        return self.names is None or not names.isdisjoint(self.names.own)

    @classmethod
    def of(cls, prefix: str, records: Iterable[str]) -> Owner:
        """Return the owner by the values of `<prefix>.schema`. Raises JobError if several daemons have written them.

        Without any record the name is taken to be the prefix, and an event of another one ends the job.
        """
        names: set[str] = set()
        spaces: set[str] = set()
        newest: dict[Any, _Route] = {}
        for record in records:
            name, named = _named(record)
            names |= name
            spaces |= named
            for space_id, form in _routes(record):
                newest[space_id] = max(newest.get(space_id, form), form, key=lambda found: (found.version, found.is_dropped))
        now = (route for route in newest.values() if not route.is_dropped and route.topic is not None)
        routed = {route.space: f"{prefix}.{route.topic}" for route in now}
        topics = frozenset(f"{prefix}.{topic_suffix(space)}" for space in spaces)
        if not names and topics:
            return cls(None, topics, routed)
        if not names:
            return cls(Names(frozenset({prefix}), _doubt(prefix)), frozenset())
        if prefix not in names and len(names) > 1:
            raise JobError(
                f"The topic {prefix}.schema has the records of several daemons: {', '.join(map(repr, sorted(names)))}. A prefix"
                " belongs to one daemon. Mirror the topics of each daemon to a prefix of their own, and start with that --prefix."
            )
        # Topics that `materialize` of an earlier version made have the new prefix in the events, but not in the schema records.
        own = {prefix} if prefix in names else {prefix, *names}
        return cls(Names(frozenset(own)), topics, routed)


def owner_of_fleet(prefix: str, records: Mapping[str, Sequence[str]]) -> Owner:
    """Return the owner of topics that shards share, by the values of `<prefix>.<shard>.schema` of each shard.

    Spaces may have a topic of each shard, `<prefix>.<shard>.<space>`, beside the shared ones. Raises JobError as `Owner.of`.
    """
    each = {shard: Owner.of(prefix, values) for shard, values in records.items() if values}
    if not each:
        return Owner.of(prefix, ())
    known = Owner.of(prefix, [value for values in records.values() for value in values])
    apart = {
        (space, topic)
        for shard, owner in each.items()
        for space, topic in owner.routed.items()
        if topic == of_shard(prefix, shard, space)
    }
    routed = {space: topic for owner in each.values() for space, topic in owner.routed.items() if (space, topic) not in apart}
    names = known.names if known.names is not None else Names(frozenset({prefix}))
    return Owner(replace(names, shards=tuple(records)), known.topics | {topic for _, topic in apart}, routed)


def of_shard(prefix: str, shard: str, space: str) -> str:
    """Return the topic that a space has for one shard alone."""
    return f"{prefix}.{shard}.{topic_suffix(space)}"


def _named(record: str) -> tuple[set[str], set[str]]:
    """Return the name of the daemon that wrote a schema record, and the names that the record gives to spaces."""
    try:
        members: dict[str, Any] = json.loads(record)
        source = members["source"]
        spaces = {source["table"]}
        for change in members["tableChanges"]:
            spaces |= {_unquoted(change[name]) for name in ("id", "previousId") if change.get(name) is not None}
        name = source.get("name")
    except (ValueError, KeyError, TypeError, AttributeError):
        return set(), set()  # the jobs that need the record's form end with an error
    return {name} if isinstance(name, str) else set(), {space for space in spaces if isinstance(space, str)}


class _Route(NamedTuple):
    """Form of a space, with its topic behind the prefix if that isn't the space's name."""

    version: int
    is_dropped: bool
    space: str
    topic: str | None


def _routes(record: str) -> Iterator[tuple[Any, _Route]]:
    """Yield the id of a record's space, and its form."""
    try:
        members: dict[str, Any] = json.loads(record)
        source = members["source"]
        for change in members["tableChanges"]:
            is_dropped, topic = change["type"] == "DROP", change.get("topic")
            yield source["space_id"], _Route(source["schema_version"], is_dropped, source["table"], topic)
    except (ValueError, KeyError, TypeError, AttributeError):
        return  # the jobs that need the record's form end with an error


def _unquoted(name: Any) -> Any:
    return name[1:-1] if isinstance(name, str) and len(name) > 1 and name[0] == name[-1] == '"' else name


def _doubt(prefix: str) -> str:
    return (
        f", and the topic {prefix}.schema, which tells whose topics these are, is missing, empty or can't be read. Give the job"
        " the right to read it, mirror it with the others, or leave this topic out with --spaces."
    )
