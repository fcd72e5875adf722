"""Which member is followed: a table of rounds, each with what everybody answered, the time that was waited, and the outcome."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest

from cdc.errors import (
    CdcError,
    ConnectionLostError,
    ForeignServerError,
    PositionError,
    ProtocolError,
    ServerError,
    UnsupportedRowError,
)
from cdc.positions.vclock import VClock
from cdc.protocol.ballot import Ballot
from cdc.protocol.constants import ErrorCode
from cdc.protocol.failure import XlogGapError, parse_error
from cdc.upstream.overview import headroom_rows, overview
from cdc.upstream.selection import Answer, Choice, Needed, NobodyError, Rules, Standing, Wait, choose, is_of_one_member, standing

PUBLISHED = VClock({1: 15, 2: 3})
NEEDED = Needed(published=PUBLISHED, logs_from=PUBLISHED)
AT_ONCE = Rules(wait_ms=0)


def server_error(code: int, message: str = "it failed") -> CdcError:
    return parse_error({0: 0x8000 | code}, {0x31: message})


def answer(text: str, place: int = 0) -> Answer:
    """What a member says, in a word, or as `read-only 20,5 kept 10,0`: its vclock's components, and its gc_vclock's."""
    address = f"m{place}:3301"
    errors: dict[str, CdcError] = {
        "away": ConnectionLostError(f"can't connect to Tarantool at {address}: refused"),
        "says loading": server_error(ErrorCode.LOADING),
        "duplicate": server_error(ErrorCode.CFG, "duplicate connection with the same replica UUID"),
        "denied": server_error(ErrorCode.ACCESS_DENIED),
        "password": server_error(ErrorCode.PASSWORD_MISMATCH),
        "itself": server_error(ErrorCode.CONNECTION_TO_SELF),
        "another program": ProtocolError(f"{address}: the server's greeting is not Tarantool's"),
        "told of a gap": XlogGapError("the master has removed logs that are needed"),
    }
    if text in errors:
        return Answer(address, error=errors[text])
    if text == "loading":
        return Answer(address, Ballot(VClock(), VClock(), is_read_only=False, is_ready=False))
    kind, vclock, _, kept = text.split()
    ballot = Ballot(components(vclock), components(kept), is_read_only=kind == "read-only", is_ready=True)
    return Answer(address, ballot, "2.6.0", UUID(int=place))


def components(text: str) -> VClock:
    return VClock({origin: int(lsn) for origin, lsn in enumerate(text.split(","), 1)})


def answers(*texts: str) -> list[Answer]:
    return [answer(text, place) for place, text in enumerate(texts)]


GOOD, FURTHER, READ_ONLY = "writable 20,5 kept 10,0", "writable 90,9 kept 15,3", "read-only 15,3 kept 15,3"
BEHIND, FAR_BEHIND, GAP = "writable 14,9 kept 0,0", "writable 2,0 kept 0,0", "writable 20,5 kept 16,0"
BEHIND_AND_GAP = "writable 14,9 kept 12,9"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD, Standing.GOOD),
        ("writable 15,3 kept 15,3", Standing.GOOD),
        (BEHIND, Standing.BEHIND),
        ("writable 20,2 kept 0,0", Standing.BEHIND),
        (GAP, Standing.GAP),
        ("writable 20,5 kept 10,4", Standing.GAP),
        (BEHIND_AND_GAP, Standing.BEHIND),
        ("loading", Standing.LOADING),
        ("says loading", Standing.LOADING),
        ("away", Standing.UNREACHABLE),
        ("duplicate", Standing.UNREACHABLE),
        ("denied", Standing.REFUSED),
        ("password", Standing.REFUSED),
        ("itself", Standing.REFUSED),
        ("another program", Standing.REFUSED),
        ("told of a gap", Standing.GAP),
    ],
)
def test_standings(text: str, expected: Standing) -> None:
    assert standing(answer(text), NEEDED) is expected


@dataclass(frozen=True)
class Round:
    """One round: who answers what, and what comes of it: a place, `wait`, `wait short`, or words of the error."""

    members: tuple[str, ...]
    outcome: int | str
    waited_ms: float = 0
    prefer: str = "order"
    rules: tuple[tuple[str, str], ...] = ()


FAIL = (("on_gap", "fail"), ("on_divergence", "fail"))
RESNAPSHOT = (("on_gap", "resnapshot"), ("on_divergence", "resnapshot"))
LONG = 30_000

ROUNDS = {
    # Somebody is good.
    "the first": Round((GOOD, FURTHER), 0),
    "the first that has it": Round((BEHIND, GOOD), 1),
    "the first that keeps it": Round((GAP, GOOD), 1),
    "the only one that answers": Round(("away", "loading", "denied", GOOD), 3),
    "a replica": Round((GOOD, READ_ONLY, READ_ONLY), 1, prefer="replica"),
    "no replica that could be": Round((GOOD, "read-only 14,3 kept 0,0"), 0, prefer="replica"),
    "no replica": Round((FURTHER, GOOD), 0, prefer="replica"),
    "a leader": Round((READ_ONLY, GOOD, FURTHER), 1, prefer="leader"),
    "a leader that is behind": Round((READ_ONLY, BEHIND), 0, prefer="leader"),
    "one that waits for its earlier connection to go": Round(("duplicate", GOOD), 1),
    # One alone: the policies apply at once.
    "alone and away": Round(("away",), "wait"),
    "alone and loading": Round(("loading",), "wait"),
    "alone and behind": Round((BEHIND,), "on_divergence", rules=FAIL),
    "alone and behind, resnapshot": Round((BEHIND,), 0, rules=RESNAPSHOT),
    "alone with a gap": Round((GAP,), "on_gap", rules=FAIL),
    "alone with a gap, resnapshot": Round((GAP,), 0),
    "alone with a wrong password": Round(("password",), "password of source.uris"),
    # Several, nobody good.
    "nobody answers": Round(("away", "loading"), "wait", waited_ms=LONG * 9),
    "nobody answers but one that refuses": Round(("away", "denied"), "wait", waited_ms=LONG * 9),
    "behind, and one away": Round((BEHIND, "away"), "wait short", rules=FAIL),
    "behind, and one loading": Round((BEHIND, "loading"), "wait short", waited_ms=LONG - 1, rules=RESNAPSHOT),
    "behind, and one away for long": Round((BEHIND, "away"), "on_divergence", waited_ms=LONG, rules=FAIL),
    "all behind": Round((BEHIND, FAR_BEHIND), "wait short", rules=FAIL),
    "all behind for long": Round((BEHIND, FAR_BEHIND), "on_divergence", waited_ms=LONG, rules=FAIL),
    "all behind for long, resnapshot: the nearest": Round((FAR_BEHIND, BEHIND), 1, waited_ms=LONG, rules=RESNAPSHOT),
    "who refuses may have it": Round((BEHIND, "denied"), "wait short", rules=RESNAPSHOT),
    "gaps everywhere": Round((GAP, GAP), 0),
    "gaps everywhere, a replica": Round((GAP, "read-only 20,5 kept 16,0"), 1, prefer="replica"),
    "gaps everywhere, fail": Round((GAP, GAP), "on_gap", rules=FAIL),
    "a gap, and one away": Round((GAP, "away"), "wait short"),
    "a gap, and one away for long": Round((GAP, "away"), 0, waited_ms=LONG),
    "a gap, and one behind": Round((BEHIND, GAP), "wait short", rules=FAIL),
    "a gap goes before a divergence": Round((BEHIND, GAP), 1, waited_ms=LONG, rules=(("on_divergence", "fail"),)),
    "a gap that the stream told of": Round(("told of a gap", GAP), 0),
    "a gap that the stream told of, and one good": Round(("told of a gap", GOOD), 1),
    "behind and a gap is behind": Round((BEHIND_AND_GAP, "away"), "on_divergence", waited_ms=LONG, rules=FAIL),
    "when_needed takes a snapshot on any gap": Round((GAP, GAP), 0, rules=(*FAIL, ("mode", "when_needed"))),
    "all refuse": Round(("denied", "password"), "none of the 2 members"),
}


def outcome_of(case: Round) -> int | str:
    options: dict[str, Any] = {"prefer": case.prefer, **dict(case.rules)}
    try:
        found = choose(answers(*case.members), NEEDED, Rules(**options), waited_ms=case.waited_ms)
    except CdcError as error:
        return f"{error.remedy.value}: {error}"
    if isinstance(found, Wait):
        return "wait short" if found.is_short else "wait"
    return found.index


@pytest.mark.parametrize("name", ROUNDS)
def test_rounds(name: str) -> None:
    expected, found = ROUNDS[name].outcome, outcome_of(ROUNDS[name])
    if isinstance(found, str) and found.startswith("operator: "):
        assert str(expected) in found
    else:
        assert found == expected


def test_a_transcript_of_a_leader_that_restarts() -> None:
    """Until it is back the lagging replica is not taken for a lost history, and once it has caught up it would do."""
    rules = Rules(prefer="leader", on_divergence="fail")
    course = [
        (0.0, (GOOD, BEHIND), 0),
        (0.0, ("away", BEHIND), Wait),
        (3_000.0, ("says loading", BEHIND), Wait),
        (9_000.0, ("loading", "writable 15,9 kept 0,0"), 1),
        (0.0, (GOOD, "writable 15,9 kept 0,0"), 0),
    ]
    for waited_ms, texts, outcome in course:
        found = choose(answers(*texts), NEEDED, rules, waited_ms=waited_ms)
        assert isinstance(found, Wait) if outcome is Wait else isinstance(found, Choice) and found.index == outcome


def test_reports_have_both_vclocks_by_component() -> None:
    waiting = choose(answers(BEHIND, "away"), NEEDED, Rules(wait_ms=30_000), waited_ms=10_000)
    assert isinstance(waiting, Wait)
    assert waiting.reason == (
        "m0:3301 is behind: it is at {1: 14, 2: 9}, published is {1: 15, 2: 3} (origin 1: server 14, published 15); "
        "can't connect to Tarantool at m1:3301: refused (unreachable); source.on_divergence applies in 20 s"
    )
    with pytest.raises(PositionError, match=r"origin 1: server 14, published 15.*m1:3301.*source\.on_divergence"):
        choose(answers(BEHIND, "away"), NEEDED, AT_ONCE)
    with pytest.raises(
        PositionError, match=r"keeps logs from \{1: 16\}, needed from \{1: 15, 2: 3\} \(origin 1: needed from 15, kept from 16"
    ):
        choose(answers(GAP, GAP), NEEDED, Rules(on_gap="fail"))


def test_reasons_name_the_preference_and_who_was_passed_over() -> None:
    found = choose(answers("away", READ_ONLY, GOOD), NEEDED, Rules(prefer="replica"))
    assert isinstance(found, Choice)
    assert found.reason.startswith('read-only, as source.prefer = "replica" wants it; passed over: can\'t connect')
    assert not found.is_settled
    alone = choose(answers(GOOD, "away"), NEEDED, Rules(prefer="replica"))
    assert isinstance(alone, Choice)
    assert "finds none" in alone.reason


def test_errors_of_all_members_end_it_with_every_remedy_once() -> None:
    with pytest.raises(NobodyError) as caught:
        choose(answers("denied", "denied", "another program"), NEEDED, AT_ONCE)
    text = str(caught.value)
    assert text.count("box.schema.user.grant('<user>', 'replication')") == 1
    assert all(f"m{place}:3301" in text for place in range(3))
    error = answer("password").error
    with pytest.raises(ServerError) as alone:
        choose([Answer("m0:3301", error=error)], NEEDED, AT_ONCE)
    assert alone.value is error, "the only member's error is told as it is"


def test_a_gap_that_only_the_stream_tells_of_forces_the_snapshot() -> None:
    found = choose(answers("told of a gap", GAP), NEEDED, AT_ONCE)
    assert isinstance(found, Choice)
    assert found.is_settled
    assert found.snapshot is not None
    by_ballot = choose(answers(GAP, GAP), NEEDED, AT_ONCE)
    assert isinstance(by_ballot, Choice)
    assert (by_ballot.is_settled, by_ballot.snapshot) == (True, None)


def test_a_snapshot_needs_no_logs_but_all_that_was_published() -> None:
    needed = replace(NEEDED, takes_snapshot=True)
    behind = "m0:3301 is behind: it is at {1: 14, 2: 9}, published is {1: 15, 2: 3} (origin 1: server 14, published 15)"
    reason = f"the first of source.uris that can be followed; passed over: {behind}"
    assert choose(answers(BEHIND, GAP), needed, Rules()) == Choice(1, reason)
    # And where nobody has it in time, contents are read all the same: there is no position to fail on.
    found = choose(answers(FAR_BEHIND, BEHIND), needed, Rules(on_divergence="fail"), waited_ms=LONG)
    assert isinstance(found, Choice)
    assert found.index == 1
    first = choose(answers(BEHIND, GOOD), Needed(takes_snapshot=True), Rules())
    assert isinstance(first, Choice)
    assert first.index == 0


def test_origins_that_are_left_out_are_not_needed() -> None:
    needed = replace(NEEDED, ignored=frozenset({2}))
    assert standing(answer("writable 15,0 kept 15,0"), needed) is Standing.GOOD
    assert standing(answer("writable 15,9 kept 15,9"), needed) is Standing.GOOD
    assert standing(answer("writable 14,9 kept 0,0"), needed) is Standing.BEHIND
    assert standing(answer("writable 20,9 kept 16,0"), needed) is Standing.GAP


def test_whose_error_it_is() -> None:
    for text in ("away", "duplicate", "denied", "itself", "another program", "told of a gap", "says loading"):
        error = answer(text).error
        assert error is not None
        assert is_of_one_member(error), text
    assert is_of_one_member(server_error(ErrorCode.READONLY))
    assert is_of_one_member(server_error(ErrorCode.REPLICASET_UUID_MISMATCH))
    assert is_of_one_member(ForeignServerError("of another replica set"))
    for error in (UnsupportedRowError("a row"), PositionError("a position")):
        assert not is_of_one_member(error)


@pytest.mark.parametrize(
    ("logs_from", "kept", "rows"),
    [("15,3", "10,0", 8), ("15,3", "15,3", 0), ("15,3", "16,0", -1), ("15,3", "17,5", -4), ("15", "10,2", -2), ("", "", 0)],
)
def test_headroom(logs_from: str, kept: str, rows: int) -> None:
    ours, theirs = (components(text) if text else VClock() for text in (logs_from, kept))
    assert headroom_rows(ours, theirs) == rows


def test_headroom_without_an_origin() -> None:
    assert headroom_rows(components("15,3"), components("10,9"), frozenset({2})) == 5


def test_overview() -> None:
    found = overview(answers(GOOD, READ_ONLY, BEHIND, "away", GAP), NEEDED, followed=0)
    assert [(one.state, one.lag_rows, one.headroom_rows) for one in found] == [
        ("following", 4, 8),
        ("standby", 11, 0),
        ("behind", 6, 18),
        ("unreachable", None, None),
        ("gap", 4, -1),
    ]
    assert [one.error is None for one in found] == [True, True, False, False, False]
    assert found[1].is_read_only
    assert found[0].server_uuid == str(UUID(int=0))
    assert found[3].vclock is None


def test_overview_of_a_member_whose_connection_failed() -> None:
    denied, lost = server_error(ErrorCode.ACCESS_DENIED), ConnectionLostError("it broke")
    found = overview(answers(GOOD, GOOD), NEEDED, failures={0: denied, 1: lost})
    assert [one.state for one in found] == ["refused", "standby"]
    assert "grant" in (found[0].error or "")
    assert found[1].error == "it broke"
    assert overview(answers(GOOD), replace(NEEDED, takes_snapshot=True))[0].headroom_rows is None


@pytest.mark.parametrize("seed", range(300))
def test_whatever_is_chosen_can_be_followed(seed: int) -> None:
    """Any members, any rules: who is chosen without a policy has what is needed, and nobody preferred was passed over."""
    chance = random.Random(seed)
    kinds = ["away", "loading", "denied", "told of a gap", None, None, None, None]
    texts = []
    for _ in range(chance.randrange(1, 5)):
        kind = chance.choice(kinds)
        lsns = [chance.randrange(12, 18), chance.randrange(1, 6), chance.randrange(12, 18), chance.randrange(1, 6)]
        texts.append(kind or f"{chance.choice(['writable', 'read-only'])} {lsns[0]},{lsns[1]} kept {lsns[2]},{lsns[3]}")
    said = answers(*texts)
    prefer = chance.choice(["order", "replica", "leader"])
    rules: dict[str, Any] = {
        "prefer": prefer,
        "on_gap": chance.choice(["fail", "resnapshot"]),
        "on_divergence": chance.choice(["fail", "resnapshot"]),
    }
    good = [place for place, one in enumerate(said) if standing(one, NEEDED) is Standing.GOOD]
    try:
        found = choose(said, NEEDED, Rules(**rules), waited_ms=chance.choice([0, LONG]))
    except CdcError:
        assert not good
        return
    if isinstance(found, Wait):
        assert not good
    elif found.is_settled:
        assert not good
        assert "resnapshot" in rules.values()
    else:
        assert found.index in good
        wanted = (
            [p for p in good if (b := said[p].ballot) and b.is_read_only == (prefer == "replica")] if prefer != "order" else good
        )
        assert found.index == (wanted or good)[0]


OURS, OTHER = UUID(int=100), UUID(int=200)


def of(uuid: UUID | None, text: str, place: int = 0) -> Answer:
    return replace(answer(text, place), replicaset_uuid=uuid)


@pytest.mark.parametrize("text", [GOOD, BEHIND, GAP])
@pytest.mark.parametrize("rules", [Rules(), Rules(wait_ms=0, on_divergence="resnapshot"), Rules(mode="when_needed")])
@pytest.mark.parametrize("takes_snapshot", [False, True])
def test_no_policy_applies_to_another_replica_set(text: str, rules: Rules, takes_snapshot: bool) -> None:
    needed = replace(NEEDED, replicaset_uuid=OURS, takes_snapshot=takes_snapshot)
    assert standing(of(OTHER, text), needed) is Standing.REFUSED
    with pytest.raises(ForeignServerError, match=f"belongs to replica set {OTHER}, the checkpoint to {OURS}") as caught:
        choose([of(OTHER, text)], needed, rules, waited_ms=1e9)
    assert "resnapshot" not in str(caught.value)
    # Beside the right member it is passed over, and while that one is away it isn't taken in its place.
    chosen = choose([of(OTHER, text, 0), of(OURS, GOOD, 1)], needed, rules)
    assert isinstance(chosen, Choice)
    assert chosen.index == 1
    assert f"m0:3301: the server belongs to replica set {OTHER}" in chosen.reason
    waits = choose([answer("away", 0), of(OTHER, text, 1)], needed, rules, waited_ms=1e9)
    assert isinstance(waits, Wait)
    assert not waits.is_short


def test_members_of_another_replica_set_alone() -> None:
    needed = replace(NEEDED, replicaset_uuid=OURS)
    with pytest.raises(NobodyError, match="none of the 2 members") as caught:
        choose([of(OTHER, GOOD, 0), of(OTHER, GAP, 1)], needed, Rules(), waited_ms=1e9)
    assert "another replica set needs another name" in caught.value.hint


def test_a_first_start_with_two_replica_sets() -> None:
    """Nothing says which one is meant."""
    needed = Needed(takes_snapshot=True)
    with pytest.raises(ForeignServerError, match=f"leads to 2 replica sets: {OURS} at m0:3301, m2:3301; {OTHER} at m1:3301"):
        choose([of(OURS, GOOD, 0), of(OTHER, GOOD, 1), of(OURS, BEHIND, 2)], needed, Rules())
    chosen = choose([of(OURS, GOOD, 0), of(OURS, GOOD, 1), answer("away", 2)], needed, Rules())
    assert isinstance(chosen, Choice)


def test_overview_of_another_replica_set() -> None:
    needed = replace(NEEDED, replicaset_uuid=OURS)
    ours, other = overview([of(OURS, GOOD), of(OTHER, GOOD, 1)], needed)
    assert (ours.state, other.state) == ("standby", "refused")
    assert f"replica set {OTHER}" in (other.error or "")
