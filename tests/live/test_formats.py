"""Avro and a registry between a real master and a real broker: what consumers read is the master, whatever the registry does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from cdc.local.registry import Registry
from tests.fakes.registry import FakeRegistry
from tests.formats.oracles import read_with
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


def records(scene: Scene) -> list[Record]:
    """Those of the space, in the order of each partition."""
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix, only="users") as reader:
        return reader.below(reader.look_at_rest())


class FakesReader:
    """Reads with the schemas of the registry in this process."""

    def __init__(self, registry: FakeRegistry) -> None:
        self._registry = registry

    def __call__(self, data: bytes) -> Any:
        return read_with(self._registry.schema(int.from_bytes(data[1:5], "big")), data[5:])


def check(scene: Scene, read: Any, *, is_flat: bool = False, may_repeat: bool = False) -> int:
    """The events are whole and in order, and their fold is the master's contents. Returns the number of events."""
    by_seq: dict[int, tuple[Any, Any]] = {}
    found = [(read(record.key), read(record.value)) for record in records(scene) if record.key is not None and record.value]
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


def test_what_consumers_read_is_the_master(scene: Scene, registry: Registry) -> None:
    """Under DDL and kills, read by the deserializer of the registry's own maker."""
    in_avro(scene, registry.url)
    scene.tarantool.eval(SPACE)
    scene.daemon.start()
    for turn in range(3):
        scene.daemon.wait_until_streaming()
        scene.tarantool.eval(WORK, turn * 1000 + 1, 300)
        scene.tarantool.eval(ADD_FIELD)
        scene.tarantool.eval(WORK, turn * 1000 + 500, 200)
        scene.daemon.restart_killed()
    scene.catch_up()
    with SchemaRegistryClient({"url": registry.url}) as client:
        deserializer = AvroDeserializer(client)
        context = SerializationContext(f"{scene.prefix}.users", MessageField.VALUE)
        assert check(scene, lambda data: deserializer(data, context)) > 500
        assert len(client.get_versions(f"{scene.prefix}.users-value")) >= 4


@pytest.mark.parametrize(
    ("value", "envelope", "delivery", "is_pure"),
    [
        ("avro", "debezium", "at_least_once", True),
        ("protobuf", "debezium", "exactly_once", False),
        ("json_schema_registry", "debezium", "exactly_once", False),
        ("avro", "flat", "exactly_once", False),
        ("protobuf", "flat", "at_least_once", False),
    ],
)
def test_what_consumers_read_is_the_master_in_every_format(
    scene: Scene, fake: FakeRegistry, value: str, envelope: str, delivery: str, is_pure: bool
) -> None:
    in_avro(scene, fake.url)
    fake.compatibility = "NONE"
    scene.daemon.settings["format"] |= {"key": value, "value": value, "envelope": envelope}
    scene.daemon.settings["kafka"]["delivery"] = delivery
    scene.daemon.environment["TARANTOOL_CDC_PURE"] = "1" if is_pure else "0"
    scene.tarantool.eval(SPACE)
    scene.daemon.start()
    for turn in range(2):
        scene.daemon.wait_until_streaming()
        scene.tarantool.eval(WORK, turn * 1000 + 1, 200)
        scene.tarantool.eval(ADD_FIELD)
        scene.tarantool.eval(WORK, turn * 1000 + 500, 100)
        scene.daemon.restart_killed()
    scene.catch_up()
    check(scene, FakesReader(fake), is_flat=envelope == "flat", may_repeat=delivery == "at_least_once")


def test_rows_wait_while_the_registry_is_away(scene: Scene, fake: FakeRegistry) -> None:
    in_avro(scene, fake.url)
    scene.tarantool.eval(SPACE)
    scene.daemon.start()
    scene.tarantool.eval(WORK, 1, 50)
    scene.catch_up()
    fake.stop()
    scene.tarantool.eval(ADD_FIELD)
    scene.tarantool.eval(WORK, 100, 50)
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


def test_a_registry_that_answers_slowly_delays_only_new_schemas(scene: Scene, fake: FakeRegistry) -> None:
    in_avro(scene, fake.url)
    fake.delay_seconds = 1.0
    scene.tarantool.eval(SPACE)
    scene.daemon.start()
    scene.tarantool.eval(WORK, 1, 50)
    scene.catch_up()
    fake.delay_seconds = 60.0
    scene.tarantool.eval(WORK, 100, 50)
    scene.catch_up()
    fake.delay_seconds = 0.0
    check(scene, FakesReader(fake))


def test_a_registry_without_its_data_gives_other_ids(scene: Scene, fake: FakeRegistry) -> None:
    in_avro(scene, fake.url)
    scene.tarantool.eval(SPACE)
    scene.daemon.start()
    scene.tarantool.eval(WORK, 1, 50)
    scene.catch_up()
    ids = {record.value[1:5] for record in records(scene) if record.value}
    fake.forget(next_id=900)
    wait_for("the daemon to register again", lambda: fake.subjects.get(f"{scene.prefix}.users-value"))
    scene.daemon.wait_until("it has reconnected", lambda status: status["upstream"]["reconnects"] > 0)
    scene.tarantool.eval(WORK, 100, 50)
    scene.catch_up()
    # One per length of the rows past the format, too.
    newer = {record.value[1:5] for record in records(scene) if record.value} - ids
    assert newer
    assert all(int.from_bytes(number, "big") >= 900 for number in newer)


def test_a_schema_that_must_be_there(scene: Scene, fake: FakeRegistry) -> None:
    in_avro(scene, fake.url, auto_register=False)
    scene.tarantool.eval(SPACE)
    # No rows past the format, for which the schema would have to be there, too.
    scene.tarantool.eval("for id = 1, 20 do box.space.users:insert({id, 'there', id / 4}) end")
    scene.daemon.start()
    wanted = {f"{scene.prefix}.users-{kind}" for kind in ("key", "value")}
    while wanted:
        status = waits_for_one_of(scene, wanted)
        fake.register(status["subject"], status["message"].partition("exactly this schema: ")[2])
        wanted.remove(status["subject"])
    scene.catch_up()
    check(scene, FakesReader(fake))
