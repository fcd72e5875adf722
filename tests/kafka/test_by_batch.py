"""Messages by the batch, past confluent_kafka: what comes of them is the same as one by one. The brokers are librdkafka's own."""

from __future__ import annotations

import gc
import importlib
import random
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from cdc import native
from cdc.config import KafkaSection
from cdc.errors import PublishAborted, PublishError
from cdc.kafka.by_batch import BatchProducer, by_batch
from cdc.kafka.clients import KafkaClients
from cdc.kafka.delivery import ExactlyOnce
from cdc.kafka.sender import Sender
from cdc.positions.position import Position
from cdc.protocol.constants import Key, Type
from cdc.schema.forms import StoredSpace
from cdc.stream.batches.batch import Batch, Broadcast, Message, Part
from tests.fakes import wire
from tests.fakes.pipelines import NOW_US, frames_of, pipeline
from tests.stream.test_batch_sizes import BEGIN

pytestmark = pytest.mark.skipif(native.ROW_PATH == "python", reason=native.REASON)

PARTITIONS = 4
Found = dict[tuple[str, int], list[tuple[bytes | None, bytes | None]]]


def settings(**more: Any) -> dict[str, Any]:
    """Of a producer that is its own cluster."""
    return {"test.mock.num.brokers": 1, "partitioner": "murmur2_random", "log_level": 0, "linger.ms": 1, **more}


