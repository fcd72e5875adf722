"""Program that has imported the daemon once, and forks a process for each command of `tarantool-cdc` that a test asks for.

The imports are most of the CPU time of a start, and the live tests start the daemon some hundred times. The forked process
runs the command from its first line to its last, with arguments, environment, folder, output and process group of its own.

It reads an order per line of standard input (`Order`), and writes a report per line: `started PID`, `stopped PID` and
`ended PID STATUS`. It ends with its input; the kernel kills what it has started then.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import sys
from dataclasses import dataclass
from typing import Final

import cdc

_PR_SET_PDEATHSIG: Final = 1
_NOT_THE_DAEMON: Final = ("cdc.local", "cdc.__main__")
"""The servers of the tests, and the module that would run a command when it is imported."""


@dataclass(frozen=True, slots=True)
class Order:
    """A command to run: its arguments, the whole environment, and files that its output is appended to."""

    arguments: list[str]
    environment: dict[str, str]
    working_directory: str
    stdout: str
    stderr: str


def main() -> None:
    """Serve; in a process that was forked, run the command."""
    _import_all()
    # What is there now is never collected: a collection would copy the shared memory of each process.
    gc.collect()
    gc.freeze()
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"a fork has one thread, but importing the daemon has started {threads - 1} more"
    order = _serve()
    if order is None:
        return
    _become(order)
    from cdc.cli import main as run_command

    sys.exit(run_command())


def _import_all() -> None:
    for module in pkgutil.walk_packages(cdc.__path__, "cdc."):
        if not module.name.startswith(_NOT_THE_DAEMON):
            importlib.import_module(module.name)


def _serve() -> Order | None:
    """Return the order that the forked process is to carry out; None, in the server itself, at the end of the input."""
    server = os.getpid()
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == woken:
                    os.read(woken, 4096)
                    _report_children()
                    continue
                read = os.read(0, 65536)
                if not read:
                    return None
                *lines, rest = (rest + read).split(b"\n")
                for line in lines:
                    if os.fork() == 0:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        os.close(woken)
                        os.close(waker)
                        _die_with(server)
                        # Before the report: who knows the process may signal its group at once.
                        os.setsid()
                        _report(f"started {os.getpid()}")
                        return Order(**json.loads(line))


def _report_children() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _report(f"stopped {pid}" if os.WIFSTOPPED(status) else f"ended {pid} {os.waitstatus_to_exitcode(status)}")


def _report(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def _die_with(server: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != server:
        os._exit(1)


def _become(order: Order) -> None:
    """Take on what a started program would be given."""
    os.chdir(order.working_directory)
    os.environ.clear()
    os.environ.update(order.environment)
    for descriptor, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, order.stdout, os.O_WRONLY | os.O_APPEND | os.O_CREAT),
        (2, order.stderr, os.O_WRONLY | os.O_APPEND | os.O_CREAT),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.argv = ["tarantool-cdc", *order.arguments]


if __name__ == "__main__":
    main()
