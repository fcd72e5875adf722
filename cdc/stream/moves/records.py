"""What each shard's daemon says of its buckets, in `<prefix>.<shard>.buckets`: a compacted topic of one partition.

    {"bucket": 7}      {"status": "sent", "generation": 3, …}    the bucket as of the events that are committed with the record
    {"bucket": null}   {"replicaset_uuid": "…"}                  all buckets are recorded: the daemon has begun

The replica set at the other end of a move is called as `_bucket` calls it: by its UUID, or by its name, where vshard has
`identification_mode = "name_as_key"` (vshard's storage/init.lua, bucket_send_xc). The fleet's file says which shard has which
name.

A bucket without a record is one that the shard doesn't have, or that its daemon hasn't come to yet. Only the daemon can tell,
once it has read everything that its master had when it was asked (`asks`): it answers with a record.

A record is in the Kafka transaction of the source transaction that has made it true. So a reader of committed messages that
finds a bucket `sent` finds everything that users did with it there before, too. Each shard has a topic of its own, because an
open transaction hides what other producers have written behind it in the partition: a killed daemon would hold up all others.

A daemon also learns its own buckets' states from there when it starts: they are exactly those at its checkpoint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from cdc.errors import ConfigurationError
from cdc.events.json_values import encode

Place = tuple[int, int, int]
"""Origin, lsn, and number within its transaction, of a row in a shard's log."""

RECEIVING: Final = "receiving"
SENDING: Final = "sending"
SENT: Final = "sent"
GARBAGE: Final = "garbage"
OWNED: Final = frozenset({"active", "pinned", "readonly", SENDING})
"""States in which a bucket belongs to the shard, and only there."""
LEFT: Final = frozenset({SENT, GARBAGE, None})
"""States in which a bucket no longer belongs to the shard; None if it has no row in `_bucket`."""

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_OPTIONS: Final = 3
_PEER: Final = 2
_STATUS: Final = 1


class Step(NamedTuple):
    """A bucket's row in `_bucket`: its state, the number of its attempts to move, and the replica set at the other end.

    The generation is None before vshard 0.1.41, the status if the row is gone.
    """

    status: str | None
    generation: int | None = None
    peer: str | None = None

    @classmethod
    def of(cls, row: Sequence[Any] | None) -> Step:
        """Return the state that a row says."""
        if row is None or len(row) <= _STATUS:
            return cls(None)
        options = row[_OPTIONS] if len(row) > _OPTIONS else None
        generation = options.get("generation") if isinstance(options, dict) else None
        peer = row[_PEER] if len(row) > _PEER else None
        return cls(str(row[_STATUS]), generation if type(generation) is int else None, str(peer) if peer is not None else None)


@dataclass(frozen=True, slots=True)
class BucketRecord:
    """A bucket as of a daemon's committed events. `status`, `generation` and `peer` are as in Step."""

    status: str | None
    generation: int | None = None
    peer: str | None = None
    first: int = 0
    """Moves from this generation on took rows away that this daemon had published."""
    sent: Mapping[str, int] = field(default_factory=dict)
    """Without generations: how often the bucket was sent to each replica set."""
    missed: Mapping[str, int] = field(default_factory=dict)
    """How many of these moves took rows away that this daemon hadn't published."""
    taken: Mapping[str, int] = field(default_factory=dict)
    """Without generations: how many arrivals from each replica set have been passed on to consumers."""
    shown_at: int | None = None
    """Generation of an owned bucket whose rows a snapshot has published, as long as its former owner may publish older changes
    after these rows."""
    asks: str | None = None
    """The shard that is asked whether it ever has had the bucket."""
    head: Place | None = None
    """The first row that waits, if rows of this bucket wait: everything before it is published."""

    @property
    def is_owned(self) -> bool:
        """Whether the bucket belongs to the shard."""
        return self.status in OWNED

    def to_json(self) -> bytes:
        """Return the record's value."""
        return encode({key: value for key, value in asdict(self).items() if value not in (None, {}, 0)})


def record_of(record: Mapping[str, Any]) -> BucketRecord:
    """Return what `to_json` has made a text of. Raises TypeError or ValueError for another."""
    head = record.get("head")
    known = {key: record[key] for key in BucketRecord.__slots__ if key in record}
    return BucketRecord(**{"status": None, **known, "head": (int(head[0]), int(head[1]), int(head[2])) if head else None})


def bucket_key(bucket_id: int | None) -> bytes:
    """Return the key of a bucket's record; that of the shard itself for None."""
    return encode({"bucket": bucket_id})


class Verdict(NamedTuple):
    """Whether a bucket's former owner has passed on all that users did there: `waits_for` names the shard that hasn't."""

    waits_for: str | None
    was_published: bool = True
    """Whether consumers have got the rows from there."""
    asks: bool = False
    """Whether that shard has no record of the bucket, and has to be asked."""
    is_recorded: bool = False
    """Whether the shard's record says so."""


class ShardBuckets:
    """The records of one shard."""

    def __init__(self) -> None:
        self.replicaset_uuid: str | None = None
        """None until the shard's daemon has recorded all buckets."""
        self.records: dict[int, BucketRecord] = {}


