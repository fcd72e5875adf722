from __future__ import annotations

import subprocess

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


def test_there_are_no_options_before_there_is_an_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archives, "_path", lambda jar_set: jars.jar_folder(jar_set) / "missing.jsa")
    assert class_archives.start_options(jars.KAFKA) == []
