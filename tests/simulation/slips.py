"""Deliberate bugs, one in each place where a mistake would hurt most: the simulation is worth what it finds of them.

Each is put into the product for one run of seeds, and taken out again. `test_slips.py` counts the seeds until the judge, or an
assertion of the product, notices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

from cdc.daemon import admission, start
from cdc.daemon.standby_store import StandbyStore
from cdc.errors import Remedy
from cdc.events.envelope import SpaceCount
from cdc.images.notations import KeyNotation
from cdc.images.overlay import Images
from cdc.images.source_images import SourceImages
from cdc.kafka import readability
from cdc.kafka.first_writes import FirstWrites
from cdc.kafka.publisher import Publisher
from cdc.kafka.readers_view import ReadersView
from cdc.kafka.sender import Sender
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.protocol import failure
from cdc.protocol.constants import ErrorCode
from cdc.schema.tracker import SchemaTracker
from cdc.sources.connection import Connection
from cdc.store.writer import StateWriter
from cdc.stream.catch_up import CatchUp
from cdc.stream.commits import checkpoint, standby
from cdc.stream.commits.ownership import SIGN_SECONDS
from cdc.stream.fragments import EventFragments
from cdc.stream.ledger import Ledger
from cdc.stream.snapshots import snapshot
from cdc.stream.transactions import limbo
from cdc.stream.transactions.transaction_buffer import TransactionQueue
from cdc.upstream import start as upstream_start
from tests.simulation.faults import Fault
from tests.simulation.standbys import Pair
from tests.simulation.world import World, run_seed


@dataclass(frozen=True)
class Slip:
    """A bug, and the seeds within which it must be found. Some concern the Python row path alone."""

    name: str
    put_in: Callable[[], Any]
    seed_count: int
    is_python: bool = False
    kinds: tuple[str, ...] = ()
    """Faults without which it has no effect: they are drawn more often."""
    faults: tuple[Fault, ...] = ()
    """Those that must follow each other closely, if the drawn ones seldom do."""
    is_exact: bool | None = None
    """Whether it concerns exactly_once delivery, or the other one, alone."""
    images: str = ""
    """state.images, if it concerns one alone."""
    is_pair: bool = False
    """Whether it concerns two machines, with a standby on one of them."""
    has_vinyl: bool = False
    """Whether it concerns a space in vinyl."""


def _early_ack() -> Any:
    """The ACK says what was handed to the publisher, not what is durable."""
    return patch.object(Ledger, "acknowledged", property(lambda self: self.published))


@contextmanager
def _early_settle() -> Iterator[None]:
    """What Kafka has is settled, and the store is written later."""
    flush, told = StateWriter.flush, set[int]()

    def slip(self: StateWriter, *, is_forced: bool = False, is_at_once: bool = False) -> Any:
        if self._committed and not is_forced and not is_at_once:
            position = self._committed[-1].position
            if position.seq not in told:
                told.add(position.seq)
                return position
            return None
        found = flush(self, is_forced=is_forced, is_at_once=is_at_once)
        return None if found is not None and found.seq in told else found

    with patch.object(StateWriter, "flush", slip):
        yield


@contextmanager
def _other_owner() -> Iterator[None]:
    """A CONFIRM counts for whoever wrote it, whomever it names."""
    checked = limbo._checked

    def slip(kind: int, body: Any, transaction: Any) -> tuple[int, int]:
        _, lsn = checked(kind, body, transaction)
        return transaction.replica_id, lsn

    with patch.object(limbo, "_checked", slip):
        yield


@contextmanager
def _lost_marker() -> Iterator[None]:
    """A commit that was answered is taken for one that readers see."""
    with (
        patch.object(readability.Readability, "is_seen", property(lambda _: True)),
        patch.object(ReadersView, "still_open", lambda _: {}),
    ):
        yield


@contextmanager
def _late_schema() -> Iterator[None]:
    """A space's new form counts from the row after the next one on."""
    apply, kept = SchemaTracker.apply, dict[SchemaTracker, tuple[int, Any]]()

    def slip(self: SchemaTracker, kind: int, body: Any) -> Any:
        before = kept.pop(self, None)
        if before is not None:
            apply(self, *before)
        if body.get(0x10) == 280 and kind == 4:  # an UPDATE of _space
            kept[self] = kind, body
            return None
        return apply(self, kind, body)

    with patch.object(SchemaTracker, "apply", slip):
        yield


