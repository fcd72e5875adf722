"""Transactions that Kafka took for ended and never ended.

A coordinator notes that a transaction is committed or aborted, then has a marker written to each partition of it. Kafka 4.3.1
leaves the marker out of a partition that has no leader in that moment, as it takes it for deleted (KAFKA-20734; "these partitions
are likely deleted already and hence can be skipped"). It was seen when a killed broker came back and wrote what was missing, and
when a partition's only broker had fallen silent for its session's time, or was killed between the last message and the commit.
The commit comes through all the same, and what was written hangs:

    coordinator     PREPARE_COMMIT * killed        "complete"   ▶ init_transactions succeeds
    partition       … data ─────────────────────────────────────▶ no marker: a read_committed reader stops before `data`,
                                                                  until the same producer's next marker decides over it

Nobody but the same producer can end what hangs, by the next transaction that it ends in that partition: with a commit well, with
an abort to the loss of what was committed. And an abort can't be excluded once something was written: Kafka may refuse a part of
the transaction, it may take too long, and if its process is killed the next one's init_transactions aborts it. So nothing is
written before the last commit has been seen to be readable (cdc.kafka.readability, cdc.stream.unseen):

    commit N ──"complete"──▶ look: do readers reach the end of every partition that N wrote to? ──yes──▶ N+1 begins to write
                              ▲                │ no                     │ no, after MARKERS_SECONDS with a leader
                              │                ▼                        ▼
                              └── a partition has no leader:     a transaction with nothing but fillers,
                                  wait until it has one          in the partitions where N hangs, is committed
                                                                     * killed here, init_transactions aborts it, and N with it

What is left is that transaction of fillers: it is begun when all its partitions have leaders, and takes a few milliseconds. Only
if it is aborted in these, as its process is killed, or a leader goes away for as long as a transaction may take, is lost what
hangs. (A kill before it loses nothing: where N hangs no transaction is open then, so init_transactions aborts nothing there,
and the next process finds N hanging. A kill behind it finds N readable.)

A daemon that goes back to its checkpoint, by a start or after an abort, doesn't know what was seen: it looks whether all
its partitions can be read to the ends that they really have. If they can't, it takes its name anew, and such a transaction
decides over what hangs there.

Whether to commit or to abort: if the checkpoint itself hangs, the partitions say that did get their markers. An event in
them that is newer than the checkpoint was committed, and so was the rest of its transaction; if there is none, nobody has
seen any of it, and it may as well never have been, unless the daemon's process or store knows that it was committed. If the
checkpoint doesn't hang, it says itself: what hangs and is newer was aborted.

Topics that begin with the daemon's prefix need not be its own: those of a daemon `shop.eu` begin with `shop.` too, and anybody
may write to them. Which are its own can't be told by the names of its spaces, for what hangs may be the first event of a new one.
So it is told by what hangs: a partition is this daemon's if it is one of its control topics', or has an event of its own there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # it is documented

from cdc.errors import ConnectionLostError
from cdc.kafka.errors import reading_error
from cdc.stream import unseen

FILLER_KEY: Final = b'{"name":""}'
"""Key of the records, without a value, that fill such a transaction. No row and no daemon has it."""

_TIMEOUT_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
_TAIL_OFFSETS: Final = 16
"""How far before a partition's end its newest event is looked for: markers and tombstones take offsets, too."""

Place = unseen.Place


def open_partitions(admin: AdminClient, partition_counts: Mapping[str, int]) -> tuple[dict[Place, int], dict[Place, int]]:
    """The partitions that a transaction keeps open, with where it begins, and the others with their ends.

    Raises ConnectionLostError.
    """
    places = [(topic, number) for topic, count in partition_counts.items() for number in range(count)]
    written = _ends(admin, places, IsolationLevel.READ_UNCOMMITTED)
    # Asked for later, so that a sign of life that comes in between doesn't look like a transaction.
    committed = _ends(admin, places, IsolationLevel.READ_COMMITTED)
    open_ = {place: committed[place] for place in places if committed[place] < written[place]}
    return open_, {place: committed[place] for place in places if committed[place] >= written[place]}


