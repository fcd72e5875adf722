"""Interface between the daemon and its source of rows: a replica set (members.py), or a server's files (file_source.py)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from cdc.daemon.beginning import Beginning, RunContext
from cdc.errors import CdcError
from cdc.ops.request_queue import RequestQueue
from cdc.positions.vclock import VClock


class Stream(Protocol):
    """Reader that passes rows to the publisher."""

    @property
    def has_streamed(self) -> bool:
        """Whether the stream got past its start: a snapshot, or catching up as an anonymous replica."""

    @property
    def published(self) -> VClock:
        """Position up to which complete source transactions were submitted to the publisher."""

    def run(self) -> bool:
        """Read until the goal is reached, and return True, or False if a stop is requested before. Raises any error."""

    def collect_submitted(self) -> None:
        """Wait until all submitted batches are durable. Raises PublishAborted if they won't be, or the publisher's error."""


class Source(Protocol):
    """Interface of a source: everything that differs between kinds of sources."""

    def start(self) -> None:
        """Start the source, when the daemon starts."""

    def close(self) -> None:
        """Close the source, when the daemon stops."""

    def opened(self, beginning: Beginning) -> AbstractContextManager[Stream]:
        """Return a context with a stream from that position. Raises an error if no stream can be opened now."""

    def failed(self, error: CdcError) -> None:
        """Record the error that ended the open stream. The daemon handles the error."""

    def try_fail_over(self, error: CdcError) -> bool:
        """Return whether only one of several places failed, so that the daemon should try another at once."""

    def next_delay(self) -> float:
        """Return the delay before the next attempt, in seconds. Delays grow until something succeeds."""

    def delay_elapsed(self) -> None:
        """Record that the delay is over."""

    def succeeded(self) -> None:
        """Record a success, so that the next delay is short again."""


class NewSource(Protocol):
    """Factory of a daemon's source."""

    def __call__(self, context: RunContext, requests: RequestQueue) -> Source:
        """Return a source. It updates the status, ends streams when the daemon is to stop, and serves backfill `requests`."""
