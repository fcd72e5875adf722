"""Environment of a Spark job on this machine: the connectors' jars, and settings for a small driver.

`python -m cdc.local.spark PROGRAM ARGUMENT…` runs a program in this environment.
"""

from __future__ import annotations

import os
import shlex
import sys

from cdc.local import class_archives
from cdc.local.errors import LocalServerError
from cdc.local.jars import SPARK, class_path, java_command

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The default is two hundred: with two cores and a few thousand rows, that is nothing but overhead.
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def spark_submit_arguments() -> list[str]:
    """Return the options for `spark-submit`, to be put before the program: two local threads, 1 GiB, Kafka's and Delta's jars.

    Fetches missing jars. Raises `LocalServerError` if they are unavailable.
    """
    settings = [part for key, value in _SETTINGS.items() for part in ("--conf", f"{key}={value}")]
    return [
        "--master",
        "local[2]",
        "--driver-memory",
        "1g",
        # These programs end before better code would repay its compilation.
        "--driver-java-options",
        shlex.join(
            [
                *("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m", "-XX:+UseSerialGC"),
                *class_archives.start_options(SPARK),
            ]
        ),
        # On the driver's own class path, which in local mode all parts share; `--jars` would copy them at each start.
        "--driver-class-path",
        class_path(SPARK),
        *settings,
    ]


def spark_environment() -> dict[str, str]:
    """Return the additions to the environment of `python -m spark_jobs`, or of any program that makes a SparkSession.

    The settings in the program's own builder win, except for memory and class path. Raises `LocalServerError` if Java or
    the jars are unavailable.
    """
    java_command()  # without Java, pyspark fails with a message about a gateway
    return {
        "PYSPARK_SUBMIT_ARGS": shlex.join([*spark_submit_arguments(), "pyspark-shell"]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def main() -> None:
    """Replace this process by the program that the arguments name, with jars and settings in its environment."""
    program = sys.argv[1:]
    if not program:
        sys.exit("usage: python -m cdc.local.spark PROGRAM ARGUMENT…")
    try:
        os.execvpe(program[0], program, {**os.environ, **spark_environment()})  # noqa: S606 - no shell is wanted
    except (LocalServerError, OSError) as error:
        sys.exit(f"{program[0]} can't be run: {error}")


if __name__ == "__main__":
    main()
