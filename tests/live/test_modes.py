"""At-least-once delivery repeats whole transactions only; a large transaction is never seen in part; a name has one daemon."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

from tests.live import replica
from tests.live.proxy import StallAfter, Straight
from tests.live.scene import Scene, Watcher
from tests.live.stream import Stream, distinct, parse
from tests.live.test_gaps import forget_logs
from tests.live.test_state import command
from tests.live.topics import TopicReader
from tests.live.waiting import wait_for


def read(scene: Scene) -> Stream:
    """All that there is, repeats too."""
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix) as reader:
        return parse(reader, may_repeat=True)


def newest_seq(scene: Scene) -> int:
    """The highest seq of all events, whole transactions or not."""
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix) as reader:
        values = [json.loads(record.value) for record in reader.below(reader.look_at_rest()) if record.value is not None]
    return max(int(value["source"]["seq"]) for value in values if "op" in value)


def rare_commits(scene: Scene, pause_ms: int) -> None:
    """Leave so much time for a kill between what is in sight and the checkpoint that counts it."""
    scene.daemon.settings["kafka"] |= {"commit_interval_ms": pause_ms, "commit_pause_ms": pause_ms}


def usual_commits(scene: Scene) -> None:
    """Whoever starts now isn't killed: the end of each snapshot and of the test needn't wait for a rare commit."""
    for name in ("commit_interval_ms", "commit_pause_ms"):
        del scene.daemon.settings["kafka"][name]


def test_at_least_once_repeats_whole_transactions(scene: Scene) -> None:
    scene.daemon.settings["kafka"]["delivery"] = "at_least_once"
    rare_commits(scene, 2_000)
    scene.workload.create(300)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.workload.start(pause=0.01, rows_max=300)
    for _ in range(3):  # one may come just behind a checkpoint, and has nothing to repeat then
        scene.daemon.wait_until(
            "much is published and not settled",
            lambda status: (
                status["kafka"]["events"] > 500 and status["position"]["published"] != status["position"]["checkpoint"]
            ),
        )
        scene.daemon.restart_killed()
        scene.daemon.wait_until_streaming()
    # What the killed ones had begun to publish is whole again when a later one has passed it.
    begun = newest_seq(scene)
    scene.daemon.wait_until("what was begun is whole", lambda status: status["position"]["seq"] >= begun)
    assert scene.daemon.terminate() == 0
    at_the_stop = Counter(event.seq for event in read(scene).events)
    usual_commits(scene)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.workload.stop()
    scene.catch_up()
    stream = read(scene)
    counts = Counter(event.seq for event in stream.events)
    repeated = sorted(seq for seq, count in counts.items() if count > 1)
    assert repeated, "nothing was repeated, so nothing was proven"
    assert not [seq for seq, count in at_the_stop.items() if counts[seq] > count], "an orderly stop was followed by repeats"
    assert repeated[-1] <= max(at_the_stop), "what came after the stop came twice, and nobody was killed"
    # What is repeated begins after a checkpoint, which lies between transactions, and has none that is there in part. Of what
    # lies between the two, the killed one had written nothing: it has one copy, which is younger than the first of what follows.
    boundaries = {0} | {value["seq"] for value in stream.checkpoints}
    first = repeated[0]
    begin = max(seq for seq in boundaries if seq < first)
    first_copy_ms = min(event.value["ts_ms"] for event in stream.events if event.seq == first)
    between = [event.value["ts_ms"] for event in stream.events if begin < event.seq < first]
    assert all(copy_ms >= first_copy_ms for copy_ms in between), "what was repeated begins in the middle"
    copies: dict[int, set[str]] = {}
    for event in stream.events:
        copies.setdefault(event.seq, set()).add(_content(event.value))
    others = {seq: sorted(texts) for seq, texts in copies.items() if len(texts) > 1}
    assert not others, f"a repeat has another content: {list(others.items())[:3]}"
    stream.events = distinct(stream.events)
    for name, values in stream.control.items():
        if name in ("transaction", "schema"):
            stream.control[name] = list({json.dumps(value): value for value in values}.values())
    stream.check_sequence()
    stream.check_transactions()
    transactions = {event.seq: event.transaction_id for event in stream.events}
    inside = [seq for seq in boundaries if transactions.get(seq) and transactions[seq] == transactions.get(seq + 1)]
    assert not inside, "a checkpoint lies inside a transaction"
    replica.compare(replica.fold(stream), scene.tarantool)


def _content(value: dict[str, Any]) -> str:
    """All but the times at which the daemon has read something: rows (`r`) have no others, changes the master's."""
    source = value["source"]
    if value["op"] == "r":
        source = {name: item for name, item in source.items() if not name.startswith("ts_")}
    return repr({name: item for name, item in {**value, "source": source}.items() if not name.startswith("ts_")})


def test_at_least_once_killed_before_a_gap(scene: Scene) -> None:
    """Consumers have events that the checkpoint doesn't know of, and the log that would repeat them is gone."""
    scene.daemon.settings["kafka"].update(delivery="at_least_once", partitions=1)
    rare_commits(scene, 4_000)
    things = "local things = box.space.things "
    scene.tarantool.eval("box.schema.space.create('things'):create_index('primary')")
    scene.tarantool.eval(things + "for id = 1, 9 do things:insert{id} end")
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    reader = scene.reader()
    scene.tarantool.eval(things + "for id = 5, 30 do things:replace{id, 'seen'} end")
    wait_for("events in sight", lambda: b'"seen"' in b"".join(record.value or b"" for record in reader.below(reader.look())), 20)
    scene.daemon.kill()
    scene.tarantool.eval(things + "things:delete(29) things:replace{7, 'last'} things:insert{31}")
    forget_logs(scene)
    usual_commits(scene)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.tarantool.eval(things + "things:delete(30)")
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    stream = read(scene)
    assert stream.control["snapshot"][-1]["spaces"][0]["sweep_seq"] > 9 + 25
    replica.compare(replica.fold(stream, has_images=False), scene.tarantool)


