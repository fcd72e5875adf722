"""Which daemon owns a topic prefix, and whether that daemon is running."""

from __future__ import annotations

import itertools
import math

import pytest

from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.stream.commits import ownership
from cdc.stream.commits.checkpoint import Checkpoint, Sign, Writer, fold, owner_record, position_record, sign_record
from cdc.stream.commits.ownership import APART_SECONDS, SIGN_SECONDS, SILENCE_SECONDS, Listening, PrefixTakenError

Records = list[tuple[bytes, bytes | None]]


def folded(records: Records, name: str) -> Checkpoint:
    checkpoint = Checkpoint()
    for key, value in records:
        fold(name, key, value, checkpoint)
    return checkpoint


def published(name: str, ts_ms: int, writer: str = "w") -> tuple[bytes, bytes]:
    position = Position(VClock({1: 5}), 5, snapshot=SnapshotState(1, is_complete=True))
    return position_record(name, position, Writer(writer, has_store=True), ts_ms)


def sign(name: str, writer: str, *, is_last: bool = False) -> tuple[bytes, bytes]:
    return sign_record(name, Sign(writer, "host", 7, 100, is_last))


# The prefix.


def test_who_claims_first_has_it_whatever_compaction_leaves() -> None:
    log: Records = [owner_record("a", 1), published("a", 2), owner_record("b", 3), published("b", 9), published("a", 11)]
    compacted = sorted(((place, key) for place, (key, _) in enumerate(log) if key not in [k for k, _ in log[place + 1 :]]))
    for records in (log, [log[place] for place, _ in compacted]):
        assert ownership.owner(folded(records, "a")) == ownership.owner(folded(records, "b")) == "a"


def test_two_that_claim_at_once_agree() -> None:
    """Each reads, claims and reads again, in any order; whoever finds another before itself gives up."""
    for order in set(itertools.permutations("aaabbb")):
        log: Records = []
        steps = {"a": 0, "b": 0}
        owners = set()
        seen: dict[str, Checkpoint] = {}
        for name in order:
            step = steps[name] = steps[name] + 1
            if step == 2:
                if ownership.owner(seen[name]) in (None, name):
                    log += ownership.claims(seen[name], name, 1)
                continue
            seen[name] = folded(log, name)
            if step == 3 and name in seen[name].owners:
                if ownership.owner(seen[name]) == name:
                    owners.add(name)
                else:
                    log.append(owner_record(name, None))
        assert len(owners) == 1, order
        assert ownership.owner(folded(log, "c")) in owners


def test_topics_from_before_there_were_claims() -> None:
    assert ownership.owner(Checkpoint()) is None
    assert ownership.owner(folded([published("a", 1)], "b")) == "a"
    assert ownership.owner(folded([published("a", 1), published("b", 2), published("a", 1)], "b")) == "b"
    # One that was started there and refused has published nothing.
    refused = position_record("b", Position(), Writer("w", has_store=True), 5)
    assert ownership.owner(folded([published("a", 1), refused], "b")) == "a"


def test_what_a_second_name_is_told() -> None:
    stored = folded([owner_record("orders", 0), published("orders", 1_700_000_000_000)], "shop")
    with pytest.raises(PrefixTakenError) as caught:
        ownership.check(stored, "q", "shop")
    text = str(caught.value)
    for word in ("'q'", "'orders'", "2023-11-14 22:13:20 UTC", "topic_prefix of its own", "--take-prefix"):
        assert word in text
    ownership.check(stored, "q", "orders")


def test_a_prefix_that_is_taken() -> None:
    log: Records = [owner_record("a", 1), owner_record("b", 2)]
    log += ownership.claims(folded(log, "c"), "c", 3, takes=True)
    assert folded(log, "a").owners == {"c": 3}
    assert ownership.claims(folded(log, "c"), "c", 4) == ownership.claims(folded(log, "c"), "c", 4, takes=True) == []


