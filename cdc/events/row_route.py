"""What the rules for rows say of one form's rows: which of them have events.

    rule ──▶ RowRoute of a form     the row before ─┐
                                    the row after ──┴─▶ published before?  published now?      event
                                                              no                 yes           c
                                                              yes                yes           u
                                                              yes                no            d
                                                              no                 no            none

Without images nobody knows the row before. Then a rule may only read fields of the primary key, which say the same of all
versions of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

from cdc.errors import ConfigurationError, EncodingError
from cdc.events.row_filter import RowFilter
from cdc.protocol.codec import Body
from cdc.protocol.constants import Key, Type
from cdc.schema.forms import SpaceForm

Change = Callable[[Body, bytes], tuple[bytes, bytes, bytes] | None]
"""Maker of a row's event (cdc.events.envelope.Change)."""

_KEY: Final = Key.KEY
_TUPLE: Final = Key.TUPLE


class RowRoute:
    """What the rules say of one form's rows. While an event is being made, it also has what isn't in the event's bytes."""

    def __init__(self, form: SpaceForm, row_filter: RowFilter | None) -> None:
        self.form = form
        self._filter = row_filter

    def chooses(self, values: Sequence[Any]) -> bool:
        """Return whether a row has events. Raises EncodingError if that can't be said."""
        return self._filter is None or self._filter(values)

    def chose(self, values: Sequence[Any]) -> bool:
        """Return whether consumers may have a former row. If that can't be said, they may: they have an earlier one, perhaps."""
        try:
            return self.chooses(values)
        except EncodingError:
            return True

    def by_key(self, changes: dict[int, Change]) -> dict[int, Change]:
        """Return the makers of a space's events without images, with what the rules say of the rows' keys."""
        return {
            kind: self._of_chosen(change, self._tuple_of_key if kind in (Type.DELETE, Type.UPDATE) else _tuple)
            for kind, change in changes.items()
        }

    def _of_chosen(self, change: Change, values_of: Callable[[Body], Sequence[Any]]) -> Change:
        def of_chosen(body: Body, frame: bytes) -> tuple[bytes, bytes, bytes] | None:
            return change(body, frame) if self.chooses(values_of(body)) else None

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


def row_route(form: SpaceForm) -> RowRoute | None:
    """Return what the rules say of a form's rows; None if all of them are published as they are. Raises ConfigurationError."""
    found = _filter(form)
    return RowRoute(form, found) if found is not None else None


@lru_cache(maxsize=256)
def _filter(form: SpaceForm) -> RowFilter | None:
    where = form.routing.where
    return RowFilter(where, form, f"routing.rules, the rule with where = {where!r}") if where else None


def check_rows(forms: Iterable[SpaceForm], has_images: Callable[[SpaceForm], bool]) -> None:
    """Raise ConfigurationError for a form to which the rules for rows can't be applied."""
    for form in forms:
        found = _filter(form)
        if found is not None and not found.is_of_key and not has_images(form):
            others = found.places - {part.field for part in form.key_parts if not part.path}
            names = ", ".join(repr(form.field_name(place)) for place in sorted(others))
            raise ConfigurationError(
                f"{found.origin}: it reads {names} of space {form.name!r}, and without images of the space's rows nobody knows "
                "whether the row before a change was published",
                'Use state.images = "full" (a primary key with a collation has no images even so), let the expression read only '
                "fields of the primary key, or let another rule apply to the space.",
            )
