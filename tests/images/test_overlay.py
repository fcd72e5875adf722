"""The images against a plain dict, however the changes reach the store; and the store in memory against the real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cdc.errors import UnkeyableError
from cdc.images.overlay import Images, Tuples
from cdc.images.pending import CLEAR, Change, Changes, no_changes
from cdc.schema.forms import KeyPart, SpaceForm
from cdc.schema.keys import KeyCodec, space_prefix
from cdc.store.store import StateStore
from tests.fakes import wire
from tests.fakes.profiles import examples
from tests.fakes.tuples import MemoryTuples

SPACES = [512, 513]
KEYS = st.builds(
    lambda space, name: KeyCodec(form(space, "varbinary")).of_key([name]), st.sampled_from(SPACES), st.binary(max_size=1)
)
FEW_KEYS = st.builds(lambda space, rest: space_prefix(space) + rest, st.sampled_from(SPACES), st.sampled_from([b"a", b"b", b"c"]))
TUPLES = st.sampled_from([b"\x91\x01", b"\x91\x02"])


def form(space_id: int = 512, kind: str = "unsigned", field: int = 0, collation: int = 0) -> SpaceForm:
    return SpaceForm(space_id, f"space_{space_id}", (), (KeyPart(field, "", kind, collation),))


class Model(RuleBasedStateMachine):
    """Any interleaving of changes, batches and writes. What is read is what the changes so far make."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryTuples()
        self.images = Images(self.store)
        self.rows: dict[bytes, bytes] = {}
        self.on_their_way: list[Changes] = []

    @rule(key=FEW_KEYS | KEYS, tuple_=TUPLES)
    def put(self, key: bytes, tuple_: bytes) -> None:
        self.images.put(key, tuple_)
        self.rows[key] = tuple_

    @rule(key=FEW_KEYS | KEYS)
    def delete(self, key: bytes) -> None:
        self.images.delete(key)
        self.rows.pop(key, None)

    @rule(space_id=st.sampled_from(SPACES))
    def clear(self, space_id: int) -> None:
        self.images.clear(space_id)
        self.rows = {key: row for key, row in self.rows.items() if not key.startswith(space_prefix(space_id))}

    @rule()
    def take(self) -> None:
        count = self.images.change_count
        self.on_their_way.append(self.images.take())
        assert len(self.on_their_way[-1]) == count

    @precondition(lambda self: self.on_their_way)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """Some of the oldest batches, in one write."""
        count = data.draw(st.integers(1, len(self.on_their_way)))
        changes = no_changes()
        for batch in self.on_their_way[:count]:
            changes.extend(batch)
        del self.on_their_way[:count]
        self.store.write(changes, ())
        self.images.written(changes)

    @rule()
    def write_everything(self) -> None:
        self.take()
        changes = no_changes()
        for batch in self.on_their_way:
            changes.extend(batch)
        self.on_their_way.clear()
        self.store.write(changes, ())
        self.images.written(changes)
        assert self.store.rows == self.rows

    @rule(key=KEYS)
    def scan_from(self, key: bytes) -> None:
        space_id = int.from_bytes(key[:4], "big")
        assert list(self.images.scan(space_id, key)) == [row for row in self._sorted(space_id) if row[0] > key]

    @invariant()
    def is_the_dict(self) -> None:
        for space_id in SPACES:
            for rest in (b"a", b"b", b"c", b"z"):
                key = space_prefix(space_id) + rest
                assert self.images.current(key) == self.rows.get(key)
            assert list(self.images.scan(space_id)) == self._sorted(space_id)

    def _sorted(self, space_id: int) -> list[tuple[bytes, bytes]]:
        return sorted(row for row in self.rows.items() if row[0].startswith(space_prefix(space_id)))


TestModel = Model.TestCase
TestModel.settings = examples(150, steps=30)


def test_changes_behind_a_mark_are_forgotten() -> None:
    images = Images(MemoryTuples())
    images.put(b"\0\0\2\0a", b"\x91\x01")
    mark = images.change_count
    images.delete(b"\0\0\2\0a")
    images.forget_after(mark)
    assert list(images.take()) == [(b"\0\0\2\0a", b"\x91\x01")]


# Keys of two kinds.


def test_rows_under_other_keys_are_told() -> None:
    images = Images(MemoryTuples())
    images.use_form(form())
    images.put(space_prefix(512) + b"a", b"\x91\x01")
    assert not images.has_other_keys(form())
    assert images.has_other_keys(form(kind="string"))
    assert images.has_other_keys(form(field=1))
    assert not images.has_other_keys(form(513, "string"))
    images.clear(512)
    assert not images.has_other_keys(form(kind="string"))
    images.use_form(form(kind="string"))
    images.put(space_prefix(512) + b"a", b"\x91\x01")
    assert images.has_other_keys(form())


def test_rows_behind_a_truncation_are_still_under_their_keys() -> None:
    images = Images(MemoryTuples())
    images.use_form(form())
    images.clear(512)
    images.put(space_prefix(512) + b"a", b"\x91\x01")
    assert images.has_other_keys(form(kind="string"))


