"""Avro and a registry between a real master and a real broker: what consumers read is the master, whatever the registry does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from cdc.formats.options import Format
from cdc.local.registry import Registry
from tests.fakes.registry import FakeRegistry
from tests.formats.oracles import read_with
from tests.formats.test_events import connect_payload
from tests.live.daemon import DaemonProcess
from tests.live.scene import Scene
from tests.live.topics import Record, TopicReader
from tests.live.waiting import wait_for

SPACE = """
local space = box.schema.space.create('users', {format = {{'id', 'unsigned'}, {'name', 'string'},
    {name = 'score', type = 'number', is_nullable = true}}})
space:create_index('primary')
"""
WORK = """
local first, count = ...
math.randomseed(first)
local space = box.space.users
for number = first, first + count - 1 do
    local id, what = math.random(40), math.random(5)
    if what == 1 then space:delete(id)
    elseif what == 2 then space:update(id, {{'=', 2, 'updated ' .. number}})
    elseif what == 3 then space:upsert({id, 'upserted'}, {{'=', 2, 'upserted ' .. number}})
    elseif what == 4 then space:replace({id, 'longer ' .. number, 1, unpack({'a', 'b', 'c', 'd', 'e', 'f'}, 1, number % 7)})
    else space:replace({id, 'replaced ' .. number, math.random(100) / 4}) end
