"""Changes of several partitions in one order, the ring of the newest, and what a client gets of a batch."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.feeds.tap import wire
from cdc.feeds.tap.changes import Change, Changes, Kind, MalformedError, renamed, swept_at
from cdc.feeds.tap.merging import BATCH_BYTES, CHANGE_BYTES, Batch, Merger, Ring, Selection
from cdc.feeds.tap.wire import Packets

ALL = Selection(None, None, frozenset(), is_keys_only=False)


def event(seq: int, op: str = "c", *, before: Any = None, after: Any = None, space: str = "users", name: str = "shop") -> bytes:
    return json.dumps({"op": op, "before": before, "after": after, "source": {"name": name, "table": space, "seq": seq}}).encode()


def changes(template: str = "{space}:{key}", value: str = "json") -> Changes:
    return Changes("shop", template, 1024, lambda space: space != "hidden", is_packed=value == "msgpack")


def one(seq: int, space: str = "users", kind: Kind = Kind.MUTATION) -> Change:
    key = f"{space}:{seq}".encode()
    frame = wire.mutation(key, b"v", seq % 8, seq, seq) if kind is Kind.MUTATION else wire.delete(key, seq % 8, seq, seq)
    return Change(seq, kind, space, key, seq % 8, frame if kind < Kind.TRUNCATE else b"")


@given(st.integers(1, 60), st.integers(1, 5), st.randoms(use_true_random=False))
def test_any_arrival_gives_the_one_order(count: int, partition_count: int, chance: random.Random) -> None:
    merger, found = Merger(0), list[int]()
    partitions = [
        [one(seq) for seq in range(1, count + 1) if seq % partition_count == number] for number in range(partition_count)
    ]
    while any(partitions):
        partition = chance.choice([partition for partition in partitions if partition])
        length = chance.randrange(1, len(partition) + 1)
        piece, partition[:length] = partition[:length], []
        # A daemon that is killed may repeat what it has published (at_least_once).
        merger.add([(change.seq, change) for change in piece + piece[:1]])
        while (batch := merger.take(chance.randrange(1, 10))) is not None:
            assert (batch.first, batch.last) == (batch.changes[0].seq, batch.changes[-1].seq)
            found += [change.seq for change in batch.changes]
    assert found == list(range(1, count + 1))
    assert merger.waiting_bytes == 0
    assert merger.hole is None


def test_a_hole_is_waited_for_and_can_be_skipped() -> None:
    merger = Merger(4)
    merger.add([(7, one(7)), (8, one(8)), (3, one(3))])
    assert merger.take() is None
    assert merger.hole == 2
    assert merger.skip() == (5, 6)
    batch = merger.take()
    assert batch is not None
    assert (batch.first, batch.last) == (7, 8)


def test_a_truncation_is_alone_in_its_batch() -> None:
    merger = Merger(0)
    merger.add([(seq, one(seq, kind=Kind.TRUNCATE if seq == 2 else Kind.MUTATION)) for seq in (1, 2, 3)])
    batches = []
    while (batch := merger.take()) is not None:
        batches.append((batch.first, batch.last, batch.is_truncate))
    assert batches == [(1, 1, False), (2, 2, True), (3, 3, False)]


def test_unwanted_events_count() -> None:
    merger = Merger(0)
    merger.add([(1, []), (2, one(2)), (3, [])])
    batch = merger.take()
    assert batch is not None
    assert (batch.first, batch.last, len(batch.changes)) == (1, 3, 1)


def test_small_batches_become_one() -> None:
    first, second = Batch(1, 2, [one(1), one(2)], 10), Batch(3, 3, [one(3)], 20)
    assert first.joined(second) == Batch(1, 3, [one(1), one(2), one(3)], 30)
    assert second.joined(first) is None
    special = Batch(3, 3, [one(3, kind=Kind.TRUNCATE)], 0)
    assert first.joined(special) is None
    assert special.joined(Batch(4, 4, [one(4)], 10)) is None
    assert Batch(1, 2_001, [one(seq) for seq in range(1, 2_002)], 0).joined(Batch(2_002, 2_002, [one(2_002)], 0)) is None


def test_the_ring_forgets_the_oldest() -> None:
    ring = Ring(0, 3 * (1_000 + BATCH_BYTES))
    for first in range(1, 21, 2):
        ring.append(Batch(first, first + 1, [one(first), one(first + 1)], 1_000))
    assert (ring.first, ring.last) == (15, 20)
    assert [after for after in range(30) if ring.has(after)] == list(range(14, 21))
    seen, after = [], 14
    while (batch := ring.next(after)) is not None:
        seen += batch.select(ALL, after, batch.last).seqs
        after = batch.last
    assert seen == [15, 16, 17, 18, 19, 20]


def test_what_nobody_wants_takes_no_room() -> None:
    merger, ring = Merger(0), Ring(0, 1_000_000)
    merger.add([(seq, []) for seq in range(2, 1_002)])
    assert merger.waiting_bytes == 1_000 * CHANGE_BYTES, "behind a hole they do"
    merger.add([(1, [])])
    for seq in range(1_002, 21_002):
        while (batch := merger.take()) is not None:
            assert batch.byte_count == 0
            ring.append(batch)
        merger.add([(seq, [])])
    assert merger.waiting_bytes == CHANGE_BYTES
    assert len(ring._batches) == 1
    assert (ring.first, ring.last) == (1, 21_000)
    # Also where something wanted comes now and then.
    for seq in range(21_001, 25_001):
        ring.append(Batch(seq, seq, [one(seq)] if seq % 2 else [], 400))
    assert len(ring._batches) <= 1_000_000 // BATCH_BYTES


@given(st.data())
def test_what_a_client_gets_of_a_batch(data: st.DataObject) -> None:
    batch = Batch(1, 40, [one(seq, f"s{seq % 3}", Kind(seq % 2)) for seq in range(1, 41)], 0)
    spaces = data.draw(st.none() | st.frozensets(st.sampled_from(["s0", "s1", "s2"])))
    vbuckets, lost = (
        data.draw(st.none() | st.frozensets(st.integers(0, 7))),
        data.draw(st.frozensets(st.integers(0, 7), max_size=2)),
    )
    after, until = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 40))
    found = batch.select(Selection(spaces, vbuckets, lost, is_keys_only=data.draw(st.booleans())), after, until)
    expected = [
        change.seq
        for change in batch.changes
        if after < change.seq <= until
        and (spaces is None or change.space in spaces)
        and (vbuckets is None or change.vbucket in vbuckets)
        and change.vbucket not in lost
    ]
    assert found.seqs == expected
    assert [packet.cas for packet in Packets().feed(b"".join(found.frames))] == expected


def test_events_become_frames() -> None:
    made = changes()
    assert made.of(b'{"id":1}', event(7, after={"id": 1, "name": "x"})) == (
        7,
        Change(7, Kind.MUTATION, "users", b"users:1", 174, wire.mutation(b"users:1", b'{"id": 1, "name": "x"}', 174, 7, 7)),
    )
    assert made.of(b'{"id":1}', event(8, "d", before={"id": 1})) == (
        8,
        Change(8, Kind.DELETE, "users", b"users:1", 174, wire.delete(b"users:1", 174, 8, 8)),
    )
    assert made.of(None, event(9, "t")) == (9, Change(9, Kind.TRUNCATE, "users", b"", 0, b""))
    assert made.of(b'{"id":1}', None) is None
    assert made.of(b'{"id":1}', event(7, name="another")) is None
    assert made.of(b'{"id":1}', event(7, space="hidden")) == (7, [])
    assert made.spaces == {"users"}


def test_the_example_of_the_documentation() -> None:
    shown = (Path(__file__).parents[3] / "docs" / "tap.md").read_text().partition("```text")[2].partition("```")[0]
    value = json.loads(event(4712, after={"id": 1, "name": "Ann"}))
    found = changes().of(b'{"id":1}', json.dumps(value, separators=(",", ":")).encode())
    assert found is not None
    assert isinstance(found[1], Change)
    lines = [line.partition("   ")[0] for line in shown.splitlines()]  # the words that explain it stand behind
    assert bytes.fromhex("".join(lines)) == found[1].frame


def test_a_key_made_of_another_field_moves() -> None:
    made = changes("user:{name}")
    moved = made.of(b'{"id":1}', event(7, "u", before={"id": 1, "name": "a"}, after={"id": 1, "name": "b"}))
    assert moved is not None
    assert isinstance(moved[1], list)
    assert [(change.kind, change.key) for change in moved[1]] == [(Kind.DELETE, b"user:a"), (Kind.MUTATION, b"user:b")]
    stayed = made.of(b'{"id":1}', event(8, "u", before={"id": 1, "name": "b"}, after={"id": 1, "name": "b", "x": 1}))
    assert stayed is not None
    assert isinstance(stayed[1], Change)


@pytest.mark.parametrize("template", ["{space}:{key}", "{space}:{id}"])
def test_a_key_that_no_message_has_room_for_is_left_out(template: str) -> None:
    for length, is_told in ((65_535, True), (65_536, False)):
        name = "x" * (length - len("users:"))
        found = changes(template).of(json.dumps({"id": name}).encode(), event(7, after={"id": name}))
        assert found is not None
        assert found[0] == 7
        assert bool(found[1]) is is_told


def test_packed_values() -> None:
    found = changes(value="msgpack").of(b'{"id":1}', event(7, after={"id": 1, "name": "x"}))
    assert found is not None
    assert isinstance(found[1], Change)
    assert found[1].frame.endswith(b"users:1\x92\x01\xa1x")


DEEP = b'{"op":"c","source":{"name":"other"},"after":' + b"[" * 5_000 + b"]" * 5_000 + b"}"


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"x",
        b"[]",
        b"{}",
        b'{"op":"c","source":{"name":"shop","table":"users","seq":"7"}}',
        b"\xff",
        b'{"op":"\xff","source":{"name":"other","table":"users","seq":7}}',
        DEEP,
        event(1 << 63),
    ],
)
def test_what_is_no_event_is_said(value: bytes) -> None:
    with pytest.raises(MalformedError):
        changes().of(b'{"id":1}', value)


@pytest.mark.parametrize("after", [b'{"id":100000000000000000000}', b'{"id":"\xff"}'])
def test_what_messagepack_cannot_show_is_no_event(after: bytes) -> None:
    found = b'{"op":"c","source":{"name":"shop","table":"users","seq":7},"after":%b}' % after
    with pytest.raises(MalformedError):
        changes(value="msgpack").of(b'{"id":1}', found)


@pytest.mark.parametrize("value", [DEEP, b'{"status":"\xff"}', b'{"source":{"name":"\xff"}}'])
def test_what_is_no_record_tells_nothing(value: bytes) -> None:
    assert swept_at(value) is None
    assert renamed(value) is None


def test_what_makes_clients_begin_anew() -> None:
    completed = {"snapshot_id": "2", "status": "COMPLETED", "seq": 90, "spaces": [{"space": "a", "sweep_seq": 0}]}
    assert swept_at(json.dumps(completed).encode()) is None
    completed["spaces"] = [{"space": "a", "sweep_seq": 0}, {"space": "b", "sweep_seq": 40}]
    assert swept_at(json.dumps(completed).encode()) == 90
    assert swept_at(json.dumps({**completed, "status": "STARTED"}).encode()) is None
    assert swept_at(b"?") is None
    record = {"source": {"name": "shop", "table": "people", "schema_version": 4}, "tableChanges": [{"id": '"people"'}]}
    assert renamed(json.dumps(record).encode()) is None
    record["tableChanges"] = [{"id": '"people"', "previousId": '"users"'}]
    assert renamed(json.dumps(record).encode()) == (4, 0, "users", "people")
    assert renamed(b"") is None
