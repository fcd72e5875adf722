"""Ids of schemas: asked for by a thread, while the caller waits and sees why."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from cdc.formats.options import Registration
from cdc.registry.questions import Questions
from cdc.registry.schema_ids import SchemaIds, SchemaIdsChangedError
from tests.fakes.registry import FakeRegistry

WANTED = Registration("shop.users-value", "AVRO", '{"type":"record","name":"V","fields":[{"name":"id","type":"long"}]}')
RETYPED = Registration("shop.users-value", "AVRO", '{"type":"record","name":"V","fields":[{"name":"id","type":"string"}]}')


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry(first_id=7) as started:
        yield started


@pytest.fixture
def ids(registry: FakeRegistry) -> Iterator[SchemaIds]:
    started = SchemaIds(Questions({"url": registry.url}, auto_register=True), recheck_seconds=0.05)
    yield started
    started.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it doesn't happen"
        time.sleep(0.01)


def waited_for(ids: SchemaIds, wanted: Registration) -> int:
    deadline = time.monotonic() + 20
    while (found := ids.find(wanted)) is None:
        assert time.monotonic() < deadline, ids.waiting
        ids.wait(0.1)
    return found


def test_an_id_is_known_after_the_first_question(registry: FakeRegistry, ids: SchemaIds) -> None:
    assert waited_for(ids, WANTED) == 7
    count = len([one for one in registry.requests if one.endswith("/versions")])
    assert ids.find(WANTED) == 7
    assert count == 1
    assert ids.waiting is None


def test_the_reason_of_a_wait_is_seen_and_its_end(registry: FakeRegistry, ids: SchemaIds) -> None:
    registry.stop()
    assert ids.find(WANTED) is None
    until(lambda: ids.waiting is not None)
    waits = ids.waiting
    assert waits is not None
    assert (waits.subject, waits.reason) == ("shop.users-value", "away")
    assert "can't be reached" in waits.sentence
    assert waits.sentence.endswith("Start it, or correct format.registry.url")
    registry.start()
    assert waited_for(ids, WANTED) == 7
    assert ids.waiting is None


def test_a_refused_schema_is_asked_for_until_it_is_taken(registry: FakeRegistry, ids: SchemaIds) -> None:
    waited_for(ids, WANTED)
    assert ids.find(RETYPED) is None
    until(lambda: ids.waiting is not None and ids.waiting.reason == "incompatible")
    registry.compatibility = "NONE"
    assert waited_for(ids, RETYPED) == 8


def test_a_question_is_withdrawn(registry: FakeRegistry, ids: SchemaIds) -> None:
    registry.stop()
    ids.find(WANTED)
    until(lambda: ids.waiting is not None)
    ids.forget()
    assert ids.waiting is None
    registry.start()


def test_a_registry_that_has_lost_its_data_gives_other_ids(registry: FakeRegistry, ids: SchemaIds) -> None:
    waited_for(ids, WANTED)
    registry.forget(next_id=40)
    found: list[SchemaIdsChangedError] = []

    def is_told() -> bool:
        try:
            ids.check()
        except SchemaIdsChangedError as error:
            found.append(error)
        return bool(found)

    until(is_told)
    assert "has the id 40" in str(found[0])
    assert "which had 7" in str(found[0])
    assert ids.find(WANTED) == 40
    ids.check()


def test_a_former_schema_has_another_id_too_in_a_registry_that_has_lost_its_data(registry: FakeRegistry, ids: SchemaIds) -> None:
    """A space that gets its former format again must not get an id that is another schema's now."""
    registry.compatibility = "NONE"
    assert waited_for(ids, WANTED) == 7
    assert waited_for(ids, RETYPED) == 8
    registry.forget(next_id=7)
    # Either schema may be the first that is asked for, and gets the first id.
    until(lambda: registry.knows(ids.find(RETYPED), RETYPED.text))
    assert registry.knows(waited_for(ids, WANTED), WANTED.text)


def test_a_former_schema_may_be_deleted(registry: FakeRegistry, ids: SchemaIds) -> None:
    registry.compatibility = "NONE"
    waited_for(ids, WANTED)
    waited_for(ids, RETYPED)
    registry.subjects["shop.users-value"].remove(WANTED.text)
    count = len(registry.requests)
    until(lambda: len(registry.requests) > count + 1)
    ids.check()
    assert registry.subjects["shop.users-value"] == [RETYPED.text]


def test_a_restart_with_its_data_changes_nothing(registry: FakeRegistry, ids: SchemaIds) -> None:
    waited_for(ids, WANTED)
    registry.stop()
    registry.start()
    count = len(registry.requests)
    until(lambda: len(registry.requests) > count + 1)
    ids.check()
    assert ids.find(WANTED) == 7
