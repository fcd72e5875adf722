"""The daemon's topics in Kafka: listing them, counting their partitions, and creating missing ones."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ClusterMetadata  # type: ignore[attr-defined]  # it is documented
from confluent_kafka.cimpl import NewTopic

from cdc.config import KafkaSection
from cdc.errors import OUT_OF_FILES, CdcError, ConnectionLostError, PublishAborted, PublishError
from cdc.events import topics
from cdc.kafka.clients import Admin
from cdc.kafka.errors import FORBIDDEN, ProducerLostError, operator_error, reading_error
from cdc.kafka.foreign_topics import ForeignTopics
from cdc.kafka.losses import Losses
from cdc.kafka.names import claim_topic, names_of
from cdc.kafka.topic_settings import COMPACTED, KEPT, UNLIMITED
from cdc.stream.commits.losses import snapshot_remedy

ADMIN_TIMEOUT_SECONDS: Final = 10.0
CREATE_TIMEOUT_SECONDS: Final = 30.0
"""Time limit for a broker to create a few hundred topics. Other answers are limited by socket.timeout.ms."""
PATIENCE_SECONDS: Final = 60.0
"""Time without progress after which the wait for many new topics ends: a broker opens a file for each partition, and shows the
topics together."""
FEW_TOPICS: Final = 20
PATIENCE_WITH_FEW_SECONDS: Final = 20.0
"""The same for up to FEW_TOPICS topics. They appear at once, unless this daemon may not see them, or the brokers' disk stalls.
After the wait, the brokers are asked for the reason."""
_HIDDEN_SECONDS: Final = 2.0
"""Interval at which a missing topic is requested by name, to find out whether this daemon may see it: if not, waiting can't
help."""
_POLL_SECONDS: Final = 0.02
_POLL_MAX_SECONDS: Final = 0.5
_RECORDS_MAX: Final = 2_000
"""Maximum number of controller records per request to create topics. Kafka's controller writes a record for each topic,
partition and setting, and refuses a request that needs more than 10,000. With fewer records, it answers in time."""
_LOGIN_SECONDS: Final = 2.0
"""Time without an answer after which the client checks whether its login was refused."""

_SIGNAL_BYTES_MAX: Final = str(1024 * 1024)
"""Maximum size of a batch of signals: the daemon reads far smaller ones only (stream/snapshots/orders.py), and anybody may send
them."""
_CHECKPOINT_CONFIG: Final = {
    # Every commit adds a record. Small segments and eager compaction limit how much a start has to read.
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}


def list_topics(admin: Admin, bootstrap_servers: str, report_delay: Callable[[str], None] = lambda _: None) -> dict[str, int]:
    """Return all topics and their partition counts. See `_metadata`."""
    found = _metadata(admin, bootstrap_servers, report_delay).topics
    return {name: len(topic.partitions) for name, topic in found.items()}


def cluster_id(admin: Admin, bootstrap_servers: str) -> str | None:
    """Return Kafka's own id of the cluster, None if it has none. See `_metadata`."""
    found: str | None = getattr(_metadata(admin, bootstrap_servers), "cluster_id", None)
    return found


def _metadata(admin: Admin, bootstrap_servers: str, report_delay: Callable[[str], None] = lambda _: None) -> ClusterMetadata:
    """Return what a broker tells of the cluster.

    If the first answer doesn't arrive soon, `report_delay` is called once with the reason, long before the request times out.
    Raises LoginError, and ConnectionLostError with a clearer message than librdkafka's.
    """
    deadline = time.monotonic() + ADMIN_TIMEOUT_SECONDS
    # The first request has a short time-out; the next ones get the remaining time.
    timeout, is_first = _LOGIN_SECONDS, True
    while True:
        try:
            return admin.list_topics(timeout=timeout)
        except KafkaException as error:
            admin.poll(0)  # delivers the client's error reports
            # A single refusal may come from a broker that was shutting down.
            if len(admin.refusals) > 1:
                raise reading_error(admin.refusals[-1], f"Kafka at {bootstrap_servers} refuses the daemon's login") from error
            if is_first:
                report_delay("; ".join(admin.troubles.values()) or f"there is no answer from {bootstrap_servers}")
            timeout, is_first = deadline - time.monotonic(), False
            if timeout <= 0:
                found_wrong = "; ".join(admin.troubles.values()) or error.args[0].str()
                raise ConnectionLostError(
                    f"Kafka can't be reached at {bootstrap_servers}: {found_wrong}",
                    # librdkafka gives no error's number, only the system's text.
                    OUT_OF_FILES
                    if os.strerror(errno.EMFILE) in found_wrong
                    else "Check kafka.bootstrap_servers, and that the brokers run.",
                ) from error


