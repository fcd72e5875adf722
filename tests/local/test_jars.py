"""The jars of Kafka, Spark and OpenSearch, as Maven fetches them: once each, and with a remedy if that fails."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cdc.local.errors import LocalServerError
from cdc.local.jars import KAFKA, OPENSEARCH, SPARK, JarSet, class_path, jar_folder, java_command
from cdc.local.spark import spark_environment

_SET = JarSet("example", ("org.example:first:1.0", "org.example:second:2.0"), transitive=False)

# Stands in for Maven: writes down that it was called, and makes the files it is told to make.
_MAVEN = """#!/bin/sh
echo called >> "{calls}"
for argument; do case "$argument" in
  -DoutputDirectory=*) folder="${{argument#*=}}";;
  -Dmaven.repo.local=*) repository="${{argument#*=}}";;
esac; done
mkdir -p "$folder" "$repository"
for name in {names}; do : > "$folder/$name"; done
echo 'the last words of Maven'
exit {status}
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that comes first on PATH, with an empty cache beside it."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("TARANTOOL_CDC_CACHE", str(tmp_path / "cache"))
    return programs


def install_maven(programs: Path, names: str = "first-1.0.jar second-2.0.jar", status: int = 0) -> Path:
    """Put a Maven there that makes these files; the returned file has one line per call."""
    calls = programs.parent / "calls"
    maven = programs / "mvn"
    maven.write_text(_MAVEN.format(calls=calls, names=names, status=status))
    maven.chmod(0o755)
    return calls


def test_the_pom_names_each_artifact() -> None:
    namespace = {"m": "http://maven.apache.org/POM/4.0.0"}
    for jar_set, exclusions in ((KAFKA, 0), (SPARK, len(SPARK.artifacts)), (OPENSEARCH, len(OPENSEARCH.artifacts) + 1)):
        pom = ElementTree.fromstring(jar_set.pom)  # noqa: S314 - of our own making
        dependencies = pom.findall("m:dependencies/m:dependency", namespace)
        named = [":".join(part.text or "" for part in list(dependency)[:3]) for dependency in dependencies]
        archive = () if jar_set.archive is None else (jar_set.archive.rpartition(":")[0],)
        assert tuple(named) == (*jar_set.artifacts, *archive)
        assert pom.findtext(".//m:type", None, namespace) == ("zip" if archive else None)
        assert len(pom.findall(".//m:exclusion", namespace)) == exclusions


def test_a_set_is_fetched_once_however_many_ask(path: Path, tmp_path: Path) -> None:
    calls = install_maven(path)
    with ThreadPoolExecutor(8) as threads:
        folders = set(threads.map(lambda _: jar_folder(_SET), range(8)))
    (folder,) = folders
    assert calls.read_text() == "called\n"
    assert folder.parent == tmp_path / "cache" / "jars"
    assert sorted(jar.name for jar in folder.iterdir()) == ["first-1.0.jar", "second-2.0.jar"]
    assert class_path(_SET) == f"{folder}/*"
    assert (tmp_path / "cache" / "maven").is_dir(), "Maven used the user's own repository, where Spark looks first"


def test_an_archive_is_unpacked_and_the_jars_are_put_into_it(path: Path) -> None:
    calls = install_maven(path)
    unpacked = JarSet("example", _SET.artifacts, transitive=False, archive="org.example:all:1:zip", jars_in="all-1/modules/more")
    folder = jar_folder(unpacked)
    assert calls.read_text() == "called\ncalled\n"
    assert sorted(jar.name for jar in (folder / "all-1/modules/more").iterdir()) == ["first-1.0.jar", "second-2.0.jar"]


def test_a_changed_set_gets_another_folder(path: Path) -> None:
    install_maven(path)
    assert jar_folder(_SET) != jar_folder(JarSet("example", _SET.artifacts, transitive=True))


@pytest.mark.parametrize(("names", "status"), [("first-1.0.jar second-2.0.jar", 1), ("first-1.0.jar", 0)])
def test_a_failure_shows_what_maven_said_and_leaves_nothing(path: Path, tmp_path: Path, names: str, status: int) -> None:
    install_maven(path, names, status)
    with pytest.raises(LocalServerError, match="the last words of Maven") as error:
        jar_folder(_SET)
    assert ("org.example:second:2.0" in str(error.value)) == (status == 0)
    assert [left.name for left in (tmp_path / "cache" / "jars").iterdir()] == ["example.lock"]
    calls = install_maven(path)
    jar_folder(_SET)
    assert calls.read_text() == "called\ncalled\n"


def test_without_maven_or_java_the_remedy_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(LocalServerError, match="apt-get install maven"):
        jar_folder(_SET)
    with pytest.raises(LocalServerError, match=r"There is no `java` on PATH.*openjdk-17"):
        java_command()
    with pytest.raises(LocalServerError, match="java"):
        spark_environment()
    monkeypatch.setenv("JAVA_HOME", str(path / "java"))
    with pytest.raises(LocalServerError, match="no Java in JAVA_HOME"):
        java_command()
