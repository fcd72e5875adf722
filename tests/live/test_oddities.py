"""A hostile but legal master: what consumers have equals what it has, or the daemon says in one sentence why not, and goes on
where its configuration says so."""

from __future__ import annotations

import json

import pytest

from tests.live import replica
from tests.live.oddities import Oddities
from tests.live.scene import Scene
from tests.live.stream import parse


@pytest.mark.parametrize(
    ("rounds", "count"),
    [
        pytest.param(2, 1_500, id="short"),
        pytest.param(40, 5_000, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
@pytest.mark.parametrize("images", ["full", "none"])
def test_consumers_have_what_an_odd_master_has(scene: Scene, seed: int, images: str, rounds: int, count: int) -> None:
    odd = Oddities(scene.tarantool, seed)
    odd.create()
    scene.daemon.settings["state"]["images"] = images
    taken = odd.run(count)
    scene.daemon.start()
    for _ in range(rounds):
        odd.alter(4)
        taken += odd.run(count)
        scene.daemon.restart_killed()
        taken += odd.run(count)
    scene.catch_up(600)
    assert scene.daemon.terminate() == 0
    assert taken > rounds * count / 2, f"the server refused most or crashed {odd.crash_count} times: {set(odd.refused)}"
    scene.check()


@pytest.mark.parametrize(
    ("spaces", "rows"),
    [
        pytest.param(50, 20_000, id="short"),
        pytest.param(10_000, 3_000_000, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_the_widest_the_longest_and_the_most(scene: Scene, seed: int, spaces: int, rows: int) -> None:
    odd = Oddities(scene.tarantool, seed)
    scene.daemon.settings["kafka"]["partitions"] = 1
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    odd.shapes(spaces, rows)
    scene.catch_up(3000)
    assert scene.daemon.terminate() == 0
    scene.check()


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
    assert json.dumps(another.run.log_tail())


def test_a_row_without_json_stops_the_daemon_with_one_sentence(scene: Scene, seed: int) -> None:
    odd = Oddities(scene.tarantool, seed)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    odd.unencodable("published")
    assert scene.daemon.wait_for_end() == 1
    (said,) = [line for line in scene.daemon.run.log_tail().splitlines() if "dlq" in line][-1:]
    assert "published" in said
    assert "Traceback" not in scene.daemon.run.log_tail(200)