@contextmanager
def _kept_overlay() -> Iterator[None]:
    """After an abort, the images still have what was thrown away."""
    begin = StateWriter.begin

    def slip(self: StateWriter, kept: Any, version: Any) -> Images:
        former = self._images
        found = begin(self, kept, version)
        if former is not None and former._store is self.store:
            self._images = former
            return former
        return found

    with patch.object(StateWriter, "begin", slip):
        yield


@contextmanager
def _repeated_begin() -> Iterator[None]:
    """A transaction of several spaces begins once for each."""
    records = EventFragments.records

    def slip(self: EventFragments, schema: SchemaTracker) -> list[tuple[bytes, bytes]]:
        begin, end = records(self, schema)
        return [begin] * len(self.orders) + [end]

    with patch.object(EventFragments, "records", slip):
        yield


@contextmanager
def _off_by_one() -> Iterator[None]:
    """The catch-up takes one transaction too many for one that is published."""
    covers, reached = CatchUp.covers, set[CatchUp]()

    def slip_covers(self: CatchUp, transaction: Any) -> bool:
        return self in reached or covers(self, transaction)

    def slip_apply(self: CatchUp, transaction: Any, suffix: bytes) -> Any:
        for _ in self._events.fill(transaction, suffix):
            self._changes.extend(self._images.take())
            self._builder.forget_messages()
        yield from self._rekey(transaction)
        if self in reached:
            yield self._end()
            return True
        if VClock(self._events.vclock) == self.until.vclock:
            reached.add(self)
        yield self.take_batch()
        return False

    with patch.object(CatchUp, "covers", slip_covers), patch.object(CatchUp, "apply", slip_apply):
        yield


@contextmanager
def _ignored_fencing() -> Iterator[None]:
    """A daemon that was fenced claims the name again, whoever has it."""
    start = Publisher.start

    def slip(self: Publisher, **more: Any) -> Any:
        return start(self, **{**more, "expected_writers": ()})

    with patch.object(Publisher, "start", slip):
        yield


@contextmanager
def _uncut_spool() -> Iterator[None]:
    """After a rollback, the spool's file goes on behind what was dropped."""
    cut = TransactionQueue._cut

    def slip(self: TransactionQueue, file: Any, lsn: int) -> int | None:
        found = cut(self, file, lsn)
        file.is_full = False
        return found

    with patch.object(TransactionQueue, "_cut", slip):
        yield


@contextmanager
def _early_tombstone() -> Iterator[None]:
    """A tombstone goes out before the event of its DELETE."""
    send = Sender.send

    def slip(self: Sender, parts: list[Any], topics: Any) -> None:
        messages: list[Any] = []
        for part in parts:
            messages += [part] if isinstance(part, tuple) or not hasattr(part, "__len__") else list(part)
        for place in range(1, len(messages)):
            one, other = messages[place - 1 : place + 1]
            if isinstance(one, tuple) and isinstance(other, tuple) and other[2] is None and one[:2] == other[:2]:
                messages[place - 1 : place + 1] = [other, one]
        send(self, messages, topics)

    with patch.object(Sender, "send", slip):
        yield


def _deaf_second() -> Any:
    """A second daemon of the name doesn't listen for the first."""
    return patch.object(admission, "check_alone", lambda *_: None)


