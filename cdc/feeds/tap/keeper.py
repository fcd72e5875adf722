"""Thread that keeps the server's own store up to date from the topics.

First it loads the existing messages. It takes the highest seq that readers can reach as a target, and reads each partition up to
the target; the partitions may be read in any order. A partition is complete when it has delivered a higher seq, or when it has
been read to its end as of a moment after the target was known. Changes missing below the target (compacted or deleted topics)
don't matter then.

After the load the thread applies changes in the order of their seqs, without a gap, so each commit leaves the store at one seq.
If the next seq doesn't arrive, the thread loads again as at the start.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from typing import Final

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from cdc.errors import CdcError, ConfigurationError
from cdc.events.topics import TopicNames
from cdc.feeds.tap.changes import MalformedError
from cdc.feeds.tap.folding import Emptied, Fold, Row, SchemaRecord, SnapshotRecord, SpaceState, event_of, schema_of, snapshot_of
from cdc.feeds.tap.identity import Identity
from cdc.feeds.tap.live import Topics, begins_of, check_error
from cdc.feeds.tap.topic_store import StorePosition, TopicStore
from cdc.feeds.tap.topic_thread import (
    AHEAD_BYTES,
    HOLE_SECONDS,
    HOLE_TOPICS_SECONDS,
    TOPICS_SECONDS,
    TopicThread,
)
from cdc.kafka.clients import Admin
from cdc.kafka.hanging import Place, written_ends
from cdc.kafka.reach import Reach

_COMMIT_SECONDS: Final = 0.1
_LOAD_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of the changes in one commit during a load, in bytes."""
_WAITING_BYTES: Final = 300
_NUMBERS_MAX: Final = 1_000_000
"""Maximum number of seqs that are remembered to check whether any is missing."""
_UNORDERED_SECONDS: Final = 5.0
"""Maximum delay by which, with at-least-once delivery, a message may follow a later one of another partition, in seconds."""


class _ClearedError(Exception):
    """The store was cleared: it must be filled from the beginning of all topics."""


