"""How far a snapshot has been read, for the status and the progress bar."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SnapshotReading:
    """How far a snapshot has been read.

    - `rows`: number of rows of published spaces.
    - `space`: name of the space whose rows come now, None before the first one and after the end.
    - `spaces_read`: number of published spaces before that one. Rows come space after space.
    - `spaces`: number of published spaces; 0 until the schema is complete.
    """

    rows: int = 0
    space: str | None = None
    spaces_read: int = 0
    spaces: int = 0
