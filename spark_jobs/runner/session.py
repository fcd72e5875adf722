"""The Spark session of a job: Delta is enabled, the connectors are on the class path, and the workers have this package."""

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
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from spark_jobs.errors import JobError
from spark_jobs.runner.options import Secret
from spark_jobs.tables.iceberg_tables import STAGED, STAGING_CATALOG
from spark_jobs.tables.views import EXTENSIONS

JARS_DIRECTORY_VARIABLE: Final = "TARANTOOL_CDC_SPARK_JARS"

SPARK: Final = "4.1"
"""The version of Spark, by its first two numbers: each moves or changes classes of its own that the jobs use."""
PACKAGES: Final = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1,org.apache.spark:spark-avro_2.13:4.1.1,io.delta:delta-spark_4.1_2.13:4.1.0"
)
"""Maven coordinates of the packages that the jobs need beside Spark itself."""
_OF_FORMATS: Final[Mapping[str, str]] = {"iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"}
"""Maven coordinates of the packages for tables of other formats than Delta."""

_UNIQUE: Final = (
    *("before", "after", "patch", "upsert", "key", "seq", "lsn", "source_ts", "sequence", "transaction_id", "kafka_offset"),
    *("_key", "_row", "_seq", "_ts"),
)
"""Columns of the jobs' tables whose values rarely repeat."""

_EXTENSIONS: Final = "spark.sql.extensions"

_SETTINGS: Final[Mapping[str, str]] = {
    _EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Only used with Iceberg's jar. Here, so that all sessions have it, also those that Spark makes for the batches.
    f"spark.sql.catalog.{STAGED}": STAGING_CATALOG,
    "spark.sql.session.timeZone": "UTC",
    # Spark shows options of Kafka's clients, for example in plans. A JAAS line contains its password.
    "spark.sql.redaction.options.regex": "(?i)url|jaas|password|secret|token|credential|key$",
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|jaas",
    # The rows of a batch belong to few partitions of a table. So write these files at the same time, without sorting all rows by
    # partition first.
    "spark.sql.maxConcurrentOutputFileWriters": "32",
    # Batches continue while tables are merged. Without this, the work that begins first would have all cores until it is done.
    "spark.scheduler.mode": "FAIR",
    # An idle job polls Kafka at this interval. By default Spark polls a hundred times a second.
    "spark.sql.streaming.pollingDelay": "100ms",
    # Number of compiled query programs that Spark caches; 100 by default, while two batches and the merges of three spaces need
    # some 150. An evicted program must be compiled again, and is slow for its first thousands of rows.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # Number of Kafka consumers that an executor keeps between batches, one per partition; 64 by default. With more partitions
    # Spark closes consumers and connects new ones in each batch, and logs a warning each time.
    "spark.kafka.consumer.cache.capacity": "2048",
    # Half as many bytes as by default, in the same time.
    "spark.sql.parquet.compression.codec": "zstd",
    # Number of rows that Spark reads from a Parquet file at a time; 4096 by default. It keeps each of their columns in one array,
    # up to three times as large as the values while the array grows. With 4096 rows of 600 KB no driver has enough memory. A read
    # of ordinary rows takes the same CPU with 32 rows.
    "spark.sql.parquet.columnarReaderBatchSize": "32",
    # Number of rows after which a page of a Parquet file is first checked against its limit of a megabyte; 100 by default. Pages
    # are in memory complete when they are written and read.
    "spark.hadoop.parquet.page.size.row.check.min": "10",
    # By default each function of a column asks Java for the place in the program from which it is called, for error messages, and
    # Java takes a trace of its own stack. No message of the jobs shows such a place.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
    # Largest method, in bytes, that Java compiles; 64 KB by default, which it would run in its slow interpreter.
    # Spark divides larger programs, as of rows with many columns, into small methods.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # Number of bytes of different values after which Parquet abandons a column's dictionary; a megabyte by default. Until then
    # it costs time for each value, and nothing is saved by it where values rarely repeat.
    "spark.hadoop.parquet.dictionary.page.size": "65536",
    # Of these columns it is known.
    **{f"spark.hadoop.parquet.enable.dictionary#{column}": "false" for column in _UNIQUE},
}

_NEW_SETTINGS: Final[Mapping[str, str]] = {
    # The job prints a line for each batch. Spark's bar of tasks, which has no line ends, would stand between them.
    "spark.ui.showConsoleProgress": "false",
    # Number of partitions into which Delta divides a table's log to read it; 50 by default, for logs of millions of files. On a
    # cluster each is a task, in every batch and for every table.
    "spark.databricks.delta.snapshotPartitions": "8",
}
"""Settings of a session that is made here, on any master; an existing one keeps its own."""

_LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    # 200 by default, each of them a task with its own overhead. A single machine has few cores.
    "spark.sql.shuffle.partitions": "8",
    # Number of partitions into which Delta divides a table's log to read it; 50 by default.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Number of tasks into which VACUUM divides the list of a table's files; 10,000 by default.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.ui.enabled": "false",
    # Spark writes down the plan of each query for that page, so in the shortest form.
    "spark.sql.ui.explainMode": "simple",
}

_COLLECTOR: Final = "-XX:+UseParallelGC"
"""Java option for the garbage collector that takes the least CPU. Its pauses, which Java's default avoids, do no harm here."""

_COMPILER: Final = " ".join(
    f"-XX:Tier4{name}Threshold={calls}"
    for name, calls in {"Invocation": 50_000, "MinInvocation": 6_000, "Compile": 150_000, "BackEdge": 400_000}.items()
)
"""Java options for the number of calls after which a method is compiled a second time, ten times as many as by default.

What is called for each record gets there within a second. Most other methods plan queries, and are called too seldom to make up
for that compilation, which would take more CPU than anything else until a job has run for an hour.
"""

_CHOOSE_JARS: Final = ("--jars", "--packages", "--driver-class-path", "spark.jars", "spark.driver.extraClassPath")
"""What in $PYSPARK_SUBMIT_ARGS says where jars are."""
_IS_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
_DEFAULTS: Final = "spark.driver.defaultJavaOptions"
"""Setting with the Java options that are overridden by all others."""
_JAVA_VARIABLES: Final = ("PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")

_LOOKED_UP: Final = ("py4j", "scala", "org", "java", "functions", "PythonUtils")
"""Names that PySpark and the jobs look up in Java, some thousand times for a few batches."""

_REPEATING_LOGGERS: Final = (
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.sql.execution.streaming.runtime.StreamExecution",
    *("org.apache.spark.executor.Executor", "org.apache.spark.scheduler.TaskSetManager", "org.apache.spark.util.Utils"),
    *("org.apache.spark.sql.execution.datasources.FileFormatWriter", "org.apache.spark.sql.delta.files.DeltaFileFormatWriter"),
)
"""Loggers that tell the error with which a job ends, each with all of Java's frames or the query's plan, before the job does."""

_KAFKA_SOURCE: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_DELTA_SOURCE: Final = "org.apache.spark.sql.delta.sources.DeltaDataSource"
_ICEBERG_SOURCE: Final = "org.apache.iceberg.spark.source.IcebergSource"


def build_session(
    name: str,
    *,
    master: str | None = None,
    jars_directory: str | None = None,
    settings: Mapping[str, str] | None = None,
    table_format: str = "delta",
) -> SparkSession:
    """Return a session for jobs. `settings` override all settings made here. Raises JobError if Spark lacks the connectors.

    Under spark-submit, that command sets the master and the class path. Otherwise the master is `local[*]` by default. The jars
    then come from `jars_directory` or $TARANTOOL_CDC_SPARK_JARS, else from where `settings` or $PYSPARK_SUBMIT_ARGS say, else
    Spark downloads them. If there is a session already, it is used, with its own number of shuffle partitions.
    """
    _check_version(pyspark.__version__)
    given = dict(settings or {})
    is_new = SparkSession.getActiveSession() is None
    chosen = {**_SETTINGS, **(_NEW_SETTINGS if is_new else {})}
    if table_format in _OF_FORMATS:
        # Not in each session: without Iceberg's jar, Spark logs that the class isn't there.
        chosen[_EXTENSIONS] = f"{EXTENSIONS},{chosen[_EXTENSIONS]}"
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted or master is not None:
        master = master or given.get("spark.master", "local[*]")
        chosen["spark.master"] = master
        if master.startswith("local") and is_new:
            chosen |= {**_LOCAL_SETTINGS, **_java_options(given)}
            # Workers would use the first python3 on PATH. PySpark reads this from the environment only, not from its settings.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not submitted:
        chosen |= _class_path(jars_directory or os.environ.get(JARS_DIRECTORY_VARIABLE), given, _packages(table_format))
    _start_java({**chosen, **given})
    builder: Any = SparkSession.builder
    session: SparkSession = builder.appName(name).config(map={**chosen, **given}).getOrCreate()
    _check_class_path(session, table_format)
    _keep_names(session)
    if not submitted and str(session.sparkContext.master).startswith("local"):
        _quieten(session)
    _send_package(session)
    return session


