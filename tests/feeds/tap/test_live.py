"""What is looked for on the topics for one client: the keys that a space had, and where a date is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cdc.errors import ConnectionLostError
from cdc.feeds.tap import live, topic_thread
from cdc.feeds.tap.changes import Changes
from cdc.feeds.tap.live import LiveReader
from cdc.feeds.tap.merging import Batch
from cdc.kafka import reach
from tests.feeds.tap.broker import PREFIX, Broker, Reader
from tests.live.waiting import wait_for

_USERS = f"{PREFIX}.users"
_BYTES = 1 << 20


@pytest.fixture
def broker() -> Broker:
    """A space in two partitions, with two rows that a TRUNCATE takes, and one that comes after it."""
    broker = Broker()
    broker.change(1, 1, "a")
    broker.change(2, 2, "b", partition=1)
    broker.change(3, 3, "c")
    broker.change(4, 3, None)
    broker.empty(5)
    broker.change(6, 4, "d")
    return broker


def _former_keys(broker: Broker, seq: int = 5) -> list[bytes] | None:
    changes = Changes(PREFIX, "{space}:{key}", 1024, lambda _: True, is_packed=False)
    found = broker.topics().former_keys(changes, "users", seq, _BYTES)
    return sorted(key for key, _ in found) if found is not None else None


def test_keys_of_a_space_that_was_emptied(broker: Broker) -> None:
    assert _former_keys(broker) == [b"users:1", b"users:2"]


def test_a_partition_that_came_later_and_has_nothing_is_not_waited_for(broker: Broker) -> None:
    broker.create(_USERS, 3)
    assert _former_keys(broker) == [b"users:1", b"users:2"]


def test_a_space_that_was_given_the_name_has_brought_its_rows(broker: Broker) -> None:
    """What is told of it is read where it is written: the live reader may come to it after the change."""
    broker.form(0, 1, "users")
    assert _former_keys(broker) == [b"users:1", b"users:2"]
    broker.form(4, 2, "users", former="people")
    assert _former_keys(broker) is None


def test_what_another_program_wrote_hinders_nobody(broker: Broker) -> None:
    broker.logs[_USERS, 0].messages.insert(1, (b"?", b"no event"))
    assert _former_keys(broker) == [b"users:1", b"users:2"]


def test_changes_under_another_prefix_have_the_name_of_their_daemon() -> None:
    """MirrorMaker has renamed the topics, but not what is in them."""
    original, copy = Broker(), Broker()
    for seq in range(1, 4):
        original.change(seq, seq, "a")
    for (topic, number), log in original.logs.items():
        for key, value in log.messages:
            copy.write(f"dc1.{topic}", key, value, number)
    read: list[Batch] = []
    changes = Changes("dc1.shop", "{space}:{key}", 1024, lambda _: True, is_packed=False)
    reader = LiveReader(copy.topics(topic_prefix="dc1.shop"), changes, 0, read.append)
    reader.start()
    wait_for("what there is", lambda: reader.seq == 3)
    reader.stop()
    reader.join()
    assert copy.topics(topic_prefix="dc1.shop").newest_seq() == 3


@pytest.mark.parametrize("change", [lambda broker: broker.expire(_USERS), lambda broker: broker.logs.clear()])
def test_keys_that_nobody_knows_any_more(broker: Broker, change: Callable[[Broker], Any]) -> None:
    change(broker)
    assert _former_keys(broker) is None


def test_a_topic_that_was_made_anew_knows_nothing(broker: Broker) -> None:
    broker.logs.clear()
    broker.change(6, 4, "d")
    assert _former_keys(broker) is None


def test_changes_that_come_while_a_date_is_looked_for_are_newer(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topics, list_offsets = broker.topics(), broker.list_offsets

    def grown(wanted: dict[Any, Any], **settings: Any) -> dict[Any, Any]:
        found = list_offsets(wanted, **settings)
        if any("Timestamp" in type(spec).__name__ for spec in wanted.values()):
            for answer in found.values():
                answer.result().offset = -1  # nothing is as new
            broker.change(7, 5, "e")
        return found

    monkeypatch.setattr(broker, "list_offsets", grown)
    assert topics.since(0) == 6


def test_silence_is_said_while_keys_are_looked_for(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that waited for ever would keep the server from its end."""
    monkeypatch.setattr(live, "_TIMEOUT_SECONDS", 0.0)
    monkeypatch.setattr(Reader, "consume", lambda *_: [])
    with pytest.raises(ConnectionLostError):
        _former_keys(broker)


def test_no_answer_is_said(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(**_: Any) -> Any:
        raise ConnectionLostError("no broker answers")

    monkeypatch.setattr(broker, "list_topics", none)
    with pytest.raises(ConnectionLostError):
        broker.topics().since(0)


def test_a_reader_that_finds_no_broker_any_more_begins_again(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(topic_thread, "_RETRY_SECONDS", 0.01)
    read: list[Batch] = []
    changes = Changes(PREFIX, "{space}:{key}", 1024, lambda _: True, is_packed=False)
    reader = LiveReader(broker.topics(), changes, 0, read.append)
    reader.start()
    wait_for("what there is", lambda: reader.seq == 6)
    broker.strand()
    broker.change(7, 5, "e")
    wait_for("what comes", lambda: reader.seq == 7)
    reader.stop()
    reader.join()
    assert [number for batch in read for number in range(batch.first, batch.last + 1)] == [1, 2, 3, 4, 5, 6, 7]
