"""What the threads that read the topics have in common.

They begin again after what heals by waiting, until they are stopped; and they let partitions wait that are ahead of the others,
so that what is read before its turn stays bounded.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Final

import structlog
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from cdc.errors import CdcError, Remedy
from cdc.kafka.errors import reading_error
from cdc.kafka.hanging import Place
from cdc.kafka.reach import Reach

POLL_SECONDS: Final = 0.02
MESSAGES: Final = 4_000
"""Taken from librdkafka at a time."""
TOPICS_SECONDS: Final = 2.0
"""How often new topics are looked for."""
HOLE_TOPICS_SECONDS: Final = 0.25
"""The same, where a number is missing."""
HOLE_SECONDS: Final = 10.0
"""How long a missing number is waited for, before it is looked what has become of it."""
_RETRY_SECONDS: Final = 1.0
_WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of changes that wait for one of another partition; past it partitions that are ahead aren't read."""
AHEAD_BYTES: Final = 32 * 1024 * 1024
"""That librdkafka fetches before it is asked."""


class TopicThread(ABC):
    """A thread that reads topics, until it is stopped or can't go on."""

    def __init__(self, name: str, trouble: str, on_end: Callable[[CdcError | None], None]) -> None:
        """`trouble` is what the log says when something has to be tried again; `on_end` is told the error that ended it."""
        self._trouble = trouble
        self._on_end = on_end
        self._stopping = threading.Event()
        self._log = structlog.get_logger()
        self.error: str | None = None
        """Why nothing comes, for now."""
        self._paused: set[Place] = set()
        self._waiting_bytes_max = _WAITING_BYTES_MAX
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End soon; nothing may keep the thread."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()

    @abstractmethod
    def _follow(self) -> None:
        """Read with one consumer, until a stop is asked for. May return, or raise what heals by waiting, to begin again."""

    def _consume(self, consumer: Consumer, reach: Reach) -> list[Message]:
        """What has come. Raises ConnectionLostError if nothing will."""
        messages = consumer.consume(MESSAGES, POLL_SECONDS)
        if not messages and not self._stopping.is_set():
            reach.check()
        return messages

    def _goes_on(self) -> None:
        """Something was read: what was wrong is over."""
        if self.error is not None:
            self._log.info("the topics are read again")
            self.error = None

    def _hold_back(self, consumer: Consumer, waiting_bytes: int, heads: Mapping[Place, int], limit: int) -> None:
        """Bound what waits: don't read partitions whose newest number is past the limit."""
        if waiting_bytes > self._waiting_bytes_max:
            ahead = {place for place, seq in heads.items() if seq > limit} - self._paused
            consumer.pause([TopicPartition(*place) for place in ahead])
            self._paused |= ahead
        elif self._paused and waiting_bytes < self._waiting_bytes_max // 2:
            consumer.resume([TopicPartition(*place) for place in self._paused])
            self._paused.clear()

    def _run(self) -> None:
        failure: CdcError | None = None
        try:
            while not self._stopping.is_set():
                try:
                    self._follow()
                except CdcError as error:
                    if error.remedy is not Remedy.WAIT:
                        raise
                    if self.error is None:
                        self._log.warning(self._trouble, error=str(error))
                    self.error = str(error)
                    self._stopping.wait(_RETRY_SECONDS)
        except CdcError as error:
            failure = error
        except KafkaException as error:
            failure = reading_error(error.args[0], "the topics can't be read")
        except Exception as error:
            # A fault of this program, whose traceback follows: without this clients would wait for ever.
            failure = CdcError(f"a thread that reads topics has ended: {error!r}")
            raise
        finally:
            self._on_end(failure)
