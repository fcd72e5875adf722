"""A cluster of three replica sets under a random load: users, buckets that move as vshard moves them, TRUNCATEs, and a DROP.

It is the servers' side alone; what daemons make of the logs is compared with what it knows (`changes`). Several moves go on at a
time, a step now and then, and half of them fail somewhere. Users write to the owner of a bucket, unless it is on its way.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from cdc.positions.vclock import VClock
from tests.fakes import wire
from tests.fakes.master import Master
from tests.fakes.moving import Log, UserChange

NAMES: Final = ("s1", "s2", "s3")
BUCKETS: Final = 6
KEYS: Final = 18
ORDERS: Final = "orders"
CUSTOMERS: Final = "customers"
"""Sharded spaces; no key is in both."""
EMPTIED: Final = "t"
"""Operation of a change that a TRUNCATE has made: consumers see a `d`, or the `t` of the shard."""


@dataclass
class Shard:
    """One replica set."""

    name: str
    uuid: UUID
    master: Master
    sent: int = 0
    """How many rows of its log its daemon has got."""
    spaces: list[str] = field(default_factory=lambda: [ORDERS, CUSTOMERS])
    """The sharded spaces that it has."""

    def contents(self) -> list[list[Any]]:
        """The rows of these."""
        return [row for space in self.spaces for row in self.master.contents(space)]

    def log(self) -> Log:
        """Its log from here on."""
        rows = b"".join(wire.frame({0: 2}, body) for body in self.master.snapshot())
        self.sent = len(self.master.log)
        return VClock(self.master.vclock), rows, []

    def news(self) -> list[tuple[int, int, bytes]]:
        """What its log has got since."""
        rows, self.sent = self.master.log[self.sent :], len(self.master.log)
        return [(row.origin, row.lsn, row.packet(1)) for row in rows]


@dataclass
class Move:
    """A bucket on its way."""

    bucket: int
    source: Shard
    destination: Shard
    generation: int
    to_copy: list[list[Any]]
    phase: str = "copying"
    emptied: list[list[Any]] = field(default_factory=list)
    """Rows that a TRUNCATE has removed at the destination."""
    converted: list[list[Any]] = field(default_factory=list)
    """Rows of which servers have changed values."""


class ShardedCluster:
    """The cluster."""

    def __init__(
        self,
        chance: random.Random,
        *,
        changes_buckets: bool = False,
        is_old: bool = False,
        by_name: bool = False,
        converts: bool = False,
    ) -> None:
        """With `changes_buckets`, rows get another bucket, and keys come back in another one.

        If it `is_old`, vshard counts no attempts to move, as before 0.1.41. With `by_name`, `_bucket` calls replica sets by name,
        as with vshard's `identification_mode = "name_as_key"`. If it `converts`, servers change some values of rows that move.
        """
        self._chance, self._changes_buckets, self._is_old, self._by_name = chance, changes_buckets, is_old, by_name
        self._converts = converts
        self.shards = {name: _shard(name, UUID(int=number + 1)) for number, name in enumerate(NAMES)}
        self.converted_count = 0
        self.changes: dict[int, list[UserChange]] = defaultdict(list)
        """What users have done to each key of the cluster, in order."""
        self.rows: dict[int, list[Any]] = {}
        """The cluster's rows."""
        self.dropped: dict[int, int] = {}
        """Of each key of a space that is gone: how many changes it had."""
        self._owner = {bucket: self.shards[chance.choice(NAMES)] for bucket in range(1, BUCKETS + 1)}
        self._generation: dict[int, int] = dict.fromkeys(self._owner, 0)
        self._moves: dict[int, Move] = {}
        # Bucket and shard of each key's last change.
        self._last: dict[int, tuple[int, Shard]] = {}
        self._n = 0
        for bucket, shard in self._owner.items():
            shard.master.insert("_bucket", bucket, "active")
        for _ in range(KEYS):
            self._write()

    def step(self, *, truncates: bool = True) -> None:
        """Something happens."""
        chance = self._chance.random()
        if truncates and chance < 0.02:
            self._truncate(self.shards[self._chance.choice(NAMES)])
        elif chance < 0.15 and len(self._moves) < BUCKETS:
            self._begin_move()
        elif chance < 0.5 and self._moves:
            self._go_on(self._chance.choice(list(self._moves.values())))
        else:
            self._write()

    def drop(self, shard: Shard) -> None:
        """A shard drops one of the spaces, in which nobody writes from the first of it on."""
        if not self.dropped:
            self.dropped = {key: len(self.changes[key]) for key in range(KEYS) if space_of(key) == CUSTOMERS}
            self.rows = {key: row for key, row in self.rows.items() if key not in self.dropped}
            for move in self._moves.values():
                move.to_copy = [row for row in move.to_copy if row[0] not in self.dropped]
        shard.master.drop(CUSTOMERS)
        shard.spaces.remove(CUSTOMERS)

    def end_moves(self) -> None:
        """All moves come to their end."""
        while self._moves:
            self._go_on(next(iter(self._moves.values())))

    # Users.

    def _write(self) -> None:
        """A user changes some rows of one shard, in one transaction."""
        keys = [self._chance.randrange(KEYS) for _ in range(self._chance.choice((1, 1, 1, 2, 4)))]
        of_shard: Shard | None = None
        for key in dict.fromkeys(keys):
            if key in self.dropped:
                continue
            before = self.rows.get(key)
            bucket = before[1] if before is not None else self._chance.choice(self._buckets_for(key))
            shard = self._owner[bucket]
            if self._is_locked(bucket) or (of_shard is not None and shard is not of_shard):
                continue
            if of_shard is None and len(keys) > 1:
                shard.master.begin()
            of_shard = shard
            self._change(shard.master, key, bucket, before)
        if of_shard is not None and len(keys) > 1:
            of_shard.master.commit()

    def _buckets_for(self, key: int) -> list[int]:
        """The buckets for a new row. If its key had another one, nothing but a shard or a bucket can bring the two in order."""
        if key not in self._last:
            return list(self._owner)
        bucket, shard = self._last[key]
        if not self._changes_buckets:
            return [bucket]
        return [bucket, *(other for other, owner in self._owner.items() if owner is shard)]

    def _change(self, master: Master, key: int, bucket: int, before: list[Any] | None) -> None:
        self._n += 1
        after: list[Any] | None = [key, bucket, self._n]
        kinds = "replace", "update", "delete", "upsert", "other bucket"
        kind = self._chance.choice(kinds if self._changes_buckets else kinds[:-1])
        if kind == "other bucket" and before is not None:
            others = [other for other, shard in self._owner.items() if shard.master is master and not self._is_locked(other)]
            after = [key, self._chance.choice([bucket, *others]), self._n]
        if before is None or kind in ("replace", "other bucket"):
            assert after is not None
            (master.insert if before is None and kind == "update" else master.replace)(space_of(key), *after)
        elif kind == "update":
            master.update(space_of(key), [key], ["=", 3, self._n])
        elif kind == "upsert":
            master.upsert(space_of(key), [key, bucket, 0], ["=", 3, self._n])
        else:
            after = None
            master.delete(space_of(key), key)
        self._note("d" if after is None else "c" if before is None else "u", key, after)

    def _note(self, operation: str, key: int, after: list[Any] | None) -> None:
        before = self.rows.get(key)
        self.changes[key].append((operation, before, after))
        bucket = (after or before or [key, 0])[1]
        self._last[key] = bucket, self._owner[bucket]
        if after is None:
            del self.rows[key]
        else:
            self.rows[key] = after

    def _is_locked(self, bucket: int) -> bool:
        move = self._moves.get(bucket)
        return move is not None and move.phase in ("copying", "sent")

    def _truncate(self, shard: Shard) -> None:
        """A space of a shard is emptied, unless a bucket is on its way from it: some of its rows would be elsewhere already."""
        if any(move.source is shard and move.phase in ("copying", "sent") for move in self._moves.values()):
            return
        space = self._chance.choice(shard.spaces)
        for move in self._moves.values():
            if move.destination is shard and move.phase in ("copying", "sent"):
                move.emptied += [row for row in shard.master.contents(space) if row[1] == move.bucket]
        for key, row in list(self.rows.items()):
            if self._owner[row[1]] is shard and space_of(key) == space:
                self._note(EMPTIED, key, None)
        shard.master.truncate(space)

    # Moves.

    def _begin_move(self) -> None:
        bucket = self._chance.choice(list(self._owner))
        source = self._owner[bucket]
        destination = self.shards[self._chance.choice([name for name in NAMES if name != source.name])]
        if bucket in self._moves or any(row[0] == bucket for row in destination.master.contents("_bucket")):
            return
        generation = self._generation[bucket] = self._generation[bucket] + 1
        if self._chance.random() < 0.5 and not self._is_old:
            self._state(source, bucket, "readonly", None, generation - 1)
        self._state(source, bucket, "sending", destination, generation)
        self._state(destination, bucket, "receiving", source, generation)
        rows = [row for row in source.contents() if row[1] == bucket and row[0] not in self.dropped]
        self._moves[bucket] = Move(bucket, source, destination, generation, rows)

    def _go_on(self, move: Move) -> None:
        """A step of a move."""
        bucket, source, destination = move.bucket, move.source, move.destination
        match move.phase:
            case "copying" if self._chance.random() < 0.15 or self._is_refused(move):
                self._state(source, bucket, "active", None, move.generation)
                move.phase = "failed"
            case "copying" if move.to_copy:
                count = self._chance.choice((1, 2))
                copied, move.to_copy = move.to_copy[:count], move.to_copy[count:]
                destination.master.begin()
                for row in copied:
                    if self._converts and row[2] % 3 == 0:
                        row = [*row[:2], row[2] + 10_000]  # noqa: PLW2901 - the source keeps its own
                        move.converted.append(row)
                    destination.master.insert(space_of(row[0]), *row)
                destination.master.commit()
            case "copying":
                self._state(source, bucket, "sent", destination, move.generation)
                move.phase = "sent"
            case "failed":
                self._state(destination, bucket, "garbage", source, move.generation)
                self._collect(destination, bucket)
                del self._moves[bucket]
            case "sent":
                if self._chance.random() < 0.3:
                    self._state(source, bucket, "garbage", destination, move.generation)
                    self._collect(source, bucket)
                self._state(destination, bucket, "active", None, move.generation)
                self._owner[bucket] = destination
                self.rows.update({row[0]: row for row in move.converted if row[0] in self.rows})
                self.converted_count += len(move.converted)
                for row in move.emptied:
                    if row[0] not in self.dropped:
                        self._note(EMPTIED, row[0], None)
                move.phase = "arrived"
            case _:
                if any(row[0] == bucket for row in source.master.contents("_bucket")):
                    self._state(source, bucket, "garbage", destination, move.generation)
                    self._collect(source, bucket)
                del self._moves[bucket]

    @staticmethod
    def _is_refused(move: Move) -> bool:
        """Whether the destination has one of the keys already, in a bucket that isn't collected yet: then the INSERT fails."""
        there = {row[0] for row in move.destination.contents() if row[1] != move.bucket}
        return any(row[0] in there for row in move.to_copy)

    def _collect(self, shard: Shard, bucket: int) -> None:
        for row in [row for row in shard.contents() if row[1] == bucket]:
            shard.master.delete(space_of(row[0]), row[0])
        shard.master.delete("_bucket", bucket)

    def _state(self, shard: Shard, bucket: int, status: str, peer: Shard | None, generation: int) -> None:
        options = {} if self._is_old else {"generation": generation}
        called = None if peer is None else peer.name if self._by_name else str(peer.uuid)
        shard.master.replace("_bucket", bucket, status, called, options)


def space_of(key: int) -> str:
    """The space that has a key."""
    return CUSTOMERS if key % 3 == 0 else ORDERS


def _shard(name: str, uuid: UUID) -> Shard:
    master = Master("2.11", replicaset_uuid=uuid)
    states = [("id", "unsigned"), ("status", "string"), ("destination", "string"), ("opts", "map")]
    master.create_space("_bucket", [{"name": name, "type": kind, "is_nullable": kind != "unsigned"} for name, kind in states])
    for space in (ORDERS, CUSTOMERS):
        master.create_space(space, [{"name": name, "type": "unsigned"} for name in ("id", "bucket_id", "n")])
        master.create_index(space, [{"field": 1, "type": "unsigned"}], index_id=1, name="bucket_id")
    return Shard(name, uuid, master)
