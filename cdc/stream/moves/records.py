"""What each shard's daemon says of its buckets, in `<prefix>.<shard>.buckets`: a compacted topic of one partition.

    {"bucket": 7}      {"status": "sent", "generation": 3, …}    the bucket as of the events that are committed with the record
    {"bucket": null}   {"replicaset_uuid": "…", …}               all buckets are recorded: the daemon has begun

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


class RowSum(NamedTuple):
    """Rows that have moved with a bucket, added up: the move's generation, their number (-1: not those that were published), and
    the sum.
    """

    generation: int
    row_count: int = 0
    total: int = 0


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
    aligned: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Without generations, by replica set: since that beginning of its daemon, its count of `sent` is so much higher than the
    count of arrivals here (cdc.stream.moves.counts)."""
    arrived: tuple[RowSum, ...] = ()
    """The rows that have arrived by the last moves, until they are compared."""
    collected: tuple[RowSum, ...] = ()
    """Those that have been collected after the last moves away: all of a move, once the bucket has no row in `_bucket`."""
    changed: int = 0
    """Generation of the last move here of which rows changed on the way."""
    shown: int = 0
    """The highest `changed` of any shard after which all rows were shown here."""
    asks: str | None = None
    """The shard that is asked whether it ever has had the bucket, or how often it has sent it."""
    question: int = 0
    """Number of the last question of the second kind."""
    answers: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By shard that has asked: the number of its question, and the answer."""
    head: Place | None = None
    """The first row that waits, if rows of this bucket wait: everything before it is published."""

    @property
    def is_owned(self) -> bool:
        """Whether the bucket belongs to the shard."""
        return self.status in OWNED

    def to_json(self) -> bytes:
        """Return the record's value."""
        return encode({key: value for key, value in asdict(self).items() if value not in (None, {}, (), 0)})


def record_of(record: Mapping[str, Any]) -> BucketRecord:
    """Return what `to_json` has made a text of. Raises TypeError or ValueError for another."""
    head = record.get("head")
    known = {key: record[key] for key in BucketRecord.__slots__ if key in record}
    for name in ("arrived", "collected"):
        known[name] = tuple(RowSum(*map(int, each)) for each in known.get(name, ()))
    for name in ("aligned", "answers"):
        known[name] = {each: (int(pair[0]), int(pair[1])) for each, pair in known.get(name, {}).items()}
    return BucketRecord(**{"status": None, **known, "head": (int(head[0]), int(head[1]), int(head[2])) if head else None})


def _shard_record_of(content: Mapping[str, Any]) -> ShardRecord:
    return ShardRecord(**{key: content[key] for key in ShardRecord.__slots__ if key in content})


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


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A shard as of its daemon's committed events (cdc.stream.moves.beginnings)."""

    replicaset_uuid: str
    began_us: int = 0
    """When the daemon began, or began again, in microseconds since 1970. It tells one beginning from another."""
    seen: Mapping[str, int] = field(default_factory=dict)
    """The beginnings of other shards' daemons that this one has seen."""
    departed: int = 0
    """How often a bucket has left for a shard whose daemon this one hadn't seen begin."""
    is_settled: bool = False
    is_doubtful: bool = False
    """Whether rows have arrived of which older events may come yet."""
    arrived_unseen: int = 0
    """How many buckets have arrived while the daemon didn't follow, all in all: a row that was deleted then may be left over."""

    def to_json(self) -> bytes:
        """Return the record's value."""
        return encode({key: value for key, value in asdict(self).items() if value not in ({}, 0)})


