"""A cluster of Spark on this machine: a master and workers as processes, of which each can be killed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pyspark

from cdc.local.jars import java_command
from cdc.local.process import ChildProcess
from tests.live.waiting import wait_for

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_ADDRESS = re.compile(r"Starting Spark master at (spark://\S+)")
_STARTED = re.compile(r"Launched executor|Asked to launch executor")


class SparkCluster:
    """Spark's own standalone cluster. `workers` are processes; what a worker has started (its executors) is in its group."""

    def __init__(self, folder: Path, workers: int) -> None:
        """Start the master, and after it the workers, each with one core."""
        self._folder = folder
        self.master = self._start("master", _MASTER)
        self.url = str(wait_for("the address of Spark's master", lambda: _address(self.master)))
        self.workers = [self._worker(number) for number in range(workers)]

    def has_executor(self, worker: ChildProcess) -> bool:
        """Return whether the worker was asked to start an executor."""
        return _STARTED.search(worker.log_text()) is not None

    def kill(self) -> None:
        """End everything."""
        for process in (*self.workers, self.master):
            process.kill()

    def _worker(self, number: int) -> ChildProcess:
        work = self._folder / f"work-{number}"
        return self._start(f"worker-{number}", _WORKER, "--cores", "1", "--memory", "1g", "--work-dir", str(work), self.url)

    def _start(self, name: str, program: str, *arguments: str) -> ChildProcess:
        home = pyspark.__path__[0]
        jars = Path(home) / "jars" / "*"
        own = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        return ChildProcess(
            f"Spark's {name}",
            [java_command(), "-Xmx256m", "-XX:+UseSerialGC", "-cp", str(jars), program, *own, *arguments],
            log_file=self._folder / f"{name}.log",
            # A worker starts executors with these, which are usually set by the scripts that PySpark lacks.
            environment={"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": home, "SPARK_SCALA_VERSION": "2.13"},
        )


@contextlib.contextmanager
def spark_cluster(folder: Path, workers: int) -> Iterator[SparkCluster]:
    """A cluster that ends with this."""
    cluster = SparkCluster(folder, workers)
    try:
        yield cluster
    finally:
        cluster.kill()


def _address(master: ChildProcess) -> str | None:
    found = _ADDRESS.search(master.log_text())
    return None if found is None else found[1]
