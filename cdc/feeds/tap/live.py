"""Thread that reads the topics from a given change on, and delivers batches in the order of their seqs.

The thread finds its start offset in each partition by binary search, because seqs ascend within a partition. A reader that
starts late, or reads for one client alone, finds its position in a few reads and needs no stored state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # it is documented

from cdc.config import KafkaSection
from cdc.errors import CdcError, ConnectionLostError
from cdc.events import topics
from cdc.feeds.tap.changes import Change, Changes, EventChanges, Kind, MalformedError, Renaming, renamed, swept_at
from cdc.feeds.tap.identity import Identity, identity_of
from cdc.feeds.tap.merging import Batch, Merger
from cdc.feeds.tap.topic_thread import (
    AHEAD_BYTES,
    HOLE_SECONDS,
    HOLE_TOPICS_SECONDS,
    MESSAGES,
    POLL_SECONDS,
    TOPICS_SECONDS,
    TopicThread,
)
from cdc.kafka.clients import Admin, KafkaClients
from cdc.kafka.errors import reading_error
from cdc.kafka.hanging import Place, Whose, newest_seq, open_partitions, seq_of, written_ends
from cdc.kafka.names import names_of, whose
from cdc.kafka.owned_topics import OwnedTopics
from cdc.kafka.reach import Reach
from cdc.kafka.topic_admin import list_topics

_TIMEOUT_SECONDS: Final = 10.0
_NEAR: Final = 1_000
"""Number of messages at which the binary search stops; the reader reads them instead."""
_UNKNOWN: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)
_FOR_ONE_BYTES: Final = 8 * 1024 * 1024
"""Limit for a reader for one client, in bytes: both librdkafka's prefetch and the changes that wait.

