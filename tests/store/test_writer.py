"""What reaches the store of images, and when: never what Kafka doesn't have, and always with the position that it is of."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import lmdb
import pytest

from cdc.errors import StateError, StateLostError
from cdc.images.overlay import NUMBER_MIN, Images
from cdc.images.pending import Change
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.protocol.extensions import pack, unpack
from cdc.schema.forms import StoredSpace
from cdc.schema.keys import KeyCodec, space_prefix
from cdc.schema.tracker import published_forms
from cdc.store.writer import FLUSH_CHANGES_MAX, StateWriter
from cdc.stream.batches.batch import Batch
from cdc.stream.commits.checkpoint import Writer, position_record, space_record
from tests.fakes.tuples import changes_of

VERSION = (2, 11)
SPACE = StoredSpace(512, [512, 1, "users", "memtx", 0, {}, []], {0: [512, 0, "pk", "tree", {}, [[0, "unsigned"]]]}, 1)


def at(lsn: int) -> Position:
    return Position(VClock({1: lsn}), seq=lsn, snapshot=SnapshotState(1, is_complete=True))


def batch(
    position: Position, *changes: Change, is_boundary: bool = True, stored: dict[int, StoredSpace | None] | None = None
) -> Batch:
    return Batch([], 0, 0, 1, position, is_boundary, stored or {}, [], 0.0, changes_of(changes))


def row(name: bytes, value: bytes | None = b"\x91\x01", space_id: int = 512) -> Change:
    return space_prefix(space_id) + name, value


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[StateWriter]:
    """Of an empty store, that writes only what it is made to."""
    opened = StateWriter(tmp_path / "state", "shop", 3600)
    opened.begin((), VERSION)
    yield opened
    opened.close()


def contents(writer: StateWriter) -> dict[bytes, bytes]:
    return dict(writer.store.scan(512))


def test_only_what_kafka_has_is_written(writer: StateWriter) -> None:
    first, second = at(1), at(2)
    writer.submit(batch(first, row(b"a"), stored={512: SPACE}))
    writer.submit(batch(second, row(b"b"), stored={512: None}))
    assert writer.flush(is_forced=True) is None
    writer.mark_committed(first)
    assert writer.flush() is None, "it isn't time"
    assert writer.flush(is_forced=True) is first
    assert contents(writer) == dict([row(b"a")])
    checkpoint = writer.checkpoint()
    assert checkpoint.position is not None
    assert (checkpoint.position.vclock, checkpoint.position.seq) == (VClock({1: 1}), 1)
    assert checkpoint.spaces == {512: SPACE}
    writer.mark_committed(second)
    assert writer.flush(is_forced=True) is second
    assert contents(writer) == dict([row(b"a"), row(b"b")])
    assert writer.checkpoint().spaces == {}


def test_one_commit_may_cover_several_batches(writer: StateWriter) -> None:
    positions = [at(1), at(2), at(3)]
    for position, change in zip(positions, [row(b"a"), row(b"a", None), row(b"b")], strict=True):
        writer.submit(batch(position, change))
    writer.mark_committed(positions[1])
    assert writer.flush(is_forced=True) is positions[1]
    assert contents(writer) == {}
    writer.mark_committed(positions[2])
    assert writer.flush(is_forced=True) is positions[2]
    assert contents(writer) == dict([row(b"b")])


def test_at_once_means_once_all_submitted_batches_are_committed(writer: StateWriter) -> None:
    first, second = at(1), at(2)
    writer.submit(batch(first, row(b"a")))
    writer.submit(batch(second, row(b"a", b"\x91\x02")))
    writer.mark_committed(first)
    assert writer.flush(is_at_once=True) is None
    assert contents(writer) == {}
    writer.mark_committed(second)
    assert writer.flush() is None
    assert writer.flush(is_at_once=True) is second
    assert contents(writer) == dict([row(b"a", b"\x91\x02")])


def test_spaces_with_and_without_deletions_are_written_together(writer: StateWriter) -> None:
    first, last = at(1), at(2)
    writer.submit(batch(first, row(b"a"), row(b"b"), row(b"c", space_id=513), row(b"d", space_id=514)))
    writer.mark_committed(first)
    writer.flush(is_forced=True)
    writer.submit(
        batch(last, row(b"a", None), row(b"e"), row(b"f", None), row(b"g", space_id=513), row(b"d", None, space_id=514))
    )
    writer.mark_committed(last)
    assert writer.flush(is_forced=True) is last
    assert contents(writer) == dict([row(b"b"), row(b"e")])
    assert [writer.store.count(space_id) for space_id in (512, 513, 514)] == [2, 2, 0]


def test_parts_of_a_transaction_are_written_with_its_end(writer: StateWriter) -> None:
    before, end = at(1), at(3)
    writer.submit(batch(before, row(b"a")))
    writer.submit(batch(before, row(b"b"), is_boundary=False))
    writer.submit(batch(before, row(b"c"), is_boundary=False))
    writer.mark_committed(before)
    assert writer.flush(is_forced=True) is before
    assert contents(writer) == dict([row(b"a")])
    writer.submit(batch(end, row(b"d")))
    writer.mark_committed(end)
    writer.flush(is_forced=True)
    assert list(contents(writer)) == [row(name)[0] for name in (b"a", b"b", b"c", b"d")]


def test_a_new_connection_discards_changes_that_are_not_committed(writer: StateWriter) -> None:
    first = at(1)
    writer.submit(batch(first, row(b"a")))
    writer.submit(batch(at(2), row(b"b")))
    writer.submit(batch(at(2), row(b"c"), is_boundary=False))
    writer.mark_committed(first)
    images = writer.begin((), VERSION)
    assert images.current(row(b"a")[0]) == b"\x91\x01"
    assert images.current(row(b"b")[0]) is None
    again = at(2)
    writer.submit(batch(again, row(b"b", b"\x91\x02")))
    writer.mark_committed(again)
    writer.flush(is_forced=True)
    assert contents(writer) == dict([row(b"a"), row(b"b", b"\x91\x02")])


def test_images_forget_changes_that_the_store_has(writer: StateWriter) -> None:
    images = writer.begin((), VERSION)
    images.put(*_whole(row(b"a")))
    position = at(1)
    writer.submit(batch(position, *images.take()))
    images.clear(512)
    writer.mark_committed(position)
    writer.flush(is_forced=True)
    assert contents(writer) == dict([row(b"a")])
    assert images.current(row(b"a")[0]) is None
    position = at(2)
    writer.submit(batch(position, *images.take()))
    writer.mark_committed(position)
    writer.flush(is_forced=True)
    assert contents(writer) == {}


def test_reopened_it_is_where_it_was(tmp_path: Path) -> None:
    writer = StateWriter(tmp_path / "state", "shop", 3600)
    writer.begin((), VERSION)
    position = at(5)
    writer.submit(batch(position, row(b"a"), stored={512: SPACE}))
    writer.mark_committed(position)
    writer.close()
    writer = StateWriter(tmp_path / "state", "shop", 3600)
    checkpoint = writer.checkpoint()
    assert checkpoint.position is not None
    assert checkpoint.position.seq == 5
    assert contents(writer) == dict([row(b"a")])
    writer.restart()
    assert (contents(writer), writer.checkpoint().position) == ({}, None)
    writer.close()


def test_spaces_that_are_not_wanted_any_more(writer: StateWriter) -> None:
    position = at(1)
    writer.submit(batch(position, row(b"a"), row(b"a", space_id=513)))
    writer.mark_committed(position)
    writer.flush(is_forced=True)
    writer.keep_only([512])
    assert writer.store.space_ids() == [512]


def test_another_name_has_another_position(tmp_path: Path) -> None:
    writer = StateWriter(tmp_path / "state", "shop", 0)
    writer.begin((), VERSION)
    position = at(5)
    writer.submit(batch(position, row(b"a")))
    writer.mark_committed(position)
    assert writer.flush() is position, "an interval of 0 is always over"
    writer.close()
    other = StateWriter(tmp_path / "state", "other", 0)
    assert other.checkpoint().position is None
    other.close()


def _whole(change: Change) -> tuple[bytes, bytes]:
    key, value = change
    assert value is not None
    return key, value


def test_a_store_of_the_first_format_is_brought_over(tmp_path: Path) -> None:
    """There, a text of nothing but zeroes stood under exactly these: the empty one under the bare prefix of its space."""
    texts = ["", "\0", "\0\0", "\0a", "a", "\0" * 506, "\0" * 507, "\0" * 600]
    stored = [
        StoredSpace(512, [512, 1, "names", "memtx", 0, {}, []], {0: [512, 0, "pk", "tree", {}, [[0, "string"]]]}, 1),
        StoredSpace(513, [513, 1, "users", "memtx", 0, {}, []], {0: [513, 0, "pk", "tree", {}, [[0, "unsigned"]]]}, 2),
    ]
    path = tmp_path / "state"
    writer = StateWriter(path, "shop", 0)
    former = [(_former_key(text), pack([text])) for text in texts]
    numbers = [(space_prefix(513) + number.to_bytes(8, "big"), pack([number])) for number in (0, 1, 2**60)]
    records = [space_record("shop", space.space_id, space) for space in stored]
    writer.store.write([*former, *numbers], [*records, position_record("shop", at(7), Writer("", has_store=True), 0)])
    writer.close()
    _set_format(path, b"tarantool-cdc state 1")

    writer = StateWriter(path, "shop", 0)
    try:
        names = KeyCodec(published_forms(stored)[0])
        assert dict(writer.store.scan(512)) == {names.of_tuple([text]): pack([text]) for text in texts}
        assert list(writer.store.scan(513)) == numbers
        assert (writer.store.count(512), writer.store.count(513)) == (len(texts), len(numbers))
        assert writer.position == at(7)
    finally:
        writer.close()
    assert _format(path) == b"tarantool-cdc state 3"
    writer = StateWriter(path, "shop", 0)
    assert writer.store.count(512) == len(texts)
    writer.close()


def test_a_store_of_a_later_format_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state"
    StateWriter(path, "shop", 0).close()
    _set_format(path, b"tarantool-cdc state 4")
    with pytest.raises(StateError, match="was written by another version, in the format b'tarantool-cdc state 4'"):
        StateWriter(path, "shop", 0)


@pytest.mark.parametrize("written", [b"tarantool-cdc state 1", b"tarantool-cdc state 2"])
@pytest.mark.parametrize(("index", "kind"), [("hash", "decimal"), ("HASH", "scalar"), ("tree", "decimal"), ("hash", "unsigned")])
def test_a_store_that_had_two_rows_as_one_is_lost(tmp_path: Path, written: bytes, index: str, kind: str) -> None:
    stored = StoredSpace(512, [512, 1, "money", "memtx", 0, {}, []], {0: [512, 0, "pk", index, {}, [[0, kind]]]}, 1)
    path = tmp_path / "state"
    writer = StateWriter(path, "shop", 0)
    writer.store.write([], [space_record("shop", 512, stored), position_record("shop", at(7), Writer("", has_store=True), 0)])
    writer.close()
    _set_format(path, written)
    for _ in range(2):
        if index.lower() == "hash" and kind != "unsigned":
            with pytest.raises(StateLostError, match=r"took rows for one .* space 'money' tells apart"):
                StateWriter(path, "shop", 0)
        else:
            StateWriter(path, "shop", 0).close()


def _former_key(text: str) -> bytes:
    key = space_prefix(512) + text.encode()
    return key if len(key) < 511 else key[:479] + hashlib.sha256(key).digest()


def _format(path: Path) -> bytes | None:
    with lmdb.open(str(path), max_dbs=8) as environment:
        about = environment.open_db(b"about")
        with environment.begin(db=about, buffers=False) as txn:
            return txn.get(b"format")


def _set_format(path: Path, written: bytes) -> None:
    with lmdb.open(str(path), max_dbs=8) as environment:
        about = environment.open_db(b"about")
        with environment.begin(write=True, db=about) as txn:
            txn.put(b"format", written)
    (path / "condition").write_text(f"clean {(path / 'data.mdb').stat().st_size}")


def test_schema_in_a_piece_of_a_transaction_is_written_with_its_end(writer: StateWriter) -> None:
    position = at(1)
    writer.submit(batch(position, row(b"a"), is_boundary=False, stored={512: SPACE}))
    writer.submit(batch(position, row(b"b")))
    writer.mark_committed(position)
    writer.flush(is_forced=True)
    assert writer.checkpoint().spaces == {512: SPACE}


OTHER_KEY = StoredSpace(512, SPACE.space_row, {0: [512, 0, "pk", "tree", {}, [[1, "string"]]]}, 2)


def rekey(writer: StateWriter) -> Images:
    """500 rows of a space whose key becomes their second field; what is written of it is nothing yet."""
    (form,) = published_forms([SPACE])
    codec = KeyCodec(form)
    tuples = [[number, f"{number:04}"] for number in range(500)]
    first = at(1)
    writer.submit(batch(first, *((codec.of_tuple(values), pack(values)) for values in tuples), stored={512: SPACE}))
    writer.mark_committed(first)
    writer.flush(is_forced=True)
    images = writer.begin([form], VERSION)
    (other,) = published_forms([OTHER_KEY])
    for _ in images.rekey(other):
        assert [unpack(tuple_) for _, tuple_ in writer.store.scan(512)] == tuples
    assert [unpack(tuple_) for _, tuple_ in images.scan(512)] == tuples
    assert unpack(images.current(images.codec(other).of_key(["0007"])) or b"") == [7, "0007"]
    return images


@pytest.mark.parametrize("end", ["kill", "write"])
def test_rows_stand_under_the_old_keys_or_under_the_new_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.setattr("cdc.images.overlay.REKEY_ROWS", 100)
    monkeypatch.setattr("cdc.store.store.SLICE_CHANGES", 200)
    writer = StateWriter(tmp_path / "state", "shop", 0)
    writer.begin((), VERSION)
    images = rekey(writer)
    second = at(2)
    rekeyed = batch(second, *images.take(), stored={512: OTHER_KEY})
    rekeyed.numbers = images.numbers
    writer.submit(rekeyed)
    if end == "write":
        writer.mark_committed(second)
        writer.flush(is_forced=True)
    assert writer.store.row_count == 1000
    writer.close()
    writer = StateWriter(tmp_path / "state", "shop", 0)
    stored = published_forms(writer.checkpoint().spaces.values())
    images = writer.begin(stored, VERSION)
    assert stored[0].schema_version == (2 if end == "write" else 1)
    assert images.number(512) == (NUMBER_MIN if end == "write" else 512)
    assert len(list(images.scan(512))) == 500
    key = images.codec(stored[0]).of_key(["0007"] if end == "write" else [7])
    assert unpack(images.current(key) or b"") == [7, "0007"]
    writer.keep_only([512])
    # The others go little by little, while the daemon runs.
    counts = [writer.store.row_count]
    while counts[-1] > 500:
        writer.flush()
        counts.append(writer.store.row_count)
    assert all(0 < before - after <= 200 for before, after in pairwise(counts))
    assert len(list(images.scan(512))) == 500
    assert writer.names() == {"shop"}
    writer.close()


def test_rows_under_other_keys_are_not_removed_while_they_are_written(
    writer: StateWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.images.overlay.REKEY_ROWS", 100)
    images = rekey(writer)
    writer._unused = writer._unused_numbers()
    assert writer._unused == []
    (form,) = published_forms([SPACE])
    steps = images.rekey(form)
    next(steps)
    assert writer._unused_numbers() == []
    writer.begin([form], VERSION)
    assert writer._unused == [NUMBER_MIN, NUMBER_MIN + 1], "nobody began with either"
    writer.remove_unused()
    assert writer.store.space_ids() == [512]


def test_how_far_the_store_is_behind_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kill in a snapshot has come again: what was committed within the interval, and less if there is much."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    writer = StateWriter(tmp_path / "state", "shop", 0.5)
    writer.begin((), VERSION)

    def commit(lsn: int, *changes: Change) -> Position:
        position = at(lsn)
        writer.submit(batch(position, *changes))
        writer.mark_committed(position)
        return position

    commit(1, row(b"a"))
    assert writer.flush() is None
    now = 100.25
    second = commit(2, row(b"b"))
    assert writer.flush() is None, "the interval begins with the oldest that isn't written"
    now = 100.5
    assert writer.flush() is second
    many = commit(3, *(row(b"%d" % number) for number in range(FLUSH_CHANGES_MAX)))
    assert writer.flush() is many
    writer.close()
