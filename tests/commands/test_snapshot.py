"""What `snapshot` asks of the running daemon, and when there is nothing to ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc.commands.snapshot import snapshot
from cdc.config import Config, parse
from cdc.errors import ConfigurationError


def config(tmp_path: Path, images: str) -> Config:
    values = {
        "name": "shop",
        "source": {"uris": ["m0:3301"]},
        "kafka": {"bootstrap_servers": "k:9092", "topic_prefix": "shop"},
        "state": {"images": images, "path": str(tmp_path)},
    }
    return parse(values, "test")


def test_it_names_the_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def ask(name: str, _: Any, path: str, question: Any, _access: Any) -> dict[str, Any]:
        asked.append((name, path, question))
        return {"id": f"http-{len(asked)}", "spaces": question["spaces"]}

    monkeypatch.setattr("cdc.commands.snapshot.ask", ask)
    said: list[str] = []
    snapshot(config(tmp_path, "full"), "execute", ["users", "orders"], said.append)
    snapshot(config(tmp_path, "full"), "execute", ["users"], said.append, where="row.id > 7")
    assert asked == [
        ("shop", "/snapshot", {"spaces": ["users", "orders"]}),
        ("shop", "/snapshot", {"spaces": ["users"], "where": "row.id > 7"}),
    ]
    assert "all rows of users, orders" in said[0]
    assert "chosen rows of users" in said[1]
    assert [f"request http-{number};" in line for number, line in enumerate(said, 1)] == [
        True,
        True,
    ]  # by which notifications name the requests


def test_other_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("cdc.commands.snapshot.ask", lambda _, __, path, question, ___: asked.append((path, question)))
    settings = config(tmp_path, "full")
    for action, spaces in (("stop", ["users"]), ("stop", []), ("pause", []), ("resume", [])):
        snapshot(settings, action, spaces, print)
    assert asked == [
        ("/snapshot/stop", {"spaces": ["users"]}),
        ("/snapshot/stop", {}),
        ("/snapshot/pause", {}),
        ("/snapshot/resume", {}),
    ]


def test_what_makes_no_sense(tmp_path: Path) -> None:
    settings = config(tmp_path, "full")
    with pytest.raises(ConfigurationError, match="name the spaces"):
        snapshot(settings, "execute", [], print)
    with pytest.raises(ConfigurationError, match="--pause takes no spaces"):
        snapshot(settings, "pause", ["users"], print)
    with pytest.raises(ConfigurationError, match="--stop takes no --where"):
        snapshot(settings, "stop", [], print, where="true")


def test_without_a_store_there_are_no_rows_to_publish_again(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"state\.images.*snapshot\.mode"):
        snapshot(config(tmp_path, "none"), "execute", ["users"], print)
