"""Archives of the classes that Java loads: with them, a broker or a Spark job starts with two thirds of the work.

Java writes such an archive at the end of a run, and maps it at the next start with the same class path. If an archive doesn't
fit, for example after another Java has been installed, Java ignores it silently; only the time is lost. Spark's archive is in
the virtual environment that has PySpark's jars, since it fits no other jars than these, even if the others are equal to the
byte.

`python -m cdc.local.class_archives` writes the missing archives: for a broker, and for a job that copies a topic to a table.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from cdc.local import jars
from cdc.local.errors import LocalServerError

_OPTIONS: Final = "JAVA_TOOL_OPTIONS"
"""Environment variable with options for Java, whoever starts it."""
_JOB_TIMEOUT_SECONDS: Final = 600


def start_options(jar_set: jars.JarSet) -> list[str]:
    """Return the options that make Java use the archive of this class path; none before the archive was written."""
    archive = _path(jar_set)
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds*=off"] if archive.exists() else []


def write() -> None:
    """Write the archives that are missing. Raises `LocalServerError` if the broker or the job fails."""
    from cdc.local.kafka import Kafka  # imported here because that module imports this one

    missing = [jar_set for jar_set in (jars.KAFKA, jars.SPARK) if not _path(jar_set).exists()]
    if not missing:
        return
    with contextlib.ExitStack() as exits:
        # In the archives' own folders, so that each appears complete, by renaming.
        folders = {
            jar_set: Path(exits.enter_context(tempfile.TemporaryDirectory(dir=_path(jar_set).parent, prefix=".classes-")))
            for jar_set in missing
        }
        written = {jar_set: folder / "classes.jsa" for jar_set, folder in folders.items()}
        scratch = folders[missing[0]]
        with _writing(written.get(jars.KAFKA)):
            kafka = exits.enter_context(Kafka(scratch / "kafka"))
        if jars.SPARK in missing:
            with _writing(written[jars.SPARK]):
                _run_a_job(kafka.bootstrap_servers, scratch / "table")
        kafka.stop()  # now Java writes its archive
        for jar_set, archive in written.items():
            if archive.exists():
                _remove_outdated(jar_set)
                archive.rename(_path(jar_set))
            else:
                print(f"this Java writes no archive of its classes: {jar_set.name} continues to start slowly")


def _path(jar_set: jars.JarSet) -> Path:
    """Return where the set's archive is. Java rejects one whose jars have other times, as those of another installation do."""
    folder = jars.jar_folder(jar_set)
    if jar_set is not jars.SPARK or (pyspark := find_spec("pyspark")) is None or pyspark.origin is None:
        return folder.with_suffix(".jsa")
    all_jars = sorted([*(Path(pyspark.origin).parent / "jars").glob("*.jar"), *folder.glob("*.jar")])
    times = [(jar.name, jar.stat().st_mtime_ns) for jar in all_jars]
    # Inside the installation that it belongs to, so that both are deleted together.
    return Path(sys.prefix) / f"{folder.name}-{zlib.crc32(repr(times).encode()):08x}.jsa"


def _remove_outdated(jar_set: jars.JarSet) -> None:
    if (folder := _path(jar_set).parent) == Path(sys.prefix):
        for archive in folder.glob(f"{jar_set.name}-*.jsa"):
            archive.unlink()


@contextlib.contextmanager
def _writing(archive: Path | None) -> Iterator[None]:
    """Make each Java process that starts in this context write this archive at its end."""
    if archive is None:
        yield
        return
    os.environ[_OPTIONS] = f"-XX:ArchiveClassesAtExit={archive} -Xlog:cds*=off"
    try:
        yield
    finally:
        del os.environ[_OPTIONS]


def _run_a_job(bootstrap_servers: str, table: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "cdc.local.spark"),
            *(sys.executable, "-m", "cdc.local.class_archives", bootstrap_servers, str(table)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,  # read until Java has closed it, too, and has written its archive
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=_JOB_TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        last_lines = "\n".join(done.stdout.splitlines()[-20:])
        raise LocalServerError(f"a Spark job from a topic to a table failed (exit status {done.returncode}).\n{last_lines}")


def _job(bootstrap_servers: str, table: str) -> None:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.getOrCreate()
    kafka = {"kafka.bootstrap.servers": bootstrap_servers}
    rows = session.range(100).selectExpr("CAST(id AS STRING) AS key", "CAST(id % 7 AS STRING) AS value")
    rows.write.format("kafka").options(**kafka, topic="rows").save()
    stream = session.readStream.format("kafka").options(**kafka, subscribe="rows", startingOffsets="earliest").load()
    writer = stream.writeStream.format("delta").option("checkpointLocation", f"{table}.checkpoint").trigger(availableNow=True)
    writer.start(table).awaitTermination()
    session.read.format("delta").load(table).groupBy("value").count().collect()
    session.stop()


def main() -> None:
    """Write the archives; given the addresses of brokers and a folder, run the job instead."""
    if sys.argv[1:]:
        _job(*sys.argv[1:])
        return
    try:
        write()
    except LocalServerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
