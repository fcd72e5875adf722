"""What answers mean, and the writer: against the stand-in, and against the real server."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterator

import pytest
from opensearchpy.exceptions import ConnectionError as LostError
from opensearchpy.exceptions import TransportError

from cdc.local.opensearch import OpenSearch
from spark_jobs.errors import JobError
from spark_jobs.feeds.bulk import Action, Place, chunks, decide, delays, newest, request
from spark_jobs.feeds.opensearch import Address, Indexes, Writer, sender
from tests.spark.feeds.fake_opensearch import FakeBulk

INDEX = "things.write"


def action(identity: str, version: int, text: str = "a", into: str = INDEX) -> Action:
    return Action(into, identity, version, json.dumps({"text": text, "n": version}), Place("shop.things", 0, version))


def unpaused(seconds: float) -> None:
    assert seconds > 0


@pytest.mark.parametrize(
    ("status", "kind", "outcome"),
    [
        (200, "", "done"),
        (201, "", "done"),
        (409, "version_conflict_engine_exception", "done"),
        (429, "es_rejected_execution_exception", "again"),
        (503, "unavailable_shards_exception", "again"),
        (500, "exception", "again"),
        (403, "cluster_block_exception", "again"),
        (400, "mapper_parsing_exception", "refused"),
        (413, "too_large", "refused"),
        (404, "index_not_found_exception", "missing"),
    ],
)
def test_what_an_answer_means(status: int, kind: str, outcome: str) -> None:
    item = {"index": {"status": status, **({"error": {"type": kind, "reason": "why"}} if status >= 300 else {})}}
    decision = decide([action("1", 5)], [item])
    found = {
        "again": bool(decision.again),
        "refused": bool(decision.refused),
        "missing": decision.missing == INDEX,
    }
    assert [name for name, holds in found.items() if holds] == ([] if outcome == "done" else [outcome])
    if decision.refused:
        assert decision.refused[0].place == Place("shop.things", 0, 5)
        assert decision.refused[0].sentence.startswith("topic shop.things, partition 0, offset 5: OpenSearch refuses (4")
        assert "mapper_parsing_exception: why" in decision.refused[0].sentence or status == 413
        assert "--on-error dead-letter" in decision.refused[0].sentence


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (
            "failed to parse field [b] of type [boolean] in document with id '{\"id\":7}'. Preview of field's value: 'secret'",
            "failed to parse field [b] of type [boolean]",
        ),
        (
            'Document contains at least one immense term in field="u" (longer than 32766), all of which were skipped. The prefix '
            "of the first immense term is: '[120, 120'",
            'Document contains at least one immense term in field="u" (longer than 32766)',
        ),
        ('For input string: "secret"', "For input string"),
    ],
)
def test_no_message_shows_a_value_of_the_row(reason: str, shown: str) -> None:
    item = {"index": {"status": 400, "error": {"type": "mapper_parsing_exception", "reason": reason}}}
    (refused,) = decide([action('{"mail":"a@b"}', 5)], [item]).refused
    assert f"(400 mapper_parsing_exception: {shown})" in refused.sentence
    assert "secret" not in refused.sentence
    assert "a@b" not in refused.sentence


def test_deletes_are_sent_and_a_missing_document_is_no_failure() -> None:
    fake = FakeBulk()
    gone = Action(INDEX, "9", 5, None, Place("", 0, 0), "external_gte")
    writer = Writer(fake, 60, unpaused)
    assert writer.write([action("1", 5), action("2", 5)]) == []
    older, same = (Action(INDEX, key, version, None, Place("", 0, 0), "external_gte") for key, version in (("1", 4), ("2", 5)))
    assert writer.write([gone, older, same]) == []
    assert {identity for _, identity in fake.documents} == {"1"}


def test_requests_are_bounded_and_have_each_document_once() -> None:
    actions = [action(str(n % 3), n) for n in range(9)]
    assert [[one.version for one in chunk] for chunk in chunks(actions, 4, 10**6)] == [[3, 1, 2], [7, 5, 6], [8]]
    assert [len(chunk) for chunk in chunks(actions, 100, 2 * actions[0].size)] == [2, 2, 2, 2, 1]
    (first,) = newest([action("1", 5), action("1", 4), action("1", 6), action("1", 5)])
    assert [first.version, first.older and first.older.version, first.older and first.older.older] == [
        *(6, 5),
        action("1", 4),
    ]
    assert request([action('{"id":"\n"}', 5)]).count("\n") == 2


def test_waits_grow_and_end() -> None:
    found = list(delays(30))
    assert found == sorted(found)
    assert found[0] == 0.1
    assert max(found) == 10
    assert 30 <= sum(found) < 40
    assert list(delays(0)) == []


def test_what_is_busy_is_asked_again_with_what_it_did_not_take() -> None:
    fake = FakeBulk()
    fake.troubles = [429, LostError("N/A", "gone", Exception()), TransportError(503, "unavailable"), 503]
    assert Writer(fake, 60, unpaused).write([action(str(n), n) for n in range(4)]) == []
    assert fake.requests == [4, 2, 2, 2, 1]
    assert {identity for _, identity in fake.documents} == {"0", "1", "2", "3"}


def test_patience_counts_from_the_last_progress_and_ends() -> None:
    waited: list[float] = []
    fake = FakeBulk()
    fake.troubles = [429] * 3 + [TransportError(503, "unavailable")] * 100
    with pytest.raises(JobError, match=r"didn't accept 1 documents in 5 s.*503 unavailable.*Nothing is lost"):
        Writer(fake, 5, waited.append).write([action(str(n), n) for n in range(4)])
    assert sum(waited) < 5 * 2 + 2


def test_a_request_that_is_too_large_is_halved() -> None:
    fake = FakeBulk()
    too_large = TransportError(413, "too large")
    fake.troubles = [too_large, too_large, too_large, None, None]
    refused = Writer(fake, 60, unpaused).write([action(str(n), n) for n in range(4)])
    assert fake.requests == [4, 2, 1, 1, 2]
    assert [one.place.offset for one in refused] == [0]
    assert len(fake.documents) == 3


@pytest.mark.parametrize("status", [401, 403])
def test_who_may_not_write_is_told_so(status: int) -> None:
    fake = FakeBulk()
    fake.troubles = [TransportError(status, "security_exception")]
    with pytest.raises(JobError, match="doesn't let the job write"):
        Writer(fake, 60, unpaused).write([action("1", 1)])


class Aliases:
    """A client's `indices` that gives one answer after another."""

    def __init__(self, *troubles: Exception) -> None:
        self.indices = self
        self.troubles = list(troubles)

    def update_aliases(self, body: object) -> None:
        assert body == {"actions": [{}]}
        if self.troubles:
            raise self.troubles.pop(0)


