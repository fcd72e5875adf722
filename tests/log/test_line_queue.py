"""The log's queue: whatever happens at the other end of stderr, `put` returns at once, and what is lost is counted and told."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from cdc.log import line_queue
from cdc.log.line_queue import LineQueue

_F_SETPIPE_SZ = 1031
PIPE_BYTES = 4096


@contextlib.contextmanager
def small_pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, _F_SETPIPE_SZ, PIPE_BYTES)
    try:
        yield reader, writer
    finally:
        for descriptor in (reader, writer):
            with contextlib.suppress(OSError):
                os.close(descriptor)


class Told:
    """What the queue says when writing works again."""

    def __init__(self) -> None:
        self.counts: list[tuple[int, int]] = []

    def __call__(self, count: int, total: int) -> None:
        self.counts.append((count, total))


def read_until(reader: int, end: bytes) -> bytes:
    found = b""
    while not found.endswith(end):
        found += os.read(reader, 1 << 16)
    return found


def test_lines_arrive_in_order() -> None:
    with small_pipe() as (reader, writer):
        queue = LineQueue(Told(), descriptor=writer)
        for number in range(100):
            queue.put(f"{number}\n")
        assert queue.flush(10)
        assert read_until(reader, b"99\n").split() == [str(number).encode() for number in range(100)]
        assert queue.lost_count == 0


def test_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits, and an error has room when other lines have none."""
    monkeypatch.setattr(line_queue, "QUEUE_BYTES_MAX", 10_000)
    with small_pipe() as (reader, writer):
        told = Told()
        queue = LineQueue(told, descriptor=writer)
        for _ in range(100):
            queue.put("x" * 999 + "\n")
        queue.put("the last error\n", is_error=True)
        assert not queue.flush(0.1)
        lost = queue.lost_count
        assert 80 <= lost <= 95
        found = read_until(reader, b"the last error\n")
        assert queue.flush(10)
        assert found.count(b"\n") == 101 - lost
        assert told.counts == [(lost, lost)]
        queue.put("more\n")
        assert queue.flush(10)
        assert told.counts == [(lost, lost)], "the same loss isn't told twice"


def test_a_line_larger_than_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_queue, "QUEUE_BYTES_MAX", 10)
    with small_pipe() as (reader, writer):
        LineQueue(Told(), descriptor=writer).put("a large row is shown in this error\n")
        assert read_until(reader, b"\n") == b"a large row is shown in this error\n"


def test_the_reader_is_gone() -> None:
    with small_pipe() as (reader, writer):
        os.close(reader)
        queue = LineQueue(Told(), descriptor=writer)
        queue.put("one\n")
        queue.put("two\n")
        assert queue.flush(10)
        assert queue.lost_count == 2


def test_a_full_disk() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        queue = LineQueue(Told(), descriptor=descriptor)
        queue.put("one\n")
        assert queue.flush(10)
        assert queue.lost_count == 1
    finally:
        os.close(descriptor)


def test_a_disk_that_fills_up_within_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next line begins a new one."""
    written: list[bytes] = []
    room = 5

    def write(_: int, data: memoryview) -> int:
        nonlocal room
        if not room:
            raise OSError(28, "No space left on device")
        count = min(room, len(data))
        room -= count
        written.append(bytes(data[:count]))
        return count

    monkeypatch.setattr("cdc.log.line_queue.os.write", write)
    told = Told()
    queue = LineQueue(told)
    queue.put("a long line\n")
    assert queue.flush(10)
    assert queue.lost_count == 1
    room = 1000
    queue.put("another\n")
    assert queue.flush(10)
    assert b"".join(written) == b"a lon\nanother\n"
    assert told.counts == [(1, 1)]


def test_a_pipe_that_somebody_made_non_blocking() -> None:
    with small_pipe() as (reader, writer):
        os.set_blocking(writer, False)
        queue = LineQueue(Told(), descriptor=writer)
        queue.put("x" * 3 * PIPE_BYTES + "\n")
        assert not queue.flush(0.1)
        began = time.thread_time()
        assert len(read_until(reader, b"x\n")) == 3 * PIPE_BYTES + 1
        assert queue.flush(10)
        assert queue.lost_count == 0
        assert time.thread_time() - began < 1


def test_a_signal_handler_logs_too() -> None:
    """It may interrupt whoever is putting a line into the queue."""
    with small_pipe() as (reader, writer):
        queue = LineQueue(Told(), descriptor=writer)
        drained = threading.Thread(target=read_until, args=(reader, b"end\n"))
        drained.start()
        former = signal.signal(signal.SIGALRM, lambda *_: queue.put("in the handler\n"))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        try:
            for number in range(20_000):
                queue.put(f"{number}\n")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)
        queue.put("end\n", is_error=True)
        drained.join(20)
        assert not drained.is_alive()
