"""The daemon as a process of its own, and what the kernel says about it: CPU time, and the most memory it ever had."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cdc.local.interface import KafkaServer, TarantoolServer
from cdc.local.process import ChildProcess

Delivery = Literal["exactly_once", "at_least_once"]
DELIVERIES: Final[tuple[Delivery, ...]] = ("exactly_once", "at_least_once")

RUN_TIMEOUT_SECONDS: Final = 1200.0
_SAMPLE_SECONDS: Final = 0.02
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class _Sample:
    time: float
    cpu_seconds: float
    peak_rss_bytes: int
    rss_bytes: int
    anonymous_bytes: int


class Usage:
    """Follows a process through /proc from its start to its end."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._samples: list[_Sample] = []
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop sampling."""
        self._is_stopping.set()
        self._thread.join()

    @property
    def peak_rss_bytes(self) -> int:
        """VmHWM of the last sample: the kernel's own maximum."""
        return self._samples[-1].peak_rss_bytes if self._samples else 0

    @property
    def peak_anonymous_bytes(self) -> int:
        """The most RssAnon of all samples: without the pages of files, as the store's are."""
        return max((sample.anonymous_bytes for sample in self._samples), default=0)

    @property
    def rss_bytes(self) -> int:
        """VmRSS of the last sample."""
        return self._samples[-1].rss_bytes if self._samples else 0

    def cpu_seconds(self, start: float, end: float) -> float:
        """User and system time between two moments of the wall clock."""
        return self._cpu_at(end) - self._cpu_at(start)

    def _cpu_at(self, moment: float) -> float:
        """Between two samples the time is taken to have been used evenly."""
        before: _Sample | None = None
        for sample in self._samples:
            if sample.time >= moment:
                if before is None:
                    return sample.cpu_seconds
                share = (moment - before.time) / (sample.time - before.time)
                return before.cpu_seconds + share * (sample.cpu_seconds - before.cpu_seconds)
            before = sample
        return before.cpu_seconds if before is not None else 0.0

    def _run(self) -> None:
        while not self._is_stopping.wait(_SAMPLE_SECONDS):
            # It has ended, or is a zombie without memory.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, KeyError):
                self._sample()

    def _sample(self) -> None:
        now = time.time()
        # The name in parentheses may hold spaces; the numbers after it don't.
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        status = dict(row.split(":", 1) for row in Path(f"/proc/{self._pid}/status").read_text().splitlines())
        peak, rss, anonymous = (int(status[key].split()[0]) * 1024 for key in ("VmHWM", "VmRSS", "RssAnon"))
        cpu_seconds = (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
        self._samples.append(_Sample(now, cpu_seconds, peak, rss, anonymous))


class CheckpointWatch:
    """Sees the daemon's commits as any reader of committed records does: the moment when a checkpoint record arrives."""

    def __init__(self, kafka: KafkaServer, prefix: str) -> None:
        """Watch from the topic's present end on."""
        self._consumer = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "group.id": f"{prefix}-watch",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        partition = TopicPartition(f"{prefix}.checkpoint", 0)
        _, partition.offset = self._consumer.get_watermark_offsets(partition, timeout=30)
        self._consumer.assign([partition])
        self.commit_count = 0

    def close(self) -> None:
        """Let go of the connection."""
        self._consumer.close()

    def wait(self, lsn: int, process: ChildProcess, seconds: float = RUN_TIMEOUT_SECONDS) -> float:
        """The time when the record arrives whose position has `lsn` of origin 1."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            message = self._consumer.poll(0.2)
            now = time.time()
            if message is None:
                if process.exit_status() not in (None, 0):
                    raise RuntimeError(f"the daemon has ended:\n{process.log_tail()}")
                continue
            if (error := message.error()) is not None:
                if error.retriable() or error.code() == KafkaError._ALL_BROKERS_DOWN:
                    continue
                raise KafkaException(error)
            position = json.loads(message.value() or b"{}")
            if "vclock" in position:
                self.commit_count += 1
                if position["vclock"].get("1", 0) >= lsn:
                    return now
        raise TimeoutError(f"lsn {lsn} wasn't committed in {seconds:.0f} s:\n{process.log_tail()}")


@dataclass(frozen=True)
class Run:
    """One run of the daemon over rows: the times of its start, of its first row and of its last commit."""

    started: float
    first_row: float
    last_commit: float
    cpu_seconds: float
    peak_rss_bytes: int
    peak_anonymous_bytes: int
    commit_count: int

    @property
    def seconds(self) -> float:
        """From the first row to the last commit."""
        return self.last_commit - self.first_row

    @property
    def whole_seconds(self) -> float:
        """From the start of the process to the last commit."""
        return self.last_commit - self.started


class Daemon:
    """A configured daemon that can be run again and again: its position is in Kafka."""

    def __init__(
        self,
        directory: Path,
        prefix: str,
        master: TarantoolServer,
        kafka: KafkaServer,
        delivery: Delivery,
        *,
        properties: Mapping[str, str | int] | None = None,
        images: bool = False,
        listen: str = "",
    ) -> None:
        self.prefix = prefix
        self._kafka = kafka
        self._directory = directory / prefix
        self._directory.mkdir(parents=True, exist_ok=True)
        self._log_file = self._directory / "daemon.log"
        self._config_file = self._directory / "daemon.toml"
        # A JSON string is a TOML string, too.
        extra = "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in (properties or {}).items())
        self._config_file.write_text(
            f"name = {json.dumps(prefix)}\n"
            f"[source]\nuris = [{json.dumps(master.uri)}]\n"
            f'[state]\npath = {json.dumps(str(self._directory / "state"))}\nimages = "{"full" if images else "none"}"\n'
            f"[kafka]\nbootstrap_servers = {json.dumps(kafka.bootstrap_servers)}\n"
            f"topic_prefix = {json.dumps(prefix)}\ndelivery = {json.dumps(delivery)}\n"
            f'[http]\nlisten = "{listen}"\n[log]\nformat = "json"\n'
            f"[kafka.properties]\n{extra}"
        )

    def start(self, *, until_caught_up: bool = False) -> ChildProcess:
        """Start the process."""
        command = [sys.executable, "-m", "cdc", "run", "--config", str(self._config_file)]
        if until_caught_up:
            command.append("--until-caught-up")
        return ChildProcess(f"the daemon {self.prefix}", command, log_file=self._log_file, working_directory=self._directory)

    def start_tap(self, port: int) -> ChildProcess:
        """Start a TAP server beside it."""
        config_file = self._directory / "tap.toml"
        config_file.write_text(f'{self._config_file.read_text()}[tap]\nlisten = "127.0.0.1:{port}"\nhttp = ""\n')
        command = [sys.executable, "-m", "cdc", "tap", "--config", str(config_file)]
        file = self._directory / "tap.log"
        return ChildProcess(f"the TAP server of {self.prefix}", command, log_file=file, working_directory=self._directory)

    def catch_up(self) -> None:
        """Run until caught up, unmeasured."""
        process = self.start(until_caught_up=True)
        try:
            _expect_success(process)
        finally:
            process.kill()

    def measure_tail(self, lsn: int) -> Run:
        """Run until caught up, over rows that come by the stream and end at `lsn`.

        The first row is taken to come when the daemon logs that it follows the master, which is when it has subscribed;
        the last commit is when a reader sees its checkpoint.
        """
        return measure_tail(self._kafka, self.prefix, lambda: self.start(until_caught_up=True), lsn)

    def measure_replay(self, files: Path) -> Run:
        """Read a server's files from their beginning, which is its first snapshot, to their end.

        From opening the first file until all is committed, as the daemon logs them.
        """
        command = [sys.executable, "-m", "cdc", "replay", "--config", str(self._config_file), str(files)]
        return self._measure_logged(
            lambda: ChildProcess(
                f"the replay {self.prefix}", command, log_file=self._log_file, working_directory=self._directory
            ),
            until="stopped",
        )

    def measure_snapshot(self) -> Run:
        """Run until caught up with the snapshot that it takes at first, which must hold all rows.

        From asking for the snapshot until all of it is committed, as the daemon logs them.
        """
        return self._measure_logged(lambda: self.start(until_caught_up=True), until="the snapshot is complete")

    def _measure_logged(self, start: Callable[[], ChildProcess], *, until: str) -> Run:
        """A run that ends by itself, from its snapshot's beginning until it logs this event."""
        started = time.time()
        process = start()
        usage = Usage(process.pid)
        try:
            _expect_success(process)
            usage.close()
            first, last = logged_at(process, "taking a snapshot"), logged_at(process, until)
            memory = usage.peak_rss_bytes, usage.peak_anonymous_bytes
            return Run(started, first, last, usage.cpu_seconds(first, last), *memory, 0)
        finally:
            process.kill()
            usage.close()


def measure_tail(kafka: KafkaServer, prefix: str, start: Callable[[], ChildProcess], lsn: int) -> Run:
    """Start a daemon with this prefix of its control topics, and do as Daemon.measure_tail."""
    watch = CheckpointWatch(kafka, prefix)
    started = time.time()
    process = start()
    usage = Usage(process.pid)
    try:
        last_commit = watch.wait(lsn, process)
        _expect_success(process)
        usage.close()
        first_row = logged_at(process, "following")
        cpu = usage.cpu_seconds(first_row, last_commit)
        memory = usage.peak_rss_bytes, usage.peak_anonymous_bytes
        return Run(started, first_row, last_commit, cpu, *memory, watch.commit_count)
    finally:
        process.kill()
        usage.close()
        watch.close()


def logged_at(process: ChildProcess, event: str, count: int = 1) -> float:
    """When the process has logged this event for the first time, or as often as `count`. Raises LookupError if it hasn't."""
    for row in process.log_text().splitlines():
        if row.startswith("{"):
            entry: dict[str, Any] = json.loads(row)
            count -= entry.get("event") == event
            if not count:
                return datetime.fromisoformat(entry["timestamp"]).timestamp()
    raise LookupError(f"the daemon hasn't logged {event!r}:\n{process.log_tail()}")


def wait_logged(process: ChildProcess, event: str, seconds: float = 60, count: int = 1) -> float:
    """Wait until the process has logged this event, so often; when it did."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return logged_at(process, event, count)
        except LookupError:
            if time.monotonic() > deadline or process.exit_status() is not None:
                raise
            time.sleep(0.02)


def _expect_success(process: ChildProcess) -> None:
    status = process.exit_status(wait_seconds=RUN_TIMEOUT_SECONDS)
    if status != 0:
        raise RuntimeError(f"the daemon ended with status {status}:\n{process.log_tail()}")
