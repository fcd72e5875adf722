"""Rules for topics, rows, partitions and headers, with a real broker, under a daemon that is killed again and again."""

from __future__ import annotations

import json
import random
import time
import uuid
from functools import partial
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from cdc.kafka.murmur2 import partition_of
from tests.live.scene import Scene

NAME = "__dbz__physicalTableIdentifier"
ROUTING = {
    "topic": "v2.{space}",
    "headers": ["op", "space", "seq"],
    "rules": [
        {
            "spaces": "orders_.*",
            "topic": "orders",
            "partition_by": ["customer"],
            "where": "row.status != 'draft' && row.total >= 10",
        }
    ],
}
SPACES = """
for _, name in ipairs({'orders_eu', 'orders_us', 'users'}) do
    local format = {{'id', 'unsigned'}, {'customer', 'string'}, {'status', 'string'}, {'total', 'unsigned'}}
    box.schema.space.create(name, {format = format}):create_index('primary')
    for id = 1, 30 do box.space[name]:insert{id, 'c' .. id % 4, id % 3 == 0 and 'draft' or 'paid', id} end
end
"""
WORK = """
rawset(_G, 'is_working', true)
require('fiber').create(function()
    local states, names = {'draft', 'paid', 'sent'}, {'orders_eu', 'orders_us', 'users'}
    while is_working do
        box.begin()
        for _ = 1, math.random(1, 20) do
            local space, id = box.space[names[math.random(3)]], math.random(60)
            local status, customer = states[math.random(3)], 'c' .. math.random(4)
            local what = math.random(6)
            if what == 1 then space:delete(id)
            elseif what == 2 then space:update(id, {{'=', 3, status}})
            elseif what == 3 then space:update(id, {{'=', 2, customer}, {'=', 4, math.random(0, 30)}})
            elseif what == 4 then space:upsert({id, customer, status, 20}, {{'=', 4, math.random(0, 30)}})
            else space:replace{id, customer, status, math.random(0, 30)} end
        end
        box.commit()
        require('fiber').sleep(0.02)
    end
    rawset(_G, 'has_ended', true)
end)
"""
STOP = "is_working = false while not has_ended do require('fiber').sleep(0.01) end"


def everything(scene: Scene, topics: dict[str, int]) -> list[Message]:
    """All committed messages of some topics with so many partitions."""
    settings = {"bootstrap.servers": scene.kafka.bootstrap_servers, "group.id": uuid.uuid4().hex, "log_level": 0}
    consumer = Consumer(settings | {"isolation.level": "read_committed", "enable.partition.eof": True})
    places = [TopicPartition(topic, number, OFFSET_BEGINNING) for topic, count in topics.items() for number in range(count)]
    consumer.assign(places)
    found, ended, deadline = [], 0, time.monotonic() + 60
    while ended < len(places):
        assert time.monotonic() < deadline
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found.append(message)
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended += 1
    consumer.close()
    return found


def rows(scene: Scene, name: str) -> list[list[Any]]:
    found: list[list[Any]] = scene.tarantool.eval(f"return box.space.{name}:select()")[0]
    return [list(row) for row in found]


def _has_commits(least: int, status: dict[str, Any]) -> bool:
    return bool(status["kafka"]["commits"] >= least)


def test_a_killed_daemon_routes_each_event_once(scene: Scene, seed: int) -> None:
    chance = random.Random(seed)
    scene.daemon.environment |= {f"TARANTOOL_CDC__ROUTING__{key.upper()}": json.dumps(value) for key, value in ROUTING.items()}
    scene.daemon.environment["TARANTOOL_CDC__ROUTING__TOPIC"] = str(ROUTING["topic"])
    scene.daemon.environment["TARANTOOL_CDC__KAFKA__TOPICS"] = json.dumps(
        [{"pattern": "orders", "partitions": 3, "config": {"retention.ms": "-1"}}]
    )
    scene.tarantool.eval(SPACES)
    scene.tarantool.eval(WORK)
    for least in [chance.randrange(1, 12) for _ in range(3)]:
        scene.daemon.start()
        scene.daemon.wait_until_streaming()
        has_work = partial(_has_commits, least)
        scene.daemon.wait_until(f"{least} commits", has_work)
        scene.daemon.kill()
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.tarantool.eval(STOP)
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    shared = f"{scene.prefix}.orders"
    messages = everything(scene, {shared: 3, f"{scene.prefix}.v2.users": 2})
    events = []
    for message in messages:
        value = message.value()
        headers = dict(message.headers() or [])
        if value is not None:
            event = json.loads(value)
            events.append((event["source"]["seq"], message, event))
            told = {"op": event["op"], "space": event["source"]["table"], "seq": str(event["source"]["seq"])}
            assert headers == {name: text.encode() for name, text in told.items()}
        else:
            assert headers["op"] == b"d"
    events.sort(key=lambda found: found[0])
    assert [seq for seq, *_ in events] == list(range(1, len(events) + 1)), "each number once"
    # By key: the row, as those have it who fold the events in the order of their numbers.
    folded: dict[tuple[str | None, str], dict[str, Any]] = {}
    for _, message, event in events:
        place = message.topic(), (message.key() or b"").decode()
        assert event["before"] == (folded.get(place) if event["op"] in ("u", "d") else None)
        if event["op"] == "d":
            del folded[place]
        else:
            folded[place] = event["after"]
            if message.topic() == shared:
                assert event["after"]["status"] != "draft"
                assert message.partition() == partition_of(json.dumps(event["after"]["customer"]).encode(), 3)
    expected = {
        (shared, json.dumps({NAME: name, "id": row[0]}, separators=(",", ":"))): row
        for name in ("orders_eu", "orders_us")
        for row in rows(scene, name)
        if row[2] != "draft" and row[3] >= 10
    }
    expected |= {(f"{scene.prefix}.v2.users", f'{{"id":{row[0]}}}'): row for row in rows(scene, "users")}
    assert {place: list(row.values()) for place, row in folded.items()} == expected
    assert len(expected) > 30
    _check_compaction(messages, {key for topic, key in expected if topic == shared}, shared)


def _check_compaction(messages: list[Message], keys: set[str], topic: str) -> None:
    """If the topic were compacted, each key would have one record, and a deleted one none."""
    last: dict[tuple[str, int | None], bytes | None] = {}
    for message in messages:
        if message.topic() == topic:
            last[(message.key() or b"").decode(), message.partition()] = message.value()
    kept = [key for (key, _), value in last.items() if value is not None]
    assert sorted(kept) == sorted(keys)
