"""The form of every space at every position, from rows of system spaces as masters write them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import SchemaError
from cdc.protocol.constants import Type
from cdc.schema.forms import ChangeKind, Field, KeyPart, SchemaChange, SpaceForm, StoredSpace
from cdc.schema.tracker import SchemaTracker
from tests.fakes.master import INDEX, SPACE, TRUNCATE, Master
from tests.fakes.profiles import SOME
from tests.fakes.workload import Workload

Change = tuple[str, str, int, str | None]


def is_user_space(form: SpaceForm) -> bool:
    """What the tests publish."""
    return form.space_id > 511


class Tracked:
    """A tracker that follows a master's log."""

    def __init__(self) -> None:
        self.master = Master()
        self.tracker = SchemaTracker()
        self._done = 0
        for body in self.master.snapshot():
            self.apply(Type.INSERT, body)
        self.tracker.changes(is_user_space)

    def apply(self, kind: int, body: dict[int, Any]) -> SpaceForm | None:
        return self.tracker.apply(kind, body) if body.get(0x10) in (SPACE, INDEX, TRUNCATE) else None

    def emptied(self) -> list[str]:
        """Follow the log; the names of spaces whose rows have gone."""
        found = [self.apply(row.kind, row.body) for row in self.master.log[self._done :]]
        self._done = len(self.master.log)
        return [form.name for form in found if form is not None]

    def changes(self) -> list[Change]:
        """Follow the log; what is different for the outside."""
        self.emptied()
        return [told(change) for change in self.tracker.changes(is_user_space)]

    def form(self, name: str) -> SpaceForm:
        return self.tracker.form(self.master.id_of(name))


def told(change: SchemaChange) -> Change:
    return change.kind.value, change.form.name, change.form.schema_version, change.previous_name


FORMAT = [{"name": "id", "type": "unsigned"}, {"name": "name", "type": "string", "is_nullable": True}]


def test_a_space_is_known_with_its_primary_key() -> None:
    tracked = Tracked()
    number = tracked.master.create_space("users", FORMAT, None)
    assert tracked.changes() == []
    with pytest.raises(SchemaError, match=f"space {number}, which has no primary key"):
        tracked.tracker.form(number)
    tracked.master.create_index("users", [(0, "unsigned")])
    assert tracked.changes() == [("CREATE", "users", 1, None)]
    form = tracked.form("users")
    assert form.fields == (Field("id", "unsigned", False), Field("name", "string", True))
    assert form.key_parts == (KeyPart(0, "", "unsigned"),)
    assert (form.is_sync, form.is_replicated, form.schema_version) == (False, True, 1)


def test_alter_rename_and_drop() -> None:
    tracked = Tracked()
    tracked.master.create_space("users", FORMAT)
    tracked.changes()
    tracked.master.format("users", [*FORMAT, {"name": "city"}])
    assert tracked.changes() == [("ALTER", "users", 2, None)]
    assert tracked.form("users").fields[2] == Field("city", "any", False)
    tracked.master.rename("users", "people")
    assert tracked.changes() == [("ALTER", "people", 3, "users")]
    tracked.master.alter_key("people", [(1, "string")])
    assert tracked.changes() == [("ALTER", "people", 4, None)]
    number = tracked.master.id_of("people")
    tracked.master.drop("people")
    assert tracked.emptied() == ["people"]
    assert tracked.changes() == [("DROP", "people", 4, None)]
    with pytest.raises(SchemaError, match="doesn't exist"):
        tracked.tracker.form(number)
    assert tracked.tracker.stored(number) is None
    assert number not in tracked.tracker


def test_what_changes_nothing_outside_gives_no_version() -> None:
    tracked = Tracked()
    tracked.master.create_space("users", FORMAT)
    tracked.changes()
    tracked.master.create_index("users", [(1, "string")], index_id=1, name="by_name")
    tracked.master.update(INDEX, [tracked.master.id_of("users"), 1], ["=", 3, "other"])
    tracked.master.update(SPACE, [tracked.master.id_of("users")], ["=", 2, 32])
    tracked.master.format("users", FORMAT)
    tracked.master.truncate("users")
    tracked.master.drop_index("users", 1)
    assert tracked.changes() == []
    assert tracked.tracker.schema_version == 1


def test_a_number_that_is_used_again() -> None:
    """Over two settlements it is a DROP and a CREATE; within one the space has become another."""
    tracked = Tracked()
    number = tracked.master.create_space("old", FORMAT)
    tracked.changes()
    tracked.master.drop("old")
    assert tracked.changes() == [("DROP", "old", 1, None)]
    tracked.master.create_space("new", [{"name": "k", "type": "string"}], [(0, "string")], space_id=number)
    assert tracked.changes() == [("CREATE", "new", 2, None)]
    tracked.master.drop("new")
    tracked.master.create_space("newer", FORMAT, space_id=number)
    assert tracked.changes() == [("ALTER", "newer", 3, "new")]


