"""Hanging transactions: Kafka considers them ended, but some of their partitions never got the end marker.

A coordinator records that a transaction is committed or aborted, then has a marker written to each of its partitions. Kafka
4.3.1 skips the marker of a partition that has no leader at that moment, as it considers the partition deleted (KAFKA-20734;
"these partitions are likely deleted already and hence can be skipped"). This was seen when a killed broker came back and wrote
the missing markers. It was also seen when a partition's only broker had been silent for longer than its session, or was killed
between the last message and the commit. The commit succeeds nevertheless, and the partition's messages hang:

    coordinator     PREPARE_COMMIT * killed        "complete"   ▶ init_transactions succeeds
    partition       … data ─────────────────────────────────────▶ no marker: a read_committed consumer stops before `data`,
                                                                  until the same producer's next marker commits or aborts it

Only the same producer can end hanging messages, with the next transaction that it ends in that partition. A commit makes them
readable; an abort loses committed messages. After the first write of a transaction, an abort can't be excluded: Kafka may refuse
a part of the transaction, the transaction may time out, and if the process is killed, the init_transactions of its successor
aborts the transaction. Therefore the daemon writes nothing before it has seen that the last commit is readable
(cdc.kafka.readability, cdc.stream.commits.unseen):

    commit N ──"complete"──▶ check: can consumers read every partition that N wrote to, to its end? ──yes──▶ N+1 begins to write
                              ▲                │ no                     │ no, after MARKERS_SECONDS with a leader
                              │                ▼                        ▼
                              └── a partition has no leader:     a transaction with nothing but filler records,
                                  wait until it has one          in the partitions where N hangs, is committed
                                                                     * killed here, init_transactions aborts it, and N with it

The remaining risk is that filler transaction. It begins when all its partitions have leaders, and takes a few milliseconds. The
hanging messages are lost only if the filler transaction is aborted: its process is killed in these milliseconds, or a leader is
unavailable for as long as a transaction may take. (A kill before the filler transaction loses nothing: where N hangs, no
transaction is open then, so init_transactions aborts nothing there, and the next process finds N hanging. After a kill that
follows the filler transaction, N is readable.)

A daemon that returns to its checkpoint, at a start or after an abort, doesn't know which commits were seen to be readable. It
checks whether consumers can read all its partitions to their real ends. If they can't, the daemon claims its transactional id
again, and ends the hanging messages with a filler transaction.

The daemon commits or aborts the filler transaction by these rules:
- If the checkpoint itself hangs, the partitions that got their markers decide. If one of them has an event newer than the
  checkpoint, or the record of a transaction after it, the transaction was committed. If none has, no consumer has seen any of it,
  and it may be aborted, unless the daemon's process or store knows that it was committed.
- If the checkpoint doesn't hang, it decides itself: hanging events that are newer than the checkpoint were aborted.

Topics with the daemon's prefix may belong to others: the topics of a daemon `shop.eu` begin with `shop.` too, and anybody may
write to them. The names of the daemon's spaces can't tell which topics are its own, as a hanging event may be the first one of a
new space. Therefore the hanging messages decide: a partition is this daemon's if it belongs to one of its control topics, or if
it contains a hanging event of this daemon.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # it is documented

from cdc.errors import ConnectionLostError
from cdc.formats.reading import source_of
from cdc.kafka.errors import reading_error
from cdc.positions.numbers import Numbers
from cdc.positions.vclock import VClock
from cdc.stream.commits import unseen

FILLER_KEY: Final = b'{"name":""}'
"""Key of the filler records, which have no value. No row and no daemon uses this key."""

_TIMEOUT_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
_TAIL_OFFSETS: Final = 16
"""Number of offsets before a partition's end that are searched for its newest event. Markers and tombstones use offsets, too."""

Place = unseen.Place


class Whose(NamedTuple):
    """Origin of one daemon's events: `source.name`, and `source.shard` if the daemon is one of a fleet's."""

    name: str
    shard: str | None = None

    def made(self, source: Mapping[str, Any]) -> bool:
        """Return whether a source is one of the daemon's. A flat event doesn't say whose it is, as its topic has one writer."""
        return "name" not in source or (source["name"], source.get("shard")) == self


def open_partitions(admin: AdminClient, partition_counts: Mapping[str, int]) -> tuple[dict[Place, int], dict[Place, int]]:
    """Return the partitions with an open transaction and its first offset, and the other partitions with their ends.

    Raises ConnectionLostError.
    """
    places = [(topic, number) for topic, count in partition_counts.items() for number in range(count)]
    written = _ends(admin, places, IsolationLevel.READ_UNCOMMITTED)
    # Requested after the ends, so that a sign of life written in between doesn't look like an open transaction.
    committed = _ends(admin, places, IsolationLevel.READ_COMMITTED)
    open_ = {place: committed[place] for place in places if committed[place] < written[place]}
    return open_, {place: committed[place] for place in places if committed[place] >= written[place]}


