"""The Spark session of a job: Delta switched on, the connectors on the class path, this package on the workers."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyspark
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from spark_jobs.errors import JobError

JARS_DIRECTORY_VARIABLE: Final = "TARANTOOL_CDC_SPARK_JARS"

PACKAGES: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0,io.delta:delta-spark_2.13:4.0.1"
"""What the jobs need beside Spark itself."""

_UNIQUE: Final = (
    *("before", "after", "patch", "upsert", "key", "seq", "lsn", "source_ts", "sequence", "transaction_id", "kafka_offset"),
    *("_key", "_row", "_seq", "_ts"),
)
"""Columns of the jobs' tables whose values hardly ever repeat."""

_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    # Where Spark shows options of Kafka's clients, as in plans: a line for JAAS has its password inside.
    "spark.sql.redaction.options.regex": "(?i)url|jaas|password|secret|token|credential|key$",
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|jaas",
    # Rows of a batch go to few partitions of a table: files side by side instead of a sort of all rows by partition.
    "spark.sql.maxConcurrentOutputFileWriters": "32",
    # Batches go on while tables are merged: else the one that is begun first would have all cores until it is done.
    "spark.scheduler.mode": "FAIR",
    # A job that has nothing to do asks Kafka so seldom whether there is something; a hundred times a second by default.
    "spark.sql.streaming.pollingDelay": "100ms",
    # Java programs that Spark has compiled for queries; 100 by default, while two batches and the merges of three spaces have
    # some 150. Whatever was forgotten is compiled anew, and slow for its first thousands of rows.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # Half as many bytes as by default, in the same time.
    "spark.sql.parquet.compression.codec": "zstd",
    # A dictionary is given up after a megabyte of values; finding out costs a third of what writing an event does.
    **{f"spark.hadoop.parquet.enable.dictionary#{column}": "false" for column in _UNIQUE},
}

_LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    # 200 by default, each a task with its own overhead; a machine has few cores.
    "spark.sql.shuffle.partitions": "8",
    # Into which Delta cuts a table's log to read it; 50 by default.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Into as many tasks VACUUM cuts the list of a table's files; 10,000 by default.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

_COLLECTOR: Final = "-XX:+UseParallelGC"
"""The garbage collector that takes the least CPU; its pauses, which Java's default avoids, delay nobody here."""

_IS_CHOSEN: Final = re.compile(r"-XX:\+Use\w+GC\b|spark\.driver\.defaultJavaOptions")
"""What says so: another collector, or options that the setting of this one would take the place of."""
_JAVA_VARIABLES: Final = ("PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")

_LOOKED_UP: Final = ("py4j", "scala", "org", "java", "functions", "PythonUtils")
"""What PySpark and the jobs ask Java for by name, some thousand times for a few batches."""

_KAFKA_SOURCE: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_DELTA_SOURCE: Final = "org.apache.spark.sql.delta.sources.DeltaDataSource"


def build_session(
    name: str, *, master: str | None = None, jars_directory: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session for jobs. `settings` win over all that is set here. Raises JobError if Spark lacks the connectors.

    Under spark-submit the master and the class path are that command's; alone, the master is `local[*]`, and the jars come
    from `jars_directory` or $TARANTOOL_CDC_SPARK_JARS, else from `spark.jars` or `spark.jars.packages` in `settings`, else
    they are resolved by Spark. A session that is there is used, with the number of partitions that it has.
    """
    given = dict(settings or {})
    chosen = dict(_SETTINGS)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted or master is not None:
        master = master or given.get("spark.master", "local[*]")
        chosen["spark.master"] = master
        if master.startswith("local") and SparkSession.getActiveSession() is None:  # one that is there has its own
            chosen |= {**_LOCAL_SETTINGS, **_collector(given)}
            # Workers would take the first python3 on PATH. PySpark asks the environment alone, and not its configuration.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not submitted:
        chosen |= _class_path(jars_directory or os.environ.get(JARS_DIRECTORY_VARIABLE), given)
    builder: Any = SparkSession.builder
    session: SparkSession = builder.appName(name).config(map={**chosen, **given}).getOrCreate()
    _check_class_path(session)
    _keep_names(session)
    _send_package(session)
    return session


def _collector(given: Mapping[str, str]) -> dict[str, str]:
    """The setting for `_COLLECTOR`; none where one is chosen, as Java doesn't start with two, or where its place is taken."""
    home = os.environ.get("SPARK_HOME") or pyspark.__path__[0]
    defaults = Path(os.environ.get("SPARK_CONF_DIR") or f"{home}/conf") / "spark-defaults.conf"
    texts = [given.get("spark.driver.extraJavaOptions", ""), *(os.environ.get(name, "") for name in _JAVA_VARIABLES)]
    if defaults.is_file():
        texts.append(defaults.read_text())
    return {} if any(_IS_CHOSEN.search(text) for text in texts) else {"spark.driver.defaultJavaOptions": _COLLECTOR}


def _class_path(directory: str | None, given: Mapping[str, str]) -> dict[str, str]:
    if directory:
        jars = sorted(str(jar.absolute()) for jar in Path(directory).glob("*.jar"))
        if not jars:
            raise JobError(f"There are no jars in {directory}. It should hold those of {PACKAGES} and what they depend on.")
        return {"spark.jars": ",".join(jars)}
    if "spark.jars" in given or "spark.jars.packages" in given:
        return {}
    return {"spark.jars.packages": PACKAGES}


def _check_class_path(session: SparkSession) -> None:
    loader = session.sparkContext._jvm.java.lang.Thread.currentThread().getContextClassLoader()  # type: ignore[union-attr]
    for name in (_KAFKA_SOURCE, _DELTA_SOURCE):
        try:
            loader.loadClass(name)
        except Py4JError as error:
            raise JobError(
                f"Spark's class path has no {name}. Start spark-submit with --packages {PACKAGES}, or with --jars and the "
                "files; or give the running session's configuration spark.jars or spark.jars.packages."
            ) from error


def _keep_names(session: SparkSession) -> None:
    """Keep what these names stand for: Java would look for each, every time, in all jars and under all imports of PySpark's."""
    jvm: Any = session.sparkContext._jvm
    for name in _LOOKED_UP:
        setattr(jvm, name, getattr(jvm, name))


def _send_package(session: SparkSession) -> None:
    """Python functions run in workers, which import this package by name wherever they are."""
    package = Path(__file__).parent
    name = f"{package.name}.zip"
    context = session.sparkContext
    if not package.is_dir():
        return  # it is in an archive that spark-submit was given (--py-files), and sends itself
    if any(file.endswith(f"/{name}") for file in context.listFiles):
        return
    scratch = Path(tempfile.mkdtemp(prefix="tarantool-cdc-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)  # workers fetch it when they start, so not before
    with zipfile.ZipFile(scratch / name, "w") as content:
        for module in sorted(package.rglob("*.py")):
            content.write(module, f"{package.name}/{module.relative_to(package)}")
    context.addPyFile(str(scratch / name))
