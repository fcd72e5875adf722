"""A hostile but legal master: what consumers have equals what it has, or the daemon says in one sentence why not, and goes on
where its configuration says so."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from cdc.events.topics import TopicNames
from tests.live import replica
from tests.live.oddities import NAMES, Oddities
from tests.live.scene import Scene
from tests.live.stream import parse
from tests.live.topics import TopicReader
from tests.live.waiting import PATIENCE_SECONDS


def test_all_odd_names_can_stand_beside_each_other() -> None:
    """Which of them a run takes is up to its seed, so a collision of two would show in few runs."""
    topics = TopicNames("shop")
    assert len({topics.of_space(number, name) for number, name in enumerate(NAMES)}) == len(NAMES)


@pytest.mark.parametrize(
    ("rounds", "count"),
    [
        pytest.param(1, 1_500, id="short"),
        pytest.param(40, 5_000, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
@pytest.mark.parametrize("images", ["full", pytest.param("none", marks=pytest.mark.soak)])
def test_consumers_have_what_an_odd_master_has(scene: Scene, seed: int, images: str, rounds: int, count: int) -> None:
    odd = Oddities(scene.tarantool, seed)
    odd.create()
    scene.daemon.settings["state"]["images"] = images
    taken = odd.run(count)
    scene.daemon.start()
    # Only what follows now, and before the key of a space with a collation is altered, comes as changes and in no snapshot.
    scene.daemon.wait_until_streaming()
    taken += odd.run(count)
    for _ in range(rounds):
        odd.alter(4)
        taken += odd.run(count)
        scene.daemon.restart_killed()
        odd.alter(4)
        taken += odd.run(count)
    scene.catch_up(600)
    assert scene.daemon.terminate() == 0
    assert taken > rounds * count / 2, f"the server refused most or crashed {odd.crash_count} times: {set(odd.refused)}"
    changes = [event for event in scene.check().events if event.transaction_id is not None]
    kinds = {(event.op, event.value["before"] is not None) for event in changes}
    has_images = images == "full"
    # A key with a collation never has images.
    assert {("u", has_images), ("d", has_images), ("u", False), ("d", False)} <= kinds, f"too little was streamed: {kinds}"


@pytest.mark.parametrize(
    "spaces", [pytest.param(50, id="short"), pytest.param(10_000, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
def test_the_widest_and_the_most(scene: Scene, seed: int, spaces: int) -> None:
    odd = Oddities(scene.tarantool, seed)
    scene.daemon.settings["kafka"]["partitions"] = 1
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    odd.shapes(spaces)
    scene.catch_up(3000)
    assert scene.daemon.terminate() == 0
    scene.check()


@pytest.mark.parametrize(
    ("kind", "row_count"),
    [
        pytest.param("temporary", 5_000, id="temporary-on disk"),
        pytest.param("is_local", 1, id="is_local-one row"),
        pytest.param("temporary", 1, id="temporary-one row", marks=pytest.mark.soak),
        pytest.param("is_local", 5_000, id="is_local-on disk", marks=pytest.mark.soak),
    ],
)
def test_transactions_whose_last_row_is_not_relayed(scene: Scene, kind: str, row_count: int) -> None:
    """Servers before 2.8.4 relay no end of a transaction that ends by emptying such a space."""
    scene.daemon.settings["source"]["transaction_bytes_max"] = 65536
    scene.tarantool.eval(
        f"box.schema.space.create('public', {{format = {{{{'id', 'unsigned'}}, {{'n', 'unsigned'}}}}}}):create_index('pk')\n"
        f"box.schema.space.create('scratch', {{{kind} = true}}):create_index('pk')"
    )
    write = """local count, n = ...
        box.begin()
        for id = 1, count do box.space.public:replace{id, n} end
        box.space.scratch:truncate()
        box.commit()"""
    scene.tarantool.eval(write, row_count, 1)  # in the log before the start
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    for number in (2, 3):
        scene.tarantool.eval(write, row_count, number)
    scene.catch_up(60)  # with no row after it, by a heartbeat
    scene.tarantool.eval(write, row_count, 4)
    scene.daemon.restart_killed()
    scene.catch_up(60)
    scene.tarantool.eval(write, row_count, 5)
    scene.tarantool.eval("box.space.public:insert{1000000, 6}")
    scene.catch_up(60)
    assert scene.daemon.terminate() == 0
    scene.check()


@pytest.mark.parametrize(
    "rows",
    [pytest.param(20_000, id="short"), pytest.param(3_000_000, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(3600)])],
)
def test_the_longest_transaction(scene: Scene, rows: int) -> None:
    """It is published whole and in order, by a daemon that keeps what it can't publish yet on disk."""
    scene.daemon.settings["kafka"] |= {"partitions": 1, "properties": {"transaction.timeout.ms": 900_000}}
    scene.tarantool.eval(
        "box.schema.space.create('long', {format = {{'id', 'unsigned'}, {'text', 'string'}}}):create_index('pk')"
    )
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.tarantool.eval(
        "box.begin() for i = 1, ... do box.space.long:replace({i, 'a row of a long transaction'}) end box.commit()", rows
    )
    scene.catch_up(3000)
    # What the rows change in the images waits in memory for the end of the transaction (docs/guarantees.md).
    assert scene.daemon.anonymous_bytes < 150 * 2**20 + 350 * rows
    assert scene.daemon.terminate() == 0
    events = read_one_by_one(scene, "long")
    first = next(events)
    assert (first["after"], first["op"]) == ({"id": 1, "text": "a row of a long transaction"}, "c")
    for number in range(1, rows):
        event = next(events)
        assert event["after"]["id"] == number + 1
        assert event["source"]["seq"] == first["source"]["seq"] + number
        assert event["transaction"]["id"] == first["transaction"]["id"]
        assert event["transaction"]["total_order"] == number + 1
    assert next(events, None) is None


