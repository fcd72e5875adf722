"""The least that any broker allows, whatever some of them don't tell."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]  # it is documented

from cdc.errors import PublishError
from cdc.kafka.broker_limits import BrokerLimits, broker_limits

Answer = dict[str, str | None] | Exception


class Brokers:
    """A client for administration, and what each broker answers."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = dict(enumerate(answers))

    def list_topics(self, **_: object) -> object:
        """Who is there."""
        return SimpleNamespace(brokers=self.answers)

    def describe_configs(self, resources: list[ConfigResource], **_: object) -> dict[ConfigResource, Future[dict[str, Any]]]:
        """Of one broker."""
        (broker,) = resources
        answer = self.answers[int(broker.name)]
        future = Future[dict[str, Any]]()
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result({name: SimpleNamespace(value=value) for name, value in answer.items()})
        return {broker: future}


def told(timeout: str | None, size: str | None = None) -> Answer:
    return {"transaction.max.timeout.ms": timeout, "socket.request.max.bytes": size, "another": "1"}


REFUSED = KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED))


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((told("900000", "104857600"), told("600000", "200000000")), BrokerLimits(600_000, 104_857_600)),
        ((REFUSED, told("900000", "100")), BrokerLimits(900_000, 100)),
        ((TimeoutError(), told("900000")), BrokerLimits(900_000, None)),
        ((told(None), {}), BrokerLimits()),
        ((REFUSED, REFUSED), BrokerLimits()),
        ((), BrokerLimits()),
    ],
)
def test_the_least_of_all_that_tell(answers: tuple[Answer, ...], expected: BrokerLimits) -> None:
    assert broker_limits(Brokers(*answers)) == expected  # type: ignore[arg-type]  # as much of one as is asked


def test_a_message_that_no_broker_takes_is_told_before_one_is_sent() -> None:
    BrokerLimits().check(10**9)
    BrokerLimits(None, 1000).check(1000)
    with pytest.raises(PublishError, match=r"kafka\.message_bytes_max is 1001, .* of more than 1000 bytes.*socket\.request\.max"):
        BrokerLimits(None, 1000).check(1001)