def test_at_least_once_killed_in_the_middle_of_a_request(scene: Scene) -> None:
    """Rows that were asked for are in sight and won't come again: what happens next to their keys comes behind them."""
    scene.daemon.settings["kafka"].update(delivery="at_least_once", partitions=1)
    rare_commits(scene, 3_000)
    things = "local things = box.space.things "
    scene.tarantool.eval("box.schema.space.create('things'):create_index('primary')")
    scene.tarantool.eval(things + "for id = 1, 5000 do things:insert{id, 'first'} end")
    scene.daemon.start()
    scene.catch_up()
    reader = scene.reader()
    assert command(scene.daemon, "snapshot", "things").returncode == 0

    def shown() -> int:
        return sum(b'"snapshot_id":"2"' in (record.value or b"") for record in reader.below(reader.look()))

    wait_for("rows that were asked for in sight", lambda: shown() > 100, 30)
    scene.daemon.kill()
    scene.tarantool.eval(things + "for id = 1, 5000, 2 do things:update(id, {{'=', 2, 'last'}}) end things:delete(2)")
    usual_commits(scene)
    scene.daemon.start()
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    latest: dict[int, tuple[int, dict[str, Any] | None]] = {}
    for event in read(scene).events:
        key = (event.value["after"] or event.value["before"])["field_1"]
        if event.seq > latest.get(key, (0, None))[0]:
            latest[key] = event.seq, event.value["after"]
    found = [list(row.values()) for _, (_, row) in sorted(latest.items()) if row is not None]
    assert found == scene.tarantool.eval("return box.space.things:select()")[0]


def test_transaction_larger_than_memory_is_never_seen_in_part(scene: Scene) -> None:
    scene.daemon.settings["source"]["transaction_bytes_max"] = 64 * 1024
    scene.daemon.settings["kafka"].update(queue_bytes_max=256 * 1024, commit_bytes_max=256 * 1024)
    scene.workload.create(100)
    stall = StallAfter(1_000_000)
    courses = iter([Straight(), stall])
    proxy = scene.proxy(lambda: next(courses, Straight()))
    scene.daemon.start()
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    with Watcher(scene.reader()) as watcher:
        scene.tarantool.eval(
            "box.begin() for id = 1, 12000 do box.space.bare:replace{id, id, 'row ' .. id, string.rep('x', 100)} end box.commit()"
        )
        # The connection stands still in the middle of it: it waits on disk, and nothing of it is in Kafka.
        scene.daemon.wait_until("it is spooled", lambda status: status["buffers"]["open_transaction_bytes"] > 500_000)
        assert spooled_bytes(scene) > 500_000
        with TopicReader(scene.kafka.bootstrap_servers, scene.prefix, committed=False) as reader:
            assert not [event for event in parse(reader, reader.look()).events if event.transaction_id is not None]
        scene.daemon.kill()
        scene.daemon.start()
        scene.daemon.wait_until("it is being published", lambda status: status["kafka"]["events"] > 1_000)
        scene.daemon.kill()
        scene.check_whole_while_dead(scene.reader())
        scene.daemon.start()
        scene.catch_up()
        assert not spooled_bytes(scene), "the spool was left behind"
        assert scene.daemon.terminate() == 0
    stream = scene.check()
    watcher.check(stream)
    assert 12_000 in [len(events) for events in stream.transactions.values()]
    assert proxy.connection_count == 4


def spooled_bytes(scene: Scene) -> int:
    """The size of the files in its state directory that the daemon has open; they have no names."""
    state = str(scene.directory / "state-0")
    files = Path(f"/proc/{scene.daemon.run.pid}/fd")
    opened = ((file, os.readlink(file)) for file in files.iterdir())
    return sum(file.stat().st_size for file, name in opened if name.startswith(state) and "/images" not in name)


def test_second_daemon_of_the_name_ends_the_first_if_it_is_told_to(scene: Scene) -> None:
    """Also while nothing changes on the master: the first has it to itself until it knows."""
    scene.workload.create(300)
    scene.workload.start(pause=0.01)
    scene.daemon.start()
    scene.daemon.wait_until("rows flow", lambda status: status["rows"] > 300)
    scene.workload.stop()
    scene.catch_up()
    # The second listens where the first does, once that has ended.
    first, second = scene.daemon, scene.new_daemon(http=scene.daemon.settings["http"])
    second.start("--take-over", "--rebuild-state")
    assert first.wait_for_end() == 1
    last = first.run.log_tail(1)
    assert re.match(rf"tarantool-cdc: another daemon(, process {second.run.pid} on \S+,)? has taken the name", last), last
    assert f"process {first.run.pid} on " in second.run.log_text()
    scene.daemon = second
    second.wait_until_streaming()
    scene.run_workload()
    scene.catch_up()
    assert second.terminate() == 0
    scene.check()
