"""What all makers of a pipeline's events share: the stream's transactions, requested rows, and rows under another primary key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cdc.errors import CdcError
from cdc.events.envelope import Envelope
from cdc.images.overlay import Images
from cdc.stream.batch import BatchBuilder
from cdc.stream.spaces import Spaces
from cdc.stream.transaction import Transaction

Refuse = Callable[[CdcError, Transaction, int, int, bytes, object], None]
"""Handler of a row that can't be encoded: it raises the error, or sets the row aside."""


@dataclass(frozen=True, slots=True)
class EventContext:
    """The spaces at the present position, and the batch that is being filled."""

    spaces: Spaces
    envelope: Envelope
    builder: BatchBuilder
    images: Images | None
    refuse: Refuse
