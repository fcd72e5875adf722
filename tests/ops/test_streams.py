"""Many open pages: one frame for all of them, and no patience with those that don't read."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from cdc.ops.streams import Streams
from tests.live.waiting import wait_for


class Frames:
    """Frames that count themselves, as large as a test wants."""

    def __init__(self) -> None:
        self.count = 0
        self.size = 10
        self.is_faulty = False

    def __call__(self) -> bytes:
        self.count += 1
        if self.is_faulty:
            self.is_faulty = False
            raise LookupError("a fault of the program")
        return b"%d " % self.count + b"x" * self.size


@pytest.fixture
def frames() -> Frames:
    return Frames()


@pytest.fixture
def revoked() -> set[str]:
    """Authorization headers that permit nothing any more."""
    return set()


@pytest.fixture
def streams(frames: Frames, revoked: set[str]) -> Iterator[Streams]:
    found = Streams(frames, 0.01, lambda shown: shown not in revoked, limit=3)
    yield found
    found.close()


def client(streams: Streams, authorization: str | None = None) -> socket.socket:
    theirs, ours = socket.socketpair()
    ours.settimeout(10)
    assert streams.add(theirs, authorization)
    return ours


def test_all_get_the_same_frame(streams: Streams, frames: Frames) -> None:
    with client(streams) as first, client(streams) as second:
        for reader in (first, second):
            text = b""
            while text.count(b"\n\n") < 3:
                text += reader.recv(1000)
            assert text.startswith(b"data: ")
        read_frames = frames.count
    wait_for("the readers have gone", lambda: not len(streams))
    assert read_frames >= 3


def test_nothing_is_made_while_nobody_looks(streams: Streams, frames: Frames) -> None:
    assert not [thread for thread in threading.enumerate() if thread.name == "streams"]
    with client(streams) as reader:
        assert reader.recv(100)
    wait_for("the readers have gone", lambda: not len(streams))
    count = frames.count
    with client(streams) as reader:
        assert reader.recv(100)
    assert frames.count > count


def test_a_client_that_does_not_read_is_dropped(streams: Streams, frames: Frames) -> None:
    frames.size = 100_000
    with client(streams) as lazy, client(streams) as eager:
        received = 0
        while len(streams) == 2:
            received += len(eager.recv(1_000_000))
        lazy.setblocking(False)
        assert len(streams) == 1
        assert eager.recv(100)


def test_a_stream_ends_with_the_right_to_see_it(streams: Streams, revoked: set[str]) -> None:
    """And only that token's: also where a page without a token is served."""
    with client(streams, "Bearer a") as first, client(streams, "Bearer b") as other, client(streams) as without:
        assert first.recv(100)
        revoked.add("Bearer a")
        wait_for("the stream's end", lambda: len(streams) == 2)
        while first.recv(1000):
            pass
        for reader in (other, without):
            assert reader.recv(100)


def test_a_limited_number(streams: Streams) -> None:
    with client(streams), client(streams), client(streams):
        assert not streams.has_room
        theirs, ours = socket.socketpair()
        with theirs, ours:
            assert not streams.add(theirs, None)
            assert theirs.getblocking(), "it was left as it was"


def test_a_fault_ends_one_frame_only(streams: Streams, frames: Frames) -> None:
    frames.is_faulty = True
    with client(streams) as reader:
        assert reader.recv(100).startswith(b"data: 2")


def test_the_end(frames: Frames) -> None:
    streams = Streams(frames, 3600, lambda _: True)
    reader = client(streams)
    streams.close()
    with reader:
        while reader.recv(1000):
            pass
    assert not streams.has_room
