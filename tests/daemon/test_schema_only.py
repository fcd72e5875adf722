"""A start that needs no rows (`snapshot.mode = "never"`, no images) reads a snapshot no further than the spaces' forms."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cdc.commands.watch_output import EventOutput
from cdc.config import parse
from cdc.daemon.beginning import Beginning, Goal, RunContext
from cdc.daemon.follower import Follower
from cdc.daemon.start import known_before
from cdc.ops.status import Status
from cdc.sources.handshake import greet, vote
from cdc.store.writer import StateWriter
from cdc.stream.commits.checkpoint import Checkpoint
from cdc.upstream.start import plan
from tests.daemon.test_ack_intervals import ServedMaster

ROWS, BYTES = 30_000, 3_000_000


@pytest.fixture
def served() -> Iterator[ServedMaster]:
    served = ServedMaster()
    served.write(ROWS)
    yield served
    served.close()


@pytest.mark.parametrize(
    ("images", "mode", "reads_all"), [("none", "never", False), ("full", "never", True), ("none", "initial", True)]
)
def test_how_far_a_snapshot_is_read(tmp_path: Path, served: ServedMaster, images: str, mode: str, reads_all: bool) -> None:
    sections: dict[str, Any] = {
        "source": {"uris": [f"{served.master.user}:{served.master.password}@127.0.0.1:{served.port}"]},
        "kafka": {"bootstrap_servers": "127.0.0.1:1", "topic_prefix": "shop"},
        "state": {"path": str(tmp_path), "images": images},
        "snapshot": {"mode": mode},
    }
    config = parse({"name": "x", **sections}, "the test")
    writer = StateWriter(tmp_path / "images", "x", 0.0) if images == "full" else None
    connection = greet(config.source.members()[0], uuid4(), frame_bytes_max=config.source.frame_bytes_max)
    checkpoint, ballot, is_stopping = Checkpoint(), vote(connection), threading.Event()
    descriptor = os.open(os.devnull, os.O_WRONLY)
    sink = EventOutput(descriptor, lambda _: b"", is_stopping, on_turn=lambda: None, tell=list[str]().append)
    beginning = Beginning(known_before(config, checkpoint, writer), checkpoint, sink, writer, Goal(until_caught_up=True))
    follower = Follower(
        RunContext(config, Status("x"), is_stopping), beginning, connection, plan(beginning.known, ballot), ballot
    )
    try:
        # False: another connection has to continue, as this one would still send the rows.
        assert follower.run() is reads_all
        assert (connection.received_bytes > BYTES) is reads_all
        position = checkpoint.position
        assert position is not None
        assert position.snapshot is not None
        assert position.snapshot.is_complete
        assert [form.name for form in checkpoint.published_forms()] == ["users"]
    finally:
        connection.close()
        os.close(descriptor)
        if writer is not None:
            writer.close()
