"""Archives of the classes that Java loads: with them a broker or a Spark job starts with two thirds of the work.

Java writes such an archive when a run ends, and maps it at the next start with the same class path. One that doesn't fit, after
another Java or other jars have been installed, is passed over in silence, and nothing but the time is lost.

`python -m cdc.local.class_archives` writes those that are missing: of a broker, and of a job that goes from a topic to a table.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from cdc.local import jars
from cdc.local.errors import LocalServerError

_OPTIONS: Final = "JAVA_TOOL_OPTIONS"
"""What Java takes from the environment, whoever starts it."""
_JOB_TIMEOUT_SECONDS: Final = 600


def start_options(jar_set: jars.JarSet) -> list[str]:
    """The options that have Java use the archive of this class path; none before it was written."""
    archive = _path(jar_set)
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds*=off"] if archive.exists() else []


def write() -> None:
    """Write the archives, unless they are there. Raises `LocalServerError` if the broker or the job fails."""
    from cdc.local.kafka import Kafka  # it takes its options from here

    if all(_path(jar_set).exists() for jar_set in (jars.KAFKA, jars.SPARK)):
        return
    for jar_set in (jars.KAFKA, jars.SPARK):
        _path(jar_set).unlink(missing_ok=True)
    # Beside the archives, so that each appears whole.
    with tempfile.TemporaryDirectory(dir=_path(jars.KAFKA).parent, prefix=".classes-") as folder:
        written = {jar_set: Path(folder) / f"{jar_set.name}.jsa" for jar_set in (jars.KAFKA, jars.SPARK)}
        os.environ[_OPTIONS] = _writing(written[jars.KAFKA])
        with Kafka(Path(folder) / "kafka") as kafka:
            os.environ[_OPTIONS] = _writing(written[jars.SPARK])
            _run_a_job(kafka.bootstrap_servers, Path(folder) / "table")
        del os.environ[_OPTIONS]
        for jar_set, archive in written.items():
            if archive.exists():
                archive.rename(_path(jar_set))
            else:
                print(f"this Java writes no archive of its classes: {jar_set.name} goes on starting slowly")


def _path(jar_set: jars.JarSet) -> Path:
    return jars.jar_folder(jar_set).with_suffix(".jsa")


def _writing(archive: Path) -> str:
    return f"-XX:ArchiveClassesAtExit={archive} -Xlog:cds*=off"


def _run_a_job(bootstrap_servers: str, table: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "cdc.local.spark"),
            *(sys.executable, "-m", "cdc.local.class_archives", bootstrap_servers, str(table)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,  # until Java has closed it, too, and has written its archive
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
    """Write the archives; with the addresses of brokers and a folder, be the job."""
    if sys.argv[1:]:
        _job(*sys.argv[1:])
        return
    try:
        write()
    except LocalServerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