class Shards:
    """The records of all shards of a fleet, as far as they have been read."""

    def __init__(self, own: str, names: Iterable[str], replicaset_names: Mapping[str, str] = MappingProxyType({})) -> None:
        """`replicaset_names` are vshard's names of the shards' replica sets, where these aren't the shards' own."""
        self.own_name = own
        self._replicaset_names = replicaset_names
        self._shards: dict[str, ShardBuckets] = {name: ShardBuckets() for name in (*names, own)}
        self._questions: dict[tuple[str, int], None] = {}
        self._owners: dict[int, set[str]] = {}
        self.doubled: dict[int, set[str]] = {}
        """The buckets that more than one shard owns, with these shards, as far as they have been read. It may be so for a moment,
        as records of different shards are read in any order."""

    @property
    def own(self) -> ShardBuckets:
        """The records of this daemon's shard."""
        return self._shards[self.own_name]

    def shard(self, name: str) -> ShardBuckets:
        """Return the records of a shard."""
        return self._shards[name]

    def fold(self, name: str, key: bytes, value: bytes | None) -> int | None:
        """Fold one record of a shard's topic; return its bucket, None if it is about the shard.

        Raises ConfigurationError for a record that isn't one.
        """
        shard = self._shards[name]
        try:
            bucket_id = json.loads(key)["bucket"]
            content = json.loads(value) if value is not None else None
            if bucket_id is None:
                shard.replicaset_uuid = content["replicaset_uuid"] if content is not None else None
            elif content is None:
                shard.records.pop(bucket_id, None)
            else:
                record = shard.records[int(bucket_id)] = record_of(content)
                self._note_owner(int(bucket_id), name, is_owner=record.is_owned)
                if record.asks == self.own_name:
                    self._questions[name, int(bucket_id)] = None
                else:
                    self._questions.pop((name, int(bucket_id)), None)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigurationError(
                f"the topic of buckets of the shard {name!r} holds a record that isn't a bucket's: {key[:200]!r}",
                "kafka.topic_prefix must not be shared with another program's topics.",
            ) from error
        return None if bucket_id is None else int(bucket_id)

    def _note_owner(self, bucket_id: int, name: str, *, is_owner: bool) -> None:
        owners = self._owners.setdefault(bucket_id, set())
        (owners.add if is_owner else owners.discard)(name)
        if len(owners) > 1:
            self.doubled[bucket_id] = owners
        else:
            self.doubled.pop(bucket_id, None)

    def verdict(self, bucket_id: int, arrival: BucketRecord, own_uuid: str) -> Verdict:
        """Return whether the owner before an arrival has passed on everything; the bucket is being received here.

        `own_uuid` is the replica set here. A source that is no shard of the fleet has published nothing.
        """
        others = [name for name in self._shards if name != self.own_name]
        sources = [name for name in others if arrival.peer in self.known_as(name)]
        own = {own_uuid, *self.known_as(self.own_name)}
        verdict = Verdict(None, was_published=False)
        for name in sources or others:
            shard, found = self._shards[name], self._shards[name].records.get(bucket_id)
            if found is not None:
                passed = _was_passed(found, arrival, own)
                if passed is not None:
                    return Verdict(None, passed, is_recorded=True)
            if shard.replicaset_uuid is None:
                verdict = Verdict(name) if verdict.waits_for is None else verdict
            elif sources:
                verdict = Verdict(name, asks=found is None)
            elif found is not None and found.status not in LEFT:
                verdict = Verdict(name)
        return verdict

    def has_passed_since(self, bucket_id: int, generation: int) -> bool | None:
        """Return whether another shard that had published a bucket has passed it on, by the move with this generation.

        None while no shard says so, and while a shard has the bucket, or has yet to begin, that may be the one.
        """
        arrival = BucketRecord(RECEIVING, generation)
        others = [shard for name, shard in self._shards.items() if name != self.own_name]
        records = [shard.records[bucket_id] for shard in others if bucket_id in shard.records]
        if any(shard.replicaset_uuid is None for shard in others):
            return None
        if any((found.generation or 0) < generation and found.status not in LEFT for found in records):
            return None
        passed = [verdict for verdict in (_was_passed(found, arrival, ()) for found in records) if verdict is not None]
        return any(passed) if passed else None

    def known_as(self, name: str) -> set[str]:
        """Return what `_bucket` calls a shard's replica set: its name, and its UUID once that is known."""
        uuid = self._shards[name].replicaset_uuid
        return {self._replicaset_names.get(name, name), *([uuid] if uuid is not None else [])}

    def is_stranger(self, peer: str | None) -> bool:
        """Return whether `_bucket` names a replica set that can't be told: no UUID, and no shard's name."""
        if peer is None or peer in self._replicaset_names.values():
            return False
        return not _UUID.fullmatch(peer) and not any(peer in self.known_as(name) for name in self._shards)

    def questions(self) -> list[tuple[str, int]]:
        """Return the shards that ask this one about buckets that it has no record of, and the buckets."""
        return [(name, bucket_id) for name, bucket_id in self._questions if bucket_id not in self.own.records]

    def question(self, name: str, bucket_id: int) -> BucketRecord:
        """Return the record of another shard's bucket with which it asks."""
        return self._shards[name].records[bucket_id]


def _was_passed(found: BucketRecord, arrival: BucketRecord, own: Collection[str]) -> bool | None:
    """Return whether the former owner had published the rows that have arrived; None while it hasn't passed them on.

    `own` are the names of the replica set here.
    """
    if arrival.generation is None:
        number = arrival.taken.get(arrival.peer or "", 0) + 1
        return number > _count(found.missed, own) if _count(found.sent, own) >= number else None
    there = found.generation or 0
    if there > arrival.generation or (there == arrival.generation and found.status in LEFT):
        return arrival.generation >= found.first
    return None


def _count(moves: Mapping[str, int], names: Collection[str]) -> int:
    """Return how many moves there were to or from a replica set."""
    return sum(moves.get(name, 0) for name in names)
