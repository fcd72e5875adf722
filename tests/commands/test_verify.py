"""`verify` says soon that a stream stands still, and what for; and what became of a store that isn't there."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from cdc.commands import verify
from cdc.config import parse
from cdc.config.columns import ColumnsRule
from cdc.errors import ConnectionLostError, StateError
from cdc.events.columns import ColumnRules
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.protocol.extensions import OpaqueExtension
from cdc.protocol.session import Event, Heartbeat, Subscribed
from cdc.schema.forms import Field, KeyPart, SpaceForm
from cdc.sources.connection import Connection
from cdc.stream.pipeline import Pipeline
from tests.fakes.wire import pack


@dataclass
class Master:
    """Accepts a SUBSCRIBE and says from then on that it is well, if it does."""

    is_heard: bool
    address: str = "m:3301"
    acks: int = 0
    events: list[Event] = field(default_factory=list)

    @property
    def session(self) -> Any:
        def acknowledgement(_: VClock) -> bytes:
            return b"ack"

        def subscribe(*_: object, **__: object) -> None:
            self.events.append(Subscribed(1, VClock({1: 9}), None))

        return SimpleNamespace(subscribe=subscribe, acknowledgement=acknowledgement)

    def send(self) -> None:
        """Nothing is lost."""

    def send_bytes(self, data: bytes) -> None:
        assert data == b"ack"
        self.acks += 1

    def unread(self, events: list[Event]) -> None:
        self.events = [*events, *self.events]

    def receive(self, timeout_seconds: float) -> list[Event]:
        if self.events:
            found, self.events = self.events, []
            return found
        CLOCK[0] += timeout_seconds
        return [Heartbeat(0.0)] if self.is_heard else []


CLOCK = [0.0]


@pytest.mark.parametrize(
    ("waiting", "open_bytes", "is_heard", "seconds", "words"),
    [
        (2, 0, True, verify.STANDSTILL_SECONDS, "2 transactions wait for their quorum"),
        (0, 7, True, verify.STANDSTILL_SECONDS, "in the middle of a transaction"),
        (0, 0, True, verify.STANDSTILL_SECONDS, "name another member of the replica set first"),
        (0, 0, False, verify.STREAM_TIMEOUT_SECONDS, "stays at {1: 5}"),
    ],
)
def test_a_stream_that_stands_still(
    monkeypatch: pytest.MonkeyPatch, waiting: int, open_bytes: int, is_heard: bool, seconds: float, words: str
) -> None:
    CLOCK[0] = 0.0
    monkeypatch.setattr("cdc.commands.verify.time.monotonic", lambda: CLOCK[0])
    monkeypatch.setattr("cdc.sources.handshake.time.monotonic", lambda: CLOCK[0])
    pipeline = SimpleNamespace(
        position=Position(VClock({1: 5}), replicaset_uuid=UUID(int=1)),
        limbo=SimpleNamespace(transaction_count=waiting),
        open_byte_count=open_bytes,
        images=SimpleNamespace(),  # nothing comes that would go there
        heartbeat=lambda _: iter(()),
    )
    verifier = object.__new__(verify._Verifier)
    verifier._config = cast(Any, SimpleNamespace(source=SimpleNamespace(mode="anonymous")))
    master = Master(is_heard)
    with pytest.raises(ConnectionLostError) as caught:
        verifier._catch_up(cast(Connection, master), cast(Pipeline, pipeline))
    assert words in str(caught.value)
    assert "m:3301" in str(caught.value)
    assert seconds <= CLOCK[0] <= seconds + 2
    assert master.acks, "a silent replica is dropped"


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    """It may be lost, or in another place: that the daemon has never run is only one of the reasons."""
    values: dict[str, Any] = {
        "name": "shop",
        "source": {"uris": ["h:1"]},
        "kafka": {"bootstrap_servers": "k:1", "topic_prefix": "shop"},
        "state": {"path": str(tmp_path / "state")},
    }
    with pytest.raises(StateError) as caught:
        verify.verify(parse(values, "the test"), lambda _: None)
    text = str(caught.value)
    assert text.startswith(f"there is no state store in {tmp_path}/state/images (state.path). If it is somewhere else, ")
    for words in (
        "correct state.path",
        "has never run, its first run makes it",
        "lost, start the daemon once with --rebuild-state",
    ):
        assert words in text


def test_differences_are_shown_as_events_show_rows() -> None:
    fields = tuple(Field(name, "any", is_nullable=True) for name in ("id", "email", "city"))
    form = SpaceForm(512, "users", fields, (KeyPart(0, "", "unsigned"),))
    space = verify._Space(form, 512, ColumnRules([ColumnsRule(spaces="users", exclude=["email"], mask={"city": "***"})]))
    ours, theirs = pack([1, "secret", "secret"]), pack([1, "secret too", "secret"])
    assert not space.shows_alike(ours, theirs), "what differs is found in columns that aren't shown, too"
    row = {"id": 1, "city": "***"}
    assert json.loads(space.line("different", ours, theirs, None)) == {
        "space": "users",
        "key": {"id": 1},
        "what": "different",
        "ours": row,
        "theirs": row,
    }
    unkeyed = pack([OpaqueExtension(99, b"secret"), "secret"])
    assert "secret" not in space.line("missing", None, unkeyed, None)
    assert b"secret".hex() not in space.line("missing", None, unkeyed, None)
