"""Effects of the row path (see cdc.native) on the daemon: a line in its log, and a lock where threads take turns.

This module also tunes the interpreter's garbage collector for rows.
"""

from __future__ import annotations

import gc
import threading
from contextlib import AbstractContextManager, nullcontext

import structlog

from cdc import native
from cdc.config import Config
from cdc.daemon.start import formats_of


def log_start(config: Config) -> None:
    """Write the log's first line."""
    kafka = config.kafka.bootstrap_servers  # the daemon waits for these servers next
    row_path, reason = path_of(config)
    structlog.get_logger().info("starting", name=config.name, kafka=kafka, row_path=row_path, reason=reason)


def path_of(config: Config) -> tuple[native.RowPath, str]:
    """Return the row path of a configuration, and the reason, as a clause."""
    if native.ROW_PATH == "native" and not formats_of(config).is_compiled:
        return "python", 'the compiled row path makes only "json" and "avro", with format.envelope = "debezium"'
    return native.ROW_PATH, native.REASON


def new_row_work_lock(config: Config) -> AbstractContextManager[object]:
    """Return the lock that serializes the two threads that work on rows, one batch at a time.

    With the Python row path, both threads release the interpreter's lock for an instant at every row, one to read the store, the
    other to queue a message, and would contend for it. The compiled row path needs no lock.
    """
    return threading.Lock() if path_of(config)[0] == "python" else nullcontext()


def tune_garbage_collector() -> None:
    """Make garbage collections rare, as rows are created and dropped by the hundred thousand and contain no cycles.

    Each collection of the youngest generation during a batch would visit all dicts of the batch, and costs more than a third
    of the decoding time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)
