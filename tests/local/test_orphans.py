"""Nothing is left running when the process that started the servers is killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_PARENT = """
import signal, sys, threading
from pathlib import Path
from cdc.local.kafka import Kafka
from cdc.local.tarantool import Tarantool

directory = Path(sys.argv[1])
servers = [Tarantool(directory / "tarantool"), Kafka(directory / "kafka", heap="256m")]
threads = [threading.Thread(target=server.start) for server in servers]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*(server.pid for server in servers), flush=True)
signal.pause()
"""


def processes_in(directory: Path) -> set[int]:
    """All processes whose current directory is in this one. (Tarantool writes over its environment, so no mark stays there.)"""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                current = (entry / "cwd").readlink()
            except (FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended, or is another user's
                continue
            if current.is_relative_to(directory):
                found.add(int(entry.name))
    return found


@pytest.mark.live
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds a child's life to its parent's")
def test_no_server_outlives_a_killed_parent(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path)], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2, "the parent's error is on standard error"
        assert processes_in(tmp_path) == {parent.pid, *pids}
        ends = {os.pidfd_open(pid) for pid in pids}
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
    while ends:
        ended, _, _ = select.select(list(ends), [], [], 20)
        assert ended, f"still running: {processes_in(tmp_path)}"
        for descriptor in ended:
            ends.remove(descriptor)
            os.close(descriptor)
    assert processes_in(tmp_path) == set()
