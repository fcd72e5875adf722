"""What each of Kafka's errors makes the daemon do, by its code."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from cdc.errors import CdcError, ConnectionLostError, PublishAborted, Remedy
from cdc.kafka.errors import (
    FencedError,
    ForbiddenError,
    LoginError,
    ProducerLostError,
    TooLargeError,
    reading_error,
    writing_error,
)

ENDS = Remedy.OPERATOR
GOES_ON = Remedy.WAIT


@pytest.mark.parametrize(
    ("code", "fatal", "writing", "reading"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False, ForbiddenError, ForbiddenError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, True, ForbiddenError, ForbiddenError),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, True, ForbiddenError, ForbiddenError),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, True, ForbiddenError, ForbiddenError),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, False, ForbiddenError, ForbiddenError),
        (KafkaError._AUTHENTICATION, False, LoginError, LoginError),
        (KafkaError.SASL_AUTHENTICATION_FAILED, False, LoginError, LoginError),
        (KafkaError.MSG_SIZE_TOO_LARGE, False, TooLargeError, TooLargeError),
        (KafkaError._FENCED, True, FencedError, ConnectionLostError),
        (KafkaError.INVALID_PRODUCER_EPOCH, False, FencedError, ConnectionLostError),
        (KafkaError.INVALID_TXN_STATE, True, ProducerLostError, ConnectionLostError),
        (KafkaError.INVALID_TXN_STATE, False, PublishAborted, ConnectionLostError),
        (KafkaError._TIMED_OUT, False, PublishAborted, ConnectionLostError),
        (KafkaError._TRANSPORT, False, PublishAborted, ConnectionLostError),
        (KafkaError.NOT_ENOUGH_REPLICAS, False, PublishAborted, ConnectionLostError),
    ],
)
def test_by_its_code(code: int, fatal: bool, writing: type[CdcError], reading: type[CdcError]) -> None:
    error = KafkaError(code, "the broker's words", fatal)
    for found, wanted in (
        (writing_error(error, "it can't be done"), writing),
        (reading_error(error, "it can't be read"), reading),
    ):
        assert type(found) is wanted
        assert "the broker's words" in found.message
        assert found.remedy is (GOES_ON if wanted in (PublishAborted, ConnectionLostError, ProducerLostError) else ENDS)


def test_no_code_by_itself_speaks_of_a_second_daemon() -> None:
    """A few say that somebody else has the name; whether that is another daemon, a new producer finds out."""
    fenced = set()
    for code in range(-200, 130):
        for fatal in (False, True):
            error = writing_error(KafkaError(code, "x", fatal), "it can't be done")
            assert "Two daemons" not in str(error)
            if isinstance(error, FencedError):
                fenced.add(code)
    assert fenced == {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}
