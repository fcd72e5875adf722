"""A JVM that stays for several programs of Spark, one after the other: to start it and to load Spark is most of a short job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.java_gateway import launch_gateway

from cdc.local.spark import spark_environment

PORT: Final = "PYSPARK_GATEWAY_PORT"
SECRET: Final = "PYSPARK_GATEWAY_SECRET"
"""Where a program of PySpark finds these variables, it uses that JVM, and starts none."""


class SparkJava:
    """Started as PySpark starts it. It ends with `close`, or with this process, whose end it sees."""

    def __init__(self, log_file: Path) -> None:
        with pytest.MonkeyPatch.context() as patch, log_file.open("wb") as log:
            for name, value in spark_environment().items():
                patch.setenv(name, value)
            # Programs name their tables relative to its folder, not to theirs.
            files = {"stdout": log, "stderr": log, "cwd": log_file.parent}
            self._gateway = launch_gateway(popen_kwargs=files)  # type: ignore[no-untyped-call]
        parameters = self._gateway.gateway_parameters
        self.environment = {PORT: str(parameters.port), SECRET: parameters.auth_token}
        """What a program needs to use it."""

    @contextlib.contextmanager
    def program(self) -> Iterator[dict[str, str]]:
        """A program runs within this, with this environment beside its own; its session ends with it, as it would with a JVM."""
        try:
            yield self.environment
        finally:
            self._gateway.jvm.org.apache.spark.SparkContext.getOrCreate().stop()

    def close(self) -> None:
        """End it."""
        self._gateway.shutdown()
        self._gateway.proc.stdin.close()
        self._gateway.proc.wait(60)
