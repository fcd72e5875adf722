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
from collections.abc import Callable, Mapping

import structlog

from cdc import log

Handler = Callable[[], None]


def prepare() -> None:
    """Set the effects of signals that ask for no stop, as soon as the log is set up. For the main thread."""
    faulthandler.register(signal.SIGUSR2, log.unblocked_stderr())
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    if not _ends_at_hangup() and not _ignores_hangup():
        signal.signal(signal.SIGHUP, lambda *_: _go_on())


def handlers(stop: Handler) -> Mapping[signal.Signals, Handler]:
    """Return what to do at each signal that Python code handles. `stop` asks for an orderly stop."""
    found: dict[signal.Signals, Handler] = {signal.SIGTERM: stop, signal.SIGINT: stop}
    if not _ignores_hangup():
        found[signal.SIGHUP] = _at_hangup(stop) if _ends_at_hangup() else _go_on
    return found


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
