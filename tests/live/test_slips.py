"""A slip publishes nothing twice: another folder, another daemon of the name, another name with the prefix."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from cdc.stream.commits.ownership import SILENCE_SECONDS
from tests.live.daemon import DaemonProcess
from tests.live.forked import run_command
from tests.live.scene import Scene
from tests.live.stream import parse
from tests.live.test_operators import complaint
from tests.live.test_refusals import delete_topics
from tests.live.test_state import command
from tests.live.topics import TopicReader
from tests.live.waiting import wait_for

THINGS = """
box.schema.space.create('things'):create_index('primary')
for id = 1, 50 do box.space.things:insert{id} end
"""


def caught_up(daemon: DaemonProcess, *arguments: str) -> None:
    daemon.start("--until-caught-up", *arguments)
    assert daemon.wait_for_end() == 0, daemon.run.log_text()


def ops(scene: Scene) -> list[str]:
    """The kinds of all events, none of them there twice; what holds in both modes of delivery."""
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix) as reader:
        stream = parse(reader)
    stream.check_sequence()
    return [event.op for event in stream.events]


@pytest.mark.one_of_these("two daemons")
def test_second_daemon_of_the_name_in_another_folder(scene: Scene) -> None:
    """It ends with a sentence and has published nothing; the first doesn't notice. Nor where the folder is a copy."""
    scene.tarantool.eval(THINGS)
    scene.daemon.start()
    scene.catch_up()
    copied = scene.new_daemon()
    shutil.copytree(scene.daemon.settings["state"]["path"], copied.settings["state"]["path"])
    copied.start()
    second = scene.new_daemon()
    second.start("--rebuild-state")
    for other in (second, copied):
        assert other.wait_for_end() == 1
        said = other.run.log_tail(1)
        assert f"a daemon '{scene.prefix}' is running on " in said
        assert f" as process {scene.daemon.run.pid}, " in said
        assert "--take-over" in said
    assert not Path(second.settings["state"]["path"]).exists(), "the next start would fill an empty store without being told to"
    scene.tarantool.eval("box.space.things:insert{51}")
    scene.catch_up()
    assert "fenced" not in scene.daemon.run.log_text()
    assert [event.op for event in scene.check().events] == ["r"] * 50 + ["c"]
    assert scene.daemon.terminate() == 0


@pytest.mark.one_of_these("slips")
def test_second_daemon_of_the_name_with_the_same_file(scene: Scene) -> None:
    scene.tarantool.eval(THINGS)
    scene.daemon.start()
    scene.catch_up()
    second = scene.new_daemon(http=scene.daemon.settings["http"], state=scene.daemon.settings["state"])
    said = complaint(second)
    assert f"a daemon '{scene.prefix}' is running and listens at {scene.daemon.settings['http']['listen']}" in said
    assert "port" not in said
    other = scene.new_daemon("other", http=scene.daemon.settings["http"])
    said = complaint(other)
    assert f"the daemon '{scene.prefix}' listens there" in said
    assert "another port" in said
    assert scene.daemon.terminate() == 0


@pytest.mark.one_of_these("two daemons")
def test_killed_and_started_again(scene: Scene) -> None:
    """Here: at once. Elsewhere: after a silence, without being told to. After a clean end: at once anywhere."""
    scene.tarantool.eval(THINGS)
    scene.daemon.start()
    scene.catch_up()
    scene.daemon.restart_killed()
    scene.daemon.wait_until_streaming()
    assert "checking whether another daemon" not in scene.daemon.run.log_text()
    scene.daemon.kill()
    elsewhere = scene.new_daemon()
    shutil.copytree(scene.daemon.settings["state"]["path"], elsewhere.settings["state"]["path"])
    (Path(elsewhere.settings["state"]["path"]) / "images" / "writers").unlink()
    began = time.monotonic()
    elsewhere.start()
    elsewhere.wait_until_streaming()
    assert time.monotonic() - began >= SILENCE_SECONDS
    assert elsewhere.terminate() == 0
    shutil.rmtree(scene.daemon.settings["state"]["path"])
    shutil.copytree(elsewhere.settings["state"]["path"], scene.daemon.settings["state"]["path"])
    (Path(scene.daemon.settings["state"]["path"]) / "images" / "writers").unlink()
    scene.tarantool.eval("box.space.things:insert{51}")
    caught_up(scene.daemon)
    assert "checking whether another daemon" not in scene.daemon.run.log_text()
    assert [event.op for event in scene.check().events] == ["r"] * 50 + ["c"]


