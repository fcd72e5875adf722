"""Every command on the pages is typed as it stands there, and does what the page says."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cdc.local.interface import KafkaServer, TarantoolServer
from cdc.local.ports import free_port
from cdc.local.process import ChildProcess
from tests.live.commands import FLEET, PAGES, ROOT, Reader, blocks, commands
from tests.live.waiting import wait_for
from tests.simulation.__main__ import options

if TYPE_CHECKING:
    from tests.live.spark_java import SparkJava

README, OPERATIONS, SPARK = (ROOT / name for name in ("README.md", "docs/operations.md", "docs/spark.md"))
INSTALL = "python3 -m venv .venv && .venv/bin/pip install ."

SPACES = """
box.schema.user.drop('cdc')   -- the one of the fixture
for _, name in ipairs({'users', 'orders'}) do
    local space = box.schema.space.create(name, {format = {
        {name = 'id', type = 'unsigned'}, {name = 'name', type = 'string'}, {name = 'visits', type = 'unsigned'}}})
    space:create_index('primary')
    space:insert({1, 'Anne', 41})
end
"""


@pytest.fixture
def reader(tmp_path: Path, tarantool: TarantoolServer, kafka: KafkaServer) -> Reader:
    """Of a README whose Tarantool has the grants that it shows, and two spaces; every reader has a prefix of their own."""
    tarantool.eval(SPACES)
    (grants,) = [block for block in blocks(README, "lua") if "grant" in block]
    assert grants in blocks(OPERATIONS, "lua")
    tarantool.eval(grants)
    addresses = {
        "127.0.0.1:3301": f"127.0.0.1:{tarantool.port}",
        "127.0.0.1:9092": kafka.bootstrap_servers,
        "/var/lib/tarantool/shop": str(tarantool.work_dir),
        "shop": f"shop-{free_port()}",
    }
    return Reader(tmp_path / "here", addresses, {"TARANTOOL_CDC__HTTP__LISTEN": f"127.0.0.1:{free_port()}"})


@contextlib.contextmanager
def running(reader: Reader, command: str) -> Iterator[ChildProcess]:
    process = reader.start(command)
    try:
        yield process
    finally:
        process.kill()


def of(page: Path, part: str) -> str:
    """The one command of a page that has this in it."""
    (command,) = [command for command in commands(page) if part in command]
    return command


def _as_anywhere(text: str) -> str:
    """Without what depends on the server: its version and position."""
    return re.sub(r"Tarantool [\d.]+|\{1: \d+\}", "…", text)


@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.one_of_these("Spark at length", seconds=90)
def test_the_readme_from_its_configuration_to_a_table(reader: Reader, tarantool: TarantoolServer, spark_java: SparkJava) -> None:
    change, example = blocks(README, "lua")[0], json.loads(blocks(README, "json")[0])
    (reader.folder / "cdc.toml").write_text(reader.text(blocks(README, "toml")[0]))
    said = _as_anywhere(reader.run(of(README, "cdc check")))
    assert not [line for line in reader.text(blocks(README, "text")[0]).splitlines() if _as_anywhere(line) not in said]
    with running(reader, of(README, "cdc run")) as daemon:
        wait_for("changes flow", lambda: "streaming" in _said(reader, of(README, "cdc status")))
        tarantool.eval(change)
        with running(reader, of(README, "console-consumer")) as consumer:
            event = wait_for("the change's event", lambda: _event(consumer.log_text(), "u"), 120)
            assert '{"id":1}\t{"op":"u"' in consumer.log_text()
        with spark_java.program() as environment:
            reader.environment |= environment
            reader.run(of(README, "spark_jobs current"))
        with spark_java.program():
            (row,) = map(json.loads, reader.run(of(README, "spark_jobs.show")).splitlines())
        assert daemon.terminate() == 0
    assert event is not None
    _has_the_form_of(event, json.loads(reader.text(json.dumps(example))))
    assert (row["path"], row["key"], row["row"]) == ("lake/current/users", {"id": 1}, example["after"])
    assert row["seq"] == event["source"]["seq"]


@pytest.mark.soak
@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_command_of_the_page_on_spark(reader: Reader) -> None:
    """The other one of its block is the README's."""
    (reader.folder / "cdc.toml").write_text(reader.text(blocks(README, "toml")[0]))
    reader.run(f"{of(README, 'cdc run')} --until-caught-up")
    reader.run(of(SPARK, "spark_jobs changelog"))
    assert list((reader.folder / "lake" / "changelog" / "space=users").glob("date=*/*.parquet"))


