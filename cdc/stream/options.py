"""The operator's decisions about events, as the core receives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdc.events.topics import SpaceFilter


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """The operator's decisions about events."""

    prefix: str
    include: list[str]
    exclude: list[str]
    tombstones: bool = True
    transaction_topic: Literal["none", "multi", "all"] = "multi"
    on_error: Literal["fail", "dlq"] = "fail"
    on_image_error: Literal["fail", "dlq"] = "fail"
    transaction_bytes_max: int = 64 * 1024 * 1024
    """Size, in bytes, from which a source transaction waits on disk for its end."""
    batch_bytes_max: int = 1024 * 1024
    """Target size of a batch, in bytes. The event that exceeds it ends the batch, within a transaction if need be."""

    def space_filter(self) -> SpaceFilter:
        """Return the filter that selects the published spaces, by id and name."""
        return SpaceFilter(self.include, self.exclude)