@contextmanager
def _hasty_standby() -> Iterator[None]:
    """A standby takes a daemon for gone of which it has heard nothing for the time between two signs."""
    with (
        patch.object(standby, "SILENT_SECONDS", SIGN_SECONDS * 0.6),
        patch.object(standby, "SILENCE_SECONDS", SIGN_SECONDS * 0.6),
    ):
        yield


def _unheard_outage() -> Any:
    """A silence that Kafka keeps counts as one of the daemon's."""
    return patch.object(standby.Vigil, "record_outage", lambda *_: None)


def _storeless_standby() -> Any:
    """A standby claims the name whatever its store holds."""
    return patch.object(StandbyStore, "is_startable", property(lambda _: True))


def _early_standby_ack() -> Any:
    """A standby's ACK says what Kafka has, not what its store has."""

    def slip(self: StandbyStore, connection: Connection) -> None:
        position = self._tail.checkpoint.position
        assert position is not None
        connection.send_bytes(connection.session.acknowledgement(position.vclock))

    return patch.object(StandbyStore, "_acknowledge", slip)


def _crowded_first() -> Any:
    """The first message for a partition isn't sent alone."""
    return patch.object(FirstWrites, "unacknowledged_topics", lambda *_: set())


def _unawaited_former() -> Any:
    """With at_least_once delivery, a take-over doesn't wait for the end of the daemon that had the name."""
    return patch.object(admission.Former, "await_end", lambda *_: None)


def _awaited_for_good() -> Any:
    """A batch that was made, and not handed over as the connection broke meanwhile, is waited for."""
    return patch.object(Ledger, "withdraw", lambda *_: None)


def _unrecorded_wait() -> Any:
    """A daemon that ended while it waited for the former one's end leaves no word of that."""
    record = checkpoint.position_record

    def slip(name: str, position: Position, writer: checkpoint.Writer, now_ms: int) -> tuple[bytes, bytes]:
        return record(name, position, replace(writer, awaits_former=False), now_ms)

    return patch.object(checkpoint, "position_record", slip)


def _unswept_rows() -> Any:
    """A snapshot that is compared with nothing doesn't tell which rows are gone."""
    return patch.object(snapshot, "SpaceCount", lambda name, space_id, rows, _: SpaceCount(name, space_id, rows, 0))


def _unnoticed_spaces() -> Any:
    """A space that is published again comes without the rows that it got meanwhile."""
    return patch.object(start, "newly_published", lambda *_: ())


def _lost_old_tuple() -> Any:
    """A DELETE's old tuple in the log isn't looked at."""
    return patch.object(SourceImages, "_delete", lambda self, body, frame: self._delete_by_key(body, frame))


def _former_connection() -> Any:
    """A connection that the member still has of this daemon counts as a mistake of the configuration."""
    return patch.dict(failure._HINTS, {ErrorCode.CFG: (Remedy.OPERATOR, "")})


def _open_connection() -> Any:
    """A connection isn't closed when the next one is made."""
    return patch.object(Connection, "close", lambda _: None)


@contextmanager
def _older_store() -> Iterator[None]:
    """A store that is behind the checkpoint is taken for one that has its rows."""
    compare, Store = upstream_start._compare, upstream_start._Store  # noqa: N806 - a class

    def slip(known: Any) -> Any:
        store, reason = compare(known)
        return (Store.LEVEL if store is Store.BEHIND else store), reason

    with patch.object(upstream_start, "_compare", slip):
        yield


def _one_notation() -> Any:
    """A request of vinyl that writes its key in another way is taken for one that has found its row."""
    return patch.object(KeyNotation, "is_same", lambda *_: True)


_SWITCHES: Final = tuple(Fault(at / 4, "images switched", 0.1) for at in range(1, 9))
_LIES: Final = Fault(0.4, "disk lies", 0.6), Fault(1.6, "disk lies", 0.3)
_OUTAGES: Final = tuple(Fault(at, "kafka away", 4.0) for at in range(4, 60, 8))
_SLOW_TAKE_OVER: Final = Fault(0.6, "messages slow", 20.0), Fault(0.8, "take-over", 1.0)

