"""What the rules for rows say of one form's rows: which of them have events.

    rule ──▶ RowRoute of a form     the row before ─┐
                                    the row after ──┴─▶ published before?  published now?      event
                                                              no                 yes           c
                                                              yes                yes           u
                                                              yes                no            d
                                                              no                 no            none

A rule may also have a row's fields decide the partition. If a change moves a row to another partition, the key is deleted in the
former one (`d`, with a tombstone), and created in the new one (`c`).

Without images nobody knows the row before. Then a rule may only read fields of the primary key which say the same of all
versions of a row: not -1.5 in one and -1.50 in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from cdc.errors import ConfigurationError, EncodingError
from cdc.events.json_values import WAY_OUT, encode, plain
from cdc.events.row_filter import RowFilter
from cdc.protocol.codec import Body
from cdc.protocol.constants import Key, Type
from cdc.schema.forms import WRITTEN_DIFFERENTLY, KeyPart, SpaceForm

Change = Callable[[Body, bytes], tuple[bytes, bytes, bytes] | None]
"""Maker of a row's event (cdc.events.envelope.Change)."""

_KEY: Final = Key.KEY
_TUPLE: Final = Key.TUPLE
_OF_MANY_ROWS: Final = (Type.DELETE_RANGE, Type.INSERT_ARROW)


class Former(NamedTuple):
    """Event that deletes a key in the partition that its row had: its text up to the source, and the text of the partition."""

    start: bytes
    place: bytes | None


class RowRoute:
    """What the rules say of one form's rows and messages. While an event is made, it also has what isn't in the event's bytes."""

    def __init__(self, form: SpaceForm, row_filter: RowFilter | None, headers: Sequence[str] = ()) -> None:
        """`headers` are the names of the messages' headers."""
        self.form = form
        self._filter = row_filter
        self._places = _places(form)
        self._headers = tuple(headers)
        self._space = form.name.encode("utf-8", "surrogateescape")
        self.has_rules = row_filter is not None or bool(self._places)
        """Whether rules apply to the rows themselves."""
        self.place: bytes | None = None
        """Text that decides the partition of the event that is being made; None: its key."""
        self.former: Former | None = None
        """Event that comes before it."""

    def headers(self, op: bytes, seq: int, lsn: int | None) -> list[tuple[str, bytes]] | None:
        """Return the headers of a message; None if there are none."""
        if not self._headers:
            return None
        values = {"op": op, "space": self._space, "seq": b"%d" % seq, "lsn": None if lsn is None else b"%d" % lsn}
        return [(name, value) for name in self._headers if (value := values[name]) is not None]

    def chooses(self, values: Sequence[Any]) -> bool:
        """Return whether a row has events. Raises EncodingError if that can't be said."""
        return self._filter is None or self._filter(values)

    def takes(self, values: Sequence[Any]) -> bool:
        """Do as `chooses`, for a row of which an event with the present contents is made."""
        if not self.chooses(values):
            return False
        self.place, self.former = self.place_of(values), None
        return True

    def chose(self, values: Sequence[Any]) -> bool:
        """Return whether consumers may have a former row. If that can't be said, they may: they have an earlier one, perhaps."""
        try:
            return self.chooses(values)
        except EncodingError:
            return True

    def place_of(self, values: Sequence[Any]) -> bytes | None:
        """Return the text that decides the partition of a row's events; None: the key does. Raises EncodingError.

        It is the JSON of the field, or of an array of several; a field that is nil, or that the tuple omits, is null.
        """
        if not self._places:
            return None
        count = len(values)
        found = [values[place] if place < count else None for place in self._places]
        try:
            shown = [plain(value) for value in found]
            return encode(shown[0] if len(shown) == 1 else shown)
        except (TypeError, ValueError, RecursionError) as error:
            raise EncodingError(f"a field of {self.form.routing.partition_by} can't be written as JSON", WAY_OUT) from error

    def former_place_of(self, values: Sequence[Any]) -> bytes | None:
        """Return the same of a former row. If there is none, the row was reported, and had no event."""
        try:
            return self.place_of(values)
        except EncodingError:
            return None

    def by_key(self, changes: dict[int, Change]) -> dict[int, Change]:
        """Return the makers of a space's events without images, with what the rules say of the rows' keys."""
        values_of = {Type.DELETE: self._tuple_of_key, Type.UPDATE: self._tuple_of_key}
        return {
            # Requests about many rows are refused, whichever rows are chosen.
            kind: change if kind in _OF_MANY_ROWS else self._of_chosen(change, values_of.get(kind, _tuple))
            for kind, change in changes.items()
        }

    def _of_chosen(self, change: Change, values_of: Callable[[Body], Sequence[Any]]) -> Change:
        def of_chosen(body: Body, frame: bytes) -> tuple[bytes, bytes, bytes] | None:
            return change(body, frame) if self.takes(values_of(body)) else None

        return of_chosen

    def _tuple_of_key(self, body: Body) -> Sequence[Any]:
        """Return a tuple of which only the key is known."""
        parts = self.form.key_parts
        values: list[Any] = [None] * (1 + max(part.field for part in parts))
        for part, value in zip(parts, body[_KEY], strict=True):
            values[part.field] = value
        return values


def _tuple(body: Body) -> Sequence[Any]:
    values: Sequence[Any] = body[_TUPLE]
    return values


def row_route(form: SpaceForm, headers: Sequence[str] = ()) -> RowRoute | None:
    """Return what the rules say of a form's rows and messages; None if all are as they are. Raises ConfigurationError."""
    found = _filter(form)
    is_needed = found is not None or headers or form.routing.partition_by
    return RowRoute(form, found, headers) if is_needed else None


def _places(form: SpaceForm) -> tuple[int, ...]:
    """Return the places of the fields that decide the partition. Raises ConfigurationError."""
    names = form.field_names
    for name in form.routing.partition_by:
        if name not in names:
            raise ConfigurationError(
                f"routing.rules, the rule with partition_by = {list(form.routing.partition_by)}: the space {form.name!r} has no "
                f"field {name!r}",
                f"It has {', '.join(map(repr, names)) or 'no names of fields'}.",
            )
    return tuple(map(names.index, form.routing.partition_by))


@lru_cache(maxsize=256)
def _filter(form: SpaceForm) -> RowFilter | None:
    where = form.routing.where
    return RowFilter(where, form, f"routing.rules, the rule with where = {where!r}") if where else None


def check_rows(forms: Iterable[SpaceForm], has_images: Callable[[SpaceForm], bool]) -> None:
    """Raise ConfigurationError for a form to which the rules for rows can't be applied."""
    for form in forms:
        found = _filter(form)
        used = {*_places(form), *(found.places if found is not None else ())}
        others = used - {part.field for part in form.key_parts if _has_one_notation(part)}
        if others and not has_images(form):
            names = ", ".join(repr(form.field_name(place)) for place in sorted(others))
            what = found.origin if found is not None else "routing.rules, the rule with partition_by"
            raise ConfigurationError(
                f"{what}: it reads {names} of space {form.name!r}, and without images of the space's rows nobody knows the row "
                "before a change, so nobody knows whether, and where, it was published",
                'Use state.images = "full" (a primary key with a collation has no images even so), let the rule read only '
                "fields of the primary key whose equal values are always written in the same way (unsigned, integer, string "
                "without a collation, uuid, boolean, varbinary), or let another rule apply to the space.",
            )


def _has_one_notation(part: KeyPart) -> bool:
    """Return whether a part of the key says the same of all versions of a row: equal values have one notation there."""
    return not part.path and not part.is_collated and part.type not in WRITTEN_DIFFERENTLY