end
"""
ADD_FIELD = """
local format = box.space.users:format()
table.insert(format, {name = 'new_' .. #format, type = 'string', is_nullable = true})
box.space.users:format(format)
"""
ROWS = "local rows = {} for _, row in box.space.users:pairs() do table.insert(rows, row) end return rows"


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry(first_id=100) as started:
        yield started


def in_avro(scene: Scene, url: str, **registry: Any) -> None:
    scene.daemon.settings["format"] = {"key": "avro", "value": "avro", "registry": {"url": url, **registry}}
    scene.daemon.settings["kafka"]["stalled_after_ms"] = 2_000


def records(scene: Scene, prefix: str | None = None) -> list[Record]:
    """Those of the space, in the order of each partition."""
    with TopicReader(scene.kafka.bootstrap_servers, prefix or scene.prefix, only="users") as reader:
        return reader.below(reader.look_at_rest())


class FakesReader:
    """Reads with the schemas of the registry in this process."""

    def __init__(self, registry: FakeRegistry) -> None:
        self._registry = registry

    def __call__(self, data: bytes) -> Any:
        return read_with(self._registry.schema(int.from_bytes(data[1:5], "big")), data[5:])


@dataclass
class Follower:
    """A daemon with one way to publish, beside others at the same master, and a reader of what it publishes."""

    value: Format
    envelope: str = "debezium"
    delivery: str = "exactly_once"
    is_pure: bool = False
    has_real_registry: bool = False

    @property
    def prefix(self) -> str:
        return f"{self.value}-{self.envelope}-{self.delivery}-{'real' if self.has_real_registry else 'fake'}".replace("_", "-")

    def daemon(self, scene: Scene, url: str) -> DaemonProcess:
        """Its daemon, not started yet."""
        chosen: dict[str, Any] = {"key": self.value, "value": self.value, "envelope": self.envelope}
        if self.value != "json_schema":
            chosen |= {"registry": {"url": url}}
        prefix = f"{scene.prefix}-{self.prefix}"
        daemon = scene.new_daemon(prefix, kafka={"topic_prefix": prefix, "delivery": self.delivery}, format=chosen)
        if self.is_pure:  # the ordinary row path isn't named, so that its daemon can be forked
            daemon.environment["TARANTOOL_CDC_PURE"] = "1"
        return daemon

    def check(self, scene: Scene, read: Any) -> int:
        """Hold what `check` holds of its events."""
        prefix = f"{scene.prefix}-{self.prefix}"
        may_repeat = self.delivery == "at_least_once"
        return check(scene, read, prefix=prefix, is_flat=self.envelope == "flat", may_repeat=may_repeat)


def check(scene: Scene, read: Any, *, prefix: str | None = None, is_flat: bool = False, may_repeat: bool = False) -> int:
    """The events are whole and in order, and their fold is the master's contents. Returns the number of events."""
    by_seq: dict[int, tuple[Any, Any]] = {}
    found = [(read(record.key), read(record.value)) for record in records(scene, prefix) if record.key and record.value]
    for key, event in found:
        seq = int(event["__source_seq"] if is_flat else event["source"]["seq"])
        assert may_repeat or seq not in by_seq
        by_seq[seq] = key, event
    assert sorted(by_seq) == list(range(1, len(by_seq) + 1))
    rows: dict[int, dict[str, Any]] = {}
    for _, (key, event) in sorted(by_seq.items()):
        before, after = rows.get(key["id"]), event
        if is_flat:
            after = None if event["__deleted"] == "true" else event
        else:
            after = event["after"]
            # By name, as the form may be another one since; of the fields in all forms.
            assert _common(event["before"]) == _common(before)
        if after is None:
            rows.pop(key["id"])
        else:
            rows[key["id"]] = after
    master = {row[0]: _shown(row) for row in _rows(scene)}
    assert {key: [row["id"], row["name"], row["score"]] for key, row in rows.items()} == master
    assert rows
    return len(by_seq)


def _shown(row: list[Any]) -> list[Any]:
    return [row[0], row[1], json.dumps(row[2]) if len(row) > 2 and row[2] is not None else None]


def _common(row: dict[str, Any] | None) -> list[Any] | None:
    return None if row is None else [row["id"], row["name"], row["score"]]


def _rows(scene: Scene) -> list[list[Any]]:
    (rows,) = scene.tarantool.eval(ROWS)
    return [list(row) for row in rows]


def waits(scene: Scene, reason: str) -> dict[str, Any]:
    """Wait until rows wait for the registry for this reason."""
    return scene.daemon.wait_until(
        f"rows wait: {reason}", lambda status: status["registry"] is not None and status["registry"]["reason"] == reason
    )


def waits_for_one_of(scene: Scene, subjects: set[str]) -> dict[str, Any]:
    """Wait until rows wait for one of these subjects, which the registry lacks."""
    what = f"rows wait for one of {subjects}"
    status = scene.daemon.wait_until(
        what, lambda status: status["registry"] is not None and status["registry"]["subject"] in subjects
    )
    assert status["registry"]["reason"] == "missing"
    found: dict[str, Any] = status["registry"]
    return found


FOLLOWERS: Final = (
    Follower("avro", has_real_registry=True),
    Follower("avro", delivery="at_least_once", is_pure=True),
    Follower("protobuf"),
    Follower("json_schema_registry"),
    Follower("json_schema"),
    Follower("avro", envelope="flat"),
    Follower("protobuf", envelope="flat", delivery="at_least_once"),
)


def test_what_consumers_read_is_the_master_in_every_format(scene: Scene, fake: FakeRegistry, registry: Registry) -> None:
    """Under DDL and kills; what is in Apicurio's registry is read by the deserializer of Confluent's."""
    fake.compatibility = "NONE"
    scene.tarantool.eval(SPACE)
    daemons = [one.daemon(scene, registry.url if one.has_real_registry else fake.url) for one in FOLLOWERS]
    for daemon in daemons:
        daemon.start()
    for daemon in daemons:
        daemon.wait_until_streaming()
    for turn in range(2):
        scene.tarantool.eval(WORK, turn * 1000 + 1, 100)
        scene.tarantool.eval(ADD_FIELD)
        scene.tarantool.eval(WORK, turn * 1000 + 500, 40)
        for daemon in daemons:
            daemon.restart_killed()
        for daemon in daemons:
            daemon.wait_until_streaming()
    scene.tarantool.eval(WORK, 3000, 40)
    for daemon in daemons:
        daemon.wait_until_caught_up(scene.tarantool.vclock())
    for follower in FOLLOWERS:
        if follower.has_real_registry:
            with SchemaRegistryClient({"url": registry.url}) as client:
                topic = f"{scene.prefix}-{follower.prefix}.users"
                deserializer, context = AvroDeserializer(client), SerializationContext(topic, MessageField.VALUE)
                assert follower.check(scene, partial(deserializer, ctx=context)) > 150
                assert len(client.get_versions(f"{topic}-value")) >= 4
        else:
            assert follower.check(scene, connect_payload if follower.value == "json_schema" else FakesReader(fake)) > 150


@pytest.mark.one_of_these("rows that wait for the registry")
def test_rows_wait_only_for_new_schemas(scene: Scene, fake: FakeRegistry) -> None:
    """A registry that answers slowly, that is away, and that comes back without its data."""
    in_avro(scene, fake.url)
    fake.delay_seconds = 0.2
    scene.tarantool.eval(SPACE)
    scene.daemon.start()
    scene.tarantool.eval(WORK, 1, 50)
    scene.catch_up()
    fake.delay_seconds = 60.0
    scene.tarantool.eval(WORK, 100, 50)
    scene.catch_up()
    fake.delay_seconds = 0.0

    fake.stop()
    scene.tarantool.eval(ADD_FIELD)
    scene.tarantool.eval(WORK, 200, 50)
    status = waits(scene, "away")
    assert status["registry"]["subject"] == f"{scene.prefix}.users-value"
    status = scene.daemon.wait_until("it is a stall", lambda status: status["state"] == "stalled")
    assert "Rows have been waiting for the registry of schemas" in status["error"]
    assert not scene.daemon.is_ready()
    # The master still gets ACKs: its relay hasn't been idle for longer than the interval.
    relay = "local r = box.info.replication_anon or {} return box.info.replication_anon and box.info.replication_anon.count or 0"
    assert scene.tarantool.eval(relay) == [1]
    fake.start()
    scene.catch_up()
    check(scene, FakesReader(fake))
    assert scene.daemon.is_ready()

    status = scene.daemon.wait_until_streaming()
    ids = {record.value[1:5] for record in records(scene) if record.value}
    fake.forget(next_id=900)
    wait_for("the daemon to register again", lambda: fake.subjects.get(f"{scene.prefix}.users-value"))
    reconnects = status["upstream"]["reconnects"]
    scene.daemon.wait_until("it has reconnected", lambda status: status["upstream"]["reconnects"] > reconnects)
    scene.tarantool.eval(WORK, 300, 50)
    scene.catch_up()
    # One per length of the rows past the format, too.
    newer = {record.value[1:5] for record in records(scene) if record.value} - ids
    assert newer
    assert all(int.from_bytes(number, "big") >= 900 for number in newer)


@pytest.mark.one_of_these("rows that wait for the registry")
def test_rows_wait_while_the_registry_refuses(scene: Scene, fake: FakeRegistry) -> None:
    in_avro(scene, fake.url)
    scene.tarantool.eval(SPACE)
    scene.daemon.start()
    scene.tarantool.eval(WORK, 1, 50)
    scene.catch_up()
    scene.tarantool.eval(
        "box.space.users:truncate() local f = box.space.users:format() f[2].type = 'unsigned' box.space.users:format(f) "
        "box.space.users:insert({1, 7})"
    )
    status = waits(scene, "incompatible")
    assert "isn't compatible with its latest version" in status["registry"]["message"]
    scene.daemon.restart_killed()
    waits(scene, "incompatible")
    assert scene.daemon.terminate() == 0, "it can be stopped meanwhile"
    scene.daemon.start()
    waits(scene, "incompatible")
    fake.compatibility = "NONE"
    scene.catch_up()
    values = [FakesReader(fake)(record.value) for record in records(scene) if record.value]
    newest = max(values, key=lambda value: int(value["source"]["seq"]))
    assert newest["after"] == {"id": 1, "name": 7, "score": None}


def test_a_schema_that_must_be_there(scene: Scene, fake: FakeRegistry) -> None:
    in_avro(scene, fake.url, auto_register=False)
    scene.tarantool.eval(SPACE)
    # No rows past the format, for which the schema would have to be there, too.
    scene.tarantool.eval("for id = 1, 20 do box.space.users:insert({id, 'there', id / 4}) end")
    scene.daemon.start()
    wanted = {f"{scene.prefix}.users-{kind}" for kind in ("key", "value")}
    while wanted:
        status = waits_for_one_of(scene, wanted)
        fake.register(status["subject"], status["schema"])
        wanted.remove(status["subject"])
    scene.catch_up()
    check(scene, FakesReader(fake))