SLIPS: Final = (
    Slip("an ACK too early", _early_ack, 5),
    Slip("a settle before the store", _early_settle, 5),
    Slip("a CONFIRM of another owner", _other_owner, 10, is_python=True),
    Slip("a marker lost", _lost_marker, 40, kinds=("markers left out",)),
    Slip("a schema applied a row too late", _late_schema, 40, is_python=True),
    Slip("an overlay not dropped on abort", _kept_overlay, 30, kinds=("messages refused",)),
    Slip("a repeated BEGIN", _repeated_begin, 20, is_python=True),
    Slip("an off-by-one in catch-up", _off_by_one, 30, is_python=True, kinds=("kill",)),
    Slip("a fencing ignored", _ignored_fencing, 60, kinds=("take-over",)),
    Slip("a spool not truncated", _uncut_spool, 80, is_python=True),
    Slip("a tombstone before its delete", _early_tombstone, 5),
    Slip("a second daemon that doesn't listen", _deaf_second, 60, kinds=("second daemon",)),
    Slip("a standby that starts too soon", _hasty_standby, 10, is_pair=True),
    Slip("an outage taken for silence", _unheard_outage, 10, is_pair=True, faults=_OUTAGES),
    Slip("a standby without a store", _storeless_standby, 20, is_pair=True, is_exact=True, kinds=("kill", "stop")),
    Slip("a standby's ACK too early", _early_standby_ack, 10, is_pair=True),
    Slip("rows that aren't swept", _unswept_rows, 60, kinds=("logs dropped",), is_exact=True, images="none"),
    Slip("spaces published again", _unnoticed_spaces, 20, images="full", kinds=("spaces left out",)),
    Slip("an old tuple that is lost", _lost_old_tuple, 5, is_exact=True, images="source"),
    Slip("first messages that aren't alone", _crowded_first, 5),
    Slip("a former connection taken for a mistake", _former_connection, 80, kinds=("connections live on", "network cut")),
    Slip("a connection that stays open", _open_connection, 40, kinds=("messages refused", "answers lost")),
    Slip("an older store taken for the newest", _older_store, 20, images="full", is_exact=True, faults=_LIES),
    Slip("images that come back as they were", _older_store, 20, is_exact=True, faults=_SWITCHES),
    Slip("a key found in any notation", _one_notation, 5, images="full", has_vinyl=True),
    Slip("a batch that nobody has", _awaited_for_good, 150, kinds=("network cut", "member away", "messages slow")),
    Slip("a former daemon that isn't awaited", _unawaited_former, 20, is_exact=False, faults=_SLOW_TAKE_OVER),
    Slip("a wait that isn't recorded", _unrecorded_wait, 20, is_exact=False, faults=(*_SLOW_TAKE_OVER, Fault(1.2, "kill", 0.1))),
)


def seeds_until_found(slip: Slip) -> tuple[int, str] | None:
    """Return after how many seeds the bug is found, and how it shows; None if it isn't."""

    def change(world: World) -> None:
        world.is_python = world.is_python or slip.is_python
        if slip.is_exact is not None:
            world.deliver(is_exact=slip.is_exact)
        if slip.images:
            world.keep_images(slip.images)
            world.workload.alters_keys &= slip.images == "full"
        world.pair = Pair(world) if slip.is_pair else None
        if slip.has_vinyl and world.vinyl is None:
            world.add_vinyl()

    for seed in range(1, slip.seed_count + 1):
        planned: dict[str, Any] = {"faults": list(slip.faults), "rounds": 60} if slip.faults else {}
        with slip.put_in():
            result = run_seed(seed, change, weights=dict.fromkeys(slip.kinds, 20.0), **planned)
        if result.failure is not None:
            return seed, str(result.failure)
    return None