def contents(producer: Producer, topics: list[str], count: int) -> Found:
    """What the partitions hold once so many messages are in them."""
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    consumer = Consumer(
        {
            "bootstrap.servers": f"{broker.host}:{broker.port}",
            "group.id": "x",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_uncommitted",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for topic in topics for number in range(PARTITIONS)])
    found: Found = defaultdict(list)
    for _ in range(count):
        message = consumer.poll(20)
        assert message is not None, "a message is missing"
        assert message.error() is None
        topic, partition = message.topic(), message.partition()
        assert topic is not None
        assert partition is not None
        found[topic, partition].append((message.key(), message.value()))
    consumer.close()
    return found


def one_by_one(parts: Sequence[Part], topics: list[str]) -> Found:
    """What confluent_kafka's own way comes to."""
    producer = Producer(settings())
    for part in parts:
        assert isinstance(part, tuple)
        topic, key, value = part
        producer.produce(topic, value, key)
    assert producer.flush(20) == 0
    return contents(producer, topics, len(parts))


def compiled_parts(count: int) -> list[Part]:
    """What the compiled path makes of transactions, each on two topics."""
    spaces = [
        StoredSpace(
            number,
            [number, 1, name, "memtx", 0, {}, [{"name": "id", "type": "unsigned"}]],
            {0: [number, 0, "pk", "tree", {}, [[0, "unsigned"]]]},
            1,
        )
        for number, name in ((512, "users"), (513, "pets"))
    ]
    target = pipeline(BEGIN, spaces, version=(2, 11), tombstones=True)
    frames = b"".join(
        wire.frame(
            {Key.REQUEST_TYPE: kind, Key.REPLICA_ID: 1, Key.LSN: lsn, Key.TIMESTAMP: 2.0},
            {Key.SPACE_ID: 512 + lsn % 2, **({Key.KEY: [lsn]} if kind == Type.DELETE else {Key.TUPLE: [lsn, "x" * (lsn % 9)]})},
        )
        for lsn in range(11, 11 + count)
        for kind in (Type.DELETE if lsn % 5 == 0 else Type.INSERT,)
    )
    return [part for batch in target.feed(frames_of(frames), NOW_US) for part in batch.parts]


@pytest.fixture
def producer() -> Iterator[BatchProducer]:
    made = BatchProducer(settings())
    yield made
    made.purge()
    made.flush(1)


def messages(topic: str, count: int) -> list[Part]:
    return [(topic, f"key {number}".encode(), f"{topic} {number}".encode() * (number % 7)) for number in range(count)]


def test_they_come_where_they_come_one_by_one(producer: BatchProducer) -> None:
    """More than one call takes, two topics in turns, a tombstone, an empty value, and an empty key among them."""
    parts: list[Part] = [part for pair in zip(messages("a", 1500), messages("b", 1500), strict=True) for part in pair]
    parts += [*messages("a", 700), ("b", b"key 3", None), ("b", b"", b"empty"), ("a", "schlüssel".encode(), b"")]
    taken = by_batch(producer)
    assert taken is not None
    assert taken.produce(parts, 0, 0) == (len(parts), 0, 0)
    assert producer.flush(20) == 0
    whole = contents(producer, ["a", "b"], len(parts))
    assert whole == one_by_one(parts, ["a", "b"])
    assert len(whole) == 2 * PARTITIONS


def test_what_the_compiled_path_has_made_needs_no_message_of_pythons(producer: BatchProducer) -> None:
    made = compiled_parts(2000)
    assert any(isinstance(part, native.choose("CompiledMessages", tuple)) for part in made)
    parts: list[Part] = [*messages("shop.users", 5), *made, *messages("shop.pets", 5)]
    each = Batch(parts, 0, 0, 0, Position(), True, {}, [], 0.0).messages
    assert len(each) > 2000
    taken = by_batch(producer)
    assert taken is not None
    assert taken.produce(parts, 0, 0) == (len(parts), 0, 0)
    assert producer.flush(20) == 0
    topics = ["shop.users", "shop.pets"]
    assert contents(producer, topics, len(each)) == one_by_one(each, topics)


def test_it_goes_on_within_what_the_compiled_path_has_made() -> None:
    """Where the queue was full, message by message: none is left out, none comes twice."""
    producer = BatchProducer(settings(**{"queue.buffering.max.messages": 7}))
    taken = by_batch(producer)
    assert taken is not None
    parts = compiled_parts(60)
    each = Batch(parts, 0, 0, 0, Position(), True, {}, [], 0.0).messages
    place = start, within = 0, 0
    while start < len(parts):
        start, within, code = taken.produce(parts, start, within)
        assert code == 0
        assert (start, within) >= place
        place = start, within
        producer.flush(1)
    topics = ["shop.users", "shop.pets"]
    assert contents(producer, topics, len(each)) == one_by_one(each, topics)


def test_it_ends_in_front_of_what_is_for_a_producer_itself(producer: BatchProducer) -> None:
    parts: list[Part] = [*messages("a", 3), Broadcast("a", b"t"), *messages("a", 2)]
    taken = by_batch(producer)
    assert taken is not None
    assert taken.produce(parts, 0, 0) == (3, 0, 0)
    assert taken.produce(parts, 3, 0) == (3, 0, 0)
    assert taken.produce(parts, 4, 0) == (6, 0, 0)
    assert taken.produce([], 0, 0) == (0, 0, 0)
    assert producer.flush(20) == 0
    assert contents(producer, ["a"], 5) == one_by_one([*messages("a", 3), *messages("a", 2)], ["a"])


def test_a_full_queue_ends_it_and_nothing_behind_is_taken() -> None:
    producer = BatchProducer(settings(**{"queue.buffering.max.messages": 700, "linger.ms": 60_000}))
    taken = by_batch(producer)
    assert taken is not None
    all_ = messages("a", 2000)
    assert taken.produce(all_, 0, 0) == (700, 0, 0)
    assert taken.produce(all_, 700, 0) == (700, 0, 0)
    assert producer.flush(20) == 0
    assert taken.produce(all_, 700, 0) == (1400, 0, 0)
    assert producer.flush(20) == 0
    assert contents(producer, ["a"], 1400) == one_by_one(all_[:1400], ["a"])


def test_a_message_that_is_refused_before_others_is_told() -> None:
    """Those were taken, so that nobody may try it again: only an abort helps."""
    producer = BatchProducer(settings(**{"message.max.bytes": 2000}))
    taken = by_batch(producer)
    assert taken is not None
    large: Part = ("a", b"k", bytes(3000))
    assert taken.produce([*messages("a", 3), large, *messages("a", 2)], 0, 0) == (3, 0, KafkaError.MSG_SIZE_TOO_LARGE)
    # Behind the last one there is nothing that could be lost: who asks for it alone is told why.
    assert taken.produce([*messages("a", 3), large], 0, 0) == (3, 0, 0)
    producer.purge()


def test_a_producer_that_has_ended_takes_nothing() -> None:
    producer = BatchProducer(settings())
    taken = by_batch(producer)
    assert taken is not None
    del producer
    gc.collect()
    with pytest.raises(RuntimeError, match="has ended"):
        taken.produce(messages("a", 1), 0, 0)


def test_each_producer_has_its_own() -> None:
    one, two = BatchProducer(settings()), BatchProducer(settings())
    taken = by_batch(two)
    assert taken is not None
    taken.produce(messages("a", 4), 0, 0)
    assert not len(one)
    assert two.flush(20) == 0
    assert contents(two, ["a"], 4) == one_by_one(messages("a", 4), ["a"])
    assert by_batch(Producer(settings())) is None


@pytest.mark.parametrize("is_told", [True, False])
def test_one_that_was_made_before_is_not_taken_for_its_own(monkeypatch: pytest.MonkeyPatch, *, is_told: bool) -> None:
    """Somebody else may have made a producer with this plug-in, and librdkafka may not tell of the next one."""
    module = importlib.import_module("cdc._native")
    earlier = Producer(settings(**{"plugin.library.paths": module.__file__}))
    settled: dict[str, Any] = settings()
    if not is_told:
        monkeypatch.setattr(native, "plug_in", lambda _: SimpleNamespace(ProducerHandle=module.ProducerHandle, __file__=""))
    producer = BatchProducer(settled)
    taken = by_batch(producer)
    assert (taken is not None) == is_told
    if taken is not None:
        taken.produce(messages("a", 2), 0, 0)
        assert producer.flush(20) == 0
        assert contents(producer, ["a"], 2) == one_by_one(messages("a", 2), ["a"])
    assert not len(earlier)


def test_plug_ins_that_are_configured_are_kept(tmp_path: Path) -> None:
    other = tmp_path / "other.so"
    shutil.copy(importlib.import_module("cdc._native").__file__ or "", other)
    producer = BatchProducer(settings(**{"plugin.library.paths": str(other)}))
    taken = by_batch(producer)
    assert taken is not None
    assert taken.produce(messages("a", 3), 0, 0) == (3, 0, 0)
    assert producer.flush(20) == 0
    with pytest.raises(KafkaException, match="nowhere"):
        BatchProducer(settings(**{"plugin.library.paths": f"{other};/nowhere/x.so"}))


@pytest.mark.parametrize("is_by_batch", [True, False])
def test_the_daemon_publishes_in_order_around_broadcasts_and_through_a_full_queue(*, is_by_batch: bool) -> None:
    properties: dict[str, str | int | float | bool] = {
        "test.mock.num.brokers": 1,
        "allow.auto.create.topics": "true",
        "queue.buffering.max.messages": 100,
        "linger.ms": 1,
    }
    section = KafkaSection(bootstrap_servers="127.0.0.1:1", topic_prefix="x", properties=properties)
    producer = KafkaClients("x", section).transactional(lambda _: None, 60_000)
    assert isinstance(producer, BatchProducer)
    assert producer.by_batch is not None
    if not is_by_batch:
        producer.by_batch = None
    delivery = ExactlyOnce(producer, lambda: False, nullcontext(), "x.checkpoint")
    delivery.start()
    before, after = [*messages("shop.users", 300), *compiled_parts(900)], messages("shop.users", 900)
    delivery.produce(Batch([*before, Broadcast("shop.users", b"t"), *after], 0, 0, 0, Position(), True, {}, [], 0.0))
    assert set(delivery.commit([(b"k", b"v")])) == {"shop.users", "shop.pets", "x.checkpoint"}
    first, last = pairs(before), pairs(after)
    found = contents(producer, ["shop.users"], len(first) + len(last) + PARTITIONS)
    assert len(found) == PARTITIONS
    for log in found.values():
        middle = log.index((None, b"t"))
        assert log[:middle] == [pair for pair in first if pair in log[:middle]]
        assert log[middle + 1 :] == [pair for pair in last if pair in log[middle + 1 :]]


class Sparing:
    """Takes as many messages as it is told at each call, none of them really, and says that it takes no more."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = iter(counts)
        self.taken: list[Message | Broadcast] = []

    def produce(self, parts: list[Part], start: int, within: int) -> tuple[int, int, int]:
        """As `ByBatch.produce`."""
        for _ in range(next(self._counts)):
            if start == len(parts) or isinstance(parts[start], Broadcast):
                break
            part = parts[start]
            assert not isinstance(part, Broadcast)
            self.taken.append(part if isinstance(part, tuple) else part[within])
            within += 1
            if isinstance(part, tuple) or within == len(part):
                start, within = start + 1, 0
        return start, within, 0


def begun(properties: dict[str, str | int | float | bool]) -> tuple[BatchProducer, ExactlyOnce]:
    """A producer that is its own cluster, and a delivery with it that has begun."""
    more = {"test.mock.num.brokers": 1, "allow.auto.create.topics": "true", **properties}
    section = KafkaSection(bootstrap_servers="127.0.0.1:1", topic_prefix="x", properties=more)
    producer = KafkaClients("x", section).transactional(lambda _: None, 60_000)
    assert isinstance(producer, BatchProducer)
    delivery = ExactlyOnce(producer, lambda: False, nullcontext(), "x.checkpoint")
    delivery.start()
    return producer, delivery


@pytest.mark.parametrize("seed", range(5))
def test_what_is_taken_neither_by_the_batch_nor_refused_goes_by_itself(seed: int) -> None:
    """Where the queue has room again in the meantime, anywhere within a part: nothing is passed over, nothing comes twice."""
    some = random.Random(seed)
    sparing = Sparing([some.choice([0, 0, 1, 2, 50]) for _ in range(5000)])
    sender = Sender(BatchProducer(settings()), lambda: False, nullcontext())
    parts = [*messages("shop.users", 3), *compiled_parts(300), *messages("shop.pets", 3)]
    taken: list[Message | Broadcast] = []
    sparing.taken = taken  # in the order of both ways

    def produce(topic: str, value: bytes | None, key: bytes | None) -> None:
        taken.append((topic, key, value))

    sender._by_batch = sparing
    sender._producer = SimpleNamespace(produce=produce, poll=lambda _: 0)  # type: ignore[assignment]  # what is asked of it
    sender._put(parts)
    assert taken == Batch(parts, 0, 0, 0, Position(), True, {}, [], 0.0).messages


def test_the_topics_of_what_the_compiled_path_has_made_are_written_to() -> None:
    """Readers are awaited in them (cdc.kafka.readability)."""
    producer, delivery = begun({})
    compiled: list[Part] = [part for part in compiled_parts(300) if not isinstance(part, tuple)]
    delivery.produce(Batch(compiled, 0, 0, 0, Position(), True, {}, [], 0.0))
    assert set(delivery.commit([(b"k", b"v")])) == {"shop.users", "shop.pets", "x.checkpoint"}
    assert not len(producer)


def test_a_message_that_is_refused_in_the_middle_ends_the_transaction_and_is_named() -> None:
    producer, delivery = begun({})
    large: Part = ("shop.pets", b"k", bytes(section_bytes_max() + 1))
    parts: list[Part] = [*messages("shop.pets", 3), large, *messages("shop.pets", 2)]
    with pytest.raises(PublishError, match=r"a message for shop\.pets was refused: .*too large"):
        delivery.produce(Batch(parts, 0, 0, 0, Position(), True, {}, [], 0.0))
    producer.purge()


def section_bytes_max() -> int:
    """How large a message may be by default."""
    return KafkaSection(bootstrap_servers="127.0.0.1:1", topic_prefix="x").message_bytes_max


@pytest.mark.parametrize("is_by_batch", [True, False])
def test_a_stop_does_not_wait_for_room_in_the_queue(*, is_by_batch: bool) -> None:
    producer = BatchProducer(settings(**{"queue.buffering.max.messages": 2, "linger.ms": 60_000}))
    if not is_by_batch:
        producer.by_batch = None
    with pytest.raises(PublishAborted, match="the producer's queue was full"):
        Sender(producer, lambda: True, nullcontext())._put(messages("a", 3))
    assert len(producer) == 2
    producer.purge()


END = """
import threading
from cdc.kafka.by_batch import BatchProducer, by_batch
producer = BatchProducer({"test.mock.num.brokers": 1, "log_level": 0, "queue.buffering.max.messages": 1_000_000})
taken, parts, has_begun = by_batch(producer), [("a", b"k", b"v")] * 20_000, threading.Event()
def work():
    while True:
        taken.produce(parts, 0, 0)
        producer.purge()
        has_begun.set()
threading.Thread(target=work, daemon=True).start()
has_begun.wait()
raise SystemExit(3)
"""


def test_a_thread_that_is_left_at_work_does_not_abort_the_process() -> None:
    """Its exit status is told, whatever the publisher's thread is at."""
    ended = subprocess.run([sys.executable, "-c", END], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (3, "")


def pairs(parts: list[Part]) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of one topic."""
    each = Batch(parts, 0, 0, 0, Position(), True, {}, [], 0.0).messages
    return [part[1:] for part in each if isinstance(part, tuple) and part[0] == "shop.users"]
