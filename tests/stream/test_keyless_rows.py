"""Rows without a valid primary key: 2.6.0's UPSERTs of vinyl make them, and the server's snapshots then have them.

One such row goes by `format.on_error`, and holds nothing else.
"""

from __future__ import annotations

from typing import Any

import pytest

from cdc.errors import SchemaError
from cdc.protocol.constants import TYPE_NAMES, Type
from tests.fakes.master import Master
from tests.fakes.replica import Replica
from tests.fakes.shop import USERS, Sent, read

KEYS = pytest.mark.parametrize(
    ("parts", "keyless", "reason"),
    [
        ([(0, "unsigned")], [], "has no primary key"),
        ([(0, "unsigned"), (1, "string")], [7], "has no primary key"),
        ([(0, "unsigned"), {"field": 2, "type": "unsigned", "path": "id"}], [7, "x", {"no": 1}], "has no primary key"),
        ([(0, "unsigned"), {"field": 2, "type": "unsigned", "path": "id"}], [7, "x", 5], "has no primary key"),
    ],
    ids=["empty", "short", "no path", "no map"],
)
IMAGES = pytest.mark.parametrize("images", [True, False], ids=["images", "no images"])
ON_ERROR = pytest.mark.parametrize("on_error", ["fail", "dlq"])


def life(parts: list[Any], *, engine: str = "vinyl", **options: Any) -> tuple[Master, Replica]:
    """A master with ten good rows, and a replica that hasn't connected yet."""
    master = Master("2.6")
    master.create_space("users", [*USERS[:2], {"name": "more", "type": "any", "is_nullable": True}], parts, engine=engine)
    for number in range(10):
        master.insert("users", number, "name", {"id": number})
    return master, Replica(master, **options)


def break_row(master: Master, tuple_: list[Any]) -> None:
    """Let the contents have such a row twice, in the middle."""
    rows = master._spaces[512].rows
    good = list(rows.items())
    rows.clear()
    rows |= {**dict(good[:5]), b"broken": tuple_, b"again": tuple_, **dict(good[5:])}


def news(replica: Replica) -> list[Sent]:
    """Events and dead letters that were committed."""
    return [sent for sent in map(read, replica.news()) if sent.op or sent.topic == "shop.dlq"]


def ids(found: list[Sent]) -> list[int]:
    return [sent.key["id"] for sent in found if sent.op]


@KEYS
@IMAGES
def test_it_stops_the_daemon_with_a_remedy(parts: list[Any], keyless: list[Any], reason: str, images: bool) -> None:
    master, replica = life(parts, images=images)
    break_row(master, keyless)
    with pytest.raises(SchemaError) as caught:
        replica.connect()
    error = str(caught.value)
    assert reason in error
    assert "row 0:0 (INSERT) of space 'users'" in error
    assert 'format.on_error = "dlq"' in error
    assert "truncate the space" in error
    assert "rebuild" not in error


@KEYS
@IMAGES
def test_it_goes_to_the_dead_letters(parts: list[Any], keyless: list[Any], reason: str, images: bool) -> None:
    master, replica = life(parts, images=images, on_error="dlq")
    break_row(master, keyless)
    replica.connect()
    found = news(replica)
    assert ids(found) == list(range(10))
    letters = [sent.value for sent in found if not sent.op]
    assert [letter["space_id"] for letter in letters] == [512, 512]
    assert all(reason in letter["error"] for letter in letters)
    master.insert("users", 20, "later", {"id": 20})
    replica.relay.relay()
    replica.receive()
    replica.commit()
    assert ids(news(replica)) == [20]


def test_a_snapshot_that_is_compared_passes_over_it() -> None:
    master, replica = life([(0, "unsigned"), (1, "string")], images=True, on_error="dlq")
    replica.connect()
    replica.flush()
    assert len(news(replica)) == 10
    break_row(master, [7])
    master.insert("users", 20, "new", None)
    master.gc_vclock = master.vclock
    replica.crash()
    replica.connect()
    found = news(replica)
    assert [(sent.op, sent.key["id"]) for sent in found if sent.op] == [("c", 20)]
    assert len(found) == 3


@ON_ERROR
@IMAGES
@pytest.mark.parametrize("kind", [Type.INSERT, Type.REPLACE, Type.UPSERT])
@pytest.mark.parametrize("row_count", [1, 3], ids=["single", "in a transaction"])
def test_in_the_stream(on_error: str, images: bool, kind: int, row_count: int) -> None:
    master, replica = life([(0, "unsigned"), (1, "string")], engine="memtx", images=images, on_error=on_error)
    replica.connect()
    news(replica)
    if row_count > 1:
        master.begin()
        master.insert("users", 20, "before", None)
    master._write(kind, {0x10: 512, 0x21: [7], 0x15: 1, 0x28: []} if kind == Type.UPSERT else {0x10: 512, 0x21: [7]})
    if row_count > 1:
        master.insert("users", 21, "after", None)
        master.commit()
    master.insert("users", 30, "later", None)
    replica.relay.relay()
    if on_error == "fail":
        with pytest.raises(SchemaError, match=r"has no primary key; row 1:\d+ .* of space 'users': \[7\]; body") as caught:
            replica.receive()
        assert "UPSERTs" not in caught.value.hint, "the space isn't one of vinyl"
        return
    replica.receive()
    replica.commit()
    found = news(replica)
    assert ids(found) == ([20, 21, 30] if row_count > 1 else [30])
    assert [sent.value["type"] for sent in found if not sent.op] == [TYPE_NAMES[kind]]
    assert dict(replica.pipeline.position.vclock.items()) == master.vclock