def read_one_by_one(scene: Scene, topic: str) -> Iterator[dict[str, Any]]:
    """The committed events of a topic of one partition: too many to keep all of them."""
    consumer = Consumer(
        {
            "bootstrap.servers": scene.kafka.bootstrap_servers,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(f"{scene.prefix}.{topic}", 0, OFFSET_BEGINNING)])
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while True:
            # It returns early only with so many of them, which the last ones aren't.
            messages = consumer.consume(5_000, 0.2)
            assert messages or time.monotonic() < deadline, f"nothing more came of {topic}, and not its end either"
            for message in messages:
                deadline = time.monotonic() + PATIENCE_SECONDS
                if (error := message.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return
                value = message.value()
                if value is not None:
                    yield json.loads(value)
    finally:
        consumer.close()


def test_rows_without_json_go_to_the_dead_letters_and_the_rest_to_consumers(scene: Scene, seed: int) -> None:
    odd = Oddities(scene.tarantool, seed)
    scene.daemon.settings["format"] = {"on_error": "dlq"}
    scene.daemon.settings["spaces"] = {"exclude": ["excluded"]}
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    count = odd.unencodable("published")
    odd.unencodable("excluded")
    scene.catch_up()
    with scene.reader() as reader:
        stream = parse(reader)
    assert len(stream.control["dlq"]) == count
    rows = replica.fold(stream, has_images=True)
    (published,) = rows.filled()
    assert len(rows.rows(published)) == count, "what can be published is"
    # They are in the snapshot of a daemon that begins now, too.
    scene.tarantool.eval("box.snapshot()")
    another = scene.new_daemon(
        f"{scene.prefix}-2",
        kafka={"topic_prefix": f"{scene.prefix}-2"},
        format={"on_error": "dlq"},
        spaces={"exclude": ["excluded"]},
    )
    another.start("--until-caught-up")
    assert another.wait_for_end() == 0
    with TopicReader(scene.kafka.bootstrap_servers, f"{scene.prefix}-2") as reader:
        assert len(parse(reader).control["dlq"]) == count


def test_a_row_without_json_stops_the_daemon_with_one_sentence(scene: Scene, seed: int) -> None:
    odd = Oddities(scene.tarantool, seed)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    odd.unencodable("published")
    assert scene.daemon.wait_for_end() == 1
    (said,) = [line for line in scene.daemon.run.log_tail().splitlines() if "dlq" in line][-1:]
    assert "published" in said
    assert "Traceback" not in scene.daemon.run.log_tail(200)
