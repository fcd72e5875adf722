"""A broker in memory, as far as the TAP server's readers see one: partitions that grow at one end and expire at the other.

With `lockstep` a consumer gets messages only when a test gives it some, so that a seed decides who reads what, and when.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # it is documented

from cdc import config
from cdc.feeds.tap.live import Topics
from cdc.kafka.clients import KafkaClients
from cdc.kafka.hanging import Place

PREFIX = "shop"
_ALL = 1_000_000
_EARLIEST = type(OffsetSpec.earliest())  # type: ignore[no-untyped-call]
_IDLE_SECONDS = 0.005


@dataclass(frozen=True)
class Message:
    """As confluent_kafka's."""

    place: Place
    number: int
    contents: tuple[bytes | None, bytes | None] = (None, None)
    problem: KafkaError | None = None

    def topic(self) -> str:
        """Its topic."""
        return self.place[0]

    def partition(self) -> int:
        """Its partition."""
        return self.place[1]

    def offset(self) -> int:
        """Its place there."""
        return self.number

    def key(self) -> bytes | None:
        """Its key."""
        return self.contents[0]

    def value(self) -> bytes | None:
        """Its value."""
        return self.contents[1]

    def error(self) -> KafkaError | None:
        """What it is instead of a message."""
        return self.problem


@dataclass
class Log:
    """One partition."""

    messages: list[tuple[bytes | None, bytes | None]] = field(default_factory=list)
    begin: int = 0


class Broker:
    """Topics, and those who read them."""

    def __init__(self, *, lockstep: bool = False) -> None:
        self.lockstep = lockstep
        self.logs: dict[Place, Log] = {}
        self.named: set[str] = set()
        self.cluster_id = "first"
        self.ids: dict[str, int] = {}
        self.turn = threading.Condition()
        self.readers: list[Reader] = []
        """Those that are open."""
        self.reader_count = self.stranded_count = 0
        """Readers that were made, and how many of the first find no broker any more."""

    def create(self, topic: str, partitions: int = 1) -> None:
        """A new topic."""
        self.ids.setdefault(topic, len(self.ids) + 1)
        for number in range(partitions):
            self.logs.setdefault((topic, number), Log())

    def delete(self, topic: str) -> int:
        """A topic, with what it has; returns its number of partitions."""
        gone = [place for place in self.logs if place[0] == topic]
        for place in gone:
            del self.logs[place]
        return len(gone)

    def make_again(self, topic: str) -> None:
        """A topic is deleted, and made again under the same name."""
        count = self.delete(topic)
        self.ids[topic] += 1_000
        self.create(topic, count)

    def write(self, topic: str, key: bytes | None, value: Any, partition: int = 0) -> None:
        """One message; a value that isn't bytes becomes JSON."""
        text = value if value is None or isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()
        self.create(topic, partition + 1)
        self.logs[topic, partition].messages.append((key, text))

    def change(
        self, seq: int, key: int, value: Any, *, space: str = "users", space_id: int = 512, partition: int = 0, snapshot: int = 0
    ) -> None:
        """A key has another value, or is gone; `snapshot` is the number of the one that tells it."""
        self.name_space(space, space_id)
        source = {"name": PREFIX, "table": space, "space_id": space_id, "seq": seq}
        if snapshot:
            source["snapshot_id"] = str(snapshot)
        op = "r" if snapshot else "d" if value is None else "u"
        after = {"id": key, "value": value} if value is not None else None
        envelope = {"op": op, "before": None, "after": after, "source": source}
        self.write(f"{PREFIX}.{space}", b'{"id":%d}' % key, envelope, partition)

    def name_space(self, space: str, space_id: int = 512) -> None:
        """A record of the schema topic, before the first event of a space, says that its topic is the daemon's."""
        if space not in self.named:
            self.form(0, 0, space, space_id=space_id)

    def empty(self, seq: int, *, space: str = "users", space_id: int = 512) -> None:
        """A space has lost all rows: every partition says so."""
        source = {"name": PREFIX, "table": space, "space_id": space_id, "seq": seq}
        for name, number in list(self.logs):
            if name == f"{PREFIX}.{space}":
                self.write(name, None, {"op": "t", "source": source}, number)

    def form(self, seq: int, version: int, name: str, *, space_id: int = 512, former: str | None = None) -> None:
        """A space has another form."""
        source = {"name": PREFIX, "table": name, "space_id": space_id, "schema_version": version, "seq": seq}
        change = {"type": "ALTER", "id": f'"{name}"', "table": {"primaryKeyColumnNames": ["id"]}}
        if former is not None:
            change["previousId"] = f'"{former}"'
        self.named.add(name)
        self.write(f"{PREFIX}.schema", None, {"source": source, "tableChanges": [change]})

    def snapshot(self, number: int, seq: int, rows: int | None = None, *, sweep_seq: int = 0, space_id: int = 512) -> None:
        """A snapshot begins, or is complete with so many rows."""
        status = "STARTED" if rows is None else "COMPLETED"
        record: dict[str, Any] = {"snapshot_id": str(number), "status": status, "seq": seq}
        if rows is not None:
            record["spaces"] = [{"space": "users", "space_id": space_id, "rows": rows, "sweep_seq": sweep_seq}]
        self.write(f"{PREFIX}.snapshot", None, record)

    def expire(self, topic: str) -> None:
        """All that a topic has until now is gone."""
        for (name, _), log in self.logs.items():
            if name == topic:
                log.begin = len(log.messages)

    # For librdkafka's classes.

    def describe_cluster(self, **_: Any) -> Future[Any]:
        """Its id."""
        return _done(SimpleNamespace(cluster_id=self.cluster_id))

    def describe_topics(self, names: TopicCollection, **_: Any) -> dict[str, Future[Any]]:
        """Their ids."""
        return {name: _done(SimpleNamespace(topic_id=Uuid(0, self.ids[name]))) for name in names.topic_names}

    def strand(self) -> None:
        """All readers that there are find no broker from here on."""
        self.stranded_count = self.reader_count

    def list_topics(self, *_: Any, **__: Any) -> Any:
        """Of the cluster."""
        names = {name for name, _ in self.logs}
        counts = {name: sum(topic == name for topic, _ in self.logs) for name in names}
        topics = {name: SimpleNamespace(partitions=range(count)) for name, count in counts.items()}
        return SimpleNamespace(topics=topics, brokers={1: None})

    def list_offsets(self, wanted: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Future[Any]]:
        """Where partitions begin or end."""
        found: dict[TopicPartition, Future[Any]] = {}
        for place, spec in wanted.items():
            log = self.logs[place.topic, place.partition]
            found[place] = _done(SimpleNamespace(offset=log.begin if isinstance(spec, _EARLIEST) else len(log.messages)))
        return found

    def topics(self, **settings: Any) -> Topics:
        """What the TAP server knows of it."""
        kafka = {"bootstrap_servers": "localhost:1", "topic_prefix": PREFIX, **settings}
        values = {"name": PREFIX, "source": {"uris": ["localhost:1"]}, "kafka": kafka}
        topics = Topics(PREFIX, config.parse(values, "the test").kafka)
        topics.clients = Clients(self)
        return topics