def refusal_by_name(admin: Admin, topic: str) -> KafkaError | None:
    """Return the error of a request for the topic by name, None if it succeeds. A topic list omits topics that are hidden."""
    try:
        admin.describe_topics(TopicCollection([topic]), request_timeout=ADMIN_TIMEOUT_SECONDS)[topic].result()
    except KafkaException as error:
        refusal: KafkaError = error.args[0]
        return refusal
    return None


PUT_BACK: Final = "A file of `tarantool-cdc position export` may spare that: put it back first, with `position set FILE`."
"""What may take the place of publishing all rows again where the checkpoint is lost, and the events aren't."""


def lost_checkpoint(topic: str) -> PublishError:
    """Return the error of a running daemon whose checkpoint topic was deleted. The next start finds the events' last seq."""
    return PublishError(
        f"the topic {topic} was deleted, and with it this daemon's checkpoint",
        "Start once with --rebuild-state: all rows are published again, as `r`, with seqs after all published events. "
        f"{PUT_BACK}",
    )


class TopicAdmin:
    """Creator of topics: ensures that they exist, with suitable settings, before anything is written to them."""

    def __init__(
        self,
        config: KafkaSection,
        new_admin: Callable[[], Admin],
        is_stopping: threading.Event,
        former: Mapping[str, Sequence[str]] | None = None,
        foreign: ForeignTopics | None = None,
        losses: Losses | None = None,
    ) -> None:
        """`former` is the `seen` of the previous publisher's TopicAdmin. `foreign` judges topics before their first use.

        `losses` keeps in mind which topics were deleted.
        """
        self._foreign = foreign
        self._losses = losses
        self._config = config
        self._new_admin = new_admin
        self._admin = new_admin()
        self._is_stopping = is_stopping
        self._known: set[str] = set()
        # Topics that must exist, as their existence was ensured before, with the names of the spaces whose rows they hold.
        self._former: dict[str, Sequence[str]] = dict(former or {})
        names = names_of(config)
        self._checkpoint_topic, self._schema_topic = names.control(topics.CHECKPOINT), names.control(topics.SCHEMA)

    @property
    def seen(self) -> dict[str, Sequence[str]]:
        """Topics known to have existed, except the schema topic, with the names of their spaces where known."""
        found = dict.fromkeys(self._known, ()) | self._former
        found.pop(self._schema_topic, None)
        return found

    def remember(self, spaces: Mapping[str, Sequence[str]], others: Iterable[str] = ()) -> None:
        """Record that these topics existed: `spaces` maps topics to the names of their spaces; `others` are further topics."""
        self._former |= {**spaces, **dict.fromkeys(others, ())}

    def was_there(self, topic: str) -> bool:
        """Return whether this topic exists or existed before, as far as known."""
        return topic in self._known or topic in self._former

    def is_ready(self, wanted: Iterable[str]) -> bool:
        """Return whether all these topics are known to exist."""
        return self._known.issuperset(wanted)

    def invalidate(self) -> None:
        """After an error of Kafka: check every topic again."""
        self._former = dict.fromkeys(self._known, ()) | self._former
        self._known.clear()

    def ensure(self, wanted: Iterable[str], begins_with_truncation: Callable[[str], bool] = lambda _: False) -> None:
        """Create the missing ones of these topics, all at once.

        A warning is logged for each topic that has to be created again, unless its new contents start from scratch
        (`begins_with_truncation`). Raises PublishAborted while Kafka is unavailable, ProducerLostError if the schema topic was
        deleted, and PublishError if a retry can't help, for example if the checkpoint topic was deleted.
        """
        unknown = [topic for topic in wanted if topic not in self._known]
        if not unknown:
            return
        existing = self._existing()
        missing = [topic for topic in unknown if not existing.get(topic)]
        self._check_owner(unknown, existing)
        if self._schema_topic in missing and self._schema_topic in self._former:
            # Only a publisher that starts knows which forms to write into the new topic.
            raise ProducerLostError(f"the topic {self._schema_topic} was deleted")
        if missing and self._config.create_topics:
            lost = {
                topic: self._former[topic]
                for topic in missing
                if topic in self._former and not self._is_control(topic) and not begins_with_truncation(topic)
            }
            if self._losses is not None:
                self._losses.note(lost)
            created = self._create(missing)
            if self._losses is not None:
                self._losses.made(created)
                self._losses.withdraw(lost.keys() - set(created))
            if self._checkpoint_topic in created and self._checkpoint_topic in self._former:
                raise lost_checkpoint(self._checkpoint_topic)
            missing = self._await(missing)
            for topic in created:
                if topic in self._former and topic not in missing and not begins_with_truncation(topic):
                    structlog.get_logger().warning(self._loss(topic))
        if missing:
            self._note_absence(missing)
            raise self._absence(missing)
        self._known.update(unknown)

    def _note_absence(self, missing: list[str]) -> None:
        """Record which of these topics were deleted, where the daemon may not make them again: somebody else will."""
        former = [topic for topic in missing if topic in self._former and not self._is_control(topic)]
        if self._losses is None or self._config.create_topics or not former:
            return
        refusals = {topic: refusal_by_name(self._admin, topic) for topic in former}
        unknown = [topic for topic, refusal in refusals.items() if refusal is not None and _is_unknown(refusal)]
        self._losses.note({topic: self._former[topic] for topic in unknown})

    def _absence(self, missing: list[str]) -> CdcError:
        """Return the error for topics missing from the topic list.

        The list omits topics that this daemon may not see. A request by name reveals that.
        """
        topic, more = missing[0], f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        refusal = refusal_by_name(self._admin, topic)
        if _forbids(refusal):
            return PublishError(f"this daemon may not see the topic {topic}{more}", "Grant it DESCRIBE, WRITE and CREATE.")
        if refusal is not None and _is_unknown(refusal) and not self._config.create_topics:
            remedy = "Create it, or allow the daemon to (kafka.create_topics = true, and the right CREATE)."
            if topic not in self._former or self._is_control(topic):
                return PublishError(f"the topic {topic}{more} doesn't exist", remedy)
            return PublishError(
                f"the topic {topic}{more} was deleted",
                f"{remedy} Then {self.remedy(topic)}, as its contents are lost.",
            )
        return PublishAborted(f"the brokers don't show the topic {topic}{more} yet")

    def _is_hidden(self, topic: str) -> bool:
        """Return whether the topic is hidden from this daemon."""
        return _forbids(refusal_by_name(self._admin, topic))

    def _loss(self, topic: str) -> str:
        """Return the warning for a topic that existed and had to be created again."""
        sentence = f"the topic {topic} was deleted and has been created again, empty"
        return sentence if self._is_control(topic) else f"{sentence}: {self.remedy(topic)}"

    def remedy(self, topic: str) -> str:
        """Return the command that publishes a topic's rows again: those of its spaces, as far as these are known."""
        spaces = self._former.get(topic) or [topic.removeprefix(f"{self._config.topic_prefix}.")]
        return snapshot_remedy(spaces, self._config.shards_of(topic))

    def _is_control(self, topic: str) -> bool:
        suffix = topic.removeprefix(f"{self._config.control_prefix}.")
        return suffix in topics.CONTROL | self._config.optional_topics or topic == claim_topic(self._config)

    def _missing(self, wanted: list[str]) -> list[str]:
        existing = self._existing()
        return [topic for topic in wanted if not existing.get(topic)]

    def _existing(self) -> dict[str, int]:
        # All topics are listed: a request by name might make a broker create the topic with its own settings.
        try:
            return list_topics(self._admin, self._config.bootstrap_servers)
        except ConnectionLostError as error:
            # A client that has lost all brokers never finds them again (see cdc.kafka.reach).
            self._admin = self._new_admin()
            raise PublishAborted(error.message, error.hint) from error

    def _check_owner(self, wanted: list[str], existing: Mapping[str, int]) -> None:
        """Raise PublishError if a topic belongs to another producer."""
        if self._foreign is None:
            return
        try:
            self._foreign.check(self._admin, wanted, existing, self._former)
        except ConnectionLostError as error:
            raise PublishAborted(error.message, error.hint) from error

    def _create(self, missing: list[str]) -> list[str]:
        """Create topics, and return those that didn't exist: a broker that has just started may list only some topics."""
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
        prefix = self._config.control_prefix if self._is_control(topic) else self._config.topic_prefix
        suffix = topics.CHECKPOINT if topic == claim_topic(self._config) else topic.removeprefix(prefix + ".")
        settings = {
            "max.message.bytes": str(self._config.message_bytes_max),
            # With the brokers' default of 1, the loss of a single disk could lose a committed event.
            "min.insync.replicas": str(self._config.insync_replicas),
        }
        if suffix == topics.CHECKPOINT:
            settings |= _CHECKPOINT_CONFIG
        if suffix == topics.SIGNAL and self._is_control(topic):
            settings["max.message.bytes"] = _SIGNAL_BYTES_MAX
        if suffix in COMPACTED:
            settings["cleanup.policy"] = "compact"
        elif suffix in KEPT:
            settings |= UNLIMITED
        if self._is_control(topic):
            return NewTopic(topic, num_partitions=1, replication_factor=self._config.replication_factor, config=settings)
        own = self._config.topic_settings(suffix)
        settings["min.insync.replicas"] = str(own.insync_replicas)
        return NewTopic(
            topic,
            num_partitions=own.partitions,
            replication_factor=own.replication_factor,
            config={**settings, **own.config},
        )

    def _create_part(self, part: list[NewTopic]) -> list[str]:
        created: list[str] = []
        replicas = {new.topic: new.replication_factor for new in part}
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
                    "fenced" in cause.str() or self._has_had_enough_brokers(replicas[topic])
                )
                if lacks_brokers or cause.retriable() or cause.code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
                    raise PublishAborted(f"the topic {topic} can't be created: {cause.str()}") from error
                what = f"the topic {topic} can't be created"
                raise operator_error(cause, what) or PublishError(
                    f"{what}: {cause.str()}", "Create it, or correct kafka.partitions, kafka.replication_factor and kafka.topics."
                ) from error
            else:
                created.append(topic)
        return created

    def _has_had_enough_brokers(self, replicas: int) -> bool:
        """Return whether so many replicas are only out of reach for some time: brokers are stopping, starting or unavailable.

        Kafka refuses a topic with the same code in both cases. An existing topic with that many replicas proves that there were
        enough brokers.
        """
        found = self._admin.list_topics(timeout=ADMIN_TIMEOUT_SECONDS).topics.values()
        most = max((len(partition.replicas) for topic in found for partition in topic.partitions.values()), default=0)
        return most >= replicas

    def _await(self, created: list[str]) -> list[str]:
        """Wait until the brokers know newly created topics. Return those that don't appear in time."""
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


def _is_unknown(refusal: KafkaError) -> bool:
    return refusal.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def _patience_seconds(missing: list[str]) -> float:
    """Return how long to wait without any of these topics appearing, in seconds."""
    return PATIENCE_SECONDS if len(missing) > FEW_TOPICS else PATIENCE_WITH_FEW_SECONDS
