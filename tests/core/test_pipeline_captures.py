"""Recorded servers through Session and Pipeline: the messages that a consumer gets, golden and independent of the pieces.

The stream is taken up to its first synchronous transaction, where this version has to stop; that it stops there, with
everything before it published, is held here too.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.change import Broadcast, Message
from cdc.errors import SynchronousReplicationError
from cdc.protocol.codec import Frames
from cdc.protocol.session import Event
from cdc.vclock import VClock
from tests.fakes import captures, shown
from tests.fakes.captures import VERSIONS
from tests.fakes.golden import ROOT, Golden, digest, line
from tests.fakes.pipelines import NOW_US, MemorySpool, Store, frames_of, messages, pipeline, take
from tests.fakes.profiles import FEW

GOLDEN = ROOT / "golden" / "pipeline"
SYNCHRONOUS = "sync-confirm"


@functools.cache
def snapshot_events(version: str, name: str = "fetch_snapshot") -> list[Event]:
    return captures.play(captures.load(version, name), captures.whole).events


@functools.cache
def stream_frames(version: str) -> Frames:
    """All rows of the stream up to the first synchronous transaction, in one batch."""
    stream = captures.packets(captures.load(version, "subscribe").stream(SYNCHRONOUS))
    return frames_of(b"".join(packet.data for packet in stream if packet.kind != 0))


@functools.cache
def after_snapshot(version: str) -> Store:
    """What is stored once the snapshot is complete."""
    store = Store()
    for batch in take(pipeline(), snapshot_events(version)):
        store.take(batch)
    return store


@functools.cache
def expected(version: str) -> list[Message | Broadcast]:
    store = after_snapshot(version)
    return messages(pipeline(store.position, store.spaces.values()).feed(stream_frames(version), NOW_US))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["fetch_snapshot", "fetch_snapshot_noversion"])
def test_snapshot_messages_are_the_golden_ones(version: str, name: str, golden: Golden) -> None:
    found = messages(take(pipeline(), snapshot_events(version, name)))
    golden.check_lines(GOLDEN / version / f"{name}.jsonl", shown.lines(shown.messages(found)))


@pytest.mark.parametrize("version", VERSIONS)
def test_stream_messages_are_the_golden_ones(version: str, golden: Golden) -> None:
    """Byte for byte too: the digest of all of them is the last line."""
    found = expected(version)
    whole = b"".join(msgspec.json.encode(message) for message in found)
    lines = [*shown.lines(shown.messages(found)), line({"messages": len(found), "sha256": digest(whole)})]
    golden.check_lines(GOLDEN / version / "subscribe.jsonl", lines)


@pytest.mark.parametrize("version", VERSIONS)
def test_snapshot_position(version: str) -> None:
    store = after_snapshot(version)
    assert store.position.vclock == captures.start_vclock(version)
    assert store.position.replicaset_uuid == captures.REPLICASET
    assert store.position.server_uuid == captures.SERVER
    assert store.position.snapshot is not None
    assert store.position.snapshot.is_complete
    assert store.position.snapshot.row_count == store.position.seq == 124


SIZES = st.lists(st.one_of(st.integers(1, 3), st.integers(1, 200)), max_size=40)


def _parts(frames: Frames, sizes: list[int]) -> Iterator[Frames]:
    start = 0
    for size in [*sizes, len(frames)]:
        if start < len(frames):
            yield frames.part(start, min(len(frames), start + size))
        start += size


@FEW
@pytest.mark.parametrize("version", VERSIONS)
@given(sizes=SIZES, memory=st.sampled_from([1024, 20_000, 64 * 1024 * 1024]))
def test_messages_do_not_depend_on_batches(version: str, sizes: list[int], memory: int) -> None:
    """Neither on where the stream is cut nor on which transactions wait on disk; whole positions only at boundaries."""
    store, spools = after_snapshot(version), list[MemorySpool]()
    target = pipeline(store.position, store.spaces.values(), transaction_bytes_max=memory, spools=spools, chunk_bytes=3000)
    batches = [batch for part in _parts(stream_frames(version), sizes) for batch in target.feed(part, NOW_US)]
    assert messages(batches) == expected(version)
    assert all(spool.is_closed for spool in spools)
    assert batches[-1].is_boundary
    assert batches[-1].position.seq == max(_seqs(messages(batches)))


@FEW
@pytest.mark.parametrize("version", VERSIONS)
@given(sizes=st.lists(st.integers(1, 5000), max_size=60))
def test_snapshot_messages_do_not_depend_on_pieces(version: str, sizes: list[int]) -> None:
    played = captures.play(captures.load(version, "fetch_snapshot"), captures.pieces(sizes))
    assert messages(take(pipeline(), played.events)) == messages(take(pipeline(), snapshot_events(version)))


@pytest.mark.parametrize("version", VERSIONS)
def test_row_by_row(version: str) -> None:
    store = after_snapshot(version)
    target = pipeline(store.position, store.spaces.values())
    frames = stream_frames(version)
    found = [batch for index in range(len(frames)) for batch in target.feed(frames.part(index, index + 1), NOW_US)]
    assert messages(found) == expected(version)


@pytest.mark.parametrize("version", VERSIONS)
def test_restart_at_every_boundary(version: str) -> None:
    """A pipeline that begins at any stored position, with the schema stored there, goes on with the same messages."""
    store = after_snapshot(version)
    frames = stream_frames(version)
    current = Store(store.position, store.spaces)
    target = pipeline(store.position, store.spaces.values())
    boundaries: list[tuple[int, Store, int]] = []
    count = 0
    for index in range(len(frames)):
        for batch in target.feed(frames.part(index, index + 1), NOW_US):
            current.take(batch)
            count += len(batch.messages)
            boundaries.append((index + 1, Store(current.position, current.spaces), count))
    assert len(boundaries) > 140
    # Each is gone on from up to the next fifteen rows (the end of the longest DDL), one in forty up to the end.
    for number, (index, then, done) in enumerate(boundaries):
        end = len(frames) if number % 40 == 0 else min(len(frames), index + 15)
        resumed = pipeline(then.position, then.spaces.values())
        found = messages(resumed.feed(frames.part(index, end), NOW_US))
        assert found == expected(version)[done : done + len(found)], f"restarted behind row {index}"


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_that_the_position_covers_are_dropped(version: str) -> None:
    store = after_snapshot(version)
    target = pipeline(store.position, store.spaces.values())
    frames = stream_frames(version)
    found = messages(batch for part in (frames, frames) for batch in target.feed(part, NOW_US))
    assert found == expected(version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_first_synchronous_transaction_stops_it(version: str) -> None:
    store = after_snapshot(version)
    target = pipeline(store.position, store.spaces.values())
    stream = captures.packets(captures.load(version, "subscribe").stream())
    frames = frames_of(b"".join(packet.data for packet in stream if packet.kind != 0))
    found: list[Message | Broadcast] = []

    def follow() -> None:
        for index in range(len(frames)):
            for batch in target.feed(frames.part(index, index + 1), NOW_US):
                found.extend(batch.messages)

    with pytest.raises(SynchronousReplicationError, match="synchronous"):
        follow()
    assert found[: len(expected(version))] == expected(version)
    # The marker and the DDL of that part are through, its first row isn't.
    beyond = found[len(expected(version)) :]
    assert {message[0] for message in beyond if not isinstance(message, Broadcast)} == {"shop.marker", "shop.schema"}


# What every stream of events must be.


def _values(stream: list[Message | Broadcast]) -> list[dict[str, Any]]:
    values = [message.value if isinstance(message, Broadcast) else message[2] for message in stream]
    return [json.loads(value) for value in values if value is not None]


def _events(stream: list[Message | Broadcast]) -> list[dict[str, Any]]:
    return [value for value in _values(stream) if "op" in value]


def _seqs(stream: list[Message | Broadcast]) -> list[int]:
    return [event["source"]["seq"] for event in _events(stream)]


@pytest.mark.parametrize("version", VERSIONS)
def test_seq_has_no_gap_over_snapshot_and_stream(version: str) -> None:
    seqs = _seqs(messages(take(pipeline(), snapshot_events(version)))) + _seqs(expected(version))
    assert seqs == list(range(1, len(seqs) + 1))


def _each_transaction(version: str) -> Iterator[list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for event in _events(expected(version)):
        found.setdefault(event["transaction"]["id"], []).append(event)
    yield from found.values()


@pytest.mark.parametrize("version", VERSIONS)
def test_orders_within_transactions(version: str) -> None:
    for events in _each_transaction(version):
        assert [event["transaction"]["total_order"] for event in events] == list(range(1, len(events) + 1))
        for table in {event["source"]["table"] for event in events}:
            orders = [event["transaction"]["data_collection_order"] for event in events if event["source"]["table"] == table]
            assert orders == list(range(1, len(orders) + 1))
        assert len({event["source"]["tsn"] for event in events}) == 1
        assert len({json.dumps(event["source"]["vclock"]) for event in events}) == 1
        rows = [event["source"]["row"] for event in events]
        assert rows == sorted(set(rows))


@pytest.mark.parametrize("version", VERSIONS)
def test_begin_and_end_tell_what_is_between(version: str) -> None:
    counted = {events[0]["transaction"]["id"]: len(events) for events in _each_transaction(version) if len(events) > 1}
    ends = {value["id"]: value["event_count"] for value in _values(expected(version)) if value.get("status") == "END"}
    begins = [value["id"] for value in _values(expected(version)) if value.get("status") == "BEGIN"]
    assert ends == counted
    assert begins == list(ends)
    assert 1000 in ends.values()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_schema_record_comes_before_the_first_event_of_its_version(version: str) -> None:
    known = {
        value["source"]["schema_version"]
        for value in _values(messages(take(pipeline(), snapshot_events(version))))
        if "tableChanges" in value
    }
    for value in _values(expected(version)):
        if "tableChanges" in value:
            known.add(value["source"]["schema_version"])
        elif "op" in value:
            assert value["source"]["schema_version"] in known


@pytest.mark.parametrize("version", VERSIONS)
def test_sequence_chains_the_transactions_of_the_origin(version: str) -> None:
    previous = after_snapshot(version).position.vclock[1]
    for events in _each_transaction(version):
        told = json.loads(events[0]["source"]["sequence"])
        assert int(told[1]) == events[0]["source"]["lsn"]
        assert previous <= int(told[0]) < events[0]["source"]["tsn"]
        previous = int(told[0])


@pytest.mark.parametrize("version", VERSIONS)
def test_position_ends_where_the_rows_end(version: str) -> None:
    store = after_snapshot(version)
    target = pipeline(store.position, store.spaces.values())
    (batch,) = target.feed(stream_frames(version), NOW_US)
    header = stream_frames(version).headers[-1]
    assert batch.position.vclock == VClock({1: header[3]})
    assert target.ledger.published == batch.position.vclock
    assert target.ledger.acknowledged == store.position.vclock, "nothing is acknowledged before it is durable"
    target.ledger.settle(batch.position)
    assert target.ledger.acknowledged == VClock({1: header[3]})
