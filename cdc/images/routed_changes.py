"""Events of spaces of whose rows only some are published, and what becomes of a row that enters or leaves (cdc.events.row_route).

The image of a row is kept whether the row is published or not: the next change may have it published.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cdc.errors import EncodingError
from cdc.events.envelope import SpaceEvents
from cdc.events.row_route import Former, RowRoute
from cdc.images.image_events import ImageChanges
from cdc.images.overlay import Images
from cdc.images.source_images import SourceImages
from cdc.protocol.codec import Body, tuple_values
from cdc.protocol.constants import Key

_TUPLE: Final = Key.TUPLE
_OLD_TUPLE: Final = Key.OLD_TUPLE


class RoutedImageChanges(ImageChanges):
    """The same as ImageChanges, for the rows that rules choose."""

    def __init__(self, space: SpaceEvents, images: Images, route: RowRoute) -> None:
        super().__init__(space, images)
        self._route = route

    def put(self, key: bytes, before: bytes | None, after: bytes, tuple_: Sequence[Any]) -> tuple[bytes, bytes] | None:
        """Do as ImageChanges.put; return None if neither the row before nor the row after is published."""
        route = self._route
        route.former = None
        try:
            is_chosen = route.chooses(tuple_)
            place = route.place_of(tuple_) if is_chosen else None
        except EncodingError:
            self._images.put(key, after)
            raise
        former = tuple_values(before) if before is not None else None
        if before is None or former is None or not route.chose(former):
            route.place = place
            if is_chosen:
                return super().put(key, None, after, tuple_)
            self._images.put(key, after)
            return None
        former_place = route.former_place_of(former)
        if is_chosen and place == former_place:
            route.place = place
            return super().put(key, before, after, tuple_)
        gone = self._gone(before)
        if not is_chosen:
            route.place = former_place
            self._images.put(key, after)
            return gone
        created = super().put(key, None, after, tuple_)
        route.place, route.former = place, Former(b"".join(gone), former_place)
        return created

    def delete(self, key: bytes, before: bytes) -> tuple[bytes, bytes, bytes] | None:
        """Do as ImageChanges.delete; return None if the row wasn't published."""
        route, values = self._route, tuple_values(before)
        route.former = None
        if route.chose(values):
            route.place = route.former_place_of(values)
            return super().delete(key, before)
        self._images.delete(key)
        return None


class RoutedSourceImages(SourceImages):
    """The same as SourceImages, for the rows that rules choose."""

    def __init__(self, space: SpaceEvents, route: RowRoute) -> None:
        super().__init__(space)
        self._route = route

    def _put(self, body: Body, frame: bytes) -> tuple[bytes, bytes, bytes] | None:
        route, after, before = self._route, self._new_tuple(body), body.get(_OLD_TUPLE)
        is_chosen = route.chooses(after)
        route.place, route.former = route.place_of(after) if is_chosen else None, None
        if before is None or not route.chose(before):
            return self._created(after) if is_chosen else None
        former_place = route.former_place_of(before)
        if is_chosen and route.place == former_place:
            return super()._put(body, frame)
        gone = self._deleted(before)
        if not is_chosen:
            route.place = former_place
            return gone
        created = self._created(after)
        route.former = Former(b"".join(gone[1:]), former_place)
        return created

    def _insert(self, body: Body, frame: bytes) -> tuple[bytes, bytes, bytes] | None:
        route, values = self._route, body[_TUPLE]
        if not route.chooses(values):
            return None
        route.place, route.former = route.place_of(values), None
        return super()._insert(body, frame)

    def _delete(self, body: Body, frame: bytes) -> tuple[bytes, bytes, bytes] | None:
        route, before = self._route, body.get(_OLD_TUPLE)
        route.place = route.former = None
        if before is None:
            # Nobody knows whether it was published, and where. A `d` of a key that consumers don't have does no harm.
            return super()._delete(body, frame)
        if not route.chose(before):
            return None
        route.place = route.former_place_of(before)
        return super()._delete(body, frame)
