"""What all makers of a pipeline's events share: the stream's transactions, snapshots, and rows that are published again."""

from __future__ import annotations

from dataclasses import dataclass

from cdc.events.envelope import Envelope
from cdc.images.overlay import Images
from cdc.stream.batches.batch import BatchBuilder
from cdc.stream.batches.notifier import Notifier
from cdc.stream.batches.options import PipelineOptions
from cdc.stream.batches.row_errors import Refusals
from cdc.stream.batches.spaces import Spaces


@dataclass(frozen=True, slots=True)
class EventContext:
    """The spaces at the present position, and the batch that is being filled."""

    options: PipelineOptions
    spaces: Spaces
    envelope: Envelope
    builder: BatchBuilder
    images: Images | None
    """None if events contain no images."""
    refusals: Refusals
    notifier: Notifier
