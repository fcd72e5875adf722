"""A master's life through both row paths: a snapshot, a stream with all kinds of DDL in it, an end, and a new beginning.

The compiled path gives way to the Python one at every chance, and takes over again at once, so that each sees what the other has
left. Rows are written as a server writes them, and some as only a client would: in longer forms, and in another order.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc import native
from cdc.errors import CdcError
from cdc.images.overlay import Images
from cdc.images.pending import ChangeList, PendingChanges
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.protocol import layout
from cdc.protocol.codec import FrameDecoder
from cdc.protocol.compiled_frames import frame_decoder
from cdc.protocol.constants import Key, Type
from cdc.schema.forms import StoredSpace
from cdc.schema.tracker import published_forms
from cdc.stream.batches.batch import Batch, Broadcast, Message
from cdc.stream.compiled_stream import CompiledStream
from tests.fakes import wire
from tests.fakes.interleavings import LimboWorkload
from tests.fakes.master import VERSIONS, Master
from tests.fakes.pipelines import NOW_US, Store, pipeline
from tests.fakes.profiles import SOME
from tests.fakes.synchronous import SynchronousMaster
from tests.fakes.tuples import MemoryTuples
from tests.fakes.workload import Workload

pytestmark = pytest.mark.skipif(
    native.ROW_PATH == "python", reason="this installation has no compiled row path, or doesn't run it"
)


class Log(NamedTuple):
    """What a master sends: its contents as of a vclock, and what happened then."""

    vclock: VClock
    snapshot: list[bytes]
    stream: list[bytes]
    version: tuple[int, ...] = (2, 11)


def log_of(rng: random.Random, *, odd_share: float, version: str = "", ranges: bool = False) -> Log:
    """A random log; with a `version`, of a server of this version with synchronous transactions."""
    if version:
        synchronous = SynchronousMaster(version)
        origin_count, has_little_ddl = rng.choice([1, 1, 2]), rng.random() < 0.7
        has_unseen_ends = version == "2.6" and rng.random() < 0.5
        limbo_workload = LimboWorkload(
            synchronous, rng, origin_count, has_little_ddl=has_little_ddl, has_unseen_ends=has_unseen_ends
        )
        limbo_workload.run(rng.randint(0, 10))
        limbo_workload.finish()  # a snapshot has only what is certain
        steps = rng.randint(1, 250 if has_little_ddl else 60)
        return recorded(synchronous, limbo_workload, rng, odd_share, steps, tuple(map(int, version.split("."))))
    master = Master()
    workload = Workload(master, rng, ranges=ranges)
    workload.run(rng.randint(0, 30))
    return recorded(master, workload, rng, odd_share, rng.randint(1, 60), (2, 11))


def recorded(
    master: Master,
    workload: Workload | LimboWorkload,
    rng: random.Random,
    odd_share: float,
    steps: int,
    version: tuple[int, ...],
) -> Log:
    """What the master has now, and what the workload does next."""
    vclock, begin = VClock(master.vclock), len(master.log)
    snapshot = [odd(rng, {Key.REQUEST_TYPE: Type.INSERT}, body, odd_share) for body in master.snapshot()]
    workload.run(steps)
    stream = []
    for row in master.log[begin:]:
        packet = row.packet(5)
        stream.append(odd(rng, None, row.body, odd_share, packet) if row.body else packet)
    return Log(vclock, snapshot, stream, version)


def odd(rng: random.Random, header: dict[int, Any] | None, body: dict[int, Any], share: float, packet: bytes = b"") -> bytes:
    """A frame, with this probability in another writing than a server's own."""
    head = wire.pack(header) if header is not None else packet[5 : layout.end_of(packet, 5)]
    if rng.random() >= share:
        return wire.raw_frame(head + wire.pack(body))
    pairs = list(body.items())
    if rng.random() < 0.3:
        rng.shuffle(pairs)
    content = bytes((0x80 | len(pairs),))
    for key, value in pairs:
        content += (b"\xcc" if rng.random() < 0.02 else b"") + bytes((key,)) + longer(rng, wire.pack(value))
    return wire.raw_frame(head + content)


