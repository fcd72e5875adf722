"""Moves of buckets, so that consumers of topics that all shards write see nothing of them: what waits, and for whom.

vshard moves a bucket by copying its rows to the destination, and by deleting them at the source later. The source's log has
users' changes up to `sent`, the destination's from `active` on. The two daemons lag independently. So the destination's daemon
lets the bucket's rows wait until the source's daemon has committed `sent`:

    source's log        u1 u2 │readonly│sending ─────── sent │ garbage  D D D │ gone
    source's daemon     publishes u1, u2                record │ the DELETEs publish nothing
                                                          │ read by the destination's daemon
    destination's log        │receiving  I I I   │ active │ u3 u4 │ readonly sending …
    destination's daemon     the INSERTs publish │ everything from `active` on waits ─┬─▶ u3 u4 …
                             nothing             │ until the record has been read ────┘

Each bucket is a little log of its own: its rows of `_bucket`, and the rows of sharded spaces in it, in their order. It is
processed in order, and stops at a row that can't be decided yet. Rows behind that wait in the bucket's queue, and nothing else
does. When the record has come, the queue goes on as if its rows came only now, maybe to the next stop: the bucket may have moved
on meanwhile (A ─▶ B ─▶ A).

A key may change its bucket. Its rows wait for each other, so that their order holds, and a state of a bucket waits for the rows
before it that concern the bucket, so that their fate is that of their place in the log, and no other shard goes on before them
(cdc.stream.moves.waiting).

    state of the bucket     rows of sharded spaces
    active, pinned,         users': published
    readonly, no state
    receiving               an INSERT has arrived; others were written past the router: they wait for `active` (published) or
                            `garbage` (lost)
    sending                 written past the router: they wait for `active` (the move has failed: published) or `sent` (lost)
    sent                    lost
    garbage                 a DELETE collects; others are lost

What has arrived, is collected, or is lost with a copy changes the images here, and publishes nothing. What is lost is counted.

Moves are paired by their generation, the number of the bucket's attempts to move, and before vshard 0.1.41 by count
(cdc.stream.moves.counts). If the
source's daemon never had the bucket's rows, as it began later, the arrivals are the only copy: they are published at the stop.

A daemon that begins while buckets move knows only a part of this: see cdc.stream.moves.beginnings.

Where everything up to a checkpoint is published, and only images are brought up to it (`past`), the queues become what they were
at the checkpoint: the bucket's record there names the first row that waited (`head`).

This module knows neither events nor images.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from cdc.protocol.constants import Type
from cdc.stream.moves.beginnings import Beginnings
from cdc.stream.moves.comparison import begun, with_lost
from cdc.stream.moves.counts import Counts, with_answer, with_arrival
from cdc.stream.moves.held import Held, HeldRow
from cdc.stream.moves.lost import LostChanges
from cdc.stream.moves.records import GARBAGE, OWNED, RECEIVING, SENDING, SENT, BucketRecord, Place, Shards, Step
from cdc.stream.moves.waiting import WaitingRows

_UNKNOWN: Final = 1 << 53
"""Generation of a bucket that has left by an unknown move."""


class Whole(Enum):
    """What becomes of all rows of a bucket that this shard has."""

    SHOWN = "shown"
    """Nobody else has published them as they are now."""
    TAKEN_AWAY = "taken away"
    """Consumers have none of them until another shard shows them."""


class Fate(Enum):
    """What becomes of a row of a sharded space."""

    PUBLISHED = "published"
    SILENT = "silent"
    """It changes the images alone: a move has made it."""
    LOST = "lost"
    """The same, as it has changed a copy that the bucket's owner doesn't keep."""
    WAITS = "waits"
    FOLLOWS = "follows"
    """It waits for earlier rows of its key, and for nothing else."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What a bucket waits for: another shard's daemon, or the outcome of its move here (`waits_for` is None)."""

    bucket_id: int
    waits_for: str | None
    since_us: int
    asks: bool = False


