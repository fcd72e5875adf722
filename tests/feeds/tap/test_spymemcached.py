"""spymemcached's TapClient, as it is in Maven Central, takes what the server sends."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.feeds.tap.keys import vbucket_of
from cdc.local.jars import SPYMEMCACHED, class_path, java_command
from tests.feeds.tap.served import Served
from tests.live.waiting import wait_for

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

PROGRAM = Path(__file__).parent / "clients" / "SpyTap.java"
ROWS = {f"users:{number}": b"row %d" % number for number in range(300)}


@contextlib.contextmanager
def spymemcached(port: int, mode: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The program, as long as the context lasts."""
    with output.open("wb") as file:
        command = [java_command(), "-cp", class_path(SPYMEMCACHED), str(PROGRAM), str(port), mode]
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def delivered(output: Path) -> list[list[str]]:
    """Opcode, key, value, CAS and vbucket of each message that it delivered."""
    return [line.split("\t") for line in output.read_text().splitlines()]


def test_follows_and_acknowledges(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with Served(tmp_path, ROWS) as served, spymemcached(served.server.port, "follow", output):
        wait_for("spymemcached", lambda: "spy" in served.server.clients)
        wait_for("its rows", lambda: sum(line[0] == "MUTATION" for line in delivered(output)) == len(ROWS))
        rows = [line for line in delivered(output) if line[0] == "MUTATION"]
        assert {key: value.encode() for _, key, value, _, _ in rows} == ROWS
        assert all(int(vbucket) == vbucket_of(key.encode(), 1023) for _, key, _, _, vbucket in rows)
        served.tell(("1", b"new"), ("2", None))
        last = [["MUTATION", "users:1", "new", "1"], ["DELETE", "users:2", "", "2"]]
        wait_for("the changes", lambda: [line[:4] for line in delivered(output)[-2:]] == last)
        session = served.server.clients["spy"].session
        wait_for("its ACKs", lambda: session.position.seq == 2)


def test_takes_a_dump(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with Served(tmp_path, ROWS) as served, spymemcached(served.server.port, "dump", output) as process:
        assert process.wait(60) == 0
        assert {line[1]: line[2].encode() for line in delivered(output) if line[0] == "MUTATION"} == ROWS
