"""Changes that were written past the router to copies of buckets, and that the buckets' owners don't have: for reports."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

_NAMED_MAX: Final = 20
"""Number of changes whose keys are kept."""


class LostChange(NamedTuple):
    """A change that was written past the router to a copy of a bucket, and that the bucket's owner doesn't have."""

    bucket_id: int
    status: str | None
    space_id: int
    key: bytes


class LostChanges:
    """Those of one connection."""

    def __init__(self) -> None:
        self.count = 0
        self.last: deque[LostChange] = deque(maxlen=_NAMED_MAX)
        """The last of them."""

    def add(self, bucket_id: int, status: str | None, space_id: int, key: bytes) -> None:
        """Count one."""
        self.count += 1
        self.last.append(LostChange(bucket_id, status, space_id, key))
