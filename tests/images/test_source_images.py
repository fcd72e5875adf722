"""Images from the log's own rows: the same events as the state store's, and never half of them."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.config import parse
from cdc.daemon.start import options_of
from cdc.errors import ConfigurationError, EncodingError
from cdc.protocol.codec import FrameDecoder
from cdc.protocol.compiled_frames import frame_decoder
from cdc.protocol.constants import Key, Type
from cdc.stream.batches.batch import Broadcast
from tests.fakes import wire
from tests.fakes.master import Master
from tests.fakes.pipelines import NOW_US, pipeline
from tests.fakes.profiles import SOME
from tests.fakes.replica import Replica
from tests.fakes.workload import Workload
from tests.stream.batches.test_compiled_rows import BEGIN, USERS, spaces

STORED = spaces([("id", "unsigned"), ("name", "string")], [(0, "unsigned")])
OLD, NEW = [1, "old"], [1, "new"]


def events(replica: Replica) -> list[tuple[Any, ...]]:
    """What was published of users' spaces: topic, key, operation and images."""
    found: list[tuple[Any, ...]] = []
    for message in replica.topics.committed:
        if isinstance(message, Broadcast):
            found.append((message.topic, "t"))
            continue
        topic, key, value = message
        if value is not None and (event := msgspec.json.decode(value)) and "op" in event:
            found.append((topic, key, event["op"], event["before"], event["after"]))
    return found


@SOME
@given(seed=st.integers(0, 2**32), version=st.sampled_from(["2.11", "3.3"]))
def test_the_events_are_those_of_the_state_store(seed: int, version: str) -> None:
    """But for a DELETE that found nothing: the log doesn't tell that."""
    rng, master = random.Random(seed), Master(version)
    master.writes_images = True
    stored, own = Replica(master, images=True), Replica(master, has_source_images=True)
    for replica in (stored, own):
        replica.connect()
    Workload(master, rng, simple=True).run(60)
    for replica in (stored, own):
        replica.relay.relay()
        replica.relay.heartbeat()
        replica.receive()
        replica.commit()
    found = [event for event in events(own) if event[2:] != ("d", None, None)]
    assert found == events(stored)


def changes(kind: int, body: dict[int, Any], *, is_python: bool = False, **options: Any) -> list[tuple[Any, ...]]:
    """The events of one row."""
    target = pipeline(BEGIN, STORED, has_source_images=True, **options)
    header = {Key.REQUEST_TYPE: kind, Key.REPLICA_ID: 1, Key.LSN: BEGIN.vclock[1] + 1, Key.TIMESTAMP: 2.5}
    frame = wire.frame(header, {Key.SPACE_ID: USERS, **body})
    decoder = FrameDecoder() if is_python else frame_decoder()
    messages = [message for batch in target.feed(decoder.feed(frame), NOW_US) for message in batch.messages]
    found: list[tuple[Any, ...]] = []
    for message in messages:
        assert isinstance(message, tuple)
        topic, key, value = message
        event = msgspec.json.decode(value) if value is not None else {}
        if topic == "shop.users":
            assert "server_version" not in event.get("source", {}), "nobody has to apply operations"
            found.append((key, event.get("op"), event.get("before"), event.get("after")))
        elif topic == "shop.dlq":
            found.append((topic, event["error"]))
    return found


def shown(row: list[Any]) -> dict[str, Any]:
    return dict(zip(("id", "name"), row, strict=True))


@pytest.mark.parametrize("is_python", [False, True])
@pytest.mark.parametrize(
    ("kind", "body", "event"),
    [
        (Type.INSERT, {Key.TUPLE: NEW, Key.NEW_TUPLE: NEW}, ("c", None, shown(NEW))),
        (Type.INSERT, {Key.TUPLE: NEW}, ("c", None, shown(NEW))),
        (Type.REPLACE, {Key.TUPLE: NEW, Key.OLD_TUPLE: OLD, Key.NEW_TUPLE: NEW}, ("u", shown(OLD), shown(NEW))),
        (Type.REPLACE, {Key.TUPLE: NEW, Key.NEW_TUPLE: NEW}, ("c", None, shown(NEW))),
        (Type.UPDATE, {Key.KEY: [1], Key.TUPLE: [], Key.OLD_TUPLE: OLD, Key.NEW_TUPLE: NEW}, ("u", shown(OLD), shown(NEW))),
        (Type.UPSERT, {Key.TUPLE: NEW, Key.OPS: [], Key.OLD_TUPLE: OLD, Key.NEW_TUPLE: NEW}, ("u", shown(OLD), shown(NEW))),
        (Type.UPSERT, {Key.TUPLE: NEW, Key.OPS: [], Key.NEW_TUPLE: NEW}, ("c", None, shown(NEW))),
    ],
)
def test_each_request(kind: int, body: dict[int, Any], event: tuple[Any, ...], is_python: bool) -> None:
    assert changes(kind, body, is_python=is_python) == [(b'{"id":1}', *event)]


@pytest.mark.parametrize("is_python", [False, True])
def test_a_delete(is_python: bool) -> None:
    tombstone = (b'{"id":1}', None, None, None)
    found = changes(Type.DELETE, {Key.KEY: [1], Key.OLD_TUPLE: OLD}, is_python=is_python)
    assert found == [(b'{"id":1}', "d", shown(OLD), None), tombstone]
    # It may have found nothing; or the server writes no images, and then it must not be lost.
    assert changes(Type.DELETE, {Key.KEY: [1]}, is_python=is_python) == [(b'{"id":1}', "d", None, None), tombstone]


@pytest.mark.parametrize("is_python", [False, True])
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Type.REPLACE, {Key.TUPLE: NEW}),
        (Type.UPDATE, {Key.KEY: [1], Key.TUPLE: [["=", 1, "new"]]}),
        (Type.UPDATE, {Key.KEY: [1], Key.TUPLE: [["=", 1, "new"]], Key.OLD_TUPLE: OLD}),
        (Type.UPSERT, {Key.TUPLE: NEW, Key.OPS: [["=", 1, "new"]]}),
    ],
)
def test_a_row_without_images_is_refused(kind: int, body: dict[int, Any], is_python: bool) -> None:
    """The server isn't Enterprise, or doesn't write images."""
    with pytest.raises(EncodingError, match=r"the row has no images.*wal_ext = \{old = true, new = true\}"):
        changes(kind, body, is_python=is_python)
    ((topic, error),) = changes(kind, body, is_python=is_python, on_error="dlq")
    assert topic == "shop.dlq"
    assert "the row has no images" in error


def test_the_rows_of_a_snapshot_come_as_without_images() -> None:
    """In the compiled path: a server's snapshot has no images."""
    master = Master("3.3")
    master.writes_images = True
    replica = Replica(master, has_source_images=True)
    master.create_space("users", [{"name": "id", "type": "unsigned"}, {"name": "name", "type": "string"}])
    for number in range(3):
        master.insert("users", number, "x")
    replica.connect()
    assert [event[2:] for event in events(replica)] == [("r", None, {"id": number, "name": "x"}) for number in range(3)]


def test_the_configuration() -> None:
    sections: dict[str, Any] = {
        "name": "shop",
        "source": {"uris": ["a@a:1"], "exclude_origins": [2]},
        "kafka": {"bootstrap_servers": "a:1", "topic_prefix": "shop"},
    }
    config = parse({**sections, "state": {"images": "source"}}, "the test")
    assert options_of(config).has_source_images
    with pytest.raises(ConfigurationError, match=r'exclude_origins needs state\.images = "none" or "source"'):
        parse(sections, "the test")
