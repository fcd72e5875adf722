"""What must be true at each step, judged by what Kafka's readers see and what the members wrote, never by the daemon's word.

every event is of a row that is in the log and confirmed, with the row's contents     nothing is shown early or made up
no row has two events; once readers see everything, no row below the checkpoint lacks one   exactly once
`seq` has no gap and is given once; a key's events are in its order; `before` is what was there
an ACK says no more than the coordinator has committed and the store has, and never goes back
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from cdc.kafka.hanging import FILLER_KEY
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.protocol.constants import Key, Type
from tests.fakes import wire
from tests.fakes.consumer import Consumer
from tests.fakes.fates import Contents, Expected, Fates
from tests.fakes.master import SPACE, Ack, LogRow, Row
from tests.fakes.shop import Sent
from tests.fakes.synchronous import SHARED, SynchronousMaster
from tests.simulation.brokers import Brokers, Entry, Partition
from tests.simulation.patches import ImagelessContents, MixedContents, MixedRows, PatchedRows, SourceContents, SourceRows
from tests.simulation.repeats import LastSeqs
from tests.simulation.scheduler import Process
from tests.simulation.unknown_spaces import UnknownSpaces
from tests.simulation.vinyl import SPACE_ID, VinylContents, VinylSpace, shown

NAME: Final = "shop"
CHECKPOINT: Final = f"{NAME}.checkpoint"
SIGNALS: Final = f"{NAME}.signal"
_LETTERS: Final = f"{NAME}.dlq"
_POSITION_KEY: Final = b'{"name":"shop"}'


class Judge:
    """The judge of one world."""

    def __init__(self, brokers: Brokers, master: SynchronousMaster) -> None:
        self._brokers = brokers
        self._master = master
        self._fates = Fates()
        self._contents: Contents | MixedContents | VinylContents = Contents()
        self._taken = self._published = 0
        self.expected: dict[tuple[int, int], list[Expected]] = {}
        """By origin and lsn: the events of rows that are certain."""
        self._offsets: dict[tuple[str, int], int] = {}
        self.consumer: Consumer | PatchedRows = Consumer()
        self.has_images = True
        """Whether the daemon keeps the rows."""
        self._waiting: list[Sent] = []
        self.seen: dict[tuple[int, int, int], int] = {}
        """By origin, lsn and space: events."""
        # By origin and lsn: dead letters.
        self._letters: Counter[tuple[int, int]] = Counter()
        self._seqs: dict[int, tuple[str, Any]] = {}
        self.event_count = 0
        self.decided = Position()
        """The newest position that the coordinator has decided to commit."""
        self.knows_replica_set = False
        """Whether a position has ever said which replica set is followed."""
        self.base: dict[int, int] = {}
        """Where the stream after the last snapshot began."""
        self._base_id = 0
        self._checked_seq = 0
        self._version = -1
        self._unseen: set[tuple[int, int]] = set()
        # Names and columns of spaces as of the certain part of the log, and at each row that has an event.
        self._definitions: dict[int, tuple[str, tuple[str, ...]]] = {}
        self._forms: dict[tuple[int, int, int], tuple[str, tuple[str, ...]]] = {}
        # By partition: the last event's key and operation, which a tombstone must follow.
        self._last: dict[tuple[str, int], tuple[bytes | None, str]] = {}
        # By transaction: its events, and its records BEGIN and END.
        self._events_of: Counter[str] = Counter()
        self._begun: set[str] = set()
        self._ended: dict[str, int] = {}
        self.has_transaction_topic = False
        self.signals: dict[str, list[str]] = {}
        """By signal: what the notifications say of its end."""
        # By number of a snapshot or request, and by space: the keys of its rows.
        self._rows_of: dict[tuple[str, int, str], set[str]] = {}
        # The processes that have claimed the name, with the ids by which they write checkpoints.
        self._claimed: list[tuple[Process, str]] = []
        self._writers: list[str] = [""]
        self._decided_writer = ""
        # The highest lsns that were ever committed: Kafka may lose them later.
        self._durable: dict[int, int] = {}
        self._repeats = LastSeqs()
        self._unknown = UnknownSpaces()
        # Of all that was shown, or decided and not shown yet.
        self._highest_seq = 0
        # The spaces of which the checkpoint topic has the forms: those that a daemon knows when it starts.
        self._stored: set[int] = set()
        # Spaces of which there were events.
        self._shown: set[int] = set()
        self.is_rewritten = False
        """Whether the member has lost the end of its log, and has written other rows under the lost lsns."""
        self.is_exact = True
        """Whether delivery has always been exactly_once; otherwise events may come again."""
        self.left_out: re.Pattern[str] | None = None
        """The names of spaces that weren't published for a while. In the end all are."""
        # The spaces that ever had such a name.
        self._once_left_out: set[int] = set()
        # By space: the rows that gave it a name.
        self._namings: dict[int, list[tuple[LogRow, str]]] = {}
        # Spaces that were created and have no event yet, and origin, lsn and space of the first events of the others.
        self._fresh: set[int] = set()
        self._firsts: set[tuple[int, int, int]] = set()
        # Those of them that were sent, or whose spaces a snapshot has shown since, for each consumer.
        self._shown_firsts: dict[int, set[tuple[int, int, int]]] = defaultdict(set)
        # By snapshot: the last seq before it. Its first row that is read may not be the first one that was sent.
        self._seqs_before: dict[str, int] = {}
        self.may_jump = False
        """Whether Kafka has lost checkpoints, so that numbers may be left out."""
        self.may_forget = False
        """Whether a daemon without the former one's store may abort what that one committed, and nobody has read (see
        cdc.kafka.hanging)."""

    def keep_images(self, images: str) -> None:
        """state.images, from the beginning on; mixed if it changes from one start to the next."""
        self.has_images = images == "full"
        contents: dict[str, type[Contents] | type[MixedContents]] = {
            "full": Contents,
            "none": ImagelessContents,
            "source": SourceContents,
            "mixed": MixedContents,
        }
        self._contents = contents[images]()
        consumers: dict[str, type[Consumer] | type[PatchedRows]] = {
            "full": Consumer,
            "none": PatchedRows,
            "source": SourceRows,
            "mixed": MixedRows,
        }
        self.consumer = consumers[images]()

    def watch_vinyl(self, space: VinylSpace) -> None:
        """One of the spaces is this one."""
        self._contents = VinylContents(space)

    # The members' side.

    @property
    def rows(self) -> dict[int, list[Row]]:
        """What the spaces must hold in the end."""
        if not self.is_rewritten:
            return {space_id: list(rows.values()) for space_id, rows in self._contents.rows.items()}
        master = self._master
        return {space_id: master.contents(space_id) for space_id in [SHARED, *master.spaces_of(1)]}

    @property
    def _optional(self) -> set[tuple[int, int, int]]:
        """Origin, lsn and space of rows that needn't have an event."""
        return self._contents.optional if isinstance(self._contents, MixedContents | VinylContents) else set()

    @property
    def _letters_due(self) -> dict[tuple[int, int], bool]:
        """Origin and lsn of rows that may be dead letters, and whether they must."""
        return self._contents.letters if isinstance(self._contents, VinylContents) else {}

    @property
    def knows_last_row(self) -> bool:
        """Whether the newest checkpoint has its last row, or is before the first one of a stream."""
        decided, lsn = self.decided, self.decided.vclock.get(1, 0)
        is_in_snapshot = decided.snapshot is None or not decided.snapshot.is_complete
        return is_in_snapshot or any((row.replica_id, row.lsn) == (1, lsn) for row in decided.last_rows)

    def rewrite(self) -> None:
        """The history is another one from some place on.

        Then lsns don't tell changes any more (docs/guarantees.md). What must still be true: numbers, order and images of the
        events, and that consumers and the store have the member's rows in the end.
        """
        self.is_rewritten = True
        self._taken = len(self._master.written)
        self._unknown.rewritten(dict.fromkeys([SHARED, *self._master.spaces_of(1)], self._master.vclock[1]))

    def follow_log(self) -> None:
        """Learn what the master has written."""
        written = self._master.written
        if self._taken == len(written):
            return
        if self.is_rewritten:
            for row in (row for entry in written[self._taken :] for row in entry.rows):
                self._unknown.take(row)
            self._taken = len(written)
            return
        for entry in written[self._taken :]:
            self._fates._take(entry)
        self._taken = len(written)
        fresh = self._fates.published[self._published :]
        self._published = len(self._fates.published)
        for entry in fresh:
            for row in entry.rows:
                if row.body.get(Key.SPACE_ID) == SPACE and row.kind != Type.NOP:
                    self._define(row)
                self._unknown.take(row)
                for event in self._contents._events(row):
                    self.expected.setdefault((entry.origin, event.lsn), []).append(event)
                    self._unseen.add((entry.origin, event.lsn))
                    self._forms[entry.origin, event.lsn, event.space_id] = self._definitions.get(event.space_id, ("", ()))
                    if event.space_id in self._fresh:
                        self._fresh.discard(event.space_id)
                        self._firsts.add((entry.origin, event.lsn, event.space_id))
                self._unseen |= self._letters_due.keys() & {(row.origin, row.lsn)}

    def _define(self, row: LogRow) -> None:
        """A space gets a name and columns."""
        body = row.body
        if row.kind in (Type.INSERT, Type.REPLACE):
            space_id, _, name, _, _, _, fields = body[Key.TUPLE]
            self._definitions[space_id] = name, _names(fields)
            self._fresh.add(space_id)
            self._note_name(row, space_id, name)
        elif row.kind == Type.UPDATE:
            (space_id,) = body[Key.KEY]
            name, fields = self._definitions.get(space_id, ("", ()))
            for _, place, value in body[Key.TUPLE]:
                name, fields = (value, fields) if place == 3 else (name, _names(value)) if place == 7 else (name, fields)
            self._definitions[space_id] = name, fields
            self._note_name(row, space_id, name)

    def _note_name(self, row: LogRow, space_id: int, name: str) -> None:
        self._namings.setdefault(space_id, []).append((row, name))
        if self.left_out is not None and self.left_out.fullmatch(name):
            self._once_left_out.add(space_id)

    def leave_out(self, pattern: str) -> None:
        """From some place of the log on, and for some time, spaces with such a name aren't published.

        What consumers miss meanwhile comes when they are published again. Of one that is dropped meanwhile they keep the rows.
        """
        self.left_out = re.compile(pattern)
        durable = self.decided.vclock
        for space_id, namings in self._namings.items():
            # The next process begins where this one was: a space that has another name by now may have had such a name there.
            begin = max((at for at, (row, _) in enumerate(namings) if row.lsn <= durable.get(row.origin, 0)), default=0)
            if any(self.left_out.fullmatch(name) for _, name in namings[begin:]):
                self._once_left_out.add(space_id)

    def _forgive(self, sent: Sent, consumer: Consumer | LastSeqs | PatchedRows) -> None:
        """A space that was left out is another one now, with rows of its own, and nothing has told that the first is gone.

        In vinyl an INSERT may come beside an equal key, and hide it.
        """
        if sent.op is None:
            return
        source, space_id = sent.source, sent.source["space_id"]
        if self._shows_another(source, self._shown_firsts[id(consumer)]) and space_id in self._once_left_out:
            consumer.sweep(space_id, self._seqs_before.get(source.get("snapshot_id", ""), source["seq"] - 1))
        if sent.op == "c" and space_id == SPACE_ID and isinstance(consumer, Consumer):
            consumer.rows.get(space_id, {}).pop(json.dumps(sent.key), None)

    def _shows_another(self, source: dict[str, Any], known: set[tuple[int, int, int]]) -> bool:
        """Whether an event is the first one of a space that was created anew: by its row, or by a snapshot behind that.

        `known` are those that were met already.
        """
        one = source["replica_id"], source["lsn"], source["space_id"]
        own = {first for first in self._firsts - known if first[2] == source["space_id"]}
        reached = {int(origin): lsn for origin, lsn in (source.get("vclock") or {}).items()} if one[1] is None else {}
        new = {first for first in own if first == one or first[1] <= reached.get(first[0], 0)}
        known |= new
        return bool(new)

    def decide(self, name: str) -> None:
        """The coordinator commits what this producer has written."""
        for partition in self._brokers.topics.get(CHECKPOINT, ()):
            entries = partition.entries[partition.open_from.get(name, partition.end) :]
            own = [entry for entry in entries if entry.producer == name and entry.state == "open"]
            for entry in own:
                if entry.key == _POSITION_KEY and entry.value:
                    value = json.loads(entry.value)
                    self._decided_writer = value["writer"]
                    self._note_position(Position.from_json(value))
            _store_forms(self._stored, own)

    def _note_position(self, position: Position) -> None:
        snapshot, former = position.snapshot, self.decided.snapshot
        if snapshot and snapshot.base_id != (former.base_id if former else 0):
            if not self.is_exact and former:
                # What was shown after the last checkpoint, of spaces whose forms weren't committed, is unknown to this snapshot.
                self._unknown.checkpoint_lost(self.decided, self._stored)
            self._unknown.snapshot_begun(self._highest_seq)
        is_later = position.seq >= self.decided.seq
        if snapshot is not None and (not snapshot.is_complete or snapshot.base_id != self._base_id or not is_later):
            self.base, self._base_id = dict(position.vclock), snapshot.base_id
        assert is_later or self.may_forget, f"the checkpoint's seq goes back: {position.seq} after {self.decided.seq}"
        self.decided = position
        self._highest_seq = max(self._highest_seq, position.seq)
        self.knows_replica_set |= position.replicaset_uuid is not None
        if snapshot is not None and snapshot.is_complete:
            self._unknown.snapshot_taken(snapshot.base_id, self.base)
        for origin, lsn in position.vclock.items():
            self._durable[origin] = max(lsn, self._durable.get(origin, 0))

    def acknowledged(self, ack: Ack, stored: VClock | None, *, is_standby: bool = False) -> None:
        """A member has received an ACK of a daemon whose store is there; None if it has no store.

        What a standby needs of the log depends on its store alone.
        """
        durable = self._durable
        for origin, lsn in ack.vclock.items():
            assert is_standby or lsn <= durable.get(origin, 0), f"an ACK of {origin}:{lsn}, and Kafka has {durable}"
        if stored is not None:
            for origin, lsn in ack.vclock.items():
                assert lsn <= stored.get(origin, 0), f"an ACK of {origin}:{lsn}, and the store has {stored}"

    def lost_checkpoints(self, partition: Partition) -> None:
        """Kafka has lost the newest checkpoints, and this is what is left."""
        kept = [entry for _, entry in partition.committed()]
        left = [entry.value for entry in kept if entry.key == _POSITION_KEY and entry.value]
        self._stored.clear()
        _store_forms(self._stored, kept)
        self._offsets[CHECKPOINT, 0] = partition.end
        # Whoever wrote what is left has the name again, for all that anybody can know.
        writer = json.loads(left[-1])["writer"] if left else ""
        self._writers = self._writers[: self._writers.index(writer) + 1] if writer in self._writers else [""]
        self.decided, self.may_jump = Position.from_json(json.loads(left[-1])) if left else Position(), True
        self._unknown.checkpoint_lost(self.decided, self._stored)

    def lost_writers(self) -> None:
        """Kafka has lost all checkpoints, and an operator will put back one by whoever wrote it."""
        self._writers = [""]

    def claimed(self, process: Process, writer: str, *, takes_over: bool) -> None:
        """A process claims the name: for the first time only if nobody has it, or its operator wants it to."""
        holder = self._claimed[-1][0] if self._claimed else None
        is_taken = holder is not None and holder is not process and holder.is_awake and not self._is_finding_out()
        is_first = all(other is not process for other, _ in self._claimed)
        assert takes_over or not is_taken or not is_first, f"{process.name} claims the name beside {holder and holder.name}"
        self._claimed.append((process, writer))

    def is_taken(self, process: Process) -> bool:
        """Whether readers see that the name is another's than this process's, and that one runs.

        Also that of a former daemon, if the claim of the one that was to take over was never readable before that one ended.
        """
        holders = [other for other, writer in self._claimed if writer == self._writers[-1]]
        return any(other.is_awake for other in holders if other is not process)

    def _is_finding_out(self) -> bool:
        """Whether the last one to claim the name was fenced before, and finds out that the checkpoint is another's, and ends."""
        process, writer = self._claimed[-1]
        is_last = [other is process for other, _ in self._claimed]
        return not all(is_last[is_last.index(True) :]) and self._decided_writer != writer

    def _note_writer(self, value: bytes) -> None:
        """Readers see a checkpoint. Who has once written after another one never does so after a third."""
        writer = json.loads(value)["writer"]
        if writer != self._writers[-1]:
            assert writer not in self._writers, "a process writes again under a name that it has lost"
            self._writers.append(writer)

    # The readers' side.

    def read(self) -> None:
        """Read what has become visible."""
        if self._version == self._brokers.version:
            return
        self._version = self._brokers.version
        self.follow_log()
        for topic, partitions in self._brokers.topics.items():
            if topic == f"{NAME}.schema":
                continue
            for number, partition in enumerate(partitions):
                since = self._offsets.get((topic, number), 0)
                if since >= partition.stable:
                    continue
                self._offsets[topic, number] = partition.stable
                # What the unlucky end of a hanging transaction takes from readers is there for those who heed the error.
                for _, entry in partition.committed(since, with_lost=True):
                    self._take(topic, number, entry)
        if self._waiting and self._is_quiet():
            self._apply()

    def _take(self, topic: str, number: int, entry: Entry) -> None:
        if topic == CHECKPOINT:
            if entry.key == _POSITION_KEY and entry.value is not None:
                self._note_writer(entry.value)
            return
        if topic == SIGNALS:
            return
        if topic == _LETTERS:
            if entry.value is not None:
                self._take_letter(json.loads(entry.value))
            return
        if topic == f"{NAME}.notification":
            if entry.value is not None:
                self._take_notification(json.loads(entry.value))
            return
        if entry.value is None:
            if self.is_exact and topic.startswith(f"{NAME}.space") and entry.key != FILLER_KEY:
                found = self._last.get((topic, number))
                assert found == (entry.key, "d"), f"a tombstone of {entry.key!r} on {topic} comes after {found}"
            return
        sent = Sent(topic, json.loads(entry.key) if entry.key else None, json.loads(entry.value))
        if topic == f"{NAME}.transaction":
            if not self.is_exact:
                return
            self._take_transaction(sent.value)
            return
        self._waiting.append(sent)
        if sent.op is None:
            if isinstance(sent.value, dict) and sent.value.get("status") == "STARTED":
                self._seqs_before.setdefault(sent.value["snapshot_id"], sent.value["seq"])
            return
        self._last[topic, number] = entry.key, sent.op
        source = sent.source
        seq = source["seq"]
        self._highest_seq = max(seq, self._highest_seq)
        self.event_count += 1
        self._shown.add(source["space_id"])
        identity = (source["space_id"], sent.op, json.dumps(sent.key))
        if not self.is_exact:
            if source["snapshot"] == "false":
                self._compare(sent)
            return
        if sent.op == "t":
            for one in [one for one in self._rows_of if one[1] == source["space_id"]]:
                del self._rows_of[one]  # under another primary key a space begins again
            assert self._seqs.setdefault(seq, (topic, "t")) == (topic, "t"), f"seq {seq} is given twice"
            if number:
                self._waiting.pop()
                return
        else:
            assert seq not in self._seqs, f"seq {seq} is given twice: {self._seqs[seq]} and {identity}"
            self._seqs[seq] = (topic, identity)
        if sent.op == "r":
            self._take_row(sent)
        if source["snapshot"] == "false":
            self._events_of[sent.value["transaction"]["id"]] += 1
            self._compare(sent)

    def _take_notification(self, told: dict[str, Any]) -> None:
        if told["id"] in self.signals and told["type"] in ("COMPLETED", "ABORTED", "SKIPPED"):
            ends = self.signals[told["id"]]
            ends.append(told["type"])
            assert len(ends) == 1 or not self.is_exact or self.may_jump, f"the signal {told['id']} is carried out twice: {ends}"

    def _take_letter(self, letter: dict[str, Any]) -> None:
        place = letter["replica_id"], letter["lsn"]
        assert place in self._letters_due, f"a dead letter of a row that is certain: {letter}"
        self._letters[place] += 1
        assert self._letters[place] == 1 or not self.is_exact, f"the dead letter of {place} comes twice"

    def _take_row(self, sent: Sent) -> None:
        """Each row comes once in a snapshot, and in a request."""
        source = sent.source
        keys = self._rows_of.setdefault((source["snapshot_id"], source["space_id"], source["table"]), set())
        key = json.dumps(sent.key)
        assert key not in keys, f"{key} of {source['table']!r} comes twice in the snapshot {source['snapshot_id']}"
        keys.add(key)

    def _take_transaction(self, record: dict[str, Any]) -> None:
        if self.is_rewritten:
            return
        identity = record["id"]
        # Once checkpoints are lost, all events of a transaction may have hung, and come again: its records were there before.
        if record["status"] == "BEGIN":
            assert identity not in self._begun or self.may_jump, f"the transaction {identity} begins twice"
            self._begun.add(identity)
        else:
            assert identity in self._begun, f"the transaction {identity} ends before it begins"
            assert identity not in self._ended or self.may_jump, f"the transaction {identity} ends twice"
            self._ended[identity] = record["event_count"]

    def _compare(self, sent: Sent) -> None:
        if self.is_rewritten:
            return
        source = sent.source
        origin, lsn, space_id = source["replica_id"], source["lsn"], source["space_id"]
        expected = [one for one in self.expected.get((origin, lsn), ()) if one.space_id == space_id]
        if sent.op == "t" and not expected and self.left_out is not None:
            return  # it is no longer published, or it is again
        assert expected, f"an event of {origin}:{lsn}, which isn't certain: {sent.value}"
        count = self.seen[origin, lsn, space_id] = self.seen.get((origin, lsn, space_id), 0) + 1
        assert count == 1 or not self.is_exact, f"{origin}:{lsn} has come {count} times"
        after = sent.value["after"]
        assert (sent.op, list(after.values()) if after is not None else None) in [
            (one.op, list(one.after) if one.after is not None else None) for one in expected
        ], f"{origin}:{lsn} is {expected}, and the event says {sent.op} {after}"

        name, columns = self._forms[origin, lsn, space_id]
        assert source["table"] == name, f"{origin}:{lsn} is of {name!r}, and the event says {source['table']!r}"
        for image in (after, sent.value["before"]):
            if image is not None:
                shown = [*columns, *(f"field_{place}" for place in range(len(columns) + 1, 9))][: len(image)]
                assert list(image) == shown, f"{origin}:{lsn} has the columns {shown}, and the event {list(image)}"

    def _is_quiet(self) -> bool:
        return all(partition.stable == partition.end for one in self._brokers.topics.values() for partition in one)

    def _apply(self) -> None:
        """Once all markers are there: fold in the order of `seq`, as consumers of several partitions do."""

        def place(sent: Sent) -> tuple[int, int]:
            if sent.op is not None:
                return sent.source["seq"], 0
            value = sent.value if isinstance(sent.value, dict) else {}
            if value.get("status") == "COMPLETED":
                return self._waiting_max(), 1
            return 0, 0

        ordered = sorted(self._waiting, key=place)
        self._waiting = []
        for consumer in (self.consumer, self._repeats) if self.is_exact else (self._repeats,):
            self._unknown.sweep(consumer)
            for sent in ordered:
                self._forgive(sent, consumer)
                consumer.take([sent])
            self._unknown.sweep(consumer)
        if not self.is_exact:
            self._check_complete()
            return
        newest = max(self._seqs, default=0)
        for seq in range(self._checked_seq + 1, newest + 1):
            assert seq in self._seqs or self.may_jump, f"there is no event of seq {seq}, and one of {newest}"
        self._checked_seq = newest
        self._check_complete()
        if self.has_transaction_topic and not self.may_jump and not self.is_rewritten:
            assert self._ended == dict(self._events_of), "records of transactions and their events differ"

    def _waiting_max(self) -> int:
        return max((sent.source["seq"] for sent in self._waiting if sent.op is not None), default=0)

    def _check_complete(self) -> None:
        position = self.decided
        if position.snapshot is None or not position.snapshot.is_complete or self.is_rewritten or self.left_out is not None:
            return
        covered = position.vclock
        for origin, lsn in [one for one in self._unseen if one[1] <= covered.get(one[0], 0)]:
            self._unseen.discard((origin, lsn))
            if lsn > self.base.get(origin, 0):
                is_due = self._letters_due.get((origin, lsn), False)
                assert not is_due or self._letters[origin, lsn], f"{origin}:{lsn} is below the checkpoint, and has no dead letter"
                events = self.expected.get((origin, lsn), ())
                for place in {(origin, lsn, event.space_id) for event in events} - self._optional:
                    assert place in self.seen, f"{origin}:{lsn} is below the checkpoint, and has no event"

    def has_everything(self) -> bool:
        """Whether consumers hold the master's rows."""
        self.read()
        decided = self.decided.vclock
        return (
            not self._waiting
            and self._is_quiet()
            and not (self._master.waiting if self.is_rewritten else self._fates.waiting)
            # With the checkpoints Kafka may have lost the place up to which signals were taken.
            and (self.may_jump or all(self.signals.values()))
            and all(decided.get(origin, 0) >= lsn for origin, lsn in self._master.vclock.items())
            and (not self.is_rewritten or dict(decided) == self._master.vclock)
        )

    def check_store(self, rows_of: Callable[[int], list[bytes]]) -> None:
        """The store has the rows of the log up to its position, which is the end; `rows_of` returns a space's tuples."""
        for space_id, rows in self.rows.items():
            held, wanted = sorted(rows_of(space_id)), sorted(map(wire.pack, rows))
            assert held == wanted, f"space {space_id}: the store holds {held}, and the log {wanted}"

    def check_end(self) -> None:
        """At the end consumers hold exactly what the master does, and nothing of spaces that are gone."""
        consumer = self.consumer if self.is_exact else self._repeats
        # The last snapshot may be complete since the last events came.
        self._unknown.sweep(consumer)
        for space_id in self._fresh & self._once_left_out - {space_id for space_id, rows in self.rows.items() if rows}:
            consumer.sweep(space_id, self._highest_seq)
        for space_id in self.rows.keys() | (self._shown - self._once_left_out):
            held = sorted(json.dumps(list(row.values())) for row in consumer.contents(space_id))
            wanted = sorted(json.dumps(shown(row)) for row in self.rows.get(space_id, ()))
            assert held == wanted, f"space {space_id}: consumers hold {held}, and the master {wanted}"


def _store_forms(stored: set[int], entries: Iterable[Entry]) -> None:
    """Fold records of the checkpoint topic into the ids of the spaces whose forms it has."""
    for entry in entries:
        space_id = json.loads(entry.key or b"{}").get("space_id")
        if space_id is not None:
            (stored.discard if entry.value is None else stored.add)(space_id)


def _names(fields: Sequence[Any]) -> tuple[str, ...]:
    return tuple(field["name"] if isinstance(field, dict) else field for field in fields)