class ShardBuckets:
    """The records of one shard."""

    def __init__(self) -> None:
        self.record: ShardRecord | None = None
        """None until the shard's daemon has recorded all buckets."""
        self.records: dict[int, BucketRecord] = {}

    @property
    def replicaset_uuid(self) -> str | None:
        """The replica set; None until the shard's daemon has recorded all buckets."""
        return self.record.replicaset_uuid if self.record is not None else None


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
                shard.record = _shard_record_of(content) if content is not None else None
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
                passed = _was_passed(shard, found, arrival, own)
                if passed is not None:
                    return Verdict(None, passed, is_recorded=True)
            if shard.replicaset_uuid is None:
                verdict = Verdict(name) if verdict.waits_for is None else verdict
            elif sources:
                verdict = Verdict(name, asks=found is None or _counts_differ(shard, arrival))
            elif found is not None and found.status not in LEFT:
                verdict = Verdict(name)
        return verdict

    def collected(self, bucket_id: int, generation: int) -> RowSum | None:
        """Return the rows that have been collected after a move, where they came from; None if that isn't known yet."""
        for shard in self._shards.values():
            found = shard.records.get(bucket_id)
            if found is not None and (found.status is None or (found.generation or 0) > generation):
                for each in found.collected:
                    if each.generation == generation:
                        return each
        return None

    def changed(self, bucket_id: int) -> tuple[int, int]:
        """Return the highest `changed` of a bucket that other shards have recorded, and the highest `shown`."""
        others = (shard for name, shard in self._shards.items() if name != self.own_name)
        found = [shard.records[bucket_id] for shard in others if bucket_id in shard.records]
        return max((one.changed for one in found), default=0), max((one.shown for one in found), default=0)

    # Beginnings.

    def begun(self) -> list[tuple[str, int]]:
        """Return the other shards whose daemons have begun, and when."""
        others = [(name, shard.record) for name, shard in self._shards.items() if name != self.own_name]
        return [(name, record.began_us) for name, record in others if record is not None]

    def named(self, peer: str | None) -> list[str]:
        """Return the shard whose replica set `_bucket` calls so; if none is known to be, those whose daemons haven't begun."""
        others = [name for name in self._shards if name != self.own_name]
        found = [name for name in others if peer is not None and peer in self.known_as(name)]
        return found or [name for name in others if self._shards[name].record is None]

    def awaited(self, own: ShardRecord) -> list[str]:
        """Return the shards whose daemons haven't begun, or haven't seen all others; `own` is this shard's record as of now."""
        records = {name: shard.record if name != self.own_name else own for name, shard in self._shards.items()}
        return [name for name, by in records.items() if by is None or not _has_seen(name, by, records)]

    @property
    def have_departed(self) -> bool:
        """Whether buckets of other shards ever left for one whose daemon wasn't seen."""
        return any(shard.record is not None and shard.record.departed for shard in self._shards.values())

    # Questions.

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
        """Return the shards that ask this one about buckets, and the buckets."""
        return list(self._questions)

    def question(self, name: str, bucket_id: int) -> BucketRecord:
        """Return the record of another shard's bucket with which it asks."""
        return self._shards[name].records[bucket_id]


def _has_seen(name: str, by: ShardRecord, records: Mapping[str, ShardRecord | None]) -> bool:
    others = ((other, record) for other, record in records.items() if other != name)
    return all(record is not None and by.seen.get(other) == record.began_us for other, record in others)


def _was_passed(shard: ShardBuckets, found: BucketRecord, arrival: BucketRecord, own: Collection[str]) -> bool | None:
    """Return whether the former owner had published the rows that have arrived; None while it hasn't passed them on.

    `own` are the names of the replica set here.
    """
    if arrival.generation is None:
        if _counts_differ(shard, arrival):
            return None
        _, more = arrival.aligned[arrival.peer or ""]
        number = arrival.taken.get(arrival.peer or "", 0) + 1 + more
        return number > count(found.missed, own) if count(found.sent, own) >= number else None
    there = found.generation or 0
    if there > arrival.generation or (there == arrival.generation and found.status in LEFT):
        return arrival.generation >= found.first
    return None


def count(moves: Mapping[str, int], names: Collection[str]) -> int:
    """Return how many moves there were to or from a replica set."""
    return sum(moves.get(name, 0) for name in names)


def _counts_differ(shard: ShardBuckets, arrival: BucketRecord) -> bool:
    """Return whether it isn't known yet how a shard's count of moves compares with that of the arrivals here."""
    began_us = shard.record.began_us if shard.record is not None else 0
    return arrival.generation is None and arrival.aligned.get(arrival.peer or "", (None, 0))[0] != began_us