def first_offsets(admin: AdminClient, places: Iterable[Place]) -> dict[Place, int]:
    """Return the first offsets of partitions. Raises ConnectionLostError."""
    return _offsets(admin, places, IsolationLevel.READ_UNCOMMITTED, OffsetSpec.earliest())  # type: ignore[no-untyped-call]


def still_open(admin: AdminClient, partition_counts: Mapping[str, int], patience_seconds: float) -> dict[Place, int]:
    """Return the partitions with a transaction that stays open for `patience_seconds`, with their last stable offsets.

    Raises ConnectionLostError.
    """
    places = [(topic, number) for topic, count in partition_counts.items() for number in range(count)]
    # Transactions that begin after this point don't count: topics may be shared with another daemon.
    written = _ends(admin, places, IsolationLevel.READ_UNCOMMITTED)
    deadline = time.monotonic() + patience_seconds
    while True:
        committed = _ends(admin, places, IsolationLevel.READ_COMMITTED)
        places = [place for place in places if committed[place] < written[place]]
        if not places or time.monotonic() > deadline:
            return {place: committed[place] for place in places}
        time.sleep(_POLL_SECONDS)


def newest_seq(consumer: Consumer, whose: Whose, ends: Mapping[Place, int]) -> int:
    """Return the highest `seq` of the last events that one daemon wrote to the partitions with these ends; 0 if there are none.

    Only events that are `whose` count. The `consumer` must be read_committed and report the ends of
    partitions (`enable.partition.eof`); it is closed. Raises ConnectionLostError.
    """
    return max(newest_seqs(consumer, whose, ends).values(), default=0)


def newest_seqs(consumer: Consumer, whose: Whose, ends: Mapping[Place, int]) -> dict[str, int]:
    """Return the highest `seq` of these events in each topic, without topics that have none; otherwise as `newest_seq`."""
    starts = {place: max(0, end - _TAIL_OFFSETS) for place, end in ends.items() if end}
    found: dict[str, int] = {}
    for (topic, _), seq in _events(consumer, whose, starts):
        found[topic] = max(seq, found.get(topic, 0))
    return found


def newest_seq_since(admin: AdminClient, consumer: Consumer, whose: Whose, ends: Mapping[Place, int], ts_ms: int) -> int:
    """Return the highest `seq` of those of one daemon's events before these ends that aren't older than this time.

    For partitions that others write to all the time: its newest events may be far from the ends. Otherwise as `newest_seq`.
    """
    found = _offsets(admin, ends, IsolationLevel.READ_COMMITTED, OffsetSpec.for_timestamp(ts_ms))
    starts = {place: offset for place, offset in found.items() if 0 <= offset < ends[place]}
    return max((seq for _, seq in _events(consumer, whose, starts)), default=0)


def shows_transaction_after(consumer: Consumer, ends: Mapping[Place, int], vclock: VClock) -> bool:
    """Return whether one of the last records of transactions before these ends is of one that `vclock` doesn't cover.

    For the topic of these records; otherwise as `newest_seq`.
    """
    starts = {place: max(0, end - _TAIL_OFFSETS) for place, end in ends.items() if end}
    values = [message.value() for _, message in _messages(consumer, starts, set(starts))]
    return any(value is not None and _is_after(value, vclock) for value in values)