def test_a_deleted_space_takes_its_indexes_along() -> None:
    tracked = Tracked()
    number = tracked.master.create_space("users", FORMAT)
    tracked.changes()
    tracked.tracker.apply(Type.DELETE, {0x10: SPACE, 0x20: [number]})
    tracked.tracker.apply(Type.INSERT, {0x10: SPACE, 0x21: [number, 1, "again", "memtx", 0, {}, []]})
    with pytest.raises(SchemaError, match="no primary key"):
        tracked.tracker.form(number)


@pytest.mark.parametrize(("base", "place"), [(0, 2), (1, 3)])
def test_fields_of_system_rows_are_counted_as_the_row_says(base: int, place: int) -> None:
    tracked = Tracked()
    number = tracked.master.create_space("users", FORMAT)
    tracked.changes()
    tracked.master.update(SPACE, [number], ["=", place, "people"], base=base)
    assert tracked.changes() == [("ALTER", "people", 2, "users")]


def test_rows_go_with_truncate_and_with_the_primary_index() -> None:
    tracked = Tracked()
    tracked.master.create_space("users", FORMAT)
    tracked.master.create_index("users", [(1, "string")], index_id=1, name="second")
    tracked.changes()
    tracked.master.truncate("users")
    assert tracked.emptied() == ["users"]
    tracked.master.truncate("users")
    assert tracked.emptied() == ["users"]
    tracked.master.drop_index("users", 1)
    assert tracked.emptied() == []
    tracked.master.drop_index("users", 0)
    assert tracked.emptied() == ["users"]
    assert tracked.changes() == [], "until the space goes too it only can't have rows"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([], ()),
        (["a", "b"], (Field("a", "any", True), Field("b", "any", True))),
        ([["a", "string"], ["b"]], (Field("a", "string", False), Field("b", "any", False))),
        ([{"name": "a"}], (Field("a", "any", False),)),
        ([{"name": "a", "type": "STR", "is_nullable": True}], (Field("a", "string", True),)),
        ([["a", "num"], {"name": "b", "type": "*"}], (Field("a", "unsigned", False), Field("b", "any", False))),
        (
            [{"name": f"{place}", "type": kind} for place, kind in enumerate(["", "N", "nu", "S", "st"])],
            tuple(Field(f"{place}", "unsigned" if place < 3 else "string", False) for place in range(5)),
        ),
        ([{"name": "a", "type": "decimal32", "scale": 2}], (Field("a", "decimal32", False, scale=2),)),
        ([{"name": "a", "type": "string", "default": ""}], (Field("a", "string", False, has_default=True),)),
        ([{"name": "a", "type": "string", "default_func": 7}], (Field("a", "string", False, has_default=True),)),
        ([{"name": "a", "type": "string", "default_func": 0}], (Field("a", "string", False),)),
        ([{"name": "a", "type": "Unsigned", "nullable_action": "none", "collation": 2}], (Field("a", "unsigned", False),)),
    ],
)
def test_forms_of_a_format(fields: list[Any], expected: tuple[Field, ...]) -> None:
    tracked = Tracked()
    tracked.master.create_space("users", fields)
    tracked.changes()
    assert tracked.form("users").fields == expected


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ((1, "string"), KeyPart(1, "", "string")),
        ({"field": 1, "type": "STRING"}, KeyPart(1, "", "string")),
        ((1, "STR"), KeyPart(1, "", "string")),
        ({"field": 1, "type": "num"}, KeyPart(1, "", "unsigned")),
        ((1, "n"), KeyPart(1, "", "n")),
        ({"field": 0, "type": "unsigned", "path": ".a.b", "sort_order": "desc"}, KeyPart(0, ".a.b", "unsigned")),
        ({"field": 2}, KeyPart(2, "", "any")),
        ({"field": 1, "type": "string", "collation": 2}, KeyPart(1, "", "string", 2)),
        ({"field": 1, "type": "string", "collation": None}, KeyPart(1, "", "string")),
    ],
)
def test_forms_of_a_key_part(part: Any, expected: KeyPart) -> None:
    tracked = Tracked()
    tracked.master.create_space("users", FORMAT, [part])
    tracked.changes()
    assert tracked.form("users").key_parts == (expected,)


@pytest.mark.parametrize("index", ["hash", "HASH", "tree", "TREE"])
@pytest.mark.parametrize(
    "kind", ["decimal", "number", "scalar", "double", "datetime", "decimal256", "unsigned", "string", "uuid"]
)
def test_a_hash_index_has_some_keys_as_they_are_written(index: str, kind: str) -> None:
    tracked = Tracked()
    tracked.master.create_space("money", FORMAT, [(0, kind), (1, "string")], index=index)
    tracked.changes()
    one, other = tracked.form("money").key_parts
    assert one.is_as_written == (index.lower() == "hash" and kind not in ("unsigned", "string", "uuid"))
    assert not other.is_as_written


