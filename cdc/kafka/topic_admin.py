"""The daemon's topics in Kafka: which there are, how many partitions they have, and making those that are missing."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]  # it is documented
from confluent_kafka.cimpl import NewTopic

from cdc.config import KafkaSection
from cdc.errors import CdcError, ConnectionLostError, PublishAborted, PublishError
from cdc.events import topics
from cdc.kafka.clients import Admin
from cdc.kafka.errors import FORBIDDEN, ProducerLostError, operator_error, reading_error

ADMIN_TIMEOUT_SECONDS: Final = 10.0
CREATE_TIMEOUT_SECONDS: Final = 30.0
"""How long a broker may take to make a few hundred topics; for the answer to anything else it has socket.timeout.ms."""
PATIENCE_SECONDS: Final = 60.0
"""How long none of many new topics may appear: a broker opens a file for each partition, and shows them together."""
FEW_TOPICS: Final = 20
PATIENCE_WITH_FEW_SECONDS: Final = 20.0
"""A few are there at once, unless this daemon may not see them, or the brokers' disk stands still: then they are asked why."""
_HIDDEN_SECONDS: Final = 2.0
"""After so long it is asked by name whether this daemon may see what doesn't appear: if not, waiting won't help."""
_POLL_SECONDS: Final = 0.02
_POLL_MAX_SECONDS: Final = 0.5
_RECORDS_MAX: Final = 2_000
"""Of one request to create topics: Kafka's controller writes a record for each topic, partition and setting, refuses a request
that would need more than 10,000, and with fewer answers in time."""
_LOGIN_SECONDS: Final = 2.0
"""How long to wait for an answer until it is looked whether there is none because the login is refused."""

COMPACTED: Final = frozenset({topics.CHECKPOINT, topics.SCHEMA})
"""Control topics whose newest record of each key must stay, however old it gets."""
_CHECKPOINT_CONFIG: Final = {
    # A record comes with every commit: small segments and eager compaction keep what a start has to read small.
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}


def list_topics(admin: Admin, bootstrap_servers: str, tell: Callable[[str], None] = lambda _: None) -> dict[str, int]:
    """Topics and their numbers of partitions. Raises LoginError, and ConnectionLostError before librdkafka says it in its way.

    What keeps it waiting it tells once, long before it gives up.
    """
    deadline = time.monotonic() + ADMIN_TIMEOUT_SECONDS
    # A short question first, then as long as is left.
    timeout, is_first = _LOGIN_SECONDS, True
    while True:
        try:
            found = admin.list_topics(timeout=timeout).topics
        except KafkaException as error:
            admin.poll(0)  # what it complains of
            # One may be a broker's that was just ending.
            if len(admin.refusals) > 1:
                raise reading_error(admin.refusals[-1], f"Kafka at {bootstrap_servers} refuses the daemon's login") from error
            if is_first:
                tell("; ".join(admin.troubles.values()) or f"there is no answer from {bootstrap_servers}")
            timeout, is_first = deadline - time.monotonic(), False
            if timeout <= 0:
                found_wrong = "; ".join(admin.troubles.values()) or error.args[0].str()
                raise ConnectionLostError(
                    f"Kafka can't be reached at {bootstrap_servers}: {found_wrong}",
                    "Check kafka.bootstrap_servers, and that the brokers run.",
                ) from error
        else:
            return {name: len(topic.partitions) for name, topic in found.items()}


def refusal_by_name(admin: Admin, topic: str) -> KafkaError | None:
    """Why a topic isn't to be had by its name, None if it is: a list leaves out what one may not see."""
    try:
        admin.describe_topics(TopicCollection([topic]), request_timeout=ADMIN_TIMEOUT_SECONDS)[topic].result()
    except KafkaException as error:
        refusal: KafkaError = error.args[0]
        return refusal
    return None


def cleanup_policies(admin: Admin, names: Iterable[str]) -> dict[str, str]:
    """The cleanup.policy of these topics, as far as this user may ask for it (DESCRIBE_CONFIGS)."""
    wanted = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
    found: dict[str, str] = {}
    if not wanted:
        return found
    for resource, answer in admin.describe_configs(wanted, request_timeout=ADMIN_TIMEOUT_SECONDS).items():
        try:
            found[resource.name] = answer.result()["cleanup.policy"].value
        except KafkaException as error:
            structlog.get_logger().debug("a topic doesn't tell its settings", topic=resource.name, reason=error.args[0].str())
    return found


def snapshot_remedy(space: str) -> str:
    """What brings the rows of a space back into a topic that has lost them."""
    return f"`tarantool-cdc snapshot --config FILE {shlex.quote(space)}` sends its rows again"