def _is_after(value: bytes, vclock: VClock) -> bool:
    """Return whether a record is about a transaction that this position doesn't cover; False if it is somebody else's."""
    try:
        origin, lsn = map(int, json.loads(value)["id"].split(":"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return lsn > vclock[origin]


def newest_numbers(consumer: Consumer, whose: Whose, ends: Mapping[Place, int]) -> Numbers:
    """Return the highest numbers of the last events that one daemon wrote to the partitions with these ends, as `newest_seq`."""
    starts = {place: max(0, end - _TAIL_OFFSETS) for place, end in ends.items() if end}
    found = Numbers()
    for _, source in _sources(consumer, whose, starts):
        found |= _numbers_of(source)
    return found


def newest_hanging_seq(consumer: Consumer, whose: Whose, starts: Mapping[Place, int]) -> int:
    """Return the highest `seq` of the daemon's hanging events from these offsets on; 0 if there are none.

    The `consumer` must be read_uncommitted and report the ends of partitions; it is closed. Raises ConnectionLostError.
    """
    return max((seq for _, seq in _events(consumer, whose, starts)), default=0)


def written_by(consumer: Consumer, whose: Whose, starts: Mapping[Place, int]) -> set[Place]:
    """Return the partitions with a record of one daemon from these offsets on; consumer and errors as in `newest_hanging_seq`."""
    return {place for place, _ in _events(consumer, whose, starts, is_first_enough=True)}


def seq_of(key: bytes | None, value: bytes | None, whose: Whose) -> int | None:
    """Return the `seq` of an event of one daemon, 0 for a filler record, and None for any other record."""
    source = _source_of(key, value, whose)
    return source["seq"] if source is not None else None


def _source_of(key: bytes | None, value: bytes | None, whose: Whose) -> dict[str, Any] | None:
    """Return the `source` of an event of one daemon, a seq of 0 for a filler record, and None for any other record."""
    if value is None:
        return {"seq": 0} if key == FILLER_KEY else None
    source = source_of(value)
    is_own = source is not None and whose.made(source) and type(source.get("seq")) is int
    return source if is_own else None


def _numbers_of(source: Mapping[str, Any]) -> Numbers:
    with contextlib.suppress(ValueError, TypeError):  # a record by somebody else that looks like an event
        return Numbers(source["seq"], int(source.get("snapshot_id", 0)), int(source.get("schema_version", 0)))
    return Numbers(source["seq"])


def last_writers(consumer: Consumer, ends: Mapping[Place, int]) -> dict[str, set[Whose | None]]:
    """Return, by topic, whose the last records before these ends are; None stands for records that don't say it.

    Records without a value, and flat events, say nothing. Consumer and errors as in `newest_seq`.
    """
    starts = {place: max(0, end - _TAIL_OFFSETS) for place, end in ends.items() if end}
    found: dict[str, set[Whose | None]] = {topic: set() for topic, _ in ends}
    for place, message in _messages(consumer, starts, set(starts)):
        value = message.value()
        if value is not None:
            source = source_of(value) or {"name": None}
            if "name" in source:
                name, shard = source["name"], source.get("shard")
                found[place[0]].add(Whose(name, shard if isinstance(shard, str) else None) if isinstance(name, str) else None)
    return found


def _events(
    consumer: Consumer, whose: Whose, starts: Mapping[Place, int], *, is_first_enough: bool = False
) -> list[tuple[Place, int]]:
    found = _sources(consumer, whose, starts, is_first_enough=is_first_enough)
    return [(place, source["seq"]) for place, source in found]


def _sources(
    consumer: Consumer, whose: Whose, starts: Mapping[Place, int], *, is_first_enough: bool = False
) -> list[tuple[Place, dict[str, Any]]]:
    missing = set(starts)
    found: list[tuple[Place, dict[str, Any]]] = []
    for place, message in _messages(consumer, starts, missing):
        source = _source_of(message.key(), message.value(), whose)
        if source is not None:
            found.append((place, source))
            if is_first_enough:
                missing.discard(place)
    return found


def _messages(consumer: Consumer, starts: Mapping[Place, int], missing: set[Place]) -> Iterator[tuple[Place, Message]]:
    """Yield the messages of partitions from these offsets on, until no partition is `missing`.

    A partition that was read to its end isn't missing any more; the caller may remove others. Closes the consumer.
    """
    what = "the ends of partitions can't be read"
    try:
        consumer.assign([TopicPartition(*place, start) for place, start in starts.items()])
        while missing:
            message = consumer.poll(_TIMEOUT_SECONDS)
            if message is None:
                raise ConnectionLostError(
                    f"the ends of {len(missing)} partitions can't be read: no answer for {_TIMEOUT_SECONDS:g} s"
                )
            error, place = message.error(), (message.topic() or "", message.partition() or 0)
            if error is None:
                yield place, message
            elif error.code() == KafkaError._PARTITION_EOF:
                missing.discard(place)
            elif not error.retriable():
                raise reading_error(error, what)
    except KafkaException as error:
        raise reading_error(error.args[0], what) from error
    finally:
        consumer.close()


def written_ends(admin: AdminClient, partition_counts: Mapping[str, int]) -> dict[Place, int]:
    """Return the ends of partitions, uncommitted messages included. Raises ConnectionLostError."""
    places = [(topic, number) for topic, count in partition_counts.items() for number in range(count)]
    return _ends(admin, places, IsolationLevel.READ_UNCOMMITTED)


def _ends(admin: AdminClient, places: Iterable[Place], isolation: IsolationLevel) -> dict[Place, int]:
    return _offsets(admin, places, isolation, OffsetSpec.latest())  # type: ignore[no-untyped-call]


def _offsets(admin: AdminClient, places: Iterable[Place], isolation: IsolationLevel, spec: OffsetSpec) -> dict[Place, int]:
    wanted = {TopicPartition(*place): spec for place in places}
    found = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=_TIMEOUT_SECONDS)
    try:
        return {(place.topic, place.partition): answer.result().offset for place, answer in found.items()}
    except KafkaException as error:
        raise reading_error(error.args[0], "the ends of Kafka's partitions can't be asked for") from error
