"""A daemon that holds its state directory, and stands still: by what it shows itself, or by what a fleet's process says of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cdc.commands import silence
from cdc.config import parse
from cdc.daemon.admission import StateDirectoryLock
from cdc.errors import RequestError
from cdc.ops.asking import SilentError
from cdc.ops.silence import Silence
from cdc.stream.commits.checkpoint import Checkpoint

OF_FLEET = SilentError(f"the daemon 'shop' doesn't answer at a:1: its process {os.getpid()} has answered nothing", "Wait.")


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        ({"is_stuck": False, "error": "Kafka is away"}, None),
        ({"error": None}, None),
        ({"is_stuck": True, "error": "its thread is busy"}, "the daemon 'shop' runs, and stands still: its thread is busy"),
        (OF_FLEET, OF_FLEET.message),
        (RequestError("it refuses"), None),
    ],
    # The text of an error has the number of this process, and all processes must find the same tests.
    ids=["well", "older", "stuck", "frozen, by the fleet", "refuses"],
)
def test_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: Any, told: str | None) -> None:
    def ask(*_: object, **__: object) -> Any:
        if isinstance(shown, Exception):
            raise shown
        return shown

    monkeypatch.setattr(silence, "ask", ask)
    kafka = {"bootstrap_servers": "k:1", "topic_prefix": "shop"}
    state = {"path": str(tmp_path), "images": "none"}
    config = parse({"name": "shop", "source": {"uris": ["h:1"]}, "kafka": kafka, "state": state}, "the test")
    assert silence.of_running(config, Checkpoint()) is None, "it doesn't run"
    lock = StateDirectoryLock(config)
    found = silence.of_running(config, Checkpoint())
    lock.close()
    remedy = "Wait." if shown is OF_FLEET else f"`kill -9 {os.getpid()}` ends it if it is stuck"
    assert found == (None if told is None else Silence(told, found.remedy if found is not None else ""))
    assert found is None or found.remedy.startswith(remedy)
