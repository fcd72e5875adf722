"""Notifications about snapshots and requests, as a part of the batches that they tell of."""

from __future__ import annotations

from collections.abc import Iterable

from cdc.events import topics
from cdc.events.notifications import INCREMENTAL, INITIAL, NoteType, notification_record
from cdc.positions.requests import Request
from cdc.stream.batches.batch import BatchBuilder

PROGRESS_US = 1_000_000
"""Minimum time between two notifications of progress within a space, in microseconds."""


class Notifier:
    """Writer of notifications; it writes none if they aren't configured."""

    def __init__(self, builder: BatchBuilder, prefix: str, *, is_on: bool) -> None:
        self._builder = builder
        self._prefix = prefix
        self.is_on = is_on
        """Whether notifications are written."""

    def request(self, request: Request, type_: NoteType, now_us: int, names: Iterable[str] = (), **data: str) -> None:
        """Tell of a request for rows of the spaces `names`."""
        if self.is_on:
            number = {"snapshot_id": str(request.snapshot_id)} if request.snapshot_id else {}
            self.order(request.id, type_, now_us, names, **number, **data)

    def order(self, identity: str, type_: NoteType, now_us: int, names: Iterable[str] = (), **data: str) -> None:
        """Tell of an order that there is no request for."""
        if self.is_on:
            data = {"connector_name": self._prefix, **self._collections(names), **data}
            self._builder.control(topics.NOTIFICATION, *notification_record(identity, INCREMENTAL, type_, data, now_us))

    def snapshot(self, number: int, type_: NoteType, now_us: int, names: Iterable[str] = (), **data: str) -> None:
        """Tell of the snapshot with this number, which is read from the server."""
        if self.is_on:
            data = {"connector_name": self._prefix, **self._collections(names), "snapshot_id": str(number), **data}
            record = notification_record(f"snapshot-{number}", INITIAL, type_, data, now_us)
            self._builder.control(topics.NOTIFICATION, *record)

    def collection(self, name: str) -> str:
        """Return the name of a space as signals and notifications have it."""
        return f"{self._prefix}.{name}"

    def _collections(self, names: Iterable[str]) -> dict[str, str]:
        shown = ", ".join(map(self.collection, names))
        return {"data_collections": shown} if shown else {}