@pytest.mark.parametrize(("kind", "told_of"), [("unsigned", []), ("decimal", [("ALTER", "money", 2, None)])])
def test_an_index_of_another_type_is_another_key_where_it_counts(kind: str, told_of: list[Change]) -> None:
    tracked = Tracked()
    tracked.master.create_space("money", FORMAT, [(0, kind)])
    tracked.changes()
    tracked.master.alter_index("money", "HASH")
    assert tracked.changes() == told_of


@pytest.mark.parametrize(
    ("flags", "is_sync", "is_replicated"),
    [
        ({}, False, True),
        ({"is_sync": True}, True, True),
        ({"group_id": 1}, False, False),
        ({"group_id": 0}, False, True),
        ({"temporary": True}, False, False),
        ({"type": "temporary"}, False, False),
        ({"type": "data-temporary"}, False, False),
        ({"type": "normal"}, False, True),
    ],
)
def test_options_of_a_space(flags: dict[str, Any], is_sync: bool, is_replicated: bool) -> None:
    tracked = Tracked()
    tracked.master.create_space("users", FORMAT, flags=flags)
    tracked.changes()
    assert (tracked.form("users").is_sync, tracked.form("users").is_replicated) == (is_sync, is_replicated)


def test_only_what_is_published_is_told() -> None:
    tracked = Tracked()
    tracked.master.create_space("hidden", FORMAT)
    tracked.emptied()
    assert tracked.tracker.changes(lambda form: form.name == "shown") == []
    tracked.master.rename("hidden", "shown")
    tracked.emptied()
    assert [told(change) for change in tracked.tracker.changes(lambda form: form.name == "shown")] == [
        ("CREATE", "shown", 1, None)
    ]
    tracked.master.rename("shown", "hidden")
    tracked.emptied()
    assert [told(change) for change in tracked.tracker.changes(lambda form: form.name == "shown")] == [("DROP", "shown", 1, None)]


def test_rows_between_halves_of_a_ddl_statement() -> None:
    """A row's form is that of its place in the transaction, whether or not the outside knows it yet."""
    tracked = Tracked()
    tracked.master.create_space("users", FORMAT)
    tracked.emptied()
    assert tracked.form("users").schema_version == 0
    assert tracked.form("users").field_names == ("id", "name")


def test_a_new_snapshot_is_compared_with_what_is_known() -> None:
    tracked = Tracked()
    master, tracker = tracked.master, tracked.tracker
    master.create_space("same", FORMAT)
    master.create_space("altered", FORMAT)
    master.create_space("gone", FORMAT)
    master.create_space("bare", FORMAT)
    tracked.changes()
    master.format("altered", FORMAT[:1])
    master.drop("gone")
    master.drop_index("bare", 0)
    master.create_space("new", FORMAT, space_id=700)
    tracker.begin_snapshot()
    assert tracker.forms() == []
    for body in master.snapshot():
        tracked.apply(Type.INSERT, body)
    found = [told(change) for change in tracker.changes(is_user_space)]
    assert sorted(found) == [
        ("ALTER", "altered", 5, None),
        ("CREATE", "new", 6, None),
        ("DROP", "bare", 4, None),
        ("DROP", "gone", 3, None),
    ]


NO_SPACES: list[Any] = [-1, 2**31, 2**64 - 1, True, 1.0, "513", None]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Type.INSERT, {}),
        (Type.INSERT, {0x10: SPACE}),
        (Type.INSERT, {0x10: SPACE, 0x21: []}),
        (Type.INSERT, {0x10: SPACE, 0x21: None}),
        (Type.INSERT, {0x10: SPACE, 0x21: [513, 1]}),
        *((Type.INSERT, {0x10: SPACE, 0x21: [space_id, 1, "x", "memtx", 0]}) for space_id in NO_SPACES),
        *((Type.DELETE, {0x10: SPACE, 0x20: [space_id]}) for space_id in NO_SPACES),
        *((Type.INSERT, {0x10: INDEX, 0x21: [space_id, 0, "pk", "tree", {}, []]}) for space_id in NO_SPACES),
        (Type.INSERT, {0x10: INDEX, 0x21: [513]}),
        (Type.UPDATE, {0x10: SPACE, 0x20: [9999], 0x21: []}),
        (Type.UPDATE, {0x10: SPACE, 0x20: [SPACE], 0x21: [["+", 3, 1]], 0x15: 1}),
        (Type.UPDATE, {0x10: SPACE, 0x20: [SPACE], 0x21: [["=", "missing", 1]], 0x15: 1}),
        (Type.DELETE, {0x10: SPACE}),
        (Type.DELETE, {0x10: INDEX, 0x20: [513]}),
        (Type.NOP, {0x10: SPACE, 0x21: [1]}),
        (Type.UPSERT, {0x10: TRUNCATE}),
    ],
)
def test_system_rows_that_cannot_be_folded(kind: int, body: dict[int, Any]) -> None:
    with pytest.raises((SchemaError, KeyError)):
        Tracked().tracker.apply(kind, body)