def lost_checkpoint(topic: str) -> PublishError:
    """What a daemon at work says when its position is gone. The next start can tell how far the events go."""
    return PublishError(
        f"the topic {topic} was deleted, and with it what this daemon goes on from",
        "Start once with --rebuild-state: all rows are published again, as `r`, numbered after all that is out.",
    )


class TopicAdmin:
    """Makes sure that topics exist, with sensible settings, before anything is written to them."""

    def __init__(
        self,
        config: KafkaSection,
        new_admin: Callable[[], Admin],
        is_stopping: threading.Event,
        former: Mapping[str, str | None] | None = None,
    ) -> None:
        """`former` is what another one had `seen`."""
        self._config = config
        self._new_admin = new_admin
        self._admin = new_admin()
        self._is_stopping = is_stopping
        self._known: set[str] = set()
        # Those that must be there, as they were made sure of before, with the names of the spaces whose rows they have had.
        self._former: dict[str, str | None] = dict(former or {})
        self._checkpoint_topic = topics.TopicNames(config.topic_prefix).control(topics.CHECKPOINT)
        self._schema_topic = topics.TopicNames(config.topic_prefix).control(topics.SCHEMA)

    @property
    def seen(self) -> dict[str, str | None]:
        """The topics that are known to have been there, but for that of forms, with the names of spaces as far as known."""
        found = dict.fromkeys(self._known) | self._former
        found.pop(self._schema_topic, None)
        return found

    def remember(self, spaces: Mapping[str, str], others: Iterable[str] = ()) -> None:
        """These have been there: topics of spaces, with the names of those, and others."""
        self._former |= {**spaces, **dict.fromkeys(others)}

    def was_there(self, topic: str) -> bool:
        """Whether this topic has been made sure of, or has been there before."""
        return topic in self._known or topic in self._former

    def is_ready(self, wanted: Iterable[str]) -> bool:
        """Whether all these topics have been made sure of."""
        return self._known.issuperset(wanted)

    def forget(self) -> None:
        """Something is wrong with Kafka: make sure of every topic anew."""
        self._former = dict.fromkeys(self._known) | self._former
        self._known.clear()

    def ensure(self, wanted: Iterable[str], begins_anew: Callable[[str], bool] = lambda _: False) -> None:
        """Create what is missing of these topics, all at once.

        A topic that has to be made again is told, unless what is written there now `begins_anew`. Raises PublishAborted while
        Kafka is away, ProducerLostError if the topic of forms was deleted, PublishError for good, as if the checkpoint was.
        """
        unknown = [topic for topic in wanted if topic not in self._known]
        if not unknown:
            return
        missing = self._missing(unknown)
        if self._schema_topic in missing and self._schema_topic in self._former:
            # What it has to have, a publisher knows that begins.
            raise ProducerLostError(f"the topic {self._schema_topic} was deleted")
        if missing and self._config.create_topics:
            created = self._create(missing)
            if self._checkpoint_topic in created and self._checkpoint_topic in self._former:
                raise lost_checkpoint(self._checkpoint_topic)
            missing = self._await(missing)
            for topic in created:
                if topic in self._former and topic not in missing and not begins_anew(topic):
                    structlog.get_logger().warning(self._loss(topic))
        if missing:
            raise self._absence(missing)
        self._known.update(unknown)

    def _absence(self, missing: list[str]) -> CdcError:
        """Why these aren't among all topics: a list leaves out what this daemon may not see, but who asks by name is told so."""
        topic, more = missing[0], f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        refusal = refusal_by_name(self._admin, topic)
        if _forbids(refusal):
            return PublishError(f"this daemon may not see the topic {topic}{more}", "Grant it DESCRIBE, WRITE and CREATE.")
        if refusal is not None and refusal.code() == KafkaError.UNKNOWN_TOPIC_OR_PART and not self._config.create_topics:
            remedy = "Create it, or allow the daemon to (kafka.create_topics = true, and the right CREATE)."
            if topic not in self._former or self._is_control(topic):
                return PublishError(f"the topic {topic}{more} doesn't exist", remedy)
            return PublishError(
                f"the topic {topic}{more} was deleted",
                f"{remedy} Then {self._remedy(topic)}, as what it had is gone.",
            )
        return PublishAborted(f"the brokers don't show the topic {topic}{more} yet")

    def _is_hidden(self, topic: str) -> bool:
        """Whether this daemon may not see the topic."""
        return _forbids(refusal_by_name(self._admin, topic))

    def _loss(self, topic: str) -> str:
        """What to say of a topic that was there and had to be made again."""
        sentence = f"the topic {topic} was deleted and has been made again, without what it had"
        return sentence if self._is_control(topic) else f"{sentence}: {self._remedy(topic)}"

    def _remedy(self, topic: str) -> str:
        return snapshot_remedy(self._former.get(topic) or topic.removeprefix(f"{self._config.topic_prefix}."))

    def _is_control(self, topic: str) -> bool:
        return topic.removeprefix(f"{self._config.topic_prefix}.") in topics.CONTROL

    def _missing(self, wanted: list[str]) -> list[str]:
        # Asked for all topics, not for these: a broker may create what is asked for by name, with its own settings.
        try:
            existing = list_topics(self._admin, self._config.bootstrap_servers)
        except ConnectionLostError as error:
            # Where this client has lost all brokers it won't find them again (see cdc.kafka.reach).
            self._admin = self._new_admin()
            raise PublishAborted(error.message, error.hint) from error
        return [topic for topic in wanted if not existing.get(topic)]

    def _create(self, missing: list[str]) -> list[str]:
        """Returns those that were missing indeed: a broker that has just started may list fewer than there are."""
        created: list[str] = []
        room = _RECORDS_MAX
        part: list[NewTopic] = []
        for topic in missing:
            new = self._new(topic)
            room -= 1 + new.num_partitions + len(new.config or ())
            if room < 0 and part:
                created += self._create_part(part)
                room, part = _RECORDS_MAX, []
            part.append(new)
        return created + self._create_part(part)

    def _new(self, topic: str) -> NewTopic:
        suffix = topic.removeprefix(self._config.topic_prefix + ".")
        settings = {
            "max.message.bytes": str(self._config.message_bytes_max),
            # Not the brokers' default, which is one: with it, an event that was committed could be lost with one disk.
            "min.insync.replicas": str(self._config.insync_replicas),
        }
        if suffix == topics.CHECKPOINT:
            settings |= _CHECKPOINT_CONFIG
        if suffix in COMPACTED:
            settings["cleanup.policy"] = "compact"
        return NewTopic(
            topic,
            num_partitions=1 if suffix in topics.CONTROL else self._config.partitions,
            replication_factor=self._config.replication_factor,
            config=settings,
        )

    def _create_part(self, part: list[NewTopic]) -> list[str]:
        created: list[str] = []
        answers = self._admin.create_topics(
            part, operation_timeout=CREATE_TIMEOUT_SECONDS, request_timeout=CREATE_TIMEOUT_SECONDS + 5
        )
        for topic, answer in answers.items():
            try:
                answer.result()
            except KafkaException as error:
                cause = error.args[0]
                if cause.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue
                lacks_brokers = cause.code() == KafkaError.INVALID_REPLICATION_FACTOR and (
                    "fenced" in cause.str() or self._has_had_enough_brokers()
                )
                if lacks_brokers or cause.retriable() or cause.code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
                    raise PublishAborted(f"the topic {topic} can't be created: {cause.str()}") from error
                what = f"the topic {topic} can't be created"
                raise operator_error(cause, what) or PublishError(
                    f"{what}: {cause.str()}", "Create it, or correct kafka.partitions and kafka.replication_factor."
                ) from error
            else:
                created.append(topic)
        return created

    def _has_had_enough_brokers(self) -> bool:
        """Whether a replication factor that can't be reached is no mistake: brokers are ending, starting, or away.

        Kafka refuses a topic then with the same code. That there were enough shows in any topic that has so many replicas.
        """
        found = self._admin.list_topics(timeout=ADMIN_TIMEOUT_SECONDS).topics.values()
        most = max((len(partition.replicas) for topic in found for partition in topic.partitions.values()), default=0)
        return most >= self._config.replication_factor

    def _await(self, created: list[str]) -> list[str]:
        """Topics that were just created are known to a broker a little later; returns those that aren't in time."""
        missing, pause = created, _POLL_SECONDS
        deadline = time.monotonic() + _patience_seconds(missing)
        ask_at = time.monotonic() + _HIDDEN_SECONDS
        while time.monotonic() < deadline:
            before, missing = len(missing), self._missing(missing)
            if not missing:
                break
            if len(missing) < before:
                deadline = time.monotonic() + _patience_seconds(missing)
            if time.monotonic() >= ask_at:
                if self._is_hidden(missing[0]):
                    break
                ask_at = time.monotonic() + _HIDDEN_SECONDS
            if self._is_stopping.wait(pause):
                raise PublishAborted(f"stopped while {len(missing)} topics were made")
            pause = min(2 * pause, _POLL_MAX_SECONDS)
        return missing


def _forbids(refusal: KafkaError | None) -> bool:
    return refusal is not None and refusal.code() in FORBIDDEN


def _patience_seconds(missing: list[str]) -> float:
    """How long none of these may appear."""
    return PATIENCE_SECONDS if len(missing) > FEW_TOPICS else PATIENCE_WITH_FEW_SECONDS
