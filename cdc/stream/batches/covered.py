"""What makes up for a topic that was deleted (cdc.stream.commits.losses)."""

from __future__ import annotations

from typing import NamedTuple


class Covered(NamedTuple):
    """All rows of a space were published again, and the last of them is in this batch; or nobody needs them.

    - `topic`: where the rows are.
    - `space`: the space's name; None if an operator has said that no consumer needs what the topic has lost.
    - `since_seq`: the last seq before the first of these rows.
    """

    topic: str
    space: str | None = None
    since_seq: int = 0
