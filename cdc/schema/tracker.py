"""Tracker of the form of every space at every position of the stream.

Tarantool writes DDL as ordinary rows of system spaces into the same log as the data: `_space` (280) holds names and formats,
`_index` (288) the keys, and a row in `_truncate` (330) empties a space. The tracker applies those rows in order. Thus each data
row is decoded by the schema at its own position, not by the current one, and the server is never queried.

    _space 513 ──┐                 CREATE                  ALTER                        DROP, and before it
    _index 513 0 ┴─▶ form, version 1 ──▶ rows ──▶ format ──▶ form, version 2 ──▶ rows ──▶ `t`: the rows are gone

A form is published once the space has a primary key: before that, the space can't have rows. Deleting the primary index
deletes the rows too. A drop is that deletion, followed by the deletion of the `_space` row.

Out of scope: topics, filters, and the format of published rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cdc.errors import SchemaError, UnknownSpaceError, excerpt
from cdc.protocol.codec import LEVELS_MAX, Body, MapPairs
from cdc.protocol.constants import Key, Type
from cdc.protocol.extensions import DeepValue, pack, unpack
from cdc.protocol.system_spaces import INDEX_SPACE, SPACE_SPACE, TRUNCATE_SPACE
from cdc.schema.forms import (
    PLAIN_ROUTING,
    WRITTEN_DIFFERENTLY,
    ChangeKind,
    Field,
    KeyPart,
    Routing,
    SchemaChange,
    SpaceForm,
    StoredSpace,
    type_of_field,
    type_of_key_part,
)
from cdc.tuples.update import update, upsert

TRACKED_SPACES: Final = frozenset({SPACE_SPACE, INDEX_SPACE, TRUNCATE_SPACE})
_SPACE_MAX: Final = (1 << 31) - 1
"""Highest id of a space (BOX_SPACE_MAX)."""
_PRIMARY: Final = 0
_LOST_PRIMARY: Final = -1
"""Index id under which the last primary index of a space is kept after its deletion. Such a space has no rows, but its form is
still published."""
_LOCAL_GROUP: Final = 1
_TEMPORARY_TYPES: Final = frozenset({"temporary", "data-temporary"})
# Field names of `_space` and `_index` rows, unchanged since 1.7.
_SPACE_FIELDS: Final = ("id", "owner", "name", "engine", "field_count", "flags", "format")
_INDEX_FIELDS: Final = ("id", "iid", "name", "type", "opts", "parts")


class SchemaTracker:
    """Computes the forms of spaces from rows of system spaces.

    `apply` applies one row. `changes` then returns the resulting schema changes, and assigns versions to new forms. Between
    these calls the state may reflect half of a DDL statement, so `changes` is called when a transaction ends or when a data row
    needs its form.
    """

    def __init__(
        self,
        stored: Iterable[StoredSpace] = (),
        schema_version: int = 0,
        columns: Callable[[SpaceForm], str] | None = None,
        routing: Callable[[str], Routing] | None = None,
    ) -> None:
        """`columns` returns what a form has as `columns`, and `routing` that of a space's name; without them, forms keep what is
        stored."""
        self._space_rows: dict[int, list[Any]] = {}
        self._index_rows: dict[int, dict[int, list[Any]]] = {}
        # Published forms. Invariant: their versions are distinct and not above self.schema_version.
        self._known: dict[int, SpaceForm] = {}
        self._columns = columns
        self._routing = routing
        self._touched: dict[int, None] = {}
        self.last_touched: int | None = None
        """Id of the space whose system row was applied last."""
        self.schema_version = schema_version
        self.synchronous: set[int] = set()
        """Ids of the spaces that have `is_sync`."""
        for space in stored:
            self._space_rows[space.space_id] = space.space_row
            if self.is_synchronous_row(space.space_row):
                self.synchronous.add(space.space_id)
            self._index_rows[space.space_id] = dict(space.index_rows)
            if space.schema_version:
                form = self._derive(space.space_id) or self._derive(space.space_id, _LOST_PRIMARY)
                if form is not None:
                    self._known[space.space_id] = replace(
                        form, schema_version=space.schema_version, columns=space.columns, routing=space.routing
                    )

    def __contains__(self, space_id: int) -> bool:
        return space_id in self._space_rows

    def form(self, space_id: int) -> SpaceForm:
        """Return the form of a space that has received a row. Raises UnknownSpaceError if it can't have rows at this position."""
        known = self._known.get(space_id)
        if known is not None and space_id not in self._touched:
            return known
        form = self._derive(space_id)
        if form is None:
            state = "has no primary key" if space_id in self._space_rows else "doesn't exist"
            raise UnknownSpaceError(
                f"a row arrived for space {space_id}, which {state} at this position",
                "The stored schema doesn't match this position; a new snapshot reads the schema again.",
            )
        return form

    def forms(self) -> list[SpaceForm]:
        """Return the forms of all spaces that can have rows, ordered by id."""
        derived = (self._derive(space_id) for space_id in sorted(self._space_rows))
        return [form for form in derived if form is not None]

    def name(self, space_id: int) -> str | None:
        """Return a space's name, None if the space doesn't exist."""
        row = self._space_rows.get(space_id)
        return None if row is None else str(row[2])

    def is_known(self, space_id: int) -> bool:
        """Return whether a space is published, according to the changes that `changes` has returned."""
        return space_id in self._known

    def has_primary_key(self, space_id: int) -> bool:
        """Return whether a space has a primary key; without one it can't have rows."""
        return _PRIMARY in self._index_rows.get(space_id, {})

    def stored(self, space_id: int) -> StoredSpace | None:
        """Return a space's rows and version for the checkpoint, None if the space doesn't exist."""
        if space_id not in self._space_rows:
            return None
        known = self._known.get(space_id)
        return StoredSpace(
            space_id,
            self._space_rows[space_id],
            # A copy, because the checkpoint is written later and must hold the state at this position.
            dict(self._index_rows.get(space_id, {})),
            known.schema_version if known is not None else 0,
            known.columns if known is not None else "",
            known.routing if known is not None else PLAIN_ROUTING,
        )

    def begin_snapshot(self) -> None:
        """Forget all system rows, because a snapshot sends them again. Published forms are kept for comparison."""
        for space_id in (*self._space_rows, *self._index_rows):
            self._touched[space_id] = None
        self._space_rows.clear()
        self._index_rows.clear()
        self.synchronous.clear()

    def apply(self, kind: int, body: Body) -> SpaceForm | None:
        """Apply one row of `_space`, `_index` or `_truncate`.

        If the row removes all rows of a space (TRUNCATE, or deletion of its primary index), returns that space's form, otherwise
        None. Raises SchemaError if the row can't be applied.
        """
        with _as_schema_error(kind, body):
            match body[Key.SPACE_ID]:
                case 280:  # SPACE_SPACE
                    self._apply_space(kind, body)
                    return None
                case 288:  # INDEX_SPACE
                    return self._apply_index(kind, body)
                case _:
                    return self._truncated(kind, body)

    def changes(self, is_published: Callable[[SpaceForm], bool]) -> list[SchemaChange]:
        """Return the changes since the last call, of the spaces for which `is_published` returns true.

        * CREATE: a space received a primary key.
        * DROP: a space's `_space` row was deleted, the space was renamed to a name that isn't published, or a snapshot contains
          it without a primary key.
        * ALTER: the form of a published space changed.

        Each CREATE and ALTER gets the next schema version. A space that loses its primary key in the stream stays published,
        including under a new name.
        """
        found: list[SchemaChange] = []
        for space_id in self._touched:
            known = self._known.get(space_id)
            form = self._derive(space_id)
            if form is None and known is not None:
                form = self._derive(space_id, _LOST_PRIMARY)
            if form is not None and is_published(form):
                if form == known:
                    continue
                self.schema_version += 1
                form = replace(form, schema_version=self.schema_version)
                self._known[space_id] = form
                if known is None:
                    found.append(SchemaChange(ChangeKind.CREATE, form))
                else:
                    renamed_from = known.name if known.name != form.name else None
                    has_other_columns = known.columns != form.columns
                    found.append(SchemaChange(ChangeKind.ALTER, form, renamed_from, has_other_columns, known))
            elif known is not None:
                del self._known[space_id]
                found.append(SchemaChange(ChangeKind.DROP, known))
        self._touched.clear()
        return found

    def begin_rules(
        self, columns: Callable[[SpaceForm], str], routing: Callable[[str], Routing], published: Iterable[StoredSpace]
    ) -> None:
        """Apply the configuration's rules from now on, after forms kept what was stored.

        `published` are the spaces in the checkpoint: it says by which rules their rows are published. All spaces are checked.
        """
        self._columns, self._routing = columns, routing
        for space in published:
            known = self._known.get(space.space_id)
            if known is not None and space.schema_version:
                by = replace(known, columns=space.columns, routing=space.routing)
                self._known[space.space_id] = replace(by, schema_version=space.schema_version)
        self.touch_all()

    def has_other_rules(self, space_ids: Iterable[int]) -> bool:
        """Return whether the next `changes` will find that other rules apply to the rows of one of these spaces."""
        for space_id in self._touched.keys() & set(space_ids):
            known, form = self._known.get(space_id), self._derive(space_id)
            if known is not None and form is not None and (known.columns, known.routing) != (form.columns, form.routing):
                return True
        return False

    def touch_all(self) -> None:
        """Make the next `changes` check every space again, because the set of published spaces may have changed."""
        self._touched.update(dict.fromkeys(self._space_rows))

    @property
    def touched(self) -> list[int]:
        """Ids of the spaces whose system rows have changed since the last call of `changes`."""
        return list(self._touched)

    @property
    def is_touched(self) -> bool:
        """Whether there are such spaces."""
        return bool(self._touched)

    # Applying rows.

    def _apply_space(self, kind: int, body: Body) -> None:
        space_id, row = _fold(kind, body, lambda key: self._space_rows.get(key[0]), _SPACE_FIELDS)
        key = _checked_id(space_id[0])
        if row is not None:
            _ = row[2]  # fail here if the row has no name: `name` may be called before the form is derived
        self._touch(key)
        self.synchronous.discard(key)
        if row is None:
            self._space_rows.pop(key, None)
            self._index_rows.pop(key, None)
        else:
            self._space_rows[key] = row
            if self.is_synchronous_row(row):
                self.synchronous.add(key)

    @staticmethod
    def is_synchronous_row(row: list[Any]) -> bool:
        """Return whether a row of `_space` has `is_sync`."""
        flags = row[5] if len(row) > 5 else None
        return isinstance(flags, dict) and bool(flags.get("is_sync", False))

    def fold_space_row(self, kind: int, body: Body, *ahead: Mapping[int, list[Any] | None]) -> tuple[int, list[Any] | None]:
        """Return a space's id, and its `_space` row after this row, without changing the tracker.

        `ahead` are rows that are newer than the tracker's, the newest first. Raises SchemaError if the row can't be applied.
        """

        def current(key: list[Any]) -> list[Any] | None:
            return next((rows[key[0]] for rows in ahead if key[0] in rows), self._space_rows.get(key[0]))

        with _as_schema_error(kind, body):
            (space_id, *_), row = _fold(kind, body, current, _SPACE_FIELDS)
            return _checked_id(space_id), row

    def _apply_index(self, kind: int, body: Body) -> SpaceForm | None:
        (space_id, index_id), row = _fold(
            kind, body, lambda key: self._index_rows.get(key[0], {}).get(key[1]), _INDEX_FIELDS, key_length=2
        )
        _checked_id(space_id)
        if index_id != _PRIMARY:
            # Secondary indexes don't affect the form, but a later UPDATE needs their rows.
            self._store_index(space_id, index_id, row)
            return None
        gone = self._derive(space_id) if row is None else None
        self._store_index(space_id, index_id, row)
        return gone

    def _store_index(self, space_id: int, index_id: int, row: list[Any] | None) -> None:
        rows = self._index_rows.setdefault(space_id, {})
        if row is not None:
            rows[index_id] = row
            if index_id == _PRIMARY:
                rows.pop(_LOST_PRIMARY, None)
        elif (gone := rows.pop(index_id, None)) is not None and index_id == _PRIMARY:
            # If the daemon starts between this row and the one that drops the space, it still needs the dropped form.
            rows[_LOST_PRIMARY] = gone
        self._touch(space_id)

    def _touch(self, space_id: int) -> None:
        self._touched[space_id] = None
        self.last_touched = space_id

    def _truncated(self, kind: int, body: Body) -> SpaceForm | None:
        if kind == Type.DELETE:
            return None  # part of a drop, which deletes its row of `_truncate`
        space_id = body[Key.KEY][0] if kind == Type.UPDATE else body[Key.TUPLE][0]
        return self._derive(space_id)

    # Forms.

    def _derive(self, space_id: int, index_id: int = _PRIMARY) -> SpaceForm | None:
        row = self._space_rows.get(space_id)
        primary = self._index_rows.get(space_id, {}).get(index_id)
        if row is None or primary is None:
            return None
        try:
            flags = row[5] if len(row) > 5 and isinstance(row[5], dict) else {}
            form = SpaceForm(
                space_id=space_id,
                name=_text(row[2]),
                fields=tuple(_field(item) for item in (row[6] if len(row) > 6 else [])),
                key_parts=tuple(_key_part(item, is_hash=_text(primary[3]).lower() == "hash") for item in primary[5]),
                is_sync=bool(flags.get("is_sync", False)),
                field_count=_count(row[4]) if len(row) > 4 else 0,
                is_vinyl=row[3] == "vinyl",
                is_replicated=not (
                    flags.get("group_id", 0) == _LOCAL_GROUP
                    or flags.get("temporary", False)
                    or flags.get("type", "normal") in _TEMPORARY_TYPES
                ),
            )
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            quoted = f"{excerpt(row)} {excerpt(primary)}"
            raise SchemaError(f"the system rows of space {space_id} can't be read", detail=quoted) from error
        known = self._known.get(space_id)
        columns = self._columns(form) if self._columns is not None else known.columns if known is not None else ""
        routing = self._routing(form.name) if self._routing is not None else known.routing if known is not None else PLAIN_ROUTING
        if columns or routing != PLAIN_ROUTING:
            form = replace(form, columns=columns, routing=routing)
        return replace(form, schema_version=known.schema_version) if known == form else form


