"""`make demo`, as a user runs it: the whole chain on real servers, and the tables of `current` equal to the master's contents."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from setuptools import find_packages  # type: ignore[import-untyped] # it has no types

from cdc import cli
from cdc.local import demo

if TYPE_CHECKING:
    from tests.live.spark_java import SparkJava

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.one_of_these("Spark at length", seconds=120)
def test_demo_ends_well_and_says_that_all_rows_are_equal(spark_java: SparkJava) -> None:
    """With less work, and a JVM that other tests have used; `make demo` waits for eight seconds of work, and for a new one."""
    briefly = "import sys; from cdc import cli; from cdc.local import demo; demo.WORK_SECONDS = 2; sys.exit(cli.main(['demo']))"
    with spark_java.program() as environment:
        check([sys.executable, "-c", briefly], environment)


@pytest.mark.soak
@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_demo_of_a_user() -> None:
    check([sys.executable, "-m", "cdc", "demo"], {})


def check(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for space in ("accounts", "orders"):
        assert f"{space}: all " in done.stdout
    assert "DIFFER" not in done.stdout


@pytest.mark.parametrize("module", ["spark_jobs", "spark_jobs.show", "spark_jobs.sequence"])
def test_without_pyspark_a_sentence_says_what_to_install(module: str) -> None:
    # -S leaves out everything that was installed.
    done = subprocess.run([sys.executable, "-S", "-m", module], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (1, "The Spark jobs need PySpark: pip install '.[spark]'\n")


def test_without_pyspark_the_demo_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda _: None)
    monkeypatch.setattr(demo, "local_servers", lambda _: pytest.fail("something was started"))
    with pytest.raises(demo.DemoError, match=r"The Spark jobs need PySpark: pip install '\.\[spark\]'"):
        demo.demo(keep=False)


def test_an_installed_package_leaves_the_servers_out_and_says_where_the_demo_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    packages = find_packages(str(ROOT), include=found["include"], exclude=found["exclude"])
    assert {"cdc", "cdc.daemon", "spark_jobs", "spark_jobs.lake"} <= set(packages)
    assert not [name for name in packages if name.startswith(("cdc.local", "tests"))]
    monkeypatch.setattr(cli, "find_spec", lambda _: None)
    assert cli.main(["demo"]) == 1
    assert "run `make demo` in a checkout of the sources" in capsys.readouterr().err
