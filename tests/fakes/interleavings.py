"""Random lives of a master whose transactions wait, are confirmed and rolled back, and a replica that is watched meanwhile."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, Final

from cdc.protocol.constants import Key
from cdc.stream.batches.batch import Batch, Broadcast, Message
from tests.fakes.fates import Fates
from tests.fakes.master import SEQUENCE
from tests.fakes.pipelines import MemorySpool
from tests.fakes.replica import Cut, Replica, at_once
from tests.fakes.shop import Sent, read
from tests.fakes.synchronous import ALL_OF_THEM, SHARED, SynchronousMaster

FIELDS: Final[list[Any]] = ["id", "name", "n"]
_KEYS: Final = 5
_SPACES_MAX: Final = 4


class LimboWorkload:
    """Steps of random changes and of what becomes of them, from one seed."""

    def __init__(
        self,
        master: SynchronousMaster,
        rng: random.Random,
        origin_count: int,
        *,
        has_little_ddl: bool = False,
        has_unseen_ends: bool = False,
    ) -> None:
        """`has_unseen_ends`: some transactions end by a row that isn't relayed, as before 2.8.4."""
        self._has_little_ddl = has_little_ddl
        self._has_unseen_ends = has_unseen_ends
        self.has_nops = True
        self.alters_keys = False
        """Whether some spaces get another primary key, over the fields n and id, and later their first one again."""
        self._master = master
        self._rng = rng
        self.origins = self._origins = list(range(1, origin_count + 1))
        # The space that became another kind, or came, last: what is written to it next tells whether that was seen.
        self._defined = 0
        for origin in self._origins:
            master.origin = origin
            for is_sync in (False, True):
                self._create(origin, is_sync=is_sync)
        if master.has_promote:
            master.promote(0, self._origins[0])

    def run(self, count: int) -> None:
        """That many steps."""
        for _ in range(count):
            self._step()

    def finish(self) -> None:
        """Until nothing waits."""
        while self._master.waiting:
            self._decide()

    def _step(self) -> None:
        rng, master = self._rng, self._master
        if master.waiting and rng.random() < 0.18:
            self._decide()
            return
        if not master.has_promote and master.owner and rng.random() < 0.03:
            # Mostly of something that waited nowhere but in the owner's memory.
            master.roll_back(ALL_OF_THEM, master.owner)
            return
        if master.has_promote and rng.random() < (0.05 if master.owner else 0.4):
            self._hand_on()
            return
        # Mostly the one whose transactions may wait: else nothing ever comes behind a synchronous one.
        master.origin = master.owner if master.owner and rng.random() < 0.7 else rng.choice(self._origins)
        match rng.choice(["change", "change", "transaction", "transaction", "define", "nop"]):
            case "change":
                self._change()
            case "transaction":
                master.begin()
                for _ in range(rng.choice([1, 2, 3, 6])):
                    if rng.random() < 0.15:
                        self._define()
                    else:
                        self._change()
                if not master._open or rng.random() < 0.2:
                    self._nop()
                if self._has_unseen_ends and rng.random() < 0.2:
                    master.commit_unseen()
                else:
                    master.commit()
            case "define":
                self._define()
            case _ if not self.has_nops:
                self._nop()
            case _:
                master.begin()
                for _ in range(rng.choice([1, 1, 3])):
                    master.nop()
                # One that was to wait for a quorum, and of which a trigger, or another member, left nothing.
                master.commit(is_sync=master.has_promote and rng.random() < 0.5)

    def _nop(self) -> None:
        """A row without an event."""
        if self.has_nops:
            self._master.nop()
        else:
            number = self._master.origin * 1000 + 9
            self._master.replace(SEQUENCE, number, 1, "nothing", 1, 1, self._rng.randint(1, 2**62), 1, 0, False)

    # Rows.

    def _spaces(self) -> list[int]:
        master = self._master
        spaces = [SHARED, *master.spaces_of(master.origin)]
        return [space for space in spaces if master.may_write_synchronously(master.origin) or not master.is_sync(space)]

    def _change(self) -> None:
        rng, master = self._rng, self._master
        spaces = self._spaces()
        if not spaces:
            return
        space = self._defined if self._defined in spaces and rng.random() < 0.4 else rng.choice(spaces)
        if len(master.key_places(space)) > 1:
            self._change_altered(space)
            return
        first = master.origin * 100 if space == SHARED else 0
        keys = list(range(first, first + _KEYS))
        present = {row[0] for row in master.contents(space)}
        free = [key for key in keys if key not in present]
        key = rng.choice(keys)
        operations = rng.sample([["=", 2, rng.choice(["x", "y", "ключ"])], ["+", 3, rng.randint(1, 500)]], rng.randint(1, 2))
        match rng.choice(["insert", "replace", "update", "upsert", "delete"]):
            case "insert" if free:
                master.insert(space, rng.choice(free), *self._rest())
            case "update" if key in present:
                master.update(space, [key], *operations)
            case "upsert":
                master.upsert(space, [key, *self._rest()], *operations)
            case "delete":
                master.delete(space, key)
            case _:
                master.replace(space, key, *self._rest())

    def _change_altered(self, space: int) -> None:
        """Of a space whose key is (n, id): an id may be there several times."""
        rng, master = self._rng, self._master
        rows, fresh = master.contents(space), [rng.randrange(_KEYS), *self._rest()]
        row = rng.choice(rows) if rows and rng.random() < 0.8 else fresh
        operation = ["=", 2, rng.choice(["x", "y", "ключ"])]
        match rng.choice(["replace", "update", "upsert", "delete"]):
            case "update" if row is not fresh:
                master.update(space, [row[2], row[0]], operation)
            case "upsert":
                master.upsert(space, row[:3], operation)
            case "delete":
                master.delete(space, row[2], row[0])
            case _:
                master.replace(space, *fresh)

    def _alter_key(self, space: int) -> None:
        ids = [row[0] for row in self._master.contents(space)]
        if len(self._master.key_places(space)) == 1:
            self._master.alter_key(space, [(2, "unsigned"), (0, "unsigned")])
        elif len(set(ids)) == len(ids):
            self._master.alter_key(space, [(0, "unsigned")])

    def _rest(self) -> list[Any]:
        # Long ones fill the memory that a transaction may take.
        return [self._rng.choice(["a", "b", "long " * 40]), self._rng.randint(0, 99)]

    # Data definition.

    def _define(self) -> None:
        rng, master = self._rng, self._master
        if self._has_little_ddl and rng.random() < 0.95:
            self._change()
            return
        origin = master.origin
        own = master.spaces_of(origin)
        space = rng.choice(own) if own else 0
        # Inside of a transaction a space that was written to keeps the kind that it had then.
        is_alone = master._open is None
        kinds = ["create", "truncate", "drop", "format", "rename", "alter", "alter", "index", "sequence"]
        match rng.choice([*kinds, "alter key"] if self.alters_keys else kinds):
            case "alter key" if space and is_alone:
                self._alter_key(space)
            case "truncate" if space:
                master.truncate(space)
            case "drop" if len(own) > 1 and is_alone:
                self._drop(space)
            case "format" if space:
                more = rng.sample(["more", "other", "third"], rng.randint(0, 2))
                master.format(space, [*FIELDS, *({"name": name, "type": "any", "is_nullable": True} for name in more)])
            case "rename" if space and (names := self._free_names(origin)):
                master.rename(space, rng.choice(names))
            case "alter" if space and is_alone:
                master.alter_sync(space, is_sync=not master.is_sync(space))
                self._defined = space
            case "index" if space:
                master.create_index(space, [[1, "string"]], index_id=1, name="second")
            case "sequence":
                master.create_sequence(origin * 1000 + rng.randrange(5), "s")
            case _:
                self._create(origin, is_sync=rng.random() < 0.5)

    def _create(self, origin: int, *, is_sync: bool) -> None:
        master = self._master
        taken, names = master.spaces_of(origin), self._free_names(origin)
        free = [number for number in range(origin * 1000 + 1, origin * 1000 + 9) if not master.has_space(number)]
        if len(taken) >= _SPACES_MAX or not names or not free:
            return
        # The first number and name that are free: after a ROLLBACK or a drop they are those of the space that is gone.
        master.create_space(names[0], FIELDS, space_id=free[0], flags={"is_sync": True} if is_sync else {})
        self._defined = free[0]

    def _drop(self, space: int) -> None:
        if self._rng.random() < 0.5:
            self._master.drop(space)
            return
        self._master.begin()
        self._master.drop(space)
        self._master.commit()

    def _free_names(self, origin: int) -> list[str]:
        taken = self._master.names()
        return [name for name in (f"space {origin} {number}" for number in range(_SPACES_MAX + 2)) if name not in taken]

    # What becomes of those that wait.

    def _decide(self) -> None:
        rng, master = self._rng, self._master
        lsns = [entry.lsn for entry in master.waiting if entry.is_sync]
        others = [origin for origin in self._origins if origin != master.owner]
        match rng.choice(["confirm", "confirm", "confirm", "roll back", "take over"]):
            case "roll back":
                # A server names the first of them; any other lsn must be taken at its word too.
                limits = [lsns[0], rng.choice(lsns), rng.choice(master.waiting).lsn]
                master.roll_back(rng.choice(limits if master.has_promote else [*limits, ALL_OF_THEM]), master.owner)
            case "take over" if master.has_promote:
                self._hand_on()
            case "take over" if others:
                # The successor confirms what has its quorum, and rolls back the rest.
                successor, count = rng.choice(others), rng.randint(0, len(lsns))
                if count:
                    master.confirm(lsns[count - 1], successor)
                if count < len(lsns):
                    if rng.random() < 0.3:
                        master.origin = successor
                        master.nop()
                    master.roll_back(lsns[count], successor)
            case _:
                master.confirm(rng.choice([lsns[-1], rng.choice(lsns)]), master.owner)
                master.is_late = not master.waiting and master.has_promote and rng.random() < 0.3

    def _hand_on(self) -> None:
        rng, master = self._rng, self._master
        waiting = master.waiting
        # None of them, or all up to one: what its writer had of them.
        limit = rng.choice([waiting[0].first_lsn - 1, *(entry.lsn for entry in waiting if entry.is_sync)]) if waiting else 0
        if rng.random() < 0.2:
            master.demote(limit, rng.choice(self._origins))
        else:
            master.promote(limit, rng.choice(self._origins))


