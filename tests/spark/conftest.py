"""One Spark session for all tests of the jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from cdc.local.jars import SPARK, jar_folder
from spark_jobs.session import build_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with the connectors."""
    session = build_session(
        "tests",
        master="local[1]",
        jars_directory=str(jar_folder(SPARK)),
        settings={
            # What the tests do is small: starting tasks and compiling code is what takes their time. The live tests run as
            # users do, with code generation.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.databricks.delta.stats.collect": "false",
            # The one for several drivers starts sixteen processes (readlink) for each commit; this is the only driver here.
            "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
            "spark.sql.streaming.checkpointFileManagerClass": (
                "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
            ),
            "spark.sql.shuffle.partitions": "1",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.sql.adaptive.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
