"""Signals of a process that runs until it is stopped: the daemon's, and those of the feeds beside it.

| signal | effect |
|---|---|
| SIGTERM, SIGINT | an orderly stop |
| SIGHUP | an orderly stop if the process was started from a terminal, which was closed then; otherwise a line in the log |
| SIGUSR2 | the stack of each thread on stderr |
| SIGTTOU | none: a terminal that suspends programs in the background when they write (`stty tostop`) doesn't suspend this one |

SIGHUP is also what a log rotation sends, so that programs open their files again. The log goes to stderr, so there is no file to
open, and a service must not end for that.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Mapping

import structlog

from cdc import log

Handler = Callable[[], None]


def prepare() -> None:
    """Set the effects of signals that ask for no stop, as soon as the log is set up. For the main thread."""
    _print_stacks_at(signal.SIGUSR2)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    if not _ends_at_hangup() and not _ignores_hangup():
        signal.signal(signal.SIGHUP, lambda *_: _go_on())


def handlers(stop: Handler) -> Mapping[signal.Signals, Handler]:
    """Return what to do at each signal that Python code handles. `stop` asks for an orderly stop."""
    found: dict[signal.Signals, Handler] = {signal.SIGTERM: stop, signal.SIGINT: stop}
    if not _ignores_hangup():
        found[signal.SIGHUP] = _at_hangup(stop) if _ends_at_hangup() else _go_on
    return found


def _print_stacks_at(number: signal.Signals) -> None:
    """Print the stacks in a thread, which a signal wakes even while the main thread waits for something outside of Python.

    The thread has Python's lock, so the other threads' stacks stand still. `faulthandler.register` prints without it: now and
    then it read a stack that was changing, and the process ended with SIGSEGV.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    stderr = log.unblocked_stderr()

    def print_stacks() -> None:
        while come := os.read(reader, 1):
            if come[0] == number:
                faulthandler.dump_traceback(stderr, all_threads=True)

    threading.Thread(target=print_stacks, name="stacks", daemon=True).start()
    # Only signals that Python handles are written to the pipe.
    signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)


def _at_hangup(stop: Handler) -> Handler:
    def end() -> None:
        structlog.get_logger().warning("stopping at SIGHUP: the terminal that this program was started from is closed")
        stop()

    return end


def _go_on() -> None:
    structlog.get_logger().info(
        "SIGHUP has no effect: the log goes to stderr, so there is no file to open again. Let logrotate use copytruncate. "
        "SIGTERM stops this program."
    )


def _ignores_hangup() -> bool:
    """Return whether the program was started with SIGHUP ignored, as `nohup` does it."""
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def _ends_at_hangup() -> bool:
    """Return whether the process has a controlling terminal, whose end the system reports with SIGHUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
