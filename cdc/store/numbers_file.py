"""File of the numbers that were given, `state.path/numbers`: what is left if Kafka loses its newest records or everything.

With images the state store has its position too, but the store may be behind, be rebuilt, or not exist at all (state.images =
"none"). Before events get seqs above the reserved ones, the next ones are reserved, and the committed numbers are recorded about
once a second, so that it costs nothing per row. The file is written in place, not larger than a disk's sector, and synced only at
an orderly stop: a sync would stop the row path until the disk has written the state store, too. So the file survives the process,
and after a sudden stop of the machine it may be half a minute old.

If the file can't be written, the daemon warns once and runs without it.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from cdc.positions.numbers import Kept, Numbers
from cdc.positions.position import Position

FILE: Final = "numbers"
RESERVED_SEQS: Final = 10_000
"""Number of seqs that are reserved at once. After a kill and the loss of the checkpoint, so many numbers may be left out."""
RECORD_SECONDS: Final = 1.0
"""Interval between two records of the committed numbers."""
_BYTES: Final = 512
"""Size of the file and of every write, unless the names are so long that the content is larger."""


def read(directory: Path, name: str, prefix: str) -> Kept:
    """Return what a daemon's file has for a kafka.topic_prefix; nothing if there is no readable file."""
    try:
        content = (directory / FILE).read_bytes()
    except OSError:
        return Kept()
    return Kept.decode(content, name, prefix)


class NumbersFile:
    """One daemon's file of numbers. For the daemon's thread, which has the lock of the state directory."""

    def __init__(self, directory: Path, name: str, prefix: str) -> None:
        """Read the file. Nothing is written before the first number."""
        self._path = directory / FILE
        self._name = name
        self._prefix = prefix
        self.kept = read(directory, name, prefix)
        """The file's content."""
        self._reserved_seq = 0
        self._recorded: Position | None = None
        self._next_record = 0.0
        self._is_broken = False
        # This run's way of delivery, recorded once the seq `_ahead_until` is committed.
        self._delivery: str | None = self.kept.delivery
        self._ahead_until = 0

    @property
    def may_be_passed(self) -> bool:
        """Whether a former run with at_least_once delivery may have published events that are newer than the checkpoint."""
        return self.kept.delivery == "at_least_once"

    def begin(self, cluster_id: str | None, delivery: str, *, ahead_until: int = 0) -> None:
        """Record the cluster and the way of delivery of this run.

        Until a position with the seq `ahead_until` is committed, events of a former run with at_least_once delivery may be newer
        than the checkpoint. Until then its way of delivery stays recorded.
        """
        cluster_id = cluster_id or self.kept.cluster_id
        self._delivery, self._ahead_until = delivery, ahead_until
        if ahead_until and self.kept.delivery is not None:
            delivery = self.kept.delivery
        if (cluster_id, delivery) != (self.kept.cluster_id, self.kept.delivery):
            self._write(replace(self.kept, cluster_id=cluster_id, delivery=delivery))

    def reserve(self, seq: int) -> None:
        """Make sure that `seq` is reserved, before an event with it may become visible."""
        if seq > self._reserved_seq:
            self._reserved_seq = seq + RESERVED_SEQS
            self._write(replace(self.kept, reserved_seq=max(self._reserved_seq, self.kept.reserved_seq)))

    def record(self, committed: Position | None) -> None:
        """Record a committed position, unless the last record is less than RECORD_SECONDS old. Cheap if nothing has changed."""
        if committed is self._recorded or committed is None:
            return
        now = time.monotonic()
        if now >= self._next_record:
            self._next_record = now + RECORD_SECONDS
            self._recorded = committed
            self._write(self._with(committed))

    def close(self, committed: Position) -> None:
        """Record that nothing is published beyond `committed`, at an orderly stop."""
        kept = self._with(committed)
        self._write(replace(kept, reserved_seq=kept.committed.seq), is_synced=True)

    def _with(self, committed: Position) -> Kept:
        delivery = self._delivery if committed.seq >= self._ahead_until else self.kept.delivery
        return replace(self.kept, committed=self.kept.committed | Numbers.of(committed), delivery=delivery)

    def _write(self, kept: Kept, *, is_synced: bool = False) -> None:
        self.kept = kept
        if self._is_broken:
            return
        try:
            # Opened each time, so that a removed file comes back.
            with contextlib.suppress(FileExistsError):
                self._path.parent.mkdir(parents=True, mode=0o700)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(descriptor, kept.encode(self._name, self._prefix).ljust(_BYTES - 1) + b"\n", 0)
                if is_synced:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._is_broken = True
            structlog.get_logger().warning(
                "the highest numbers can't be kept in state.path; they would be needed if Kafka lost its newest records",
                name=self._name,
                path=str(self._path),
                reason=error.strerror,
            )