def published_forms(stored: Iterable[StoredSpace]) -> list[SpaceForm]:
    """Return the forms of those stored spaces that are published."""
    return [form for form in SchemaTracker(stored).forms() if form.schema_version]


@contextlib.contextmanager
def _as_schema_error(kind: int, body: Body) -> Iterator[None]:
    """Convert the exceptions that a malformed system row causes to a SchemaError that contains the row."""
    try:
        yield
    except RecursionError as error:
        raise SchemaError("a row of a system space is nested too deeply to be read") from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise SchemaError(
            f"a row of a system space can't be read: type {kind}", detail=f"body {excerpt(body, 1000)} ({error!r})"
        ) from error


def _checked_id(space_id: Any) -> int:
    """Return a space's id. Raises TypeError if the value can't be one."""
    if type(space_id) is not int or not 0 <= space_id <= _SPACE_MAX:
        raise TypeError(f"{excerpt(space_id, 100)} as a space's id")
    return space_id


def _fold(kind: int, body: Body, current: Any, names: Sequence[str], key_length: int = 1) -> tuple[list[Any], list[Any] | None]:
    """Return a system row's key and its new contents (None if deleted).

    `current` is a function that returns a row's current contents by key, or None; `names` are the row's field names.
    """
    match kind:
        case Type.INSERT | Type.REPLACE:
            row = _bounded(body[Key.TUPLE])
            return row[:key_length], row
        case Type.DELETE:
            return body[Key.KEY], None
        case Type.UPDATE:
            key, operations = body[Key.KEY], body[Key.TUPLE]
        case Type.UPSERT:
            key, operations = body[Key.TUPLE][:key_length], body[Key.OPS]
        case _:
            raise SchemaError(f"a row of type {kind} in a system space")
    row = current(key)
    if row is None:
        if kind == Type.UPSERT:
            return key, _bounded(body[Key.TUPLE])
        raise UnknownSpaceError("an UPDATE of a system row that isn't there", detail=f"key {excerpt(key)}, body {excerpt(body)}")
    carry_out = upsert if kind == Type.UPSERT else update
    # The operations are a list of lists, so their values are nested two levels deeper than later in the row.
    bounded = pack(_bounded(operations, LEVELS_MAX + 2))
    return key, _bounded(unpack(carry_out(pack(row), bounded, base=body.get(Key.INDEX_BASE, 0), names=names)))


