"""The output of `watch`: what is written counts as durable, and a reader that is slow, or ends, ends nothing else."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cdc.commands.watch_output import EventOutput, OutputError, open_file
from cdc.errors import ConfigurationError, PublishAborted
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.stream.batches.batch import Batch


@dataclass
class Pipe:
    """A pipe with an output at its one end."""

    reader: int
    output: EventOutput
    is_stopping: threading.Event
    turns: list[None]

    def end(self) -> None:
        """The reader ends."""
        os.close(self.reader)
        self.reader = -1


def batch(seq: int, value: bytes = b"{}", *, is_boundary: bool = True) -> Batch:
    position = Position(vclock=VClock({1: seq}), seq=seq)
    return Batch([("users", b"{}", value)], len(value), 1, 1, position, is_boundary, {}, [], 0.0)


def values(found: Batch) -> bytes:
    return b"".join((message[2] or b"") + b"\n" for message in found.messages if isinstance(message, tuple))


def output_to(
    descriptor: int, is_stopping: threading.Event | None = None, on_turn: Callable[[], None] = lambda: None
) -> EventOutput:
    return EventOutput(descriptor, values, is_stopping or threading.Event(), on_turn=on_turn, tell=list[str]().append)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reader, writer = os.pipe()
    is_stopping, turns = threading.Event(), list[None]()
    found = Pipe(reader, output_to(writer, is_stopping, lambda: turns.append(None)), is_stopping, turns)
    yield found
    os.close(writer)
    if found.reader >= 0:
        os.close(found.reader)


def test_what_is_written_is_durable(pipe: Pipe) -> None:
    output = pipe.output
    assert output.collect() == []
    first, piece, last = batch(1), batch(2, is_boundary=False), batch(3)
    for each in (first, piece, last):
        output.submit(each)
    assert select.select([output.wake_fd], [], [], 0)[0]
    settled = output.collect()
    # The state store compares positions by identity.
    assert [position is each.position for position, each in zip(settled, (first, last), strict=True)] == [True, True]
    assert not select.select([output.wake_fd], [], [], 0)[0]
    assert os.read(pipe.reader, 100) == b"{}\n{}\n{}\n"
    assert (output.event_count, output.newest_numbers().seq) == (3, 3)


def test_a_transaction_that_stays_incomplete_is_given_up_once(pipe: Pipe) -> None:
    pipe.output.submit(batch(1))
    pipe.output.abandon("the source ended")
    assert len(pipe.output.collect()) == 1
    with pytest.raises(PublishAborted, match="the source ended"):
        pipe.output.collect()
    assert pipe.output.collect() == []


def test_every_turn_is_told(pipe: Pipe) -> None:
    assert pipe.output.has_room
    assert pipe.output.wait_for_room(0)
    assert len(pipe.turns) == 1


def test_a_reader_that_ends_while_nothing_happens_ends_the_command(pipe: Pipe) -> None:
    assert pipe.output.has_room
    assert not pipe.is_stopping.is_set()
    pipe.end()
    assert pipe.output.has_room
    assert pipe.is_stopping.is_set()


def test_a_reader_that_ends_while_something_is_written(pipe: Pipe) -> None:
    pipe.end()
    with pytest.raises(PublishAborted, match="reader has ended"):
        pipe.output.submit(batch(1))
    assert pipe.is_stopping.is_set()


def test_a_slow_reader_gets_everything(pipe: Pipe) -> None:
    large, got = b"x" * 1_000_000, bytearray()

    def read() -> None:
        while not got.endswith(b"\n"):
            got.extend(os.read(pipe.reader, 3000))

    reader = threading.Thread(target=read)
    reader.start()
    pipe.output.submit(batch(1, large))
    reader.join(20)
    assert bytes(got) == large + b"\n"


def test_a_stop_doesnt_wait_for_a_reader(pipe: Pipe) -> None:
    pipe.is_stopping.set()
    with pytest.raises(PublishAborted, match="nobody read"):
        pipe.output.submit(batch(1, b"x" * 1_000_000))


def test_an_output_that_blocks_nobody(pipe: Pipe) -> None:
    """Another program may have made the shared pipe non-blocking."""
    os.set_blocking(pipe.output._descriptor, False)
    pipe.is_stopping.set()
    with pytest.raises(PublishAborted, match="nobody read"):
        pipe.output.submit(batch(1, b"x" * 1_000_000))


def test_a_full_disk_is_an_error() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OutputError, match="No space left"):
            output_to(descriptor).submit(batch(1))
    finally:
        os.close(descriptor)


def test_files_are_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for content in (b"", b'{"a":1}\n', b'{"a":'):
        path.write_bytes(content)
        descriptor = open_file(path)
        output_to(descriptor).submit(batch(1))
        os.close(descriptor)
        # A line that a killed process left without an end isn't continued.
        assert path.read_bytes() == content + (b"\n" if content and not content.endswith(b"\n") else b"") + b"{}\n"


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"can't be written: Is a directory\. Name another file with --output"):
        open_file(tmp_path)
