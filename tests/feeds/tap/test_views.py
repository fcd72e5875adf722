"""Rows of a daemon's store, as the TAP server reads them beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest

from cdc.config.columns import ColumnsRule
from cdc.events.columns import ColumnRules
from cdc.feeds.tap.keys import KeyTemplate
from cdc.feeds.tap.merging import Selection
from cdc.feeds.tap.rows import BusyError, Rows
from cdc.feeds.tap.session import Cursor
from cdc.feeds.tap.views import DaemonStore
from cdc.feeds.tap.wire import Opcode, Packet, Packets
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.protocol.extensions import pack
from cdc.schema.forms import StoredSpace
from cdc.schema.keys import space_prefix
from cdc.store.store import StateStore
from cdc.stream.commits.checkpoint import Writer, position_record, space_record

_FORMAT = [{"name": "id", "type": "unsigned"}, {"name": "price", "type": "decimal"}]
_ALL = Selection(None, None, frozenset(), is_keys_only=False)
PRICE = msgpack.ExtType(1, b"\x02\x12\x3c")  # 1.23

Write = Callable[..., None]


def _space(space_id: int, name: str) -> StoredSpace:
    index = [space_id, 0, "pk", "tree", {"unique": True}, [[0, "unsigned"]]]
    return StoredSpace(space_id, [space_id, 1, name, "memtx", 0, {}, _FORMAT], {0: index}, 1)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Puts rows of the spaces 512 (users) or 513 (others) into a store, which is at `seq` then; None for a row that is gone.

    LMDB lets one process open a file once: what reads it is closed meanwhile.
    """

    def put(seq: int, rows: dict[int, bytes | None], space_id: int = 512) -> None:
        position = Position(VClock({1: seq}), seq=seq, snapshot=SnapshotState(1, is_complete=True))
        records: list[tuple[bytes, bytes | None]] = [position_record("shop", position, Writer("writer", has_store=True), 0)]
        records += [space_record("shop", number, _space(number, name)) for number, name in ((512, "users"), (513, "others"))]
        changes: list[tuple[bytes, bytes | None]] = [
            (space_prefix(space_id) + key.to_bytes(9, "big"), row) for key, row in rows.items()
        ]
        store = StateStore(tmp_path)
        store.write(changes, records)
        store.close()

    return put


def _opened(path: Path, template: str = "{space}:{key}", view_seconds_max: float = 60.0) -> DaemonStore:
    return DaemonStore(path, "shop", lambda space: KeyTemplate(template, space), 1024, view_seconds_max)


def _row(key: int) -> bytes:
    return pack([key, PRICE])


def _packets(rows: Rows) -> dict[bytes, Packet]:
    return {packet.key: packet for packet in Packets(1 << 30).feed(b"".join(rows.frames))}


def _all(store: DaemonStore, selection: Selection = _ALL, *, is_packed: bool = False, count_max: int = 7) -> dict[bytes, Packet]:
    found, cursor = dict[bytes, Packet](), Cursor()
    while True:
        rows = store.read(cursor, selection, is_packed=is_packed, count_max=count_max, bytes_max=1 << 20)
        assert [packet.key for packet in _packets(rows).values()] == rows.keys
        found |= _packets(rows)
        if rows.cursor is None:
            return found
        cursor = rows.cursor


def test_rows_are_json_or_the_bytes_of_the_tuple(tmp_path: Path, write: Write) -> None:
    write(7, {1: _row(1), 2: pack([2, PRICE, 1.5, b"\xff"])})
    store = _opened(tmp_path)
    found = _all(store)
    assert {key: packet.value for key, packet in found.items()} == {
        b"users:1": b'{"id":1,"price":"1.23"}',
        b"users:2": b'{"id":2,"price":"1.23","field_3":1.5,"field_4":"/w=="}',
    }
    assert {packet.cas for packet in found.values()} == {7}
    packed = _all(store, is_packed=True)
    assert {key: packet.value for key, packet in packed.items()} == {
        b"users:1": _row(1),
        b"users:2": pack([2, PRICE, 1.5, b"\xff"]),
    }
    store.close()


def test_any_number_of_rows_comes_in_pieces_of_any_size(tmp_path: Path, write: Write) -> None:
    write(300, {key: _row(key) for key in range(300)})
    write(310, {key: pack([key, PRICE, "x" * 300_000]) for key in range(10)}, space_id=513)
    store = _opened(tmp_path)
    expected = {b"users:%d" % key for key in range(300)} | {b"others:%d" % key for key in range(10)}
    for count_max in (1, 100, 10_000):
        assert _all(store, count_max=count_max).keys() == expected
    rows = store.read(Cursor(513), _ALL, is_packed=False, count_max=10_000, bytes_max=1 << 20)
    assert len(rows.frames) < 10, "of large rows there are few in a piece"
    selection = _ALL._replace(spaces=frozenset({"users"}), vbuckets=frozenset(range(512)), is_keys_only=True)
    half = _all(store, selection)
    assert 0.3 < len(half) / 300 < 0.7
    assert {packet.opcode for packet in half.values()} == {Opcode.TAP_MUTATION}
    assert not any(packet.value for packet in half.values())
    store.close()


def test_a_view_ends_with_its_time(tmp_path: Path, write: Write) -> None:
    write(1, {key: _row(key) for key in range(200)})
    store = _opened(tmp_path, view_seconds_max=0.0)
    assert len(store.read(Cursor(), _ALL, is_packed=False, count_max=1_000, bytes_max=1 << 20).frames) < 200
    assert len(_all(store)) == 200
    store.close()
    write(2, {199: None})
    assert store.seq() == 2
    assert b"users:199" not in _all(store)
    store.close()


def test_keys_of_other_fields(tmp_path: Path, write: Write) -> None:
    write(1, {5: _row(5)})
    store = _opened(tmp_path, "{price}/{id}")
    assert _all(store).keys() == {b"1.23/5"}
    store.close()


def test_a_store_of_nobody_is_waited_for(tmp_path: Path) -> None:
    with pytest.raises(BusyError):
        _opened(tmp_path).seq()


@pytest.mark.parametrize("is_packed", [False, True])
def test_rows_obey_the_rules_for_columns(tmp_path: Path, write: Write, is_packed: bool) -> None:
    write(7, {1: _row(1)})
    write(7, {2: pack([2, PRICE, "more"])}, space_id=513)
    rules = [ColumnsRule(spaces="users", mask={"price": "***"}), ColumnsRule(spaces="others", exclude=["price"])]
    template = "{space}:{key}"
    store = DaemonStore(
        tmp_path, "shop", lambda space: KeyTemplate(template, space), 1024, view_seconds_max=60.0, columns=ColumnRules(rules)
    )
    found = {key: packet.value for key, packet in _all(store, is_packed=is_packed).items()}
    store.close()
    if is_packed:
        assert found == {b"users:1": pack([1, "***"]), b"others:2": pack([2, "more"])}
    else:
        assert found == {b"users:1": b'{"id":1,"price":"***"}', b"others:2": b'{"id":2,"field_3":"more"}'}