def _done(what: Any) -> Future[Any]:
    answer: Future[Any] = Future()
    answer.set_result(what)
    return answer


class Clients(KafkaClients):
    """Of one broker in memory."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def admin(self) -> Any:
        """The broker itself."""
        return self._broker

    def consumer(self, isolation: str, ahead_bytes_max: int | None = None, *, end_wait_ms: int = 10) -> Any:  # noqa: ARG002 - all is committed
        """A reader."""
        return Reader(self._broker)


class Reader:
    """As confluent_kafka's Consumer."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._offsets: dict[Place, int] = {}
        self._paused: set[Place] = set()
        self._told_ends: dict[Place, int] = {}
        self._granted: list[tuple[Place, int]] | None = None
        self.is_waiting = False
        """Whether it has taken all that it was given, and asks for more."""
        self._number = broker.reader_count
        broker.reader_count += 1

    @property
    def places(self) -> set[Place]:
        """That it reads."""
        return set(self._offsets)

    def assign(self, places: Iterable[TopicPartition]) -> None:
        """Read these."""
        self._offsets = {(place.topic, place.partition): place.offset for place in places}
        self._told_ends.clear()

    def incremental_assign(self, places: Iterable[TopicPartition]) -> None:
        """These too."""
        self._offsets |= {(place.topic, place.partition): place.offset for place in places}

    def incremental_unassign(self, places: Iterable[TopicPartition]) -> None:
        """These no more."""
        for place in places:
            del self._offsets[place.topic, place.partition]

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Not these for now."""
        self._paused |= {(place.topic, place.partition) for place in places}

    def resume(self, places: Iterable[TopicPartition]) -> None:
        """These again."""
        self._paused -= {(place.topic, place.partition) for place in places}

    def list_topics(self, topic: str, _: float) -> Any:
        """As for everybody who finds a broker."""
        if self._is_stranded:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return self._broker.list_topics(topic)

    @property
    def _is_stranded(self) -> bool:
        return self._number < self._broker.stranded_count

    def poll(self, _: float) -> Message | None:
        """The next message."""
        found = self._taken([(place, 1) for place in self._offsets], 1)
        return found[0] if found else None

    def consume(self, count: int, _: float) -> list[Message]:
        """The next messages: in lockstep, when and as many as the test says."""
        broker = self._broker
        if not broker.lockstep or threading.current_thread() is threading.main_thread():
            found = self._taken([(place, count) for place in self._offsets], count)
            if not found:
                time.sleep(_IDLE_SECONDS)  # as long as the broker has nothing
            return found
        with broker.turn:
            if self not in broker.readers:
                broker.readers.append(self)
            self.is_waiting = True
            broker.turn.notify_all()
            broker.turn.wait_for(lambda: self._granted is not None or not broker.lockstep)
            self.is_waiting = False
            granted, self._granted = self._granted or [], None
            return self._taken(granted, _ALL)

    def grant(self, counts: list[tuple[Place, int]]) -> None:
        """So many messages of these partitions are the next that come."""
        with self._broker.turn:
            self.is_waiting = False
            self._granted = counts
            self._broker.turn.notify_all()

    def close(self) -> None:
        """No more."""
        with self._broker.turn:
            if self in self._broker.readers:
                self._broker.readers.remove(self)

    def _taken(self, counts: list[tuple[Place, int]], limit: int) -> list[Message]:
        found: list[Message] = []
        for place, count in [] if self._is_stranded else counts:
            log = self._broker.logs.get(place)
            if log is None or place not in self._offsets or place in self._paused:
                continue
            offset = max(self._offsets[place], log.begin)
            part = log.messages[offset : offset + min(count, limit - len(found))]
            found += [Message(place, number, contents) for number, contents in enumerate(part, offset)]
            offset = self._offsets[place] = offset + len(part)
            if offset == len(log.messages) and self._told_ends.get(place) != offset and len(found) < limit:
                self._told_ends[place] = offset
                found.append(Message(place, offset, problem=KafkaError(KafkaError._PARTITION_EOF)))
        return found
