"""What a stream is given: the running daemon, where the stream begins, and where its rows go."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field

from cdc.config import Config
from cdc.daemon.event_sink import EventSink
from cdc.kafka import bucket_reader
from cdc.kafka.bucket_reader import BucketReader
from cdc.ops.event_tail import EventTail
from cdc.ops.status import Status
from cdc.positions.vclock import VClock
from cdc.registry.schema_ids import SchemaIds
from cdc.store.numbers_file import NumbersFile
from cdc.store.writer import StateWriter
from cdc.stream.batches.options import TOPICS, NewNames
from cdc.stream.commits.checkpoint import Checkpoint
from cdc.stream.reports.limbo_watch import OverdueQuorum
from cdc.upstream.start import Known


@dataclass(frozen=True, slots=True)
class RunContext:
    """The running daemon: its configuration, what it shows to operators, and whether it is to stop."""

    config: Config
    status: Status
    is_stopping: threading.Event
    schema_ids: SchemaIds | None = None
    """The registry's ids, if events have schemas there."""
    buckets: BucketReader | None = None
    """Reader of the buckets of all shards, if moves are hidden in topics that shards share."""
    new_names: NewNames = TOPICS
    has_progress_bar: bool = True
    """Whether a snapshot may show its progress as a bar, on a terminal."""
    tail: EventTail | None = None
    """What is shown of the newest events to those who look at them."""

    @classmethod
    def of(
        cls, config: Config, status: Status, is_stopping: threading.Event, schema_ids: SchemaIds | None, tail: EventTail
    ) -> RunContext:
        """Return the context of a daemon, with what its configuration wants."""
        return cls(config, status, is_stopping, schema_ids, bucket_reader.of_configuration(config), tail=tail)


@dataclass(slots=True)
class Goal:
    """Goal of a run: the master's position at the first connection, if the daemon is to stop there."""

    until_caught_up: bool
    target: VClock | None = None
    caught_up_at: float = -math.inf
    """When a daemon that is to be registered last caught up with the master as an anonymous replica (monotonic seconds)."""


@dataclass(slots=True)
class Observations:
    """Observations shared by all streams of one daemon, so that each is counted and logged once, and kept once."""

    merging_upsert_count: int = 0
    lost_change_count: int = 0
    changed_bucket_count: int = 0
    overdue_quorum: OverdueQuorum | None = None
    recognizes_rows: bool = True
    """Whether the next stream should see its last rows again. False once after their log turned out to be gone."""
    numbers: NumbersFile | None = None


@dataclass(frozen=True)
class Beginning:
    """Start position of a stream, and the destination of its rows."""

    known: Known
    checkpoint: Checkpoint
    publisher: EventSink
    writer: StateWriter | None
    goal: Goal
    observations: Observations = field(default_factory=Observations)