def _bounded(value: Any, levels: int = LEVELS_MAX) -> Any:
    """Return a system row whose values nested deeper than `levels` are replaced. The server reads nothing that deep, but a format
    may contain arbitrary values besides names and types, and the stored rows' depth must be limited.
    """
    if not isinstance(value, list | dict | DeepValue):
        return value
    if not levels or isinstance(value, MapPairs | DeepValue):
        return "nested too deeply to be kept"
    if isinstance(value, list):
        return [_bounded(item, levels - 1) for item in value]
    return {key: _bounded(item, levels - 1) for key, item in value.items()}


def _field(item: Any) -> Field:
    """Parse a format's field: a map with name and type, or the short forms `name` and `[name, type]`."""
    match item:
        case {"name": str(name)}:
            kind, scale = type_of_field(_text(item.get("type", "any"))), item.get("scale")
            has_default = "default" in item or bool(item.get("default_func"))
            return Field(
                _text(name), kind, bool(item.get("is_nullable", False)), has_default, scale if type(scale) is int else None
            )
        case str(name):
            return Field(_text(name), "any", True)
        case [str(name), *rest]:
            return Field(_text(name), type_of_field(_text(rest[0])) if rest else "any", False)
    raise TypeError(f"field {item!r}")


def _key_part(item: Any, *, is_hash: bool) -> KeyPart:
    """Parse a part of an index: a map, or `[field, type]`. Fields count from 0 in both."""
    match item:
        case {"field": int(place)} if place >= 0:
            path, kind, collation = _text(item.get("path", "")), item.get("type", "any"), _collation(item.get("collation"))
            order = _text(item.get("sort_order", ""))
        case [int(place), kind, *_] if place >= 0:
            path, collation, order = "", 0, ""
        case _:
            raise TypeError(f"key part {item!r}")
    kind = type_of_key_part(_text(kind))
    is_descending = order.lower() == "desc"
    return KeyPart(place, path, kind, collation, is_hash and kind in WRITTEN_DIFFERENTLY, is_descending)


def _collation(value: Any) -> int:
    """Return a collation's id, 0 if the part has none. Raises TypeError if the value isn't an id."""
    if value is None:
        return 0
    if type(value) is not int:
        raise TypeError(f"collation {value!r}")
    return value


def _count(value: Any) -> int:
    """Return a number of fields. Raises TypeError if the value isn't one."""
    if type(value) is not int:
        raise TypeError(f"field_count {value!r}")
    return value


def _text(value: Any) -> str:
    """Return a name, type or path unchanged. Raises TypeError or ValueError unless it is a UTF-8 string, as servers store."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} instead of a text")
    value.encode()
    return value