def test_an_index_that_is_blocked_for_a_while_is_waited_for() -> None:
    blocked = TransportError(403, "cluster_block_exception")
    fake = FakeBulk()
    fake.troubles = [blocked, 403]
    assert Writer(fake, 60, unpaused).write([action("1", 1)]) == []
    client = Aliases(blocked)
    Indexes(client, pause=unpaused).change_aliases([{}])
    assert not client.troubles


def test_an_index_is_looked_after_with_patience() -> None:
    busy = TransportError(503, "unavailable")
    client = Aliases(busy, LostError("N/A", "gone", Exception()))
    Indexes(client).change_aliases([{}])
    assert not client.troubles
    with pytest.raises(JobError, match=r"no answer in 0 s.*503 unavailable"):
        Indexes(Aliases(busy), 0).change_aliases([{}])
    with pytest.raises(JobError, match="doesn't let the job write"):
        Indexes(Aliases(TransportError(403, "security_exception"))).change_aliases([{}])


Stored = Callable[[], dict[str, int]]


@pytest.fixture(params=["fake", pytest.param("real", marks=[pytest.mark.live, pytest.mark.xdist_group("spark")])])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[Writer, str, Stored]]:
    """A writer, an index to write to, and a function that shows its documents' versions."""
    index = f"bulk-{uuid.uuid4().hex[:8]}"
    if request.param == "fake":
        fake = FakeBulk()
        fake.indexes = {index}
        yield Writer(fake, 60, unpaused), index, lambda: {key[1]: found[0] for key, found in fake.documents.items()}
        return
    server: OpenSearch = request.getfixturevalue("opensearch")
    client = Address((server.url,)).connect()
    mapping = {"mappings": {"dynamic": "strict", "properties": {"text": {"type": "keyword"}, "n": {"type": "long"}}}}
    client.indices.create(index=f"{index}-1", body={**mapping, "aliases": {index: {}}})

    def stored() -> dict[str, int]:
        client.indices.refresh(index=index)
        answer = client.search(index=index, body={"size": 1000, "version": True})
        return {hit["_id"]: hit["_version"] for hit in answer["hits"]["hits"]}

    yield Writer(sender(client), 60), index, stored
    client.close()


def test_events_may_come_again_late_and_in_any_order(place: tuple[Writer, str, Stored], seed: int) -> None:
    writer, index, stored = place
    random_ = random.Random(seed)
    events = [action(f'{{"id":{random_.randrange(10)}}}', version, into=index) for version in range(1, 101)]
    newest_of = {event.identity: event.version for event in events}
    shuffled = events + random_.sample(events, 50)
    random_.shuffle(shuffled)
    for some in (shuffled[start : start + 20] for start in range(0, len(shuffled), 20)):
        assert writer.write(newest(some)) == []
    assert stored() == newest_of


def test_a_refused_document_does_not_hold_up_others(place: tuple[Writer, str, Stored]) -> None:
    writer, index, stored = place
    bad = Action(index, "2", 2, '{"text":"refuse me","n":"no number"}', Place("shop.things", 1, 44))
    (refused,) = writer.write([action("1", 1, into=index), bad, action("3", 3, into=index)])
    assert refused.place == bad.place
    assert "mapper_parsing_exception" in refused.sentence
    assert stored() == {"1": 1, "3": 3}


def test_the_newest_good_version_is_stored_beside_refused_ones(place: tuple[Writer, str, Stored]) -> None:
    writer, index, stored = place
    bad = [
        Action(index, "1", version, '{"text":"refuse me","n":"no number"}', Place("shop.things", 1, version))
        for version in (7, 8)
    ]
    events = [action("1", 5, into=index), bad[1], action("2", 9, into=index), bad[0], action("1", 6, into=index)]
    refused = writer.write(newest(events))
    assert [one.place.offset for one in refused] == [8, 7]
    assert stored() == {"1": 6, "2": 9}


def test_an_index_that_is_gone_ends_the_job_instead_of_being_made_without_its_mapping(place: tuple[Writer, str, Stored]) -> None:
    writer, _, _ = place
    with pytest.raises(JobError, match=r"no nowhere any more.*new --checkpoint"):
        writer.write([action("1", 1, into="nowhere")])
