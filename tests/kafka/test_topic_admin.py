"""Topics are listed once and made all at once, however many there are."""

from __future__ import annotations

import contextlib
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar, cast

import pytest
import structlog
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ClusterMetadata  # type: ignore[attr-defined]  # it is documented
from confluent_kafka.cimpl import NewTopic

from cdc.config import KafkaSection
from cdc.errors import OUT_OF_FILES, CdcError, ConnectionLostError, PublishAborted, PublishError
from cdc.kafka import topic_admin
from cdc.kafka.clients import Admin, KafkaClients
from cdc.kafka.errors import ProducerLostError
from cdc.kafka.topic_admin import TopicAdmin, list_topics


class Cluster:
    """What a client for administration sees of a cluster, with the requests counted."""

    def __init__(self) -> None:
        self.partitions: dict[str, int] = {}
        self.lists = 0
        self.created: list[list[NewTopic]] = []
        self.refusal: KafkaError | None = None
        # Lists that a new topic isn't on yet.
        self.delay = 1
        # What the client may not see.
        self.hidden: set[str] = set()
        self.replicas = [1]
        self._new: dict[str, tuple[int, int]] = {}

    def list_topics(self, **_: object) -> object:
        """Metadata of everything."""
        self.lists += 1
        for topic, (count, since) in list(self._new.items()):
            if self.lists > since:
                self.partitions[topic] = count
                del self._new[topic]
        return SimpleNamespace(
            topics={
                topic: SimpleNamespace(partitions=dict.fromkeys(range(count), SimpleNamespace(replicas=self.replicas)))
                for topic, count in self.partitions.items()
                if topic not in self.hidden
            }
        )

    def describe_topics(self, names: TopicCollection, **_: object) -> dict[str, Future[None]]:
        """What is asked for by name is refused, where a list says nothing."""
        answers = {}
        for topic in names.topic_names:
            answers[topic] = answer = Future[None]()
            if topic in self.hidden:
                answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
            elif topic not in self.partitions:
                answer.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
            else:
                answer.set_result(None)
        return answers

    def create_topics(self, new: list[NewTopic], **_: object) -> dict[str, Future[None]]:
        """All are made, or refused."""
        self.created.append(new)
        answers = {}
        for topic in new:
            answers[topic.topic] = answer = Future[None]()
            if self.refusal is not None:
                answer.set_exception(KafkaException(self.refusal))
                continue
            if topic.topic in self._new:
                answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS)))
                continue
            self._new[topic.topic] = (topic.num_partitions, self.lists + self.delay)
            answer.set_result(None)
        return answers


def admin(cluster: Cluster, **settings: object) -> TopicAdmin:
    config = KafkaSection.model_validate({"bootstrap_servers": "x:1", "topic_prefix": "shop", **settings})
    return TopicAdmin(config, lambda: cast(Admin, cluster), threading.Event())


def test_all_at_once() -> None:
    cluster = Cluster()
    cluster.partitions = {"shop.1": 7}
    topics = admin(cluster)
    wanted = [f"shop.{number}" for number in range(250)]
    topics.ensure(wanted)
    assert cluster.partitions == {topic: 7 if topic == "shop.1" else 4 for topic in wanted}
    assert (len(cluster.created), cluster.lists) == (1, 3)
    assert topics.is_ready(wanted)
    topics.ensure(wanted)
    assert cluster.lists == 3
    assert not topics.is_ready(["shop.300"])


def test_no_request_is_larger_than_kafka_takes() -> None:
    cluster = Cluster()
    wanted = [f"shop.{number}" for number in range(3_000)]
    admin(cluster, partitions=10).ensure(wanted)
    assert sorted(cluster.partitions) == sorted(wanted)
    assert max(sum(1 + new.num_partitions + len(new.config or ()) for new in part) for part in cluster.created) < 10_000


def test_one_topic_that_is_larger_than_a_request_should_be_is_made_alone() -> None:
    cluster = Cluster()
    admin(cluster, partitions=5_000).ensure(["shop.a", "shop.b"])
    assert [len(part) for part in cluster.created] == [1, 1]


def test_control_topics_have_one_partition() -> None:
    cluster = Cluster()
    admin(cluster).ensure(["shop.checkpoint", "shop.schema", "shop.things"])
    assert cluster.partitions == {"shop.checkpoint": 1, "shop.schema": 1, "shop.things": 4}


