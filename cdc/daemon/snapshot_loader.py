"""One snapshot on its way to Kafka, wherever its rows come from: a server's answer or a .snap file.

    begin(vclock) ─▶ rows(frames), rows(frames), … ─▶ end() ─▶ wait_until_durable()

It shows the progress, and refuses to know where the rows are read and when reading has to stop.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Self

from structlog.typing import FilteringBoundLogger

from cdc.daemon.clock import now_us
from cdc.daemon.runner import PipelineRunner
from cdc.ops.progress import SnapshotProgress
from cdc.ops.status import Status
from cdc.positions.vclock import VClock
from cdc.protocol.codec import Frames
from cdc.stream.batch import Batch
from cdc.stream.checkpoint import Checkpoint


class SnapshotIntake:
    """Takes the rows of one snapshot; leaving the context ends the progress bar."""

    def __init__(
        self,
        runner: PipelineRunner,
        checkpoint: Checkpoint,
        status: Status,
        log: FilteringBoundLogger,
        *,
        publish: bool,
    ) -> None:
        """`log` names the source. Without `publish` only the schema is taken from the rows. Raises StateError."""
        self._runner = runner
        self._status = status
        self._log = log
        self._publish = publish
        self._after_seq = runner.prepare_snapshot()
        previous = checkpoint.position.snapshot if checkpoint.position else None
        self._progress = SnapshotProgress(previous.row_count if previous else 0)
        self._row_count = 0
        status.state, status.snapshot_rows = "snapshot", 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.finish()

    def begin(self, vclock: VClock) -> None:
        """The snapshot's stream will begin at `vclock`. Raises what PipelineRunner.submit and the pipeline raise."""
        runner = self._runner
        runner.submit(runner.pipeline.begin_snapshot(vclock, now_us(), after_seq=self._after_seq, publish=self._publish))

    def rows(self, frames: Frames) -> None:
        """Some of its rows."""
        pipeline = self._runner.pipeline
        self._runner.take(self._counted(pipeline.feed_snapshot(frames, now_us())))

    def _counted(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self._row_count += batch.event_count
            self._status.snapshot_rows = self._row_count
            self._progress.advance(batch.event_count)
            yield batch

    def end(self) -> None:
        """All of its rows have come."""
        self._runner.take(self._runner.pipeline.end_snapshot(now_us()))

    def wait_until_durable(self) -> bool:
        """Wait until Kafka has all of it; returns False if a stop was asked for meanwhile."""
        if not self._runner.wait_until_settled():
            return False
        position = self._runner.pipeline.ledger.checkpoint
        self._log.info("the snapshot is complete", rows=self._row_count, vclock=str(position.vclock), seq=position.seq)
        # Hundreds of thousands of objects were made and dropped; what is left lives as long as the process.
        gc.collect()
        gc.freeze()
        return True
