"""The server's own store: what is in it after any commits and kills, and what clients are filled with."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.errors import ConfigurationError
from cdc.feeds.tap.folding import Emptied, Fold, Row
from cdc.feeds.tap.keys import KeyTemplate, vbucket_of
from cdc.feeds.tap.merging import Selection
from cdc.feeds.tap.rows import BusyError
from cdc.feeds.tap.session import Cursor
from cdc.feeds.tap.topic_store import StorePosition, TopicStore
from cdc.feeds.tap.wire import Packets

ALL = Selection(None, None, frozenset(), is_keys_only=False)


def opened(path: Path, spaces: list[str] | None = None, known_epoch: int = 0) -> TopicStore:
    store = TopicStore(path, "shop", spaces or [".*"], lambda space: KeyTemplate("{space}:{key}", space), 1024, 5.0)
    store.open(known_epoch)
    return store


def wrote(store: TopicStore, seq: int, *events: Row | Emptied, is_loading: bool = False, is_ordered: bool = False) -> None:
    fold = Fold(store.spaces(), lambda _: True)
    for event in events:
        fold.add(event)
    store.commit(fold, StorePosition(store.position.epoch, seq, is_loading), is_ordered=is_ordered)


def row(seq: int, key: str, value: bytes | None = b'{"v":1}', space_id: int = 512) -> Row:
    return Row(seq, space_id, f"space{space_id}", b'{"id":"%b"}' % key.encode(), value, 0)


def contents(store: TopicStore, selection: Selection = ALL, count_max: int = 3) -> dict[bytes, tuple[int, bytes]]:
    """What a client is filled with: by key, CAS and value."""
    found, cursor = {}, Cursor()
    while True:
        rows = store.read(cursor, selection, is_packed=False, count_max=count_max, bytes_max=1 << 20)
        for packet in Packets().feed(b"".join(rows.frames)):
            found[packet.key] = packet.cas, packet.value
        if rows.cursor is None:
            return found
        cursor = rows.cursor


def test_a_row_has_the_number_of_its_own_change(tmp_path: Path) -> None:
    store = opened(tmp_path / "rows")
    with pytest.raises(BusyError):
        store.seq()
    wrote(store, 9, row(3, "a"), row(7, "b" * 600, b"long"), row(8, "c", space_id=513))
    assert store.seq() == 9
    expected = {b"space512:a": (3, b'{"v":1}'), b"space512:" + b"b" * 600: (7, b"long"), b"space513:c": (8, b'{"v":1}')}
    assert contents(store) == expected
    assert contents(store, ALL._replace(spaces=frozenset({"space513"}))).keys() == {b"space513:c"}
    wrote(store, 11, Emptied(10, 512), row(11, "d"), is_ordered=True)
    assert contents(store) == expected, "the view is of its moment"
    assert store.seq() == 11
    assert contents(store).keys() == {b"space512:d", b"space513:c"}
    spaces = store.spaces()
    store.sweep_some(spaces)
    assert store.row_count == 2
    assert store.spaces()[512].swept == 10
    store.close()
    store = opened(tmp_path / "rows")
    assert contents(store).keys() == {b"space512:d", b"space513:c"}
    with pytest.raises(ConfigurationError, match=r"tap\.store_path"):
        opened(tmp_path / "rows")
    store.close()


def test_errors_that_are_kept_hold_no_place_of_a_reader(tmp_path: Path) -> None:
    """LMDB has 126. Clients that wait for the store keep errors until the garbage collector runs."""
    store = opened(tmp_path / "rows")
    kept = []
    for _ in range(300):
        with pytest.raises(BusyError) as caught:
            store.seq()
        kept.append(caught.value)
    wrote(store, 9, row(3, "a"))
    assert store.seq() == 9
    store.close()


def test_other_spaces_and_damage_make_it_anew(tmp_path: Path) -> None:
    store = opened(tmp_path)
    wrote(store, 3, row(3, "a"))
    epoch = store.position.epoch
    store.close()
    store = opened(tmp_path, ["users"])
    assert store.position.epoch > epoch, "those who come back are filled again"
    epoch = store.position.epoch
    with pytest.raises(BusyError):
        store.seq()
    wrote(store, 3, row(3, "a"))
    store.close()
    data = tmp_path / "data.mdb"
    data.write_bytes(b"\xff" * data.stat().st_size)
    # What it was nobody can read any more: sessions tell it.
    store = opened(tmp_path, ["users"], known_epoch=epoch)
    assert store.position.seq == 0
    assert store.position.epoch > epoch
    epoch = store.position.epoch
    store.close()
    store = opened(tmp_path, ["users"], known_epoch=epoch)
    assert store.position.epoch == epoch, "the same store"
    store.close()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("aabcdt"), st.booleans()), max_size=40), st.randoms(use_true_random=False))
def test_any_commits_and_kills_give_what_the_changes_give(told: list[tuple[str, bool]], chance: random.Random) -> None:
    expected: dict[bytes, tuple[int, bytes]] = {}
    partitions: list[list[Row | Emptied]] = [[], [], []]
    for seq, (key, is_put) in enumerate(told, 1):
        if key == "t":
            expected.clear()
            for partition in partitions:
                partition.append(Emptied(seq, 512))
            continue
        value = b"%d" % seq if is_put else None
        expected.pop(b"space512:" + key.encode(), None)
        if value is not None:
            expected[b"space512:" + key.encode()] = seq, value
        partitions[chance.randrange(3)].append(row(seq, key, value))
    places = [0, 0, 0]
    with tempfile.TemporaryDirectory() as directory:
        store = opened(Path(directory))
        while any(place < len(partition) for place, partition in zip(places, partitions, strict=True)):
            number = chance.randrange(3)
            count = chance.randrange(1, 8)
            wrote(store, 0, *partitions[number][places[number] : places[number] + count], is_loading=True)
            if chance.random() < 0.7:  # otherwise it is read again
                places[number] += count
            if chance.random() < 0.2:
                store.sweep_some(store.spaces())
            if chance.random() < 0.2:
                store.close()
                store = opened(Path(directory))
        wrote(store, len(told))
        assert contents(store) == expected
        # From then on changes come in their order.
        wrote(store, len(told) + 2, row(len(told) + 1, "z"), row(len(told) + 2, "a", None), is_ordered=True)
        store.seq()
        expected.pop(b"space512:a", None)
        assert contents(store) == expected | {b"space512:z": (len(told) + 1, b'{"v":1}')}
        store.close()


def test_who_gets_few_rows_does_not_keep_the_others_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.feeds.tap.rows._READ_SECONDS", 0.0)
    store = opened(tmp_path / "rows")
    wrote(store, 2_000, *[row(number, f"{number:04}") for number in range(1, 2_001)])
    few, keys, count = Selection(None, frozenset([7]), frozenset(), is_keys_only=False), list[bytes](), 0
    cursor: Cursor | None = Cursor()
    while cursor is not None:
        rows = store.read(cursor, few, is_packed=False, count_max=1_000, bytes_max=1 << 20)
        keys, cursor, count = keys + rows.keys, rows.cursor, count + 1
    assert count > 10
    assert keys == [key for key in contents(store) if vbucket_of(key, 1023) == 7]
    store.close()


def test_a_row_that_cannot_be_shown_is_left_out(tmp_path: Path) -> None:
    """Another program may have written anything under the daemon's name."""
    store = opened(tmp_path / "rows")
    wrote(store, 9, row(3, "a"), row(4, "b", b"[1]"), row(5, "c", b'{"v":100000000000000000000}'), row(6, "d", b'{"v":"\xff"}'))
    rows = store.read(Cursor(), ALL, is_packed=True, count_max=100, bytes_max=1 << 20)
    assert rows.keys == [b"space512:a"]
    store.close()