@pytest.mark.parametrize(("is_on", "count", "bytes_max"), [(True, 1, "1048576"), (False, 4, "33554432")])
def test_a_topic_that_is_a_control_topic_of_some_daemons(is_on: bool, count: int, bytes_max: str) -> None:
    """Of the others, it is that of a space."""
    cluster = Cluster()
    admin(cluster, signal_topic=is_on, notification_topic=is_on).ensure(["shop.signal", "shop.notification"])
    assert cluster.partitions == {"shop.signal": count, "shop.notification": count}
    ((signal, _),) = cluster.created
    assert (signal.config or {})["max.message.bytes"] == bytes_max


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, PublishError),
        (KafkaError.INVALID_REPLICATION_FACTOR, PublishError),
        (KafkaError._TIMED_OUT, PublishAborted),
    ],
)
def test_refusals(code: int, error: type[CdcError]) -> None:
    cluster = Cluster()
    cluster.refusal = KafkaError(code)
    topics = admin(cluster)
    with pytest.raises(error, match=r"the topic shop\.things can't be created"):
        topics.ensure(["shop.things"])
    cluster.refusal = None
    topics.ensure(["shop.things"])


def test_too_few_brokers_are_no_mistake_where_there_were_enough() -> None:
    cluster = Cluster()
    cluster.partitions, cluster.replicas = {"another": 1}, [1, 2]
    cluster.refusal = KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, "only 2 broker(s) are registered")
    topics = admin(cluster, replication_factor=3)
    with pytest.raises(PublishError, match=r"kafka\.replication_factor"):
        topics.ensure(["shop.things"])
    cluster.replicas = [1, 2, 3]
    with pytest.raises(PublishAborted, match="only 2 broker"):
        topics.ensure(["shop.things"])


def test_topics_that_were_made_sure_of_and_are_gone() -> None:
    cluster = Cluster()
    topics = admin(cluster)
    topics.ensure(["shop.things"])
    cluster.partitions.clear()
    topics.invalidate()
    topics.ensure(["shop.things"])
    assert cluster.partitions == {"shop.things": 4}


def test_a_topic_that_was_deleted_is_told_with_what_sends_its_rows_again() -> None:
    cluster = Cluster()
    topics = admin(cluster)
    with structlog.testing.capture_logs() as logs:
        topics.ensure(["shop.users", "shop.dlq"])
        assert not logs, "nothing was lost yet"
        topics.invalidate()
        topics.ensure(["shop.users", "shop.dlq", "shop.new"])
        assert not logs, "they are there"
        cluster.partitions.clear()
        topics.invalidate()
        topics.ensure(["shop.users", "shop.dlq", "shop.newer"])
    said = [entry["event"] for entry in logs]
    assert said == [
        "the topic shop.users was deleted and has been created again, empty: `tarantool-cdc snapshot --config FILE "
        "users` sends its "
        "rows again",
        "the topic shop.dlq was deleted and has been created again, empty",
    ]


def test_topics_that_others_have_made_sure_of() -> None:
    """Named by the checkpoint, with the name of the space, or by the one before this; but not one that begins anew."""
    cluster = Cluster()
    before = admin(cluster)
    before.ensure(["shop.a", "shop.schema"])
    config = KafkaSection.model_validate({"bootstrap_servers": "x:1", "topic_prefix": "shop"})
    topics = TopicAdmin(config, lambda: cast(Admin, cluster), threading.Event(), before.seen)
    topics.remember({"shop.b_c": ["b c", "d"], "shop.d": ["d"]})
    cluster.partitions.clear()
    with structlog.testing.capture_logs() as logs:
        topics.ensure(["shop.a", "shop.b_c", "shop.d", "shop.e", "shop.schema"], lambda topic: topic == "shop.d")
    said = [entry["event"].partition(" was deleted and has been created again")[::2] for entry in logs]
    assert said == [
        ("the topic shop.a", ", empty: `tarantool-cdc snapshot --config FILE a` sends its rows again"),
        ("the topic shop.b_c", ", empty: `tarantool-cdc snapshot --config FILE 'b c' d` sends its rows again"),
    ]


