"""Notifications about one snapshot that is read from the server.

STARTED ─▶ IN_PROGRESS, TABLE_SCAN_COMPLETED for each space ─▶ COMPLETED
RESUMED    the former snapshot was interrupted, and its rows needn't come again
ABORTED    of the former one, if they must; STARTED follows
SKIPPED    only the schema is read
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from cdc.events.envelope import SpaceCount
from cdc.positions.position import SnapshotState
from cdc.stream.batches.covered import Covered
from cdc.stream.batches.event_context import EventContext


class SnapshotNews:
    """Teller of one snapshot's progress, space by space."""

    def __init__(
        self, context: EventContext, number: int, previous: SnapshotState | None, now_us: int, *, is_silent: bool
    ) -> None:
        """Tell of the beginning. `is_silent`: no rows are published, only the schema is read."""
        notifier = self._notifier = context.notifier
        self._context, self._is_silent = context, is_silent
        self._is_compared = context.images is not None and context.images.is_comparing
        self._number = number
        self.is_on = notifier.is_on and not is_silent
        """Whether there is anything to tell after the beginning."""
        self._begun: list[int] = []
        self._done: set[int] = set()
        is_repeated = previous is not None and not previous.is_complete and not previous.is_silent
        if is_silent:
            notifier.snapshot(number, "SKIPPED", now_us, reason="only the schema is read, and no rows are published")
        elif is_repeated and previous is not None and self._is_compared:
            notifier.snapshot(number, "RESUMED", now_us, resumes_snapshot_id=str(previous.snapshot_id))
        else:
            if is_repeated and previous is not None:
                reason = "it was interrupted, and another one begins"
                notifier.snapshot(previous.snapshot_id, "ABORTED", now_us, reason=reason, status="ABORTED")
            notifier.snapshot(number, "STARTED", now_us)

    def tell(self, counts: Mapping[int, int], names: Mapping[int, str], now_us: int, *, is_read: bool) -> None:
        """Tell of the spaces that have begun or ended since the last call.

        `counts` are the numbers of rows so far, in the order of the spaces; `names` those of the spaces whose rows are published.
        Once all rows have arrived (`is_read`), the spaces that had none have ended, too.
        """
        for space_id in [space_id for space_id in counts if space_id in names][len(self._begun) :]:
            self._end_spaces(counts, names, now_us)
            self._begun.append(space_id)
            data = {"current_collection_in_progress": self._notifier.collection(names[space_id])}
            self._notifier.snapshot(self._number, "IN_PROGRESS", now_us, names.values(), **data)
        if is_read:
            self._begun += [space_id for space_id in names if space_id not in counts]
            self._end_spaces(counts, names, now_us)

    def complete(
        self, row_count: int, counts: Sequence[SpaceCount], now_us: int, *, since_seq: int, filtered: Container[object]
    ) -> None:
        """Tell that the snapshot, whose first event came after `since_seq`, is complete.

        The batch gets which of the spaces in `counts` were published with all their rows: without those whose rows were
        `filtered`, and those that were compared, which leaves out rows that consumers have.
        """
        names, whole = [count.space for count in counts], {count.space_id for count in counts}
        spaces, builder = self._context.spaces, self._context.builder
        builder.covered += [
            Covered(builder.names.unchecked(form.name, form.routing), form.name, since_seq)
            for form in spaces.published_forms()
            if form.space_id in whole and form.space_id not in filtered
            if not self._is_silent and not (self._is_compared and form.space_id in spaces.image_changes)
        ]
        if self.is_on:
            self._notifier.snapshot(self._number, "COMPLETED", now_us, names, total_rows_scanned=str(row_count))

    def _end_spaces(self, counts: Mapping[int, int], names: Mapping[int, str], now_us: int) -> None:
        for space_id in self._begun:
            if space_id not in self._done and space_id in names:
                self._done.add(space_id)
                self._notifier.snapshot(
                    self._number,
                    "TABLE_SCAN_COMPLETED",
                    now_us,
                    names.values(),
                    scanned_collection=self._notifier.collection(names[space_id]),
                    total_rows_scanned=str(counts.get(space_id, 0)),
                    status="SUCCEEDED",
                )