@pytest.mark.one_of_these("two daemons")
@pytest.mark.parametrize("delivery", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.soak)])
def test_second_name_with_the_prefix(scene: Scene, delivery: str) -> None:
    scene.tarantool.eval(THINGS)
    scene.daemon.settings["kafka"]["delivery"] = delivery
    scene.daemon.start()
    scene.catch_up()
    other = scene.new_daemon(f"{scene.prefix}-b", kafka={"delivery": delivery})
    said = complaint(other)
    assert f"belongs to the daemon '{scene.prefix}', which wrote there last at 20" in said
    assert "--take-prefix" in said
    other.start("--take-prefix")
    assert other.wait_for_end() == 1
    assert "Stop that one first" in other.run.log_tail(1)
    scene.catch_up()
    assert ops(scene) == ["r"] * 50
    assert scene.daemon.terminate() == 0
    caught_up(other, "--take-prefix")
    caught_up(other)
    assert f"belongs to the daemon '{scene.prefix}-b'" in complaint(scene.daemon)


@pytest.mark.one_of_these("slips")
def test_started_from_another_folder(scene: Scene, tmp_path: Path) -> None:
    """The same file, whose state.path is relative, from wherever: the same store."""
    scene.tarantool.eval(THINGS)
    scene.daemon.settings["state"]["path"] = "state"
    caught_up(scene.daemon)
    assert (scene.daemon.directory / "state" / "images").is_dir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    scene.daemon.working_directory = elsewhere
    scene.tarantool.eval("box.space.things:insert{51}")
    caught_up(scene.daemon)
    assert not list(elsewhere.iterdir())
    assert [event.op for event in scene.check().events] == ["r"] * 50 + ["c"]


@pytest.mark.one_of_these("slips")
def test_state_path_that_is_wrong(scene: Scene, tmp_path: Path) -> None:
    """Nothing is published again, and nothing made at the wrong place."""
    scene.tarantool.eval(THINGS)
    caught_up(scene.daemon)
    right = scene.daemon.settings["state"]["path"]
    scene.daemon.settings["state"]["path"] = str(tmp_path / "wrong")
    for _ in range(2):
        said = complaint(scene.daemon)
        assert str(tmp_path / "wrong" / "images") in said
        assert "correct state.path" in said
        assert not (tmp_path / "wrong").exists()
    scene.daemon.settings["state"]["path"] = right
    caught_up(scene.daemon)
    assert [event.op for event in scene.check().events] == ["r"] * 50


@pytest.mark.one_of_these("slips")
def test_check_of_what_run_would_regret(scene: Scene) -> None:
    """Beside a daemon at work, with patterns that fit nothing, and with two spaces whose names make one topic."""
    scene.tarantool.eval(THINGS)
    scene.daemon.start()
    scene.catch_up()
    well = checked(scene.daemon)
    assert f"name: the daemon '{scene.prefix}' runs with this state.path: it is this one" in well
    assert well[-1] == "the daemon runs"
    second = scene.new_daemon(http=scene.daemon.settings["http"])
    second.start()
    assert second.wait_for_end() == 1
    found = failures(second)
    assert [line.partition(": FAILED: ")[0] for line in found] == ["http.listen", "name", "state.path"]
    assert f"a daemon '{scene.prefix}' is running and listens at " in found[0]
    assert scene.daemon.terminate() == 0
    second = scene.new_daemon(state=scene.daemon.settings["state"])
    # The spaces' names are wrong for a moment, and that makes nothing come twice.
    second.settings["spaces"] = {"include": ["thing"], "exclude": ["other"]}
    second.start("--until-caught-up")
    assert second.wait_for_end() == 0
    assert "no space is published" in second.run.log_text()
    assert [line.partition(": FAILED: ")[0] for line in failures(second)] == ["spaces.include", "spaces.exclude", "spaces"]
    second.settings["spaces"] = {}
    for name in ("a/b", "a_b"):
        scene.tarantool.eval("box.schema.space.create(...):create_index('primary')", name)
    second.start("--until-caught-up")
    assert second.wait_for_end() == 1
    (said,) = failures(second)
    assert "would share" in said
    assert "spaces.exclude" in said
    # The remedy works, and renaming, which doesn't, isn't told as one.
    second.settings["spaces"] = {"exclude": ["a_b"]}
    caught_up(second)
    scene.tarantool.eval("box.space.things:update(1, {{'=', 2, 'x'}})")
    caught_up(second)
    (update,) = [event.value for event in scene.check_events().events if event.op != "r"]
    assert (update["op"], update["before"]) == ("u", {"field_1": 1})


