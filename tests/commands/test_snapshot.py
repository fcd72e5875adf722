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
    monkeypatch.setattr("cdc.commands.snapshot.ask", lambda name, _, path, question: asked.append((name, path, question)))
    said: list[str] = []
    snapshot(config(tmp_path, "full"), ["users", "orders"], said.append)
    assert asked == [("shop", "/snapshot", {"spaces": ["users", "orders"]})]
    assert "users, orders" in said[0]


def test_without_a_store_there_are_no_rows_to_publish_again(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"state\.images.*snapshot\.mode"):
        snapshot(config(tmp_path, "none"), ["users"], print)