There are several such readers.
"""
_KEY_BYTES: Final = 150
"""Memory of a key in addition to its own length, in bytes."""


class ExpiredError(CdcError):
    """A client lacks changes that are no longer on the topics."""


class Listed(NamedTuple):
    """The topics of a daemon."""

    rows: dict[str, int]
    """Topics that may have rows, with their numbers of partitions."""
    controls: set[Place]
    """Existing partitions of the schema topic and the snapshot topic."""


class Topics:
    """One daemon's topics. All methods raise ConnectionLostError while Kafka is unavailable."""

    def __init__(self, name: str, config: KafkaSection) -> None:
        self.config = config
        self.clients = KafkaClients(name, config)
        self.prefix = config.topic_prefix
        self.name = config.topic_prefix
        """`source.name` of the daemon's records: the prefix, unless the topics were renamed while they were copied.

        It is known once `listed` was called.
        """
        names = names_of(config)
        self.snapshots = names.control(topics.SNAPSHOT)
        self.schemas = names.control(topics.SCHEMA)
        self._owned: OwnedTopics | None = None
        self._rows: set[str] = set()

    @property
    def whose(self) -> Whose:
        """What the daemon's events say of their origin."""
        return whose(self.config)._replace(name=self.name)

    def listed(self, admin: Admin) -> Listed:
        """Return the existing topics.

        Those with rows are the topics of the spaces that the schema topic names (cdc.stream.commits.owned_topics).
        """
        found = list_topics(admin, self.config.bootstrap_servers)
        self._owned = self._owned or OwnedTopics(self.clients)
        owner, suffixes = self._owned.of(self.prefix, admin, found)
        self.name = owner or self.prefix
        # Also those that an earlier record named: somebody may have deleted records of the schema topic.
        self._rows |= {f"{self.prefix}.{suffix}" for suffix in suffixes}
        rows = {topic: count for topic, count in found.items() if topic in self._rows}
        control = [topic for topic in (self.snapshots, self.schemas) if topic in found]
        return Listed(rows, {(topic, number) for topic in control for number in range(found[topic])})

    def counts(self, admin: Admin) -> dict[str, int]:
        """Return the topics that may have rows, with their numbers of partitions."""
        return self.listed(admin).rows

    def identity(self, admin: Admin, listed: Listed) -> Identity:
        """Return the ids of the cluster and the topics."""
        return identity_of(admin, [*listed.rows, *(topic for topic, _ in listed.controls)])

    def reach(self, consumer: Consumer) -> Reach:
        """Return a check whether a long-lived consumer still reaches Kafka."""
        return Reach([consumer], self.clients.admin, self.schemas, ConnectionLostError)

    def newest_seq(self) -> int:
        """Return the highest seq that readers can reach."""
        admin = self.clients.admin()
        open_, closed = open_partitions(admin, self.counts(admin))
        return newest_seq(self.clients.consumer("read_committed"), self.whose, {**open_, **closed})

    def begins(self, admin: Admin, counts: Mapping[str, int]) -> dict[Place, int]:
        """Return the partitions' first offsets."""
        return begins_of(admin, [(name, number) for name, count in counts.items() for number in range(count)])

    def former_keys(self, changes: Changes, space: str, seq: int, bytes_max: int) -> list[tuple[bytes, int]] | None:
        """Return the keys, with their vbuckets, that a space had before the change `seq` emptied it, according to its topic.

        Returns None if the topic doesn't go back to its beginning, isn't the topic that was emptied, or has too many keys; also
        if a space was renamed to this name, because its rows may never have been in the topic.
        """
        admin = self.clients.admin()
        if any(one.name == space for one in self._renamings(admin)):
            return None
        topic = topics.TopicNames(self.prefix).of_space(1, space)
        counts = {topic: self.counts(admin).get(topic, 0)}
        changes.name = self.name
        begins = self.begins(admin, counts)
        if not begins or any(begins.values()):
            return None
        # A partition that was added later has no message of that time, and perhaps no message at all.
        ends = written_ends(admin, counts)
        is_found = False
        keys: dict[Place, dict[bytes, int]] = {place: {} for place in begins}
        missing, size = set(begins), 0
        consumer = self.clients.consumer("read_committed")
        try:
            consumer.assign([TopicPartition(*place, 0) for place in begins])
            for messages in _pieces(consumer):
                for message in messages:
                    place = _place(message)
                    error = message.error()
                    if place not in missing or (error is not None and not _is_end(message, error, ends[place])):
                        continue
                    try:
                        found = changes.of(message.key(), message.value()) if error is None else None
                    except MalformedError:
                        continue  # the live reader has logged it
                    if found is None and error is None:
                        continue
                    if found is None or found[0] >= seq:
                        is_found |= found is not None and found[0] == seq
                        missing.discard(place)
                        consumer.incremental_unassign([TopicPartition(*place)])
                        continue
                    here = keys[place]
                    for change in [found[1]] if isinstance(found[1], Change) else found[1]:
                        if change.space != space:
                            continue
                        if change.kind is Kind.MUTATION:
                            size += (len(change.key) + _KEY_BYTES) if change.key not in here else 0
                            here[change.key] = change.vbucket
                        elif change.kind is Kind.DELETE:
                            size -= (len(change.key) + _KEY_BYTES) if here.pop(change.key, None) is not None else 0
                        else:
                            here.clear()
                if not missing or size > bytes_max:
                    break
        finally:
            consumer.close()
        return None if missing or not is_found else [pair for here in keys.values() for pair in here.items()]

    def _renamings(self, admin: Admin) -> list[Renaming]:
        """Return all renamings until now.

        A schema record is written before the events of its form, so no renaming of a read event is missed.
        """
        place = self.schemas, 0
        if place not in self.listed(admin).controls:
            return []
        found = []
        consumer = self.clients.consumer("read_committed")
        try:
            consumer.assign([TopicPartition(*place, begins_of(admin, [place])[place])])
            end = written_ends(admin, {place[0]: 1})[place]
            for messages in _pieces(consumer):
                errors = [(message, error) for message in messages if (error := message.error()) is not None]
                found += [news for message in messages if (news := renamed(message.value() or b"")) is not None]
                if any(_is_end(message, error, end) for message, error in errors):
                    break
        finally:
            consumer.close()
        return found

    def since(self, timestamp_ms: int) -> int | None:
        """Return the seq after which all changes are newer than a time, or None if the topics don't go back that far."""
        # Read it before the lookup by time, so that changes that arrive during the lookup aren't skipped.
        newest = self.newest_seq()
        admin = self.clients.admin()
        counts = self.counts(admin)
        begins = self.begins(admin, counts)
        if not begins:
            return None
        found = _offsets(admin, list(begins), OffsetSpec.for_timestamp(timestamp_ms))
        starts = {place: offset for place, offset in found.items() if offset >= 0}
        if any(begins[place] and offset == begins[place] for place, offset in starts.items()):
            return None  # earlier changes, no longer on the topic, may be newer than the time too
        consumer = self.clients.consumer("read_committed")
        try:
            first = first_events(consumer, self.whose, starts)
        finally:
            consumer.close()
        return min([newest, *(seq - 1 for _, seq in first.values())])


