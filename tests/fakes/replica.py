"""The daemon's core against a fake master, without a socket, a clock or Kafka: Session, start, Pipeline and Ledger as the
follower joins them, and a compacted topic in memory for the checkpoint.

What is committed is what a read_committed consumer would have seen; everything else is lost by a crash. With `images`, a store
in memory follows the commits: it has what `flush` brings into it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from uuid import UUID

from cdc.daemon.start import begin
from cdc.positions.vclock import VClock
from cdc.protocol.session import Event, Registered, Selected, Session, Subscribed, Voted
from cdc.protocol.states import State
from cdc.protocol.system_spaces import CLUSTER_BY_UUID, CLUSTER_SPACE
from cdc.stream.batches.batch import Addressed, Batch, Broadcast, Message
from cdc.stream.batches.covered import Covered
from cdc.stream.batches.options import Surroundings
from cdc.stream.batches.spaces import newly_published
from cdc.stream.commits.checkpoint import Checkpoint, Writer, fold, position_record, space_record
from cdc.stream.pipeline import Pipeline
from cdc.stream.snapshots.choice import SnapshotChoice
from cdc.upstream import resume, start
from cdc.upstream.start import FollowAs, Known, StartPlan, TakeSnapshot
from tests.fakes.master import Master, MasterConnection
from tests.fakes.pipelines import NOW_US, MemorySpool, messages, options, take
from tests.fakes.tuples import MemoryTuples, MemoryWriter

NAME: Final = "shop"
INSTANCE: Final = UUID("cccccccc-0000-4000-8000-000000000009")

Cut = Callable[[bytes], Iterator[bytes]]


def at_once(data: bytes) -> Iterator[bytes]:
    """Everything in one piece."""
    if data:
        yield data


class Topics:
    """Kafka, as far as it matters here: what was committed, in order, and the records of the checkpoint by key."""

    def __init__(self) -> None:
        self.committed: list[Message | Broadcast] = []
        self.addressed: dict[int, Addressed] = {}
        """Those of them with headers, or whose partition the key doesn't decide, by their places in `committed`."""
        self._records: dict[bytes, bytes | None] = {}
        self.covered: list[Covered] = []
        """What made up for deleted topics."""

    def commit(self, batches: list[Batch]) -> None:
        """One Kafka transaction: messages and checkpoint together."""
        if not batches:
            return
        assert batches[-1].is_boundary, "a commit inside of a source transaction"
        for batch in batches:
            self.covered += batch.covered
            for part in batch.parts:
                if isinstance(part, Addressed):
                    self.addressed[len(self.committed)] = part
                if isinstance(part, tuple | Broadcast):
                    self.committed.append(part)
                else:
                    self.committed += part
            for space_id, space in batch.stored.items():
                key, value = space_record(NAME, space_id, space)
                self._records[key] = value
        key, value = position_record(NAME, batches[-1].position, Writer("writer", has_store=True), NOW_US // 1000)
        self._records[key] = value

    def checkpoint(self) -> Checkpoint:
        """What a start reads."""
        checkpoint = Checkpoint()
        for key, value in self._records.items():
            fold(NAME, key, value, checkpoint)
        return checkpoint


class Replica:
    """One daemon's core. `connect` begins a connection; `crash` ends it and forgets what isn't committed."""

    def __init__(self, master: Master, *, cut: Cut = at_once, login: tuple[str, str] = ("cdc", "secret"), **changed: Any) -> None:
        self._master = master
        self._cut = cut
        self._login = login
        self._options = changed
        self._spools: list[MemorySpool] | None = changed.pop("spools", None)
        self._chunk_bytes: int = changed.pop("chunk_bytes", 1000)
        self._is_registered: bool = changed.pop("registered", False)
        self._mode: resume.SnapshotMode = changed.pop("mode", "initial")
        self._on_gap: resume.Policy = changed.pop("on_gap", "resnapshot")
        self.tuples: MemoryTuples | None = MemoryTuples() if changed.pop("images", False) else None
        self._writer = MemoryWriter(self.tuples, NAME) if self.tuples is not None else None
        self.forced_snapshot: str | None = None
        self.has_caught_up = False
        """Whether a replica that is to be registered has just followed anonymously to where the master was."""
        self.topics = Topics()
        self.plan: StartPlan | None = None
        self.connection: MasterConnection | None = None
        self._session: Session | None = None
        self._pipeline: Pipeline | None = None
        self._unsettled: list[Batch] = []
        self._seen = 0

    @property
    def session(self) -> Session:
        """Of the connection."""
        assert self._session is not None
        return self._session

    @property
    def pipeline(self) -> Pipeline:
        """Of the connection."""
        assert self._pipeline is not None
        return self._pipeline

    @property
    def relay(self) -> MasterConnection:
        """The master's side."""
        assert self.connection is not None
        return self.connection

    @property
    def snapshot(self) -> TakeSnapshot | None:
        """The one that the connection began with, if it did."""
        assert self.plan is not None
        return self.plan.snapshot

    def connect(self) -> None:
        """Greeting, ID, AUTH, VOTE, the decision, a snapshot if it says so, SUBSCRIBE."""
        self.connection = MasterConnection(self._master)
        self._session = Session(INSTANCE)
        self.plan = None
        self._unsettled.clear()
        self._exchange()
        if self.session.can_identify:
            self.session.identify()
            self._exchange()
        self.session.authenticate(*self._login)
        self._exchange()
        self.session.vote()
        (voted,) = self._exchange()
        assert isinstance(voted, Voted)
        checkpoint = self.topics.checkpoint()
        self.plan = plan = start.plan(self._known(checkpoint), voted.ballot)
        self.forced_snapshot = None
        greeting = self.session.greeting
        spools, chunk_bytes = self._spools, self._chunk_bytes
        surroundings = Surroundings(
            options(**self._options), greeting.uuid, greeting.version, lambda: MemorySpool(spools, chunk_bytes)
        )
        self._pipeline = begin(plan, checkpoint, self._writer, surroundings)
        if plan.snapshot is not None:
            self.session.join() if plan.wants_id else self.session.fetch_snapshot()
            self._submit(self._exchange())
            self.commit()
        position = self.pipeline.position
        assert position.replicaset_uuid is not None
        follow_as = plan.follow_as(
            has_id=plan.wants_id and self._has_id(),
            vclock=position.vclock,
            master=voted.ballot.vclock,
            seconds_since_caught_up=0.0 if self.has_caught_up else math.inf,
        )
        if follow_as is FollowAs.NEW_MEMBER:
            self._register(position.vclock)
        self.has_caught_up = False
        is_anonymous = follow_as in (FollowAs.ANONYMOUS, FollowAs.BEHIND)
        self.session.subscribe(position.replicaset_uuid, position.vclock, is_anonymous=is_anonymous)
        subscribed, *rest = self._exchange()
        assert isinstance(subscribed, Subscribed)
        resume.check_replicaset(position, subscribed.replicaset_uuid)
        assert self.session.state is State.STREAMING
        for batch in self.pipeline.resume_unfinished_work(NOW_US):
            self.submit(batch)
        self._submit(rest)

    def _has_id(self) -> bool:
        self.session.select(CLUSTER_SPACE, CLUSTER_BY_UUID, [str(INSTANCE)])
        (selected,) = self._exchange()
        assert isinstance(selected, Selected)
        return bool(selected.tuples)

    def _register(self, vclock: VClock) -> None:
        """Get an id. The rows that come with it are left aside: the stream brings them again."""
        self.session.register(vclock)
        *_, registered = self._exchange()
        assert isinstance(registered, Registered)

    def _known(self, checkpoint: Checkpoint) -> Known:
        store = None
        if self._writer is not None:
            self._writer.flush(is_forced=True)
            store = self._writer.checkpoint().position
        return Known(
            checkpoint=checkpoint.position,
            has_store=self._writer is not None,
            store=store,
            newly_published=newly_published(checkpoint.spaces.values(), options(**self._options).space_filter()),
            forced=self.forced_snapshot,
            is_first_connect=True,
            mode=self._mode,
            on_gap=self._on_gap,
            wants_id=self._is_registered,
            choice=SnapshotChoice.number_of(options(**self._options)),
        )

    def flush(self) -> None:
        """What is committed comes into the store."""
        assert self._writer is not None
        position = self._writer.flush(is_forced=True)
        if position is not None:
            self.pipeline.ledger.settle(position)

    def include(self, *patterns: str) -> None:
        """The operator has other spaces published; for the next connection."""
        self._options["include"] = list(patterns)

    def receive(self) -> None:
        """Take what the master has sent."""
        self._submit(self._exchange())

    def commit(self, batch_count: int | None = None) -> bool:
        """Kafka commits what was submitted, or its first batches up to a boundary; returns whether there was anything."""
        count = len(self._unsettled) if batch_count is None else min(batch_count, len(self._unsettled))
        while 0 < count < len(self._unsettled) and not self._unsettled[count - 1].is_boundary:
            count += 1
        if not count:
            return False
        done, self._unsettled = self._unsettled[:count], self._unsettled[count:]
        self.topics.commit([batch for batch in done if not batch.is_catch_up])
        # The publisher reports each boundary, or only the last of a commit: both must do.
        if self._writer is not None:
            self._writer.mark_committed(done[-1].position)
        else:
            self.pipeline.ledger.settle(done[-1].position)
        return True

    def acknowledge(self) -> None:
        """Tell the master what is durable."""
        self.relay.receive_data(self.session.acknowledgement(self.pipeline.ledger.acknowledged, NOW_US / 1e6))

    def crash(self) -> None:
        """The process is gone."""
        self._unsettled.clear()
        if self._pipeline is not None:
            self._pipeline.close()
        if self.tuples is not None:
            self._writer = MemoryWriter(self.tuples, NAME)
        self.connection = self._session = self._pipeline = None

    @property
    def unsettled(self) -> list[Batch]:
        """Batches that were submitted and are not committed."""
        return list(self._unsettled)

    def news(self) -> list[Message | Broadcast]:
        """What was committed since the last call."""
        found = self.topics.committed[self._seen :]
        self._seen = len(self.topics.committed)
        return found

    def waiting(self) -> list[Message | Broadcast]:
        """What was submitted and is not committed."""
        return messages(self._unsettled)

    def submit(self, batch: Batch) -> None:
        """Hand a batch to the publisher."""
        if batch.is_pause:
            return
        if self._writer is not None:
            self._writer.submit(batch)
        self._unsettled.append(batch)

    def _exchange(self) -> list[Event]:
        """Hand our bytes over and take the master's."""
        if not self.relay.is_closed:
            self.relay.receive_data(self.session.data_to_send())
        return [event for piece in self._cut(self.relay.data_to_send()) for event in self.session.receive_data(piece)]

    def _submit(self, events: Iterable[Event]) -> None:
        publish = self.snapshot is None or self.snapshot.publish
        for batch in take(self.pipeline, events, publish=publish):
            self.submit(batch)
