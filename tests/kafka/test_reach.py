"""When the daemon considers a Kafka client lost: by the times of its answers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdc.errors import ConnectionLostError
from cdc.kafka import reach
from cdc.kafka.reach import LOOK_SECONDS, Reach

FOUND, NONE_FOUND = SimpleNamespace(brokers={1: None}), KafkaError._TRANSPORT
ASKING_SECONDS = 2.0


class Clock:
    """Goes on when it is told to, and while a client waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now


class Client:
    """Answers as it is told, the last answer again and again."""

    def __init__(self, clock: Clock, *answers: SimpleNamespace | int) -> None:
        self._clock = clock
        self._answers = list(answers)
        self.asked = 0

    def list_topics(self, topic: str, timeout_seconds: float) -> SimpleNamespace:
        """Of one topic."""
        assert topic == "shop.checkpoint"
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, int):
            self._clock.now += timeout_seconds
            raise KafkaException(KafkaError(answer))
        return answer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(reach, "time", made)
    return made


def wait(clock: Clock, one: Reach, seconds: float, step_seconds: float = 1.0) -> None:
    """Something doesn't come for so long."""
    end = clock.now + seconds
    while clock.now <= end:
        one.check()
        clock.now += step_seconds


def made(client: Client, new: Client) -> Reach:
    return Reach([client], lambda: new, "shop.checkpoint", ConnectionLostError)


@pytest.mark.parametrize("step_seconds", [0.01, 5.0, LOOK_SECONDS])
def test_one_that_finds_no_broker_where_another_does_is_lost(clock: Clock, step_seconds: float) -> None:
    client = Client(clock, NONE_FOUND)
    began = clock.now
    with pytest.raises(ConnectionLostError, match="doesn't find any broker"):
        wait(clock, made(client, Client(clock, FOUND)), 60, step_seconds)
    assert clock.now - began <= 2 * LOOK_SECONDS + 2 * ASKING_SECONDS


@pytest.mark.parametrize(
    "new", [SimpleNamespace(brokers={}), NONE_FOUND, KafkaError._TIMED_OUT, KafkaError._AUTHENTICATION], ids=str
)
def test_one_that_does_no_better_says_nothing(clock: Clock, new: SimpleNamespace | int) -> None:
    """Kafka is away, or has no brokers for anybody."""
    client = Client(clock, NONE_FOUND)
    wait(clock, made(client, Client(clock, new)), 60)
    assert client.asked >= 3


def test_brokers_that_come_back_between_the_questions(clock: Clock) -> None:
    client = Client(clock, NONE_FOUND, FOUND)
    wait(clock, made(client, Client(clock, FOUND)), 60)
    assert client.asked >= 3


@pytest.mark.parametrize("answer", [FOUND, KafkaError._TIMED_OUT, KafkaError.TOPIC_AUTHORIZATION_FAILED], ids=str)
def test_one_that_found_a_broker_isnt_compared(clock: Clock, answer: SimpleNamespace | int) -> None:
    client, new = Client(clock, answer), Client(clock, FOUND)
    wait(clock, made(client, new), 60)
    assert client.asked >= 3
    assert new.asked == 0


def test_what_comes_in_time_is_no_reason_to_ask(clock: Clock) -> None:
    client = Client(clock, NONE_FOUND)
    one = made(client, Client(clock, FOUND))
    for _ in range(20):
        wait(clock, one, LOOK_SECONDS / 2)
        clock.now += 2 * LOOK_SECONDS
    assert client.asked == 0


def test_each_of_several_is_asked(clock: Clock) -> None:
    well, lost, new = Client(clock, FOUND), Client(clock, NONE_FOUND), Client(clock, FOUND)
    with pytest.raises(ConnectionLostError):
        wait(clock, Reach([well, lost], lambda: new, "shop.checkpoint", ConnectionLostError), 60)
    assert (well.asked, lost.asked) == (1, 2)
