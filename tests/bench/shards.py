"""The daemons of a fleet, one for each shard, that work at the same time on topics that all of them write."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from cdc.local.interface import KafkaServer, TarantoolServer
from cdc.local.process import ChildProcess
from tests.bench.process import RUN_TIMEOUT_SECONDS, Run, measure_tail


class ShardDaemons:
    """A configured fleet whose daemons can be run again and again."""

    def __init__(self, directory: Path, prefix: str, masters: Mapping[str, TarantoolServer], kafka: KafkaServer) -> None:
        self.prefix = prefix
        self._names = tuple(masters)
        self._kafka = kafka
        self._directory = directory / prefix
        self._directory.mkdir(parents=True, exist_ok=True)
        self._config_file = self._directory / "fleet.toml"
        shards = "".join(f"[fleet.shards.{name}]\nuris = [{json.dumps(master.uri)}]\n" for name, master in masters.items())
        self._config_file.write_text(
            f'name = {json.dumps(prefix)}\n[fleet]\ntopics = "shared"\n{shards}'
            f"[state]\npath = {json.dumps(str(self._directory / 'state'))}\n"
            f"[kafka]\nbootstrap_servers = {json.dumps(kafka.bootstrap_servers)}\ntopic_prefix = {json.dumps(prefix)}\n"
            '[http]\nlisten = ""\n[log]\nformat = "json"\n'
        )

    def start(self, name: str) -> ChildProcess:
        """Start a shard's daemon, which ends when it has caught up."""
        command = [sys.executable, "-m", "cdc", "run", "--config", str(self._config_file), "--shard", name, "--until-caught-up"]
        log_file = self._directory / f"{name}.log"
        return ChildProcess(f"the daemon of {name}", command, log_file=log_file, working_directory=self._directory)

    def catch_up(self) -> None:
        """Run all until they have caught up, unmeasured."""
        for name in self._names:
            process = self.start(name)
            try:
                if process.exit_status(wait_seconds=RUN_TIMEOUT_SECONDS) != 0:
                    raise RuntimeError(f"the daemon of {name} failed:\n{process.log_tail()}")
            finally:
                process.kill()

    def measure_tails(self, lsns: Mapping[str, int]) -> dict[str, Run]:
        """Run the daemons of these shards at the same time; see Daemon.measure_tail."""
        with ThreadPoolExecutor(len(lsns)) as threads:
            runs = {
                name: threads.submit(measure_tail, self._kafka, f"{self.prefix}.{name}", partial(self.start, name), lsn)
                for name, lsn in lsns.items()
            }
            return {name: run.result() for name, run in runs.items()}
