"""A gap in the master's logs is healed with what differs from the images, and nothing else; and what becomes of a state store
that is behind, lost, damaged or somebody else's.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import lmdb
import pytest

from cdc.local.interface import TarantoolServer
from tests.conftest import TarantoolFactory
from tests.live.scene import Scene
from tests.live.stream import Stream
from tests.live.test_kills import wait_for_work
from tests.live.test_operators import complaint
from tests.live.waiting import wait_for


@pytest.fixture(autouse=True)
def few_partitions(scene: Scene) -> None:
    """Making topics takes most of the time here."""
    scene.daemon.settings["kafka"]["partitions"] = 1


_CREATE = """
local function space(name, options, index) box.schema.space.create(name, options):create_index('primary', index) end
local FORMAT = {{'id', 'unsigned'}, {'n', 'integer'}, {'word', 'string'}}
space('many', {format = FORMAT})
space('vinyl', {format = FORMAT, engine = 'vinyl'})
for _, name in ipairs{'cut', 'gone', 'altered', 'idle'} do space(name, {format = FORMAT}) end
local count = ...
for first = 1, count, 5000 do
    box.begin()
    for id = first, math.min(count, first + 4999) do box.space.many:replace{id, id, 'row ' .. id} end
    box.commit()
end
for _, name in ipairs{'vinyl', 'cut', 'gone', 'altered', 'idle'} do
    for id = 1, 50 do box.space[name]:replace{id, id, 'row ' .. id} end
end
"""

# A third of the keys are updated, a third deleted, and as many new ones inserted.
_CHANGE = """
local count, each = ...
for _, name in ipairs{'many', 'vinyl'} do
    local step, rows = math.floor(count[name] / (2 * each[name])), box.space[name]
    for number = 0, each[name] - 1 do
        rows:update(1 + number * 2 * step, {{'+', 2, 1000000}, {'=', 3, 'changed'}})
        rows:delete(1 + (number * 2 + 1) * step)
        rows:insert{count[name] + 1 + number, number, 'new'}
    end
    -- What ends as it was is no difference.
    rows:update(3, {{'+', 2, 1}})
    rows:update(3, {{'-', 2, 1}})
end
"""

_DEFINE = """
box.space.cut:truncate()
box.space.cut:insert{7, 7, 'row 7'}
box.space.cut:insert{60, 60, 'row 60'}
box.space.gone:drop()
box.space.altered.index.primary:alter{parts = {{3, 'string'}}}
box.schema.space.create('fresh'):create_index('primary')
for id = 1, 20 do box.space.fresh:insert{id, 'fresh'} end
"""


def forget_logs(scene: Scene) -> None:
    """The master keeps its contents and no log from before now."""
    forget_logs_of(scene.tarantool)


def forget_logs_of(master: TarantoolServer) -> None:
    """As `forget_logs`, without a scene."""
    master.eval("box.cfg{checkpoint_count = 1} box.snapshot()")
    directory = master.work_dir

    def is_gone() -> bool:
        kept_from = max(int(path.stem) for path in directory.glob("*.snap"))
        return all(int(path.stem) >= kept_from for path in directory.glob("*.xlog"))

    wait_for("the old logs are removed", is_gone)
    master.eval("box.space._schema:replace{'touched', 1}")  # so that the position is behind in any case


def images_of(scene: Scene) -> Path:
    """The directory of the daemon's store."""
    return Path(scene.daemon.settings["state"]["path"]) / "images"


def begin(scene: Scene, count: int = 2_000) -> int:
    """Rows, published and in the store, and a daemon that has ended in order; returns the last seq."""
    scene.tarantool.eval(_CREATE, count)
    scene.daemon.start("--until-caught-up")
    assert scene.daemon.wait_for_end(600) == 0, scene.daemon.run.log_text()
    return count + 250


def heal(scene: Scene, *arguments: str) -> None:
    """One run of the daemon, up to the master's position."""
    scene.daemon.start("--until-caught-up", *arguments)
    assert scene.daemon.wait_for_end(600) == 0, scene.daemon.run.log_text()


def news(stream: Stream, after_seq: int) -> Counter[tuple[str, str]]:
    """How many events there are of each space and kind behind a seq."""
    return Counter((event.source["table"], event.op) for event in stream.events if event.seq > after_seq)


def sweeps(stream: Stream) -> dict[str, int]:
    """By space: `sweep_seq` of the last snapshot."""
    completed = [record for record in stream.control["snapshot"] if record["status"] == "COMPLETED"]
    return {space["space"]: space["sweep_seq"] for space in completed[-1]["spaces"]}


