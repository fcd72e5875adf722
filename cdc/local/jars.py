"""The jars of Kafka and of Spark's connectors, resolved by Maven into one folder per set.

`python -m cdc.local.jars [SET…]` fetches them. The folders are `<cache>/jars/<name>-<hash of the set's POM>`, where the
cache is `$TARANTOOL_CDC_CACHE` or `~/.cache/tarantool-cdc`; a changed set gets a new folder.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cdc.local.errors import LocalServerError

_COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_DOWNLOAD_TIMEOUT_SECONDS = 1800


@dataclass(frozen=True)
class JarSet:
    """Artifacts (`group:name:version`) that share a class path.

    With `transitive` Maven adds what they need; without, the artifacts are all there is.
    """

    name: str
    artifacts: tuple[str, ...]
    transitive: bool

    @property
    def pom(self) -> str:
        """The project that Maven resolves."""
        return (
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            f"<groupId>tarantool-cdc</groupId><artifactId>{self.name}</artifactId><version>1</version>"
            f"<packaging>pom</packaging><dependencies>{''.join(map(self._dependency, self.artifacts))}</dependencies>"
            "</project>\n"
        )

    def _dependency(self, artifact: str) -> str:
        group, name, version = artifact.split(":")
        exclusion = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
        return (
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
            f"{'' if self.transitive else f'<exclusions>{exclusion}</exclusions>'}</dependency>"
        )


KAFKA = JarSet(
    "kafka",
    (
        "org.apache.kafka:kafka_2.13:4.3.1",
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",  # without a binding the broker dies in silence
    ),
    transitive=True,
)
"""A broker with its storage tool."""

SPARK = JarSet(
    "spark",
    (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.0",
        "org.apache.commons:commons-pool2:2.12.0",
        "io.delta:delta-spark_2.13:4.0.1",
        "io.delta:delta-storage:4.0.1",
    ),
    # All else that these need is in pyspark's own folder of jars, and having a class twice is trouble.
    transitive=False,
)
"""The connectors for Kafka and Delta Lake, beside what pyspark 4.0.0 carries."""


def jar_folder(jar_set: JarSet) -> Path:
    """The folder with the jars of this set, and nothing else; fetched at the first call on this machine.

    Processes that ask at the same time wait for the one that fetches. Raises `LocalServerError` if Maven isn't
    installed or fails.
    """
    cache = Path(os.environ.get("TARANTOOL_CDC_CACHE") or Path.home() / ".cache" / "tarantool-cdc") / "jars"
    folder = cache / f"{jar_set.name}-{hashlib.sha256(jar_set.pom.encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{jar_set.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            # Renamed when it is whole: a folder of this name never lacks a jar.
            with tempfile.TemporaryDirectory(dir=cache, prefix=f".{jar_set.name}-") as scratch:
                _fetch(jar_set, Path(scratch)).rename(folder)
    return folder


def class_path(jar_set: JarSet) -> str:
    """The set as Java's -cp takes it. Raises as `jar_folder`."""
    return str(jar_folder(jar_set) / "*")


def java_command() -> str:
    """The Java to run: of `$JAVA_HOME`, or on PATH. Raises `LocalServerError` if there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if found is None:
        raise LocalServerError(
            f"There is no Java in JAVA_HOME={home}." if home else "There is no `java` on PATH.",
            "Install a Java runtime, 17 or newer: apt-get install openjdk-17-jre-headless, or `make setup`.",
        )
    return found


def _fetch(jar_set: JarSet, scratch: Path) -> Path:
    maven = shutil.which("mvn")
    if maven is None:
        raise LocalServerError(
            f"There is no `mvn` on PATH, which fetches the jars of {jar_set.name}.",
            "Install Maven: apt-get install maven, or `make setup`.",
        )
    project = scratch / "pom.xml"
    project.write_text(jar_set.pom)
    jars = scratch / "jars"
    settings = ["-DincludeScope=runtime", f"-DoutputDirectory={jars}", "-Dmaven.wagon.http.retryHandler.count=3"]
    outcome = subprocess.run(
        [maven, "--batch-mode", "--quiet", "--file", str(project), _COPY_GOAL, *settings],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=_DOWNLOAD_TIMEOUT_SECONDS,
        check=False,
    )
    missing = [artifact for artifact in jar_set.artifacts if not (jars / _file_name(artifact)).is_file()]
    if outcome.returncode != 0 or missing:
        last_lines = "\n".join(outcome.stdout.splitlines()[-20:])
        raise LocalServerError(
            f"Maven couldn't fetch the jars of {jar_set.name} (exit status {outcome.returncode}; "
            f"missing: {', '.join(missing) or 'others'}).\n{last_lines}"
        )
    return jars


def _file_name(artifact: str) -> str:
    _, name, version = artifact.split(":")
    return f"{name}-{version}.jar"


def main() -> None:
    """Fetch the sets that the arguments name, or all, and say where they are."""
    jar_sets = {jar_set.name: jar_set for jar_set in (KAFKA, SPARK)}
    parser = argparse.ArgumentParser(prog="python -m cdc.local.jars", description=main.__doc__)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"one of {', '.join(jar_sets)}")
    names = parser.parse_args().sets or list(jar_sets)
    if unknown := set(names) - jar_sets.keys():
        parser.error(f"there is no set {', '.join(sorted(unknown))}; there are {', '.join(jar_sets)}")
    try:
        for name in names:
            print(f"{name}: {jar_folder(jar_sets[name])}")
    except LocalServerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
