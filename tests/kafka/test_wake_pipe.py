"""One thread wakes another that polls."""

from __future__ import annotations

import os
import select

import pytest

from cdc.kafka.wake_pipe import WakePipe


def is_readable(pipe: WakePipe) -> bool:
    return bool(select.select([pipe], [], [], 0)[0])


def test_it_wakes_until_it_is_cleared() -> None:
    pipe = WakePipe()
    assert not is_readable(pipe)
    pipe.wake()
    pipe.wake()
    assert is_readable(pipe)
    pipe.clear()
    assert not is_readable(pipe)
    pipe.clear()


def test_a_full_pipe_is_no_reason_to_wait() -> None:
    pipe = WakePipe()
    for _ in range(100_000):
        pipe.wake()
    pipe.clear()
    assert not is_readable(pipe)


def test_the_descriptors_are_given_back_with_the_last_that_holds_it() -> None:
    pipe = WakePipe()
    descriptor = pipe.fileno()
    os.fstat(descriptor)
    del pipe
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
