"""What is said where Kafka doesn't tell what the daemon may do."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdc.config import KafkaSection
from cdc.errors import ConnectionLostError
from cdc.kafka import rights
from cdc.kafka.clients import KafkaClients
from cdc.kafka.rights import Right, _Prober


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            KafkaError._TIMED_OUT,
            "Kafka at k:1 accepts connections but didn't answer in 10 s: it is starting, or overloaded. Try again",
        ),
        (KafkaError.REQUEST_TIMED_OUT, "Kafka at k:1 accepts connections but didn't answer in 10 s"),
        (KafkaError.BROKER_NOT_AVAILABLE, "Kafka doesn't report this daemon's rights: "),
    ],
)
def test_no_answer(monkeypatch: pytest.MonkeyPatch, code: int, says: str) -> None:
    def fail(_: _Prober, __: Right, ___: Collection[str]) -> bool:
        raise KafkaException(KafkaError(code))

    monkeypatch.setattr(_Prober, "has", fail)
    config = KafkaSection(bootstrap_servers="k:1", topic_prefix="shop")
    with pytest.raises(ConnectionLostError) as found:
        rights.missing("shop", config, KafkaClients("shop", config), [])
    assert str(found.value).startswith(says)