def test_old_copy_of_the_state(scene: Scene) -> None:
    """Left behind when the folder moved, and started again after the master has dropped its logs: nothing comes twice."""
    scene.tarantool.eval(THINGS)
    caught_up(scene.daemon)
    old = Path(scene.daemon.settings["state"]["path"])
    new = old.with_name("moved")
    shutil.copytree(old, new)
    scene.daemon.settings["state"]["path"] = str(new)
    scene.tarantool.eval("box.space.things:insert{51}")
    caught_up(scene.daemon)
    before = ops(scene)
    assert before == ["r"] * 50 + ["c"]
    # The stream leads from the checkpoint on, and not from the copy.
    scene.tarantool.eval("box.cfg{checkpoint_count = 1} box.snapshot()")
    scene.tarantool.eval("box.space.things:insert{52} box.snapshot()")
    caught_up(scene.daemon)
    scene.daemon.settings["state"]["path"] = str(old)
    for _ in range(2):
        assert "isn't the one that the checkpoint was written with" in complaint(scene.daemon)
        assert any("isn't the one that the checkpoint was written with" in line for line in failures(scene.daemon))
    assert ops(scene) == [*before, "c"]
    scene.daemon.settings["state"]["path"] = str(new)
    caught_up(scene.daemon)
    assert checked(scene.daemon)[-1] == "run would start"
    assert ops(scene) == [*before, "c"]
    scene.daemon.settings["state"]["path"] = str(old)
    caught_up(scene.daemon, "--rebuild-state")
    assert ops(scene) == [*before, "c", *["r"] * 52]


@pytest.mark.one_of_these("checkpoints that are gone")
@pytest.mark.parametrize("images", ["full", pytest.param("none", marks=pytest.mark.soak)])
def test_checkpoint_that_is_lost(scene: Scene, images: str) -> None:
    """Consumers decide by seq: what comes afterwards has to be newer for them than what was there."""
    scene.daemon.settings["state"]["images"] = images
    scene.tarantool.eval(THINGS)
    caught_up(scene.daemon)
    topic = f"{scene.prefix}.checkpoint"
    admin = AdminClient({"bootstrap.servers": scene.kafka.bootstrap_servers})
    admin.delete_topics([topic])[topic].result()
    wait_for("the topic is gone", lambda: topic not in admin.list_topics(timeout=10).topics)
    scene.tarantool.eval("box.space.things:insert{51}")
    for _ in range(2):
        said = complaint(scene.daemon)
        assert f"there is no checkpoint of the daemon '{scene.prefix}' in {topic}" in said
        (found,) = failures(scene.daemon)
        assert found == f"{topic}: FAILED: {said}"
    caught_up(scene.daemon, "--rebuild-state")
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix) as reader:
        stream = parse(reader)
    seqs = [event.seq for event in stream.events]
    assert len(seqs) == len(set(seqs)) == 101
    (newest,) = [int(word) for word in re.findall(r"up to seq (\d+)", said)]
    assert sorted(seqs)[49] <= newest < sorted(seqs)[50]
    caught_up(scene.daemon)


@pytest.mark.one_of_these("checkpoints that are gone")
def test_checkpoint_that_is_deleted_under_a_daemon(scene: Scene) -> None:
    """It ends, rather than to wait for a topic that nobody makes."""
    # librdkafka's patience with a topic that it doesn't find.
    scene.daemon.settings["kafka"]["properties"]["topic.metadata.propagation.max.ms"] = 1_000
    scene.tarantool.eval(THINGS)
    scene.daemon.start()
    scene.catch_up()
    topic = f"{scene.prefix}.checkpoint"
    admin = AdminClient({"bootstrap.servers": scene.kafka.bootstrap_servers})
    admin.delete_topics([topic])[topic].result()
    wait_for("the topic is gone", lambda: topic not in admin.list_topics(timeout=10).topics)
    scene.tarantool.eval("box.space.things:insert{51}")
    assert scene.daemon.wait_for_end(90) == 1
    assert f"the topic {topic} was deleted" in scene.daemon.run.log_tail(1)
    assert "Kafka stands still" not in scene.daemon.run.log_text(), "that would heal by itself, and this doesn't"
    caught_up(scene.daemon, "--rebuild-state")
    assert ops(scene).count("r") == 101


