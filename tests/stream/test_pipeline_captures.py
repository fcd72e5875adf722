"""Recorded servers through Session and Pipeline: the messages that a consumer gets, golden and independent of the pieces.

Each stream has synchronous transactions that were confirmed, alone and several at once, and ones that were rolled back, with
asynchronous ones behind them; on the newer servers the limbo is handed on as well.
"""

from __future__ import annotations

import bisect
import functools
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.images.overlay import Images
from cdc.positions.vclock import VClock
from cdc.protocol.codec import Frames
from cdc.protocol.constants import Key, Type
from cdc.protocol.session import Event
from cdc.schema.tracker import published_forms
from cdc.stream.batches.batch import Broadcast, Message
from cdc.stream.pipeline import Pipeline
from tests.fakes import captures, shown
from tests.fakes.captures import VERSIONS
from tests.fakes.consumer import Consumer
from tests.fakes.golden import ROOT, Golden, digest, line
from tests.fakes.pipelines import NOW_US, MemorySpool, Store, frames_of, messages, pipeline, take
from tests.fakes.profiles import FEW
from tests.fakes.shop import read
from tests.fakes.tuples import MemoryTuples

GOLDEN = ROOT / "golden" / "pipeline"


@functools.cache
def snapshot_events(version: str, name: str = "fetch_snapshot") -> list[Event]:
    return captures.play(captures.load(version, name), captures.whole).events


@functools.cache
def stream_frames(version: str) -> Frames:
    """All rows of the stream, in one batch."""
    stream = captures.packets(captures.load(version, "subscribe").stream())
    return frames_of(b"".join(packet.data for packet in stream if packet.kind != 0))


def follow(version: str, store: Store, **changed: Any) -> Pipeline:
    """A pipeline that goes on from what is stored, at a server of this version."""
    return pipeline(store.position, store.spaces.values(), version=_numbers(version), **changed)


def _numbers(version: str) -> tuple[int, int]:
    major, minor = map(int, version.split("."))
    return major, minor


@functools.cache
def after_snapshot(version: str) -> Store:
    """What is stored once the snapshot is complete."""
    store = Store()
    for batch in take(pipeline(), snapshot_events(version)):
        store.take(batch)
    return store


@functools.cache
def expected(version: str) -> list[Message | Broadcast]:
    return messages(follow(version, after_snapshot(version)).feed(stream_frames(version), NOW_US))


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
@given(sizes=SIZES, memory=st.sampled_from([1024, 20_000, 64 * 1024 * 1024]), batch=st.sampled_from([1, 3000, 1024 * 1024]))
def test_messages_do_not_depend_on_batches(version: str, sizes: list[int], memory: int, batch: int) -> None:
    """Neither on where the stream is cut nor on which transactions wait on disk; whole positions only at boundaries."""
    spools = list[MemorySpool]()
    bounds = {"transaction_bytes_max": memory, "batch_bytes_max": batch}
    target = follow(version, after_snapshot(version), spools=spools, chunk_bytes=3000, **bounds)
    batches = [batch for part in _parts(stream_frames(version), sizes) for batch in target.feed(part, NOW_US)]
    assert messages(batches) == expected(version)
    target.close()
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
    target = follow(version, after_snapshot(version))
    frames = stream_frames(version)
    found = [batch for index in range(len(frames)) for batch in target.feed(frames.part(index, index + 1), NOW_US)]
    assert messages(found) == expected(version)


@pytest.mark.parametrize("version", VERSIONS)
def test_restart_at_every_boundary(version: str) -> None:
    """A pipeline that begins at any stored position, with the schema stored there, goes on with the same messages.

    What had arrived and waited comes again, with what is said of it.
    """
    frames = stream_frames(version)
    lsns = [header[Key.LSN] for header in frames.headers]
    current = Store(after_snapshot(version).position, after_snapshot(version).spaces)
    target = follow(version, current)
    boundaries: list[tuple[Store, int]] = []
    count = 0
    for index in range(len(frames)):
        for batch in target.feed(frames.part(index, index + 1), NOW_US):
            current.take(batch)
            count += len(batch.messages)
            boundaries.append((Store(current.position, current.spaces), count))
    assert len(boundaries) > 160
    # Each is gone on from up to the next fifteen rows (the end of the longest DDL), one in forty up to the end.
    for number, (then, done) in enumerate(boundaries):
        index = bisect.bisect_right(lsns, then.position.vclock[1])
        end = len(frames) if number % 40 == 0 else min(len(frames), index + 15)
        found = messages(follow(version, then).feed(frames.part(index, end), NOW_US))
        assert found == expected(version)[done : done + len(found)], f"restarted in front of row {index}"
        assert end < len(frames) or len(found) == len(expected(version)) - done


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_that_the_position_covers_are_dropped(version: str) -> None:
    target = follow(version, after_snapshot(version))
    frames = stream_frames(version)
    found = messages(batch for part in (frames, frames) for batch in target.feed(part, NOW_US))
    assert found == expected(version)


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_of_a_synchronous_transaction_is_out_before_it_is_confirmed(version: str) -> None:
    """Row by row: what is out of each one with what the server had said so far. The captures' own workload knows its keys."""
    target, frames = follow(version, after_snapshot(version)), stream_frames(version)
    confirmed, out = set[int](), dict[int, set[int]]()
    for index in range(len(frames)):
        if frames.headers[index][Key.REQUEST_TYPE] == Type.RAFT_CONFIRM:
            confirmed.add(index)
        for batch in target.feed(frames.part(index, index + 1), NOW_US):
            for event in _events(batch.messages):
                if event["source"]["table"] == "syn":
                    out.setdefault(index, set()).add(event["after"]["field_1"])
    assert set(out) <= confirmed, "a row came out with something else than a CONFIRM"
    numbers = [key for keys in out.values() for key in sorted(keys)]
    assert numbers == [1, 2, 5, *range(10, 15), *([] if version == "2.6" else [20])]
    of_users = [event["after"] for event in _events(expected(version)) if event["source"]["table"] == "users"]
    users = {after["id"] for after in of_users if after is not None}
    assert users & {701, 702, 703} == {701, 703}, "702 stood behind what was rolled back"


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
    target = follow(version, store)
    batch = list(target.feed(stream_frames(version), NOW_US))[-1]
    header = stream_frames(version).headers[-1]
    assert batch.position.vclock == VClock({1: header[3]})
    assert target.ledger.published == batch.position.vclock
    assert target.ledger.acknowledged == store.position.vclock, "nothing is acknowledged before it is durable"
    target.ledger.settle(batch.position)
    assert target.ledger.acknowledged == VClock({1: header[3]})