def test_stored_rows_are_under_the_keys_of_the_stored_form() -> None:
    store = MemoryTuples()
    store.rows[space_prefix(512) + b"a"] = b"\x91\x01"
    images = Images(store, [form()])
    assert images.is_kept(512)
    assert images.has_other_keys(form(kind="string"))
    images.delete(space_prefix(512) + b"a")
    assert not images.has_other_keys(form(kind="string"))


@pytest.mark.parametrize("is_stored", [True, False])
def test_nobody_knows_the_rows_of_a_space_that_could_not_be_kept(*, is_stored: bool) -> None:
    collated = form(kind="string", collation=1)
    images = Images(MemoryTuples(), [collated] if is_stored else [])
    if not is_stored:
        with pytest.raises(UnkeyableError):
            images.codec(collated)
    assert not images.has_other_keys(collated)
    assert images.has_other_keys(form())
    images.codec(form())
    images.use_form(form())
    assert not images.has_other_keys(form())


def test_a_key_in_doubt_stays_so_under_another_primary_key() -> None:
    """And outside, where the number that the key begins with may be another one after a start."""
    images = Images(MemoryTuples())
    first, second = form(field=0), form(field=1)
    codec = images.codec(first)
    images.use_form(first)
    for number in (1, 2):
        images.put(codec.of_key([number]), wire.pack([number, 10 * number]))
    assert images.mark_doubtful(codec.of_key([2]))
    assert images.doubts == {codec.of_key([2])}
    list(images.rekey(second))
    other = images.codec(second)
    assert images.doubtful == {other.of_key([20])}
    assert images.doubts == {space_prefix(512) + other.of_key([20])[4:]}
    images.doubtful = frozenset()
    images.restore_doubtful({space_prefix(512) + other.of_key([20])[4:], space_prefix(513) + b"x"})
    assert images.doubtful == {other.of_key([20]), space_prefix(513) + b"x"}
    images.put(other.of_key([20]), wire.pack([2, 20]))
    assert images.doubts == {space_prefix(513) + b"x"}


# Both stores keep the promises of `Tuples`.


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MemoryTuples | StateStore]:
    """An empty one."""
    opened = MemoryTuples() if request.param == "memory" else StateStore(tmp_path / "state")
    yield opened
    opened.close()


def rows(space_id: int, *names: bytes) -> list[Change]:
    return [(space_prefix(space_id) + name, b"\x91" + name) for name in names]


def test_contract_of_reading(store: MemoryTuples | StateStore) -> None:
    tuples: Tuples = store
    assert tuples.row_count == 0
    store.write([*rows(512, b"b", b"a", b"c"), *rows(513, b"a")], [(b"name", b"value"), (b"gone", b"")])
    assert tuples.row_count == 4
    assert tuples.get(space_prefix(512) + b"a") == b"\x91a"
    assert tuples.get(space_prefix(514) + b"a") is None
    assert list(tuples.scan(512)) == rows(512, b"a", b"b", b"c")
    assert list(tuples.scan(512, space_prefix(512) + b"a")) == rows(512, b"b", b"c")
    assert list(tuples.scan(512, space_prefix(512) + b"aa")) == rows(512, b"b", b"c")
    assert store.space_ids() == [512, 513]
    store.write([(space_prefix(512), CLEAR), *rows(512, b"d"), (space_prefix(513) + b"a", None)], [(b"gone", None)])
    assert list(tuples.scan(512)) == rows(512, b"d")
    assert store.space_ids() == [512]
    assert store.records == {b"name": b"value"}


def test_contract_of_scanning_while_it_is_written(store: MemoryTuples | StateStore) -> None:
    store.write(rows(512, b"a", b"b"), ())
    scanned = store.scan(512)
    store.write([(space_prefix(512) + b"b", None), *rows(512, b"c")], ())
    assert list(scanned) == rows(512, b"a", b"b")


def test_contract_of_a_snapshot(store: MemoryTuples | StateStore) -> None:
    store.write([*rows(512, b"a", b"b", b"c"), *rows(513, b"a")], ())
    store.begin_mark()
    store.add_marks([space_prefix(512) + b"c", space_prefix(512) + b"a"])
    assert list(store.unmarked(512)) == rows(512, b"b")
    assert list(store.unmarked(513)) == rows(513, b"a")
    store.begin_mark()
    assert list(store.unmarked(512)) == rows(512, b"a", b"b", b"c")
    store.end_mark()
    assert store.row_count == 4


def test_images_over_either_store(store: MemoryTuples | StateStore) -> None:
    images = Images(store)
    for key, row in rows(512, b"a", b"b"):
        assert row is not None
        images.put(key, row)
    changes = images.take()
    store.write(changes, ())
    images.written(changes)
    images.clear(512)
    ((key, row),) = rows(512, b"c")
    assert row is not None
    images.put(key, row)
    assert list(images.scan(512)) == [(key, row)]
    images.begin_snapshot()
    assert images.is_comparing
    assert list(images.missing(512)) == []
    changes = images.take()
    store.write(changes, ())
    images.written(changes)
    assert list(images.missing(512)) == [(key, row)]
    assert images.comparison is not None
    images.comparison.see([key])
    assert list(images.missing(512)) == []
    images.end_snapshot()
    assert not images.is_comparing
