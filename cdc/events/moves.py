"""What an event says of the move of a bucket that has made it: `move`, `bucket_id` and `generation` in its source."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Move(NamedTuple):
    """A bucket's move: whether the row has arrived (`in`) or was collected where the bucket had been (`gc`), the bucket, and the
    number of its attempts to move, None before vshard 0.1.41."""

    kind: Literal["in", "gc"]
    bucket_id: int
    generation: int | None
