"""What `status` makes of the daemon's answer, for people and for programs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from cdc.commands.status import readable, status
from cdc.config import parse
from cdc.ops.status import Status
from cdc.positions.vclock import VClock
from tests.ops.test_status import AWAY, FOLLOWED, SHORT


@pytest.fixture
def shown() -> dict[str, Any]:
    """/status of a daemon with three members."""
    found = Status("shop", state="streaming", upstream="a:3301", upstream_version="2.6.0", last_heard_at=time.monotonic())
    found.upstreams, found.surveyed_at = (FOLLOWED, SHORT, AWAY), time.monotonic()
    found.checkpoint = VClock({1: 17, 2: 5})
    return found.to_json()


def test_it_lists_the_members(shown: dict[str, Any]) -> None:
    lines = [line for line in readable(shown).splitlines() if line.startswith("member ")]
    assert [line.split()[1:3] for line in lines] == [["a:3301", "following;"], ["b:3301", "gap;"], ["c:3301", "unreachable;"]]
    assert "at {1: 20, 2: 5}, 0 rows behind the most advanced member; logs from {1: 10}; 12 rows before" in lines[0]
    assert "a gap of 2 rows" in lines[1]
    assert "can't connect" in lines[2]


def test_it_says_how_the_last_request_for_rows_ended(shown: dict[str, Any]) -> None:
    def told(error: str | None) -> list[str]:
        ended = {"id": "x", "spaces": ["users", "orders"], "rows": 7, "error": error}
        lines = readable({**shown, "last_snapshot_request": ended}).splitlines()
        return [line for line in lines if line.startswith("snapshot of ")]

    assert told(None) == ["snapshot of  users, orders: 7 rows published again"]
    assert told("the filter fails") == ["snapshot of  users, orders: 7 rows, and then it ended: the filter fails"]


def test_a_standby_names_the_one_that_publishes() -> None:
    found = Status("shop", "standby", standby_of="process 7 on there").to_json()
    assert found["standby"] == {"is_ready": False, "of": "process 7 on there"}
    assert "standby of process 7 on there, not ready to take over" in readable(found)


def test_readable_status_of_a_daemon_that_has_met_nobody() -> None:
    lines = dict(line.split(maxsplit=1) for line in readable(Status("shop").to_json()).splitlines())
    assert next(iter(lines.items())) == ("name", "shop")
    assert lines["upstream"] == "none yet"
    assert "None" not in "".join(lines.values())


@pytest.mark.parametrize("as_json", [False, True])
def test_for_people_or_as_the_daemon_gives_it(
    shown: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, as_json: bool
) -> None:
    values = {
        "name": "shop",
        "source": {"uris": ["m0:3301"]},
        "kafka": {"bootstrap_servers": "k:9092", "topic_prefix": "shop"},
        "state": {"path": str(tmp_path)},
        "tap": {"http": ""},  # a TAP server of this machine's isn't asked
    }
    monkeypatch.setattr("cdc.commands.status.ask", lambda *_, **__: shown)
    said: list[str] = []
    status(parse(values, "test"), said.append, as_json=as_json)
    if as_json:
        assert json.loads(said[0]) == shown
    else:
        assert said == [readable(shown)]