def _check_version(found: str) -> None:
    """Raise JobError if this isn't the version of Spark that the jobs are written for."""
    if not found.startswith(f"{SPARK}."):
        raise JobError(
            f"The jobs need Spark {SPARK}, and this is Spark {found}. Run them with a Spark of their own: pip install"
            f" 'tarantool-cdc[spark]', and --master local[*] or a cluster of Spark {SPARK}."
        )


def _start_java(settings: Mapping[str, str]) -> None:
    """Start Java without the secrets among the settings: PySpark puts all settings into Java's command line, which `ps` shows.

    The session gets the secrets afterwards, over PySpark's own connection to Java. Without secrets PySpark starts Java itself.
    """
    if any(isinstance(value, Secret) for value in settings.values()):
        shown = [(name, value) for name, value in settings.items() if not isinstance(value, Secret)]
        SparkContext._ensure_initialized(conf=SparkConf().setAll(shown))


def _java_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the setting for `_COLLECTOR` and `_COMPILER`.

    The collector is left out if another one is chosen, as Java doesn't start with two. With the setting in use, nothing is set.
    """
    home = os.environ.get("SPARK_HOME") or pyspark.__path__[0]
    defaults = Path(os.environ.get("SPARK_CONF_DIR") or f"{home}/conf") / "spark-defaults.conf"
    texts = [given.get("spark.driver.extraJavaOptions", ""), *(os.environ.get(name, "") for name in _JAVA_VARIABLES)]
    if defaults.is_file():
        texts.append(defaults.read_text())
    if _DEFAULTS in given or any(_DEFAULTS in text for text in texts):
        return {}
    has_collector = any(_IS_COLLECTOR.search(text) for text in texts)
    return {_DEFAULTS: _COMPILER if has_collector else f"{_COLLECTOR} {_COMPILER}"}


def _packages(table_format: str) -> str:
    return f"{PACKAGES},{_OF_FORMATS[table_format]}" if table_format in _OF_FORMATS else PACKAGES


def _class_path(directory: str | None, given: Mapping[str, str], packages: str) -> dict[str, str]:
    if directory:
        jars = sorted(str(jar.absolute()) for jar in Path(directory).glob("*.jar"))
        if not jars:
            raise JobError(f"There are no jars in {directory}. It must contain those of {packages} and their dependencies.")
        return {"spark.jars": ",".join(jars)}
    submitted = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    if "spark.jars" in given or "spark.jars.packages" in given or any(option in submitted for option in _CHOOSE_JARS):
        return {}
    return {"spark.jars.packages": packages}


def _check_class_path(session: SparkSession, table_format: str) -> None:
    loader = session.sparkContext._jvm.java.lang.Thread.currentThread().getContextClassLoader()  # type: ignore[union-attr]
    for name in (_KAFKA_SOURCE, _DELTA_SOURCE, *((_ICEBERG_SOURCE,) if table_format in _OF_FORMATS else ())):
        try:
            loader.loadClass(name)
        except Py4JError as error:
            raise JobError(
                f"Spark's class path has no {name}. Start spark-submit with --packages {_packages(table_format)}, or with --jars"
                " and the files; or set spark.jars or spark.jars.packages in the configuration of the running session."
            ) from error


def _quieten(session: SparkSession) -> None:
    """Have an error told only once, by the job. A local session doesn't try again what has failed."""
    logging: Any = session.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    for name in _REPEATING_LOGGERS:
        logging.core.config.Configurator.setLevel(name, logging.Level.OFF)


def _keep_names(session: SparkSession) -> None:
    """Cache the Java objects of these names. Otherwise each use searches all jars, under all of PySpark's imports."""
    jvm: Any = session.sparkContext._jvm
    for name in _LOOKED_UP:
        setattr(jvm, name, getattr(jvm, name))


def _send_package(session: SparkSession) -> None:
    """Send this package to the workers, which import it by name to run Python functions."""
    package = Path(__file__).parent.parent
    name = f"{package.name}.zip"
    context = session.sparkContext
    if not package.is_dir():
        return  # the package is in an archive of spark-submit (--py-files), which Spark sends to the workers
    if any(file.endswith(f"/{name}") for file in context.listFiles):
        return
    scratch = Path(tempfile.mkdtemp(prefix="tarantool-cdc-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)  # not earlier: workers fetch the zip when they start
    with zipfile.ZipFile(scratch / name, "w") as content:
        for module in sorted(package.rglob("*.py")):
            content.write(module, f"{package.name}/{module.relative_to(package)}")
    context.addPyFile(str(scratch / name))
