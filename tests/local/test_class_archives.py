"""Java's class archives: brokers and Spark start with them once they are written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cdc.local import class_archives, jars


@pytest.mark.live
def test_classes_come_from_the_archive() -> None:
    options = class_archives.start_options(jars.KAFKA)
    assert options, "`make setup` writes the archives"
    command = [jars.java_command(), "-XX:+UseSerialGC", *options, "-Xlog:class+load", "-cp", jars.class_path(jars.KAFKA)]
    done = subprocess.run([*command, "kafka.tools.StorageTool", "random-uuid"], capture_output=True, text=True, check=True)
    loaded = [line for line in done.stdout.splitlines() if " org.apache.kafka." in line]
    assert loaded
    # The rest was not loaded by a broker that has its storage.
    assert sum("shared objects file" in line for line in loaded) > len(loaded) / 2


def test_spark_has_an_archive_for_the_jars_that_are_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "pyspark"
    (package / "jars").mkdir(parents=True)
    jar = package / "jars" / "spark-core.jar"
    (package / "__init__.py").touch()
    jar.touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(class_archives, "find_spec", lambda _: SimpleNamespace(origin=str(package / "__init__.py")))
    monkeypatch.setattr(jars, "jar_folder", lambda jar_set: tmp_path / f"{jar_set.name}-1")
    first = class_archives._path(jars.SPARK)
    first.touch()
    assert class_archives.start_options(jars.SPARK)[0].endswith(str(first))
    # The same jar, installed again: Java would refuse the archive, and say nothing.
    os.utime(jar, ns=(1, 1))
    assert class_archives.start_options(jars.SPARK) == []
    class_archives._remove_outdated(jars.SPARK)
    assert not first.exists()


def test_there_are_no_options_before_there_is_an_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archives, "_path", lambda jar_set: jars.jar_folder(jar_set) / "missing.jsa")
    assert class_archives.start_options(jars.KAFKA) == []
