"""What an error of Kafka's means for the daemon: who must act, and how. Decided by its code alone.

the code says                  raised                 what comes of it
this daemon may not            ForbiddenError         it ends, and names the right and the command that grants it
nobody knows this user         LoginError             it ends
somebody else has the name     FencedError            a new producer looks who
a message is too large         PublishError           it ends
a topic doesn't take a record  PublishError           it ends: no repeat makes a compacted topic take what has no key
the producer is of no use      ProducerLostError      a new producer goes on from the checkpoint
anything else                  PublishAborted, or ConnectionLostError where nothing was published: it tries again
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from cdc.errors import CdcError, ConnectionLostError, PublishAborted, PublishError, Remedy


class ForbiddenError(PublishError):
    """The brokers know who the daemon is, and don't let it do something."""


class LoginError(PublishError):
    """The brokers don't take the daemon for who it says it is."""


class ProducerLostError(PublishError):
    """This producer can do nothing more: what isn't committed is for a new one to publish."""

    remedy = Remedy.WAIT


class FencedError(ProducerLostError):
    """This producer's transactions are over: another daemon took the name, or the coordinator gave up on us."""

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
LOGIN_HINT: Final = "Correct security.protocol and sasl.* in kafka.properties, or have the user made on the brokers."
NAME_HINT: Final = (
    "If that was meant (--take-over), nothing is to be done. Else stop that one, or give this one another name and "
    "kafka.topic_prefix: two daemons of one name can't run at once."
)
_SIZE_HINT: Final = (
    "Raise max.message.bytes of the topic, and kafka.message_bytes_max if that is less; or leave the space out with "
    "spaces.exclude."
)

_RECORD_HINT: Final = (
    "A topic with compact in its cleanup.policy takes no truncation, which has no key: set cleanup.policy=delete on it until the "
    "daemon has gone on and consumers have read it."
)


def operator_error(error: KafkaError, what: str) -> PublishError | None:
    """The error if waiting won't help, None if it may. `what` says what was tried and that it failed."""
    text, code = f"{what}: {error.str()}", error.code()
    if code in FORBIDDEN:
        return ForbiddenError(text, RIGHTS_HINT)
    if code in UNKNOWN_USER:
        return LoginError(text, LOGIN_HINT)
    if code in TOO_LARGE:
        return PublishError(text, _SIZE_HINT)
    if code == KafkaError.INVALID_RECORD:
        return PublishError(text, _RECORD_HINT)
    return None


def writing_error(error: KafkaError, what: str) -> CdcError:
    """Of a producer: something was to be written or committed."""
    operators = operator_error(error, what)
    if operators is not None:
        return operators
    text = f"{what}: {error.str()}"
    if error.code() in FENCED:
        return FencedError(text)  # by whom, a new producer finds out
    if error.fatal():
        return ProducerLostError(text)
    # Everything else ends the transaction but not the daemon: what was in it is published again.
    return PublishAborted(text)


def reading_error(error: KafkaError, what: str) -> CdcError:
    """Of whoever only asks or reads."""
    return operator_error(error, what) or ConnectionLostError(f"{what}: {error.str()}")


@contextlib.contextmanager
def translate_kafka_errors() -> Iterator[None]:
    """Raise what Kafka's client raises by itself as `writing_error` tells it."""
    try:
        yield
    except KafkaException as error:
        raise writing_error(error.args[0], "Kafka's client failed") from error