def test_topics_with_settings_of_their_own() -> None:
    cluster = Cluster()
    entries = [
        {"pattern": "orders", "partitions": 12, "replication_factor": 3, "config": {"retention.ms": "5"}},
        {"pattern": "o.*|dlq", "config": {"max.message.bytes": "7"}},
    ]
    topics = admin(cluster, topics=entries, partitions=2)
    topics.ensure(["shop.orders", "shop.other", "shop.users", "shop.dlq"])
    (created,) = cluster.created
    found = {new.topic: (new.num_partitions, new.replication_factor, new.config) for new in created}
    usual = {"max.message.bytes": "33554432", "min.insync.replicas": "1"}
    assert found == {
        "shop.orders": (12, 3, usual | {"min.insync.replicas": "2", "retention.ms": "5"}),
        "shop.other": (2, 1, usual | {"max.message.bytes": "7"}),
        "shop.users": (2, 1, usual),
        "shop.dlq": (1, 1, usual),
    }


def test_topics_that_a_broker_only_did_not_list_were_not_deleted() -> None:
    cluster = Cluster()
    cluster._new["shop.a"] = (4, 1)
    topics = admin(cluster)
    topics.remember({"shop.a": ["a"]})
    with structlog.testing.capture_logs() as logs:
        topics.ensure(["shop.a"])
    assert cluster.created
    assert not logs


def test_a_deleted_topic_that_nobody_makes_for_us() -> None:
    topics = admin(Cluster(), create_topics=False)
    topics.remember({"shop.a": ["a"]})
    with pytest.raises(PublishError, match=r"shop\.a was deleted\. Create it, .* snapshot --config FILE a` sends its rows again"):
        topics.ensure(["shop.a"])


def test_only_a_publisher_that_begins_makes_the_topic_of_forms_again() -> None:
    cluster = Cluster()
    topics = admin(cluster)
    topics.remember({}, ["shop.schema"])
    with pytest.raises(ProducerLostError, match=r"shop\.schema was deleted"):
        topics.ensure(["shop.schema"])
    assert not cluster.created


@dataclass
class Clock:
    """An event that never comes, and the time that it was awaited."""

    now: float = 0.0

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False


