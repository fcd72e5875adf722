"""The rights that the daemon needs in Kafka, by name: which they are, which it lacks, and how they are granted.

They are tried without changing anything, and without disturbing a daemon of the same name: topics, group and cluster tell
themselves what this user may do with them; a topic's creation can be tried without making it; and the transactional id is
asked for with a time-out that no broker allows, which it says only to those who may use the id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.cimpl import NewTopic

from cdc.config import KafkaSection
from cdc.errors import CdcError, ConnectionLostError, PublishError
from cdc.kafka.clients import KafkaClients
from cdc.kafka.errors import FORBIDDEN, ForbiddenError, reading_error

TIMEOUT_SECONDS: Final = 10.0
_NO_ANSWER: Final = frozenset({KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError.REQUEST_TIMED_OUT})
_TIMEOUT_NOBODY_ALLOWS_MS: Final = 2_147_483_547
"""The greatest that librdkafka can send, as it adds 100. A broker whose transaction.max.timeout.ms is greater still would hand
out the transactional id, and a daemon that runs would have to take it again: it does, from its checkpoint."""


@dataclass(frozen=True, slots=True)
class Right:
    """One operation on the topics of a prefix, or on one transactional id or group."""

    operation: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.operation} on {self._resource}"

    @property
    def _resource(self) -> str:
        return f"the topics {self.name}*" if self.kind == "topic" else f"the {self.kind} {self.name}"

    @property
    def command(self) -> str:
        """Arguments of kafka-acls.sh, without those that name the brokers and the user."""
        option = {"topic": "--topic", "transactional id": "--transactional-id", "group": "--group"}[self.kind]
        pattern = " --resource-pattern-type prefixed" if self.kind == "topic" else ""
        return f"--operation {self.operation} {option} {self.name}{pattern}"


def needed(name: str, config: KafkaSection) -> list[Right]:
    """All rights that a daemon of this name needs, the same in both ways of delivery; each implies DESCRIBE."""
    topics = f"{config.topic_prefix}."
    operations = ["WRITE", "READ", *(["CREATE"] if config.create_topics else [])]
    return [
        *(Right(operation, "topic", topics) for operation in operations),
        Right("WRITE", "transactional id", name),
        Right("READ", "group", group_of(name)),
    ]


def group_of(name: str) -> str:
    """The consumer group by which the daemon reads its own topics. Nobody joins it and nothing is committed in it."""
    return f"tarantool-cdc-{name}"


def grant(rights: Iterable[Right], config: KafkaSection) -> str:
    """The commands that grant these rights, in one line."""
    user = config.properties.get("sasl.username", "NAME")
    begin = f"kafka-acls.sh --bootstrap-server {config.bootstrap_servers} --add --allow-principal User:{user}"
    return "; ".join(f"{begin} {right.command}" for right in rights)


def refusal(rights: Collection[Right], config: KafkaSection) -> ForbiddenError:
    """The error for rights that are lacking."""
    return ForbiddenError(
        f"Kafka doesn't allow this daemon {', '.join(map(str, rights))}",
        f"Grant it: {grant(rights, config)}",
    )


def missing(name: str, config: KafkaSection, clients: KafkaClients, existing: Collection[str]) -> list[Right]:
    """Which of the needed rights this user lacks; `existing` are the topics that it can see.

    As long as the prefix has no topic, one of READ and WRITE can't be told from both, and one is taken for both.
    Raises ConnectionLostError if Kafka doesn't answer, LoginError, and PublishError if topics can't be created anyway.
    """
    own = sorted(topic for topic in existing if topic.startswith(f"{config.topic_prefix}."))
    prober = _Prober(config, clients)
    try:
        return [right for right in needed(name, config) if not prober.has(right, own)]
    except KafkaException as error:
        if error.args[0].code() in _NO_ANSWER:
            raise ConnectionLostError(
                f"Kafka at {config.bootstrap_servers} takes connections but didn't answer in {TIMEOUT_SECONDS:.0f} s: it is "
                "starting, or overloaded",
                "Try again; look at the brokers' logs.",
            ) from error
        raise reading_error(error.args[0], "Kafka doesn't tell what this daemon may do") from error


def explained(error: ForbiddenError, name: str, config: KafkaSection, clients: KafkaClients) -> ForbiddenError:
    """An error that names the rights that are lacking, in place of one that says only that something was forbidden."""
    try:
        existing = clients.admin().list_topics(timeout=TIMEOUT_SECONDS).topics
        lacking = missing(name, config, clients, existing)
    except (CdcError, KafkaException):
        return error  # it is forbidden all the same; which right it is can't be found out now
    if not lacking:
        return error
    found = refusal(lacking, config)
    found.message = f"{found.message} ({error.message})"
    return found


class _Prober:
    """Tries one right after the other."""

    def __init__(self, config: KafkaSection, clients: KafkaClients) -> None:
        self._config = config
        self._clients = clients
        self._admin = clients.admin()

    def has(self, right: Right, own_topics: Collection[str]) -> bool:
        """Whether this user has it. Raises KafkaException for what says nothing of rights, and PublishError."""
        try:
            match right:
                case Right(kind="transactional id"):
                    self._ask_for_transactional_id()
                case Right(kind="group", name=group):
                    self._look_at_group(group)
                case Right(operation="CREATE", name=prefix):
                    self._create_without_making(f"{prefix}tarantool-cdc-check")
                case Right(operation=operation, name=prefix):
                    return self._allow(operation, own_topics or [f"{prefix}checkpoint"])
        except KafkaException as error:
            if error.args[0].code() in FORBIDDEN:
                return False
            raise
        return True

    def _allow(self, operation: str, topics: Collection[str]) -> bool:
        wanted = TopicCollection(list(topics))
        answers = self._admin.describe_topics(wanted, include_authorized_operations=True, request_timeout=TIMEOUT_SECONDS)
        for answer in answers.values():
            try:
                allowed = answer.result().authorized_operations
            except KafkaException as error:
                # Nobody is told that who may do nothing with the topic. It is gone, or hasn't been made.
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            else:
                if operation not in {each.name for each in allowed}:
                    return False
        return True

    def _look_at_group(self, group: str) -> None:
        try:
            self._admin.describe_consumer_groups([group], request_timeout=TIMEOUT_SECONDS)[group].result()
        except KafkaException as error:
            # What else a broker says of the group it says only to who may know: that nobody is in it, say.
            if error.args[0].code() in FORBIDDEN or error.args[0].code() < 0:
                raise

    def _create_without_making(self, topic: str) -> None:
        config = self._config
        new = NewTopic(topic, num_partitions=config.partitions, replication_factor=config.replication_factor)
        try:
            self._admin.create_topics([new], validate_only=True, request_timeout=TIMEOUT_SECONDS)[topic].result()
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() in FORBIDDEN or cause.retriable() or cause.code() < 0:
                raise
            raise PublishError(
                f"topics of {config.topic_prefix} can't be created: {cause.str()}",
                "Correct kafka.partitions and kafka.replication_factor.",
            ) from error

    def _ask_for_transactional_id(self) -> None:
        producer = self._clients.prober(_TIMEOUT_NOBODY_ALLOWS_MS)
        try:
            producer.init_transactions(TIMEOUT_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.INVALID_TRANSACTION_TIMEOUT:
                raise
