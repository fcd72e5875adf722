"""Plays a transcript: commands on the left margin, what they came to behind `|`.

    # Comment.
    master 2.11                     a fresh master of that version; the first command
    daemon key=value …              options of the daemon: include, tombstones, transaction_topic, memory, mode, images, …
    create NAME FIELD:TYPE … [key=1,2] [sync|local]
    insert|replace NAME JSON        a row as a JSON array
    delete NAME JSON                a key
    update NAME JSON JSON           a key and operations; upsert: a row and operations
    nop, begin, commit [sync|waits], origin N, truncate|drop NAME, rename NAME NAME, format NAME FIELD:TYPE …
    alter-key NAME FIELD:TYPE …     another primary key over the same rows; fields by number
    confirm|rollback|promote|demote ORIGIN LSN
    connect                         the daemon connects, takes a snapshot if it needs one, and subscribes
    relay [N]                       the master sends its rows, or the next N of them; the daemon takes them
    heartbeat                       the master sends one
    commit-kafka [N]                what was submitted becomes durable, or its first N batches
    flush                           what is durable comes into the store of images, and may be acknowledged
    ack                             the daemon acknowledges
    crash                           the daemon loses everything that isn't in Kafka or in the store
    include PATTERN …               other spaces are published from the next connection on
    forget                          the master removes its old logs
    fail CODE KIND MESSAGE          the master sends an error packet

Shown are errors, requests of note, ACKs as the master read them, batches as they are submitted, and messages as Kafka
commits them, one a line.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from cdc.errors import CdcError, KeysChangedError
from cdc.protocol.constants import Key, Type
from cdc.stream.batches.batch import Batch
from tests.fakes.master import Master
from tests.fakes.pipelines import MemorySpool
from tests.fakes.replica import Replica
from tests.fakes.shop import Sent, read

MARK: Final = "    | "


@dataclass(slots=True)
class Step:
    """A command with its place, or a comment or an empty line (`command` is empty then)."""

    text: str
    command: list[str]


def steps(text: str) -> list[Step]:
    """The commands of a transcript, without what they came to."""
    lines = [line for line in text.splitlines() if not line.startswith(MARK.rstrip())]
    return [Step(line, [] if line.startswith("#") else shlex.split(line)) for line in lines]


def play(text: str) -> str:
    """The same transcript with what its commands come to now."""
    return played(text, Stage().do)


def played(text: str, do: Callable[..., Iterable[str]]) -> str:
    """The same transcript with what its commands come to now; `do` takes a command and its arguments."""
    lines: list[str] = []
    for step in steps(text):
        lines.append(step.text)
        if step.command:
            lines += [MARK + outcome for outcome in do(*step.command)]
    return "".join(f"{line}\n" for line in lines)


class Stage:
    """A master and a daemon, and one method per command."""

    def __init__(self) -> None:
        self._master: Master | None = None
        self._replica: Replica | None = None
        self._options: dict[str, Any] = {}
        self._acks = 0
        self._batches = 0

    @property
    def master(self) -> Master:
        """Of the first command."""
        assert self._master is not None, "a transcript begins with `master`"
        return self._master

    @property
    def replica(self) -> Replica:
        """Made when it is needed first."""
        if self._replica is None:
            self._replica = Replica(self.master, **self._options)
        return self._replica

    def do(self, name: str, *arguments: str) -> Iterator[str]:
        """Carry out one command; what it came to."""
        command: Callable[..., Iterable[str] | None] = getattr(self, "do_" + name.replace("-", "_"))
        try:
            yield from command(*arguments) or ()
        except CdcError as error:
            if isinstance(error, KeysChangedError):
                self.replica.forced_snapshot = error.message
            yield from self._submitted()
            yield f"{type(error).__name__} ({error.remedy.value}): {error}"

    # The master.

    def do_master(self, version: str) -> None:
        self._master = Master(version)

    def do_daemon(self, *options: str) -> None:
        for option in options:
            name, value = option.split("=", 1)
            self._options[{"memory": "transaction_bytes_max"}.get(name, name)] = _value(value)
        if "transaction_bytes_max" in self._options:
            self._options.update(spools=list[MemorySpool](), chunk_bytes=200)

    def do_create(self, name: str, *words: str) -> None:
        fields = [word for word in words if ":" in word]
        options = dict(word.split("=", 1) for word in words if "=" in word)
        kinds: dict[str, dict[str, Any]] = {"sync": {"is_sync": True}, "local": {"group_id": 1}}
        flags = kinds.get(words[-1], {}) if words else {}
        shaped = _fields(fields)
        parts = [int(number) - 1 for number in options.get("key", "1").split(",")]
        self.master.create_space(
            name, shaped, [(part, shaped[part]["type"] if shaped else "unsigned") for part in parts], flags=flags
        )

    def do_format(self, name: str, *fields: str) -> None:
        self.master.format(name, _fields(fields))

    def do_insert(self, name: str, row: str) -> None:
        self.master.insert(name, *json.loads(row))

    def do_replace(self, name: str, row: str) -> None:
        self.master.replace(name, *json.loads(row))

    def do_delete(self, name: str, key: str) -> None:
        self.master.delete(name, *json.loads(key))

    def do_update(self, name: str, key: str, operations: str) -> None:
        self.master.update(name, json.loads(key), *json.loads(operations))

    def do_upsert(self, name: str, row: str, operations: str) -> None:
        self.master.upsert(name, json.loads(row), *json.loads(operations))

    def do_nop(self) -> None:
        self.master.nop()

    def do_begin(self) -> None:
        self.master.begin()

    def do_commit(self, how: str = "") -> None:
        self.master.commit(is_sync=how == "sync", waits=how == "waits")

    def do_origin(self, number: str) -> None:
        self.master.origin = int(number)

    def do_truncate(self, name: str) -> None:
        self.master.truncate(name)

    def do_drop(self, name: str) -> None:
        self.master.drop(name)

    def do_rename(self, name: str, other: str) -> None:
        self.master.rename(name, other)

    def do_alter_key(self, name: str, *parts: str) -> None:
        self.master.alter_key(name, [(int(number) - 1, kind) for number, kind in (part.split(":") for part in parts)])

    def do_confirm(self, origin: str, lsn: str) -> None:
        self.master.synchro(Type.RAFT_CONFIRM, int(origin), int(lsn))

    def do_rollback(self, origin: str, lsn: str) -> None:
        self.master.synchro(Type.RAFT_ROLLBACK, int(origin), int(lsn))

    def do_promote(self, origin: str, lsn: str) -> None:
        self.master.synchro(Type.RAFT_PROMOTE, int(origin), int(lsn), term=2)

    def do_demote(self, origin: str, lsn: str) -> None:
        self.master.synchro(Type.RAFT_DEMOTE, int(origin), int(lsn), term=2)

    def do_forget(self) -> None:
        self.master.gc_vclock = self.master.vclock

    # The connection.

    def do_connect(self) -> Iterator[str]:
        self._acks = self._batches = 0
        replica = self.replica
        try:
            replica.connect()
        finally:
            if replica.plan is not None and replica.plan.snapshot is not None:
                yield f"snapshot: {replica.plan.snapshot.reason}"
            yield from map(_message, map(read, replica.news()))
        subscribed = replica.relay.subscribed or {}
        version = subscribed[Key.SERVER_VERSION]
        shown = f"{version >> 16}.{version >> 8 & 255}.{version & 255}"
        yield f"subscribed from {subscribed[Key.VCLOCK]} as {shown}, anonymous"

    def do_relay(self, count: str = "") -> Iterator[str]:
        self.replica.relay.relay(int(count) if count else None)
        self.replica.receive()
        yield from self._submitted()

    def do_heartbeat(self) -> None:
        self.replica.relay.heartbeat()
        self.replica.receive()

    def do_commit_kafka(self, count: str = "") -> Iterator[str]:
        if not self.replica.commit(int(count) if count else None):
            yield "nothing to commit"
        self._batches = len(self.replica.unsettled)
        yield from map(_message, map(read, self.replica.news()))

    def do_flush(self) -> None:
        self.replica.flush()

    def do_include(self, *patterns: str) -> None:
        self.replica.include(*patterns)

    def do_ack(self) -> Iterator[str]:
        self.replica.acknowledge()
        acks = self.replica.relay.acks
        for ack in acks[self._acks :]:
            yield f"ACK {ack.vclock} term={ack.term} vclock_sync={ack.vclock_sync} time={ack.timestamp}"
        self._acks = len(acks)

    def do_crash(self) -> Iterator[str]:
        lost = len(self.replica.waiting())
        self.replica.crash()
        self._batches = 0
        yield f"{lost} messages that were not in Kafka are lost"

    def do_fail(self, code: str, kind: str, message: str) -> None:
        self.replica.relay.fail(int(code), message, kind)
        self.replica.receive()

    def _submitted(self) -> Iterator[str]:
        batches = self.replica.unsettled
        yield from map(_batch, batches[self._batches :])
        self._batches = len(batches)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _fields(words: Iterable[str]) -> list[Any]:
    fields = []
    for word in words:
        name, kind = word.split(":", 1)
        fields.append({"name": name, "type": kind.rstrip("?")} | ({"is_nullable": True} if kind.endswith("?") else {}))
    return fields


def _batch(batch: Batch) -> str:
    place = f"up to {batch.position.vclock}" if batch.is_boundary else "within a transaction"
    return f"batch of {batch.row_count} rows, {batch.event_count} events, {place}"


def _message(sent: Sent) -> str:
    topic = sent.topic.removeprefix("shop.")
    if sent.value is None:
        return f"{topic} {_json(sent.key)} tombstone"
    if sent.op is None:
        return f"{topic} {_json(sent.key)} {_control(sent.value)}"
    parts = ("before", "after", "patch", "upsert")
    content = " ".join(f"{name}={_json(sent.value[name])}" for name in parts if sent.value.get(name))
    source, order = sent.source, sent.value["transaction"]
    where = f"seq={source['seq']} v{source['schema_version']}"
    if order is None:
        where += f" snapshot {source['snapshot_id']}"
    else:
        where += f" {source['replica_id']}:{source['lsn']} row {source['row']} of {order['id']}"
        where += f", {order['total_order']} and {order['data_collection_order']}, at {_json(source['vclock'])}"
    target = "every partition" if sent.is_broadcast else _json(sent.key)
    return " ".join(part for part in (topic, sent.op, target, content, where) if part)


def _control(value: dict[str, Any]) -> str:
    if "tableChanges" in value:
        (change,) = value["tableChanges"]
        table = change["table"]
        columns = [f"{item['name']}:{item['typeName']}{'?' * item['optional']}" for item in table["columns"]] if table else []
        previous = f" was {change['previousId']}" if "previousId" in change else ""
        key = f" key {','.join(table['primaryKeyColumnNames'])}" if table else ""
        return f"{change['type']} {change['id']}{previous} {' '.join(columns)}{key}".rstrip()
    if value.get("status") in ("STARTED", "COMPLETED"):
        return f"{value['status']} at {_json(value['vclock'])} seq={value['seq']} {_json(value.get('spaces', ''))}".removesuffix(
            ' ""'
        )
    if "status" in value:
        counts = ", ".join(f"{item['event_count']} of {item['data_collection']}" for item in value["data_collections"] or ())
        return f"{value['status']} {counts}".rstrip()
    return _json({name: value[name] for name in ("error", "type", "space_id")})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