@pytest.mark.parametrize("others", [0, 1, 250])
def test_one_topic_that_the_daemon_may_not_see(monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    clock, cluster = Clock(), Cluster()
    monkeypatch.setattr("cdc.kafka.topic_admin.time.monotonic", lambda: clock.now)
    config = KafkaSection.model_validate({"bootstrap_servers": "x:1", "topic_prefix": "shop"})
    topics = TopicAdmin(config, lambda: cast(Admin, cluster), cast(threading.Event, clock))
    cluster.hidden = {"shop.things"}
    with pytest.raises(PublishError, match=r"this daemon may not see the topic shop\.things"):
        topics.ensure(["shop.things", *(f"shop.{number}" for number in range(others))])
    assert 2 <= clock.now <= 3


def test_a_client_that_finds_no_broker_any_more_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, cluster = Clock(), Cluster()
    monkeypatch.setattr("cdc.kafka.topic_admin.time.monotonic", lambda: clock.now)

    def finds_none(timeout: float) -> object:
        clock.wait(timeout)
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    lost = SimpleNamespace(list_topics=finds_none, poll=lambda _: 0, refusals=[], troubles={})
    made = iter([lost, cluster])
    config = KafkaSection.model_validate({"bootstrap_servers": "x:1", "topic_prefix": "shop"})
    topics = TopicAdmin(config, lambda: cast(Admin, next(made)), cast(threading.Event, clock))
    with pytest.raises(PublishAborted, match="Kafka can't be reached"):
        topics.ensure(["shop.things"])
    topics.ensure(["shop.things"])
    assert cluster.partitions == {"shop.things": 4}


def test_a_topic_that_the_brokers_show_very_late_is_no_matter_of_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, cluster = Clock(), Cluster()
    monkeypatch.setattr("cdc.kafka.topic_admin.time.monotonic", lambda: clock.now)
    config = KafkaSection.model_validate({"bootstrap_servers": "x:1", "topic_prefix": "shop"})
    topics = TopicAdmin(config, lambda: cast(Admin, cluster), cast(threading.Event, clock))
    cluster.delay = 60  # of about half a second each
    with pytest.raises(PublishAborted, match=r"the brokers don't show the topic shop\.things yet"):
        topics.ensure(["shop.things"])
    topics.ensure(["shop.things"])
    assert cluster.partitions == {"shop.things": 4}


def test_many_topics_that_take_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, cluster = Clock(), Cluster()
    monkeypatch.setattr("cdc.kafka.topic_admin.time.monotonic", lambda: clock.now)
    config = KafkaSection.model_validate({"bootstrap_servers": "x:1", "topic_prefix": "shop"})
    cluster.delay = 100  # of about half a second each
    wanted = [f"shop.{number}" for number in range(250)]
    TopicAdmin(config, lambda: cast(Admin, cluster), cast(threading.Event, clock)).ensure(wanted)
    assert 40 < clock.now < 60
    assert sorted(cluster.partitions) == sorted(wanted)


def test_topics_that_nobody_makes_for_us() -> None:
    with pytest.raises(PublishError, match=r"the topic shop\.a and 1 more doesn't exist"):
        admin(Cluster(), create_topics=False).ensure(["shop.a", "shop.b"])


@pytest.mark.parametrize(
    ("settings", "in_sync"),
    [
        ({}, "1"),
        ({"replication_factor": 2}, "1"),
        ({"replication_factor": 3}, "2"),
        ({"replication_factor": 5, "min_insync_replicas": 3}, "3"),
    ],
)
def test_replicas_in_sync_are_not_left_to_the_brokers(settings: dict[str, int], in_sync: str) -> None:
    cluster = Cluster()
    admin(cluster, **settings).ensure(["shop.users", "shop.checkpoint"])
    (created,) = cluster.created
    assert [topic.config and topic.config["min.insync.replicas"] for topic in created] == [in_sync, in_sync]


@pytest.mark.parametrize(
    ("trouble", "remedy"),
    [
        ("Connect to x:1 failed: Connection refused", "Check kafka.bootstrap_servers, and that the brokers run."),
        ("Failed to create socket: Too many open files", OUT_OF_FILES),
    ],
)
def test_what_helps_where_no_broker_can_be_reached(monkeypatch: pytest.MonkeyPatch, trouble: str, remedy: str) -> None:
    class Unreachable:
        refusals: ClassVar[list[KafkaError]] = []
        troubles: ClassVar[dict[str, str]] = {"x:1": trouble}

        def list_topics(self, **_: object) -> ClusterMetadata:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

        def poll(self, _: float) -> int:
            return 0

    monkeypatch.setattr(topic_admin, "ADMIN_TIMEOUT_SECONDS", 0.0)
    with pytest.raises(ConnectionLostError) as raised:
        list_topics(cast(Admin, Unreachable()), "x:1")
    assert str(raised.value) == f"Kafka can't be reached at x:1: {trouble}. {remedy}"


def talker() -> socket.socket:
    """A server that greets as Tarantool does, before it is asked anything."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.sendall(b"Tarantool 2.6.0 (Binary)".ljust(127) + b"\n")

    threading.Thread(target=serve, daemon=True).start()
    return listener


def test_why_kafka_can_not_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka itself says the same of everything: that its transport failed."""
    monkeypatch.setattr(topic_admin, "ADMIN_TIMEOUT_SECONDS", 3.0)

    def check(servers: str, words: str) -> None:
        clients = KafkaClients("x", KafkaSection(bootstrap_servers=servers, topic_prefix="shop"))
        told: list[str] = []
        with pytest.raises(ConnectionLostError) as caught:
            list_topics(clients.admin(), servers, told.append)
        assert [words in reason for reason in told] == [True]
        text = str(caught.value)
        assert text.startswith(f"Kafka can't be reached at {servers}: {words}"), text
        assert "in state" not in text
        assert text.endswith("Check kafka.bootstrap_servers, and that the brokers run.")

    with talker() as listener, ThreadPoolExecutor() as at_once:
        tarantool = f"127.0.0.1:{listener.getsockname()[1]}"
        checks = [
            at_once.submit(check, servers, words)
            for servers, words in (
                ("127.0.0.1:1", "Connect to 127.0.0.1:1 failed: Connection refused"),
                ("kafka.invalid:9092", "Failed to resolve 'kafka.invalid:9092'"),
                (tarantool, f"the server at {tarantool} doesn't speak Kafka's protocol"),
            )
        ]
        for done in checks:
            done.result()


def test_records_that_consumers_need_never_expire() -> None:
    cluster = Cluster()
    admin(cluster).ensure(["shop.schema", "shop.snapshot", "shop.checkpoint", "shop.transaction", "shop.users"])
    (created,) = cluster.created
    wanted = ("cleanup.policy", "retention.ms", "retention.bytes")
    kept = {new.topic[5:]: {name: value for name, value in (new.config or {}).items() if name in wanted} for new in created}
    assert kept == {
        "schema": {"cleanup.policy": "compact"},
        "snapshot": {"retention.ms": "-1", "retention.bytes": "-1"},
        "checkpoint": {"cleanup.policy": "compact"},
        "transaction": {},
        "users": {},
    }
