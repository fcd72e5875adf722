"""Producers that accept messages in batches, bypassing Python, where the compiled row path is in use.

confluent_kafka accepts messages one at a time, with a Python call for each, or as a list of dictionaries, which costs as much.
The compiled module calls librdkafka directly, for a producer that confluent_kafka created and still manages. The module is a
librdkafka plug-in (`plugin.library.paths`): librdkafka notifies it of each client created with it (`python_producer.rs`).
Both ways treat a message alike: librdkafka copies it, chooses its partition, and queues it after the earlier messages.
"""

from __future__ import annotations

import atexit
import threading
from typing import Any, Final, Protocol

from confluent_kafka import Producer, cimpl

from cdc import native
from cdc.stream.batches.batch import Part

_PLUG_INS: Final = "plugin.library.paths"

_COMPILED_CODE_LOCK: Final = threading.Lock()
"""Lock held by the thread that runs compiled code, and permanently once the interpreter exits. While it exits, the interpreter
ends each thread that next asks for the interpreter's own lock. If such a thread is in compiled code, the whole process aborts,
and its intended exit status is lost."""
atexit.register(_COMPILED_CODE_LOCK.acquire)


class ByBatch(Protocol):
    """Batch interface of a producer."""

    def produce(self, parts: list[Part], start: int, within: int) -> tuple[int, int, int]:
        """Queue messages, from message `within` of part `start` on.

        Returns the part and the message within it at which queueing stopped, and an error code or 0. Queueing stops before a
        broadcast, and at a message that the producer refuses. A code other than 0 says that the producer accepted messages
        after the refused one.
        """


class _Guarded:
    """Wrapper that keeps threads out of the compiled module while the interpreter exits."""

    def __init__(self, handle: ByBatch) -> None:
        self._handle = handle

    def produce(self, parts: list[Part], start: int, within: int) -> tuple[int, int, int]:
        """See `ByBatch.produce`."""
        with _COMPILED_CODE_LOCK:
            return self._handle.produce(parts, start, within)


class BatchProducer(Producer):
    """Producer with a batch interface where one is available. Messages of a batch get no delivery reports."""

    by_batch: ByBatch | None = None

    def __init__(self, settings: dict[str, Any], **more: Any) -> None:
        module = native.plug_in(cimpl.__file__)
        if module is None:
            super().__init__(settings, **more)
            return
        plug_ins = [settings[_PLUG_INS], module.__file__] if settings.get(_PLUG_INS) else [module.__file__]
        module.ProducerHandle.newest()  # discards the handle of an earlier producer that nobody picked up
        super().__init__({**settings, _PLUG_INS: ";".join(plug_ins)}, **more)
        handle = module.ProducerHandle.newest()
        self.by_batch = _Guarded(handle) if handle is not None else None


def by_batch(producer: Producer) -> ByBatch | None:
    """Return the producer's batch interface, or None if it has none."""
    return producer.by_batch if isinstance(producer, BatchProducer) else None
