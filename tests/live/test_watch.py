"""`watch` as a user runs it: at a real server, on a terminal and in a pipe."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.local.interface import TarantoolServer
from tests.live.scene import Scene
from tests.live.test_gaps import forget_logs_of
from tests.live.topics import TopicReader
from tests.live.waiting import wait_for

CREATE = """
local function space(name, format, parts) box.schema.space.create(name, {format = format}):create_index('pk', {parts = parts}) end
space('users', {{'id', 'unsigned'}, {'name', 'string'}, {'balance', 'number'}}, {1})
space('lines', {{'order', 'unsigned'}, {'line', 'unsigned'}, {'item', 'string'}}, {1, 2})
space('schema', {{'id', 'unsigned'}}, {1})
space('a.b', {{'id', 'unsigned'}}, {1})
space('a_b', {{'id', 'unsigned'}}, {1})
for id = 1, 3 do box.space.users:insert{id, 'user ' .. id, id} end
"""

CHANGE = """
box.space.users:insert{4, 'user 4', 4}
box.space.users:update(1, {{'+', 3, 10}})
box.space.users:upsert({2, '', 0}, {{'=', 2, 'other'}})
box.begin() box.space.users:delete(3) box.space.lines:insert{1, 1, 'x'} box.space.lines:insert{1, 2, 'y'} box.commit()
box.space.schema:insert{1} box.space['a.b']:insert{1} box.space.a_b:insert{1}
box.space.lines:truncate()
"""


class Watch:
    """A running `watch`, whose output is read all the time."""

    def __init__(self, uri: str, *arguments: str, terminal: bool = False) -> None:
        command = [sys.executable, "-m", "cdc", "watch", uri, *arguments]
        environment = {**os.environ, "TERM": "xterm-256color"}
        self._output, self._errors = bytearray(), bytearray()
        if terminal:
            self.reader, child = pty.openpty()
            fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        else:
            self.reader, child = os.pipe()
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=child, stderr=subprocess.PIPE, start_new_session=True, env=environment
        )
        os.close(child)
        assert self.process.stderr is not None
        self._threads = [self._collect(self.reader, self._output), self._collect(self.process.stderr.fileno(), self._errors)]

    def _collect(self, descriptor: int, into: bytearray) -> threading.Thread:
        def collect() -> None:
            try:
                while data := os.read(descriptor, 65536):
                    into.extend(data)
            except OSError:  # the terminal's or the test's end
                pass

        thread = threading.Thread(target=collect, daemon=True)
        thread.start()
        return thread

    @property
    def output(self) -> str:
        return self._output.decode()

    @property
    def errors(self) -> str:
        return self._errors.decode()

    def values(self, count: int) -> list[Any]:
        """Wait for that many lines, and return what they hold."""
        wait_for(f"{count} lines", lambda: self._output.count(b"\n") >= count or self._is_over(), 60)
        return [json.loads(line) for line in self.output.splitlines()]

    def _is_over(self) -> bool:
        assert self.process.poll() is None, f"watch has ended: {self.errors}"
        return False

    def end(self, number: int = signal.SIGINT) -> int:
        """End it, as Ctrl-C does; returns its exit status."""
        self.process.send_signal(number)
        status = self.process.wait(30)
        self._threads[1].join(10)
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


Watching = Callable[..., Watch]


@pytest.fixture
def master(tarantool: TarantoolServer) -> TarantoolServer:
    tarantool.eval(CREATE)
    return tarantool


@pytest.fixture
def watching(master: TarantoolServer) -> Iterator[Watching]:
    """Starts `watch` at the master, and waits until it follows."""
    found: list[Watch] = []

    def start(*arguments: str, follows: bool = True, **options: Any) -> Watch:
        before = relay_count(master)
        found.append(Watch(master.uri, *arguments, **options))
        if follows:
            wait_for("the watch follows", lambda: relay_count(master) > before or found[-1]._is_over(), 60)
        return found[-1]

    yield start
    for watch in found:
        watch.close()


def relay_count(master: TarantoolServer) -> int:
    """How many anonymous replicas follow."""
    return int(master.eval("return box.info.replication_anon.count")[0])


def short(value: Any) -> tuple[Any, ...]:
    return value["op"], value["source"]["table"], value["before"], value["after"]


def user(id_: int, name: str, balance: int) -> dict[str, Any]:
    return {"id": id_, "name": name, "balance": balance}


STREAMED = [
    ("c", "users", None, user(4, "user 4", 4)),
    ("u", "users", user(1, "user 1", 1), user(1, "user 1", 11)),
    ("u", "users", user(2, "user 2", 2), user(2, "other", 2)),
    ("d", "users", user(3, "user 3", 3), None),
    ("c", "lines", None, {"order": 1, "line": 1, "item": "x"}),
    ("c", "lines", None, {"order": 1, "line": 2, "item": "y"}),
    ("c", "schema", None, {"id": 1}),
    ("c", "a.b", None, {"id": 1}),
    ("c", "a_b", None, {"id": 1}),
    ("t", "lines", None, None),
]


def test_changes_from_now_on(master: TarantoolServer, watching: Watching) -> None:
    watch = watching()
    master.eval(CHANGE)
    values = watch.values(len(STREAMED))
    assert [short(value) for value in values] == STREAMED
    assert [value["source"]["seq"] for value in values] == list(range(1, len(STREAMED) + 1))
    assert watch.end() == 0
    assert watch.errors == ""
    assert relay_count(master) == 0


@pytest.mark.one_of_these("watch")
def test_the_rows_first(master: TarantoolServer, watching: Watching) -> None:
    watch = watching("users", "--snapshot", "lines")
    assert [short(value) for value in watch.values(3)] == [
        ("r", "users", None, user(id_, f"user {id_}", id_)) for id_ in (1, 2, 3)
    ]
    master.eval(CHANGE)
    wanted = [change for change in STREAMED if change[1] in ("users", "lines")]
    assert [short(value) for value in watch.values(3 + len(wanted))[3:]] == wanted
    assert watch.end(signal.SIGTERM) == 0


def test_without_images(master: TarantoolServer, watching: Watching) -> None:
    watch = watching("users", "--no-images")
    master.eval(CHANGE)
    inserted, updated, upserted, deleted = watch.values(4)
    assert short(inserted) == STREAMED[0]
    assert (updated["key"], updated["patch"]) == ({"id": 1}, [{"op": "+", "field": "balance", "value": 10}])
    assert (upserted["key"], upserted["upsert"]) == ({"id": 2}, user(2, "", 0))
    assert (deleted["key"], *short(deleted)) == ({"id": 3}, "d", "users", None, None)
    assert watch.end() == 0


@pytest.mark.one_of_these("watch")
def test_an_export(watching: Watching, tmp_path: Path) -> None:
    """It ends by itself, and a file is appended to."""
    path = tmp_path / "users.jsonl"
    for run in (1, 2):
        watch = watching("users", "--snapshot", "--until-caught-up", "--output", str(path), follows=False)
        assert watch.process.wait(60) == 0
        assert len(path.read_text().splitlines()) == run * 3
        assert watch.output == ""


def test_a_terminal(master: TarantoolServer, watching: Watching) -> None:
    watch = watching(terminal=True)
    master.eval(CHANGE)
    wait_for("the last line", lambda: "all rows are gone" in watch.output or watch._is_over(), 60)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", watch.output).splitlines()
    assert "\x1b[1;32m+" in watch.output
    assert [line[13:].rstrip() for line in lines] == [
        '  + users   4  name "user 4" · balance 4',
        "  ~ users   1  balance 1 → 11",
        '  ~ users   2  name "user 2" → "other"',
        '┌ - users   3  name "user 3" · balance 3',
        '│ + lines   (1, 1)  item "x"',
        '└ + lines   (1, 2)  item "y"',
        "  + schema  1",
        "  + a.b     1",
        "  + a_b     1",
        "  x lines   all rows are gone",
    ]
    assert watch.end() == 0
    assert re.match(r"watching a.b, a_b, lines, schema, users at \S+ \(Tarantool 2\.\S+\): changes from now on", watch.errors)


@pytest.mark.one_of_these("watch")
def test_the_server_goes_away_and_comes_back(master: TarantoolServer, watching: Watching) -> None:
    watch = watching("users")
    master.eval("box.space.users:insert{4, 'user 4', 4}")
    watch.values(1)
    master.kill()
    wait_for("the loss is reported", lambda: "Trying again in" in watch.errors or watch._is_over(), 30)
    master.start()
    master.eval("box.space.users:update(1, {{'+', 3, 10}})")
    assert [short(value) for value in watch.values(2)] == STREAMED[:2]
    wait_for("the return is reported", lambda: "no change is missing" in watch.errors, 30)
    assert watch.end() == 0


@pytest.mark.one_of_these("watch")
def test_logs_that_are_gone_are_made_up_for(master: TarantoolServer, watching: Watching) -> None:
    """What has changed meanwhile is shown, each row once."""
    watch = watching("users")
    master.eval("box.space.users:insert{4, 'user 4', 4}")
    watch.values(1)
    watch.process.send_signal(signal.SIGSTOP)
    wait_for("the master drops it", lambda: relay_count(master) == 0, 60)
    master.eval("""
        for number = 1, 3 do box.space.users:update(1, {{'+', 3, 1}}) end
        box.space.users:delete(3) box.space.users:insert{5, 'user 5', 5}
    """)
    forget_logs_of(master)
    watch.process.send_signal(signal.SIGCONT)
    assert [short(value) for value in watch.values(4)[1:]] == [
        ("u", "users", user(1, "user 1", 1), user(1, "user 1", 4)),
        ("c", "users", None, user(5, "user 5", 5)),
        ("d", "users", user(3, "user 3", 3), None),
    ]
    wait_for("it is reported", lambda: "Trying again" in watch.errors, 30)
    assert watch.end() == 0


def test_a_reader_that_ends(master: TarantoolServer) -> None:
    """While nothing changes: after the first line `head` ends, and nothing is written from then on."""
    found = subprocess.Popen(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m cdc watch {master.uri} users --snapshot | head -n 1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    output, errors = found.communicate(timeout=60)
    assert (found.returncode, errors) == (0, "")
    assert json.loads(output)["after"] == user(1, "user 1", 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "has no space 'nothing'. The spaces there are: a.b, a_b, lines, schema, users."),
        (["users", "--output", "/"], "/ can't be written: Is a directory"),
    ],
)
def test_refusals(watching: Watching, arguments: list[str], words: str) -> None:
    watch = watching(*arguments, follows=False)
    assert watch.process.wait(60) == 1
    assert words in watch.errors


@pytest.mark.one_of_these("watch")
def test_rights_and_addresses(master: TarantoolServer) -> None:
    for uri, words in (
        (f"127.0.0.1:{master.port}", "Read access to universe '' is denied for user 'guest'"),
        ("127.0.0.1:1", "Check that the server runs, and the host and port in the URI."),
    ):
        found = subprocess.run(
            [sys.executable, "-m", "cdc", "watch", uri], capture_output=True, text=True, timeout=60, check=False
        )
        assert found.returncode == 1
        assert words in found.stderr
        assert "source.uris" not in found.stderr


@pytest.mark.one_of_these("watch")
def test_values_are_kafkas(scene: Scene, watching: Watching, master: TarantoolServer) -> None:
    """But for what differs from daemon to daemon: its name, its numbers, and its own times."""
    scene.daemon.settings["spaces"] = {"include": ["users", "lines"]}
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    watch = watching("users", "lines")
    master.eval(CHANGE)
    scene.catch_up()
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix) as reader:
        records = [json.loads(record.value) for record in reader.below(reader.look_at_rest()) if record.value is not None]
    streamed = [value for value in records if value.get("op", "r") != "r"]
    in_kafka = {value["source"]["seq"]: comparable(value) for value in streamed}
    wanted = [value for _, value in sorted(in_kafka.items())]
    assert [comparable(value) for value in watch.values(len(wanted))] == wanted
    assert len(wanted) == 7
    assert watch.end() == 0


def comparable(value: dict[str, Any]) -> dict[str, Any]:
    source = {name: item for name, item in value["source"].items() if name not in ("name", "seq", "schema_version")}
    return {**{name: item for name, item in value.items() if not name.startswith("ts_")}, "source": source}
