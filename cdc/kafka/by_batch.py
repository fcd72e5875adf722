"""Producers that take messages by the batch, past Python, where the compiled row path runs.

confluent_kafka takes them one by one, each with a call of Python's, or as a list of dictionaries, which costs as much. The
compiled module asks librdkafka itself, on behalf of a producer that confluent_kafka has made and goes on looking after: it is a
plug-in of librdkafka's (`plugin.library.paths`), which is told of each client that is made with it (`python_producer.rs`).
What becomes of a message is the same in both ways: librdkafka copies it, chooses its partition, and puts it behind the others.
"""

from __future__ import annotations

import atexit
import threading
from typing import Any, Final, Protocol

from confluent_kafka import Producer, cimpl

from cdc import native
from cdc.stream.batch import Part

_PLUG_INS: Final = "plugin.library.paths"

_AT_WORK: Final = threading.Lock()
"""Held by who is in the compiled module, and for good once the interpreter ends: it ends its threads where they next want its own
lock, and where that is in compiled code the whole process is aborted, whatever it was about to tell by its exit status."""
atexit.register(_AT_WORK.acquire)


class ByBatch(Protocol):
    """Takes messages by the batch."""

    def produce(self, parts: list[Part], start: int, within: int) -> tuple[int, int, int]:
        """Take messages from `within` of part `start` on; returns behind which one it came to an end, and an error's code or 0.

        It ends in front of a broadcast, and where the producer refuses a message. A code says that others behind that were taken.
        """


class _Guarded:
    """Nobody is at work in the compiled module when the interpreter ends."""

    def __init__(self, handle: ByBatch) -> None:
        self._handle = handle

    def produce(self, parts: list[Part], start: int, within: int) -> tuple[int, int, int]:
        """As `ByBatch.produce`."""
        with _AT_WORK:
            return self._handle.produce(parts, start, within)


class BatchProducer(Producer):
    """A producer that takes messages by the batch as well, if that can be had. No reports tell what becomes of such messages."""

    by_batch: ByBatch | None = None

    def __init__(self, settings: dict[str, Any], **more: Any) -> None:
        module = native.plug_in(cimpl.__file__)
        if module is None:
            super().__init__(settings, **more)
            return
        plug_ins = [settings[_PLUG_INS], module.__file__] if settings.get(_PLUG_INS) else [module.__file__]
        module.ProducerHandle.newest()  # whose is an earlier one, which nobody asked for
        super().__init__({**settings, _PLUG_INS: ";".join(plug_ins)}, **more)
        handle = module.ProducerHandle.newest()
        self.by_batch = _Guarded(handle) if handle is not None else None


def by_batch(producer: Producer) -> ByBatch | None:
    """How this producer takes messages by the batch; None if it doesn't."""
    return producer.by_batch if isinstance(producer, BatchProducer) else None