def begins_of(admin: Admin, places: Collection[Place]) -> dict[Place, int]:
    """Return the partitions' first offsets."""
    return _offsets(admin, sorted(places), OffsetSpec.earliest()) if places else {}  # type: ignore[no-untyped-call]


def _offsets(admin: Admin, places: list[Place], spec: OffsetSpec) -> dict[Place, int]:
    wanted = {TopicPartition(*place): spec for place in places}
    try:
        asked = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_TIMEOUT_SECONDS)
        return {(place.topic, place.partition): answer.result().offset for place, answer in asked.items()}
    except KafkaException as error:
        raise reading_error(error.args[0], "the offsets of Kafka's partitions can't be asked for") from error


def first_events(consumer: Consumer, owner: Whose, starts: Mapping[Place, int]) -> dict[Place, tuple[int, int]]:
    """Return the first event of each partition from an offset on, as its offset and its seq. Raises ConnectionLostError."""
    missing, found = set(starts), {}
    try:
        consumer.assign([TopicPartition(*place, start) for place, start in starts.items()])
        while missing:
            message = consumer.poll(_TIMEOUT_SECONDS)
            if message is None:
                raise ConnectionLostError(f"{len(missing)} partitions can't be read: no answer for {_TIMEOUT_SECONDS:g} s")
            place, error = _place(message), message.error()
            if place not in missing:
                continue
            if error is None:
                seq = seq_of(message.key(), message.value(), owner)
                if not seq:
                    continue
                found[place] = (message.offset() or 0, seq)
            elif error.code() != KafkaError._PARTITION_EOF:
                if error.retriable():
                    continue
                raise reading_error(error, "partitions can't be read")
            missing.discard(place)
            consumer.incremental_unassign([TopicPartition(*place)])
    except KafkaException as error:
        raise reading_error(error.args[0], "partitions can't be read") from error
    return found


def _pieces(consumer: Consumer) -> Iterator[list[Message]]:
    """Yield messages as they arrive.

    Raises ConnectionLostError if none arrive: a waiting caller may have been stopped meanwhile.
    """
    heard_at = time.monotonic()
    while True:
        messages = consumer.consume(MESSAGES, POLL_SECONDS)
        if any((error := message.error()) is None or error.code() == KafkaError._PARTITION_EOF for message in messages):
            heard_at = time.monotonic()
        elif time.monotonic() - heard_at > _TIMEOUT_SECONDS:
            raise ConnectionLostError(f"the topics can't be read: no answer for {_TIMEOUT_SECONDS:g} s")
        yield messages


def _is_end(message: Message, error: KafkaError, end: int) -> bool:
    """Whether a partition has been read to `end`. Raises ConnectionLostError if it can't be read."""
    if error.code() == KafkaError._PARTITION_EOF:
        return (message.offset() or 0) >= end
    why = check_error(message.topic(), error, None)
    if error.code() in _UNKNOWN:
        raise ConnectionLostError(f"{message.topic()} can't be read: {why}")  # if the topic was deleted, the next lookup shows it
    return False


def _place(message: Message) -> Place:
    return message.topic() or "", message.partition() or 0