def longer(rng: random.Random, data: bytes) -> bytes:
    """The same values, some of them in longer forms."""
    pieces = []
    position = 0
    while position < len(data):
        begin, kind = position, layout.TYPES[data[position]]
        is_long = rng.random() < 0.2
        if kind in (layout.ARRAY, layout.MAP):
            count, position = layout.header(data, begin)
            piece = (b"\xdd" if kind is layout.ARRAY else b"\xdf") + count.to_bytes(4)
        else:
            position = layout.end_of(data, begin)
            piece = data[begin:position]
            if kind is layout.STRING:
                content, length = layout.content(data, begin)
                piece = b"\xdb" + length.to_bytes(4) + data[content:position]
            elif kind in (layout.UNSIGNED, layout.INTEGER):
                number = layout.integer(data, begin)
                piece = b"\xcf" + number.to_bytes(8) if number >= 0 else b"\xd3" + number.to_bytes(8, signed=True)
        pieces.append(piece if is_long else data[begin:position])
    return b"".join(pieces)


def pieces_of(rng: random.Random, frames: list[bytes], size: int) -> Iterator[bytes]:
    data, start = b"".join(frames), 0
    while start < len(data):
        end = start + rng.randint(1, size)
        yield data[start:end]
        start = end


@contextmanager
def path(*, is_python: bool, handed_back_max: int = 1) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if is_python:
            patch.setattr("cdc.stream.batches.compiled_rows._new_row_path", None)
            patch.setattr("cdc.images.overlay.new_pending", PendingChanges)
            patch.setattr("cdc.stream.catch_up.no_changes", ChangeList)
        else:
            patch.setattr("cdc.stream.compiled_stream.HANDED_BACK_MAX", handed_back_max)
            patch.setattr("cdc.stream.snapshots.snapshot._MANY", 1)
        yield


class Outcome(NamedTuple):
    """What can be told from outside, and by position what was there."""

    messages: list[Message | Broadcast]
    error: str
    boundaries: dict[VClock, tuple[int, Position, frozenset[Any], str]]
    last: object


