"""Reader of a server's contents from FETCH_SNAPSHOT, for commands that only read them.

The daemon does other work while it reads a snapshot, so it reads the snapshot in its own loop (cdc.daemon.follower).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Final

from cdc.errors import SilenceError
from cdc.protocol.codec import Frames
from cdc.protocol.session import SnapshotFinished, SnapshotRows
from cdc.sources.connection import Connection

SNAPSHOT_TIMEOUT_SECONDS: Final = 300.0
"""Time that a master may stay silent before it sends contents or an id: before the first row it waits for the limbo and its
disk."""


def rows(
    connection: Connection, silence_seconds: float = SNAPSHOT_TIMEOUT_SECONDS, seconds_max: float = math.inf
) -> Iterator[Frames]:
    """Yield the rows of the requested snapshot.

    Raises SilenceError if no data arrives for `silence_seconds`, or if more rows are wanted after `seconds_max`.
    """
    began = last_heard = time.monotonic()
    while True:
        now = time.monotonic()
        if now >= began + seconds_max:
            raise SilenceError(
                f"the server {connection.address} sends its snapshot so slowly that the wanted rows haven't arrived within "
                f"{seconds_max:.0f} s",
                "Look into the network between the two, and into the server's log.",
            )
        received = connection.received_bytes
        events = connection.receive(max(0.0, min(last_heard + silence_seconds, began + seconds_max) - now))
        if events or connection.received_bytes > received:
            last_heard = time.monotonic()
        elif time.monotonic() - last_heard >= silence_seconds:
            raise SilenceError(
                f"the server {connection.address} has been silent for {silence_seconds:.0f} s within a snapshot",
                "Look into its log; a transaction that waits for its quorum keeps a snapshot from beginning.",
            )
        for event in events:
            match event:
                case SnapshotRows(frames):
                    yield frames
                case SnapshotFinished():
                    return
