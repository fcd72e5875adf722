"""Classification of Kafka's errors, by error code alone: who must act, and how.

meaning of the code            raised                 consequence
access denied                  ForbiddenError         the daemon stops, and names the right and the command that grants it
unknown user                   LoginError             the daemon stops
producer fenced                FencedError            a new producer finds out which daemon has the name
message or batch too large     TooLargeError          a new producer sends smaller batches; a single message: the daemon stops
record refused by a topic      PublishError           the daemon stops: a compacted topic never accepts a record without a key
producer unusable              ProducerLostError      a new producer resumes from the checkpoint
anything else                  PublishAborted, or ConnectionLostError if nothing was published: the daemon retries
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from cdc.errors import CdcError, ConnectionLostError, PublishAborted, PublishError, Remedy


class ForbiddenError(PublishError):
    """The brokers know the daemon's user, and deny it an operation."""


class LoginError(PublishError):
    """The brokers refuse the daemon's login."""


class TooLargeError(PublishError):
    """A message, or a batch of messages, is larger than its topic accepts."""


class ProducerLostError(PublishError):
    """This producer is unusable: a new producer has to publish all uncommitted events."""

    remedy = Remedy.WAIT


class FencedError(ProducerLostError):
    """This producer was fenced: another daemon claimed the name, or the coordinator timed out a transaction."""

    remedy = Remedy.OPERATOR


FORBIDDEN: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
)
UNKNOWN_USER: Final = frozenset(
    {
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError._AUTHENTICATION,
    }
)
TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._BAD_MSG, KafkaError.INVALID_MSG_SIZE})
FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})

RIGHTS_HINT: Final = "Grant the rights of docs/kafka-acls.md; `tarantool-cdc check` tries each of them."
LOGIN_HINT: Final = "Correct security.protocol and sasl.* in kafka.properties, or create the user on the brokers."
NAME_HINT: Final = (
    "If that was intended (--take-over), do nothing. Otherwise stop the other daemon, or give this one another name and "
    "kafka.topic_prefix: two daemons of the same name can't run at the same time. With standby = true in both, one waits for the "
    "other's end."
)
STANDBY_HINT: Final = "Start it again: it will be the standby of the one that has the name now."
_SIZE_HINT: Final = (
    "Raise max.message.bytes of the topic, and kafka.message_bytes_max if that is less; or leave the space out with "
    "spaces.exclude."
)

_RECORD_HINT: Final = (
    "A topic with compact in its cleanup.policy refuses truncate events, as they have no key: set cleanup.policy=delete on it "
    "until the daemon has published the event and consumers have read it."
)


def operator_error(error: KafkaError, what: str) -> PublishError | None:
    """Return the error to raise if a retry can't help, None if it may. `what` says which operation failed."""
    text, code = f"{what}: {error.str()}", error.code()
    if code in FORBIDDEN:
        return ForbiddenError(text, RIGHTS_HINT)
    if code in UNKNOWN_USER:
        return LoginError(text, LOGIN_HINT)
    if code in TOO_LARGE:
        return TooLargeError(text, _SIZE_HINT)
    if code == KafkaError.INVALID_RECORD:
        return PublishError(text, _RECORD_HINT)
    return None


def writing_error(error: KafkaError, what: str) -> CdcError:
    """Return the error to raise for a failed write or commit of a producer. `what` says which operation failed."""
    operators = operator_error(error, what)
    if operators is not None:
        return operators
    text = f"{what}: {error.str()}"
    if error.code() in FENCED:
        return FencedError(text)  # a new producer finds out which daemon fenced this one
    if error.fatal():
        return ProducerLostError(text)
    # Any other error ends the transaction but not the daemon, which publishes the transaction's events again.
    return PublishAborted(text)


def reading_error(error: KafkaError, what: str) -> CdcError:
    """Return the error to raise for a failed request or read. `what` says which operation failed."""
    return operator_error(error, what) or ConnectionLostError(f"{what}: {error.str()}")


@contextlib.contextmanager
def translate_kafka_errors() -> Iterator[None]:
    """Translate uncaught KafkaExceptions with `writing_error`."""
    try:
        yield
    except KafkaException as error:
        raise writing_error(error.args[0], "Kafka's client failed") from error