class Question(NamedTuple):
    """A shard asks about a bucket. If that is None, its daemon began at `number`, and it asks whether this one has seen it.

    A question with the name of this shard is one to itself, about what it has read when another shard has answered.
    """

    name: str
    bucket_id: int | None
    number: int = 0


class BucketQueues:
    """The buckets of one shard."""

    def __init__(self, shards: Shards) -> None:
        self.records: dict[int, BucketRecord] = dict(shards.own.records)
        """The buckets as of the rows that have been processed."""
        self.beginnings = Beginnings(shards)
        """Which daemons have seen each other begin."""
        self.is_past = False
        """Whether the rows up to the checkpoint are published already."""
        self.waiting = WaitingRows()
        """What waits."""
        self.waits: dict[int, Wait] = {}
        """Buckets that wait."""
        self.is_settled = True
        """Whether the records say all of what waits. In the middle of rows that can only go on together they don't."""
        self.lost = LostChanges()
        """Changes that were lost with copies."""
        self.strangers = {str(one.peer) for one in self.records.values() if shards.is_stranger(one.peer)}
        """Names of replica sets in `_bucket` that no shard of the fleet's file has."""
        self._shards = shards
        self.changed_count = 0
        """How many buckets have arrived whose rows weren't all the same as where they came from."""
        self._counts = Counts(shards)
        self._dirty: dict[int, None] = {}
        self._ready: dict[int, None] = {}
        # Whether rows waited at the checkpoint, so that rows up to it may have to wait in any bucket.
        self._has_heads = any(record.head is not None for record in self.records.values())
        # Buckets in states in which rows aren't simply published.
        self._moving = {bucket_id for bucket_id, record in self.records.items() if _is_moving(record.status)}

    # State.

    @property
    def are_moving(self) -> bool:
        """Whether the fate of rows has to be asked for: some buckets aren't simply owned, or wait."""
        return bool(self._moving or self.waiting.queues) or (self.is_past and self._has_heads)

    @property
    def is_ready(self) -> bool:
        """Whether `advance` may have something."""
        return bool(self._ready)

    def is_here(self, bucket_id: object) -> bool:
        """Return whether rows of a bucket are this shard's: it owns the bucket, or knows nothing of it."""
        if type(bucket_id) is not int or bucket_id not in self.records:
            return True
        return self.records[bucket_id].status in OWNED

    def is_here_at(self, bucket_id: object, number: int | None) -> bool:
        """Return the same of the place in the log of a row that waits under this number; None for the row that has just come."""
        queue = self.waiting.queues.get(bucket_id) if type(bucket_id) is int else None
        for at, step in reversed(queue.steps if queue is not None else ()):
            if number is None or at < number:
                return step.status in OWNED
        return self.is_here(bucket_id)

    def fate(self, kind: int, key: bytes, bucket_id: object, place: Place) -> tuple[Fate, int]:
        """Return what becomes of a row that has arrived, and its bucket.

        `bucket_id` is the one that the key is in before it, or that it creates the key in.
        """
        follows = self.waiting.has(key)
        if type(bucket_id) is not int:
            return (Fate.FOLLOWS if follows else Fate.PUBLISHED), 0
        record = self.records.get(bucket_id)
        if bucket_id in self.waiting.queues:
            return Fate.WAITS, bucket_id
        if self.is_past:
            found = Fate.WAITS if record is not None and record.head == place else Fate.PUBLISHED
        else:
            found = _fate(record.status, kind) if record is not None else Fate.PUBLISHED
        return (Fate.FOLLOWS if follows and found is not Fate.WAITS else found), bucket_id

    # Rows.

    def step(self, bucket_id: int, step: Step, place: Place) -> Held | None:
        """Process a row of `_bucket`. Return it as a row that waits if it has to."""
        record = self.records.get(bucket_id)
        if self.is_past:
            waits = bucket_id in self.waiting.queues or (record is not None and record.head == place)
            if not waits:
                return None
        elif not (
            bucket_id in self.waiting.queues
            or self.waiting.concerns(bucket_id)
            or _is_arrived(record, step)
            or self.beginnings.is_taken_away(step)
        ):
            self._enter(bucket_id, step)
            return None
        else:
            self._ready[bucket_id] = None
        return self.append(Held(self.waiting.next_number, bucket_id, place, step=step))

    def hold(self, bucket_id: int, place: Place, row: HeldRow) -> Held:
        """Have a row wait, in this bucket, that is at this place in the log."""
        return self.append(Held(self.waiting.next_number, bucket_id, place, row=row))

    def append(self, held: Held) -> Held:
        """Have a row wait: one that has come, or one that the state store has, in their order."""
        bucket_id = held.bucket_id
        if bucket_id not in self.waiting.queues and not held.is_follower:
            self._dirty[bucket_id] = None
            if not self.is_past:
                self._ready[bucket_id] = None  # to find out what it waits for
        self.waiting.append(held)
        return held

    def _take(self, bucket_id: int, fate: Fate, followers_fate: Fate | None = None) -> Iterator[tuple[Held, Fate]]:
        """Yield the first row of a queue, and then the followers of its key; their fate is their bucket's if none is given."""
        held: Held | None = self.waiting.take(bucket_id)
        self._dirty[bucket_id] = None
        if bucket_id not in self.waiting.queues:
            self.waits.pop(bucket_id, None)
        while held is not None:
            self._ready.update(dict.fromkeys(self.waiting.released_by(held)))
            key = held.row.key if held.row is not None else None
            self.is_settled = not self.waiting.goes_on(held)
            yield held, fate
            held = self.waiting.take_follower(key) if key is not None else None
            if held is not None and held.row is not None:
                record = self.records.get(held.bucket_id)
                fate = followers_fate or (_fate(record.status, held.row.kind) if record is not None else Fate.PUBLISHED)
                if fate is Fate.LOST and record is not None:
                    self.note_lost(held.bucket_id, held.row.space_id, held.row.key)

    def forget_space(self, space_id: int) -> list[Held]:
        """Forget the rows of a space that wait, as the space is gone; return them."""
        forgotten = self.waiting.forget_space(space_id)
        for bucket_id in {held.bucket_id for held in forgotten if not held.is_follower}:
            self._dirty[bucket_id] = None
            if bucket_id not in self.waiting.queues:
                self.waits.pop(bucket_id, None)
        if forgotten and not self.is_past:
            self._ready.update(dict.fromkeys(self.waiting.queues))
        return forgotten

    # Going on.

    def heard(self, bucket_id: int | None) -> None:
        """Note that another shard's record of a bucket has changed; None if a whole shard may have."""
        if bucket_id is None:
            self._ready.update(dict.fromkeys(self.waiting.queues))
            self._ready.update({each: None for each, record in self.records.items() if record.arrived or record.changed})
        elif bucket_id in self.waiting.queues or bucket_id in self.records:
            self._ready[bucket_id] = None

    def advance(self, now_us: int) -> Iterator[tuple[Held, Fate] | tuple[int, Whole]]:
        """Yield the rows that need wait no longer, in order, with their fate, and buckets that are published as a whole.

        The caller handles each before it asks for the next.
        """
        while self._ready:
            bucket_id = next(iter(self._ready))
            del self._ready[bucket_id]
            yield from self._advance(bucket_id, now_us)
        self.beginnings.go_on(self.waiting.oldest_number)

    def _advance(self, bucket_id: int, now_us: int) -> Iterator[tuple[Held, Fate] | tuple[int, Whole]]:
        while (queue := self.waiting.queues.get(bucket_id)) is not None:
            head = queue.rows[0]
            ahead = self.waiting.blocker(bucket_id)
            if ahead is not None:
                self._wait(bucket_id, self.waits[ahead].waits_for if ahead in self.waits else None, now_us)
                return
            record = self.records.get(bucket_id)
            step = head.step
            if step is None and record is not None and head.row is not None:
                fate = Fate.WAITS if head.row.is_joined and record.status == RECEIVING else _fate(record.status, head.row.kind)
                if fate is Fate.WAITS:
                    if not queue.steps:
                        self._wait(bucket_id, None, now_us)
                        return
                    _, step = queue.steps[0]
                    fate = Fate.PUBLISHED if step.status in OWNED else Fate.LOST
                if fate is Fate.LOST:
                    self.note_lost(bucket_id, head.row.space_id, head.row.key)
            else:
                fate = Fate.PUBLISHED
            if step is not None and not queue.has_passed and record is not None and _is_arrived(record, step):
                verdict = self._shards.verdict(bucket_id, record, self.beginnings.record.replicaset_uuid)
                if verdict.waits_for is not None:
                    if verdict.asks and record.generation is None:
                        self.record(bucket_id, self._counts.ask(bucket_id, verdict.waits_for, record, queue))
                    self._wait(bucket_id, verdict.waits_for, now_us, asks=verdict.asks)
                    return
                queue.has_passed = True
                queue.is_counted = record.generation is None and verdict.is_recorded
                if not verdict.was_published:
                    self.beginnings.doubt()
                    yield bucket_id, Whole.SHOWN
            if head.step is not None:
                if queue.is_counted:
                    # Not before: a daemon that ends between the rows ahead of the state waits for this move again, not the next.
                    self.records[bucket_id] = with_arrival(self.records[bucket_id])
                queue.has_passed = queue.is_counted = False
                if self.beginnings.is_taken_away(head.step):
                    self.beginnings.take_away()
                    yield bucket_id, Whole.TAKEN_AWAY
                self._enter(bucket_id, head.step)
            yield from self._take(bucket_id, fate)
        if self._must_show(bucket_id):
            yield bucket_id, Whole.SHOWN

    def _must_show(self, bucket_id: int) -> bool:
        """Return whether a bucket has come here with other rows than it had where it, or its last owner, got it from."""
        record = self.records.get(bucket_id)
        if record is None or bucket_id in self.waiting.queues:
            return False
        # What is still arriving may have been collected already: vshard's source doesn't wait for the destination.
        for arrived in record.arrived if record.status != RECEIVING else record.arrived[:-1]:
            collected = self._shards.collected(bucket_id, arrived.generation)
            if collected is not None:
                is_changed = arrived != collected
                self.changed_count += is_changed
                rest = tuple(one for one in record.arrived if one is not arrived)
                record = replace(record, arrived=rest, changed=arrived.generation if is_changed else record.changed)
        changed, shown = self._shards.changed(bucket_id)
        changed = max(changed, record.changed)
        is_due = record.is_owned and changed > max(shown, record.shown)
        self.record(bucket_id, replace(record, shown=changed) if is_due else record)
        return is_due

    def note_lost(self, bucket_id: int, space_id: int, key: bytes) -> None:
        """Note a change that is lost with a copy, in the bucket's present state."""
        record = self.records.get(bucket_id)
        self.lost.add(bucket_id, record.status if record is not None else None, space_id, key)
        if record is not None:
            self.record(bucket_id, with_lost(record))

    def _wait(self, bucket_id: int, waits_for: str | None, now_us: int, *, asks: bool = False) -> None:
        before = self.waits.get(bucket_id)
        if before is None or (before.waits_for, before.asks) != (waits_for, asks):
            self.waits[bucket_id] = Wait(bucket_id, waits_for, before.since_us if before is not None else now_us, asks)
            self._dirty[bucket_id] = None

    def questions(self) -> list[Question]:
        """Return what is to be answered once everything has been handled that the master has."""
        asked = [
            Question(name, bucket_id, self._shards.question(name, bucket_id).question)
            for name, bucket_id in self._shards.questions()
            if _is_unanswered(self._shards.question(name, bucket_id), name, self.records.get(bucket_id))
        ]
        begun = [Question(name, None, began_us) for name, began_us in self.beginnings.unseen()]
        return [*asked, *begun, *(Question(self._shards.own_name, *answered) for answered in self._counts.answered())]

    def answer(self, questions: Iterable[Question]) -> None:
        """Answer these questions. Everything has been handled that the master had when they were read."""
        for name, bucket_id, number in questions:
            if bucket_id is None:
                self.beginnings.see(name, number, self.waiting.next_number - 1)
                continue
            record, queue = self.records.get(bucket_id), self.waiting.queues.get(bucket_id)
            if name == self._shards.own_name:
                if record is not None and queue is not None:
                    self.record(bucket_id, self._counts.conclude(bucket_id, number, record, queue))
                    self._ready[bucket_id] = None
                continue
            asked = self._shards.question(name, bucket_id)
            if _is_unanswered(asked, name, record):
                if asked.question:
                    self.record(bucket_id, with_answer(record, name, number, self._shards.known_as(name), queue))
                else:
                    self.record(bucket_id, BucketRecord(None, asked.generation, first=(asked.generation or 0) + 1))
        self.beginnings.go_on(self.waiting.oldest_number)

    def record(self, bucket_id: int, record: BucketRecord) -> None:
        """Set a bucket's record."""
        if record is not self.records.get(bucket_id):
            self.records[bucket_id] = record
            self._dirty[bucket_id] = None

    def _enter(self, bucket_id: int, step: Step) -> None:
        """Note that a bucket has this state now."""
        if self._shards.is_stranger(step.peer):
            self.strangers.add(str(step.peer))
        before = self.records.get(bucket_id)
        generation = step.generation
        if step.status is None and before is not None:
            generation = before.generation
        if before is None:
            found = BucketRecord(step.status, generation, step.peer, first=(generation or 0) + 1)
        else:
            found = replace(before, status=step.status, generation=generation, peer=step.peer)
        if step.status == RECEIVING and found.first == _UNKNOWN:
            found = replace(found, first=(generation or 0) + 1)
        if step.status == SENT and step.generation is None and step.peer is not None:
            found = replace(found, sent={**found.sent, step.peer: found.sent.get(step.peer, 0) + 1})
        if step.status == SENT and (self.beginnings.is_taken_away(step) or not self.beginnings.is_certain):
            # Consumers may have older rows than this shard published: whoever gets these shows them.
            found = replace(found, first=(generation or 0) + 1, missed=found.sent)
        if step.status == RECEIVING and generation is not None:
            found = replace(found, arrived=begun(found.arrived, generation))
        elif step.status == SENDING and generation is not None:
            found = replace(found, collected=begun(found.collected, generation))
        elif before is not None and (before.status, step.status) == (RECEIVING, GARBAGE):
            found = replace(found, arrived=found.arrived[:-1])
        elif before is not None and before.status == SENDING and step.status != SENT:
            found = replace(found, collected=found.collected[:-1])  # the move has failed
        self.records[bucket_id] = found
        self._dirty[bucket_id] = None
        (self._moving.add if _is_moving(step.status) else self._moving.discard)(bucket_id)

    # Beginning.

    def begin(self, steps: dict[int, Step], own_uuid: str, now_us: int) -> None:
        """Begin with these states, of all buckets: at a snapshot, or where no records of this shard exist."""
        self.waiting = WaitingRows()
        self.waits.clear()
        self._counts.clear()
        before, self.records = self.records, {}
        arrived: list[int] = []
        for bucket_id in before.keys() | steps.keys():
            former, step = before.get(bucket_id), steps.get(bucket_id, Step(None))
            self.records[bucket_id] = _at_beginning(former, step)
            if _has_arrived(former, step):
                arrived.append(bucket_id)
        self.beginnings.begin(own_uuid, now_us, sorted(arrived))
        self._moving = {bucket_id for bucket_id, record in self.records.items() if _is_moving(record.status)}
        self._dirty = dict.fromkeys(self.records)
        self.heard(None)

    def leftovers(self) -> Iterator[tuple[Held, Fate]]:
        """Yield the rows that the state store has as waiting, and that didn't wait any more at the checkpoint."""
        are_more = True
        while are_more:
            are_more = False
            for bucket_id in list(self.waiting.queues):
                record = self.records.get(bucket_id)
                while (queue := self.waiting.queues.get(bucket_id)) is not None and (
                    record is None or queue.rows[0].place != record.head
                ):
                    if queue.rows[0].row is not None and self.waiting.blocker(bucket_id) is not None:
                        break  # it comes after an earlier row of its key, in another queue
                    yield from self._take(bucket_id, Fate.SILENT, Fate.SILENT)
                    are_more = True
        self._ready.clear()

    def end_past(self) -> None:
        """Go on behind the checkpoint."""
        self.is_past = False
        self._dirty.clear()
        self.heard(None)

    def take_news(self) -> Iterator[tuple[int, BucketRecord]]:
        """Yield the records that have changed since the last call."""
        for bucket_id in self._dirty:
            record, queue = self.records.get(bucket_id), self.waiting.queues.get(bucket_id)
            wait = self.waits.get(bucket_id)
            head = queue.rows[0].place if queue is not None else None
            asks = wait.waits_for if wait is not None and wait.asks else None
            record = replace(record or BucketRecord(None), head=head, asks=asks)
            self.records[bucket_id] = record
            yield bucket_id, record
        self._dirty.clear()


