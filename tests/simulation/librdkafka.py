"""Kafka's clients, as cdc.kafka.clients makes them: the same calls and errors as confluent_kafka's, on simulated brokers.

What librdkafka promises is kept: messages of a producer arrive in order and once, or their transaction can't be committed; a call
that ran out of time goes on in the background, and the same call again waits for its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # it is documented

from tests.simulation.brokers import Brokers, Entry

_TIMED_OUT: Final = KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True)
_FENCED: Final = KafkaError(KafkaError._FENCED, "Producer fenced by newer instance", fatal=True)
_UNKNOWN: Final = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
_LINGER_SECONDS: Final = 0.005
_RETRY_SECONDS: Final = 0.1
"""librdkafka's retry.backoff.ms."""
_DEFAULT_SECONDS: Final = 60.0


_Queued = tuple[str, int | None, bytes | None, bytes | None, Any]
"""A message in a producer's queue: topic, partition, key, value, and who wants to know."""


class _Client:
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._scheduler = brokers.scheduler
        self._process = self._scheduler.current.process if self._scheduler.current is not None else None

    @property
    def _is_answered_now(self) -> bool:
        """Whether a broker answers this client."""
        return self._brokers.answer(self._process)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Metadata."""
        brokers = self._brokers
        if not brokers.answers(timeout if timeout >= 0 else _DEFAULT_SECONDS):
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "no broker answers"))
        names = list(brokers.topics) if topic is None else [topic]
        found = {
            name: SimpleNamespace(
                error=None if name in brokers.topics else _UNKNOWN,
                partitions={number: SimpleNamespace(replicas=[1]) for number in range(len(brokers.topics.get(name, ())))},
            )
            for name in names
        }
        return SimpleNamespace(topics=found, brokers={1: None}, cluster_id="simulated")

    def close(self) -> None:
        """Nothing has to be let go."""
        self._scheduler.check_alive()


class Producer(_Client):
    """Transactional, idempotent or neither, by its settings."""

    def __init__(self, brokers: Brokers, settings: dict[str, Any]) -> None:
        super().__init__(brokers)
        self._name: str | None = settings.get("transactional.id")
        self._timeout_seconds = settings.get("transaction.timeout.ms", 60_000) / 1000
        self._on_delivery: Callable[[KafkaError | None, Any], None] | None = settings.get("on_delivery")
        lasts = settings.get("message.timeout.ms", 0) / 1000 if self._name is None else 0
        self._message_seconds = lasts or None
        self._is_numbered = self._name is not None or bool(settings.get("enable.idempotence"))
        self._epoch = -1
        self._queue: deque[_Queued] = deque()
        self._is_sending = False
        # Partitions that have taken a batch of this producer, and the refused first batches of others.
        self._begun: set[tuple[str, int]] = set()
        self._refused: dict[tuple[str, int], list[_Queued]] = {}
        self._reports: deque[tuple[Callable[..., None], KafkaError | None, Any]] = deque()
        self._is_open = False
        self._error: KafkaError | None = None
        self._is_unlucky = False
        # The end that was asked for, and whether the answer has come.
        self._ending: bool | None = None
        self._is_answered = False

    # Transactions.

    def init_transactions(self, timeout: float) -> None:
        """Claim the id."""
        assert self._name is not None
        brokers = self._brokers
        deadline = self._scheduler.now + timeout
        if not brokers.answers(timeout):
            raise KafkaException(_TIMED_OUT)
        self._epoch = brokers.claim(self._name)
        self._scheduler.note(f"claims {self._name}, epoch {self._epoch}")
        if not brokers.changed.wait_for(lambda: not brokers.is_busy(self._name or ""), deadline - self._scheduler.now):
            raise KafkaException(_TIMED_OUT)

    def begin_transaction(self) -> None:
        """Begin."""
        self._scheduler.check_alive()
        self._check()
        if self._error is not None:
            raise KafkaException(self._error)
        self._is_open = True

    def commit_transaction(self, timeout: float) -> None:
        """Commit."""
        self._finish(timeout, commit=True)
        self._scheduler.note("commit answered")

    def abort_transaction(self, timeout: float) -> None:
        """Abort."""
        if self._ending is None:
            # Why the transaction can't be committed, if it isn't for its owner.
            self._is_unlucky = self._error is not None
            self._queue.clear()
            self._refused.clear()
            self._error = None
        self._finish(timeout, commit=False)

    def _finish(self, timeout: float, *, commit: bool) -> None:
        scheduler, brokers = self._scheduler, self._brokers
        deadline = scheduler.now + timeout
        self._check()
        if commit and self._error is not None and self._ending is None:
            raise KafkaException(self._aborting(self._error))
        if commit and self.flush(timeout):
            raise KafkaException(_TIMED_OUT)
        self._check()
        if self._error is not None and self._ending is None:
            raise KafkaException(self._aborting(self._error))
        if self._ending is None:
            self._ending, self._is_answered = commit, False
            self._ask_to_end()
        is_over = brokers.changed.wait_for(lambda: self._is_answered or self._is_fenced, deadline - scheduler.now)
        self._check()
        if not is_over:
            raise KafkaException(_TIMED_OUT)
        self._ending = None
        self._is_open = False

    def _ask_to_end(self) -> None:
        """The request is on its way, whether its sender lives or not."""
        scheduler, brokers, rng = self._scheduler, self._brokers, self._scheduler.random
        assert self._name is not None
        name, epoch, commit, is_unlucky = self._name, self._epoch, bool(self._ending), self._is_unlucky

        def arrive() -> None:
            if not self._is_answered_now:
                scheduler.after(0.1 + rng.random() * 0.4, arrive)
                return
            if brokers.transactions[name].epoch == epoch:
                scheduler.note(f"the coordinator {'commits' if commit else 'aborts'} {name}")
                brokers.end(name, commit=commit, is_unlucky=is_unlucky)
                is_lost = rng.random() < brokers.faults.lost_answer
                # The client asks again, and then hears that it is done.
                scheduler.after(4.0 + rng.random() * 3 if is_lost else 0.0005 + rng.random() * 0.002, answer)
            else:
                brokers.changed.wake()

        def answer() -> None:
            self._is_answered = True
            brokers.changed.wake()

        scheduler.after(0.0003 + rng.random() * 0.002, arrive)

    @staticmethod
    def _aborting(error: KafkaError) -> KafkaError:
        return KafkaError(error.code(), error.str(), txn_requires_abort=True)

    @property
    def _is_fenced(self) -> bool:
        return self._name is not None and self._brokers.transactions[self._name].epoch != self._epoch

    def _check(self) -> None:
        self._scheduler.check_alive()
        if self._name is not None and self._is_answered_now and self._is_fenced:
            raise KafkaException(_FENCED)

    # Messages.

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int | None = None,
        on_delivery: Callable[..., None] | None = None,
        headers: object = None,  # noqa: ARG002 - nothing here asks for them
    ) -> None:
        """Queue a message."""
        self._scheduler.check_alive()
        if self._name is not None and not self._is_open:
            raise KafkaException(KafkaError(KafkaError._STATE, "no transaction is open"))
        if self._error is not None:
            raise KafkaException(KafkaError(KafkaError._STATE, "the transaction is broken"))
        if len(self._queue) >= self._brokers.queue_count_max:
            raise BufferError("Local: Queue full")
        self._queue.append((topic, partition, key, value, on_delivery or self._on_delivery))
        if not self._is_sending:
            self._is_sending = True
            self._scheduler.after((_LINGER_SECONDS + self._slow_seconds) * self._scheduler.random.random(), self._send)

    @property
    def _slow_seconds(self) -> float:
        # A sign of life isn't worth waiting for.
        return self._brokers.faults.slow_seconds if self._message_seconds is None else 0.0

    def _send(self) -> None:
        """Messages leave the process, and reach the partitions."""
        self._is_sending = False
        brokers, scheduler = self._brokers, self._scheduler
        if self._process is not None and not self._process.is_alive:
            return
        if self._process is not None and self._process.is_frozen:
            self._is_sending = True
            self._process.thawing.append(self._send)
            return
        if not self._queue:
            return
        is_busy = self._name is not None and not self._is_fenced and brokers.is_busy(self._name)
        if not self._is_answered_now or is_busy:
            if not self._is_answered_now and self._message_seconds is not None:
                self._fail_all(KafkaError(KafkaError._MSG_TIMED_OUT))
                return
            self._is_sending = True
            scheduler.after(0.002 + scheduler.random.random() * (0.002 if self._is_answered_now else 0.2), self._send)
            return
        count = scheduler.random.randint(1, 2 * len(self._queue))
        while self._queue and count:
            count -= 1
            self._deliver(*self._queue.popleft())
        if self._queue:
            self._is_sending = True
            scheduler.after(scheduler.random.random() * (0.002 + self._slow_seconds), self._send)
        brokers.changed.wake()

    def _is_refused_first(self, queued: _Queued, at: int) -> bool:
        """Whether a message goes with a first batch that is refused, to be sent again.

        If a later batch arrives before that, the broker takes it, as it knows no sequence number of this producer yet, and
        librdkafka takes the first one for stored.
        """
        topic, _, key, value, report = queued
        place, brokers = (topic, at), self._brokers
        if place in self._begun:
            return False
        if place in self._refused:
            if brokers.scheduler.random.random() < 0.5:
                self._refused[place].append((topic, at, key, value, report))
                return True
            self._scheduler.note(f"{len(self._refused.pop(place))} messages for {topic}-{at} are lost")
        elif brokers.refuses_first(topic, at):
            self._refused[place] = [(topic, at, key, value, report)]
            self._scheduler.after(_RETRY_SECONDS, lambda: self._send_again(place))
            return True
        self._begun.add(place)
        return False

    def _send_again(self, place: tuple[str, int]) -> None:
        batch = self._refused.pop(place, None)
        if batch is None or (self._process is not None and not self._process.is_alive):
            return
        self._begun.add(place)
        self._queue.extendleft(reversed(batch))
        self._send()

    def _deliver(self, topic: str, number: int | None, key: bytes | None, value: bytes | None, report: Any) -> None:
        brokers = self._brokers
        error = None
        if topic not in brokers.topics:
            error = _UNKNOWN
        elif self._is_fenced:
            error = _FENCED
        elif brokers.scheduler.random.random() < brokers.faults.refusal:
            error = KafkaError(KafkaError.KAFKA_STORAGE_ERROR, "a disk of a broker failed")
        else:
            at = brokers.place(topic, key) if number is None else number
            if self._is_numbered and self._is_refused_first((topic, number, key, value, report), at):
                return
            if self._name is not None:
                brokers.join(self._name, (topic, at), self._timeout_seconds)
            state = "open" if self._name is not None else "plain"
            brokers.write(topic, at, Entry(key, value, brokers.wall_ms(), self._name, state))
        if error is not None and self._name is not None:
            self._error = error
            self._queue.clear()
            self._refused.clear()
        if report is not None and (error is not None or self._on_delivery is None):
            self._reports.append((report, error, _Message(topic, number or 0, 0, Entry(key, value, 0), None)))

    def _fail_all(self, error: KafkaError) -> None:
        for batch in self._refused.values():
            self._queue.extendleft(reversed(batch))
        self._refused.clear()
        while self._queue:
            topic, number, key, value, report = self._queue.popleft()
            if report is not None:
                self._reports.append((report, error, _Message(topic, number or 0, 0, Entry(key, value, 0), None)))
        self._brokers.changed.wake()

    def poll(self, timeout: float = 0) -> int:
        """Deliver reports."""
        self._scheduler.check_alive()
        if timeout:
            self._scheduler.block(timeout)
        return self._report()

    def _report(self) -> int:
        count = len(self._reports)
        while self._reports:
            report, error, message = self._reports.popleft()
            report(error, message)
        return count

    def flush(self, timeout: float = -1) -> int:
        """Wait until all messages have arrived."""
        self._scheduler.check_alive()
        self._brokers.changed.wait_for(lambda: not self._held, timeout if timeout >= 0 else None)
        self._report()
        return self._held

    @property
    def _held(self) -> int:
        """How many messages haven't arrived yet."""
        return len(self._queue) + sum(map(len, self._refused.values()))

    def purge(self, in_queue: bool = True, in_flight: bool = True) -> None:  # noqa: ARG002 - as the client has it
        """Throw away what waits."""
        self._scheduler.check_alive()
        self._fail_all(KafkaError(KafkaError._PURGE_QUEUE))
        if self._name is not None:
            self._reports.clear()


