"""What commands print: no traceback, no false exit status, and lines of JSON that stay valid, whatever stdout and stderr are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from cdc import cli
from cdc.log import output
from tests.fakes.log_files import END_MARKER, block, insert, meta, rows_data

NAME = "заказы é 😀 \udc80"
"""A name in several scripts, and a character that no encoding has."""

CONFIGURATION = """
name = "shop"
[source]
uris = ["cdc:secret@127.0.0.1:1"]
[kafka]
bootstrap_servers = "127.0.0.1:1"
topic_prefix = "shop"
[state]
path = "заказы"
[http]
listen = "127.0.0.1:1"
[log]
format = "console"
"""

PRINTS = """
import sys
from cdc.errors import ConfigurationError
from cdc import cli
def status(config, say, *, as_json):
    for number in range(int(sys.argv[3])):
        say({!r})
    if sys.argv[4] == "error":
        raise ConfigurationError({!r})
import cdc.commands.status
cdc.commands.status.status = status
sys.exit(cli.main(["status", "--config", sys.argv[2]]))
""".format(json.dumps({"name": NAME}, ensure_ascii=False), NAME)


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    file = tmp_path / "shop.toml"
    file.write_text(CONFIGURATION)
    return file


@pytest.mark.parametrize(
    "locale", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}, {"LANG": "C"}, {"LC_ALL": "C"}, {}]
)
def test_names_that_the_encoding_lacks(configuration: Path, locale: dict[str, str]) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHONIO"))}
    run = subprocess.run(
        [sys.executable, "-c", PRINTS, "-", str(configuration), "1", "error"],
        capture_output=True,
        timeout=60,
        check=False,
        env={**environment, **locale},
    )
    assert run.returncode == 1
    assert b"Traceback" not in run.stderr
    encoding = locale.get("PYTHONIOENCODING", "utf-8")
    assert json.loads(run.stdout.decode(encoding)) == {"name": NAME}
    assert run.stderr.startswith(b"tarantool-cdc: ")


def test_a_command_with_such_a_path(configuration: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "cdc", "verify", "--config", str(configuration)],
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (run.returncode, run.stdout) == (1, b"")
    assert rb"\u0437\u0430\u043a\u0430\u0437\u044b" in run.stderr
    assert b"Traceback" not in run.stderr


def run_without_reader(configuration: Path, count: int, ends_with: str) -> subprocess.CompletedProcess[bytes]:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, "-c", PRINTS, "-", str(configuration), str(count), ends_with],
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)


@pytest.mark.parametrize("count", [1, 10_000])
def test_the_reader_of_stdout_ends(configuration: Path, count: int) -> None:
    """As with `| head`: the exit status says what it would say with a reader."""
    run = run_without_reader(configuration, count, "success")
    assert (run.returncode, run.stderr) == (0, b"")
    run = run_without_reader(configuration, count, "error")
    assert run.returncode == 1
    assert run.stderr.startswith(b"tarantool-cdc: ")
    assert run.stderr.count(b"\n") == 1


HOSTILE = "a\x1b[2J\x9b31m\u202e\rb\nc"
"""What a terminal would obey, between letters; a sentence may have several lines."""


def test_what_a_terminal_would_obey_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    output.say(json.dumps({"name": HOSTILE}, ensure_ascii=False))
    output.say(HOSTILE)
    output.complain(HOSTILE)
    shown = capfd.readouterr()
    first, *others = shown.out.splitlines()
    assert json.loads(first) == {"name": HOSTILE}
    assert others == shown.err.splitlines() == [r"a\u001b[2J\u009b31m\u202e\rb", "c"]
    assert first.isprintable()


INTERRUPTED = """
import os, runpy, signal, sys
class Interrupter:
    def find_spec(self, name, path, target=None):
        if name == os.environ["INTERRUPTED"]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupter())
runpy.run_module("cdc", run_name="__main__")
"""


@pytest.mark.parametrize(("module", "status"), [("cdc.config", -signal.SIGINT), ("cdc.commands.watch", 0)])
def test_ctrl_c_during_the_imports(module: str, status: int) -> None:
    """They take most of a second. `watch` ends with 0, as at any other moment."""
    command = [sys.executable, "-c", INTERRUPTED, "watch", "127.0.0.1:1"]
    environment = os.environ | {"INTERRUPTED": module}
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (run.returncode, run.stdout, run.stderr) == (status, "", "")


def test_ctrl_c_while_the_arguments_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_parser", interrupt)
    assert cli.main(["watch", "127.0.0.1:1"]) == 130


def test_decode_ends_with_its_reader(tmp_path: Path) -> None:
    file = tmp_path / "00000000000000000000.xlog"
    rows = rows_data(insert(lsn, lsn, "x" * 100) for lsn in range(1, 5000))
    file.write_bytes(meta() + block(rows) + END_MARKER)
    with subprocess.Popen(
        [sys.executable, "-m", "cdc", "decode", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"{")
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize("count", [1, 10_000])
def test_stdout_on_a_full_disk(configuration: Path, count: int) -> None:
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [sys.executable, "-c", PRINTS, "-", str(configuration), str(count), "success"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert run.returncode == 1
    assert run.stderr == "tarantool-cdc: the output is incomplete, as stdout can't be written: No space left on device\n"


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("ends_with", ["success", "error"])
def test_closed_streams(configuration: Path, closed: str, ends_with: str) -> None:
    command = [sys.executable, "-c", PRINTS, "-", str(configuration), "1", ends_with]
    run = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *command], capture_output=True, timeout=60, check=False)
    assert run.returncode == (1 if ends_with == "error" else 0)
    assert b"Traceback" not in run.stderr


def test_no_file_gets_the_descriptor_of_a_closed_stream() -> None:
    """What libraries print to stderr would be written into that file."""
    script = "import os; from cdc.log.output import prepare; prepare(); print(os.open('/dev/zero', os.O_RDONLY))"
    run = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- 2>&-', "sh", sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert int(run.stdout) > 2
