"""Which row path the daemon goes (see cdc.native), where it matters to the daemon: in its log, and where threads take turns.

Beside it, what the interpreter is told for the sake of rows.
"""

from __future__ import annotations

import gc
import threading
from contextlib import AbstractContextManager, nullcontext

import structlog

from cdc import native
from cdc.config import Config


def say_start(config: Config) -> None:
    """The log's first line."""
    kafka = config.kafka.bootstrap_servers  # which is waited for next
    structlog.get_logger().info("starting", name=config.name, kafka=kafka, row_path=native.ROW_PATH, reason=native.REASON)


def new_row_work_lock() -> AbstractContextManager[object]:
    """Serialises the two threads that work on rows, a batch at a time.

    In Python both let go of the interpreter's lock for an instant at every row, one to look into the store, the other to hand a
    message over, and would contend for it.
    """
    return threading.Lock() if native.TAKES_TURNS else nullcontext()


def tune_garbage_collector() -> None:
    """Rows are made and dropped by the hundred thousand and hold no cycles: let the collector look at them rarely.

    Every collection of the youngest generation in the middle of a batch would visit all of the batch's dicts; it costs
    more than a third of the decoding.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)
