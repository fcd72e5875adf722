"""A real daemon, and a Spark job that reads its topics, tell a catalog of lineage of their runs, into a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cdc.local import jars
from cdc.local.spark import spark_environment
from spark_jobs.runner.session import JARS_DIRECTORY_VARIABLE
from tests.live.scene import Scene
from tests.live.waiting import wait_for

pytestmark = pytest.mark.soak


def into(file: Path) -> dict[str, str]:
    """OpenLineage's own configuration."""
    return {
        "OPENLINEAGE__TRANSPORT__TYPE": "file",
        "OPENLINEAGE__TRANSPORT__LOG_FILE_PATH": str(file),
        "OPENLINEAGE__TRANSPORT__APPEND": "true",
    }


def in_file(file: Path) -> list[dict[str, Any]]:
    """The events so far."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_run_is_told(scene: Scene, tmp_path: Path) -> None:
    file = tmp_path / "events.json"
    scene.daemon.environment |= into(file)
    scene.daemon.settings["lineage"] = {"enabled": True, "interval_ms": 1_000}
    scene.daemon.settings["kafka"]["partitions"] = 1
    scene.tarantool.eval("""
        box.schema.space.create('users', {format = {{'id', 'unsigned'}, {'name', 'string'}}}):create_index('pk')
        box.space.users:insert{1, 'one'}
    """)
    scene.daemon.start()
    wait_for("the run's begin", lambda: in_file(file), 60)
    scene.catch_up()
    scene.tarantool.eval("box.schema.space.create('orders', {format = {{'id', 'unsigned'}}}):create_index('pk')")
    wait_for("the new space", lambda: any("orders" in str(event["inputs"]) for event in in_file(file)), 60)
    assert scene.daemon.terminate() == 0
    first, *_, last = in_file(file)
    assert (first["eventType"], last["eventType"]) == ("START", "COMPLETE")
    assert [each["name"] for each in first["outputs"]] == [f"{scene.prefix}.users"]
    assert [each["name"] for each in first["inputs"][0]["facets"]["schema"]["fields"]] == ["id", "name"]
    assert last["run"]["facets"]["tarantoolCdc_position"]["seq"] >= 1
    scene.check()


@pytest.mark.spark
def test_a_job_is_told(scene: Scene, tmp_path: Path) -> None:
    file, lake = tmp_path / "events.json", tmp_path / "lake"
    scene.daemon.settings["kafka"]["partitions"] = 1
    scene.tarantool.eval("""
        box.schema.space.create('users', {format = {{'id', 'unsigned'}, {'name', 'string'}}}):create_index('pk')
        box.space.users:insert{1, 'one'}
    """)
    scene.daemon.start()
    scene.catch_up()
    options = ["--bootstrap-servers", scene.kafka.bootstrap_servers, "--prefix", scene.prefix, "--path", str(lake)]
    options += ["--checkpoint", str(tmp_path / "checkpoint"), "--available-now", "--lineage", "--master", "local[1]"]
    environment = {**os.environ, **spark_environment(), JARS_DIRECTORY_VARIABLE: str(jars.jar_folder(jars.SPARK)), **into(file)}
    command = [sys.executable, "-m", "spark_jobs", "current", *options]
    subprocess.run(command, env=environment, check=True, timeout=300, capture_output=True)
    first, *_, last = in_file(file)
    assert (first["eventType"], last["eventType"]) == ("START", "COMPLETE")
    assert f"{scene.prefix}.users" in [each["name"] for each in last["inputs"]]
    tables = {each["name"]: each["facets"].get("schema", {}).get("fields", ()) for each in last["outputs"]}
    (columns,) = [fields for name, fields in tables.items() if name.endswith("/users")]
    assert {"id", "name"} <= {field["name"] for field in columns}
