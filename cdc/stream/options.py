"""What an operator decides about events, as the core is told it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdc.events.topics import SpaceFilter


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """What an operator decides about events."""

    prefix: str
    include: list[str]
    exclude: list[str]
    tombstones: bool = True
    transaction_topic: Literal["none", "multi", "all"] = "multi"
    on_error: Literal["fail", "dlq"] = "fail"
    on_image_error: Literal["fail", "dlq"] = "fail"
    transaction_bytes_max: int = 64 * 1024 * 1024
    """Past this a transaction of the source waits for its end on disk."""
    batch_bytes_max: int = 1024 * 1024
    """With the event that brings it past this, a batch is handed on, in the middle of a transaction if need be."""

    def space_filter(self) -> SpaceFilter:
        """Tells which spaces are published, by id and name."""
        return SpaceFilter(self.include, self.exclude)
