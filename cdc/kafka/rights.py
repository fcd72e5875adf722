"""The rights that the daemon needs in Kafka: their list, a check for missing ones, and the commands that grant them.

The check changes nothing, and doesn't disturb a daemon of the same name:
- Kafka reports the operations that the user may perform on topics.
- The group is described, which needs a right on it.
- A topic's creation is tried in validation mode, which creates nothing.
- The transactional id is requested with a time-out that no broker allows. A broker reports that error only to users who may
  use the id.
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
from cdc.stream.commits import ownership

TIMEOUT_SECONDS: Final = 10.0
_NO_ANSWER: Final = frozenset({KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError.REQUEST_TIMED_OUT})
_TIMEOUT_NOBODY_ALLOWS_MS: Final = 2_147_483_547
"""Largest time-out that librdkafka can send, as it adds 100. A broker with a larger transaction.max.timeout.ms would grant the
transactional id, and so fence a running daemon. That daemon would claim the id again and resume from its checkpoint."""


@dataclass(frozen=True, slots=True)
class Right:
    """An operation on the topics of a prefix, or on one transactional id or group."""

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
        """Arguments of kafka-acls.sh, apart from those that name the brokers and the user."""
        option = {"topic": "--topic", "transactional id": "--transactional-id", "group": "--group"}[self.kind]
        pattern = " --resource-pattern-type prefixed" if self.kind == "topic" else ""
        return f"--operation {self.operation} {option} {self.name}{pattern}"


def needed(name: str, config: KafkaSection) -> list[Right]:
    """Return all rights that a daemon of this name needs, in both delivery modes. Each of them implies DESCRIBE."""
    topics = f"{_prefix(config)}."
    operations = ["WRITE", "READ", *(["CREATE"] if config.create_topics else [])]
    return [
        *(Right(operation, "topic", topics) for operation in operations),
        Right("WRITE", "transactional id", ownership.transactional_id(name, config.control_prefix)),
        Right("READ", "group", group_of(name)),
    ]


def _prefix(config: KafkaSection) -> str:
    """Return the prefix of all topics that a daemon reads or writes: a fleet's daemons also read who owns the fleet's prefix."""
    return config.topic_prefix if config.shard is None else config.shard.fleet_prefix


def group_of(name: str) -> str:
    """Return the consumer group used for reading the daemon's own topics. It has no members and no committed offsets."""
    return f"tarantool-cdc-{name}"


def grant(rights: Iterable[Right], config: KafkaSection) -> str:
    """Return the commands that grant these rights, in one line."""
    user = config.properties.get("sasl.username", "NAME")
    begin = f"kafka-acls.sh --bootstrap-server {config.bootstrap_servers} --add --allow-principal User:{user}"
    return "; ".join(f"{begin} {right.command}" for right in rights)


def refusal(rights: Collection[Right], config: KafkaSection) -> ForbiddenError:
    """Return the error for missing rights."""
    return ForbiddenError(
        f"Kafka doesn't allow this daemon {', '.join(map(str, rights))}",
        f"Grant it: {grant(rights, config)}",
    )


def missing(name: str, config: KafkaSection, clients: KafkaClients, existing: Collection[str]) -> list[Right]:
    """Return the needed rights that this user lacks; `existing` has the topics that the user can see.

    While the prefix has no topic, the check can't tell READ or WRITE alone from both, and treats one as both. Raises
    ConnectionLostError if Kafka doesn't answer, LoginError, and PublishError if topics can't be created for another reason.
    """
    own = sorted(topic for topic in existing if topic.startswith(f"{_prefix(config)}."))
    prober = _Prober(config, clients)
    try:
        return [right for right in needed(name, config) if not prober.has(right, own)]
    except KafkaException as error:
        if error.args[0].code() in _NO_ANSWER:
            raise ConnectionLostError(
                f"Kafka at {config.bootstrap_servers} accepts connections but didn't answer in {TIMEOUT_SECONDS:.0f} s: it is "
                "starting, or overloaded",
                "Try again; look at the brokers' logs.",
            ) from error
        raise reading_error(error.args[0], "Kafka doesn't report this daemon's rights") from error


def explained(error: ForbiddenError, name: str, config: KafkaSection, clients: KafkaClients) -> ForbiddenError:
    """Return an error that names the missing rights, in place of `error`, which says only that access was denied."""
    try:
        existing = clients.admin().list_topics(timeout=TIMEOUT_SECONDS).topics
        lacking = missing(name, config, clients, existing)
    except (CdcError, KafkaException):
        return error  # access was denied all the same, but the missing right can't be determined now
    if not lacking:
        return error
    found = refusal(lacking, config)
    found.message = f"{found.message} ({error.message})"
    return found


class _Prober:
    """Check for single rights, by trying them."""

    def __init__(self, config: KafkaSection, clients: KafkaClients) -> None:
        self._config = config
        self._clients = clients
        self._admin = clients.admin()

    def has(self, right: Right, own_topics: Collection[str]) -> bool:
        """Return whether this user has the right. Raises KafkaException for errors unrelated to rights, and PublishError."""
        try:
            match right:
                case Right(kind="transactional id"):
                    self._ask_for_transactional_id()
                case Right(kind="group", name=group):
                    self._check_group(group)
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
                # The topic was deleted, or not created yet: a user without any right on it would get another error.
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            else:
                if operation not in {each.name for each in allowed}:
                    return False
        return True

    def _check_group(self, group: str) -> None:
        try:
            self._admin.describe_consumer_groups([group], request_timeout=TIMEOUT_SECONDS)[group].result()
        except KafkaException as error:
            # A broker reports other errors, such as an empty group, only to users who may read the group.
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
