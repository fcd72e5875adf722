"""State before a transaction, to which the pipeline returns if the transaction can't be handled or must begin its own batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cdc.stream.batch import Forms, Mark


class Before(NamedTuple):
    """State before a transaction: the place in the batch, the images, and the vclock's component of the transaction's origin."""

    mark: Mark
    change_count: int
    doubtful: frozenset[bytes]
    doubts: frozenset[bytes]
    origin: int
    lsn: int | None
    numbers: Mapping[int, int]
    stored: Forms
    schema_version: int

    def vclock(self, now: Mapping[int, int]) -> dict[int, int]:
        """Return the vclock at that time."""
        others = {origin: lsn for origin, lsn in now.items() if origin != self.origin}
        return others if self.lsn is None else {**others, self.origin: self.lsn}
