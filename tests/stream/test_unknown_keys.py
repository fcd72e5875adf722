"""Keys of headers and bodies that this version doesn't know, as newer servers may send: neither row path depends on them.

Each packet of the server has some, among the keys that are known, and what comes out is the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from cdc import native
from cdc.errors import UnsupportedRowError
from cdc.protocol.codec import FrameDecoder
from cdc.protocol.constants import KEY_NAMES, Key
from cdc.stream.batches.batch import Broadcast, Message
from tests.fakes import wire
from tests.fakes.interleavings import LimboWorkload
from tests.fakes.master import Master
from tests.fakes.pipelines import NOW_US, frames_of, pipeline
from tests.fakes.replica import Replica, at_once
from tests.fakes.synchronous import SynchronousMaster
from tests.fakes.workload import Workload
from tests.stream.batches.test_compiled_rows import BEGIN, PLAIN
from tests.stream.test_both_paths import path

needs_compiled = pytest.mark.skipif(native.ROW_PATH == "python", reason="this installation doesn't run the compiled row path")

UNKNOWN: list[tuple[int, Any]] = [
    (0x0B, 3),  # THREAD_ID, from 3.7 on
    (0x2F, "text"),
    (0x3A, [1, {"a": None}]),
    (0x5C, {1: [2]}),
    (0x5E, b"bytes"),
    (0x5F, []),
    (0x60, 2**64 - 1),
    (0x61, True),  # IS_SYNC, from 3.4 on
    (0x62, -1.5),
    (0x64, None),
    (0x7F, 0),
    (0x1234, 5),
]


def strange(rng: random.Random, pairs: dict[int, Any]) -> dict[int, Any]:
    """The same map with some unknown keys before, between and behind its own."""
    items = list(pairs.items())
    for item in rng.sample(UNKNOWN, rng.randint(1, 4)):
        items.insert(rng.randint(0, len(items)), item)
    return dict(items)


class Strange:
    """A server's packets, each with unknown keys."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._decoder = FrameDecoder()
        self._has_greeted = False

    def __call__(self, data: bytes) -> Iterator[bytes]:
        if data and not self._has_greeted:
            self._has_greeted = True
            yield data[:128]
            data = data[128:]
        frames = self._decoder.feed(data)
        for header, body, frame in zip(frames.headers, frames.bodies, frames.raws(), strict=True):
            has_body = len(frame) > 5 + len(wire.pack(header))
            yield wire.frame(strange(self._rng, header), *([strange(self._rng, body)] if has_body else []))


def test_these_keys_are_unknown() -> None:
    assert not KEY_NAMES.keys() & {key for key, _ in UNKNOWN}
    assert Key.ARROW not in dict(UNKNOWN)


@pytest.mark.parametrize("is_python", [True, pytest.param(False, marks=needs_compiled)], ids=["python", "compiled"])
@pytest.mark.parametrize("images", [True, False], ids=["images", "none"])
@pytest.mark.parametrize(("seed", "version", "is_synchronous"), [(1, "2.6", False), (2, "3.3", False), (3, "3.3", True)])
def test_unknown_keys_change_nothing(is_python: bool, images: bool, seed: int, version: str, is_synchronous: bool) -> None:
    rng = random.Random(seed)
    master, work = master_of(rng, version, is_synchronous=is_synchronous)
    replicas = [Replica(master, images=images, on_error="dlq", on_image_error="dlq", cut=cut) for cut in (at_once, Strange(rng))]
    with ExitStack() as stack:
        stack.enter_context(path(is_python=is_python))
        for replica in replicas:
            replica.connect()
        work.run(rng.randint(1, 40))
        for replica in replicas:
            replica.relay.relay()
            replica.relay.heartbeat()
            replica.receive()
            replica.commit()
    plain, other = replicas
    assert committed(other) == committed(plain)
    # The checksums of the rows at the position are those of their bytes, and differ.
    assert replace(other.pipeline.position, last_rows=()) == replace(plain.pipeline.position, last_rows=())
    assert other.pipeline.limbo == plain.pipeline.limbo


def committed(replica: Replica) -> list[Message | Broadcast]:
    """All messages; dead letters, which quote the rows as received, without their contents."""
    found = replica.topics.committed
    return [(*each[:2], None) if not isinstance(each, Broadcast) and each[0] == "shop.dlq" else each for each in found]


def master_of(rng: random.Random, version: str, *, is_synchronous: bool) -> tuple[Master, Workload | LimboWorkload]:
    if not is_synchronous:
        master = Master(version)
        return master, Workload(master, rng)
    synchronous = SynchronousMaster(version)
    return synchronous, LimboWorkload(synchronous, rng, 1)


@needs_compiled
def test_the_compiled_path_takes_rows_with_unknown_keys_in_their_headers() -> None:
    """Every row of a newer server may have one: it would be as slow as the Python path."""
    master = Master()
    master.create_space("users")
    rows = mock.Mock(side_effect=lambda pairs: {**pairs, 0x0B: 3} if Key.REQUEST_TYPE in pairs else pairs)
    with path(is_python=False):
        replica = Replica(master, cut=Strange(random.Random(1)))
        with mock.patch("tests.stream.test_unknown_keys.strange", new=lambda _, pairs: rows(pairs)):
            replica.connect()
            replica.commit()
            master.insert("users", 1)  # the Python path makes the encoder
            for number in range(2, 50):
                master.insert("users", number)
            replica.relay.relay()
            replica.receive()
    assert rows.called
    batches = [batch for batch in replica.unsettled if batch.row_count]
    assert sum(batch.row_count for batch in batches) == 49
    assert sum(batch.native_row_count for batch in batches) == 48


@pytest.mark.parametrize("space", [{}, {Key.SPACE_ID: 512}, {Key.SPACE_ID: 700}], ids=["no space", "followed", "unknown space"])
@pytest.mark.parametrize("is_python", [True, pytest.param(False, marks=needs_compiled)], ids=["python", "compiled"])
def test_a_row_of_an_unknown_type_stops_it(space: dict[int, Any], is_python: bool) -> None:
    """Also where no session has looked at it before: in a server's files."""
    frame = wire.frame({Key.REQUEST_TYPE: 19, Key.REPLICA_ID: 1, Key.LSN: 11, Key.TIMESTAMP: 2.5}, {**space, 0x3B: "?"})
    before = wire.frame(
        {Key.REQUEST_TYPE: 2, Key.REPLICA_ID: 1, Key.LSN: 11, Key.TIMESTAMP: 2.5}, {Key.SPACE_ID: 512, Key.TUPLE: [1, "a", 1]}
    )
    with path(is_python=is_python):
        target = pipeline(BEGIN, PLAIN)
        list(target.feed(frames_of(before), NOW_US))
        with pytest.raises(UnsupportedRowError, match=r"row 1:12 is of type 19, which this version can't follow"):
            list(target.feed(frames_of(frame.replace(b"\x03\x0b", b"\x03\x0c", 1)), NOW_US))
