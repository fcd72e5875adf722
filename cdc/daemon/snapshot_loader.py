"""Loading of a snapshot into Kafka, from a server's answer or from a .snap file.

    begin(vclock) ─▶ rows(frames), rows(frames), … ─▶ end() ─▶ wait_until_durable()

This module shows the progress. The caller reads the rows and decides when to stop.
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
from cdc.stream.batches.batch import Batch
from cdc.stream.commits.checkpoint import Checkpoint


class SnapshotIntake:
    """Intake for the rows of one snapshot. Leaving the context ends the progress bar."""

    def __init__(
        self,
        runner: PipelineRunner,
        checkpoint: Checkpoint,
        status: Status,
        log: FilteringBoundLogger,
        *,
        publish: bool,
        has_bar: bool = True,
    ) -> None:
        """Prepare the pipeline. `log` names the source. Without `publish`, only the schema is read. Raises StateError."""
        self._runner = runner
        self._status = status
        self._log = log
        self._publish = publish
        self._after = runner.prepare_snapshot()
        previous = checkpoint.position.snapshot if checkpoint.position else None
        self._progress = status.snapshot = SnapshotProgress(previous.row_count if previous else 0, has_bar=has_bar)
        status.state, status.error = "snapshot", None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.finish(is_complete=False)  # complete only once it is durable

    def begin(self, vclock: VClock) -> None:
        """Begin a snapshot as of `vclock`. Raises the errors of PipelineRunner.submit and of the pipeline."""
        runner = self._runner
        runner.submit(runner.pipeline.begin_snapshot(vclock, now_us(), after=self._after, publish=self._publish))

    def rows(self, frames: Frames) -> None:
        """Load some of the snapshot's rows."""
        pipeline = self._runner.pipeline
        self._runner.submit_all(self._counted(pipeline.feed_snapshot(frames, now_us())))

    def _counted(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self._progress.advance(self._runner.pipeline.snapshot_reading, batch.event_count)
            yield batch

    def end(self) -> None:
        """Finish the snapshot, once all rows were loaded."""
        self._runner.submit_all(self._counted(self._runner.pipeline.end_snapshot(now_us())))

    def wait_until_durable(self) -> bool:
        """Wait until the snapshot is durable. Return False if a stop was requested meanwhile."""
        if not self._runner.wait_until_settled():
            return False
        self._progress.finish(is_complete=True)
        position, progress = self._runner.pipeline.ledger.settled, self._progress
        self._log.info(
            "the snapshot is complete",
            rows=progress.reading.rows,
            published=progress.published_rows,
            vclock=str(position.vclock),
            seq=position.seq,
        )
        # Hundreds of thousands of objects were created and dropped. The remaining ones live as long as the process.
        gc.collect()
        gc.freeze()
        return True
