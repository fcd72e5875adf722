"""What the configuration lets the first snapshot publish: the rows of some spaces, and of these some rows."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any

from cdc.events.row_filter import RowFilter
from cdc.schema.forms import SpaceForm
from cdc.stream.batches.options import PipelineOptions


class SnapshotChoice:
    """Choice of spaces and rows for one snapshot. Snapshots after the first publish what consumers need of everything."""

    def __init__(self, options: PipelineOptions, *, is_first: bool) -> None:
        self._spaces = [re.compile(pattern) for pattern in options.snapshot_spaces] if is_first else None
        self._patterns = [(re.compile(pattern), text) for pattern, text in options.snapshot_filters] if is_first else []
        self.filters: dict[object, RowFilter] = {}
        """Filters by space id: the Python path chooses the rows of these spaces."""

    @staticmethod
    def number_of(options: PipelineOptions) -> int:
        """Return a number that is another one if the first snapshot is to publish something else; 0 for all rows."""
        spaces, filters = list(options.snapshot_spaces), list(options.snapshot_filters)
        return zlib.crc32(repr((spaces, filters)).encode()) if (spaces, filters) != ([".*"], []) else 0

    def leaves_out(self, form: SpaceForm) -> bool:
        """Return whether no rows of a space are to be published."""
        return self._spaces is not None and not any(pattern.fullmatch(form.name) for pattern in self._spaces)

    def filter_of(self, form: SpaceForm) -> RowFilter | None:
        """Return the filter of the first pattern that matches a space's name, if any. Raises ConfigurationError."""
        text = next((text for pattern, text in self._patterns if pattern.fullmatch(form.name)), None)
        return None if text is None else RowFilter(text, form, "snapshot.filters")

    def begin_space(self, form: SpaceForm) -> None:
        """Prepare for the rows of a space. Raises ConfigurationError."""
        chosen = self.filter_of(form)
        if chosen is not None:
            self.filters[form.space_id] = chosen

    def is_wanted(self, space_id: object, values: Sequence[Any]) -> bool:
        """Return whether a row is published. Raises EncodingError."""
        chosen = self.filters.get(space_id)
        return chosen is None or chosen(values)
