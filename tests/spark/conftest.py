"""One Spark session for all tests of the jobs, and another one when a test has left it in the middle of a call."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.core.context import SparkContext
from pyspark.sql import SparkSession

from cdc.local.class_archives import start_options
from cdc.local.jars import SPARK, class_path, jar_folder
from spark_jobs.runner.session import build_session
from tests.live.conftest import scene, scene_factory

__all__ = ["scene", "scene_factory"]

_IS_TORN = pytest.StashKey[bool]()


class Sessions:
    """The session that tests use now."""

    def __init__(self, warehouse: Path) -> None:
        """Nothing is started yet."""
        self._warehouse = warehouse
        self._session: SparkSession | None = None

    def current(self) -> SparkSession:
        """A local session with the connectors."""
        if self._session is None:
            self._session = _start(self._warehouse)
        return self._session

    def abandon(self) -> None:
        """Go on with another one: who is interrupted waiting for Java's answer gets it for the next question."""
        self._session = None
        gateway = SparkContext._gateway
        if gateway is not None:
            java = gateway.proc
            java.kill()
            java.wait()
        # By these PySpark finds what is there; with them it would use Java's end as if it answered.
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None

    def stop(self) -> None:
        """End it in order."""
        if self._session is not None:
            self._session.stop()


def _start(warehouse: Path) -> SparkSession:
    session = build_session(
        "tests",
        master="local[1]",
        jars_directory=str(jar_folder(SPARK)),
        table_format="iceberg",
        settings={
            # What the tests do is small: starting tasks and compiling code is what takes their time. The live tests run as
            # users do, with code generation.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.databricks.delta.stats.collect": "false",
            # Otherwise each method of a column asks Java for the session, a setting and the class that keeps the place in the
            # program, which is for a person's errors; and Java takes a stack's trace for each of its own.
            "spark.python.sql.dataFrameDebugging.enabled": "false",
            "spark.sql.dataFrameQueryContext.enabled": "false",
            # Each query's plan is written down for a page that nobody looks at: in the shortest form.
            "spark.sql.ui.explainMode": "simple",
            # The one for several drivers starts sixteen processes (readlink) for each commit; this is the only driver here.
            "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
            # No table lives long enough for its log to be worth summing up.
            "spark.databricks.delta.properties.defaults.checkpointInterval": "1000",
            "spark.sql.streaming.checkpointFileManagerClass": (
                "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
            ),
            "spark.sql.shuffle.partitions": "1",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.sql.adaptive.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.python.daemon.module": "tests.spark.python_workers",
            # With both of Java's compilers, and the second one for what is called ten times as often as by default: the rest of
            # Spark runs too seldom here to get back what its compilation costs, which was as much as all that the tests do.
            "spark.driver.extraJavaOptions": " ".join(
                [
                    *("-XX:+UseSerialGC", "-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),
                    *("-XX:Tier4InvocationThreshold=50000", "-XX:Tier4MinInvocationThreshold=6000"),
                    *("-XX:Tier4CompileThreshold=150000", "-XX:Tier4BackEdgeThreshold=400000"),
                    *start_options(SPARK),
                ]
            ),
            # As the archive of classes was written; it fits no other class path.
            "spark.driver.extraClassPath": class_path(SPARK),
            "spark.sql.warehouse.dir": str(warehouse),
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    _omit_checksums(session)
    return session


def _omit_checksums(session: SparkSession) -> None:
    """Have no file of checksums beside each file, which would be made, and given its rights by a process, as well."""
    jvm: Any = session.sparkContext._jvm
    # All users of the file system in this Java share it. Iceberg asks for its scheme, which RawLocalFileSystem can't tell.
    files = jvm.org.apache.hadoop.fs.FileSystem.getLocal(session.sparkContext._jsc.hadoopConfiguration())
    files.setWriteChecksum(False)
    files.setVerifyChecksum(False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note that a test was interrupted by its timeout."""
    if call.excinfo is not None and "from pytest-timeout" in str(call.excinfo.value):
        item.config.stash[_IS_TORN] = True
    return (yield)


@pytest.fixture(scope="session")
def spark_sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    """One at a time."""
    sessions = Sessions(tmp_path_factory.mktemp("warehouse"))
    yield sessions
    sessions.stop()


@pytest.fixture
def spark(spark_sessions: Sessions, pytestconfig: pytest.Config) -> SparkSession:
    """The session; another one if the test before was interrupted in it."""
    if pytestconfig.stash.get(_IS_TORN, False):
        pytestconfig.stash[_IS_TORN] = False
        spark_sessions.abandon()
    return spark_sessions.current()
