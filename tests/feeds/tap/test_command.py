"""What `tap` is told on its command line."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from cdc import config
from cdc.errors import ConfigurationError
from cdc.feeds.tap.command import _allow_connections, tap


@pytest.mark.parametrize("to", ["", "cache", ":11211", "cache:", "cache:0", "cache:65536", "cache:x"])
def test_where_no_memcached_can_be(tmp_path: Path, to: str) -> None:
    values = {
        "name": "shop",
        "source": {"uris": ["localhost:1"]},
        "kafka": {"bootstrap_servers": "localhost:1", "topic_prefix": "shop"},
        "tap": {"path": tmp_path / "tap"},
    }
    with pytest.raises(ConfigurationError, match="--to") as raised:
        tap(config.parse(values, "the test"), to)
    assert f"--to {to} is no address" in str(raised.value)
    assert not (tmp_path / "tap").exists()


@pytest.mark.parametrize(
    ("name", "value"), [("key", "json_schema"), ("value", "json_schema"), ("envelope", "flat"), ("source", "lean")]
)
def test_topics_that_the_server_cannot_read(tmp_path: Path, name: str, value: str) -> None:
    values = {
        "name": "shop",
        "source": {"uris": ["localhost:1"]},
        "kafka": {"bootstrap_servers": "localhost:1", "topic_prefix": "shop"},
        "tap": {"path": tmp_path / "tap"},
        "format": {name: value},
    }
    with pytest.raises(ConfigurationError, match=f'the TAP server needs format.{name} = "'):
        tap(config.parse(values, "the test"), None)
    assert not (tmp_path / "tap").exists()


@pytest.mark.parametrize("routing", [{"topic": "v2.{space}"}, {"rules": [{"spaces": "a", "topic": "b"}]}])
def test_rules_for_topics(tmp_path: Path, routing: dict[str, Any]) -> None:
    values = {
        "name": "shop",
        "source": {"uris": ["localhost:1"]},
        "kafka": {"bootstrap_servers": "localhost:1", "topic_prefix": "shop"},
        "tap": {"path": tmp_path / "tap"},
        "routing": routing,
    }
    with pytest.raises(ConfigurationError, match=r"the configuration has rules for topics") as raised:
        tap(config.parse(values, "the test"), None)
    assert "a second daemon" in raised.value.hint
    assert not (tmp_path / "tap").exists()


@pytest.mark.parametrize(
    ("soft", "hard", "expected", "is_said"),
    [
        (1_024, 4_096, (1_500, 4_096), False),
        (1_024, 1_200, (1_200, 1_200), True),
        (2_000, 4_096, None, False),
        (1_024, resource.RLIM_INFINITY, (1_500, resource.RLIM_INFINITY), False),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None, False),
    ],
)
def test_as_many_files_as_connections(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    soft: int,
    hard: int,
    expected: tuple[int, int] | None,
    is_said: bool,
) -> None:
    """Most systems let a process have 1,024 files unless it asks for more."""
    set_: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_.append(limits))
    _allow_connections(1_000)
    assert set_ == ([expected] if expected is not None else [])
    assert ("raise its limit of open files" in capsys.readouterr().out) is is_said