def _is_unanswered(asked: BucketRecord, name: str, own: BucketRecord | None) -> bool:
    """Return whether a shard's question, which is in its record of a bucket, has no answer in this shard's record of it."""
    return own is None or (asked.question > 0 and own.answers.get(name, (0, 0))[0] != asked.question)


def _is_moving(status: str | None) -> bool:
    return status in (RECEIVING, SENDING, SENT, GARBAGE)


def _is_arrived(record: BucketRecord | None, step: Step) -> bool:
    """Return whether a bucket that was being received becomes this shard's by a state. vshard's bootstrap names no source."""
    return record is not None and record.status == RECEIVING and record.peer is not None and step.status in OWNED


def _fate(status: str | None, kind: int) -> Fate:
    """Return what becomes of a row in a bucket of this state."""
    if status == RECEIVING:
        return Fate.SILENT if kind == Type.INSERT else Fate.WAITS
    if status == SENDING:
        return Fate.WAITS
    if status == GARBAGE and kind == Type.DELETE:
        return Fate.SILENT
    return Fate.LOST if status in (SENT, GARBAGE) else Fate.PUBLISHED


def _has_arrived(before: BucketRecord | None, step: Step) -> bool:
    """Return whether an owned bucket, of which `before` was the last that was known, has been elsewhere since, or may have."""
    if step.status not in OWNED:
        return False
    return before is None or not before.is_owned or step.generation is None or step.generation != before.generation


def _at_beginning(before: BucketRecord | None, step: Step) -> BucketRecord:
    """Return a bucket's record at a beginning; `before` is that of an earlier time, after which rows may be unknown."""
    number = step.generation or 0
    # A bucket that is being sent, or is owned, has had its rows published by this snapshot.
    first = number if step.status == SENDING else number + 1
    if before is not None and before.is_owned and step.status in (SENT, SENDING):
        first = before.first
    if step.status is None and before is not None:
        # It has left in between, it isn't known by which move: whatever other shards have got counts as unpublished.
        return replace(before, status=None, head=None, first=_UNKNOWN, generation=_UNKNOWN)
    missed = {step.peer: 1} if step.generation is None and step.status in (SENT, GARBAGE) and step.peer is not None else {}
    return BucketRecord(step.status, step.generation, step.peer, first, sent=missed, missed=missed)