def test_records_about_daemons_are_passed_over_by_a_reader_of_positions() -> None:
    """Also by one that is older than these records: it passes over all names but its own, and nobody is called ''."""
    stored = folded([published("a", 1), owner_record("a", 1), sign("a", "w")], "a")
    assert stored.position is not None
    for key, _ in (owner_record("a", 1), sign("a", "w")):
        assert b'"name":""' in key


# The name.


@pytest.mark.parametrize(
    ("records", "ours", "is_gone"),
    [
        ([], [], True),
        ([published("a", 1, "w")], [], False),
        ([published("a", 1, "w")], ["v", "w"], True),
        ([published("a", 1, "w")], ["v"], False),
        ([published("a", 1, "w"), sign("a", "w")], [], False),
        ([published("a", 1, "w"), sign("a", "w", is_last=True)], [], True),
        # A process that was fenced ends too, and says so after its successor has begun.
        ([published("a", 1, "w"), sign("a", "v", is_last=True)], [], False),
        ([sign("a", "w")], [], False),
        ([published("b", 1, "w"), sign("b", "w")], [], True),
    ],
)
def test_who_is_known_to_be_gone(records: Records, ours: list[str], is_gone: bool) -> None:
    assert ownership.is_known_gone(folded(records, "a"), "a", ours) == is_gone


def test_a_daemon_that_gives_signs_is_at_work() -> None:
    listening = Listening(0.0)
    now, heard = 0.0, 0
    while not listening.is_running:
        now += SIGN_SECONDS
        heard += 1
        listening.record_sign(now)
        assert not listening.is_gone(now)
    assert heard == 1 + math.ceil(APART_SECONDS / SIGN_SECONDS)
    assert now < SILENCE_SECONDS


def test_what_a_killed_daemon_had_sent_is_no_sign_of_life() -> None:
    listening = Listening(0.0)
    for now in (0.2, 0.3, 0.9, 1.6):
        listening.record_sign(now)
    assert not listening.is_running
    assert not listening.is_gone(1.6 + SILENCE_SECONDS - 0.1)
    assert listening.is_gone(1.6 + SILENCE_SECONDS)


def test_what_was_sent_before_kafka_fell_silent_is_no_sign_of_life_behind_it() -> None:
    listening = Listening(0.0)
    listening.record_sign(0.5)
    for second in range(1, 20):
        listening.record_outage(float(second))
    for now in (20.0, 20.1):
        listening.record_sign(now)
    assert not listening.is_running
    listening.record_sign(20.0 + APART_SECONDS)
    assert listening.is_running


def test_silence_of_kafka_is_no_silence_of_the_daemon() -> None:
    listening = Listening(0.0)
    for second in range(30):
        listening.record_outage(float(second))
        assert not listening.is_gone(float(second))
    assert listening.is_gone(29 + SILENCE_SECONDS)


# The id in Kafka.


def test_an_id_stands_for_one_pair_of_name_and_prefix() -> None:
    words = ["shop", "shop.eu", "eu", "shop/eu", "eu/shop", "/", ""]
    prefixes = [word for word in words if "/" not in word]
    ids = {ownership.transactional_id(name, prefix): (name, prefix) for name in prefixes for prefix in prefixes}
    assert len(ids) == len(prefixes) ** 2
    assert ownership.transactional_id("shop", "shop") == "shop"
    assert ownership.transactional_id("shop", "staging") == "staging/shop"


def test_the_id_of_an_older_version_is_to_be_fenced_once() -> None:
    old = folded([published("shop", 1)], "shop")
    assert ownership.former_id(old, "shop", "staging") == "shop"
    assert ownership.former_id(old, "shop", "shop") is None
    assert ownership.former_id(Checkpoint(), "shop", "staging") is None
    writer = Writer("w", has_store=True, transactional_id="staging/shop")
    position = Position(VClock({1: 5}), 5, snapshot=SnapshotState(1, is_complete=True))
    new = folded([published("shop", 1), position_record("shop", position, writer, 2)], "shop")
    assert ownership.former_id(new, "shop", "staging") is None