class WatchedReplica(Replica):
    """A replica that holds, at every batch, what no batch may do: cover what waits, or leave out what it publishes."""

    def __init__(self, master: SynchronousMaster, *, cut: Cut = at_once, **options: Any) -> None:
        self.spools: list[MemorySpool] = []
        super().__init__(master, cut=cut, spools=self.spools, **options)
        self._synchronous = master
        # Of this connection: the last lsn of each origin that was published.
        self._last: dict[int, int] = {}
        # What was committed before it; its stream may begin earlier, where the store is.
        self._since: dict[int, int] | None = None

    def connect(self) -> None:
        """A new connection."""
        self._last = {}
        position = self.topics.checkpoint().position
        self._since = dict(position.vclock) if position is not None else None
        super().connect()

    @property
    def sent_count(self) -> int:
        """How far into the log this connection has come."""
        assert self.relay._next is not None
        return self.relay._next

    def fates(self) -> Fates:
        """Of what this connection has been told, and what was committed before it."""
        assert self.relay.subscribed is not None
        since = self._since if self._since is not None else self.relay.subscribed[Key.VCLOCK]
        return Fates.of(self._synchronous.written, self.sent_count, since)

    def submit(self, batch: Batch) -> None:
        """Hand a batch to the publisher."""
        super().submit(batch)
        if not self.relay.is_streaming:
            return
        for sent in streamed(batch.messages):
            self._last[sent.source["replica_id"]] = sent.source["lsn"]
        if not batch.is_boundary:
            return
        position = batch.position.vclock
        for origin, first in self.fates().first_waiting().items():
            assert position.get(origin, 0) < first, f"{position} covers {origin}:{first}, which waits"
        for origin, lsn in self._last.items():
            assert lsn <= position.get(origin, 0), f"after {position} a restart would repeat {origin}:{lsn}"

    def seen(self) -> list[Message | Broadcast]:
        """Everything that was committed, and what is on its way."""
        return [*self.topics.committed, *self.waiting()]


def streamed(messages: Iterable[Message | Broadcast]) -> list[Sent]:
    """The events of the stream among messages."""
    return [sent for sent in map(read, messages) if sent.op and sent.value["transaction"] is not None]