class _Message:
    def __init__(self, topic: str, partition: int, offset: int, entry: Entry, error: KafkaError | None) -> None:
        self._place = topic, partition
        self._offset = offset
        self._entry = entry
        self._error = error

    def error(self) -> KafkaError | None:
        return self._error

    def key(self) -> bytes | None:
        return self._entry.key

    def value(self) -> bytes | None:
        return self._entry.value

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._entry.ts_ms


class Consumer(_Client):
    """Reads assigned partitions."""

    def __init__(self, brokers: Brokers, settings: dict[str, Any]) -> None:
        super().__init__(brokers)
        self._is_committed = settings["isolation.level"] == "read_committed"
        self._tells_end = bool(settings.get("enable.partition.eof"))
        self._places: dict[tuple[str, int], int] = {}
        self._told: dict[tuple[str, int], int] = {}

    def assign(self, places: list[TopicPartition]) -> None:
        """Read these."""
        self._scheduler.check_alive()
        self._places, self._told = {}, {}
        for place in places:
            number = place.partition
            offset = place.offset
            if offset == OFFSET_END:
                offset = self._end(place.topic, number)
            elif offset == OFFSET_BEGINNING or offset < 0:
                offset = 0
            self._places[place.topic, number] = offset

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        """Read these: nothing else is read yet."""
        assert not self._places
        self.assign(places)

    def consume(self, count: int, timeout: float) -> list[_Message]:
        """The next messages that are there, and the end of a partition."""
        assert not timeout
        found: list[_Message] = []
        while len(found) < count and (message := self.poll(0)) is not None:
            found.append(message)
        return found

    def poll(self, timeout: float = -1) -> _Message | None:
        """The next message, or the end of a partition."""
        self._scheduler.check_alive()
        deadline = self._scheduler.now + timeout if timeout >= 0 else None
        if not timeout:
            return self._next() if self._is_answered_now else None
        while True:
            found = self._next() if self._is_answered_now else None
            left = None if deadline is None else deadline - self._scheduler.now
            if found is not None or (left is not None and left <= 0):
                return found
            self._scheduler.block(min(0.05, left) if left is not None else 0.05)

    def _next(self) -> _Message | None:
        for (topic, number), offset in self._places.items():
            if topic not in self._brokers.topics:
                continue
            partition, end = self._brokers.topics[topic][number], self._end(topic, number)
            at = max(offset, partition.begin)
            while at < end:
                entry = partition.entries[at]
                at += 1
                if entry.state == "marker" or (self._is_committed and entry.state in ("aborted", "lost")):
                    continue
                self._places[topic, number] = at
                return _Message(topic, number, at - 1, entry, None)
            self._places[topic, number] = at
            if self._tells_end and self._told.get((topic, number)) != at:
                self._told[topic, number] = at
                return _Message(topic, number, at, Entry(None, None, 0), KafkaError(KafkaError._PARTITION_EOF))
        return None

    def _end(self, topic: str, number: int) -> int:
        partition = self._brokers.topics[topic][number]
        return partition.stable if self._is_committed else partition.end

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[Any]:
        """Ends of partitions."""
        if not self._brokers.answers(timeout):
            raise KafkaException(_TIMED_OUT)
        topics = self._brokers.topics
        return [
            SimpleNamespace(
                topic=place.topic,
                partition=place.partition,
                error=None if place.topic in topics else _UNKNOWN,
                offset=self._end(place.topic, place.partition) if place.topic in topics else -1,
            )
            for place in places
        ]

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        """Where a partition begins and ends."""
        if not self._brokers.answers(timeout):
            raise KafkaException(_TIMED_OUT)
        if place.topic not in self._brokers.topics:
            raise KafkaException(_UNKNOWN)
        return self._brokers.topics[place.topic][place.partition].begin, self._end(place.topic, place.partition)