# Images.


REKEYED = "altpk"
"""The space whose primary key becomes another while it has rows."""


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_come_again_where_the_primary_key_is_altered(version: str) -> None:
    target = pipeline(version=_numbers(version), images=Images(MemoryTuples(), version=_numbers(version)))
    assert messages(take(target, snapshot_events(version)))
    found = [read(message) for message in messages(target.feed(stream_frames(version), NOW_US))]
    again = [sent for sent in found if sent.topic == f"shop.{REKEYED}" and sent.op == "r"]
    assert again
    (void,) = [place for place, sent in enumerate(found) if sent.topic == f"shop.{REKEYED}" and sent.op == "t"]
    assert found[void - 1].value["tableChanges"][0]["type"] == "ALTER"
    assert found.index(again[0]) == void + 2, "only the record of the snapshot's beginning stands between"


def _images_after(version: str, store: MemoryTuples, sizes: list[int], *, written_late: bool) -> tuple[Images, Pipeline]:
    """Snapshot and stream; each batch's changes reach the store at once, or none does."""
    images = Images(store, version=_numbers(version))
    target = pipeline(version=_numbers(version), images=images)
    for event in snapshot_events(version):
        for batch in take(target, [event]):
            if not written_late:
                store.write(batch.changes, ())
                images.written(batch.changes)
    for part in _parts(stream_frames(version), sizes):
        for batch in target.feed(part, NOW_US):
            if not written_late:
                store.write(batch.changes, ())
                images.written(batch.changes)
    return images, target


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("written_late", [False, True])
@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_images_are_the_masters_contents_to_the_byte(version: str, size: int, *, written_late: bool) -> None:
    """All spaces but local and temporary ones."""
    images, target = _images_after(version, MemoryTuples(), [size] * 10_000, written_late=written_late)
    final = captures.final_rows(version)
    counts: dict[str, int] = {}
    for form in target.published_forms():
        if form.name in final:
            found = [row for _, row in images.scan(form.space_id)]
            assert sorted(found) == sorted(final[form.name]), form.name
            counts[form.name] = len(found)
    assert set(final) - set(counts) <= {"loc", "tmp"}
    assert counts["syn"] == (8 if version == "2.6" else 9)
    assert min(counts["users"], counts["noformat"], counts["vin"]) > 15
    assert sum(counts.values()) > 1_100


@pytest.mark.parametrize("version", VERSIONS)
def test_a_snapshot_over_the_same_images_is_silent(version: str) -> None:
    store = MemoryTuples()
    _images_after(version, store, [], written_late=False)
    first = MemoryTuples()
    images = Images(first)
    target = pipeline(images=images)
    durable = Store()
    for batch in take(target, snapshot_events(version)):
        first.write(batch.changes, ())
        durable.take(batch)
    again = pipeline(durable.position, durable.spaces.values(), images=Images(first, published_forms(durable.spaces.values())))
    assert not _events(messages(take(again, snapshot_events(version))))
    # And over later images it leads back to what it holds.
    kept = Images(store, target.published_forms())
    back = pipeline(durable.position, durable.spaces.values(), images=kept)
    for batch in take(back, snapshot_events(version)):
        store.write(batch.changes, ())
    names = {form.space_id for form in back.published_forms()}
    assert {key: row for key, row in store.rows.items() if int.from_bytes(key[:4], "big") in names} == first.rows


@pytest.mark.parametrize("version", VERSIONS)
def test_before_is_what_the_last_event_of_the_key_left(version: str) -> None:
    images = Images(MemoryTuples(), version=_numbers(version))
    target = pipeline(version=_numbers(version), images=images)
    found = messages(take(target, snapshot_events(version))) + messages(target.feed(stream_frames(version), NOW_US))
    consumer = Consumer()
    events = consumer.take(map(read, found))
    assert {event.op for event in events} == set("rcudt")
    assert not [event for event in events if "patch" in event.value]
    for form in target.published_forms():
        assert len(consumer.contents(form.space_id)) == len(list(images.scan(form.space_id))), form.name
