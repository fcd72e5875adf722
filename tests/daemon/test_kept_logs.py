"""Whether a member still has the log after a standby's store, and when that is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from cdc.config import parse
from cdc.config.source import Member
from cdc.daemon import kept_logs
from cdc.daemon.kept_logs import LOOK_SECONDS, KeptLogs
from cdc.errors import ConnectionLostError
from cdc.positions.vclock import VClock
from cdc.protocol.ballot import Ballot
from cdc.upstream.selection import Answer, Needed

SET, OTHER = UUID(int=1), UUID(int=2)
S, K = VClock({1: 30}), VClock({1: 50})
NEEDED = Needed(published=K, logs_from=S, replicaset_uuid=SET)
URIS = ["a:3301", "b:3302"]


def answer(kept_from: int, *, reached: int = 60, of: UUID = SET, is_ready: bool = True) -> Answer:
    """The answer of a member that keeps its logs from there on."""
    ballot = Ballot(VClock({1: reached}), VClock({1: kept_from}), is_read_only=False, is_ready=is_ready)
    return Answer("m", ballot, replicaset_uuid=of if is_ready else None)


DOWN = Answer("m", error=ConnectionLostError("down"))
HAS, LACKS = answer(30), answer(31)


class Members:
    """What members answer, whom they were asked, and what time it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers = {"a:3301": HAS, "b:3302": HAS}
        self.asked: list[str] = []
        self.now = 100.0
        monkeypatch.setattr(kept_logs, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(kept_logs, "ask", self._ask)

    def _ask(self, member: Member, _: float) -> Answer:
        self.asked.append(member.address)
        return self.answers[member.address]


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> Members:
    return Members(monkeypatch)


def logs(**source: Any) -> KeptLogs:
    kafka = {"bootstrap_servers": "k:9092", "topic_prefix": "shop"}
    return KeptLogs(parse({"name": "shop", "source": {"uris": URIS, **source}, "kafka": kafka}, "test").source)


@pytest.mark.parametrize(
    ("one", "are_there"),
    [
        pytest.param(HAS, True, id="from the store on"),
        pytest.param(LACKS, False, id="from a row later on"),
        pytest.param(answer(30, reached=49), False, id="it lags behind the checkpoint"),
        pytest.param(DOWN, False, id="it is down"),
        pytest.param(answer(30, is_ready=False), False, id="it is loading"),
        pytest.param(answer(30, of=OTHER), False, id="of another replica set"),
    ],
)
def test_one_member_with_the_log_is_enough(members: Members, one: Answer, *, are_there: bool) -> None:
    members.answers = dict.fromkeys(URIS, LACKS) | {"a:3301": one}
    assert logs().look(NEEDED, 1) == are_there
    assert members.asked == ["b:3302", "a:3301"], "the one that is followed is asked first"


def test_nobody_else_is_asked_if_the_followed_one_has_it(members: Members) -> None:
    """Another one may be down, and a takeover would wait for it."""
    assert logs().look(NEEDED, 1)
    assert members.asked == ["b:3302"]


def test_a_yes_is_asked_for_each_time_and_a_no_only_now_and_then(members: Members) -> None:
    found = logs()
    assert found.look(NEEDED, 0)
    members.answers = dict.fromkeys(URIS, LACKS)
    assert not found.look(NEEDED, 0), "logs may be removed at any time"
    members.answers["b:3302"], members.asked = HAS, []
    assert not found.look(NEEDED, 0)
    assert not members.asked
    members.now += LOOK_SECONDS
    assert found.look(NEEDED, 0)


def test_a_no_says_nothing_of_a_later_position(members: Members) -> None:
    members.answers = dict.fromkeys(URIS, LACKS)
    found = logs()
    assert not found.look(NEEDED, 0)
    assert found.look(replace(NEEDED, logs_from=VClock({1: 31})), 0)


def test_a_snapshot_that_is_taken_anyway_needs_the_log_too(members: Members) -> None:
    """It is compared with the store's rows, and these have to be brought up first."""
    members.answers = dict.fromkeys(URIS, LACKS)
    assert not logs().look(replace(NEEDED, takes_snapshot=True), 0)


def test_only_a_store_that_stands_still_behind_the_checkpoint_is_looked_at(members: Members) -> None:
    found = logs()
    for lsn in range(30, 40):
        assert not found.is_look_due(VClock({1: lsn}), K), "it goes on"
        members.now += LOOK_SECONDS
    for _ in range(3):
        assert not found.is_look_due(K, K), "it is there"
        members.now += LOOK_SECONDS
    assert not found.is_look_due(S, K)
    members.now += LOOK_SECONDS
    assert found.is_look_due(S, K)
    members.answers = dict.fromkeys(URIS, LACKS)
    assert not found.look(NEEDED, 0)
    assert not found.is_look_due(S, K), "it has just been looked at"
    assert not found.are_there
    members.now += LOOK_SECONDS
    assert found.is_look_due(S, K)
    assert not found.is_look_due(K, K)
    assert found.are_there, "the rows have come"


@pytest.mark.usefixtures("members")
def test_a_password_that_cannot_be_read_is_no_answer(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret")
    found = logs(user="cdc", password_file=str(file))
    assert found.look(NEEDED, 0)
    file.unlink()
    assert not found.look(NEEDED, 0)