class Life:
    """A consumer of a log, its store, and what is durable of both."""

    def __init__(self, log: Log, *, is_python: bool, has_images: bool, **options: Any) -> None:
        self._log = log
        self._is_python, self._has_images, self._options = is_python, has_images, options
        self._durable = Store()
        self._tuples = MemoryTuples()
        self._images: Images | None = None
        self._messages: list[Message | Broadcast] = []
        self._boundaries: dict[VClock, tuple[int, Position, frozenset[Any], str]] = {}

    def live(self, rng: random.Random, size: int, ends: Iterable[int]) -> Outcome:
        """A snapshot, and the stream as often as it begins, each time up to so many pieces."""
        last: object = None
        try:
            self._begin()
            decoder = self._decoder()
            self._take([self._target.begin_snapshot(self._log.vclock, NOW_US)])
            for piece in pieces_of(rng, self._log.snapshot, size):
                frames = decoder.feed(piece)
                if len(frames):
                    self._take(self._target.feed_snapshot(frames, NOW_US))
            self._take(self._target.end_snapshot(NOW_US))
            for end in ends:
                decoder = self._decoder()
                for _, piece in zip(range(end), pieces_of(rng, self._log.stream, size), strict=False):
                    frames = decoder.feed(piece)
                    if len(frames):
                        self._take(self._target.feed(frames, NOW_US))
                target = self._target
                last = target.position, target.open_byte_count, target.ledger.received, sorted(self._tuples.rows.items())
                target.close()
                self._begin()
        except CdcError as error:
            return Outcome(self._messages, f"{type(error).__name__}: {error}", self._boundaries, None)
        return Outcome(self._messages, "", self._boundaries, last)

    def _decoder(self) -> FrameDecoder:
        return FrameDecoder() if self._is_python else frame_decoder()

    def _begin(self) -> None:
        stored: list[StoredSpace] = [space for _, space in sorted(self._durable.spaces.items())]
        numbers = self._images.numbers if self._images is not None else {}
        if self._has_images:
            self._images = Images(self._tuples, published_forms(stored), self._log.version, numbers)
        position = self._durable.position
        self._target = pipeline(position, stored, version=self._log.version, images=self._images, **self._options)

    def _take(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            self._messages += batch.messages
            self._durable.take(batch)
            if self._images is not None:
                self._tuples.write(batch.changes, ())
                self._images.written(batch.changes)
            if batch.is_boundary:
                rows = frozenset(self._tuples.rows.items())
                # Rows at the position are noted at the end of a feed: that batch has them which is cut then.
                position = replace(batch.position, last_rows=())
                here = len(self._messages), position, rows, repr(sorted(self._durable.spaces.items()))
                self._boundaries[batch.position.vclock] = here


def lives(
    seed: int,
    *,
    has_images: bool,
    odd_share: float,
    size: int,
    version: str = "",
    handed_back_max: int = 1,
    ranges: bool = False,
    **options: Any,
) -> tuple[Outcome, Outcome]:
    """The Python path's, and the compiled one's."""
    found = []
    for is_python in (True, False):
        rng = random.Random(seed)
        log = log_of(rng, odd_share=odd_share, version=version, ranges=ranges)
        with path(is_python=is_python, handed_back_max=handed_back_max):
            life = Life(log, is_python=is_python, has_images=has_images, **options)
            found.append(life.live(rng, size, (rng.randint(0, 20), rng.randint(0, 60), 1 << 30)))
    return found[0], found[1]


@SOME
@given(
    seed=st.integers(0, 2**32 - 1),
    has_images=st.sampled_from([True, True, False]),
    odd_share=st.sampled_from([0.0, 0.02, 0.3]),
    size=st.sampled_from([40, 400, 4000]),
    batch_bytes_max=st.sampled_from([1, 3000, 1 << 20]),
    transaction_bytes_max=st.sampled_from([200, 1 << 20]),
    on_error=st.sampled_from(["dlq", "dlq", "fail"]),
    on_image_error=st.sampled_from(["dlq", "fail"]),
    transaction_topic=st.sampled_from(["none", "multi", "all"]),
    exclude=st.sampled_from([[], ["space 2"], ["space 1 1", "shared"]]),
    version=st.sampled_from(["", *VERSIONS]),
    handed_back_max=st.sampled_from([1, 1, 8]),
    ranges=st.booleans(),
)
def test_both_paths_live_alike(seed: int, has_images: bool, odd_share: float, size: int, **options: Any) -> None:
    python, compiled = lives(seed, has_images=has_images, odd_share=odd_share, size=size, **options)
    assert compiled.error == python.error
    if python.error:
        # How far it came before the row at fault is the path's own matter, but all that came out is right.
        count = min(len(python.messages), len(compiled.messages))
        assert compiled.messages[:count] == python.messages[:count]
        last = {list(found)[-1] for found in (python.boundaries, compiled.boundaries) if found}
        common = (python.boundaries.keys() & compiled.boundaries.keys()) - last
        assert {place: compiled.boundaries[place] for place in common} == {place: python.boundaries[place] for place in common}
        return
    assert compiled.messages == python.messages
    assert compiled.last == python.last
    for vclock in compiled.boundaries.keys() & python.boundaries.keys():
        assert compiled.boundaries[vclock] == python.boundaries[vclock]


def test_the_compiled_path_has_its_share_in_these_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they say nothing."""
    counts = {"": [0, 0], "2.6": [0, 0], "3.3": [0, 0]}
    version = ""
    run_until = CompiledStream._run_until

    def counted(
        self: CompiledStream, rows: native.Rows, at: int, stop: int, suffix: bytes, certain: Any = None
    ) -> Generator[Batch, None, int]:
        found = yield from run_until(self, rows, at, stop, suffix, certain)
        if certain is not None or not version:
            counts[version][0] += found - at
        return found

    monkeypatch.setattr(CompiledStream, "_run_until", counted)
    for version in counts:
        for seed in range(12):
            lives(seed, has_images=True, odd_share=0.02, size=400, version=version, on_error="dlq", on_image_error="dlq")
            counts[version][1] += len(log_of(random.Random(seed), odd_share=0.02, version=version).stream)
    assert all(done > count / 20 for done, count in counts.values()), counts