@pytest.mark.one_of_these("slips")
def test_check_tells_what_run_does(scene: Scene) -> None:
    """A space that is published from now on, and topics that nobody makes."""
    scene.tarantool.eval(THINGS)
    scene.tarantool.eval("box.schema.space.create('others'):create_index('primary') box.space.others:insert{1}")
    scene.daemon.settings["spaces"] = {"include": ["things"]}
    caught_up(scene.daemon)
    assert any("would resume from" in line for line in checked(scene.daemon))
    scene.daemon.settings["spaces"] = {"include": ["things", "others"]}
    scene.daemon.settings["kafka"]["create_topics"] = False
    said = complaint(scene.daemon)
    assert f"the topic {scene.prefix}.others" in said
    (found,) = failures(scene.daemon)
    assert found.startswith("kafka.create_topics: FAILED: it is false, and ")
    assert f"{scene.prefix}.others" in found
    assert f"{scene.prefix}.things" not in found
    assert any("would take a snapshot: newly published: others" in line for line in check(scene.daemon)[1])
    del scene.daemon.settings["kafka"]["create_topics"]
    caught_up(scene.daemon)
    assert ops(scene).count("r") == 51


@pytest.mark.one_of_these("checkpoints that are gone")
def test_topics_deleted_at_work_and_while_nobody_runs(scene: Scene) -> None:
    """With librdkafka's settings as they are: after the abort that fails there is another publisher, which tells all the same."""
    # A commit waits so long for the topic that is gone, which happens twice.
    scene.daemon.settings["kafka"]["properties"]["transaction.timeout.ms"] = 5_000
    scene.tarantool.eval(THINGS)
    scene.daemon.start()
    scene.catch_up()
    rows, forms = f"{scene.prefix}.things", f"{scene.prefix}.schema"
    lost = f"the topic {rows} was deleted and has been created again, empty: "
    delete_topics(scene, rows)
    scene.tarantool.eval("box.space.things:insert{51}")
    scene.catch_up()
    assert lost in scene.daemon.run.log_text()
    # The remedy that `check` names, before anything else is written there: what Kafka throws away then is made once more.
    delete_topics(scene, rows)
    assert any(line.startswith(f"{rows}: warning: the topic {rows} was deleted") for line in checked(scene.daemon))
    assert command(scene.daemon, "snapshot", "things").returncode == 0
    wait_for("the rows are there again", lambda: "rows were published again" in scene.daemon.run.log_text())
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix) as reader:
        assert [event.op for event in parse(reader).events] == ["r"] * 51
    assert scene.daemon.terminate() == 0
    delete_topics(scene, rows, forms)
    warnings = [line.partition(": warning: ")[0] for line in checked(scene.daemon) if ": warning: " in line]
    assert warnings == [rows, forms]
    scene.daemon.start()
    scene.tarantool.eval("box.space.things:insert{52}")
    scene.catch_up()
    assert lost in scene.daemon.run.log_text()
    assert f"the topic {forms}, which consumers need to read rows, was deleted" in scene.daemon.run.log_text()
    (left,) = [line for line in checked(scene.daemon) if ": warning: " in line]
    assert left.startswith(f"{rows}: warning: the topic {rows} was deleted"), "until its rows are there again"
    assert scene.daemon.terminate() == 0
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix) as reader:
        stream = parse(reader)
    assert [event.op for event in stream.events] == ["c"]
    stream.check_schema()


def check(daemon: DaemonProcess) -> tuple[int, list[str]]:
    """How `check` ends with the configuration of the latest run, and what it says."""
    file = daemon.directory / f"{daemon.name}.toml"
    ended = run_command("check", "--config", str(file))
    assert not ended.stderr
    return ended.returncode, ended.stdout.splitlines()


def checked(daemon: DaemonProcess) -> list[str]:
    """What it says, when it ends with 0."""
    status, lines = check(daemon)
    assert status == 0, lines
    return lines


def failures(daemon: DaemonProcess) -> list[str]:
    """Its findings, when it ends with 1."""
    status, lines = check(daemon)
    assert status == 1, lines
    found = [line for line in lines if "FAILED" in line]
    assert lines[-1] == f"run would stop: {len(found)} failure{'s' if len(found) > 1 else ''}"
    return found