@pytest.mark.live
@pytest.mark.one_of_these("what the pages say to type")
@pytest.mark.timeout(600)
def test_the_commands_of_operations(reader: Reader, tarantool: TarantoolServer) -> None:
    configuration = reader.folder / "config" / "tarantool-cdc.toml"
    configuration.parent.mkdir()
    configuration.write_text(reader.text((ROOT / "config" / "tarantool-cdc.toml").read_text()))
    assert "orders" in reader.run(of(OPERATIONS, "cdc check"))
    with running(reader, of(OPERATIONS, "cdc run")) as daemon:
        wait_for("changes flow", lambda: "streaming" in _said(reader, of(OPERATIONS, "cdc status")))
        reader.run(of(OPERATIONS, "cdc snapshot"))
        assert daemon.terminate() == 0
    tarantool.eval("box.space.users:replace({2, 'Bo', 1})")
    assert reader.run(of(OPERATIONS, "cdc verify")) == ""
    reader.run(of(OPERATIONS, "cdc replay"))
    assert "nothing to give back" in reader.run(of(OPERATIONS, "cdc unregister"))


@pytest.mark.live
@pytest.mark.one_of_these("what the pages say to type")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("libraries", ["of here", pytest.param("of an index", marks=pytest.mark.soak)])
def test_installed_as_the_readme_says(tmp_path: Path, libraries: str) -> None:
    """Most of the time goes into libraries. That none is missing in pyproject.toml is what tests/test_dependencies.py says."""
    clone = tmp_path / "clone"
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in files.rstrip("\0").split("\0"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, clone / name)
    # Optimizing the compiled row path would be most of the work, and isn't what is tested here.
    (clone / ".cargo").mkdir()
    (clone / ".cargo" / "config.toml").write_text("[profile.release.package.cdc-native]\nopt-level = 0\n")
    install = of(README, "pip install")
    assert install.startswith(INSTALL)
    environment = {
        **os.environ,
        # The libraries of the compiled row path, which are most of its work, are taken from what `make setup` has compiled.
        "CARGO_TARGET_DIR": str(ROOT / "cdc" / "native" / "target"),
        "PYO3_PYTHON": sys.executable,
        "PIP_NO_COMPILE": "1",
    }
    if libraries == "of here":
        environment |= {
            "PYTHONPATH": sysconfig.get_path("purelib"),
            "PIP_NO_BUILD_ISOLATION": "0",
        }  # pip reads it as "no isolation: yes"
    typed = ["bash", "-c", install.replace("python3", sys.executable)]
    subprocess.run(typed, cwd=clone, env=environment, check=True, capture_output=True)

    def said(*command: str) -> str:
        run = subprocess.run(
            [str(clone / ".venv/bin" / command[0]), *command[1:]],
            cwd=tmp_path,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        return run.stdout

    assert re.search(r"\d+\.\d+\.\d+", said("tarantool-cdc", "--version"))
    row_path, _, place = (
        said("python", "-c", "from cdc import native; print(native.ROW_PATH, native.__file__)").strip().partition(" ")
    )
    assert row_path == "native"
    assert place.startswith(str(clone / ".venv")), "it was tried where it isn't installed"


def test_every_command_is_one_that_a_test_types() -> None:
    """Those of make and pytest name a target and files, the simulation's are options that it has.

    Others are typed elsewhere: those of Kafka's rights in test_rights, a fleet's in test_fleet.
    """
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    typed = {*commands(README), *commands(OPERATIONS), of(SPARK, "spark_jobs changelog")}
    for page in PAGES:
        for command in () if page == FLEET else commands(page):
            program, *words = command.split("#")[0].split()
            if program == "make":
                assert words[0] in targets, command
            elif "pytest" in words:
                assert all((ROOT / word).exists() for word in words if word.startswith("tests")), command
            elif "tests.simulation" in words:
                options().parse_args(words[2:])
            elif page == SPARK and command not in typed:
                assert " ".join([".venv/bin/python", *words]) in set(commands(README)), command
            else:
                assert command in typed or program == "kafka-acls.sh", f"{page.name}: {command}"


def _said(reader: Reader, command: str) -> str:
    try:
        return reader.run(command)
    except AssertionError:
        return ""  # nothing answers yet


def _event(lines: str, operation: str) -> dict[str, Any] | None:
    """The first event of this operation that the consumer has shown, behind its key."""
    values = [line.split("\t")[1] for line in lines.splitlines(keepends=True) if "\t" in line and line.endswith("\n")]
    return next((event for event in map(json.loads, values) if event and event["op"] == operation), None)


def _has_the_form_of(event: dict[str, Any], example: dict[str, Any]) -> None:
    """All but positions are as in the example, which leaves members out."""
    for name in ("op", "before", "after"):
        assert event[name] == example[name]
    for name in ("source", "transaction"):
        assert example[name].keys() <= event[name].keys()
    for name in ("connector", "name", "table", "replica_id"):
        assert event["source"][name] == example["source"][name]
    replica, lsn = event["transaction"]["id"].split(":")
    assert (int(replica), int(lsn)) == (event["source"]["replica_id"], event["source"]["lsn"])
