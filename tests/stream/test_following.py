"""A standby's store follows the first daemon's checkpoints, from a member's contents on: it is always the first one's store.

What joins the pure parts here is what cdc.daemon.standby_store does with a connection, a disk and a clock.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.positions.vclock import VClock
from cdc.protocol.session import Event, Session, StreamRows
from cdc.store.writer import numbers_in
from cdc.stream.batches.batch import Batch
from cdc.stream.catch_up import ENDLESS
from cdc.stream.commits import standby_course
from cdc.stream.held_back import HeldBack
from cdc.stream.pipeline import Pipeline
from tests.fakes.lives import go_a_step
from tests.fakes.master import Master, MasterConnection
from tests.fakes.pipelines import NOW_US, pipeline, take
from tests.fakes.profiles import SOME
from tests.fakes.replica import NAME, Replica
from tests.fakes.tuples import MemoryTuples, MemoryWriter
from tests.fakes.workload import Workload

STEPS_OF_FIRST = ("work", "work", "relay", "receive", "commit", "commit", "flush")
INSTANCE = UUID("cccccccc-0000-4000-8000-000000000010")


class Follower:
    """A standby's core."""

    def __init__(self, master: Master, first: Replica, batch_bytes_max: int) -> None:
        self._batch_bytes_max = batch_bytes_max
        self._master = master
        self._first = first
        self.tuples = MemoryTuples()
        self.writer = MemoryWriter(self.tuples, NAME)
        self._fill()

    def _fill(self) -> None:
        """The contents of the master, and the stream from there on."""
        self._pipeline: Pipeline | None = None
        self.writer.restart()
        self._connect()
        version = self._session.greeting.version
        filling = pipeline(images=self.writer.begin((), version), version=version, on_error="dlq", on_image_error="dlq")
        self._session.fetch_snapshot()
        for batch in take(filling, self._exchange()):
            batch.position = replace(batch.position, snapshot=None)
            self._write([batch])
        self.writer.flush(is_forced=True)
        begin = filling.position
        assert begin.replicaset_uuid is not None
        self._session.subscribe(begin.replicaset_uuid, begin.vclock)
        self._begin()
        self._hold(self._exchange())

    def _connect(self) -> None:
        self._relay, self._session, self._held = MasterConnection(self._master), Session(INSTANCE), HeldBack()
        self._exchange()
        if self._session.can_identify:
            self._session.identify()
            self._exchange()
        self._session.authenticate("cdc", "secret")
        self._exchange()

    def reconnect(self) -> None:
        """The connection, or the process, begins again: from the store, if that counts."""
        self.writer = MemoryWriter(self.tuples, NAME)
        stored = self.writer.checkpoint()
        if stored.position is None or not standby_course.is_behind(self._first.topics.checkpoint().position, stored.position):
            self._fill()
            return
        self._connect()
        assert stored.position.replicaset_uuid is not None
        self._session.subscribe(stored.position.replicaset_uuid, stored.position.vclock)
        self._begin()
        self._hold(self._exchange())

    def _begin(self) -> None:
        stored, version = self.writer.checkpoint(), self._session.greeting.version
        assert stored.position is not None
        images = self.writer.begin(stored.published_forms(), version)
        self._pipeline = pipeline(
            stored.position,
            stored.spaces.values(),
            version=version,
            images=images,
            catch_up_to=replace(stored.position, vclock=ENDLESS),
            on_error="dlq",
            on_image_error="dlq",
            batch_bytes_max=self._batch_bytes_max,
        )

    def receive(self) -> None:
        """Take what the master has sent."""
        self._relay.relay()
        self._hold(self._exchange())

    def look(self) -> None:
        """Look at the first one's checkpoint, and follow up to it."""
        kafka = self._first.topics.checkpoint()
        assert kafka.position is not None
        if not standby_course.is_whole(kafka.position):
            return
        if kafka.position.rekeyed:
            return
        assert self._pipeline is not None
        for frames in self._held.take(kafka.position.vclock):
            self._write(self._pipeline.feed(frames, NOW_US))
        if not self._held.byte_count:
            self._write(self._pipeline.heartbeat(NOW_US))
        self.writer.flush(is_forced=True)
        at = standby_course.aligned(self.writer.checkpoint(), kafka)
        if at is not None:
            self.writer.adopt(at)
            self._pipeline.close()
            self._begin()
        store = self.writer.position
        assert store is not None
        assert store.snapshot is None or standby_course.is_behind(kafka.position, store)

    def _write(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            if batch.is_pause:
                continue
            assert self._pipeline is None or batch.is_catch_up, "a standby publishes nothing"
            self.writer.submit(batch)
            if batch.is_boundary:
                self.writer.mark_committed(batch.position)

    def _hold(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, StreamRows):
                self._held.put(event.frames)

    def _exchange(self) -> list[Event]:
        self._relay.receive_data(self._session.data_to_send())
        return list(self._session.receive_data(self._relay.data_to_send()))


def rows_of(tuples: MemoryTuples) -> dict[tuple[int, bytes], bytes]:
    """Rows by space and key, whatever number a space's keys begin with."""
    space_of = {number: space_id for space_id, number in numbers_in(tuples.records).items()}
    found = {}
    for key, row in tuples.rows.items():
        number = int.from_bytes(key[:4], "big")
        found[space_of.get(number, number), key[4:]] = row
    return found


@pytest.mark.parametrize("version", ["2.6", "2.11", "3.3"])
@SOME
@given(seed=st.integers(0, 2**32 - 1))
def test_the_standbys_store_is_the_first_ones(version: str, seed: int) -> None:
    rng = random.Random(seed)
    master = Master(version)
    work = Workload(master, rng, simple=True)
    work.run(15)
    first = Replica(master, images=True)
    first.connect()
    follower = Follower(master, first, rng.choice([1, 1500, 10**6]))
    for _ in range(40):
        what = rng.choice([*STEPS_OF_FIRST, "follow", "follow", "look", "look", "again"])
        if go_a_step(what, first, rng, work.run):
            continue
        match what:
            case "follow":
                follower.receive()
            case "look":
                follower.look()
            case _:
                follower.reconnect()
    for _ in range(2):
        first.relay.relay()
        first.relay.heartbeat()
        first.receive()
        first.commit()
        first.flush()
        follower.receive()
        follower.look()
        follower.look()
    assert first.tuples is not None
    ours, theirs = follower.writer.checkpoint(), first.topics.checkpoint()
    assert ours.position is not None
    assert theirs.position is not None
    assert (ours.position.vclock, theirs.position.vclock) == (VClock(master.vclock),) * 2
    assert rows_of(follower.tuples) == rows_of(first.tuples)
    shown = {space_id: (space.space_row, space.index_rows, space.schema_version) for space_id, space in ours.spaces.items()}
    assert shown == {
        space_id: (space.space_row, space.index_rows, space.schema_version) for space_id, space in theirs.spaces.items()
    }
    assert ours.position.schema_version == theirs.position.schema_version
    assert ours.position.seq <= theirs.position.seq