@pytest.mark.parametrize(
    "row",
    [
        [513, 1, "\udcff", "memtx", 0, {}, []],
        [513, 1, None, "memtx", 0, {}, []],
        [513, 1, "x", "memtx", 0, {}, [5]],
        [513, 1, "x", "memtx", 0, {}, 5],
        [513, 1, "x", "memtx", 0, {}, [{"name": "\udcff"}]],
        [513, 1, "x", "memtx", 0, {}, [{"type": "string"}]],
        [513, 1, "x", "memtx", 0, {}, [{"name": "a", "type": 5}]],
    ],
)
def test_system_rows_that_make_no_form(row: list[Any]) -> None:
    tracker = SchemaTracker()
    tracker.apply(Type.INSERT, {0x10: SPACE, 0x21: row})
    tracker.apply(Type.INSERT, {0x10: INDEX, 0x21: [513, 0, "pk", "tree", {}, [[0, "unsigned"]]]})
    with pytest.raises(SchemaError, match="system rows of space 513"):
        tracker.form(513)


@pytest.mark.parametrize(
    "parts",
    [
        [["x", "unsigned"]],
        [[-1, "unsigned"]],
        [{"field": 0, "path": 5}],
        [{"field": 0, "collation": "unicode"}],
        [{"field": 0, "collation": True}],
        [{"type": "x"}],
        [5],
        5,
    ],
)
def test_key_parts_that_make_no_form(parts: Any) -> None:
    tracker = SchemaTracker()
    tracker.apply(Type.INSERT, {0x10: SPACE, 0x21: [513, 1, "x", "memtx", 0, {}, []]})
    tracker.apply(Type.INSERT, {0x10: INDEX, 0x21: [513, 0, "pk", "tree", {}, parts]})
    with pytest.raises(SchemaError, match="system rows of space 513"):
        tracker.form(513)


def test_space_rows_of_older_masters_may_be_short() -> None:
    tracker = SchemaTracker()
    tracker.apply(Type.INSERT, {0x10: SPACE, 0x21: [513, 1, "x", "memtx", 0]})
    tracker.apply(Type.INSERT, {0x10: INDEX, 0x21: [513, 0, "pk", "tree", {}, [[0, "unsigned"]]]})
    assert tracker.form(513).fields == ()


# A start at any place.


def _stored(tracker: SchemaTracker, spaces: dict[int, StoredSpace], touched: list[int]) -> None:
    for space_id in touched:
        stored = tracker.stored(space_id)
        if stored is None:
            spaces.pop(space_id, None)
        else:
            spaces[space_id] = stored


@SOME
@given(seed=st.integers(0, 2**32 - 1))
def test_a_tracker_from_what_was_stored_goes_on_the_same_way(seed: int) -> None:
    """Two trackers over the same log; one is thrown away and built anew from the stored rows after every transaction."""
    rng = random.Random(seed)
    master = Master()
    steady, spaces = SchemaTracker(), dict[int, StoredSpace]()
    for body in master.snapshot():
        if body[0x10] in (SPACE, INDEX, TRUNCATE):
            steady.apply(Type.INSERT, body)
    touched = steady.touched
    steady.changes(is_user_space)
    _stored(steady, spaces, touched)
    Workload(master, rng).run(60)
    restarted, version = SchemaTracker(spaces.values(), steady.schema_version), steady.schema_version
    for row in master.log:
        if row.body.get(0x10) in (SPACE, INDEX, TRUNCATE):
            assert restarted.apply(row.kind, row.body) == steady.apply(row.kind, row.body)
        if row.tsn is not None and not row.flags:
            continue  # within a transaction nothing is stored
        touched = steady.touched
        expected = steady.changes(is_user_space)
        assert [told(change) for change in restarted.changes(is_user_space)] == [told(change) for change in expected]
        _stored(steady, spaces, touched)
        version = steady.schema_version
        restarted = SchemaTracker(spaces.values(), version)
        assert restarted.forms() == steady.forms()
        assert [form.schema_version for form in restarted.forms()] == [form.schema_version for form in steady.forms()]


def test_kinds_are_the_words_of_the_schema_topic() -> None:
    assert {kind.value for kind in ChangeKind} == {"CREATE", "ALTER", "DROP"}
