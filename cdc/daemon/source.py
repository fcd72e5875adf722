"""What the daemon needs of where its rows come from: a replica set (members.py), or a server's files (file_source.py)."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from cdc.config import Config
from cdc.daemon.follower import Goal
from cdc.daemon.runner import Noticed
from cdc.errors import CdcError
from cdc.kafka.publisher import Publisher
from cdc.ops.backfill_queue import SnapshotRequests
from cdc.ops.status import Status
from cdc.positions.vclock import VClock
from cdc.store.writer import StateWriter
from cdc.stream.checkpoint import Checkpoint
from cdc.upstream.start import Known


@dataclass(frozen=True)
class Beginning:
    """From where on, and into what, a stream is to be read."""

    known: Known
    checkpoint: Checkpoint
    publisher: Publisher
    writer: StateWriter | None
    goal: Goal
    noticed: Noticed = field(default_factory=Noticed)


class Stream(Protocol):
    """Rows on their way to the publisher."""

    @property
    def has_streamed(self) -> bool:
        """Whether it was read past what it began with: a snapshot, or what had been missed."""

    @property
    def published(self) -> VClock:
        """Up to where whole source transactions have been handed to the publisher."""

    def run(self) -> bool:
        """Read until the goal is reached, and return True; False once a stop is asked for. Raises what breaks."""

    def collect_submitted(self) -> None:
        """Wait until what was submitted is durable. Raises PublishAborted if it won't be, and what else ended the publisher."""


class Source(Protocol):
    """All that differs between one kind of source and another."""

    def start(self) -> None:
        """The daemon has begun."""

    def close(self) -> None:
        """It has ended."""

    def opened(self, beginning: Beginning) -> AbstractContextManager[Stream]:
        """A stream from there on, as long as this is entered. Raises why there can be none now."""

    def failed(self, error: CdcError) -> None:
        """The stream that is open has ended with this, which the daemon deals with."""

    def looks_elsewhere(self, error: CdcError) -> bool:
        """Whether this was the failure of one place of several, so that another is to be tried at once."""

    def next_delay(self) -> float:
        """How long to wait before the next attempt, in seconds; longer each time until something works."""

    def rested(self) -> None:
        """That has been waited."""

    def works(self) -> None:
        """Something has succeeded: the next delay is short again."""


class NewSource(Protocol):
    """Makes the source of a daemon."""

    def __call__(self, config: Config, status: Status, is_stopping: threading.Event, requests: SnapshotRequests) -> Source:
        """`status` is for showing only; `is_stopping` ends streams; `requests` are snapshots that were asked for."""