class StoreUpdater(TopicThread):
    """Thread that keeps a store up to date until it is stopped."""

    def __init__(
        self,
        source: Topics,
        store: TopicStore,
        is_wanted: Callable[[str], bool],
        on_reset: Callable[[int], None],
        on_end: Callable[[CdcError | None], None],
    ) -> None:
        """`on_reset` is called with each new epoch of the store. The store must be open before the thread starts.

        For `on_end` see TopicThread.
        """
        super().__init__("tap-store", "the server's own store can't be updated from the topics, retrying", on_end)
        self._source = source
        self._store = store
        self._is_wanted = is_wanted
        self._on_reset = on_reset
        self._malformed_count = 0
        self._has_begun = False
        """Whether the store has been up to date since the process started: clients have been filled from it then."""
        self.verified_seq = 0
        self._reset_state({}, StorePosition(0))

    def _reset_state(self, spaces: dict[int, SpaceState], position: StorePosition) -> None:
        self._fold = Fold(spaces, self._is_wanted)
        self._seq = position.seq
        self._is_loading = True
        self._target = 0
        self._offsets: dict[Place, int] = {}
        self._heads: dict[Place, int] = {}
        self._waiting: dict[int, tuple[Row | Emptied, Place, int]] = {}
        self._waiting_bytes = 0
        self._waiting_counts: dict[Place, int] = {}
        self._control_places: set[Place] = set()
        self._controls_read: dict[Place, int] = {}
        """Offsets up to which control partitions were read.

        All records are read again at each start; the offsets show whether any have expired unread.
        """
        self._controls_kept: dict[Place, int] = {}
        """The same, for the records that are in the store."""
        self._controls: list[SchemaRecord | SnapshotRecord] = []
        self._ended: dict[Place, int] = {}
        self._paused.clear()
        self._gaps: dict[Place, int] = {}
        """Partitions that have lost messages, with the offset up to which they had been read."""
        self._behind_gaps: dict[Place, int] = {}
        """Seq up to which partitions may lack changes, by partition."""
        self._numbers: set[int] = set()
        """Seqs of changes that were received and that the store may not have had; collected only if messages are lost."""
        self._topics: dict[str, set[int]] = {}
        self._identity = Identity(position.cluster, dict(position.topic_ids))
        """Cluster and topics from which the store was filled."""
        self.verified_seq = max(position.looked_seq, self.verified_seq)
        """Seq up to which changes came from topics with the stored ids."""
        self._complete_seq = 0 if position.is_loading else position.seq
        """Seq up to which no change is missing, whatever happened to the topics since."""
        self._gone: set[str] = set()
        self._made_again: set[str] = set()
        """Topics that were deleted and created again since the store was filled."""
        self._missed_sweeps = 0
        """Seq up to which rows may have been swept by records that expired unread."""
        self._is_late = False
        self._is_changed = False

    @property
    def places(self) -> Collection[Place]:
        """Partitions of rows that the thread reads."""
        return self._offsets.keys()

    # One consumer's lifetime.

    def _follow(self) -> None:
        with contextlib.suppress(_ClearedError):
            self._keep()

    def _keep(self) -> None:
        source, store = self._source, self._store
        admin = source.clients.admin()
        identity = source.identity(admin, source.listed(admin))
        self._check_cluster(identity)
        position = store.position
        self._reset_state(store.spaces(), position)
        is_first = not position.places
        self._target = max(source.newest_seq(), position.seq)
        if source.config.delivery == "at_least_once":
            self._stopping.wait(_UNORDERED_SECONDS)
        listed = source.listed(admin)
        identity = source.identity(admin, listed)
        self._compare_topics(
            identity, gone=self._identity.topics.keys() - listed.rows.keys() - {place[0] for place in listed.controls}
        )
        begins = source.begins(admin, listed.rows)
        ends = written_ends(admin, listed.rows) if begins else {}
        for place, begin in begins.items():
            offset, seq = position.places.get(_name(place), (0, 0))
            if offset < begin or offset > ends[place] or place[0] in self._made_again:
                self._gaps[place], offset = offset, begin
            self._offsets[place], self._heads[place] = offset, seq
        if is_first:
            self._identity = identity
        consumer = source.clients.consumer("read_committed", AHEAD_BYTES)
        reach = source.reach(consumer)
        try:
            self._read_controls(admin, consumer, reach, listed.controls, position)
            if is_first:
                # The store had no rows that these records could affect.
                self._fold.is_reset = self._fold.is_outgrown = False
            consumer.incremental_assign([TopicPartition(*place, offset) for place, offset in self._offsets.items()])
            while not self._stopping.is_set() and self._is_loading:
                self._take(self._consume(consumer, reach))
                self._hold_back(consumer, self._waiting_bytes, self._heads, self._target)
                if self._is_loaded(ends):
                    self._finish_load(identity)
                elif self._fold.byte_count > _LOAD_BYTES:
                    self._commit(is_loading=True)
            self._stay(admin, consumer, reach)
        finally:
            consumer.close()

    def _read_controls(self, admin: Admin, consumer: Consumer, reach: Reach, places: set[Place], position: StorePosition) -> None:
        """Read all schema and snapshot records so far: the spaces' names must be known before their rows."""
        begins = begins_of(admin, places)
        consumer.assign([TopicPartition(*place, begin) for place, begin in begins.items()])
        while not places <= self._ended.keys() and not self._stopping.is_set():
            self._take(self._consume(consumer, reach))
        self._control_places = places
        snapshots = (self._source.snapshots, 0)
        self._controls_kept = {place: position.places.get(_name(place), (0, 0))[0] for place in places}
        if begins.get(snapshots, 0) > self._controls_kept.get(snapshots, 0):
            told = [record.seq for record in self._controls if isinstance(record, SnapshotRecord)]
            self._missed_sweeps = min([*told, self._target])
        kept = []
        for record in self._controls:
            if isinstance(record, SchemaRecord) and record.seq <= self._target:
                self._fold.schema(record)
            else:
                kept.append(record)
        self._controls = kept

    def _stay(self, admin: Admin, consumer: Consumer, reach: Reach) -> None:
        looked_at = committed_at = time.monotonic()
        hole_since = 0.0
        while not self._stopping.is_set():
            before = self._seq
            self._take(self._consume(consumer, reach))
            self._advance()
            self._hold_back(consumer, self._waiting_bytes, self._heads, self._seq + 1)
            now = time.monotonic()
            if self._is_changed and now - committed_at >= _COMMIT_SECONDS:
                self._commit(is_loading=False)
                committed_at = now
                if self._fold.is_outgrown:
                    self._log.info("a space is wanted under its new name: the server's own store is filled again from the topics")
                    self._store.clear()
                    self._on_reset(self._store.position.epoch)
                    return
            if not self._is_changed:
                self._store.sweep_some(self._fold.spaces)
            hole_since = (hole_since or now) if self._waiting and self._seq == before else 0.0
            if hole_since and now - hole_since > HOLE_SECONDS:
                return
            if now - looked_at > (HOLE_TOPICS_SECONDS if self._waiting else TOPICS_SECONDS):
                looked_at = now
                if self._refresh_partitions(admin, consumer):
                    return

    # Messages.

    def _take(self, messages: list[Message]) -> None:
        name, snapshots, schemas = self._source.name, self._source.snapshots, self._source.schemas
        heads, offsets, gaps = self._heads, self._offsets, self._gaps
        is_well = False
        for message in messages:
            place, error = (message.topic() or "", message.partition() or 0), message.error()
            offset = (message.offset() or 0) + 1
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    self._reached_end(place, offset - 1)
                    is_well = True
                else:
                    self.error = check_error(message.topic(), error, self.error)
                continue
            is_well = True
            if place[0] == snapshots or place[0] == schemas:
                record = snapshot_of(message.value()) if place[0] == snapshots else schema_of(name, message.value())
                if record is not None:
                    self._control(record)
                continue
            try:
                event = event_of(name, message.key(), message.value())
            except MalformedError as problem:
                self._malformed_count += 1
                if self._malformed_count == 1:
                    self._log.warning(
                        "a message that can't be decoded was skipped", topic=place[0], offset=offset - 1, why=str(problem)
                    )
                continue
            if event is None:
                continue
            if event.seq <= self.verified_seq and place[0] in self._made_again:
                self._check_numbers(place[0], event.seq)
            if event.seq <= heads.get(place, 0):
                continue
            if (gaps or self._gone) and event.seq > self._complete_seq:
                self._behind_gaps.setdefault(place, event.seq - 1)
                if len(self._numbers) < _NUMBERS_MAX:
                    self._numbers.add(event.seq)
            heads[place] = event.seq
            if event.seq <= self._seq or (self._is_loading and event.seq <= self._target):
                self._add_covered_change(event)
                offsets[place] = offset
                self._is_changed = True
            elif event.seq not in self._waiting:
                self._waiting[event.seq] = event, place, offset
                self._waiting_bytes += _size(event)
                self._waiting_counts[place] = self._waiting_counts.get(place, 0) + 1
        if is_well:
            self._clear_error()

    def _lacks(self, topic: str, gap: int) -> None:
        for space_id in self._topics.get(topic, ()):
            self._fold.lacks(space_id, min(gap, self._target))

    def _add_covered_change(self, event: Row | Emptied) -> None:
        """Add a change that the store's seq already covers, or will cover once the load is complete."""
        if not self._is_loading:
            space = self._fold.spaces.get(event.space_id)
            if isinstance(event, Emptied) and space is not None and space.floor >= event.seq:
                return  # a `t` event is in every partition
            self._is_late = True
        self._fold.add(event)

    def _control(self, record: SchemaRecord | SnapshotRecord) -> None:
        self._controls.append(record)
        if isinstance(record, SchemaRecord):
            try:
                topic = TopicNames(self._source.prefix).of_space(record.space_id, record.name)
            except ConfigurationError:
                return  # the daemon doesn't publish this space either
            self._topics.setdefault(topic, set()).add(record.space_id)

    def _reached_end(self, place: Place, offset: int) -> None:
        self._ended[place] = offset
        if place[0] in (self._source.snapshots, self._source.schemas):
            self._is_changed |= self._controls_read.get(place) != offset
            self._controls_read[place] = offset
        elif not self._waiting_counts.get(place) and place in self._offsets and self._offsets[place] != offset:
            self._offsets[place] = offset
            self._is_changed = True

    def _advance(self) -> None:
        """Apply all changes whose turn it is, and the control records up to them."""
        pop, add = self._waiting.pop, self._fold.add
        while (found := pop(self._seq + 1, None)) is not None:
            event, place, offset = found
            add(event)
            self._seq += 1
            self._offsets[place] = max(offset, self._offsets.get(place, 0))
            self._waiting_counts[place] -= 1
            self._waiting_bytes -= _size(event)
            self._is_changed = True
        if self._controls:
            self._apply_controls()

    def _apply_controls(self) -> None:
        due = [record for record in self._controls if record.seq <= self._seq]
        if not due:
            return
        self._controls = [record for record in self._controls if record.seq > self._seq]
        for record in due:
            if isinstance(record, SchemaRecord):
                self._fold.schema(record)
            else:
                self._fold.snapshot(record)
        self._is_changed = True

    # The end of the load, and commits.

    def _is_loaded(self, ends: dict[Place, int]) -> bool:
        heads, ended, target = self._heads, self._ended, self._target
        return all(heads.get(place, 0) > target or ended.get(place, -1) >= end for place, end in ends.items())

    def _finish_load(self, identity: Identity) -> None:
        self._seq = self._target
        # Seqs have no gap: if all seqs were received, the deleted messages had been read before.
        if len([seq for seq in self._numbers if seq <= self._target]) < self._target - self._complete_seq:
            for place in self._gaps:
                self._lacks(place[0], self._behind_gaps.get(place, self._target))
            for topic in self._gone:
                self._lacks(topic, self._target)
        self._gaps.clear()
        self._numbers.clear()
        self._identity = Identity(identity.cluster or self._identity.cluster, self._identity.topics | identity.topics)
        self._made_again.clear()
        self._has_begun = True
        for space_id in self._fold.spaces:
            self._fold.lacks(space_id, self._missed_sweeps)
        self._apply_controls()
        self._is_loading = False
        self._commit(is_loading=False, is_ordered=False)
        store = self._store
        self._log.info("the server's own store is up to date", seq=self._seq, rows=store.row_count)
        if store.incomplete:
            self._log.warning(
                "the topics don't go back far enough: rows of these spaces may be missing or outdated until a snapshot "
                "delivers all of them (tarantool-cdc snapshot SPACE)",
                spaces=", ".join(store.incomplete),
            )

    def _commit(self, *, is_loading: bool, is_ordered: bool | None = None) -> None:
        fold, store = self._fold, self._store
        is_reset = fold.is_reset or self._is_late
        was_incomplete = store.incomplete
        limit = self._target if self._is_loading else self._seq
        if not is_loading and not self._controls:
            self._controls_kept = dict(self._controls_read)
        position = StorePosition(
            store.position.epoch + is_reset,
            store.position.seq if is_loading else self._seq,
            is_loading,
            # Stored gaps are noticed again if this load doesn't finish.
            {
                _name(place): (self._gaps.get(place, offset), min(self._heads.get(place, 0), limit))
                for place, offset in self._offsets.items()
            }
            | {_name(place): (offset, 0) for place, offset in self._controls_kept.items()},
            self._identity.cluster,
            self._identity.topics,
            self.verified_seq,
        )
        if is_ordered is None:
            is_ordered = not is_loading and not self._is_late
        store.commit(fold, position, is_ordered=is_ordered)
        fold.rows.clear()
        fold.byte_count = 0
        fold.is_reset = self._is_late = self._is_changed = False
        if is_reset:
            self._on_reset(position.epoch)
        if was_incomplete and not store.incomplete:
            self._log.info("the server's own store has all rows again", seq=self._seq)

    # Topics.

    def _check_cluster(self, identity: Identity) -> None:
        known = self._store.position.cluster
        if known and identity.cluster and identity.cluster != known:
            self._clear_outdated_store(f"it was filled from the Kafka cluster {known}, and this is {identity.cluster}")

    def _check_numbers(self, topic: str, seq: int) -> None:
        """Handle a recreated topic that has an already used seq: the daemon numbers its events from the start again."""
        if self._source.config.delivery == "at_least_once" and self._source.newest_seq() >= self.verified_seq:
            return  # the daemon repeated an event
        self._clear_outdated_store(
            f"the topic {topic} was deleted and created again, and its changes start at seq {seq}, but the store is at "
            f"{self.verified_seq}: the daemon numbers its changes from the start again"
        )

    def _clear_outdated_store(self, why: str) -> None:
        """Clear the store, because its contents aren't an older state of the current topics. Always raises."""
        self._store.clear(why)
        self.verified_seq = 0
        if self._has_begun:  # the process's memory is outdated too
            raise CdcError(
                f"the server's own store {self._store.path} doesn't belong to the current topics: {why}",
                "Start the server again: it then fills the store, and its clients, from the beginning.",
            )
        self._on_reset(self._store.position.epoch)
        raise _ClearedError

    def _compare_topics(self, identity: Identity, gone: Collection[str]) -> None:
        """Compare the topics with those that the store was filled from."""
        self._gone = set(gone)
        self._made_again = identity.made_again(self._identity.topics)
        # Clients that follow may have changes that are now lost, or lack changes of the new topic.
        self._fold.is_reset |= bool(self._made_again)
        if self._made_again or self._gone:
            self._log.warning(
                "topics that the server's own store was filled from were deleted: changes not yet in the store are lost",
                made_again=", ".join(sorted(self._made_again)),
                gone=", ".join(sorted(self._gone)),
            )

    def _refresh_partitions(self, admin: Admin, consumer: Consumer) -> bool:
        """Look for new and deleted partitions.

        Return True if a topic was created again, so that it must be read from its beginning.
        """
        listed = self._source.listed(admin)
        identity = self._source.identity(admin, listed)
        self._check_cluster(identity)
        if identity.made_again(self._identity.topics):
            return True
        self._identity.topics.update(identity.topics)
        self._is_changed |= self.verified_seq != self._seq
        self.verified_seq = self._seq
        counts, controls = listed
        rows = {(name, number) for name, count in counts.items() for number in range(count)}
        new, gone = rows - self._offsets.keys(), self._offsets.keys() - rows
        if gone:
            consumer.incremental_unassign([TopicPartition(*place) for place in gone])
            for place in gone:
                for known in (self._offsets, self._heads, self._ended, self._waiting_counts):
                    known.pop(place, None)
                self._paused.discard(place)
            self._is_changed = True
        if new:
            begins = self._source.begins(admin, counts)
            self._offsets |= {place: begins[place] for place in new}
        if new or controls - self._control_places:
            added = [TopicPartition(*place, self._offsets[place]) for place in new]
            added += [TopicPartition(*place, begin) for place, begin in begins_of(admin, controls - self._control_places).items()]
            self._control_places = controls
            consumer.incremental_assign(added)
        return False


def _name(place: Place) -> str:
    return f"{place[0]}/{place[1]}"


def _size(event: Row | Emptied) -> int:
    if isinstance(event, Emptied):
        return _WAITING_BYTES
    return _WAITING_BYTES + len(event.key) + (len(event.value) if event.value is not None else 0)