def still_open(admin: AdminClient, partition_counts: Mapping[str, int], patience_seconds: float) -> dict[Place, int]:
    """The partitions that stay open, with the offsets where they are; what is open for less than the patience is no matter.

    Raises ConnectionLostError.
    """
    places = [(topic, number) for topic, count in partition_counts.items() for number in range(count)]
    # What is written from here on may be open as long as it likes: topics may be shared with another daemon.
    written = _ends(admin, places, IsolationLevel.READ_UNCOMMITTED)
    deadline = time.monotonic() + patience_seconds
    while True:
        committed = _ends(admin, places, IsolationLevel.READ_COMMITTED)
        places = [place for place in places if committed[place] < written[place]]
        if not places or time.monotonic() > deadline:
            return {place: committed[place] for place in places}
        time.sleep(_POLL_SECONDS)


def newest_seq(consumer: Consumer, name: str, ends: Mapping[Place, int]) -> int:
    """The highest `seq` among the last events that one daemon wrote to partitions with these ends; 0 if none.

    `name` is the events' `source.name`; whatever else there is, is passed over. The `consumer`, of what is committed, is closed.
    Raises ConnectionLostError.
    """
    starts = {place: max(0, end - _TAIL_OFFSETS) for place, end in ends.items() if end}
    return max((seq for _, seq in _events(consumer, name, starts)), default=0)


def newest_hanging_seq(consumer: Consumer, name: str, starts: Mapping[Place, int]) -> int:
    """As `newest_seq`, among the events that hang from these offsets on; the consumer is one of all that is written."""
    return max((seq for _, seq in _events(consumer, name, starts)), default=0)


def written_by(consumer: Consumer, name: str, starts: Mapping[Place, int]) -> set[Place]:
    """The partitions that have something of one daemon's from these offsets on; consumer and errors as `newest_hanging_seq`."""
    return {place for place, _ in _events(consumer, name, starts, is_first_enough=True)}


def seq_of(key: bytes | None, value: bytes | None, name: str) -> int | None:
    """The `seq` of an event of one daemon's, 0 for its filler; None for what anybody else has written, whatever it is."""
    if value is None:
        return 0 if key == FILLER_KEY else None
    try:
        source = json.loads(value)["source"]
        seq = source["seq"] if source["name"] == name else None
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
    return seq if type(seq) is int else None


def _events(
    consumer: Consumer, name: str, starts: Mapping[Place, int], *, is_first_enough: bool = False
) -> list[tuple[Place, int]]:
    missing = set(starts)
    found: list[tuple[Place, int]] = []
    try:
        consumer.assign([TopicPartition(*place, start) for place, start in starts.items()])
        while missing:
            message = consumer.poll(_TIMEOUT_SECONDS)
            if message is None:
                raise ConnectionLostError(
                    f"the ends of {len(missing)} partitions can't be read: no answer for {_TIMEOUT_SECONDS:g} s"
                )
            error, topic, partition = message.error(), message.topic(), message.partition()
            if error is not None and error.code() == KafkaError._PARTITION_EOF and topic is not None and partition is not None:
                missing.discard((topic, partition))
            elif error is not None and not error.retriable():
                raise reading_error(error, "the ends of partitions can't be read")
            elif error is None and topic is not None and partition is not None:
                seq = seq_of(message.key(), message.value(), name)
                if seq is not None:
                    found.append(((topic, partition), seq))
                    if is_first_enough:
                        missing.discard((topic, partition))
    except KafkaException as error:
        raise reading_error(error.args[0], "the ends of partitions can't be read") from error
    finally:
        consumer.close()
    return found


def written_ends(admin: AdminClient, partition_counts: Mapping[str, int]) -> dict[Place, int]:
    """Where partitions end, with what isn't committed. Raises ConnectionLostError."""
    places = [(topic, number) for topic, count in partition_counts.items() for number in range(count)]
    return _ends(admin, places, IsolationLevel.READ_UNCOMMITTED)


def _ends(admin: AdminClient, places: Iterable[Place], isolation: IsolationLevel) -> dict[Place, int]:
    wanted = {TopicPartition(*place): OffsetSpec.latest() for place in places}  # type: ignore[no-untyped-call]
    found = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=_TIMEOUT_SECONDS)
    try:
        return {(place.topic, place.partition): answer.result().offset for place, answer in found.items()}
    except KafkaException as error:
        raise reading_error(error.args[0], "the ends of Kafka's partitions can't be asked for") from error