def locate(
    consumer: Consumer, owner: Whose, begins: Mapping[Place, int], ends: Mapping[Place, int], after: int
) -> dict[Place, int]:
    """Return offsets from which each partition has all changes after the seq `after`, and few changes before it."""
    low, high = dict(begins), {place: max(ends[place], begin) for place, begin in begins.items()}
    while wide := {place: (low[place] + high[place]) // 2 for place in low if high[place] - low[place] > _NEAR}:
        found = first_events(consumer, owner, wide)
        for place, middle in wide.items():
            offset, seq = found.get(place, (middle, after + 1))
            if seq > after:
                high[place] = middle
            else:
                low[place] = offset + 1
    return low


def check_error(topic: str | None, error: KafkaError, known: str | None) -> str:
    """Return the current problem while reading continues: the `known` one, or this error.

    Raise an error if reading can't continue.
    """
    if error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
        raise ConnectionLostError(f"{topic} no longer has the messages at the reader's offset: {error.str()}")
    if not error.retriable() and error.code() not in (
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        *_UNKNOWN,
    ):
        raise reading_error(error, f"{topic} can't be read")
    return known if known is not None else error.str()


class ControlEvents(Protocol):
    """Receiver of the snapshot and schema records' contents."""

    snapshots_offset: int
    """Offset up to which `<prefix>.snapshot` was read, also by an earlier process; 0: never."""

    def swept(self, seq: int, offset: int) -> None:
        """Keys up to `seq` may have been removed unnamed, as reported by the record before `offset`."""

    def renamed(self, renaming: Renaming) -> None:
        """A space was renamed."""

    def lost(self, seq: int) -> None:
        """Changes up to `seq` are on no topic."""

    def snapshots_read(self, offset: int) -> None:
        """`<prefix>.snapshot` was read up to `offset`."""

    def snapshots_missed(self) -> None:
        """Records after `snapshots_offset` are no longer on the topic."""


class LiveReader(TopicThread):
    """Thread that delivers all changes after a given one, until it is stopped."""

    def __init__(
        self,
        source: Topics,
        changes: Changes,
        after: int,
        deliver: Callable[[Batch], None],
        *,
        control_events: ControlEvents | None = None,
        on_end: Callable[[CdcError | None], None] = lambda _: None,
    ) -> None:
        """`deliver` may block, which holds back the reading. `on_end` is called with the error that ended the thread, or None.

        Without `control_events` the reader serves one client alone, and ends with ExpiredError if changes are missing.
        With `control_events` it logs and reports missing changes, and continues after them.
        """
        super().__init__("tap-live", "the topics can't be read, retrying", on_end)
        self._source = source
        self._changes = changes
        self._merger = Merger(after)
        self._deliver = deliver
        self._control_events = control_events
        if control_events is None:
            self._waiting_bytes_max = _FOR_ONE_BYTES
        self._control_places: set[Place] = set()
        self.lost_count = 0
        self.malformed_count = 0
        self.is_at_end = False
        """Whether the thread has once read all messages that the topics had."""
        self._counts: dict[str, int] = {}
        self._begun: set[Place] = set()
        self._hole_since = 0.0
        self._heads: dict[Place, int] = {}
        self._ended: dict[Place, int] = {}

    @property
    def seq(self) -> int:
        """Seq of the last delivered change."""
        return self._merger.next_seq - 1

    @property
    def is_stopping(self) -> bool:
        """Whether the thread was asked to stop: `deliver` must then stop waiting."""
        return self._stopping.is_set()

    def _follow(self) -> None:
        source = self._source
        admin = source.clients.admin()
        listed = source.listed(admin)
        self._changes.name = source.name
        self._counts = listed.rows
        begins = source.begins(admin, self._counts)
        open_, closed = open_partitions(admin, self._counts) if begins else ({}, {})
        ahead = AHEAD_BYTES if self._control_events is not None else _FOR_ONE_BYTES
        consumer = source.clients.consumer("read_committed", ahead)
        reach = source.reach(consumer)
        try:
            starts = locate(consumer, source.whose, begins, {**open_, **closed}, self._merger.next_seq - 1)
            if self._control_events is not None:
                starts |= self._control_starts(admin, listed.controls, self._control_events)
            consumer.assign([TopicPartition(*place, start) for place, start in starts.items()])
            self._paused.clear()
            self._heads.clear()
            self._ended.clear()
            self._begun = set(starts)
            self.is_at_end = not starts
            looked_at = time.monotonic()
            while not self._stopping.is_set():
                self._take(self._consume(consumer, reach))
                self._hold_back(consumer, self._merger.waiting_bytes, self._heads, self._merger.next_seq)
                now = time.monotonic()
                if now - looked_at > (TOPICS_SECONDS if not self._merger.hole else HOLE_TOPICS_SECONDS):
                    looked_at = now
                    self._refresh_partitions(admin, consumer)
                    self._look_at_hole(admin, now)
        finally:
            consumer.close()

    def _control_starts(self, admin: Admin, places: set[Place], control_events: ControlEvents) -> dict[Place, int]:
        """Return the offsets to read control records from. Their contents are reported again each time."""
        self._control_places = places
        starts = begins_of(admin, places)
        place, known = (self._source.snapshots, 0), control_events.snapshots_offset
        if known and (place not in starts or starts[place] > known or written_ends(admin, {place[0]: 1})[place] < known):
            control_events.snapshots_missed()
        return starts

    def _take(self, messages: list[Message]) -> None:
        numbered: list[tuple[int, EventChanges]] = []
        append, of, heads = numbered.append, self._changes.of, self._heads
        controls = (self._source.snapshots, self._source.schemas)
        for message in messages:
            error = message.error()
            if error is not None:
                self._take_error(message, error)
                continue
            topic = message.topic()
            if topic in controls:
                self._take_control(topic, message.value() or b"", (message.offset() or 0) + 1)
                continue
            try:
                found = of(message.key(), message.value())
            except MalformedError as problem:
                self.malformed_count += 1
                if self.malformed_count == 1:
                    self._log.warning(
                        "a message that can't be decoded was skipped",
                        topic=message.topic(),
                        offset=message.offset(),
                        why=str(problem),
                    )
                continue
            if found is not None:
                append(found)
                heads[topic, message.partition()] = found[0]  # type: ignore[index]  # a message has both
        if messages:
            self._clear_error()
        self._merger.add(numbered)
        while (batch := self._merger.take()) is not None:
            self._hole_since = 0.0
            self._deliver(batch)
            if self._stopping.is_set():
                return

    def _take_control(self, topic: str, value: bytes, offset: int) -> None:
        assert self._control_events is not None
        if topic == self._source.schemas:
            news = renamed(value)
            if news is not None:
                self._control_events.renamed(news)
            return
        seq = swept_at(value)
        if seq is not None:
            self._control_events.swept(seq, offset)

    def _take_error(self, message: Message, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            place, offset = _place(message), message.offset() or 0
            self._ended[place] = offset
            if self._control_events is not None and place[0] == self._source.snapshots:
                self._control_events.snapshots_read(offset)
            if not self.is_at_end:
                self.is_at_end = self._begun <= self._ended.keys()
        else:
            self.error = check_error(message.topic(), error, self.error)

    def _refresh_partitions(self, admin: Admin, consumer: Consumer) -> None:
        counts, places = self._source.listed(admin)
        self._changes.name = self._source.name
        if self._control_events is not None and places - self._control_places:
            added = begins_of(admin, places - self._control_places)
            self._control_places = places
            consumer.incremental_assign([TopicPartition(*place, offset) for place, offset in added.items()])
        if counts == self._counts:
            return
        new = {(name, number) for name, count in counts.items() for number in range(self._counts.get(name, 0), count)}
        gone = {(name, number) for name, count in self._counts.items() for number in range(counts.get(name, 0), count)}
        self._counts = counts
        if gone:
            consumer.incremental_unassign([TopicPartition(*place) for place in gone])
            for place in gone:
                self._heads.pop(place, None)
                self._ended.pop(place, None)
        if new:
            begins = begins_of(admin, new)
            consumer.incremental_assign([TopicPartition(*place, offset) for place, offset in begins.items()])

    def _look_at_hole(self, admin: Admin, now: float) -> None:
        """If a seq has been missing for long, find out whether it can still arrive.

        If it can't, skip it or raise ExpiredError.
        """
        if not self._merger.hole:
            self._hole_since = 0.0
            return
        if not self._hole_since:
            self._hole_since = now
        if now - self._hole_since < HOLE_SECONDS:
            return
        open_, ends = open_partitions(admin, self._counts)
        if open_:
            return  # an open transaction keeps readers from the messages after it
        if any(self._ended.get(place, -1) < end for place, end in ends.items() if place not in self._paused):
            return  # the change may still arrive
        first = self._merger.next_seq
        if self._control_events is None:
            raise ExpiredError(f"the changes from {first} on aren't on the topics any more")
        first, last = self._merger.skip()
        self.lost_count += last - first + 1
        self._hole_since = 0.0
        self._log.error("changes are missing on all topics: messages or a topic were deleted", first=first, last=last)
        self._control_events.lost(last)
