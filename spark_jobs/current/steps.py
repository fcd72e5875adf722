"""The thread in which the job `current` runs the steps of its merger, beside the batches."""

from __future__ import annotations

import threading
from collections.abc import Callable

from spark_jobs.errors import JobError
from spark_jobs.lake.merger import Evidence


class Steps:
    """Thread that runs the merger's steps: at the start, after each new batch, and at regular intervals."""

    def __init__(self, step: Callable[[Evidence | None], object], interval_seconds: float) -> None:
        """Run nothing yet. `interval_seconds` is the longest time between two steps."""
        self._step = step
        self._interval_seconds = interval_seconds
        self._seen: Evidence | None = None
        self._is_new = threading.Event()
        self._is_stopped = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def wake(self, seen: Evidence | None) -> None:
        """Request a step, with the evidence of the newest batch. Raises the error of an earlier step that failed."""
        self.check()
        self._seen = seen
        self._is_new.set()
        self.start()

    def start(self) -> None:
        """Start the thread, unless it runs already or the steps have been closed."""
        with self._starting:
            if self._thread is None and not self._is_stopped:
                self._thread = threading.Thread(target=self._run, name="merges", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Wait until the running step has ended, and run no other. If a step failed with a JobError, raise it.

        Other errors are ignored, as the next start repeats the step. One cause is that the same signal ended Java.
        """
        with self._starting:
            self._is_stopped = True
        self._is_new.set()
        if self._thread is not None:
            self._thread.join()
        if isinstance(self._failure, JobError):
            raise self._failure

    def check(self) -> None:
        """Raise the error of a failed step, if there is one. After a failure the thread runs no other step."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while True:
                self._step(self._seen)
                if not self._is_stopped:
                    self._is_new.wait(self._interval_seconds)
                    self._is_new.clear()
                if self._is_stopped:
                    return
        except Exception as error:  # noqa: BLE001 - `check` raises it
            self._failure = error
