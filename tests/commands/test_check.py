"""What `check` reads in system spaces: whether a user may write where a registered daemon has to. And how it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc.commands import check as command
from cdc.commands.check import Examination, check
from cdc.commands.check_members import may_write
from cdc.commands.check_start import Finding
from cdc.config import parse
from cdc.config.shard import Shard
from cdc.errors import ConfigurationError, Remedy
from cdc.kafka import topic_admin
from cdc.local.ports import free_port
from cdc.protocol.system_spaces import CLUSTER_SPACE

# As 2.6 has them. Users 0 and 1 are guest and admin, 2 and 3 the roles public and replication.
USERS: list[list[Any]] = [
    [0, 1, "guest", "user", {}],
    [1, 1, "admin", "user", {}],
    [2, 1, "public", "role", {}],
    [3, 1, "replication", "role", {}],
    [32, 1, "cdc", "user", {}],
    [33, 1, "of the space", "user", {}],
    [34, 1, "of all spaces", "user", {}],
    [35, 1, "of the universe", "user", {}],
    [36, 1, "reader", "user", {}],
    [37, 1, "of another space", "user", {}],
    [38, 1, "operators", "role", {}],
    [39, 1, "by a role of a role", "user", {}],
    [40, 1, "in a circle of roles", "user", {}],
    [41, 1, "circle", "role", {}],
]
PRIVILEGES: list[list[Any]] = [
    [1, 0, "role", 2, 4],
    [1, 0, "universe", 0, 24],
    [1, 1, "universe", 0, 4294967295],
    [1, 2, "space", 276, 2],
    [1, 2, "space", 330, 2],
    [1, 2, "function", CLUSTER_SPACE, 4],
    [1, 3, "space", CLUSTER_SPACE, 2],
    [1, 3, "universe", 0, 1],
    [1, 32, "role", 2, 4],
    [1, 32, "role", 3, 4],
    [1, 32, "universe", 0, 24],
    [1, 33, "space", CLUSTER_SPACE, 2],
    [1, 34, "space", "", 2],
    [1, 35, "universe", 0, 27],
    [1, 36, "universe", 0, 25],
    [1, 36, "space", CLUSTER_SPACE, 1],
    [1, 37, "space", 512, 2],
    [1, 38, "role", 3, 4],
    [1, 39, "role", 38, 4],
    [1, 40, "role", 41, 4],
    [1, 41, "role", 41, 4],
]


@pytest.mark.parametrize(
    ("user", "may"),
    [
        ("admin", True),
        ("cdc", True),
        ("of the space", True),
        ("of all spaces", True),
        ("of the universe", True),
        ("by a role of a role", True),
        ("guest", False),
        ("reader", False),
        ("of another space", False),
        ("in a circle of roles", False),
        ("nobody", False),
    ],
)
def test_who_may_register(user: str, may: bool) -> None:
    assert may_write(user, CLUSTER_SPACE, USERS, PRIVILEGES) is may


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What doesn't answer at once never does."""
    monkeypatch.setattr(topic_admin, "ADMIN_TIMEOUT_SECONDS", 1.0)
    monkeypatch.setattr(topic_admin, "_LOGIN_SECONDS", 0.5)


def said(directory: Path, kafka: str, master: str, **more: Any) -> list[str]:
    """By `check`, of a configuration with which the daemon couldn't work at once."""
    values: dict[str, Any] = {
        "name": "shop",
        "source": {"uris": [master]},
        "kafka": {"bootstrap_servers": kafka, "topic_prefix": "shop"},
        "state": {"path": str(directory)},
    }
    lines: list[str] = []
    assert not check(parse(values | more, "the test"), lines.append)
    return lines


@pytest.mark.usefixtures("impatient")
def test_servers_that_are_not_there_are_waited_for(tmp_path: Path) -> None:
    kafka, master = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    lines = said(tmp_path, kafka, master)
    assert lines[0].startswith(
        f"kafka: FAILED: Kafka can't be reached at {kafka}: Connect to {kafka} failed: Connection refused. "
    )
    assert any(line.startswith(f"{master}: FAILED: ") for line in lines)
    assert lines[-1] == "run would wait until that is over: 2 failures"
    assert said(tmp_path, kafka, master, state={"path": "/proc/nope"})[-1].startswith("run would stop: "), "nothing mends that"


@pytest.mark.usefixtures("impatient")
def test_a_standby_that_cannot_be_is_told_as_run_does(tmp_path: Path) -> None:
    values = {
        "name": "shop",
        "standby": True,
        "source": {"uris": [f"127.0.0.1:{free_port()}"]},
        "kafka": {"bootstrap_servers": f"127.0.0.1:{free_port()}", "topic_prefix": "shop"},
        "state": {"path": str(tmp_path)},
    }
    own = parse(values, "the test")
    shard = Shard("s1", "shop", "shop", ("s1", "s2"), shares_topics=True)
    lines: list[str] = []
    assert not check(own.model_copy(update={"kafka": own.kafka.of_shard(shard)}), lines.append)
    assert lines[0].startswith('standby: FAILED: standby = true needs fleet.topics = "per_shard"')
    assert lines[-1].startswith("run would stop: ")


def test_a_missing_salt_is_said_before_anything_connects() -> None:
    values = {
        "name": "shop",
        "source": {"uris": ["127.0.0.1:1"]},
        "kafka": {"bootstrap_servers": "127.0.0.1:1", "topic_prefix": "shop"},
        "columns": {"salt_file": "missing", "rules": [{"spaces": "users", "hash": ["email"]}]},
    }
    lines: list[str] = []
    with pytest.raises(ConfigurationError, match=r"columns\.salt_file can't be read"):
        check(parse(values, "the test"), lines.append)
    assert not lines


@pytest.mark.parametrize(
    ("findings", "outcome"),
    [
        ([], "run would start"),
        ([Finding("fleet.topics", "equal keys", loses_rows=True)], "run would start, and consumers would lose rows: 1 failure"),
        ([Finding("a", "b", loses_rows=True), Finding("spaces", "none")], "run would stop: 2 failures"),
        ([Finding("name", "it is frozen", is_silence=True)], "the daemon runs, and stands still: 1 failure"),
        ([Finding("state.path", "it was removed", is_of_running=True)], "the daemon runs: 1 failure"),
        ([Finding("topics", "one is gone", is_failure=False, loses_rows=True)], "run would start"),
    ],
)
def test_outcomes(monkeypatch: pytest.MonkeyPatch, findings: list[Finding], outcome: str) -> None:
    found = Examination(findings, [Remedy.OPERATOR for finding in findings if finding.is_failure])
    monkeypatch.setattr(command, "examine", lambda *_: found)
    lines: list[str] = []
    kafka = {"bootstrap_servers": "k:1", "topic_prefix": "shop"}
    is_well = check(parse({"name": "shop", "source": {"uris": ["h:1"]}, "kafka": kafka}, "the test"), lines.append)
    assert (lines[-1], is_well) == (outcome, not found.failures)
