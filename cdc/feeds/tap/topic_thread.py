"""Base of the threads that read the topics.

A thread starts again after temporary errors, until it is stopped. It pauses partitions that are ahead of the others,
so that the memory of waiting changes stays bounded.
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
"""Maximum number of messages that are taken from librdkafka at a time."""
TOPICS_SECONDS: Final = 2.0
"""Interval at which new topics are looked for, in seconds."""
HOLE_TOPICS_SECONDS: Final = 0.25
"""The same interval while a seq is missing."""
HOLE_SECONDS: Final = 10.0
"""Time to wait for a missing seq before its fate is checked, in seconds."""
_RETRY_SECONDS: Final = 1.0
_WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Size of waiting changes above which partitions that are ahead are paused, in bytes."""
AHEAD_BYTES: Final = 32 * 1024 * 1024
"""Size of the messages that librdkafka prefetches, in bytes."""


class TopicThread(ABC):
    """Thread that reads topics until it is stopped or fails."""

    def __init__(self, name: str, trouble: str, on_end: Callable[[CdcError | None], None]) -> None:
        """`trouble` is the log message for temporary errors. `on_end` is called with the error that ended the thread, or None."""
        self._trouble = trouble
        self._on_end = on_end
        self._stopping = threading.Event()
        self._log = structlog.get_logger()
        self.error: str | None = None
        """Current reason why no messages arrive; None if there is none."""
        self._paused: set[Place] = set()
        self._waiting_bytes_max = _WAITING_BYTES_MAX
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to stop; nothing may block it."""
        self._stopping.set()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    @abstractmethod
    def _follow(self) -> None:
        """Read with one consumer until a stop is requested.

        The method may return, or raise a temporary error, to be called again.
        """

    def _consume(self, consumer: Consumer, reach: Reach) -> list[Message]:
        """Return the messages that have arrived. Raises ConnectionLostError if Kafka can't be reached."""
        messages = consumer.consume(MESSAGES, POLL_SECONDS)
        if not messages and not self._stopping.is_set():
            reach.check()
        return messages

    def _clear_error(self) -> None:
        """Clear the current error, after something was read."""
        if self.error is not None:
            self._log.info("the topics are read again")
            self.error = None

    def _hold_back(self, consumer: Consumer, waiting_bytes: int, heads: Mapping[Place, int], limit: int) -> None:
        """Limit the waiting changes: pause partitions whose newest seq is above `limit`."""
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
            # A fault of this program, whose traceback follows: without this error clients would wait for ever.
            failure = CdcError(f"a thread that reads topics has failed: {error!r}")
            raise
        finally:
            self._on_end(failure)
