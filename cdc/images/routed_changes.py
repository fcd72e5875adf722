"""Events of spaces of whose rows only some are published, and what becomes of a row that enters or leaves (cdc.events.row_route).

The image of a row is kept whether the row is published or not: the next change may have it published.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cdc.errors import EncodingError
from cdc.events.envelope import SpaceEvents
from cdc.events.row_route import RowRoute
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
        try:
            is_chosen = self._route.chooses(tuple_)
        except EncodingError:
            self._images.put(key, after)
            raise
        if before is None or not self._route.chose(tuple_values(before)):
            if is_chosen:
                return super().put(key, None, after, tuple_)
            self._images.put(key, after)
            return None
        if is_chosen:
            return super().put(key, before, after, tuple_)
        gone = self._gone(before)
        self._images.put(key, after)
        return gone

    def delete(self, key: bytes, before: bytes) -> tuple[bytes, bytes, bytes] | None:
        """Do as ImageChanges.delete; return None if the row wasn't published."""
        if self._route.chose(tuple_values(before)):
            return super().delete(key, before)
        self._images.delete(key)
        return None


class RoutedSourceImages(SourceImages):
    """The same as SourceImages, for the rows that rules choose."""

    def __init__(self, space: SpaceEvents, route: RowRoute) -> None:
        super().__init__(space)
        self._route = route

    def _put(self, body: Body, frame: bytes) -> tuple[bytes, bytes, bytes] | None:
        after, before = self._new_tuple(body), body.get(_OLD_TUPLE)
        is_chosen = self._route.chooses(after)
        if before is None or not self._route.chose(before):
            return self._created(after) if is_chosen else None
        return super()._put(body, frame) if is_chosen else self._deleted(before)

    def _insert(self, body: Body, frame: bytes) -> tuple[bytes, bytes, bytes] | None:
        return super()._insert(body, frame) if self._route.chooses(body[_TUPLE]) else None

    def _delete(self, body: Body, frame: bytes) -> tuple[bytes, bytes, bytes] | None:
        before = body.get(_OLD_TUPLE)
        # Without the old tuple nobody knows whether it was published. A `d` of a key that consumers don't have does no harm.
        return super()._delete(body, frame) if before is None or self._route.chose(before) else None