class Admin(_Client):
    """Topics, and ends of partitions."""

    def __init__(self, brokers: Brokers) -> None:
        super().__init__(brokers)
        self.refusals: list[KafkaError] = []
        self.troubles: dict[str, str] = {}

    def poll(self, _: float) -> int:
        """It complains of nothing."""
        return 0

    def describe_topics(self, names: Any, request_timeout: float) -> dict[str, Future[Any]]:
        """Their ids."""
        is_answered = self._brokers.answers(request_timeout)
        ids = self._brokers.ids
        return {
            topic: _failed(_TIMED_OUT)
            if not is_answered
            else _done(SimpleNamespace(topic_id=ids[topic]))
            if topic in ids
            else _failed(_UNKNOWN)
            for topic in names.topic_names
        }

    def create_topics(self, new: list[Any], **_: object) -> dict[str, Future[None]]:
        """Make them."""
        is_answered = self._brokers.answers(30)
        exists = KafkaError(KafkaError.TOPIC_ALREADY_EXISTS)
        return {
            one.topic: _failed(_TIMED_OUT)
            if not is_answered
            else _done(None)
            if self._brokers.create(one.topic, one.num_partitions)
            else _failed(exists)
            for one in new
        }

    def list_offsets(self, wanted: dict[Any, Any], *, isolation_level: Any = None, **_: object) -> dict[Any, Future[Any]]:
        """Begins and ends of partitions."""
        is_answered = self._brokers.answers(10)
        earliest = type(OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        found: dict[Any, Future[Any]] = {}
        for place, spec in wanted.items():
            partitions = self._brokers.topics.get(place.topic)
            if not is_answered or partitions is None:
                found[place] = _failed(_UNKNOWN if is_answered else _TIMED_OUT)
                continue
            partition = partitions[place.partition]
            is_committed = isolation_level is IsolationLevel.READ_COMMITTED
            end = partition.stable if is_committed else partition.end
            found[place] = _done(SimpleNamespace(offset=partition.begin if type(spec) is earliest else end))
        return found

    def describe_configs(self, resources: list[Any], **_: object) -> dict[Any, Future[Any]]:
        """Nobody may ask."""
        self._brokers.answers(3)
        return {resource: _done({}) for resource in resources}


def _done(result: Any) -> Future[Any]:
    future = Future[Any]()
    future.set_result(result)
    return future


def _failed(error: KafkaError) -> Future[Any]:
    future = Future[Any]()
    future.set_exception(KafkaException(error))
    return future