def test_gap_comes_out_as_its_differences(scene: Scene) -> None:
    last = begin(scene)
    scene.tarantool.eval(_CHANGE, {"many": 2_000, "vinyl": 50}, {"many": 100, "vinyl": 5})
    scene.tarantool.eval(_DEFINE)
    forget_logs(scene)
    heal(scene)
    stream = scene.check()
    found = news(stream, last)
    assert found.pop(("idle", "u"), 0) == 0
    assert found == {
        ("many", "u"): 100,
        ("many", "d"): 100,
        ("many", "c"): 100,
        ("vinyl", "u"): 5,
        ("vinyl", "d"): 5,
        ("vinyl", "c"): 5,
        ("cut", "d"): 49,
        ("cut", "c"): 1,
        ("gone", "t"): 1,
        ("altered", "t"): 1,
        ("altered", "r"): 50,
        ("fresh", "r"): 20,
    }
    assert set(sweeps(stream).values()) == {0}
    # The stream goes on from there with images.
    scene.tarantool.eval("box.space.many:update(5, {{'=', 3, 'streamed'}}) box.space.altered:delete('row 9')")
    heal(scene)
    scene.check()


def damage(log: Path) -> None:
    """A byte within the middle of a log file is another one."""
    data = bytearray(log.read_bytes())
    data[data.index(b"\xd5\xba\x0b\xab", len(data) // 2) + 30] ^= 1
    log.write_bytes(data)


def test_log_that_the_master_cannot_read(scene: Scene) -> None:
    """Its data is whole, so the gap comes out as its differences, once the damaged file isn't the one that it is writing."""
    last = begin(scene)
    for number in range(100):
        scene.tarantool.eval("box.space.many:replace{..., 0, 'logged'}", 5_000 + number)
    damage(max(scene.tarantool.work_dir.glob("*.xlog")))
    scene.daemon.start()
    waits = "can't read the log that it is writing now"
    wait_for("the daemon waits", lambda: waits in scene.daemon.run.log_text())
    assert "damaged: tx checksum mismatch" in scene.daemon.run.log_text()
    assert "taking a snapshot" not in scene.daemon.run.log_text()
    assert "box.snapshot()" in scene.daemon.run.log_text()
    scene.tarantool.eval("box.snapshot() box.space.many:replace{6000, 0, 'in a new file'}")
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    assert news(scene.check(), last) == {("many", "c"): 101}


@dataclass(frozen=True)
class _Run:
    seconds: float
    anonymous_bytes: int
    event_count: int


def _measured(scene: Scene) -> _Run:
    started = time.monotonic()
    scene.daemon.start()
    scene.catch_up(900)
    status = scene.daemon.status()
    assert status is not None
    run = _Run(time.monotonic() - started, scene.daemon.anonymous_bytes, status["kafka"]["events"])
    assert scene.daemon.terminate() == 0
    return run


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_gap_of_a_large_space(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.tarantool.eval(_CREATE, 1_000_000)
    first = _measured(scene)
    assert first.event_count >= 1_000_250
    scene.tarantool.eval(_CHANGE, {"many": 1_000_000, "vinyl": 50}, {"many": 333, "vinyl": 1})
    forget_logs(scene)
    healed = _measured(scene)
    assert healed.event_count in (3 * 334, 3 * 334 + 1)
    with capsys.disabled():
        for name, run in (("1,000,000 rows into an empty store", first), ("the same with 1,002 differences", healed)):
            print(f"\n{name}: {run.seconds:.1f} s, own memory {run.anonymous_bytes / 1e6:.0f} MB, {run.event_count} events")


def test_gap_behind_what_the_store_has(scene: Scene) -> None:
    """kill -9 before the store was written; then what lies between store and checkpoint can't be read again."""
    scene.daemon.settings["state"]["flush_interval_ms"] = 60_000
    begin(scene)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.tarantool.eval("box.space.many:insert{5000, 0, 'x'} box.space.many:update(1, {{'=', 3, 'other'}})")
    scene.catch_up()
    scene.daemon.kill()
    scene.tarantool.eval("box.space.many:delete(5000) box.space.many:update(1, {{'=', 3, 'row 1'}})")
    forget_logs(scene)
    heal(scene)
    scene.check()


def test_store_that_is_lost(scene: Scene) -> None:
    last = begin(scene)
    shutil.rmtree(images_of(scene))
    scene.tarantool.eval("box.space.many:delete(1) box.space.gone:drop()")
    text = complaint(scene.daemon)
    assert str(images_of(scene)) in text
    assert "--rebuild-state" in text
    assert not images_of(scene).exists(), "the next start would take what was made for the store"
    assert not news(scene.check_events(), last)
    heal(scene, "--rebuild-state")
    stream = scene.check()
    assert set(sweeps(stream).values()) == {last}
    found = news(stream, last)
    assert (found[("many", "r")], found[("gone", "t")]) == (1_999, 1)
    assert {op for _, op in found} <= {"r", "t"}


def test_store_that_is_damaged(scene: Scene) -> None:
    """Both of its roots: it is set aside, and built anew."""
    last = begin(scene)
    data = images_of(scene) / "data.mdb"
    with data.open("r+b") as file:
        for page in (0, 1):
            file.seek(page * 4096 + 16)
            file.write(bytes(byte ^ 0xFF for byte in data.read_bytes()[page * 4096 + 16 : page * 4096 + 48]))
    scene.tarantool.eval("box.space.many:delete(1)")
    heal(scene)
    assert "rebuilding the state store" in scene.daemon.run.log_text()
    stream = scene.check()
    assert set(sweeps(stream).values()) == {last}
    assert (images_of(scene) / "lost" / "data.mdb").exists()


def test_store_of_another_version(scene: Scene) -> None:
    last = begin(scene)
    with lmdb.open(str(images_of(scene)), max_dbs=8) as environment, environment.begin(write=True) as txn:
        txn.put(b"format", b"tarantool-cdc state 99", db=environment.open_db(b"about", txn=txn))
    condition = images_of(scene) / "condition"
    condition.write_text(f"clean {(images_of(scene) / 'data.mdb').stat().st_size}")
    text = complaint(scene.daemon)
    assert "was written by another version" in text
    assert f"remove {images_of(scene)} and start once with --rebuild-state" in text
    assert not news(scene.check(), last)
    # The remedy works.
    shutil.rmtree(images_of(scene))
    heal(scene, "--rebuild-state")
    scene.check()


def test_store_that_another_daemon_uses(scene: Scene) -> None:
    scene.tarantool.eval(_CREATE, 10)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    other = scene.new_daemon(f"{scene.prefix}-other", state={"path": scene.daemon.settings["state"]["path"]})
    text = complaint(other)
    assert f"in use by the daemon '{scene.prefix}', process " in text
    assert "state.path" in text
    scene.catch_up()
    scene.check()


def test_store_of_another_replica_set(scene: Scene, tarantool_factory: TarantoolFactory) -> None:
    last = begin(scene)
    # Another daemon's store, of other rows, comes where this one's was.
    stranger = tarantool_factory(name="stranger")
    stranger.eval(_CREATE, 10)
    other = scene.new_daemon(scene.prefix, source={"uris": [stranger.uri]}, kafka={"topic_prefix": f"{scene.prefix}-other"})
    other.name = f"{scene.prefix}-other"
    other.start("--until-caught-up")
    assert other.wait_for_end() == 0
    shutil.rmtree(images_of(scene))
    shutil.copytree(Path(other.settings["state"]["path"]) / "images", images_of(scene))
    scene.tarantool.eval("box.space.many:delete(1) box.space.many:delete(1500)")
    scene.daemon.start("--until-caught-up")
    # No row may be taken for published because the stranger has it, and the stranger's store mustn't be emptied.
    assert scene.daemon.wait_for_end() == 1
    assert f"belongs to the daemon '{scene.prefix}-other'" in scene.daemon.run.log_tail(1)
    assert not news(scene.check_events(), last)


def test_spaces_that_are_included_and_excluded(scene: Scene) -> None:
    scene.daemon.settings["spaces"] = {"include": ["many", "cut"]}
    scene.tarantool.eval(_CREATE, 100)
    heal(scene)
    scene.daemon.settings["spaces"] = {"include": ["many", "vinyl"]}
    scene.tarantool.eval("box.space.vinyl:delete(1) box.space.many:delete(1)")
    heal(scene)
    scene.tarantool.eval("box.space.cut:delete(1) box.space.cut:insert{70, 0, 'x'} box.space.vinyl:update(2, {{'=', 3, 'x'}})")
    heal(scene)
    scene.daemon.settings["spaces"] = {"include": [".*"]}
    heal(scene)
    scene.tarantool.eval("box.space.cut:update(2, {{'=', 3, 'y'}}) box.space.gone:delete(1)")
    heal(scene)
    found = news(scene.check(), 0)
    assert (found[("many", "r")], found[("many", "d")]) == (100, 1)
    assert (found[("vinyl", "r")], found[("vinyl", "u")], found[("vinyl", "d")]) == (49, 1, 0)


def test_key_altered_while_streaming(scene: Scene) -> None:
    scene.tarantool.eval(_CREATE, 100)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.catch_up()
    scene.tarantool.eval(
        "box.space.many:update(1, {{'=', 3, 'x'}}) box.space.altered.index.primary:alter{parts = {{3, 'string'}}} "
        "box.space.altered:update('row 3', {{'=', 2, -3}}) box.space.altered:delete('row 4')"
    )
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    stream = scene.check()
    found = news(stream, 350)
    # The rows come from the store, as they were when the key was altered.
    assert found == {("many", "u"): 1, ("altered", "t"): 1, ("altered", "r"): 50, ("altered", "u"): 1, ("altered", "d"): 1}


@pytest.mark.parametrize(
    "kill_count",
    [
        pytest.param(2, id="short"),
        pytest.param(30, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
def test_killed_with_a_store_that_is_behind(scene: Scene, kill_count: int, seed: int) -> None:
    """Each start has to bring the store up to the checkpoint first."""
    chance = random.Random(seed)
    scene.daemon.settings["state"]["flush_interval_ms"] = 2_000
    scene.workload.create(1_000)
    scene.workload.start(pause=0.01, rows_max=500)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    catch_ups = 0
    for _ in range(kill_count):
        wait_for_work(scene, rows=chance.randrange(200, 2_500), commits=chance.randrange(2, 8))
        scene.daemon.restart_killed()
        scene.daemon.wait_until_streaming()
        catch_ups += "bringing the state store up" in scene.daemon.run.log_text()
    scene.workload.stop()
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    assert catch_ups
    scene.check()
